//! Replaces Kafka topics in a build without the feature `kafka`: every use is an error.

use std::time::Duration;

use super::topic_source::{TopicPartition, TopicPiece, TopicSource};
use crate::{Error, ErrorKind, EventSender, Result};
use pgspate_target::ledger::StreamPosition;

/// A type without values: no topics exist in this build.
pub enum NoTopics {}

impl NoTopics {
    /// Refuses to read topics.
    ///
    /// # Errors
    /// Always: the build cannot read topics.
    pub fn inspect(_: &str, _: bool, _: Duration) -> Result<NoTopics> {
        Err(Error::new(ErrorKind::Usage, "this pgspate was built without Kafka").hint(
            "Build it with `cargo build --release -p pgspate-cli --features kafka`, or with \
             `--features kafka-tls` for brokers with TLS.",
        ))
    }

    /// Cannot be called.
    pub fn refresh(&mut self, _: Duration) -> Result<()> {
        match *self {}
    }

    /// Cannot be called.
    pub fn names(&self) -> &[String] {
        match *self {}
    }

    /// Cannot be called.
    pub fn begin(
        &self,
        _: &str,
        _: &StreamPosition,
        _: &[(String, StreamPosition)],
    ) -> Result<Vec<TopicPartition>> {
        match *self {}
    }
}

impl TopicSource {
    pub(super) fn run(&mut self, _: &EventSender<TopicPiece>) {
        match self.topics {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_tells_how_to_build_with_kafka() {
        let error =
            NoTopics::inspect("kafka://127.0.0.1:9092/t", false, Duration::ZERO).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error.hint_text().unwrap().contains("--features kafka"), "{error}");
    }
}
