//! Measures the disk under the server's data directory, if the server is on this machine.
//!
//! A local address may be the end of a tunnel, and a directory of the same name may belong to
//! another server. So the server counts as local only if the backend of this session is a process
//! of this machine. The kernel counts the I/O of all processes that reached the disk.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::tune::ServerMachine;
use pgspate_target::TypedQuery;
use pgspate_target::connect::Connection;

const DISKSTATS: &str = "/proc/diskstats";
/// The sector size of `/proc/diskstats`, whatever the size of the disk's own sectors.
const SECTOR_BYTES: u64 = 512;

/// The disk of the server's data directory, and its counters at the first reading.
pub(super) struct ServerDisk {
    data_directory: PathBuf,
    /// The device number and its counters; `None` if the kernel has no counters of that device.
    before: Option<((u64, u64), DiskCounters)>,
    first_read: Instant,
}

/// A disk's counters since the machine was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DiskCounters {
    operations: u64,
    bytes: u64,
    /// Milliseconds multiplied by the number of I/Os that were waiting or running.
    weighted_millis: u64,
}

/// A disk's average load between two readings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct DiskTraffic {
    /// I/Os that were waiting or running, on average.
    pub(super) queue: f64,
    /// I/Os a second, after the kernel merged adjacent ones.
    pub(super) iops: f64,
    /// Bytes a second.
    pub(super) bytes: f64,
}

impl ServerDisk {
    /// Finds the server's disk and reads its counters. Returns `None` if the server is on another
    /// machine, or the role may not see `data_directory`.
    pub(super) async fn find(connection: &Connection) -> Option<ServerDisk> {
        if !ServerMachine::is_here(connection).await {
            return None;
        }
        let sql = "select current_setting('data_directory', true)";
        let row = connection.client.fetch_one(sql, &[]).await.ok()?;
        let data_directory = PathBuf::from(row.get::<_, Option<String>>(0)?);
        let device = device_of(&data_directory)?;
        let before = read_counters(device).map(|counters| (device, counters));
        Some(ServerDisk { data_directory, before, first_read: Instant::now() })
    }

    /// Returns the disk's average load since the first reading.
    pub(super) fn traffic(&self) -> Option<DiskTraffic> {
        let (device, before) = self.before?;
        let now = read_counters(device)?;
        let seconds = self.first_read.elapsed().as_secs_f64().max(0.001);
        let per_second = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        Some(DiskTraffic {
            queue: per_second(now.weighted_millis, before.weighted_millis) / 1000.0,
            iops: per_second(now.operations, before.operations),
            bytes: per_second(now.bytes, before.bytes),
        })
    }

    /// Returns the server's data directory.
    pub(super) fn data_directory(&self) -> &Path {
        &self.data_directory
    }
}

/// Returns the bytes that an ordinary user can still write on the file system of a folder.
pub(super) fn free_bytes(folder: &Path) -> Option<u64> {
    let file_system = rustix::fs::statvfs(folder).ok()?;
    Some(file_system.f_bavail.saturating_mul(file_system.f_frsize))
}

/// Returns the major and minor number of a folder's device, unpacked as Linux packs them.
fn device_of(folder: &Path) -> Option<(u64, u64)> {
    let number = fs::metadata(folder).ok()?.dev();
    let major = (number >> 8) & 0xfff | (number >> 32) & !0xfff;
    let minor = number & 0xff | (number >> 12) & !0xff & 0xffff_ffff;
    Some((major, minor))
}

fn read_counters(device: (u64, u64)) -> Option<DiskCounters> {
    parse_diskstats(&fs::read_to_string(DISKSTATS).ok()?, device)
}

/// Finds a device's line in `/proc/diskstats`. After the device name come reads, merged reads,
/// sectors read and milliseconds; the same four for writes; then I/Os running, milliseconds with
/// any I/O, and milliseconds multiplied by I/Os.
fn parse_diskstats(table: &str, device: (u64, u64)) -> Option<DiskCounters> {
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let mut number = || words.next()?.parse::<u64>().ok();
        (Some(device.0) == number() && Some(device.1) == number()).then_some(())?;
        let numbers: Vec<u64> = words.skip(1).map_while(|word| word.parse().ok()).collect();
        Some(DiskCounters {
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
    fn counters_are_read_from_the_line_of_the_device() {
        let table = "   8       0 sda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n \
                     259       1 nvme0n1p1 10 0 80 5 20 0 160 9 0 12 777 0 0 0 0\n";
        let nvme = DiskCounters { operations: 30, bytes: 240 * 512, weighted_millis: 777 };
        assert_eq!(parse_diskstats(table, (259, 1)), Some(nvme));
        let sda = DiskCounters { operations: 6, bytes: 10 * 512, weighted_millis: 11 };
        assert_eq!(parse_diskstats(table, (8, 0)), Some(sda));
        assert_eq!(parse_diskstats(table, (8, 1)), None);
    }
}
