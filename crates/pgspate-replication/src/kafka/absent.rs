//! Topics in a build that cannot read them: there are none.

use std::time::Duration;

use super::read::{Partition, TopicPiece, TopicSource};
use crate::{Error, ErrorKind, Pieces, Result};
use pgspate_target::ledger::Mark;

/// Nobody has any.
pub enum Topics {}

impl Topics {
    /// Says that they cannot be read.
    ///
    /// # Errors
    /// Always.
    pub fn look(_: &str, _: bool, _: Duration) -> Result<Topics> {
        Err(Error::new(ErrorKind::Usage, "this pgspate was built without Kafka").hint(
            "Build it with `cargo build --release -p pgspate-cli --features kafka`, or with \
             `--features kafka-tls` for brokers that want TLS.",
        ))
    }

    /// Cannot be called.
    pub fn ask(&mut self, _: Duration) -> Result<()> {
        match *self {}
    }

    /// Cannot be called.
    pub fn names(&self) -> &[String] {
        match *self {}
    }

    /// Cannot be called.
    pub fn begin(&self, _: &str, _: &Mark, _: &[(String, Mark)]) -> Result<Vec<Partition>> {
        match *self {}
    }
}

impl TopicSource {
    pub(super) fn run(&mut self, _: &Pieces<TopicPiece>) {
        match self.topics {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_it_says_how_to_build_with_it() {
        let error = Topics::look("kafka://127.0.0.1:9092/t", false, Duration::ZERO).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error.hint_text().unwrap().contains("--features kafka"), "{error}");
    }
}
