//! How long an I/O takes, and how many wait for the disk.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Instant;

use super::finding::{Check, Finding};
use super::scene::{Found, Scene};
use crate::measure::{Difference, Measurement};
use crate::target::connect::Connection;

const TIMES: Check = Check {
    id: "io-times",
    question: "How long does the disk take?",
    rule: "below 5 ms for a page or a WAL flush is usual for network storage, below 1 ms for a \
           local disk",
};

/// Fewer operations say nothing of the disk.
const OPERATIONS_MIN: u64 = 100;
/// Milliseconds that are worth a note, and a warning.
const MILLIS: (f64, f64) = (5.0, 20.0);
/// So many I/Os at a time mean that each waits for others.
const QUEUE_MIN: f64 = 16.0;

/// The disk under the server's data, where that is this machine's.
pub(super) struct Disk {
    device: (u64, u64),
    weighted_millis: u64,
    looked: Instant,
}

impl Disk {
    /// Nothing where the server is elsewhere, the role may not know its folder, or the folder is
    /// not on a disk of its own.
    pub(super) async fn of(connection: &Connection) -> Option<Disk> {
        if !connection.is_local() {
            return None;
        }
        let sql = "select current_setting('data_directory', true)";
        let row = connection.client.query_one(sql, &[]).await.ok()?;
        let folder: Option<String> = row.get(0);
        let number = fs::metadata(folder?).ok()?.dev();
        // As Linux packs them.
        let major = (number >> 8) & 0xfff | (number >> 32) & !0xfff;
        let minor = number & 0xff | (number >> 12) & !0xff & 0xffff_ffff;
        let device = (major, minor);
        let weighted_millis = weighted_millis(&fs::read_to_string(DISKS).ok()?, device)?;
        Some(Disk { device, weighted_millis, looked: Instant::now() })
    }

    /// I/Os that waited or were under way since then, on average.
    pub(super) fn queue(&self) -> Option<f64> {
        let now = weighted_millis(&fs::read_to_string(DISKS).ok()?, self.device)?;
        let millis = self.looked.elapsed().as_secs_f64() * 1000.0;
        Some(now.saturating_sub(self.weighted_millis) as f64 / millis.max(1.0))
    }
}

const DISKS: &str = "/proc/diskstats";

/// The eleventh number behind the name: milliseconds times I/Os.
fn weighted_millis(table: &str, device: (u64, u64)) -> Option<u64> {
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let mut number = || words.next()?.parse::<u64>().ok();
        (Some(device.0) == number() && Some(device.1) == number()).then_some(())?;
        words.nth(11)?.parse().ok()
    })
}

/// One kind of I/O: how many, how many milliseconds, and what takes it.
fn kinds(it: &Difference) -> [(&'static str, Option<u64>, Option<u64>); 4] {
    let database = &it.database;
    [
        ("a read", database.blocks_read, database.read_ms),
        ("a write", it.io.writes, it.io.write_ms),
        ("a WAL write", it.wal.writes, it.wal.write_ms),
        ("a WAL flush", it.wal.syncs, it.wal.sync_ms),
    ]
}

/// Times of I/Os while it was looked, or since statistics began where that were few.
pub(super) async fn check(scene: &Scene<'_>) -> Found {
    let since_ever = scene.now.since(&beginning(&scene.now));
    let mut found = vec![judge(&kinds(&scene.sampled), &kinds(&since_ever))];
    if let Some(queue) = scene.queue.filter(|queue| *queue >= QUEUE_MIN) {
        let text = format!("{queue:.0} I/Os waited for the server's disk or were under way");
        found.push(TIMES.note(text).number("queue", queue).advice(
            "The disk is the limit: fewer sessions lose nothing, and a faster volume gains.",
        ));
    }
    Ok(found)
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
        let taken = [meanwhile, ever].into_iter().find_map(|(name, operations, millis)| {
            let operations = operations.filter(|it| *it >= OPERATIONS_MIN)?;
            Some((*name, (*millis)? as f64 / operations as f64))
        });
        if let Some((name, millis)) = taken {
            slowest = slowest.max(millis);
            told.push(format!("{name} {millis:.2} ms"));
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
        assert_eq!((few.verdict, few.evidence.as_str()), (Verdict::Ok, "a read 1.00 ms"));
        assert_eq!(judge(&kinds(100, Some(700)), &kinds(1, None)).verdict, Verdict::Note);
        assert_eq!(judge(&kinds(100, Some(7000)), &kinds(1, None)).verdict, Verdict::Warning);
    }

    #[test]
    fn the_queue_is_read_from_its_column() {
        let table = "   8       0 sda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n \
                     259       1 nvme0n1p1 10 0 80 5 20 0 160 9 0 12 777 0 0 0 0\n";
        assert_eq!(weighted_millis(table, (259, 1)), Some(777));
        assert_eq!(weighted_millis(table, (8, 0)), Some(11));
        assert_eq!(weighted_millis(table, (8, 1)), None);
    }
}
