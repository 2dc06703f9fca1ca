//! One write by many processes: the members of an array of jobs, which no driver coordinates.
//!
//! Each member is a load or a sync of its own, atomic by itself. The ledger connects them: it
//! refuses late members of an older generation, limits the connections of all members together,
//! and says which members are missing.

mod array_index;
mod entry;

use crate::{Error, ErrorKind, Result};
use array_index::read_array_place;
pub(crate) use entry::{FleetEntry, slot_pause};
use pgspate_target::ledger::{ArrayExtent, FleetMember, OpenMember};
use pgspate_target::session::StopFlag;

use serde::Serialize;

/// Placeholder in a source's name for the member's index.
const PLACEHOLDER: &str = "{member}";
/// Maximum length of the names of a fleet and of a generation.
const NAME_BYTES_MAX: usize = 200;
/// Maximum number of members.
const MEMBERS_MAX: i32 = 1_000_000;

/// The user's options for a member of a fleet.
#[derive(Debug, Clone, Default)]
pub struct MemberOptions {
    /// The fleet's name. Without a name, the run is not a member of a fleet.
    pub fleet: Option<String>,
    /// The name of the generation, such as a date.
    pub generation: Option<String>,
    /// The number of members. By default the size that the array's engine has set.
    pub members: Option<i32>,
    /// The member's index. By default the index that the array's engine has set.
    pub member: Option<i32>,
    /// The number of connections that all members together may have open.
    pub connections: Option<u32>,
    /// Ends the waiting for a connection if a stop is requested.
    pub stop: StopFlag,
}

/// What a member's report says about the fleet.
#[derive(Debug, Clone, Serialize)]
pub struct MemberReport {
    /// The fleet's name.
    pub fleet: String,
    /// The generation's name.
    pub generation: String,
    /// The member's index.
    pub member: i32,
    /// The number of members.
    pub members: i32,
    /// The number of the member's attempt.
    pub attempt: i32,
    /// Whether an earlier attempt had finished the member.
    pub was_done: bool,
    /// Seconds of waiting for a slot of `--connections`.
    pub waited_seconds: f64,
    /// Whether this member was the last one, and so did the work that belongs to the whole table.
    pub completed: bool,
}

impl MemberReport {
    pub(crate) fn new(open: &OpenMember, entry: &FleetEntry, completed: bool) -> MemberReport {
        let FleetMember { fleet, generation, member, members, .. } = open.member.clone();
        MemberReport {
            fleet,
            generation,
            member,
            members,
            attempt: open.attempt,
            was_done: open.was_done,
            waited_seconds: entry.waited().as_secs_f64(),
            completed,
        }
    }
}

impl MemberOptions {
    /// Returns the member, if the run is a member of a fleet. `connections_each` is the number of
    /// connections that a member needs.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if an option is missing, does not fit the others or is out of range.
    pub(crate) fn resolve(
        &self,
        replaces_rows: bool,
        connections_each: usize,
    ) -> Result<Option<FleetEntry>> {
        let usage = |message: String, hint: &str| {
            Err(Error::new(ErrorKind::Usage, message).hint(hint.to_owned()))
        };
        let Some(fleet) = self.fleet.clone() else { return Ok(None) };
        let Some(generation) = self.generation.clone() else {
            let hint = "Name the run with `--generation G`, such as `--generation 2026-11-22`.";
            return usage("a member of a fleet needs a generation".to_owned(), hint);
        };
        check_name("fleet", &fleet)?;
        check_name("generation", &generation)?;
        if has_no_order(&generation) {
            let hint = "Use a date, a time or a number that grows with each run.";
            return usage(format!("generation {generation} has no order in time"), hint);
        }
        let place = match self.member {
            Some(_) => None,
            None => Some(read_array_place(|name| std::env::var(name).ok())?),
        };
        let size = place.and_then(|place| place.size);
        let Some(members) = self.members.or(size) else {
            let hint = "Give the number with `--members N`.";
            return usage("the number of members is not known".to_owned(), hint);
        };
        let first = place.map_or(0, |place| place.first);
        let member = self.member.or(place.map(|place| place.index)).unwrap_or_default();
        if !(1..=MEMBERS_MAX).contains(&members) || !(first..first + members).contains(&member) {
            let last = i64::from(first) + i64::from(members) - 1;
            let hint = "Members are numbered from 0; `--members` is their number.";
            return usage(format!("there is no member {member} from {first} to {last}"), hint);
        }
        let slots = match self.connections.map(|all| (all, all as usize / connections_each)) {
            Some((all, 0)) => {
                let message = format!("a member needs {connections_each} connections, not {all}");
                return usage(message, "Raise `--connections`.");
            }
            slots => slots.and_then(|(_, slots)| u32::try_from(slots).ok()),
        };
        let extent = match self.members {
            Some(_) => ArrayExtent::All,
            None => place.map_or(ArrayExtent::All, |it| it.extent),
        };
        let fleet =
            FleetMember { fleet, generation, first, members, member, extent, replaces_rows };
        Ok(Some(FleetEntry::new(fleet, slots, self.stop.clone())))
    }

    /// Refuses the first of these options that is given, because a member of a fleet cannot have
    /// it. Each option comes with the reason.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the run is a member of a fleet and an option is given.
    pub(crate) fn check_excluded(&self, options: &[(&str, bool, &str)]) -> Result<()> {
        let excluded = options.iter().find(|(_, is_given, _)| self.fleet.is_some() && *is_given);
        excluded.map_or(Ok(()), |(option, _, reason)| {
            let message = format!("`--fleet` and `{option}` cannot be combined: {reason}");
            Err(Error::new(ErrorKind::Usage, message).hint(format!("Leave out `{option}`.")))
        })
    }
}

/// Puts the member's index in place of `{member}` in the names of the sources.
pub(crate) fn name_sources(sources: &mut [String], member: &FleetMember) {
    for source in sources {
        *source = source.replace(PLACEHOLDER, &member.member.to_string());
    }
}

/// Describes an error for the ledger, without values of rows: its kind, and the SQLSTATE.
pub(crate) fn failure_words(error: &Error) -> String {
    let kind = format!("{:?} error", error.kind()).to_lowercase();
    match error.sqlstate() {
        Some(code) => format!("{kind}, SQLSTATE {}", code.code()),
        None => kind,
    }
}

/// Refuses a name that is too long, empty or not printable.
///
/// # Errors
/// [`ErrorKind::Usage`] for such a name.
pub(crate) fn check_name(what: &str, name: &str) -> Result<()> {
    if !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(char::is_control) {
        return Ok(());
    }
    let message = format!("a {what}'s name has 1 to {NAME_BYTES_MAX} bytes, all printable");
    Err(Error::new(ErrorKind::Usage, message))
}

/// Returns whether the name ends with an id that does not grow with time. This is a UUID whose
/// version is not 6 or 7, as engines give to their jobs, or a hash, as commits have. A UUID may be
/// without dashes.
fn has_no_order(name: &str) -> bool {
    let name = name.trim_end_matches('}');
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let end = |len: usize| name.len().checked_sub(len).and_then(|at| name.get(at..));
    let dashed = end(36).filter(|it| {
        let groups: Vec<_> = it.split('-').collect();
        groups.iter().map(|it| it.len()).eq([8, 4, 4, 4, 12]) && groups.iter().all(|it| is_hex(it))
    });
    let uuid = dashed.map(|it| it.replace('-', "")).or_else(|| {
        let has_letters = |it: &&str| it.bytes().any(|byte| byte.is_ascii_alphabetic());
        let id = name.rsplit(|it: char| !it.is_ascii_alphanumeric()).next();
        id.filter(|it| is_hex(it) && has_letters(it)).map(str::to_owned)
    });
    match uuid {
        Some(uuid) if uuid.len() == 32 => !matches!(uuid.as_bytes()[12], b'6' | b'7'),
        Some(hash) => matches!(hash.len(), 40 | 64),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(members: i32, member: i32, connections: Option<u32>) -> MemberOptions {
        MemberOptions {
            fleet: Some("nights".to_owned()),
            generation: Some("2026-11-22".to_owned()),
            members: Some(members),
            member: Some(member),
            connections,
            stop: StopFlag::default(),
        }
    }

    #[test]
    fn a_member_is_one_of_the_members() {
        assert!(options(3, 2, None).resolve(true, 2).unwrap().is_some());
        for (members, member) in [(3, 3), (3, -1), (0, 0)] {
            let error = options(members, member, None).resolve(true, 2).unwrap_err();
            assert!(error.to_string().starts_with("there is no member"), "{error}");
        }
        let error = options(3, 0, Some(1)).resolve(true, 2).unwrap_err();
        assert_eq!(error.to_string(), "a member needs 2 connections, not 1");
        assert!(MemberOptions::default().resolve(true, 2).unwrap().is_none());
    }

    #[test]
    fn a_generation_must_have_an_order() {
        for (generation, is_refused) in [
            (Some("8c6d1f0e-52a1-4a6f-9d6e-0a6f5f1f9a10"), true),
            (Some("8C6D1F0E52A14A6F9D6E0A6F5F1F9A10"), true),
            (Some("{8c6d1f0e-52a1-4a6f-9d6e-0a6f5f1f9a10}"), true),
            (Some("run-8c6d1f0e52a14a6f9d6e0a6f5f1f9a10"), true),
            (Some("c8bc31e8a1d2f5a9c8bc31e8a1d2f5a9c8bc31e8"), true),
            (Some("019ab8a6-2f3c-7a6f-9d6e-0a6f5f1f9a10"), false),
            (Some("019ab8a62f3c7a6f9d6e0a6f5f1f9a10"), false),
            (Some("20261122010203040506070809101112"), false),
            (Some("2026-11-22"), false),
            (Some(""), true),
            (None, true),
        ] {
            let generation = generation.map(str::to_owned);
            let options = MemberOptions { generation, ..options(3, 0, None) };
            assert_eq!(options.resolve(true, 2).is_err(), is_refused, "{options:?}");
        }
    }
}
