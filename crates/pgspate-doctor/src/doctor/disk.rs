//! The disk under the server's data, where that is this machine's.
//!
//! An address of this machine may be the end of a tunnel, and a folder of the same name may be
//! another server's: only a server whose process for this session is found here is taken to be
//! here. Everybody's work on that disk is counted, as far as it reached it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::tune::Machine;
use pgspate_target::Ask;
use pgspate_target::connect::Connection;

const DISKS: &str = "/proc/diskstats";
/// What Linux calls a sector there, whatever the disk's are.
const SECTOR_BYTES: u64 = 512;

/// The disk, and what it had done when it was looked at first.
pub(super) struct Disk {
    folder: PathBuf,
    /// Its numbers; none where the folder is not on a disk of its own.
    before: Option<((u64, u64), Counted)>,
    looked: Instant,
}

/// What a disk has done since the machine was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counted {
    operations: u64,
    bytes: u64,
    /// Milliseconds times I/Os that waited or were under way.
    weighted_millis: u64,
}

/// What a disk did meanwhile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Traffic {
    /// I/Os that waited or were under way, on average.
    pub(super) queue: f64,
    /// I/Os a second, merged as the disk got them.
    pub(super) iops: f64,
    /// Bytes a second.
    pub(super) bytes: f64,
}

impl Disk {
    /// Nothing where the server is elsewhere, or the role may not know its folder.
    pub(super) async fn of(connection: &Connection) -> Option<Disk> {
        if !Machine::is_here(connection).await {
            return None;
        }
        let sql = "select current_setting('data_directory', true)";
        let row = connection.client.ask_one(sql, &[]).await.ok()?;
        let folder = PathBuf::from(row.get::<_, Option<String>>(0)?);
        let device = device_of(&folder)?;
        let before = read(device).map(|counted| (device, counted));
        Some(Disk { folder, before, looked: Instant::now() })
    }

    /// What it did since then.
    pub(super) fn traffic(&self) -> Option<Traffic> {
        let (device, before) = self.before?;
        let now = read(device)?;
        let seconds = self.looked.elapsed().as_secs_f64().max(0.001);
        let per_second = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        Some(Traffic {
            queue: per_second(now.weighted_millis, before.weighted_millis) / 1000.0,
            iops: per_second(now.operations, before.operations),
            bytes: per_second(now.bytes, before.bytes),
        })
    }

    /// The folder of the server's data.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Bytes that are free where a folder is, for those who are not root.
pub(super) fn free_bytes(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

/// As Linux packs its two numbers.
fn device_of(folder: &Path) -> Option<(u64, u64)> {
    let number = fs::metadata(folder).ok()?.dev();
    let major = (number >> 8) & 0xfff | (number >> 32) & !0xfff;
    let minor = number & 0xff | (number >> 12) & !0xff & 0xffff_ffff;
    Some((major, minor))
}

fn read(device: (u64, u64)) -> Option<Counted> {
    counted(&fs::read_to_string(DISKS).ok()?, device)
}

/// Of the numbers behind the name: reads, merged reads, sectors read, milliseconds; the same of
/// writes; I/Os under way, milliseconds with any, milliseconds times I/Os.
fn counted(table: &str, device: (u64, u64)) -> Option<Counted> {
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let mut number = || words.next()?.parse::<u64>().ok();
        (Some(device.0) == number() && Some(device.1) == number()).then_some(())?;
        let numbers: Vec<u64> = words.skip(1).map_while(|word| word.parse().ok()).collect();
        Some(Counted {
            operations: numbers.first()? + numbers.get(4)?,
            bytes: (numbers.get(2)? + numbers.get(6)?) * SECTOR_BYTES,
            weighted_millis: *numbers.get(10)?,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_read_from_its_columns() {
        let table = "   8       0 sda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n \
                     259       1 nvme0n1p1 10 0 80 5 20 0 160 9 0 12 777 0 0 0 0\n";
        let nvme = Counted { operations: 30, bytes: 240 * 512, weighted_millis: 777 };
        assert_eq!(counted(table, (259, 1)), Some(nvme));
        let sda = Counted { operations: 6, bytes: 10 * 512, weighted_millis: 11 };
        assert_eq!(counted(table, (8, 0)), Some(sda));
        assert_eq!(counted(table, (8, 1)), None);
    }
}
