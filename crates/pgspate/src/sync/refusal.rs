//! Findings that make a sync refuse to write, because they are probably mistakes.
//!
//! The messages are the same for pgspate's own sync and for another program that runs a
//! [`Script`](super::Script).

use crate::numbers::counted;
use crate::{Error, ErrorKind, Result};

/// A finding that makes a sync refuse to write.
#[derive(Debug, Clone, PartialEq)]
pub enum SyncRefusal {
    /// The source has no rows, so all rows of the scope would be deleted.
    EmptySource,
    /// Rows of the source do not fulfil the predicate, or have the key of a table row that does
    /// not.
    OutsideScope {
        /// Number of source rows that do not fulfil the predicate.
        outside: u64,
        /// Number of source rows with the key of a table row outside the scope.
        taken: u64,
    },
    /// This number of source rows have the key of a row in a scope that the source does not have.
    KeysInOtherScopes(u64),
    /// The source has duplicate keys.
    DuplicateSourceKeys {
        /// Number of keys.
        keys: u64,
        /// Some of the keys, and how often each occurs.
        examples: Vec<(String, u64)>,
    },
    /// The table has keys of the source more than once.
    DuplicateTableKeys {
        /// Number of keys.
        keys: u64,
        /// Some of the keys, and how often each occurs.
        examples: Vec<(String, u64)>,
    },
    /// More of the scope's rows would be deleted than allowed.
    TooManyDeletes {
        /// Number of rows that would be deleted.
        deleted: u64,
        /// Number of rows in the scope.
        all: u64,
        /// Allowed percentage.
        may: f64,
    },
}

impl SyncRefusal {
    /// Returns an error if the finding is a real one: its number is not zero, or exceeds the limit.
    /// `least` is "at least " if the number may be incomplete.
    ///
    /// # Errors
    /// An error of kind `Plan` that describes the finding.
    pub fn refuse(&self, least: &str) -> Result<()> {
        let is_one = match self {
            SyncRefusal::EmptySource => true,
            SyncRefusal::OutsideScope { outside, taken } => outside + taken > 0,
            SyncRefusal::KeysInOtherScopes(taken) => *taken > 0,
            SyncRefusal::DuplicateSourceKeys { keys, .. }
            | SyncRefusal::DuplicateTableKeys { keys, .. } => *keys > 0,
            SyncRefusal::TooManyDeletes { deleted, all, may } => {
                *deleted as f64 > *all as f64 * may / 100.0
            }
        };
        if is_one { Err(self.error(least)) } else { Ok(()) }
    }

    fn error(&self, least: &str) -> Error {
        let (message, hint) = match self {
            SyncRefusal::EmptySource => (
                "the source has no rows: all rows of the scope would be deleted".to_owned(),
                "Use `--allow-empty` if that is intended.",
            ),
            SyncRefusal::OutsideScope { outside, taken } => (
                match outside {
                    0 => format!(
                        "{} of the source with the key of a table row outside the scope",
                        counted(*taken, "row")
                    ),
                    _ => format!("{} of the source outside the scope", counted(*outside, "row")),
                },
                "Widen `--scope`, or remove these rows from the source.",
            ),
            SyncRefusal::KeysInOtherScopes(taken) => (
                format!(
                    "{least}{} of the source with the key of a table row in a scope that the \
                     source does not have",
                    counted(*taken, "row")
                ),
                "Add the columns of `--scope-by` to `--key`, or use `--scope all`.",
            ),
            SyncRefusal::DuplicateSourceKeys { keys, examples } => {
                let (keys, examples) = (counted(*keys, "key"), listed(examples));
                (
                    format!("{least}{keys} of the source occur more than once: {examples}"),
                    "Name more columns with `--key`, or keep the last of such rows with `--keep \
                     last`.",
                )
            }
            SyncRefusal::DuplicateTableKeys { keys, examples } => {
                let (keys, examples) = (counted(*keys, "key"), listed(examples));
                (
                    format!("the table has {least}{keys} of the source more than once: {examples}"),
                    "Name more columns with `--key`, or delete all but one row of each of these \
                     keys.",
                )
            }
            SyncRefusal::TooManyDeletes { deleted, all, may } => {
                let share = 100.0 * *deleted as f64 / *all as f64;
                (
                    format!(
                        "{deleted} of {all} rows of the scope ({share:.1}%) would be deleted; \
                         --max-delete allows {may}%"
                    ),
                    "`--check` shows examples. Raise `--max-delete` if the deletion is intended.",
                )
            }
        };
        Error::new(ErrorKind::Plan, message).hint(hint)
    }
}

/// Lists keys and how often each occurs.
fn listed(examples: &[(String, u64)]) -> String {
    let all = examples.iter().map(|(key, times)| format!("({key}) {times} times"));
    all.collect::<Vec<_>>().join(", ")
}
