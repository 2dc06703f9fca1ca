//! The way back of a setting, as the ledger has it.
//!
//! Whoever owns the ledger can write anything into it. So nothing of it is ever run: it has names
//! and values, and a statement is made of one of [`NAMES`] and a literal.

use super::{NAMES, Proposal};
use crate::{Error, Kind, Result};
use pgspate_target::ledger::{Change, NewChange, SETTING};
use pgspate_target::quote_literal;

/// What was between a statement and the value that `apply` has set, before values alone were
/// recorded.
const INSTEAD: &str = " -- instead of ";

/// What a setting was, and what `apply` has made of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WayBack {
    pub(super) name: &'static str,
    /// What `postgresql.auto.conf` said; nothing where it said nothing.
    pub(super) before: Option<String>,
    set: String,
}

/// Whose doing it is what `postgresql.auto.conf` says of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// It is as `apply` has set it.
    Ours,
    /// It is what it was.
    Back,
    /// Somebody has set it since.
    Others,
}

impl WayBack {
    pub(super) fn of(proposal: &Proposal, before: Option<&String>) -> WayBack {
        WayBack { name: proposal.name, before: before.cloned(), set: proposal.value.clone() }
    }

    /// As it is recorded: what was, or nothing, and what was set. None of [`NAMES`] can be set to
    /// nothing.
    pub(super) fn recorded(&self) -> NewChange {
        NewChange {
            kind: SETTING.to_owned(),
            object: self.name.to_owned(),
            steps: vec![self.before.clone().unwrap_or_default(), self.set.clone()],
            beside: false,
        }
    }

    /// The last of each setting. There are earlier ones only under a marker of former versions,
    /// which does not say which rows are its own.
    pub(super) fn read_all(changes: &[Change]) -> Result<Vec<WayBack>> {
        let mut all: Vec<WayBack> = Vec::with_capacity(changes.len());
        for change in changes {
            let way = WayBack::read(&change.object, &change.steps);
            let way = way.ok_or_else(|| not_ours(change))?;
            all.retain(|it| it.name != way.name);
            all.push(way);
        }
        Ok(all)
    }

    fn read(object: &str, steps: &[String]) -> Option<WayBack> {
        let name = NAMES.into_iter().find(|name| *name == object)?;
        match steps {
            [before, set] => {
                let before = Some(before.clone()).filter(|before| !before.is_empty());
                Some(WayBack { name, before, set: set.clone() })
            }
            [statement] => WayBack::of_statement(name, statement),
            _ => None,
        }
    }

    /// Of the statement that was recorded formerly.
    fn of_statement(name: &'static str, text: &str) -> Option<WayBack> {
        let (statement, set) = text.rsplit_once(INSTEAD)?;
        let set = set.to_owned();
        if statement == format!("alter system reset {name}") {
            return Some(WayBack { name, before: None, set });
        }
        let value = statement.strip_prefix(&format!("alter system set {name} = "))?;
        Some(WayBack { name, before: Some(value_of(value)?), set })
    }

    /// Whose doing it is what `postgresql.auto.conf` says `now`.
    pub(super) fn doing(&self, now: Option<&String>) -> Doing {
        match now {
            now if now == self.before.as_ref() => Doing::Back,
            Some(now) if *now == self.set => Doing::Ours,
            _ => Doing::Others,
        }
    }
}

fn not_ours(change: &Change) -> Error {
    let message =
        format!("the ledger says what {} was in words that are not tune's", change.object);
    let (job, ordinal) = change.order();
    Error::new(Kind::Ledger, message).hint(format!(
        "Role \"{}\" wrote it, with another version of pgspate or by hand. Run that version, or \
         give it up with `delete from pgspate.change where (job, ordinal) = ({job}, {ordinal})`.",
        change.role
    ))
}

/// The text of a literal that [`quote_literal`] has written; nothing for any other.
fn value_of(text: &str) -> Option<String> {
    let value = match text.strip_prefix("E'") {
        Some(rest) => rest.strip_suffix('\'')?.replace("''", "'").replace("\\\\", "\\"),
        None => text.strip_prefix('\'')?.strip_suffix('\'')?.replace("''", "'"),
    };
    (quote_literal(&value) == text).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(object: &str, steps: &[&str]) -> Option<WayBack> {
        WayBack::read(object, &steps.iter().map(|&step| step.to_owned()).collect::<Vec<_>>())
    }

    fn way(name: &'static str, before: Option<&str>, set: &str) -> WayBack {
        WayBack { name, before: before.map(str::to_owned), set: set.to_owned() }
    }

    #[test]
    fn what_is_recorded_is_read() {
        for before in [None, Some("65MB"), Some(r"it's a 'b' \ '")] {
            let way = way("max_wal_size", before, "16GB");
            let recorded = way.recorded();
            assert_eq!(WayBack::read(&recorded.object, &recorded.steps), Some(way.clone()));
            let statement = match before {
                Some(value) => format!("alter system set max_wal_size = {}", quote_literal(value)),
                None => "alter system reset max_wal_size".to_owned(),
            };
            let formerly = format!("{statement} -- instead of 16GB");
            assert_eq!(read("max_wal_size", &[&formerly]), Some(way));
        }
    }

    #[test]
    fn nothing_else_is_read() {
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
    fn whose_doing_it_is() {
        let doing = |way: &WayBack, now: Option<&str>| way.doing(now.map(str::to_owned).as_ref());
        let changed = way("max_wal_size", Some("1GB"), "16GB");
        assert_eq!(doing(&changed, Some("16GB")), Doing::Ours);
        assert_eq!(doing(&changed, Some("1GB")), Doing::Back);
        assert_eq!(doing(&changed, Some("3GB")), Doing::Others);
        assert_eq!(doing(&changed, None), Doing::Others);
        let new = way("max_wal_size", None, "16GB");
        assert_eq!(doing(&new, Some("16GB")), Doing::Ours);
        assert_eq!(doing(&new, None), Doing::Back);
        assert_eq!(doing(&new, Some("1GB")), Doing::Others);
    }
}
