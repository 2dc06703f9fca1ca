//! Checks how long I/Os take, how many wait for the disk, and whether sessions must write pages.

use super::context::{CheckContext, CheckResult};
use super::disk::DiskTraffic;
use super::finding::{Check, Finding};
use pgspate_base::numbers::{counted, thousands};
use pgspate_target::measure::{MeasuredDifference, Measurement};
use pgspate_target::server::Flavour;

const TIMES: Check = Check {
    id: "io-times",
    question: "How long do reads, writes and WAL flushes take?",
    rule: "a page or a WAL flush usually takes less than 5 ms on network storage, and less than \
           1 ms on a local disk",
};
const WRITERS: Check = Check {
    id: "page-writes",
    question: "Do sessions have to write changed pages to make room for others?",
    rule: "PostgreSQL manual, background writer: the background writer and checkpoints should \
           write changed pages, so that sessions need not wait; pg_stat_io, context normal",
};

/// An average over fewer operations is not used.
const OPERATIONS_MIN: u64 = 100;
/// The least milliseconds for one I/O at which the finding is a note.
const NOTE_MILLIS: f64 = 5.0;
/// The least milliseconds for one I/O at which the finding is a warning.
const WARNING_MILLIS: f64 = 20.0;
/// The least average number of queued I/Os at which the disk is the limit, if each takes long.
const QUEUE_MIN: f64 = 16.0;
/// Fewer pages written by sessions are not reported.
const SESSION_WRITES_MIN: u64 = 1000;
/// Fewer pages a second written by sessions are not reported.
const SESSION_WRITES_PER_SECOND_MIN: f64 = 100.0;
/// The least share of pages written by sessions at which the finding is a note.
const SESSION_WRITES_SHARE: f64 = 0.25;
/// The proposed `bgwriter_lru_maxpages`: how many pages the background writer writes per round.
const LRU_MAXPAGES_PROPOSED: f64 = 1000.0;

/// A kind of I/O and its counters.
struct IoTimes {
    name: &'static str,
    operations: Option<u64>,
    millis: Option<u64>,
}

/// Returns the counters of four kinds of I/O.
fn io_times(it: &MeasuredDifference) -> [IoTimes; 4] {
    let (database, io, wal) = (&it.database, &it.io, &it.wal);
    let kind = |name, operations, millis| IoTimes { name, operations, millis };
    [
        kind("a page read", database.blocks_read, database.read_ms),
        kind("a page write", io.writes, io.write_ms),
        kind("a WAL write", wal.writes, wal.write_ms),
        kind("a WAL flush", wal.syncs, wal.sync_ms),
    ]
}

/// Checks the average times of I/Os. If the sample has too few I/Os of a kind, the average since
/// statistics began is used.
pub(super) async fn check(context: &CheckContext<'_>) -> CheckResult {
    let since_beginning = context.now.since(&zero_counters(&context.now));
    let mut found = vec![judge_times(&io_times(&context.sampled), &io_times(&since_beginning))];
    found.extend(context.traffic.and_then(judge_queue));
    found.push(check_session_writes(context));
    Ok(found)
}

/// Reports a disk queue that is long and slow: many I/Os at a time, each of which takes long.
fn judge_queue(disk: DiskTraffic) -> Option<Finding> {
    let millis = disk.queue / disk.iops.max(1.0) * 1000.0;
    if disk.queue < QUEUE_MIN || millis < NOTE_MILLIS {
        return None;
    }
    let text = format!(
        "{:.0} I/Os at a time were waiting or running on the server's disk, {millis:.0} ms each \
         (/proc/diskstats)",
        disk.queue
    );
    let finding = TIMES.note(text).number("queue", disk.queue).number("queue_ms", millis);
    Some(finding.advice(
        "The disk is the limit: fewer sessions would be as fast, and a faster volume would \
             help.",
    ))
}

/// Checks how many pages sessions had to write, and whether the background writer could do more.
fn check_session_writes(context: &CheckContext<'_>) -> Finding {
    if context.flavour == Flavour::Aurora {
        return WRITERS.ok("Aurora instances write no data pages");
    }
    let it = &context.sampled;
    let (Some(own), Some(all)) = (it.io_sessions.writes_normal, it.io.writes) else {
        let why =
            "only PostgreSQL 16 and later count these writes apart from writes that extend files";
        return WRITERS.ok(match it.checkpoints.buffers_by_sessions {
            Some(most) => format!("{} pages at most; {why}", thousands(most)),
            None => format!("unknown; {why}"),
        });
    };
    let per_second = own as f64 / it.seconds.max(0.1);
    let share = own as f64 / all.max(1) as f64;
    let text = format!(
        "sessions wrote {} of {} written pages themselves, {per_second:.0} a second",
        thousands(own),
        thousands(all)
    );
    if own < SESSION_WRITES_MIN
        || per_second < SESSION_WRITES_PER_SECOND_MIN
        || share < SESSION_WRITES_SHARE
    {
        return WRITERS.ok(text).count("pages", own);
    }
    let stopped = it.checkpoints.cleaning_stopped.unwrap_or_default();
    let finding = WRITERS
        .note(format!(
            "{text}; the background writer stopped at its limit {}",
            counted(stopped, "time")
        ))
        .count("pages", own)
        .number("share", share)
        .count("stopped", stopped)
        .weight(own as f64 * 8192.0)
        .advice("Raise shared_buffers if the machine has memory to spare.");
    let allowed = context.setting_number("bgwriter_lru_maxpages").unwrap_or(LRU_MAXPAGES_PROPOSED);
    if allowed >= LRU_MAXPAGES_PROPOSED || (stopped == 0 && allowed > 0.0) {
        return finding;
    }
    let set =
        context.statements_to_set("bgwriter_lru_maxpages", &format!("{LRU_MAXPAGES_PROPOSED:.0}"));
    set.into_iter().fold(finding, Finding::remedy)
}

/// Returns the same measurement with its I/O counters set to zero.
fn zero_counters(now: &Measurement) -> Measurement {
    let mut zero = now.clone();
    let clear = |counters: [&mut Option<u64>; 2]| {
        counters.into_iter().for_each(|it| *it = it.map(|_| 0));
    };
    clear([&mut zero.database.blocks_read, &mut zero.database.read_ms]);
    clear([&mut zero.io.writes, &mut zero.io.write_ms]);
    clear([&mut zero.wal.writes, &mut zero.wal.write_ms]);
    clear([&mut zero.wal.syncs, &mut zero.wal.sync_ms]);
    zero
}

/// Judges the average times of I/Os. If the sample has too few I/Os of a kind, the average since
/// statistics began is used.
fn judge_times(sampled: &[IoTimes; 4], since_beginning: &[IoTimes; 4]) -> Finding {
    let (mut slowest, mut averages) = (0.0_f64, Vec::new());
    for (sampled, since_beginning) in sampled.iter().zip(since_beginning) {
        let both = [(sampled, ""), (since_beginning, " since statistics began")];
        let average = both.into_iter().find_map(|(it, when)| {
            let operations = it.operations.filter(|it| *it >= OPERATIONS_MIN)?;
            Some((it.name, it.millis? as f64 / operations as f64, when))
        });
        if let Some((name, millis, when)) = average {
            slowest = slowest.max(millis);
            averages.push(format!("{name} takes {millis:.2} ms{when}"));
        }
    }
    if averages.is_empty() {
        return TIMES.ok(
            "not measured: track_io_timing and track_wal_io_timing are off, or there were too few \
             I/Os",
        );
    }
    let text = averages.join(", ");
    if slowest < NOTE_MILLIS {
        return TIMES.ok(text).number("slowest_ms", slowest);
    }
    TIMES
        .note_or_warning(slowest >= WARNING_MILLIS, text)
        .number("slowest_ms", slowest)
        .weight(slowest * 1e9)
        .advice(
            "The disk is slow, or its limit is reached. `pgspate doctor --storage` computes the \
             limits of a volume from its kind and size.",
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn a_sample_with_too_few_operations_is_not_used() {
        let kind = |name, operations, millis| IoTimes { name, operations, millis };
        let kinds = |reads, millis| {
            [
                kind("a read", Some(reads), millis),
                kind("a write", None, None),
                kind("w", None, None),
                kind("s", Some(1000), None),
            ]
        };
        let none = judge_times(&kinds(1000, None), &kinds(1000, None));
        assert_eq!(none.verdict, Verdict::Ok);
        let few = judge_times(&kinds(10, Some(1000)), &kinds(1000, Some(1000)));
        let ever = "a read takes 1.00 ms since statistics began";
        assert_eq!((few.verdict, few.evidence.as_str()), (Verdict::Ok, ever));
        assert_eq!(judge_times(&kinds(100, Some(700)), &kinds(1, None)).verdict, Verdict::Note);
        assert_eq!(judge_times(&kinds(100, Some(7000)), &kinds(1, None)).verdict, Verdict::Warning);
    }

    #[test]
    fn a_long_queue_counts_only_if_each_io_takes_long() {
        let disk = |queue, iops| DiskTraffic { queue, iops, bytes: 0.0 };
        assert!(judge_queue(disk(15.0, 100.0)).is_none());
        // A long queue does no harm if each I/O takes less than a millisecond.
        assert!(judge_queue(disk(32.0, 100_000.0)).is_none());
        let found = judge_queue(disk(32.0, 3200.0)).unwrap();
        assert_eq!((found.verdict, found.numbers["queue_ms"]), (Verdict::Note, 10.0));
    }
}
