//! A cluster that lives in the test's process, and what writes into it.

use std::ops::Deref;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};

use crate::run::PATIENCE;

/// One broker with its topics.
pub(crate) struct Cluster {
    mock: MockCluster<'static, DefaultProducerContext>,
    pub(crate) writer: Writer,
}

/// Writes into it, from any thread.
pub(crate) struct Writer(BaseProducer);

impl Deref for Cluster {
    type Target = Writer;

    fn deref(&self) -> &Writer {
        &self.writer
    }
}

impl Cluster {
    /// With these topics of so many partitions.
    pub(crate) fn new(topics: &[(&str, i32)]) -> Cluster {
        Cluster::compressing(topics, "none")
    }

    /// The same, to which is written with a compression.
    pub(crate) fn compressing(topics: &[(&str, i32)], compression: &str) -> Cluster {
        let mock = MockCluster::new(1).unwrap();
        for (topic, partitions) in topics {
            mock.create_topic(topic, *partitions, 1).unwrap();
        }
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", mock.bootstrap_servers());
        // Messages are written in their order, however often they are sent.
        config.set("enable.idempotence", "true").set("linger.ms", "1");
        config.set("compression.codec", compression);
        Cluster { mock, writer: Writer(config.create().unwrap()) }
    }

    /// The topics as a source.
    pub(crate) fn address(&self, topics: &str) -> String {
        format!("kafka://{}/{topics}", self.mock.bootstrap_servers())
    }

    /// Takes the broker away, and gives it back.
    pub(crate) fn stop(&self) {
        self.mock.broker_down(-1).unwrap();
    }

    pub(crate) fn go_on(&self) {
        self.mock.broker_up(-1).unwrap();
    }
}

impl Writer {
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

    /// Waits until all is written.
    pub(crate) fn flush(&self) {
        self.0.flush(PATIENCE).unwrap();
    }
}
