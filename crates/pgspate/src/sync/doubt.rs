//! What a sync finds that cannot be meant, in words.
//!
//! The words are the same whoever runs the statements: a sync of pgspate's own, or another program
//! by a [`Script`](super::Script).

use crate::numbers::counted;
use crate::{Error, ErrorKind, Result};

/// Something that cannot be meant.
#[derive(Debug, Clone, PartialEq)]
pub enum SyncRefusal {
    /// The source has no rows, and all rows of the scope would be deleted.
    Empty,
    /// Rows of the source are outside of the predicate, or have the key of a row that is.
    Strays {
        /// How many are outside.
        outside: u64,
        /// How many have such a key.
        taken: u64,
    },
    /// So many rows of the source have the key of a row in a scope that the source does not have.
    Movers(u64),
    /// The source has keys more than once.
    Duplicates {
        /// How many.
        keys: u64,
        /// Some of them, and how often they occur.
        examples: Vec<(String, u64)>,
    },
    /// The table has keys of the source more than once.
    TableDuplicates {
        /// How many.
        keys: u64,
        /// Some of them, and how often they occur.
        examples: Vec<(String, u64)>,
    },
    /// More of the scope's rows would be deleted than may be.
    Deletes {
        /// How many would be.
        deleted: u64,
        /// Of how many.
        all: u64,
        /// How many may be, in percent.
        may: f64,
    },
}

impl SyncRefusal {
    /// Refuses it, unless it is none. `least` stands before a number that may not be all:
    /// "at least ".
    ///
    /// # Errors
    /// ErrorKind `Plan`, if it is one.
    pub fn refuse(&self, least: &str) -> Result<()> {
        let is_one = match self {
            SyncRefusal::EmptySource => true,
            SyncRefusal::OutsideScope { outside, taken } => outside + taken > 0,
            SyncRefusal::KeysInOtherScopes(taken) => *taken > 0,
            SyncRefusal::DuplicateSourceKeys { keys, .. } | SyncRefusal::DuplicateTableKeys { keys, .. } => *keys > 0,
            SyncRefusal::TooManyDeletes { deleted, all, may } => *deleted as f64 > *all as f64 * may / 100.0,
        };
        if is_one { Err(self.error(least)) } else { Ok(()) }
    }

    fn error(&self, least: &str) -> Error {
        let (message, hint) = match self {
            SyncRefusal::EmptySource => (
                "the source has no rows: all rows of the scope would be deleted".to_owned(),
                "Say `--allow-empty` if that is what is meant.",
            ),
            SyncRefusal::OutsideScope { outside, taken } => (
                match outside {
                    0 => format!(
                        "{} of the source: the key of a row out of the scope",
                        counted(*taken, "row")
                    ),
                    _ => format!("{} of the source out of the scope", counted(*outside, "row")),
                },
                "Widen `--scope`, or leave these rows out of the source.",
            ),
            SyncRefusal::KeysInOtherScopes(taken) => (
                format!(
                    "{least}{} of the source: the key of a row in a scope that the source does \
                     not have",
                    counted(*taken, "row")
                ),
                "Add the columns of `--scope-by` to `--key`, or use `--scope all`.",
            ),
            SyncRefusal::DuplicateSourceKeys { keys, examples } => {
                let (keys, examples) = (counted(*keys, "key"), listed(examples));
                (
                    format!("{least}{keys} of the source occur more than once: {examples}"),
                    "Name more columns with `--key`, or keep the last of them with `--keep last`.",
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
                        "{deleted} of {all} rows of the scope ({share:.1} %) would be deleted, and \
                         at most {may} % may be"
                    ),
                    "See with `--check` which, and raise `--max-delete` if that is what is meant.",
                )
            }
        };
        Error::new(ErrorKind::Plan, message).hint(hint)
    }
}

/// Keys, and how often each occurs.
fn listed(examples: &[(String, u64)]) -> String {
    let all = examples.iter().map(|(key, times)| format!("({key}) {times} times"));
    all.collect::<Vec<_>>().join(", ")
}
