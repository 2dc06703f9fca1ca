//! Timelines of a source: checks that the applied transactions are in the server's history.
//!
//! A promoted standby begins a new timeline where its log ended. Transactions that the old primary
//! committed after that point are not in the new server's history, even if the new log is longer.

use crate::{Error, ErrorKind, Result};
use pgspate_events::Lsn;

/// Separates the slot's identity and the timeline in the digest of a position.
const SEPARATOR: &str = " timeline ";

/// The timeline of a server and its history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Timeline {
    /// The timeline's number; 0 if unknown.
    pub(crate) id: u32,
    /// Each earlier timeline and its end. `None` if the server did not return its history.
    history: Option<Vec<(u32, Lsn)>>,
}

impl Timeline {
    /// Returns a timeline. `file` is the text of the timeline's history file on the server.
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

    /// Checks that the server's history has timeline `known` up to `at`.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if the server has another history.
    pub(crate) fn check(&self, known: u32, at: Lsn, slot: &str) -> Result<()> {
        if known == 0 || self.id == 0 || known == self.id {
            return Ok(());
        }
        let Some(history) = &self.history else {
            let message = format!("the source has no history of its timeline {}", self.id);
            return Err(Error::new(ErrorKind::Ledger, message).hint(lost_transactions_hint(slot)));
        };
        let end = history.iter().find(|(id, _)| *id == known).map(|(_, end)| *end);
        match end {
            Some(end) if at <= end => Ok(()),
            Some(end) => {
                let message = format!(
                    "the source has failed over to a server that was behind: timeline {known} \
                     ends at {end} there, but the stream is applied up to {at}"
                );
                Err(Error::new(ErrorKind::Ledger, message).hint(lost_transactions_hint(slot)))
            }
            None => {
                let message = format!(
                    "the stream is applied from timeline {known}, which is not in the history of \
                     the source's timeline {}",
                    self.id
                );
                Err(Error::new(ErrorKind::Ledger, message).hint(lost_transactions_hint(slot)))
            }
        }
    }
}

fn lost_transactions_hint(slot: &str) -> String {
    format!(
        "The target has transactions that the source has lost. Empty the tables, drop slot \
         \"{slot}\", and begin a new stream with `--stream NAME --snapshot`."
    )
}

/// Returns the digest of a position: the slot's identity and the timeline that was read.
pub(crate) fn digest(identity: &str, timeline: u32) -> String {
    match timeline {
        0 => identity.to_owned(),
        _ => format!("{identity}{SEPARATOR}{timeline}"),
    }
}

/// Splits a digest into the slot's identity and the timeline, which is 0 if the digest has none.
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
    fn a_position_outside_the_history_is_refused() {
        let now = Timeline::new(3, Some(FILE));
        let is_there = |known, at| now.check(known, Lsn(at), "s").is_ok();
        assert!(is_there(1, 0x500) && is_there(2, 0x900) && is_there(3, 0xffff));
        assert!(!is_there(1, 0x501) && !is_there(2, 0x901) && !is_there(4, 1));
        // An unknown timeline is not checked.
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
