//! The client of Kafka's: what it is told, and what it tells of itself.
//!
//! librdkafka connects, and connects again, by itself. Its statistics say how far each partition
//! has been fetched, where it ends, and whether any broker is there.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::metadata::Metadata;
use rdkafka::{ClientContext, Statistics, error::KafkaError};
use serde::Deserialize;

use super::address::Address;
use super::errors::{is_passing, is_refusal, of_client, of_request};
use crate::{Error, ErrorKind, Result};

/// How long an answer may take, at most.
const ANSWER: Duration = Duration::from_secs(15);
/// How often one who waits for it looks what else there is.
const LOOK: Duration = Duration::from_millis(500);
/// So many things are heard each time.
const POLLS: usize = 100;
/// How often it tells of itself: often where it decides when the run ends.
const TELLS_OFTEN: &str = "200";
const TELLS: &str = "1000";

/// A client that reads.
pub(crate) type Client = BaseConsumer<Context>;

/// How long several answers may take: each no longer than the one time, and until one comes no
/// longer than the other.
#[derive(Debug, Clone)]
pub(crate) struct Answers {
    each: Duration,
    all: Duration,
    /// When it was asked first, or the last answer came.
    since: Cell<Instant>,
}

impl Answers {
    /// That are waited for from now on, for so long until one comes.
    pub(crate) fn within(all: Duration) -> Answers {
        Answers { each: ANSWER.min(all), all, since: Cell::new(Instant::now()) }
    }

    /// How long the next one may take.
    fn next(&self) -> Duration {
        self.each.min(self.all.saturating_sub(self.since.get().elapsed()))
    }

    /// One has come.
    fn came(&self) {
        self.since.set(Instant::now());
    }

    /// The time that was not enough, in words.
    fn words(&self) -> String {
        let limit = if self.since.get().elapsed() < self.all { self.each } else { self.all };
        format!("no answer within {} s", limit.as_secs())
    }
}

/// Hears what librdkafka says of itself.
#[derive(Debug, Default)]
pub(crate) struct Context {
    /// Those that it was told of.
    brokers: String,
    heard: Mutex<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    /// The last complaint.
    said: Option<String>,
    told: Option<Told>,
}

/// How a client is.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    /// Some broker is there.
    pub(crate) is_connected: bool,
    /// By topic and partition.
    pub(crate) partitions: HashMap<(String, i32), PartitionOffsets>,
}

/// How far a partition is fetched, and where it ends.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartitionOffsets {
    /// All before it is fetched.
    pub(crate) next: i64,
    /// Where it ends for those who read what is committed.
    pub(crate) end: i64,
}

impl Context {
    fn new(brokers: &str) -> Context {
        Context { brokers: brokers.to_owned(), heard: Mutex::default() }
    }

    /// What it told since it was asked last.
    pub(crate) fn take_told(&self) -> Option<Told> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).told.take()
    }

    /// What it complained of last.
    pub(crate) fn said(&self) -> Option<String> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).said.clone()
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, _: &str, said: &str) {
        if (level as i32) <= RDKafkaLogLevel::Error as i32 {
            let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
            // The name of the client and of its thread say nothing to anybody.
            let said = said.rsplit_once("]: ").map_or(said, |(_, said)| said);
            heard.said = Some(said.to_owned());
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // That a partition is at its end, or all brokers away, is told elsewhere, and better.
        self.log(RDKafkaLogLevel::Error, "", reason);
        drop(error);
    }

    fn stats(&self, _: Statistics) {}

    fn stats_raw(&self, json: &[u8]) {
        // What is not understood tells nothing.
        let Ok(figures) = serde_json::from_slice::<Figures>(json) else { return };
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).told = Some(figures.told());
    }
}

impl ConsumerContext for Context {}

/// What is read of the statistics.
#[derive(Deserialize)]
struct Figures {
    #[serde(default)]
    brokers: HashMap<String, Broker>,
    #[serde(default)]
    topics: HashMap<String, Topic>,
}

#[derive(Deserialize)]
struct Broker {
    state: String,
    source: String,
}

#[derive(Deserialize)]
struct Topic {
    #[serde(default)]
    partitions: HashMap<i32, Partition>,
}

#[derive(Deserialize)]
struct Partition {
    unknown: bool,
    next_offset: i64,
    hi_offset: i64,
    ls_offset: i64,
}

impl Figures {
    fn told(self) -> Told {
        // A logical one is the group's, which is of no use here.
        let is_up = |broker: &Broker| broker.state == "UP" && broker.source != "logical";
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
        Told { is_connected, partitions }
    }
}

/// Makes the client. It connects when it is asked for something.
///
/// # Errors
/// Of [`ErrorKind::Usage`] for properties that librdkafka does not take.
pub(crate) fn client(address: &Address, follows: bool) -> Result<Client> {
    let mut config = ClientConfig::new();
    // Of the group nothing is wanted but that librdkafka wants one named.
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
        ("statistics.interval.ms", if follows { TELLS } else { TELLS_OFTEN }),
    ];
    for (name, value) in ours {
        config.set(name, value);
    }
    config.set_log_level(RDKafkaLogLevel::Error);
    let context = Context::new(&address.brokers);
    Client::from_config_and_context(&config, context).map_err(of_client)
}

/// The partitions of a topic, by their numbers.
///
/// # Errors
/// Brokers that are not there, do not let us in or do not answer, and a topic that is not there.
pub(crate) fn partitions(client: &Client, topic: &str, answers: &Answers) -> Result<Vec<i32>> {
    let what = format!("for the partitions of topic \"{topic}\"");
    let found = ask(client, topic, answers.next());
    let found = found.map_err(|error| unanswered(client, &what, error, answers))?;
    answers.came();
    let Some(found) = found.topics().iter().find(|found| found.name() == topic) else {
        let message = format!("could not ask {what}");
        return Err(Error::new(ErrorKind::Source, message).because("the brokers do not say"));
    };
    if let Some(error) = found.error() {
        let error = KafkaError::MetadataFetch(error.into());
        return Err(of_request(&format!("ask {what}"), error, None));
    }
    let mut numbers: Vec<_> = found.partitions().iter().map(|it| it.id()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Asks about a topic, but no longer when it shows that nobody will answer. Nothing is read yet.
fn ask(client: &Client, topic: &str, limit: Duration) -> Result<Metadata, KafkaError> {
    let begun = Instant::now();
    loop {
        let error = match client.fetch_metadata(Some(topic), LOOK.min(limit)) {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        // What it complains of comes this way, after what it tells of itself.
        for _ in 0..POLLS {
            let told = client.poll(Duration::ZERO).and_then(Result::err);
            let is_final = |told: &KafkaError| told.rdkafka_error_code().is_some_and(is_refusal);
            if let Some(refusal) = told.filter(is_final) {
                return Err(refusal);
            }
        }
        let may_pass = error.rdkafka_error_code().is_some_and(is_passing);
        if !may_pass || begun.elapsed() >= limit {
            return Err(error);
        }
    }
}

/// Where a partition begins and ends now, for those who read what is committed.
///
/// # Errors
/// Brokers that are not there, or do not answer.
pub(crate) fn bounds(
    client: &Client,
    topic: &str,
    partition: i32,
    answers: &Answers,
) -> Result<(i64, i64)> {
    let found = client.fetch_watermarks(topic, partition, answers.next());
    found.inspect(|_| answers.came()).map_err(|error| {
        let what = format!("where {topic}/{partition} begins and ends");
        unanswered(client, &what, error, answers)
    })
}

/// The error of a question, with who was asked, and for how long where that was not enough.
fn unanswered(client: &Client, what: &str, error: KafkaError, answers: &Answers) -> Error {
    let context = client.context();
    let is_late = error.rdkafka_error_code().is_some_and(is_passing);
    let said = match (context.said(), is_late) {
        (said, false) => said,
        (None, true) => Some(answers.words()),
        (Some(said), true) => Some(format!("{said}; {}", answers.words())),
    };
    of_request(&format!("ask {} {what}", context.brokers), error, said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_tell_how_far_partitions_are() {
        let json = br#"{"name":"x","brokers":{
            "a":{"state":"DOWN","source":"learned","rtt":{"min":1}},
            "g":{"state":"UP","source":"logical"}},
          "topics":{"t":{"topic":"t","partitions":{
            "-1":{"unknown":false,"next_offset":0,"hi_offset":-1001,"ls_offset":-1001},
            "0":{"unknown":false,"next_offset":7,"hi_offset":9,"ls_offset":8,"more":[]},
            "1":{"unknown":false,"next_offset":0,"hi_offset":3,"ls_offset":-1001}}}}}"#;
        let context = Context::default();
        context.stats_raw(json);
        let told = context.take_told().unwrap();
        assert!(!told.is_connected);
        assert_eq!(told.partitions.len(), 2);
        let of = |partition| told.partitions[&("t".to_owned(), partition)];
        assert_eq!(of(0), PartitionOffsets { next: 7, end: 8 });
        assert_eq!(of(1), PartitionOffsets { next: 0, end: 3 });
        assert_eq!(context.take_told(), None);
        context.stats_raw(b"{");
        assert_eq!(context.take_told(), None);
    }

    #[test]
    fn brokers_that_say_nothing_are_not_waited_for_for_long() {
        // It takes connections, and nothing else.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap();
        let address = Address::parse(&format!("kafka://{place}/t"), std::iter::empty()).unwrap();
        let client = client(&address, false).unwrap();
        let answers = Answers::within(Duration::from_secs(1));
        let questions = [
            partitions(&client, "t", &answers).err().unwrap(),
            bounds(&client, "t", 3, &answers).err().unwrap(),
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
    fn each_answer_gives_the_next_one_time() {
        let answers = Answers::within(Duration::from_secs(10));
        answers.since.set(answers.since.get().checked_sub(Duration::from_secs(10)).unwrap());
        assert_eq!(answers.next(), Duration::ZERO);
        answers.came();
        assert!(answers.next() > Duration::ZERO);
    }

    #[test]
    fn properties_are_refused_without_their_values() {
        let refusal = |properties: &str| {
            let source = format!("kafka://127.0.0.1:1/t?{properties}");
            let address = Address::parse(&source, std::iter::empty()).unwrap();
            client(&address, false).err().unwrap()
        };
        let error = refusal("no.such.property=1");
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert_eq!(error.to_string(), "property \"no.such.property\" is not taken");
        let error = refusal("enable.ssl.certificate.verification=geheim");
        assert!(!error.messages().join(": ").contains("geheim"));
    }
}
