//! How long an I/O takes, how many wait for the disk, and who has to write pages.

use super::disk::Traffic;
use super::finding::{Check, Finding};
use super::scene::{Found, Scene};
use pgspate_base::numbers::thousands;
use pgspate_target::measure::{Difference, Measurement};
use pgspate_target::server::Flavour;

const TIMES: Check = Check {
    id: "io-times",
    question: "How long does the disk take?",
    rule: "below 5 ms for a page or a WAL flush is usual for network storage, below 1 ms for a \
           local disk",
};
const WRITERS: Check = Check {
    id: "page-writes",
    question: "Do sessions have to write changed pages to make room for others?",
    rule: "PostgreSQL manual, background writer: it and checkpoints should write them, so that \
           sessions need not wait; pg_stat_io, context normal",
};

/// Fewer operations say nothing of the disk.
const OPERATIONS_MIN: u64 = 100;
/// Milliseconds that are worth a note, and a warning.
const MILLIS: (f64, f64) = (5.0, 20.0);
/// So many I/Os at a time mean that each waits for others, where each takes long.
const QUEUE_MIN: f64 = 16.0;
/// Fewer pages, and fewer a second, keep nobody waiting.
const WRITES_MIN: (u64, f64) = (1000, 100.0);
/// Pages of sessions among all pages that are written, from which on it is worth a word.
const WRITES_SHARE: f64 = 0.25;
/// Pages that the background writer may write at once at most, where it may write more.
const CLEANED_MAX: f64 = 1000.0;

/// One kind of I/O: how many, how many milliseconds, and what takes it.
fn kinds(it: &Difference) -> [(&'static str, Option<u64>, Option<u64>); 4] {
    let database = &it.database;
    [
        ("a page read", database.blocks_read, database.read_ms),
        ("a write", it.io.writes, it.io.write_ms),
        ("a WAL write", it.wal.writes, it.wal.write_ms),
        ("a WAL flush", it.wal.syncs, it.wal.sync_ms),
    ]
}

/// Times of I/Os while it was looked, or since statistics began where that were few.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    let since_ever = scene.now.since(&beginning(&scene.now));
    let mut found = vec![judge(&kinds(&scene.sampled), &kinds(&since_ever))];
    found.extend(scene.traffic.and_then(queue));
    found.push(writers(scene));
    Ok(found)
}

/// I/Os that wait for each other: many at a time, each of which takes long.
fn queue(disk: Traffic) -> Option<Finding> {
    let millis = disk.queue / disk.iops.max(1.0) * 1000.0;
    if disk.queue < QUEUE_MIN || millis < MILLIS.0 {
        return None;
    }
    let text = format!(
        "{:.0} I/Os at a time waited for the server's disk or were under way, {millis:.0} ms each \
         (/proc/diskstats)",
        disk.queue
    );
    let finding = TIMES.note(text).number("queue", disk.queue).number("queue_ms", millis);
    Some(
        finding.advice(
            "The disk is the limit: fewer sessions lose nothing, and a faster volume gains.",
        ),
    )
}

/// What sessions had to write, and whether the background writer could have done more.
fn writers(scene: &Scene<'_>) -> Finding {
    if scene.flavour == Flavour::Aurora {
        return WRITERS.ok("Aurora writes no pages");
    }
    let it = &scene.sampled;
    let (Some(own), Some(all)) = (it.io_sessions.writes_normal, it.io.writes) else {
        let why = "from PostgreSQL 16 on the server tells them from pages by which files grow";
        return WRITERS.ok(match it.checkpoints.buffers_by_sessions {
            Some(most) => format!("{} at most; {why}", thousands(most)),
            None => format!("not known; {why}"),
        });
    };
    let per_second = own as f64 / it.seconds.max(0.1);
    let share = own as f64 / all.max(1) as f64;
    let text = format!(
        "{} of {} pages that were written meanwhile, {per_second:.0} a second",
        thousands(own),
        thousands(all)
    );
    if own < WRITES_MIN.0 || per_second < WRITES_MIN.1 || share < WRITES_SHARE {
        return WRITERS.ok(text).count("pages", own);
    }
    let stopped = it.checkpoints.cleaning_stopped.unwrap_or_default();
    let finding = WRITERS
        .note(format!("{text}; the background writer stopped {stopped} times at its limit"))
        .count("pages", own)
        .number("share", share)
        .count("stopped", stopped)
        .weighs(own as f64 * 8192.0)
        .advice("Raise shared_buffers where the machine has memory to spare.");
    let allowed = scene.setting_number("bgwriter_lru_maxpages").unwrap_or(CLEANED_MAX);
    if allowed >= CLEANED_MAX || (stopped == 0 && allowed > 0.0) {
        return finding;
    }
    let set = scene.set("bgwriter_lru_maxpages", &format!("{CLEANED_MAX:.0}"));
    set.into_iter().fold(finding, Finding::run)
}

/// Before anything was counted.
fn beginning(now: &Measurement) -> Measurement {
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

type Kind = (&'static str, Option<u64>, Option<u64>);

fn judge(meanwhile: &[Kind; 4], ever: &[Kind; 4]) -> Finding {
    let (mut slowest, mut told) = (0.0_f64, Vec::new());
    for (meanwhile, ever) in meanwhile.iter().zip(ever) {
        let both = [(meanwhile, ""), (ever, " since statistics began")];
        let taken = both.into_iter().find_map(|((name, operations, millis), when)| {
            let operations = operations.filter(|it| *it >= OPERATIONS_MIN)?;
            Some((*name, (*millis)? as f64 / operations as f64, when))
        });
        if let Some((name, millis, when)) = taken {
            slowest = slowest.max(millis);
            told.push(format!("{name} {millis:.2} ms{when}"));
        }
    }
    if told.is_empty() {
        return TIMES
            .ok("not taken: track_io_timing and track_wal_io_timing are off, or too little \
                         was done");
    }
    let text = told.join(", ");
    if slowest < MILLIS.0 {
        return TIMES.ok(text).number("slowest_ms", slowest);
    }
    TIMES
        .worse(slowest >= MILLIS.1, text)
        .number("slowest_ms", slowest)
        .weighs(slowest * 1e9)
        .advice(
            "The disk is slow, or its limit is reached: `--storage` with the volume's kind and \
                 size does the arithmetic.",
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn times_are_those_of_the_sample_if_it_has_enough() {
        let kinds = |reads, millis| {
            [
                ("a read", Some(reads), millis),
                ("a write", None, None),
                ("w", None, None),
                ("s", Some(1000), None),
            ]
        };
        let none = judge(&kinds(1000, None), &kinds(1000, None));
        assert_eq!(none.verdict, Verdict::Ok);
        let few = judge(&kinds(10, Some(1000)), &kinds(1000, Some(1000)));
        let ever = "a read 1.00 ms since statistics began";
        assert_eq!((few.verdict, few.evidence.as_str()), (Verdict::Ok, ever));
        assert_eq!(judge(&kinds(100, Some(700)), &kinds(1, None)).verdict, Verdict::Note);
        assert_eq!(judge(&kinds(100, Some(7000)), &kinds(1, None)).verdict, Verdict::Warning);
    }

    #[test]
    fn a_long_queue_counts_where_each_io_takes_long() {
        let disk = |queue, iops| Traffic { queue, iops, bytes: 0.0 };
        assert!(queue(disk(15.0, 100.0)).is_none());
        // Much at a time is no harm where each is done in less than a millisecond.
        assert!(queue(disk(32.0, 100_000.0)).is_none());
        let found = queue(disk(32.0, 3200.0)).unwrap();
        assert_eq!((found.verdict, found.numbers["queue_ms"]), (Verdict::Note, 10.0));
    }
}
