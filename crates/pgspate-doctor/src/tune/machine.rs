//! Finds out memory and CPUs of the server's machine, as far as possible from the client.

use serde::Serialize;

use pgspate_target::TypedQuery;
use pgspate_target::connect::Connection;
use pgspate_target::server::{Flavour, ServerSettings};

/// Assumed if nothing is known; so little that any server has it.
const MEMORY_ASSUMED: u64 = 4 << 30;
const CPUS_ASSUMED: u32 = 2;
/// The default of `shared_buffers`, which does not depend on the machine.
const SHARED_BUFFERS_DEFAULT: u64 = 128 << 20;

/// Memory and CPUs of the server's machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServerMachine {
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Number of CPUs.
    pub cpus: u32,
    /// Where the memory size comes from.
    pub memory_from: &'static str,
    /// Where the number of CPUs comes from.
    pub cpus_from: &'static str,
}

impl ServerMachine {
    /// Returns whether the server is on this machine. A local address does not prove that: it may
    /// be the end of a tunnel, a proxy or a container. So the session's backend must be a process
    /// here.
    pub(crate) async fn is_here(connection: &Connection) -> bool {
        if !connection.is_local() {
            return false;
        }
        // One query for both: behind a pooler, each query may reach another session.
        let sql = "select pg_backend_pid(), current_database()::text";
        let Ok(row) = connection.client.fetch_one(sql, &[]).await else { return false };
        let file = format!("/proc/{}/cmdline", row.get::<_, i32>(0));
        let title = std::fs::read(file).unwrap_or_default();
        is_session(&String::from_utf8_lossy(&title), row.get(1))
    }

    /// Determines memory and CPUs: the given values; otherwise those of this machine, if the server
    /// is on it; otherwise an estimate of memory from `shared_buffers`; otherwise small defaults.
    pub(super) fn find(
        memory_bytes: Option<u64>,
        cpus: Option<u32>,
        is_here: bool,
        flavour: Flavour,
        settings: &ServerSettings,
    ) -> ServerMachine {
        let here = || is_here.then(memory_here).flatten();
        let (memory_bytes, memory_from) = match memory_bytes {
            Some(bytes) => (bytes, "as given"),
            None => match (here(), estimate_from_shared_buffers(flavour, settings)) {
                (Some(bytes), _) => (bytes, "this machine's"),
                (None, Some(bytes)) => (bytes, "estimated from shared_buffers"),
                (None, None) => (MEMORY_ASSUMED, "assumed; set it with `--memory`"),
            },
        };
        let cores = || std::thread::available_parallelism().ok();
        let cores = is_here.then(cores).flatten().and_then(|it| u32::try_from(it.get()).ok());
        let (cpus, cpus_from) = match (cpus, cores) {
            (Some(cpus), _) => (cpus, "as given"),
            (None, Some(cpus)) => (cpus, "this machine's"),
            (None, None) => (CPUS_ASSUMED, "assumed; set it with `--cpus`"),
        };
        ServerMachine { memory_bytes, cpus, memory_from, cpus_from }
    }
}

/// Returns whether a process title is that of a session with the database, such as
/// `postgres: joe sales [local] idle`.
fn is_session(title: &str, database: &str) -> bool {
    title.starts_with("postgres: ") && title.contains(&format!(" {database} "))
}

/// Estimates memory from `shared_buffers`, which is usually a quarter of it; on Aurora three
/// quarters.
fn estimate_from_shared_buffers(flavour: Flavour, settings: &ServerSettings) -> Option<u64> {
    let cache = settings.get("shared_buffers")?.bytes()?;
    match flavour {
        _ if cache <= SHARED_BUFFERS_DEFAULT => None,
        Flavour::Aurora => Some(cache / 3 * 4),
        _ => Some(cache * 4),
    }
}

/// Returns the memory of this machine, or the limit of this container.
fn memory_here() -> Option<u64> {
    let limit = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit = limit.and_then(|text| text.trim().parse::<u64>().ok());
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let all = line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? << 10;
    Some(all.min(limit.unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_title_of_a_session_is_accepted() {
        assert!(is_session("postgres: joe sales [local] idle\0", "sales"));
        assert!(is_session("postgres: 15/main: joe sales 127.0.0.1(50432) SELECT", "sales"));
        assert!(!is_session("postgres: joe other [local] idle", "sales"));
        assert!(!is_session("postgres: checkpointer ", "sales"));
        assert!(!is_session("/usr/bin/sales --sales", "sales"));
        assert!(!is_session("", "sales"));
    }
}
