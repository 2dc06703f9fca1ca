//! Kafka topics as the source of a run.
//!
//! Only the target's ledger has the position of each partition. pgspate joins no consumer group and
//! commits no offsets to Kafka. If a topic no longer has messages that were not applied, they are
//! lost and the run is refused. Without the feature `kafka` the same types exist, but reading
//! topics is an error.

#[cfg(feature = "kafka")]
mod address;
#[cfg(feature = "kafka")]
mod client;
#[cfg(feature = "kafka")]
mod errors;
#[cfg(not(feature = "kafka"))]
mod no_topics;
#[cfg_attr(not(feature = "kafka"), allow(dead_code, reason = "without topics nothing comes"))]
mod position;
#[cfg(feature = "kafka")]
mod topic_reader;
#[cfg_attr(not(feature = "kafka"), allow(dead_code, reason = "without topics nothing comes"))]
mod topic_source;
#[cfg(feature = "kafka")]
mod topics;

#[cfg(not(feature = "kafka"))]
pub use no_topics::NoTopics as KafkaTopics;
pub use position::{PartitionOffset, TopicPosition};
pub use topic_source::{
    TopicMessage, TopicPartition, TopicPiece, TopicSource, another_topic_hint, begin_partitions,
};
#[cfg(feature = "kafka")]
pub use topics::KafkaTopics;

/// The beginning of a source that names topics.
const SCHEME: &str = "kafka://";

/// Returns whether a source names topics.
pub fn is_topics(source: &str) -> bool {
    source.starts_with(SCHEME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_recognized_by_their_scheme() {
        assert!(is_topics("kafka://127.0.0.1:9092/t") && !is_topics("kafka.ndjson"));
    }
}
