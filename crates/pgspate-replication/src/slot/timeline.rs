//! Timelines of a source: whether what was applied is in the history of the server that is there.
//!
//! A standby that takes over begins a new timeline where its log ended. What the old primary had
//! committed after that is in no history of the new one, whatever its log has reached since.

use crate::{Error, ErrorKind, Result};
use pgspate_events::Lsn;

/// What stands between a slot's identity and the timeline in the digest of a mark.
const SEPARATOR: &str = " timeline ";

/// The timeline of a server, and those it came from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Timeline {
    /// 0 where it is not known.
    pub(crate) id: u32,
    /// For each earlier timeline, where the next one began. `None` where the server did not say.
    history: Option<Vec<(u32, Lsn)>>,
}

impl Timeline {
    /// A timeline, and the file in which the server keeps its history.
    pub(crate) fn new(id: u32, file: Option<&str>) -> Timeline {
        let ancestor = |line: &str| {
            let mut words = line.split_whitespace();
            let id = words.next()?.parse().ok()?;
            Some((id, words.next()?.parse().ok()?))
        };
        let history = match id {
            0 | 1 => Some(Vec::new()),
            _ => file.map(|text| text.lines().filter_map(ancestor).collect()),
        };
        Timeline { id, history }
    }

    /// Checks that the server has all up to `at` of the timeline `known`.
    ///
    /// # Errors
    /// Of [`ErrorKind::Ledger`] when the server has another history.
    pub(crate) fn check(&self, known: u32, at: Lsn, slot: &str) -> Result<()> {
        if known == 0 || self.id == 0 || known == self.id {
            return Ok(());
        }
        let Some(history) = &self.history else {
            let message = format!("the source does not know how its timeline {} began", self.id);
            return Err(Error::new(ErrorKind::Ledger, message).hint(again(slot)));
        };
        let end = history.iter().find(|(id, _)| *id == known).map(|(_, end)| *end);
        match end {
            Some(end) if at <= end => Ok(()),
            Some(end) => {
                let message = format!(
                    "the source has failed over to a server that was behind: timeline {known} \
                     ends at {end} there, but the stream is applied up to {at} of it"
                );
                Err(Error::new(ErrorKind::Ledger, message).hint(again(slot)))
            }
            None => {
                let message = format!(
                    "the stream is applied from timeline {known}, which is not in the history of \
                     the source's timeline {}",
                    self.id
                );
                Err(Error::new(ErrorKind::Ledger, message).hint(again(slot)))
            }
        }
    }
}

fn again(slot: &str) -> String {
    format!(
        "The target has transactions that the source has lost. Empty the tables, drop slot \
         \"{slot}\", and begin a new stream with `--stream NAME --snapshot`."
    )
}

/// The digest of a mark: the slot, and the timeline that was read.
pub(crate) fn digest(identity: &str, timeline: u32) -> String {
    match timeline {
        0 => identity.to_owned(),
        _ => format!("{identity}{SEPARATOR}{timeline}"),
    }
}

/// The slot and the timeline of a digest; 0 where it has none.
pub(crate) fn parse(digest: &str) -> (&str, u32) {
    let parts = digest.rsplit_once(SEPARATOR);
    let parsed = parts.and_then(|(identity, id)| Some((identity, id.parse().ok()?)));
    parsed.unwrap_or((digest, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "1\t0/500\tno recovery target specified\n\n2\t0/900\tbefore 2026\n";

    #[test]
    fn what_another_history_lacks_is_refused() {
        let now = Timeline::new(3, Some(FILE));
        let is_there = |known, at| now.check(known, Lsn(at), "s").is_ok();
        assert!(is_there(1, 0x500) && is_there(2, 0x900) && is_there(3, 0xffff));
        assert!(!is_there(1, 0x501) && !is_there(2, 0x901) && !is_there(4, 1));
        // What is not known is not checked.
        assert!(is_there(0, 0xffff));
        assert!(Timeline::default().check(1, Lsn(1), "s").is_ok());
        assert!(Timeline::new(3, None).check(1, Lsn(1), "s").is_err());
        assert!(Timeline::new(1, None).check(2, Lsn(1), "s").is_err());
    }

    #[test]
    fn a_digest_is_read_as_it_was_written() {
        assert_eq!(parse(&digest("7/a timeline b/s", 12)), ("7/a timeline b/s", 12));
        assert_eq!(parse(&digest("7/d/s", 0)), ("7/d/s", 0));
    }
}
