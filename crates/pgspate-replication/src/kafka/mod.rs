//! Topics of Kafka as the source of a run.
//!
//! Where each partition is, is in the target's ledger and nowhere else: no group of consumers is
//! joined and no offset committed to it. What the ledger has not seen and the topics do not have
//! any more is lost, and the run is refused. Only this module knows whether the build can read
//! topics: to all others there are none where it cannot.

#[cfg(not(feature = "kafka"))]
mod absent;
#[cfg(feature = "kafka")]
mod address;
#[cfg(feature = "kafka")]
mod begin;
#[cfg(feature = "kafka")]
mod client;
#[cfg(feature = "kafka")]
mod errors;
#[cfg_attr(not(feature = "kafka"), allow(dead_code, reason = "without topics nothing comes"))]
mod position;
#[cfg(feature = "kafka")]
mod pump;
#[cfg_attr(not(feature = "kafka"), allow(dead_code, reason = "without topics nothing comes"))]
mod read;

#[cfg(not(feature = "kafka"))]
pub use absent::Topics;
#[cfg(feature = "kafka")]
pub use begin::Topics;
pub use position::{Offset, TopicPosition};
pub use read::{Message, Partition, TopicPiece, TopicSource, another_topic_hint, begin_partitions};

/// How such a source begins.
const SCHEME: &str = "kafka://";

/// Returns whether a source names topics.
pub fn is_topics(source: &str) -> bool {
    source.starts_with(SCHEME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_known_by_how_they_begin() {
        assert!(is_topics("kafka://127.0.0.1:9092/t") && !is_topics("kafka.ndjson"));
    }
}
