//! The Kafka client: its configuration, its questions to brokers, and its statistics.
//!
//! librdkafka connects and reconnects by itself. Its statistics tell how far each partition has
//! been fetched, where each partition ends, and whether any broker is connected.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::metadata::Metadata;
use rdkafka::{ClientContext, Statistics, error::KafkaError};
use serde::Deserialize;

use super::address::TopicAddress;
use super::errors::{client_error, is_refusal, is_temporary, request_error};
use crate::{Error, ErrorKind, Result};

/// The longest time that an answer may take.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(15);
/// How often a waiting question checks for errors that librdkafka reports.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The most errors and messages that are checked each time.
const POLLS_MAX: usize = 100;
/// The interval of statistics in milliseconds. `STATISTICS_MS_SHORT` is for runs that end at the
/// end of the partitions, which only the statistics show.
const STATISTICS_MS_SHORT: &str = "200";
const STATISTICS_MS: &str = "1000";

/// The client that reads topics.
pub(crate) type Client = BaseConsumer<KafkaClientContext>;

/// The time that answers of brokers may take.
#[derive(Debug, Clone)]
pub(crate) struct AnswerTimeout {
    /// How long one answer may take.
    each: Duration,
    /// How long pgspate waits, over several questions, until any answer comes.
    all: Duration,
    /// When the first question was asked, or the last answer came.
    since: Cell<Instant>,
}

impl AnswerTimeout {
    /// Returns a timeout that starts now. An answer must come within `all`.
    pub(crate) fn within(all: Duration) -> AnswerTimeout {
        AnswerTimeout { each: ANSWER_TIME_MAX.min(all), all, since: Cell::new(Instant::now()) }
    }

    /// Returns how long the next answer may take.
    fn next(&self) -> Duration {
        self.each.min(self.all.saturating_sub(self.since.get().elapsed()))
    }

    /// Notes that an answer came.
    fn note_answer(&self) {
        self.since.set(Instant::now());
    }

    /// Describes the timeout that has passed.
    fn describe(&self) -> String {
        let limit = if self.since.get().elapsed() < self.all { self.each } else { self.all };
        format!("no answer within {} s", limit.as_secs())
    }
}

/// Receives errors and statistics from librdkafka.
#[derive(Debug, Default)]
pub(crate) struct KafkaClientContext {
    /// The brokers of the URL.
    brokers: String,
    news: Mutex<ClientNews>,
}

/// The last error and the last statistics of librdkafka.
#[derive(Debug, Default)]
struct ClientNews {
    /// The text of the last error.
    last_error: Option<String>,
    statistics: Option<ClientStatistics>,
}

/// The state of the client, from its statistics.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct ClientStatistics {
    /// Whether any broker is connected.
    pub(crate) is_connected: bool,
    /// The partitions, by topic and number.
    pub(crate) partitions: HashMap<(String, i32), PartitionOffsets>,
}

/// How far a partition has been fetched, and where it ends.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartitionOffsets {
    /// The offset of the next message to fetch.
    pub(crate) next: i64,
    /// The end of the committed messages.
    pub(crate) end: i64,
}

impl KafkaClientContext {
    fn new(brokers: &str) -> KafkaClientContext {
        KafkaClientContext { brokers: brokers.to_owned(), news: Mutex::default() }
    }

    /// Takes the latest statistics, if any came since the last call.
    pub(crate) fn take_statistics(&self) -> Option<ClientStatistics> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner).statistics.take()
    }

    /// Returns the text of the last error.
    pub(crate) fn last_error(&self) -> Option<String> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner).last_error.clone()
    }
}

impl ClientContext for KafkaClientContext {
    fn log(&self, level: RDKafkaLogLevel, _: &str, said: &str) {
        if (level as i32) <= RDKafkaLogLevel::Error as i32 {
            let mut news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
            // Remove the names of the client and its thread.
            let said = said.rsplit_once("]: ").map_or(said, |(_, said)| said);
            news.last_error = Some(said.to_owned());
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // The error's code is not needed: the end of a partition, and brokers that are away, are
        // handled elsewhere.
        self.log(RDKafkaLogLevel::Error, "", reason);
        drop(error);
    }

    fn stats(&self, _: Statistics) {}

    fn stats_raw(&self, json: &[u8]) {
        // Statistics that cannot be parsed are ignored.
        let Ok(figures) = serde_json::from_slice::<LibrdkafkaStatistics>(json) else { return };
        self.news.lock().unwrap_or_else(PoisonError::into_inner).statistics =
            Some(figures.statistics());
    }
}

impl ConsumerContext for KafkaClientContext {}

/// The fields that are read from librdkafka's statistics.
#[derive(Deserialize)]
struct LibrdkafkaStatistics {
    #[serde(default)]
    brokers: HashMap<String, BrokerStatistics>,
    #[serde(default)]
    topics: HashMap<String, TopicStatistics>,
}

#[derive(Deserialize)]
struct BrokerStatistics {
    state: String,
    source: String,
}

#[derive(Deserialize)]
struct TopicStatistics {
    #[serde(default)]
    partitions: HashMap<i32, PartitionStatistics>,
}

#[derive(Deserialize)]
struct PartitionStatistics {
    unknown: bool,
    next_offset: i64,
    hi_offset: i64,
    ls_offset: i64,
}

impl LibrdkafkaStatistics {
    fn statistics(self) -> ClientStatistics {
        // A logical broker is the consumer group's coordinator, which is not used.
        let is_up = |broker: &BrokerStatistics| broker.state == "UP" && broker.source != "logical";
        let is_connected = self.brokers.values().any(is_up);
        let mut partitions = HashMap::new();
        for (topic, found) in self.topics {
            for (partition, it) in found.partitions {
                if partition >= 0 && !it.unknown {
                    let end = if it.ls_offset >= 0 { it.ls_offset } else { it.hi_offset };
                    let offsets = PartitionOffsets { next: it.next_offset, end };
                    partitions.insert((topic.clone(), partition), offsets);
                }
            }
        }
        ClientStatistics { is_connected, partitions }
    }
}

/// Creates the client, which connects at its first question.
///
/// # Errors
/// [`ErrorKind::Usage`] for properties that librdkafka refuses.
pub(crate) fn client(address: &TopicAddress, follows: bool) -> Result<Client> {
    let mut config = ClientConfig::new();
    // librdkafka requires the name of a consumer group, although the group is never joined.
    let usual = [
        ("client.id", "pgspate"),
        ("group.id", "pgspate"),
        ("socket.keepalive.enable", "true"),
        ("reconnect.backoff.max.ms", "2000"),
        ("topic.metadata.refresh.interval.ms", "10000"),
        ("fetch.queue.backoff.ms", "20"),
    ];
    for (name, value) in usual {
        config.set(name, value);
    }
    for (name, value) in &address.properties {
        config.set(name, value);
    }
    let ours = [
        ("bootstrap.servers", address.brokers.as_str()),
        ("enable.auto.commit", "false"),
        ("enable.auto.offset.store", "false"),
        ("auto.offset.reset", "error"),
        ("isolation.level", "read_committed"),
        ("check.crcs", "true"),
        ("statistics.interval.ms", if follows { STATISTICS_MS } else { STATISTICS_MS_SHORT }),
    ];
    for (name, value) in ours {
        config.set(name, value);
    }
    config.set_log_level(RDKafkaLogLevel::Error);
    let context = KafkaClientContext::new(&address.brokers);
    Client::from_config_and_context(&config, context).map_err(client_error)
}

/// Asks for the partitions of a topic. Returns their numbers, sorted.
///
/// # Errors
/// When the brokers do not answer or refuse the user, or the topic does not exist.
pub(crate) fn partitions(
    client: &Client,
    topic: &str,
    answer_timeout: &AnswerTimeout,
) -> Result<Vec<i32>> {
    let what = format!("for the partitions of topic \"{topic}\"");
    let found = ask(client, topic, answer_timeout.next());
    let found = found.map_err(|error| no_answer_error(client, &what, error, answer_timeout))?;
    answer_timeout.note_answer();
    let Some(found) = found.topics().iter().find(|found| found.name() == topic) else {
        let message = format!("could not ask {what}");
        return Err(Error::new(ErrorKind::Source, message)
            .because("the brokers' answer does not have the topic"));
    };
    if let Some(error) = found.error() {
        let error = KafkaError::MetadataFetch(error.into());
        return Err(request_error(&format!("ask {what}"), error, None));
    }
    let mut numbers: Vec<_> = found.partitions().iter().map(|it| it.id()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Asks for the metadata of a topic. Stops early if the brokers refuse the user. Must be called
/// before messages are read, because polling would take them.
fn ask(client: &Client, topic: &str, limit: Duration) -> Result<Metadata, KafkaError> {
    let begun = Instant::now();
    loop {
        let error = match client.fetch_metadata(Some(topic), CHECK_INTERVAL.min(limit)) {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        // librdkafka returns errors by polling, after its statistics.
        for _ in 0..POLLS_MAX {
            let failure = client.poll(Duration::ZERO).and_then(Result::err);
            let is_final =
                |failure: &KafkaError| failure.rdkafka_error_code().is_some_and(is_refusal);
            if let Some(refusal) = failure.filter(is_final) {
                return Err(refusal);
            }
        }
        let may_pass = error.rdkafka_error_code().is_some_and(is_temporary);
        if !may_pass || begun.elapsed() >= limit {
            return Err(error);
        }
    }
}

/// Asks for the first offset and the end of a partition's committed messages.
///
/// # Errors
/// When the brokers do not answer.
pub(crate) fn bounds(
    client: &Client,
    topic: &str,
    partition: i32,
    answer_timeout: &AnswerTimeout,
) -> Result<(i64, i64)> {
    let found = client.fetch_watermarks(topic, partition, answer_timeout.next());
    found.inspect(|_| answer_timeout.note_answer()).map_err(|error| {
        let what = format!("where {topic}/{partition} begins and ends");
        no_answer_error(client, &what, error, answer_timeout)
    })
}

/// Returns the error for a question without an answer, with the brokers and the timeout.
fn no_answer_error(
    client: &Client,
    what: &str,
    error: KafkaError,
    answer_timeout: &AnswerTimeout,
) -> Error {
    let context = client.context();
    let is_late = error.rdkafka_error_code().is_some_and(is_temporary);
    let said = match (context.last_error(), is_late) {
        (said, false) => said,
        (None, true) => Some(answer_timeout.describe()),
        (Some(said), true) => Some(format!("{said}; {}", answer_timeout.describe())),
    };
    request_error(&format!("ask {} {what}", context.brokers), error, said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_have_the_offsets_of_partitions() {
        let json = br#"{"name":"x","brokers":{
            "a":{"state":"DOWN","source":"learned","rtt":{"min":1}},
            "g":{"state":"UP","source":"logical"}},
          "topics":{"t":{"topic":"t","partitions":{
            "-1":{"unknown":false,"next_offset":0,"hi_offset":-1001,"ls_offset":-1001},
            "0":{"unknown":false,"next_offset":7,"hi_offset":9,"ls_offset":8,"more":[]},
            "1":{"unknown":false,"next_offset":0,"hi_offset":3,"ls_offset":-1001}}}}}"#;
        let context = KafkaClientContext::default();
        context.stats_raw(json);
        let statistics = context.take_statistics().unwrap();
        assert!(!statistics.is_connected);
        assert_eq!(statistics.partitions.len(), 2);
        let of = |partition| statistics.partitions[&("t".to_owned(), partition)];
        assert_eq!(of(0), PartitionOffsets { next: 7, end: 8 });
        assert_eq!(of(1), PartitionOffsets { next: 0, end: 3 });
        assert_eq!(context.take_statistics(), None);
        context.stats_raw(b"{");
        assert_eq!(context.take_statistics(), None);
    }

    #[test]
    fn silent_brokers_time_out() {
        // The listener accepts connections and sends nothing.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap();
        let address =
            TopicAddress::parse(&format!("kafka://{place}/t"), std::iter::empty()).unwrap();
        let client = client(&address, false).unwrap();
        let answer_timeout = AnswerTimeout::within(Duration::from_secs(1));
        let questions = [
            partitions(&client, "t", &answer_timeout).err().unwrap(),
            bounds(&client, "t", 3, &answer_timeout).err().unwrap(),
        ];
        for (error, what) in
            questions.iter().zip(["for the partitions of topic \"t\"", "where t/3 begins and ends"])
        {
            assert_eq!(error.kind(), ErrorKind::Connect);
            assert_eq!(error.to_string(), format!("could not ask {place} {what}"));
            let words = error.messages().join(": ");
            assert!(words.contains("no answer within 1 s"), "{words}");
        }
    }

    #[test]
    fn each_answer_restarts_the_timeout() {
        let answer_timeout = AnswerTimeout::within(Duration::from_secs(10));
        answer_timeout
            .since
            .set(answer_timeout.since.get().checked_sub(Duration::from_secs(10)).unwrap());
        assert_eq!(answer_timeout.next(), Duration::ZERO);
        answer_timeout.note_answer();
        assert!(answer_timeout.next() > Duration::ZERO);
    }

    #[test]
    fn properties_are_refused_without_their_values() {
        let refusal = |properties: &str| {
            let source = format!("kafka://127.0.0.1:1/t?{properties}");
            let address = TopicAddress::parse(&source, std::iter::empty()).unwrap();
            client(&address, false).err().unwrap()
        };
        let error = refusal("no.such.property=1");
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert_eq!(error.to_string(), "librdkafka refused property \"no.such.property\"");
        let error = refusal("enable.ssl.certificate.verification=geheim");
        assert!(!error.messages().join(": ").contains("geheim"));
    }
}
