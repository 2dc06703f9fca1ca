//! Where each partition begins, and whether all that the ledger has not seen is still there.

use std::time::Duration;

use super::address::Address;
use super::client::{Answers, Client, bounds, client, partitions};
use super::read::{Partition, another_topic_hint, name, next_of};
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::Mark;

/// Topics, and what their brokers say of them.
pub struct Topics {
    pub(crate) address: Address,
    pub(crate) client: Client,
    /// In the order of topics and numbers.
    pub(crate) partitions: Vec<Bounds>,
}

/// A partition as it was when it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) topic: String,
    pub(crate) number: i32,
    /// The offset of its first message.
    pub(crate) first: i64,
    /// The offset of the one after the last that is committed.
    pub(crate) end: i64,
}

impl Topics {
    /// Asks the brokers that a source names, who have so long to answer. Blocks.
    ///
    /// # Errors
    /// What is no address, brokers that are not there or do not answer, topics that are not there.
    pub fn look(source: &str, follows: bool, limit: Duration) -> Result<Topics> {
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let address = Address::parse(source, environment)?;
        let client = client(&address, follows)?;
        let mut topics = Topics { address, client, partitions: Vec::new() };
        topics.ask(limit)?;
        Ok(topics)
    }

    /// Asks the brokers again, and forgets what they said before. Blocks.
    ///
    /// # Errors
    /// As [`Topics::look`].
    pub fn ask(&mut self, limit: Duration) -> Result<()> {
        let answers = Answers::within(limit);
        let mut found = Vec::new();
        for topic in &self.address.topics {
            for number in partitions(&self.client, topic, &answers)? {
                let (first, end) = bounds(&self.client, topic, number, &answers)?;
                found.push(Bounds { topic: topic.clone(), number, first, end });
            }
        }
        self.partitions = found;
        Ok(())
    }

    /// Returns the topics' names, in the order in which the source names them.
    pub fn names(&self) -> &[String] {
        &self.address.topics
    }

    /// Finds where each partition begins, by the stream's mark and the ledger's rows of its parts.
    ///
    /// # Errors
    /// Of [`ErrorKind::Ledger`] when messages are gone that were not applied, a topic is another
    /// one, or the stream is not one of topics.
    pub fn begin(
        &self,
        stream: &str,
        mark: &Mark,
        rows: &[(String, Mark)],
    ) -> Result<Vec<Partition>> {
        check_stream(stream, mark)?;
        let begin = |bounds: &Bounds| begin(bounds, stream, rows, self.address.begins_late);
        self.partitions.iter().map(begin).collect()
    }
}

fn begin(
    bounds: &Bounds,
    stream: &str,
    rows: &[(String, Mark)],
    begins_late: bool,
) -> Result<Partition> {
    let Bounds { topic, number, first, end } = bounds;
    let row = |name: &str| rows.iter().find(|(known, _)| known == name).map(|(_, mark)| mark);
    let mark = row(&name(topic, *number)).cloned();
    let next = match &mark {
        Some(mark) => {
            let next = next_of(&mark.source)?;
            check(bounds, stream, next)?;
            next
        }
        // What was written to a new partition of a topic that is known was not there at first.
        None if begins_late && !rows.iter().any(|(known, _)| is_of(known, topic)) => *end,
        None => *first,
    };
    let reads_again = next > *first && mark.as_ref().is_some_and(|mark| !mark.digest.is_empty());
    let (topic, number) = (topic.clone(), *number);
    Ok(Partition { topic, number, mark, next, reads_again, end: *end })
}

/// A stream of files or of a slot has another sort of place.
fn check_stream(stream: &str, mark: &Mark) -> Result<()> {
    if mark.source.is_empty() || mark.source.contains(", offset ") {
        return Ok(());
    }
    let message = format!("stream \"{stream}\" is not one of topics: it is at {}", mark.source);
    Err(Error::new(ErrorKind::Ledger, message)
        .hint("Give the topics another name with `--stream NAME`."))
}

fn is_of(part: &str, topic: &str) -> bool {
    part.rsplit_once('/').is_some_and(|(name, _)| name == topic)
}

/// Whether all that comes after what is applied is still there.
pub(super) fn check(bounds: &Bounds, stream: &str, next: i64) -> Result<()> {
    let Bounds { topic, number, first, end } = bounds;
    let name = name(topic, *number);
    if next < *first {
        return Err(is_lost(&name, stream, next, *first));
    }
    if next > *end {
        let message = format!(
            "{name} ends before offset {end}, but the stream is applied up to offset {}",
            next - 1
        );
        return Err(Error::new(ErrorKind::Ledger, message).hint(another_topic_hint(&name, stream)));
    }
    Ok(())
}

/// Messages are gone that were not applied.
fn is_lost(name: &str, stream: &str, next: i64, first: i64) -> Error {
    let last = first - 1;
    let message = match last == next {
        true => format!("offset {next} of {name} is gone, and was not applied"),
        false => format!("offsets {next} to {last} of {name} are gone, and were not applied"),
    };
    let stream = stream.replace('\'', "''");
    Error::new(ErrorKind::Ledger, message).hint(format!(
        "The topic keeps its messages for a time or up to a size (`retention.ms`, \
         `retention.bytes`), and these were older. Bring the tables to what they should be in \
         another way, and begin another stream with `--stream NAME`; or go on without these \
         messages: `update pgspate.stream set source = 'offset {last}', digest = '' where stream = \
         '{stream}' and partition = '{name}'`."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(number: i32, first: i64, end: i64) -> Bounds {
        Bounds { topic: "t".to_owned(), number, first, end }
    }

    fn row(part: &str, source: &str, digest: &str) -> (String, Mark) {
        let (source, digest) = (source.to_owned(), digest.to_owned());
        (part.to_owned(), Mark { ordinal: 5, source, digest })
    }

    #[test]
    fn partitions_begin_after_what_is_applied() {
        let rows =
            [row("t/0", "offset 41", "abc"), row("t/1", "offset 41", ""), row("t/2", "", "")];
        let of = |number, first, end| begin(&bounds(number, first, end), "s", &rows, true);
        let found = of(0, 10, 50).unwrap();
        assert_eq!((found.next, found.from(), found.end), (42, 41, 50));
        // The last one is gone, but nothing after it.
        assert_eq!(of(0, 42, 42).unwrap().from(), 42);
        assert_eq!(of(1, 10, 42).unwrap().from(), 42);
        assert_eq!(of(2, 0, 3).unwrap().from(), 0);
        // A new partition of a topic that was read before.
        assert_eq!(of(3, 7, 9).unwrap().next, 7);
        assert_eq!(begin(&bounds(0, 7, 9), "s", &[], true).unwrap().next, 9);
        assert_eq!(begin(&bounds(0, 7, 9), "s", &[], false).unwrap().next, 7);
    }

    #[test]
    fn what_is_gone_is_refused() {
        let rows = [row("t/0", "offset 41", "abc")];
        let refusal = |first, end| begin(&bounds(0, first, end), "it's", &rows, false).unwrap_err();
        assert_eq!(
            refusal(44, 50).to_string(),
            "offsets 42 to 43 of t/0 are gone, and were not applied"
        );
        assert!(refusal(44, 50).hint_text().unwrap().contains("'offset 43'"));
        assert!(refusal(44, 50).hint_text().unwrap().contains("stream = 'it''s'"));
        assert_eq!(refusal(43, 50).to_string(), "offset 42 of t/0 is gone, and was not applied");
        assert_eq!(
            refusal(0, 41).to_string(),
            "t/0 ends before offset 41, but the stream is applied up to offset 41"
        );
    }

    #[test]
    fn a_stream_of_something_else_is_refused() {
        let at = |source: &str| Mark { source: source.to_owned(), ..Mark::default() };
        for source in ["", "t/0, offset 7"] {
            assert!(check_stream("s", &at(source)).is_ok(), "{source}");
        }
        for source in ["a.ndjson, line 7", "0/16B3748"] {
            assert_eq!(check_stream("s", &at(source)).unwrap_err().kind(), ErrorKind::Ledger);
        }
    }
}
