//! CPU time of the server's processes and I/O of its disk, by the operating system's counters.
//!
//! Every number is the difference of two readings, so nothing is lost between samples. The mean
//! length of the disk's queue is the growth of the time that requests spent in it. Missing counters
//! are left out.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use pgspate::Result;
use pgspate::target::connect::Connection;

use crate::experiment::{TrialOutcome, Unit};

/// The unit of times in `/proc/*/stat`, on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;
/// The unit of sizes in `/proc/diskstats`, on every device.
const SECTOR_BYTES: f64 = 512.0;

/// The postmaster and the disk to observe.
#[derive(Debug, Clone, Default)]
pub(crate) struct Probe {
    postmaster: Option<i32>,
    device: Option<(u32, u32)>,
}

/// The counters at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ProbeReading {
    server_ticks: Option<f64>,
    client_ticks: Option<f64>,
    disk: Option<ProbedDiskCounters>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct ProbedDiskCounters {
    reads: f64,
    writes: f64,
    bytes: f64,
    busy_ms: f64,
    queue_ms: f64,
}

impl Probe {
    /// Observes the server with this postmaster, and the device of `folder`.
    pub(crate) fn new(postmaster: Option<i32>, folder: Option<&Path>) -> Probe {
        let device = folder.and_then(|folder| fs::metadata(folder).ok()).map(|facts| facts.dev());
        let device = device.map(|dev| (rustix::fs::major(dev), rustix::fs::minor(dev)));
        Probe { postmaster, device }
    }

    /// Reads the counters.
    pub(crate) fn read(&self) -> ProbeReading {
        let disks = fs::read_to_string("/proc/diskstats").unwrap_or_default();
        ProbeReading {
            server_ticks: self.postmaster.and_then(server_ticks),
            client_ticks: stat("self").map(|stat| stat.own),
            disk: self.device.and_then(|device| disk(&disks, device)),
        }
    }
}

impl ProbeReading {
    /// Adds the difference to an earlier reading, `seconds` ago.
    pub(crate) fn add_since(
        &self,
        before: &ProbeReading,
        seconds: f64,
        outcome: &mut TrialOutcome,
    ) {
        let grown = |now: Option<f64>, then: Option<f64>| Some((now? - then?).max(0.0));
        let cpu = |ticks: Option<f64>| ticks.map(|ticks| ticks / TICKS_PER_SECOND);
        let server = cpu(grown(self.server_ticks, before.server_ticks));
        let client = cpu(grown(self.client_ticks, before.client_ticks));
        outcome.number_if("server CPU", server, Unit::Seconds);
        outcome.number_if("client CPU", client, Unit::Seconds);
        let (Some(now), Some(then)) = (self.disk, before.disk) else { return };
        let millis = (seconds * 1000.0).max(1.0);
        outcome.number("disk reads", now.reads - then.reads, Unit::Count);
        outcome.number("disk writes", now.writes - then.writes, Unit::Count);
        outcome.number("disk bytes", now.bytes - then.bytes, Unit::Bytes);
        let busy = (now.busy_ms - then.busy_ms) / millis * 100.0;
        outcome.number("disk busy", busy.min(100.0), Unit::Percent);
        outcome.number("disk queue", (now.queue_ms - then.queue_ms) / millis, Unit::Plain);
    }
}

/// Readings at most, if processes keep ending meanwhile.
const CHECKS_MAX: usize = 50;

/// Returns the CPU time of the server's live and ended processes. A process that ends during the
/// reading would be missed, so it is repeated until none has ended.
fn server_ticks(postmaster: i32) -> Option<f64> {
    let name = postmaster.to_string();
    let mut own = stat(&name)?;
    for _ in 0..CHECKS_MAX {
        let children: f64 = children(postmaster)?;
        let after = stat(&name)?;
        if after.of_ended_children == own.of_ended_children {
            return Some(after.own + after.of_ended_children + children);
        }
        own = after;
    }
    None
}

/// Returns the CPU time of a server's live processes.
fn children(postmaster: i32) -> Option<f64> {
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let pids = pids.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let children = pids.filter_map(|pid| stat(&pid)).filter(|it| it.parent == postmaster);
    Some(children.map(|it| it.own).sum())
}

/// The tolerated difference in seconds between a backend's age and its process's age.
/// `backend_start` is set shortly after the process has started.
const AGE_SLACK: f64 = 5.0;

/// Returns the postmaster of a session, if the server runs on this machine. A server in a container
/// or behind a tunnel has a local address, too, but other process ids. So both processes must be
/// PostgreSQL's, and the backend must have the session's age.
pub(crate) async fn postmaster_of(connection: &Connection) -> Result<Option<i32>> {
    let sql = "select extract(epoch from clock_timestamp() - backend_start)::float8 \
               from pg_stat_activity where pid = pg_backend_pid()";
    let row = connection.client.query_opt(sql, &[]).await;
    let row = row.map_err(|error| connection.explain("could not read pg_stat_activity", error))?;
    let said = row.and_then(|row| row.get::<_, Option<f64>>(0));
    Ok(said.and_then(|said| confirm_postmaster(connection.backend_pid(), said)))
}

/// Returns the parent of a backend's process, if both are PostgreSQL's and the age is right.
fn confirm_postmaster(backend: i32, said: f64) -> Option<i32> {
    let process = stat(&backend.to_string())?;
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime: f64 = uptime.split(' ').next()?.parse().ok()?;
    let age = uptime - process.started / TICKS_PER_SECOND;
    let is_it = is_postgres(backend) && is_postgres(process.parent);
    (is_it && (age - said).abs() < AGE_SLACK).then_some(process.parent)
}

fn is_postgres(pid: i32) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    matches!(name.trim(), "postgres" | "postmaster")
}

/// Returns the CPU time that a process has used, in seconds.
pub(crate) fn cpu_seconds_of(pid: u32) -> Option<f64> {
    stat(&pid.to_string()).map(|stat| stat.own / TICKS_PER_SECOND)
}

/// Returns the parent of a process.
pub(crate) fn parent_of(pid: i32) -> Option<i32> {
    stat(&pid.to_string()).map(|stat| stat.parent)
}

#[derive(Debug, PartialEq)]
struct ProcessStat {
    parent: i32,
    own: f64,
    of_ended_children: f64,
    /// The start, in ticks after the machine's start.
    started: f64,
}

fn stat(pid: &str) -> Option<ProcessStat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses `/proc/PID/stat`, whose second field, the command, may have spaces and parentheses.
fn parse_stat(text: &str) -> Option<ProcessStat> {
    let (_, rest) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |nth: usize| fields.get(nth)?.parse::<f64>().ok();
    Some(ProcessStat {
        parent: fields.get(1)?.parse().ok()?,
        own: ticks(11)? + ticks(12)?,
        of_ended_children: ticks(13)? + ticks(14)?,
        started: ticks(19)?,
    })
}

fn disk(text: &str, device: (u32, u32)) -> Option<ProbedDiskCounters> {
    let line = text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |nth: usize| fields.get(nth)?.parse::<u32>().ok();
        (number(0)? == device.0 && number(1)? == device.1).then_some(fields)
    })?;
    let number = |nth: usize| line.get(nth)?.parse::<f64>().ok();
    Some(ProbedDiskCounters {
        reads: number(3)?,
        writes: number(7)?,
        bytes: (number(5)? + number(9)?) * SECTOR_BYTES,
        busy_ms: number(12)?,
        queue_ms: number(13)?,
    })
}

#[cfg(test)]
mod tests {
    use pgspate_embedded::testing;

    use super::*;

    #[test]
    fn processes_with_odd_names_are_read() {
        let fields = "S 7 1 1 0 -1 4194560 100 0 0 0 250 50 30 20 20 0 1 0 12 0 0";
        let stat = parse_stat(&format!("12 (a) b) {fields}")).unwrap();
        let expected =
            ProcessStat { parent: 7, own: 300.0, of_ended_children: 50.0, started: 12.0 };
        assert_eq!(stat, expected);
        assert_eq!(parse_stat("12 (a"), None);
    }

    #[test]
    fn only_a_backend_of_the_right_age_confirms_its_postmaster() {
        // This process is not PostgreSQL's.
        assert_eq!(confirm_postmaster(std::process::id() as i32, 0.0), None);
        let database = testing::database();
        // The checkpointer never ends, unlike sessions.
        let sql = "select pid from pg_stat_activity where backend_type = 'checkpointer'";
        let pid: i32 = database.query(sql)[0][0].as_deref().unwrap().parse().unwrap();
        let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
        let Some(uptime) = uptime.split(' ').next().and_then(|text| text.parse::<f64>().ok())
        else {
            return;
        };
        let age = uptime - stat(&pid.to_string()).unwrap().started / TICKS_PER_SECOND;
        assert_eq!(confirm_postmaster(pid, age), parent_of(pid));
        assert_eq!(confirm_postmaster(pid, age + 60.0), None);
    }

    #[test]
    fn a_disk_is_found_by_its_numbers() {
        let text = " 254 0 vda 10 1 80 5 20 2 160 7 0 30 40 0 0 0 0\n 253 0 zram0 1 0 0 0\n";
        let disk = disk(text, (254, 0)).unwrap();
        assert_eq!((disk.reads, disk.writes, disk.bytes), (10.0, 20.0, 240.0 * 512.0));
        assert_eq!((disk.busy_ms, disk.queue_ms), (30.0, 40.0));
        assert_eq!(super::disk(text, (8, 0)), None);
    }

    #[test]
    fn the_client_s_cpu_time_is_counted() {
        let own = Probe::new(None, None);
        let before = own.read();
        let mut outcome = TrialOutcome::default();
        own.read().add_since(&before, 1.0, &mut outcome);
        assert!(outcome.numbers.iter().all(|number| number.value >= 0.0));
        assert!(!outcome.numbers.iter().any(|number| number.name == "server CPU"));
        assert!(parent_of(std::process::id() as i32).is_none_or(|parent| parent >= 0));
        assert!(cpu_seconds_of(std::process::id()).is_none_or(|seconds| seconds >= 0.0));
    }
}
