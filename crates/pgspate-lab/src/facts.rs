//! Facts about the machine, the server and its settings, stored with each trial.
//!
//! Nothing here names a person, an address or a path.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use pgspate::Result;
use pgspate::target::connect::Connection;
use serde::{Deserialize, Serialize};

/// The machine and the settings of a trial.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialFacts {
    /// The machine that the lab ran on.
    pub machine: Machine,
    /// Whether the server ran on this machine, too.
    pub is_local: bool,
    /// Server settings that differ from PostgreSQL's defaults.
    pub settings: BTreeMap<String, String>,
}

/// A machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's model name.
    pub cpu: String,
    /// Processors that the lab may use.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The operating system and its version.
    pub kernel: String,
    /// File system and device that the server's data is on, where that is known.
    pub storage: String,
}

impl Machine {
    /// Describes this machine; `folder` is on the disk of the server's data.
    pub fn here(folder: Option<&Path>) -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpu = field(&read("/proc/cpuinfo"), "model name");
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let memory = memory.trim_end_matches("kB").trim().parse::<u64>().unwrap_or_default();
        let kernel = format!(
            "{} {}",
            read("/proc/sys/kernel/ostype").trim(),
            read("/proc/sys/kernel/osrelease").trim()
        );
        Machine {
            cpu,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory << 10,
            kernel: kernel.trim().to_owned(),
            storage: folder.map(storage).unwrap_or_default(),
        }
    }
}

fn field(text: &str, name: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let value = line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim());
    value.unwrap_or_default().to_owned()
}

/// Returns file system and device, as in `ext4 on vda`. The kind of disk is left out: virtual disks
/// report it wrongly.
pub(crate) fn storage(folder: &Path) -> String {
    let Ok(facts) = fs::metadata(folder) else { return String::new() };
    let device = format!("{}:{}", rustix::fs::major(facts.dev()), rustix::fs::minor(facts.dev()));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let kind = mounts.lines().find_map(|line| file_system(line, &device)).unwrap_or_default();
    let block = Path::new("/sys/dev/block").join(&device);
    let name = fs::canonicalize(&block).ok();
    let name = name.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy());
    match name {
        Some(name) => format!("{kind} on {name}"),
        None => kind,
    }
}

/// Returns a warning if the file system is in memory: many experiments measure waits for the disk.
pub(crate) fn in_memory_warning(storage: &str) -> Option<&'static str> {
    matches!(storage.split(' ').next(), Some("tmpfs" | "ramfs")).then_some(
        "The servers' data was in memory, where waiting for the disk costs nothing: set TMPDIR \
         to a folder on a disk.",
    )
}

/// Returns the file system of a line of mountinfo, if the line is of this device.
fn file_system(line: &str, device: &str) -> Option<String> {
    let (mount, kind) = line.split_once(" - ")?;
    let is_it = mount.split(' ').nth(2) == Some(device);
    is_it.then(|| kind.split(' ').next().unwrap_or_default().to_owned())
}

/// Reads the settings that differ from the defaults. Folders, ports, logs and locales are left out:
/// they do not affect speed.
const SETTINGS: &str = "\
select name, current_setting(name)
from pg_settings
where source not in ('default', 'override', 'client', 'session', 'environment variable')
  and setting is distinct from boot_val
  and name !~ '(file|_directory|_directories|_addresses|_command|_conninfo)$'
  and name !~ '^(log_|lc_)' and lower(name) not in (
      'port', 'timezone', 'datestyle', 'application_name', 'default_text_search_config',
      'client_encoding', 'cluster_name')
order by name";

/// Returns the server's settings that differ from PostgreSQL's defaults.
pub(crate) async fn settings(connection: &Connection) -> Result<BTreeMap<String, String>> {
    let rows = connection.client.query(SETTINGS, &[]).await;
    let rows = rows.map_err(|error| connection.explain("could not read the settings", error))?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Returns the time of the server's clock, as in `2026-11-21T21:40:00Z`.
pub(crate) async fn now(connection: &Connection) -> Result<String> {
    let sql = "select to_char(clock_timestamp() at time zone 'UTC', \
               'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')";
    let row = connection.client.query_one(sql, &[]).await;
    let row =
        row.map_err(|error| connection.explain("could not read the server's clock", error))?;
    Ok(row.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_described() {
        let machine = Machine::here(Some(&std::env::temp_dir()));
        assert!(machine.cores >= 1);
        if cfg!(target_os = "linux") {
            assert!(machine.memory_bytes > 1 << 20);
            assert!(machine.kernel.starts_with("Linux "), "{}", machine.kernel);
        }
    }

    #[test]
    fn a_mount_is_known_by_its_device() {
        let line = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw";
        assert_eq!(file_system(line, "254:0").as_deref(), Some("ext4"));
        assert_eq!(file_system(line, "254:1"), None);
        assert_eq!(field("model name\t: A B\nx: y", "model name"), "A B");
        let kinds =
            ["tmpfs", "ramfs", "ext4 on vda", ""].map(|kind| in_memory_warning(kind).is_some());
        assert_eq!(kinds, [true, true, false, false]);
    }
}
