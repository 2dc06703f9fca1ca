//! Topics of Kafka as the source of a run.
//!
//! Where each partition is, is in the target's ledger and nowhere else: no group of consumers is
//! joined and no offset committed to it. What the ledger has not seen and the topics do not have
//! any more is lost, and the run is refused.

#[cfg(feature = "kafka")]
mod address;
#[cfg(feature = "kafka")]
mod begin;
#[cfg(feature = "kafka")]
mod client;
#[cfg(feature = "kafka")]
mod errors;
#[cfg(feature = "kafka")]
mod pump;

#[cfg(feature = "kafka")]
pub(crate) use begin::{Partition, Topics, is_another, next_of, rows, source_of};
#[cfg(feature = "kafka")]
pub(crate) use pump::Pump;

/// How such a source begins.
const SCHEME: &str = "kafka://";

/// Whether a source is topics.
pub(crate) fn is_topics(source: &str) -> bool {
    source.starts_with(SCHEME)
}

/// The error of a build that cannot read them.
#[cfg(not(feature = "kafka"))]
pub(crate) fn is_left_out() -> crate::Error {
    crate::Error::new(crate::Kind::Usage, "this pgspate was built without Kafka").hint(
        "Build it with `cargo build --release -p pgspate-cli --features kafka`, or with \
         `--features kafka-tls` for brokers that want TLS.",
    )
}

/// A message of a topic.
#[cfg(feature = "kafka")]
#[derive(Debug)]
pub(crate) struct Message {
    /// Which of the run's partitions.
    pub(crate) part: u32,
    pub(crate) offset: i64,
    /// When it was written, in milliseconds since 1970.
    pub(crate) written: Option<i64>,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    /// Those of Debezium's.
    pub(crate) headers: Vec<(Box<str>, Vec<u8>)>,
}

/// What comes of topics.
#[cfg(feature = "kafka")]
#[derive(Debug)]
pub(crate) enum Taken {
    /// The next partition.
    Partition(Partition),
    /// Messages, in the order of each partition.
    Messages(Vec<Message>),
    /// Partitions have nothing before these offsets that has not come. Also comes when nothing
    /// else does.
    Passed(Vec<(u32, i64)>),
}

#[cfg(all(test, not(feature = "kafka")))]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_it_says_how_to_build_with_it() {
        assert!(is_topics("kafka://127.0.0.1:9092/t") && !is_topics("kafka.ndjson"));
        let hint = is_left_out().hint_text().unwrap().to_owned();
        assert!(hint.contains("--features kafka"), "{hint}");
    }
}
