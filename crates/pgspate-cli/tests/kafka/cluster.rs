//! A Kafka cluster within the test's process, and its writer.

use std::ops::Deref;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};

use crate::run::PATIENCE;

/// A cluster of one broker, with its topics.
pub(crate) struct KafkaCluster {
    mock: MockCluster<'static, DefaultProducerContext>,
    pub(crate) writer: TopicWriter,
}

/// Writes messages to the cluster, from any thread.
pub(crate) struct TopicWriter(BaseProducer);

impl Deref for KafkaCluster {
    type Target = TopicWriter;

    fn deref(&self) -> &TopicWriter {
        &self.writer
    }
}

impl KafkaCluster {
    /// Starts a cluster with topics and their numbers of partitions.
    pub(crate) fn new(topics: &[(&str, i32)]) -> KafkaCluster {
        KafkaCluster::compressing(topics, "none")
    }

    /// Starts a cluster whose writer compresses messages.
    pub(crate) fn compressing(topics: &[(&str, i32)], compression: &str) -> KafkaCluster {
        let mock = MockCluster::new(1).unwrap();
        for (topic, partitions) in topics {
            mock.create_topic(topic, *partitions, 1).unwrap();
        }
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", mock.bootstrap_servers());
        // The producer must keep the order of messages, even if it sends a message again.
        config.set("enable.idempotence", "true").set("linger.ms", "1");
        config.set("compression.codec", compression);
        KafkaCluster { mock, writer: TopicWriter(config.create().unwrap()) }
    }

    /// Returns the URL of the topics, as a source of `pgspate apply`.
    pub(crate) fn address(&self, topics: &str) -> String {
        format!("kafka://{}/{topics}", self.mock.bootstrap_servers())
    }

    /// Stops the broker. `restart` starts it again.
    pub(crate) fn stop(&self) {
        self.mock.broker_down(-1).unwrap();
    }

    /// Starts the broker again.
    pub(crate) fn restart(&self) {
        self.mock.broker_up(-1).unwrap();
    }
}

impl TopicWriter {
    /// Writes a message of pgspate's own events, without a key.
    pub(crate) fn put(&self, topic: &str, partition: i32, value: &str) {
        self.send(topic, partition, None, Some(value), &[]);
    }

    /// Writes a message.
    pub(crate) fn send(
        &self,
        topic: &str,
        partition: i32,
        key: Option<&str>,
        value: Option<&str>,
        headers: &[(&str, &str)],
    ) {
        let mut all = OwnedHeaders::new();
        for (key, value) in headers {
            all = all.insert(Header { key, value: Some(*value) });
        }
        let mut record = BaseRecord::<str, str>::to(topic).partition(partition).headers(all);
        record.key = key;
        record.payload = value;
        while let Err((error, again)) = self.0.send(record) {
            assert!(error.to_string().contains("Queue full"), "{error}");
            self.0.poll(Duration::from_millis(10));
            record = again;
        }
        self.0.poll(Duration::ZERO);
    }

    /// Waits until all messages are written.
    pub(crate) fn flush(&self) {
        self.0.flush(PATIENCE).unwrap();
    }
}
