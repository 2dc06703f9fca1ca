//! The old value of a setting, as the ledger records it.
//!
//! The owner of the ledger can write anything into it. So no text of the ledger is ever run as SQL:
//! a statement is made from one of [`TUNED_SETTINGS`] and a quoted value.

use super::{SettingProposal, TUNED_SETTINGS};
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::{NewChange, RecordedChange, SETTING_CHANGE};
use pgspate_target::quote_literal;

/// Separates the statement from the value that `apply` has set, in rows of earlier versions.
const INSTEAD_OF: &str = " -- instead of ";

/// A setting, its old value, and the value that `apply` has set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SettingUndo {
    pub(super) name: &'static str,
    /// The old value in `postgresql.auto.conf`; `None` if the file did not have the setting.
    pub(super) before: Option<String>,
    /// The value that `apply` has set.
    applied: String,
}

/// The state of a setting in `postgresql.auto.conf` since `apply`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SettingState {
    /// The setting has the value that `apply` has set.
    AsApplied,
    /// The setting has its old value.
    AsBefore,
    /// Another session has changed the setting since.
    ChangedByOthers,
}

impl SettingUndo {
    /// Returns the undo of a proposal. `before` is the value in `postgresql.auto.conf`.
    pub(super) fn new(proposal: &SettingProposal, before: Option<&String>) -> SettingUndo {
        SettingUndo {
            name: proposal.name,
            before: before.cloned(),
            applied: proposal.value.clone(),
        }
    }

    /// Returns the ledger row: the old value, or an empty text if there was none, and the new
    /// value. No setting of [`TUNED_SETTINGS`] can have an empty value.
    pub(super) fn to_change(&self) -> NewChange {
        NewChange {
            kind: SETTING_CHANGE.to_owned(),
            object: self.name.to_owned(),
            steps: vec![self.before.clone().unwrap_or_default(), self.applied.clone()],
            parallel_build: false,
        }
    }

    /// Parses the ledger rows; of several rows for one setting, the last row counts. There are
    /// several rows only if an earlier version wrote the marker, which then does not name its rows.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if a row was not written by this or an earlier version.
    pub(super) fn read_all(changes: &[RecordedChange]) -> Result<Vec<SettingUndo>> {
        let mut all: Vec<SettingUndo> = Vec::with_capacity(changes.len());
        for change in changes {
            let undo = SettingUndo::read(&change.object, &change.steps);
            let undo = undo.ok_or_else(|| unknown_entry(change))?;
            all.retain(|it| it.name != undo.name);
            all.push(undo);
        }
        Ok(all)
    }

    fn read(object: &str, steps: &[String]) -> Option<SettingUndo> {
        let name = TUNED_SETTINGS.into_iter().find(|name| *name == object)?;
        match steps {
            [before, applied] => {
                let before = Some(before.clone()).filter(|before| !before.is_empty());
                Some(SettingUndo { name, before, applied: applied.clone() })
            }
            [statement] => SettingUndo::parse_statement(name, statement),
            _ => None,
        }
    }

    /// Parses the statement that earlier versions recorded.
    fn parse_statement(name: &'static str, text: &str) -> Option<SettingUndo> {
        let (statement, applied) = text.rsplit_once(INSTEAD_OF)?;
        let applied = applied.to_owned();
        if statement == format!("alter system reset {name}") {
            return Some(SettingUndo { name, before: None, applied });
        }
        let value = statement.strip_prefix(&format!("alter system set {name} = "))?;
        Some(SettingUndo { name, before: Some(unquote_literal(value)?), applied })
    }

    /// Compares the value that `postgresql.auto.conf` has `now` with the recorded values.
    pub(super) fn state(&self, now: Option<&String>) -> SettingState {
        match now {
            now if now == self.before.as_ref() => SettingState::AsBefore,
            Some(now) if *now == self.applied => SettingState::AsApplied,
            _ => SettingState::ChangedByOthers,
        }
    }
}

/// Returns the error for a ledger row that `tune` does not understand.
fn unknown_entry(change: &RecordedChange) -> Error {
    let message =
        format!("the ledger's entry for setting {} is not from `pgspate tune`", change.object);
    let (job, ordinal) = change.order();
    Error::new(ErrorKind::Ledger, message).hint(format!(
        "Role \"{}\" wrote the entry, with another version of pgspate or by hand. Run that \
         version, or discard the entry with `delete from pgspate.change where (job, ordinal) = \
         ({job}, {ordinal})`.",
        change.role
    ))
}

/// Returns the text of a literal that [`quote_literal`] has written; `None` for any other text.
fn unquote_literal(text: &str) -> Option<String> {
    let value = match text.strip_prefix("E'") {
        Some(rest) => rest.strip_suffix('\'')?.replace("''", "'").replace("\\\\", "\\"),
        None => text.strip_prefix('\'')?.strip_suffix('\'')?.replace("''", "'"),
    };
    (quote_literal(&value) == text).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(object: &str, steps: &[&str]) -> Option<SettingUndo> {
        SettingUndo::read(object, &steps.iter().map(|&step| step.to_owned()).collect::<Vec<_>>())
    }

    fn undo(name: &'static str, before: Option<&str>, applied: &str) -> SettingUndo {
        SettingUndo { name, before: before.map(str::to_owned), applied: applied.to_owned() }
    }

    #[test]
    fn recorded_values_are_read_back() {
        for before in [None, Some("65MB"), Some(r"it's a 'b' \ '")] {
            let undo = undo("max_wal_size", before, "16GB");
            let recorded = undo.to_change();
            assert_eq!(SettingUndo::read(&recorded.object, &recorded.steps), Some(undo.clone()));
            let statement = match before {
                Some(value) => format!("alter system set max_wal_size = {}", quote_literal(value)),
                None => "alter system reset max_wal_size".to_owned(),
            };
            let of_earlier_version = format!("{statement} -- instead of 16GB");
            assert_eq!(read("max_wal_size", &[&of_earlier_version]), Some(undo));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        assert_eq!(read("archive_command", &["", "evil"]), None);
        assert_eq!(read("max_wal_size; drop table t", &["", "1GB"]), None);
        for text in [
            "alter system set archive_command = 'evil' -- instead of 16GB",
            "alter system set max_wal_size = '1GB'; drop table t -- instead of 16GB",
            "alter system set max_wal_size = '1GB' || 'a' -- instead of 16GB",
            "alter system set max_wal_size = 'a'b' -- instead of 16GB",
            r"alter system set max_wal_size = E'a\'; drop table t --' -- instead of 16GB",
            "alter system set max_wal_size = '1GB'",
            "drop table t",
            "",
        ] {
            assert_eq!(read("max_wal_size", &[text]), None, "{text}");
        }
        assert_eq!(read("max_wal_size", &[]), None);
        assert_eq!(read("max_wal_size", &["a", "b", "c"]), None);
    }

    #[test]
    fn the_state_of_a_setting_follows_from_its_value() {
        let state =
            |undo: &SettingUndo, now: Option<&str>| undo.state(now.map(str::to_owned).as_ref());
        let changed = undo("max_wal_size", Some("1GB"), "16GB");
        assert_eq!(state(&changed, Some("16GB")), SettingState::AsApplied);
        assert_eq!(state(&changed, Some("1GB")), SettingState::AsBefore);
        assert_eq!(state(&changed, Some("3GB")), SettingState::ChangedByOthers);
        assert_eq!(state(&changed, None), SettingState::ChangedByOthers);
        let new = undo("max_wal_size", None, "16GB");
        assert_eq!(state(&new, Some("16GB")), SettingState::AsApplied);
        assert_eq!(state(&new, None), SettingState::AsBefore);
        assert_eq!(state(&new, Some("1GB")), SettingState::ChangedByOthers);
    }
}
