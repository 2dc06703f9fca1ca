//! Findings that make a sync refuse to write, because they are probably mistakes.
//!
//! The messages are the same for pgspate's own sync and for another program that runs a
//! [`SyncScript`](super::SyncScript).

use crate::numbers::counted;
use crate::{Error, ErrorKind, Result};

/// A finding that makes a sync refuse to write.
#[derive(Debug, Clone, PartialEq)]
pub enum SyncRefusal {
    /// The source has no rows, so all rows of the scope would be deleted.
    EmptySource,
    /// Rows of the source are outside the scope, or have the key of a table row outside the scope.
    OutsideScope {
        /// Number of source rows that do not fulfil the predicate of `--scope`.
        outside: u64,
        /// Number of source rows with the key of a table row outside the scope.
        taken: u64,
    },
    /// Source rows have the key of a row in a scope that the source does not have.
    KeysInOtherScopes {
        /// Number of such keys.
        keys: u64,
        /// One of the keys, in words.
        example: String,
    },
    /// The source has duplicate keys.
    DuplicateSourceKeys {
        /// Number of duplicate keys.
        keys: u64,
        /// Some of the keys, and how often each occurs.
        examples: Vec<(String, u64)>,
    },
    /// Several rows of the table have the same key, and the source has this key.
    DuplicateTableKeys {
        /// Number of duplicate keys.
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
        /// The percentage that `--max-delete` allows.
        max_percent: f64,
    },
    /// The server has written more rows than differ, and these foreign keys write rows of the table
    /// when other rows of it are written.
    Cascades(Vec<String>),
}

impl SyncRefusal {
    /// Returns an error if there is something to refuse: the number of rows or keys is not zero, or
    /// the deletes exceed the limit. `at_least` is "at least " if the number may be too low, and
    /// otherwise empty.
    ///
    /// # Errors
    /// [`ErrorKind::Plan`], with a message that describes the finding.
    pub fn refuse(&self, at_least: &str) -> Result<()> {
        let must_refuse = match self {
            SyncRefusal::EmptySource => true,
            SyncRefusal::OutsideScope { outside, taken } => outside + taken > 0,
            SyncRefusal::KeysInOtherScopes { keys, .. }
            | SyncRefusal::DuplicateSourceKeys { keys, .. }
            | SyncRefusal::DuplicateTableKeys { keys, .. } => *keys > 0,
            SyncRefusal::TooManyDeletes { deleted, all, max_percent } => {
                *deleted as f64 > *all as f64 * max_percent / 100.0
            }
            SyncRefusal::Cascades(keys) => !keys.is_empty(),
        };
        if must_refuse { Err(self.error(at_least)) } else { Ok(()) }
    }

    fn error(&self, at_least: &str) -> Error {
        let (message, hint) = match self {
            SyncRefusal::EmptySource => (
                "the source has no rows: all rows of the scope would be deleted".to_owned(),
                "Use `--allow-empty` if that is intended.",
            ),
            SyncRefusal::OutsideScope { outside, taken } => (
                match outside {
                    0 => format!(
                        "the source has {} with the key of a table row that is outside the scope",
                        counted(*taken, "row")
                    ),
                    _ => format!("the source has {} outside the scope", counted(*outside, "row")),
                },
                match outside {
                    0 => {
                        "Widen `--scope`, remove these rows from the source, or name more columns \
                         with `--key`."
                    }
                    _ => "Widen `--scope`, or remove these rows from the source.",
                },
            ),
            SyncRefusal::KeysInOtherScopes { keys, example } => (
                format!(
                    "the source has {at_least}{} with the key of a table row in a scope that the \
                     source does not have, such as ({example})",
                    counted(*keys, "row")
                ),
                "If the row has moved to another scope, give the source all rows of both scopes. \
                 Or use `--no-delete` in place of `--scope-by`, which updates the row. If a key is \
                 unique only within its scope, add the columns of `--scope-by` to `--key`.",
            ),
            SyncRefusal::DuplicateSourceKeys { keys, examples } => {
                let (keys, examples) = (counted(*keys, "key"), listed(examples));
                (
                    format!("the source has {at_least}{keys} more than once: {examples}"),
                    "Name more columns with `--key`, or keep the last of such rows with `--keep \
                     last`.",
                )
            }
            SyncRefusal::DuplicateTableKeys { keys, examples } => {
                let are = if *keys == 1 { "is" } else { "are" };
                let (keys, examples) = (counted(*keys, "key"), listed(examples));
                (
                    format!(
                        "{at_least}{keys} of the source {are} several times in the table: \
                         {examples}"
                    ),
                    "Name more columns with `--key`, or delete all but one row of each of these \
                     keys.",
                )
            }
            SyncRefusal::TooManyDeletes { deleted, all, max_percent } => {
                let share = 100.0 * *deleted as f64 / *all as f64;
                (
                    format!(
                        "{deleted} of {all} rows of the scope ({share:.1}%) would be deleted; \
                         --max-delete allows {max_percent}%"
                    ),
                    "`--check` shows examples. Raise `--max-delete` if the deletion is intended.",
                )
            }
            SyncRefusal::Cascades(keys) => {
                let keys = keys.iter().map(|key| format!("\"{key}\"")).collect::<Vec<_>>();
                (
                    format!(
                        "more rows were deleted or updated than differ: by foreign key {}, or by a \
                         trigger",
                        keys.join(" or ")
                    ),
                    "The action of the key would delete or change rows that the source keeps. \
                     Declare the key without an action and `deferrable initially deferred`.",
                )
            }
        };
        Error::new(ErrorKind::Plan, message).hint(hint)
    }
}

/// Returns a text with the keys and how often each key occurs.
fn listed(examples: &[(String, u64)]) -> String {
    let all = examples.iter().map(|(key, times)| format!("({key}) {times} times"));
    all.collect::<Vec<_>>().join(", ")
}
