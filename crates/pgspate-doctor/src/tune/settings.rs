//! Which settings a bulk load wants, why, and what they cost.

use super::{Machine, Proposal, UNTOUCHED};
use pgspate_target::server::{Flavour, GIB, MIB, Setting, Settings, compression, words};

/// What a setting should be.
enum Wanted {
    /// At least so many bytes.
    Bytes(u64),
    /// At least that number, of the setting's own unit.
    Number(u64),
    /// At least that share.
    Share(f64),
    /// That word, if it is off.
    Word(&'static str),
}

struct Wish {
    name: &'static str,
    wanted: Wanted,
    reason: &'static str,
    risk: &'static str,
    /// What it is the same as when it is -1.
    follows: Option<&'static str>,
    /// Not where storage takes the WAL and writes no pages.
    is_for_checkpoints: bool,
}

/// The settings that should be others than they are.
pub(super) fn propose(machine: &Machine, flavour: Flavour, now: &Settings) -> Vec<Proposal> {
    let is_aurora = flavour == Flavour::Aurora;
    let mut proposals: Vec<Proposal> = Vec::new();
    for wish in wishes(machine, now) {
        if is_aurora && wish.is_for_checkpoints {
            continue;
        }
        let is_led = wish.follows.is_some_and(|it| proposals.iter().any(|made| made.name == it));
        proposals.extend(wish.proposal(now, is_led));
    }
    debug_assert!(proposals.iter().all(|it| !UNTOUCHED.contains(&it.name)));
    proposals
}

fn wishes(machine: &Machine, now: &Settings) -> Vec<Wish> {
    let memory = machine.memory_bytes;
    // Whole powers of two: nobody wants to read 376 MB.
    let share = |part: u64| 1 << (memory / part).clamp(64 * MIB, GIB).ilog2();
    let maintenance = share(16);
    let wal = match memory {
        0..8_000_000_000 => 4 * GIB,
        8_000_000_000..64_000_000_000 => 16 * GIB,
        _ => 32 * GIB,
    };
    let workers = u64::from(machine.cpus / 2).clamp(2, 8);
    let autovacuum = share(64);
    let wish = |name, wanted, reason, risk| {
        let (follows, is_for_checkpoints) = (None, false);
        Wish { name, wanted, reason, risk, follows, is_for_checkpoints }
    };
    let checkpoint = |name, wanted, reason, risk| {
        let wish = wish(name, wanted, reason, risk);
        Wish { is_for_checkpoints: true, ..wish }
    };
    let follower = |name, follows, wanted, reason, risk| {
        let wish = wish(name, wanted, reason, risk);
        Wish { follows: Some(follows), ..wish }
    };
    vec![
        checkpoint(
            "max_wal_size",
            Wanted::Bytes(wal),
            "checkpoints come by the clock and not because the WAL is full, so fewer pages are \
             written twice, and fewer whole ones to the WAL",
            "that much more disk for pg_wal, and recovery after a crash reads as much: about ten \
             seconds for each GiB, as a rule",
        ),
        checkpoint(
            "checkpoint_timeout",
            Wanted::Number(900),
            "a page that changes all the time is written once in fifteen minutes",
            "recovery after a crash has up to fifteen minutes of work to do again",
        ),
        checkpoint(
            "checkpoint_completion_target",
            Wanted::Share(0.9),
            "pages are written evenly and not in one go",
            "no risk known",
        ),
        checkpoint(
            "wal_compression",
            Wanted::Word(compression(now)),
            "whole pages in the WAL are compressed before they are written",
            "some processor time of the sessions that write",
        ),
        checkpoint(
            "wal_buffers",
            Wanted::Bytes(64 * MIB),
            "sessions need not write WAL themselves when they fill its buffers faster than the \
             WAL writer empties them",
            "64 MiB of memory",
        ),
        wish(
            "maintenance_work_mem",
            Wanted::Bytes(maintenance),
            "indexes are sorted in one pass, and vacuum passes over them once",
            "each index build and each VACUUM may take that much memory",
        ),
        follower(
            "autovacuum_work_mem",
            "maintenance_work_mem",
            Wanted::Bytes(autovacuum),
            "autovacuum gets enough memory of its own, and not that of index builds times its \
             workers",
            "each autovacuum worker may take that much memory",
        ),
        wish(
            "max_parallel_maintenance_workers",
            Wanted::Number(workers),
            "an index is built by half of the processors",
            "less processor time for others while indexes are built",
        ),
        follower(
            "autovacuum_vacuum_cost_limit",
            "vacuum_cost_limit",
            Wanted::Number(2000),
            "autovacuum does more before it pauses, and keeps up with the load",
            "more reading and writing beside the load",
        ),
    ]
}

impl Wish {
    /// Nothing where it is as much already. Where it is as much as another setting that is about
    /// to be made larger (`is_led`), it is kept from growing with that one.
    fn proposal(&self, now: &Settings, is_led: bool) -> Option<Proposal> {
        let own = now.get(self.name)?;
        let leader = self.follows.filter(|_| own.value == "-1");
        let leader = leader.and_then(|name| Some((name, now.get(name)?)));
        let counting = leader.map_or(own, |(_, setting)| setting);
        let is_led = is_led && leader.is_some();
        let number: f64 = counting.value.parse().unwrap_or_default();
        let (value, bare_value) = match &self.wanted {
            Wanted::Bytes(bytes) => {
                let unit = unit_bytes(own)?;
                // Less than zero is as the server thinks fit.
                let bytes_now = if number < 0.0 { 0 } else { counting.bytes()? };
                if bytes_now >= *bytes && !is_led {
                    return None;
                }
                let bytes = bytes_now.max(*bytes);
                (words(bytes), (bytes / unit).to_string())
            }
            Wanted::Number(wanted) if number < *wanted as f64 => {
                let unit = own.unit.as_deref().unwrap_or_default();
                (format!("{wanted}{unit}"), wanted.to_string())
            }
            Wanted::Share(share) if number < *share => (share.to_string(), share.to_string()),
            Wanted::Word(word) if own.value == "off" => ((*word).to_owned(), (*word).to_owned()),
            _ => return None,
        };
        let now = match leader {
            Some((name, setting)) => format!("{} ({name}, {})", own.value, shown(setting)),
            None => shown(own),
        };
        Some(Proposal {
            name: self.name,
            now,
            value,
            bare_value,
            needs_restart: own.context == "postmaster",
            reason: self.reason,
            risk: self.risk,
        })
    }
}

fn unit_bytes(setting: &Setting) -> Option<u64> {
    Setting { value: "1".to_owned(), ..setting.clone() }.bytes()
}

/// A value as people write it: `64MB`, `300s`, `-1`.
pub(super) fn shown(setting: &Setting) -> String {
    let is_negative = setting.value.starts_with('-');
    match (setting.bytes(), setting.unit.as_deref()) {
        (Some(bytes), _) => words(bytes),
        (None, Some(unit)) if !is_negative => format!("{}{unit}", setting.value),
        (None, _) => setting.value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::NAMES;

    fn setting(value: &str, unit: Option<&str>, context: &str) -> Setting {
        Setting {
            value: value.to_owned(),
            unit: unit.map(str::to_owned),
            source: "default".to_owned(),
            context: context.to_owned(),
            words: Vec::new(),
        }
    }

    fn defaults() -> Settings {
        let all = [
            ("max_wal_size", setting("1024", Some("MB"), "sighup")),
            ("checkpoint_timeout", setting("300", Some("s"), "sighup")),
            ("checkpoint_completion_target", setting("0.9", None, "sighup")),
            ("wal_compression", setting("off", None, "superuser")),
            ("wal_buffers", setting("512", Some("8kB"), "postmaster")),
            ("maintenance_work_mem", setting("65536", Some("kB"), "user")),
            ("autovacuum_work_mem", setting("-1", Some("kB"), "sighup")),
            ("max_parallel_maintenance_workers", setting("2", None, "user")),
            ("autovacuum_vacuum_cost_limit", setting("-1", None, "sighup")),
            ("vacuum_cost_limit", setting("200", None, "user")),
        ];
        all.into_iter().map(|(name, setting)| (name.to_owned(), setting)).collect()
    }

    fn machine(memory_bytes: u64, cpus: u32) -> Machine {
        Machine { memory_bytes, cpus, memory_from: "as said", cpus_from: "as said" }
    }

    fn values(machine: &Machine, flavour: Flavour, now: &Settings) -> Vec<(String, String)> {
        let proposals = propose(machine, flavour, now);
        proposals
            .into_iter()
            .map(|it| (format!("{}={}", it.name, it.value), it.bare_value))
            .collect()
    }

    #[test]
    fn proposals_are_by_size() {
        let large = values(&machine(64 * GIB, 16), Flavour::Plain, &defaults());
        let expected = [
            ("max_wal_size=32GB", "32768"),
            ("checkpoint_timeout=900s", "900"),
            ("wal_compression=on", "on"),
            ("wal_buffers=64MB", "8192"),
            ("maintenance_work_mem=1GB", "1048576"),
            ("autovacuum_work_mem=1GB", "1048576"),
            ("max_parallel_maintenance_workers=8", "8"),
            ("autovacuum_vacuum_cost_limit=2000", "2000"),
        ];
        assert_eq!(large, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
        let small = values(&machine(GIB, 1), Flavour::Plain, &defaults());
        let names: Vec<&str> = small.iter().map(|(name, _)| name.as_str()).collect();
        assert!(names.contains(&"max_wal_size=4GB"), "{names:?}");
        // It has as much already, by maintenance_work_mem.
        assert!(!names.iter().any(|name| name.starts_with("autovacuum_work_mem")), "{names:?}");
        assert!(!names.iter().any(|name| name.starts_with("max_parallel")), "{names:?}");
    }

    #[test]
    fn nothing_is_made_smaller_and_some_things_are_never_touched() {
        let mut now = defaults();
        for setting in now.values_mut() {
            setting.value = "99999999".to_owned();
        }
        assert_eq!(values(&machine(64 * GIB, 16), Flavour::Plain, &now), []);
        for (memory, cpus) in [(GIB, 1), (64 * GIB, 64)] {
            let wishes = wishes(&machine(memory, cpus), &defaults());
            let names: Vec<&str> = wishes.iter().map(|wish| wish.name).collect();
            assert_eq!(names, NAMES);
            assert!(names.iter().all(|name| !UNTOUCHED.contains(name)));
        }
        let aurora = values(&machine(64 * GIB, 16), Flavour::Aurora, &defaults());
        assert!(aurora.iter().all(|(name, _)| !name.contains("wal") && !name.contains("check")));
    }
    #[test]
    fn what_is_the_same_as_another_is_not_made_smaller_than_that() {
        let size = machine(16 * GIB, 2);
        let proposed = |maintenance_kb: &str, cost_limit: &str| {
            let mut now = defaults();
            now.get_mut("maintenance_work_mem").unwrap().value = maintenance_kb.to_owned();
            now.get_mut("vacuum_cost_limit").unwrap().value = cost_limit.to_owned();
            let proposals = propose(&size, Flavour::Plain, &now).into_iter();
            let ours = proposals.filter(|it| it.name.starts_with("autovacuum"));
            ours.map(|it| format!("{} instead of {}", it.value, it.now)).collect::<Vec<_>>()
        };
        let usual = [
            "256MB instead of -1 (maintenance_work_mem, 64MB)",
            "2000 instead of -1 (vacuum_cost_limit, 200)",
        ];
        assert_eq!(proposed("65536", "200"), usual);
        assert_eq!(proposed("4194304", "10000"), [""; 0]);
        // Not 1GB, which maintenance_work_mem is about to be, for each worker.
        let kept = ["512MB instead of -1 (maintenance_work_mem, 512MB)"];
        assert_eq!(proposed("524288", "2000"), kept);
    }
}
