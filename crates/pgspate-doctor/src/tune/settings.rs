//! The settings that suit a bulk load, each with its reason and its risk.

use super::{ServerMachine, SettingProposal, UNTOUCHED_SETTINGS};
use pgspate_target::server::{
    Flavour, GIB, MIB, ServerSetting, ServerSettings, best_wal_compression, format_size_setting,
};

/// The value that a setting should have.
enum TargetValue {
    /// At least this many bytes.
    Bytes(u64),
    /// At least this number, in the setting's own unit.
    Number(u64),
    /// At least this share.
    Share(f64),
    /// This word, if the setting is off.
    Word(&'static str),
}

/// A setting and the value that a bulk load needs.
struct SettingGoal {
    name: &'static str,
    target: TargetValue,
    reason: &'static str,
    risk: &'static str,
    /// The setting whose value counts while this one is -1.
    follows: Option<&'static str>,
}

/// Proposes a value for each setting that does not suit a bulk load.
pub(super) fn propose(
    machine: &ServerMachine,
    flavour: Flavour,
    now: &ServerSettings,
) -> Vec<SettingProposal> {
    let mut proposals: Vec<SettingProposal> = Vec::new();
    for goal in goals(machine, flavour, now) {
        let leader_grows =
            goal.follows.is_some_and(|it| proposals.iter().any(|proposal| proposal.name == it));
        proposals.extend(goal.proposal(now, leader_grows));
    }
    debug_assert!(proposals.iter().all(|it| !UNTOUCHED_SETTINGS.contains(&it.name)));
    proposals
}

/// Returns the values that suit a bulk load on this machine.
fn goals(machine: &ServerMachine, flavour: Flavour, now: &ServerSettings) -> Vec<SettingGoal> {
    let mut goals = match flavour {
        // Its instances do without checkpoints and WAL files.
        Flavour::Aurora => Vec::new(),
        _ => checkpoint_goals(machine.memory_bytes, now),
    };
    goals.extend(maintenance_goals(machine));
    goals
}

/// Returns the goals for checkpoints and WAL.
fn checkpoint_goals(memory: u64, now: &ServerSettings) -> Vec<SettingGoal> {
    let wal = match memory {
        0..8_000_000_000 => 4 * GIB,
        8_000_000_000..64_000_000_000 => 16 * GIB,
        _ => 32 * GIB,
    };
    vec![
        SettingGoal::new(
            "max_wal_size",
            TargetValue::Bytes(wal),
            "checkpoints start after checkpoint_timeout and not because WAL reaches its limit, so \
             fewer pages are written twice, and WAL has fewer full-page images",
            "pg_wal may take this much disk, and recovery after a crash may read as much: usually \
             about ten seconds for each GiB",
        ),
        SettingGoal::new(
            "checkpoint_timeout",
            TargetValue::Number(900),
            "a page that changes all the time is written only once in fifteen minutes",
            "recovery after a crash may have to repeat up to fifteen minutes of work",
        ),
        SettingGoal::new(
            "checkpoint_completion_target",
            TargetValue::Share(0.9),
            "the pages of a checkpoint are written evenly and not all at once",
            "no risk known",
        ),
        SettingGoal::new(
            "wal_compression",
            TargetValue::Word(best_wal_compression(now)),
            "full-page images in WAL are compressed before they are written",
            "some CPU time of the sessions that write",
        ),
        SettingGoal::new(
            "wal_buffers",
            TargetValue::Bytes(64 * MIB),
            "sessions need not write WAL themselves when they fill the WAL buffers faster than \
             the WAL writer empties them",
            "64 MiB of memory",
        ),
    ]
}

/// Returns the goals for index builds and VACUUM.
fn maintenance_goals(machine: &ServerMachine) -> Vec<SettingGoal> {
    // Powers of two are easier to read than 376 MB.
    let share = |part: u64| 1 << (machine.memory_bytes / part).clamp(64 * MIB, GIB).ilog2();
    let workers = u64::from(machine.cpus / 2).clamp(2, 8);
    vec![
        SettingGoal::new(
            "maintenance_work_mem",
            TargetValue::Bytes(share(16)),
            "indexes are sorted in one pass, and VACUUM scans each index only once",
            "each index build and each VACUUM may take that much memory",
        ),
        SettingGoal::new(
            "autovacuum_work_mem",
            TargetValue::Bytes(share(64)),
            "each autovacuum worker gets enough memory, but not as much as an index build",
            "each autovacuum worker may take that much memory",
        )
        .following("maintenance_work_mem"),
        SettingGoal::new(
            "max_parallel_maintenance_workers",
            TargetValue::Number(workers),
            "half as many workers as CPUs build an index, but at least 2 and at most 8",
            "less CPU time for other sessions while indexes are built",
        ),
        SettingGoal::new(
            "autovacuum_vacuum_cost_limit",
            TargetValue::Number(2000),
            "autovacuum does more before it pauses, and keeps up with the load",
            "more I/O by autovacuum during the load",
        )
        .following("vacuum_cost_limit"),
    ]
}

impl SettingGoal {
    fn new(
        name: &'static str,
        target: TargetValue,
        reason: &'static str,
        risk: &'static str,
    ) -> SettingGoal {
        SettingGoal { name, target, reason, risk, follows: None }
    }

    /// Returns the goal of a setting that has the value of `leader` while it is -1.
    fn following(self, leader: &'static str) -> SettingGoal {
        SettingGoal { follows: Some(leader), ..self }
    }

    /// Proposes the value, unless the setting suits already. A size that is -1 follows another
    /// setting. If that setting is about to grow (`leader_grows`) and the size is large enough now,
    /// the size is set to its present value, so that it does not grow too.
    fn proposal(&self, now: &ServerSettings, leader_grows: bool) -> Option<SettingProposal> {
        let own = now.get(self.name)?;
        let leader = match self.follows.filter(|_| own.value == "-1") {
            // Without the leader's value, nothing is known to be an increase.
            Some(name) => Some((name, now.get(name)?)),
            None => None,
        };
        let effective = leader.map_or(own, |(_, setting)| setting);
        let leader_grows = leader_grows && leader.is_some();
        let number: f64 = effective.value.parse().unwrap_or_default();
        let (value, bare_value) = match &self.target {
            TargetValue::Bytes(bytes) => {
                let unit = unit_bytes(own)?;
                // A negative number lets the server choose.
                let bytes_now = if number < 0.0 { 0 } else { effective.bytes()? };
                if bytes_now >= *bytes && !leader_grows {
                    return None;
                }
                let bytes = bytes_now.max(*bytes);
                (format_size_setting(bytes), (bytes / unit).to_string())
            }
            TargetValue::Number(target) if number < *target as f64 => {
                let unit = own.unit.as_deref().unwrap_or_default();
                (format!("{target}{unit}"), target.to_string())
            }
            TargetValue::Share(share) if number < *share => (share.to_string(), share.to_string()),
            TargetValue::Word(word) if own.value == "off" => {
                ((*word).to_owned(), (*word).to_owned())
            }
            _ => return None,
        };
        let now = match leader {
            Some((name, setting)) => {
                format!("{} ({name}, {})", own.value, value_with_unit(setting))
            }
            None => value_with_unit(own),
        };
        Some(SettingProposal {
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

/// Returns the bytes of the setting's unit.
fn unit_bytes(setting: &ServerSetting) -> Option<u64> {
    ServerSetting { value: "1".to_owned(), ..setting.clone() }.bytes()
}

/// Formats a value as people write it: `64MB`, `300s`, `-1`.
pub(super) fn value_with_unit(setting: &ServerSetting) -> String {
    let is_negative = setting.value.starts_with('-');
    match (setting.bytes(), setting.unit.as_deref()) {
        (Some(bytes), _) => format_size_setting(bytes),
        (None, Some(unit)) if !is_negative => format!("{}{unit}", setting.value),
        (None, _) => setting.value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::TUNED_SETTINGS;

    fn setting(value: &str, unit: Option<&str>, context: &str) -> ServerSetting {
        ServerSetting {
            value: value.to_owned(),
            unit: unit.map(str::to_owned),
            source: "default".to_owned(),
            context: context.to_owned(),
            allowed_values: Vec::new(),
        }
    }

    fn defaults() -> ServerSettings {
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

    fn machine(memory_bytes: u64, cpus: u32) -> ServerMachine {
        ServerMachine { memory_bytes, cpus, memory_from: "as said", cpus_from: "as said" }
    }

    fn values(
        machine: &ServerMachine,
        flavour: Flavour,
        now: &ServerSettings,
    ) -> Vec<(String, String)> {
        let proposals = propose(machine, flavour, now);
        proposals
            .into_iter()
            .map(|it| (format!("{}={}", it.name, it.value), it.bare_value))
            .collect()
    }

    #[test]
    fn proposals_follow_from_the_machine() {
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
        // autovacuum_work_mem follows maintenance_work_mem, whose value is large enough already.
        assert!(!names.iter().any(|name| name.starts_with("autovacuum_work_mem")), "{names:?}");
        assert!(!names.iter().any(|name| name.starts_with("max_parallel")), "{names:?}");
    }

    #[test]
    fn no_setting_is_made_smaller_and_some_are_never_changed() {
        let mut now = defaults();
        for setting in now.values_mut() {
            setting.value = "99999999".to_owned();
        }
        assert_eq!(values(&machine(64 * GIB, 16), Flavour::Plain, &now), []);
        for (memory, cpus) in [(GIB, 1), (64 * GIB, 64)] {
            let goals = goals(&machine(memory, cpus), Flavour::Plain, &defaults());
            let names: Vec<&str> = goals.iter().map(|goal| goal.name).collect();
            assert_eq!(names, TUNED_SETTINGS);
            assert!(names.iter().all(|name| !UNTOUCHED_SETTINGS.contains(name)));
        }
        let aurora = values(&machine(64 * GIB, 16), Flavour::Aurora, &defaults());
        assert!(aurora.iter().all(|(name, _)| !name.contains("wal") && !name.contains("check")));
    }

    #[test]
    fn a_setting_that_follows_another_is_not_made_smaller() {
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
        let mut now = defaults();
        now.remove("vacuum_cost_limit");
        let names: Vec<_> =
            propose(&size, Flavour::Plain, &now).into_iter().map(|it| it.name).collect();
        assert!(!names.contains(&"autovacuum_vacuum_cost_limit"), "{names:?}");
        // Each worker keeps 512MB and does not get 1GB, the new maintenance_work_mem.
        let kept = ["512MB instead of -1 (maintenance_work_mem, 512MB)"];
        assert_eq!(proposed("524288", "2000"), kept);
    }
}
