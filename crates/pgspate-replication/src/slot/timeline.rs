//! Timelines of a source: checks that the applied transactions are in the server's history.
//!
//! A promoted standby begins a new timeline where its log ended. Transactions that the old primary
//! committed after that point are not in the new server's history, even if the new log is longer.

use std::sync::{Arc, Mutex, PoisonError};

use crate::{Error, ErrorKind, Result};
use pgspate_events::Lsn;

/// Separates the slot's identity and the timeline in the digest of a position.
const SEPARATOR: &str = " timeline ";
/// Separates the timeline's number and its begin.
const BEGIN_SEPARATOR: &str = " from ";

/// A timeline, as positions name it. Two standbys of one primary may both be promoted, and then
/// have timelines of the same number. These begin at different places, unless both standbys had
/// received the same log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TimelineMark {
    /// The timeline's number; 0 if unknown.
    pub(crate) id: u32,
    /// Where the timeline begins; `None` if unknown.
    pub(crate) begin: Option<Lsn>,
}

/// The timeline that a run reads. It changes when the run connects to a promoted standby.
#[derive(Debug, Clone, Default)]
pub(crate) struct CurrentTimeline(Arc<Mutex<TimelineMark>>);

impl CurrentTimeline {
    pub(crate) fn new(mark: TimelineMark) -> CurrentTimeline {
        CurrentTimeline(Arc::new(Mutex::new(mark)))
    }

    pub(crate) fn get(&self) -> TimelineMark {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, mark: TimelineMark) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = mark;
    }
}

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

    /// Returns the timeline as positions name it.
    pub(crate) fn mark(&self) -> TimelineMark {
        TimelineMark { id: self.id, begin: self.begin_of(self.id) }
    }

    /// Returns where a timeline of the history begins: where the timeline before it ends.
    fn begin_of(&self, id: u32) -> Option<Lsn> {
        let history = self.history.as_ref()?;
        let at = match id == self.id {
            true => history.len(),
            false => history.iter().position(|(earlier, _)| *earlier == id)?,
        };
        Some(at.checked_sub(1).map_or(Lsn(0), |before| history[before].1))
    }

    /// Checks that the server's history has timeline `known` up to `at`.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if the server has another history.
    pub(crate) fn check(&self, known: TimelineMark, at: Lsn, slot: &str) -> Result<()> {
        if let (Some(then), Some(now)) = (known.begin, self.begin_of(known.id))
            && then != now
        {
            let message = format!(
                "the source has failed over to another server: its timeline {} begins at {now}, \
                 but the stream is applied from one that begins at {then}",
                known.id
            );
            return Err(Error::new(ErrorKind::Ledger, message).hint(lost_transactions_hint(slot)));
        }
        let known = known.id;
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
pub(crate) fn digest(identity: &str, timeline: TimelineMark) -> String {
    match timeline {
        TimelineMark { id: 0, .. } => identity.to_owned(),
        TimelineMark { id, begin: None } => format!("{identity}{SEPARATOR}{id}"),
        TimelineMark { id, begin: Some(begin) } => {
            format!("{identity}{SEPARATOR}{id}{BEGIN_SEPARATOR}{begin}")
        }
    }
}

/// Splits a digest into the slot's identity and the timeline, which may be unknown.
pub(crate) fn parse(digest: &str) -> (&str, TimelineMark) {
    let split = || {
        let (identity, timeline) = digest.rsplit_once(SEPARATOR)?;
        let (id, begin) = match timeline.split_once(BEGIN_SEPARATOR) {
            Some((id, begin)) => (id, Some(begin.parse().ok()?)),
            None => (timeline, None),
        };
        Some((identity, TimelineMark { id: id.parse().ok()?, begin }))
    };
    split().unwrap_or((digest, TimelineMark::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "1\t0/500\tno recovery target specified\n\n2\t0/900\tbefore 2026\n";

    #[test]
    fn a_position_outside_the_history_is_refused() {
        let now = Timeline::new(3, Some(FILE));
        let of = |id| TimelineMark { id, begin: None };
        let is_there = |known, at| now.check(of(known), Lsn(at), "s").is_ok();
        assert!(is_there(1, 0x500) && is_there(2, 0x900) && is_there(3, 0xffff));
        assert!(!is_there(1, 0x501) && !is_there(2, 0x901) && !is_there(4, 1));
        // An unknown timeline is not checked.
        assert!(is_there(0, 0xffff));
        assert!(Timeline::default().check(of(1), Lsn(1), "s").is_ok());
        assert!(Timeline::new(3, None).check(of(1), Lsn(1), "s").is_err());
        assert!(Timeline::new(1, None).check(of(2), Lsn(1), "s").is_err());
    }

    #[test]
    fn a_timeline_that_begins_elsewhere_is_refused() {
        let now = Timeline::new(3, Some(FILE));
        assert_eq!(now.mark(), TimelineMark { id: 3, begin: Some(Lsn(0x900)) });
        for (id, begin, is_there) in
            [(3, 0x900, true), (3, 0x880, false), (2, 0x500, true), (2, 0x480, false), (1, 0, true)]
        {
            let known = TimelineMark { id, begin: Some(Lsn(begin)) };
            assert_eq!(now.check(known, Lsn(0x490), "s").is_ok(), is_there, "{known:?}");
        }
    }

    #[test]
    fn a_digest_is_read_as_it_was_written() {
        let identity = "7/a timeline b/s";
        for begin in [None, Some(Lsn(0x500))] {
            let known = TimelineMark { id: 12, begin };
            assert_eq!(parse(&digest(identity, known)), (identity, known));
        }
        let unknown = TimelineMark::default();
        assert_eq!(parse(&digest("7/d/s", unknown)), ("7/d/s", unknown));
    }
}
