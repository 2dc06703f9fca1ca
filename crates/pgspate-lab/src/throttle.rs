//! A limit on the I/Os of a server's processes, like that of a cloud volume.
//!
//! It uses Linux control groups, so it needs root and a controller for block devices. Reads and
//! writes have a limit each. With version 1 of control groups, later writes of the kernel's threads
//! are not limited. Dropping [`ActiveThrottle`] removes the limit.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The limit to apply.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Throttle {
    /// Reads per second, and writes per second.
    pub iops: f64,
    /// Bytes per second, for reads and for writes.
    pub bytes_per_second: f64,
}

/// A limit that holds until this is dropped.
#[derive(Debug)]
pub struct ActiveThrottle {
    folder: PathBuf,
}

const PREFIX: &str = "pgspate-lab-";

impl Throttle {
    /// Limits a postmaster with all its current and later processes, on the disk of `data`.
    ///
    /// # Errors
    /// The reason why this machine cannot apply a limit.
    pub fn apply(&self, postmaster: i32, data: &Path) -> Result<ActiveThrottle, String> {
        let device = whole_disk(data)?;
        let (root, version) = controller()
            .ok_or("I/O limits need Linux, root, and a control group for block devices")?;
        remove_left_over(&root);
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let nth = COUNTER.fetch_add(1, Ordering::Relaxed);
        let folder = root.join(format!("{PREFIX}{}-{nth}", std::process::id()));
        fs::create_dir(&folder)
            .map_err(|error| format!("could not create a control group: {error}"))?;
        let throttled = ActiveThrottle { folder };
        for (file, line) in self.lines(&device, version) {
            let written = fs::write(throttled.folder.join(file), line);
            written.map_err(|error| format!("the limit was refused: {error}"))?;
        }
        // A process that starts meanwhile inherits the group, or is found in the second pass.
        for _ in 0..2 {
            for pid in family(postmaster) {
                // A process that has ended meanwhile needs no limit.
                let _ = fs::write(throttled.folder.join("cgroup.procs"), pid.to_string());
            }
        }
        let inside = fs::read_to_string(throttled.folder.join("cgroup.procs")).unwrap_or_default();
        match inside.lines().any(|line| line.trim() == postmaster.to_string()) {
            true => Ok(throttled),
            false => Err("could not move the server's processes into the control group".to_owned()),
        }
    }

    fn lines(&self, device: &str, version: u32) -> Vec<(&'static str, String)> {
        let (iops, bytes) = (self.iops.max(1.0) as u64, self.bytes_per_second.max(1.0) as u64);
        match version {
            1 => vec![
                ("blkio.throttle.read_iops_device", format!("{device} {iops}")),
                ("blkio.throttle.write_iops_device", format!("{device} {iops}")),
                ("blkio.throttle.read_bps_device", format!("{device} {bytes}")),
                ("blkio.throttle.write_bps_device", format!("{device} {bytes}")),
            ],
            _ => {
                let limits = format!("riops={iops} wiops={iops} rbps={bytes} wbps={bytes}");
                vec![("io.max", format!("{device} {limits}"))]
            }
        }
    }
}

impl Drop for ActiveThrottle {
    fn drop(&mut self) {
        let procs = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
        if let Some(parent) = self.folder.parent() {
            for pid in procs.lines() {
                let _ = fs::write(parent.join("cgroup.procs"), pid);
            }
        }
        // A group that is still in use is removed when the next one is made.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Returns the folder for control groups with block device limits, and their version.
fn controller() -> Option<(PathBuf, u32)> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?, fields.next()?))
    });
    for (place, kind, options) in mounts {
        let place = PathBuf::from(place);
        if kind == "cgroup" && options.split(',').any(|option| option == "blkio") {
            return Some((place, 1));
        }
        let controllers = fs::read_to_string(place.join("cgroup.controllers"));
        if kind == "cgroup2" && controllers.unwrap_or_default().split(' ').any(|it| it == "io") {
            let _ = fs::write(place.join("cgroup.subtree_control"), "+io");
            return Some((place, 2));
        }
    }
    None
}

/// Removes the groups of killed runs. A group with processes cannot be removed.
fn remove_left_over(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Returns the disk's device number, as in `254:0`, also for a partition.
fn whole_disk(path: &Path) -> Result<String, String> {
    let facts = fs::metadata(path).map_err(|error| error.to_string())?;
    let (major, minor) = (rustix::fs::major(facts.dev()), rustix::fs::minor(facts.dev()));
    let block = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let block = fs::canonicalize(block)
        .map_err(|_| "the server's data is not on a disk of this machine".to_owned())?;
    let disk = match block.join("partition").exists() {
        true => block.parent().map(Path::to_owned).unwrap_or(block),
        false => block,
    };
    let device = fs::read_to_string(disk.join("dev")).map_err(|error| error.to_string())?;
    Ok(device.trim().to_owned())
}

fn family(postmaster: i32) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_child = |pid: &i32| crate::probe::parent_of(*pid) == Some(postmaster);
    [postmaster].into_iter().chain(pids.filter(is_child)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_as_each_version_reads_them() {
        let throttle = Throttle { iops: 750.0, bytes_per_second: 262_144_000.0 };
        let first = throttle.lines("254:0", 1);
        assert_eq!(first.len(), 4);
        assert_eq!(first[1], ("blkio.throttle.write_iops_device", "254:0 750".to_owned()));
        let second = throttle.lines("254:0", 2);
        assert_eq!(second[0].1, "254:0 riops=750 wiops=750 rbps=262144000 wbps=262144000");
    }

    #[test]
    fn a_child_process_is_found() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let found = family(std::process::id() as i32);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!cfg!(target_os = "linux") || found.contains(&(child.id() as i32)));
    }
}
