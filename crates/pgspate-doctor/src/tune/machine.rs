//! How large the server's machine is, as far as that can be found out from here.

use serde::Serialize;

use pgspate_target::Ask;
use pgspate_target::connect::Connection;
use pgspate_target::server::{Flavour, Settings};

/// What is assumed where nothing is known: so little that it is never too much.
const MEMORY_ASSUMED: u64 = 4 << 30;
const CPUS_ASSUMED: u32 = 2;
/// What PostgreSQL has by itself, which says nothing of the machine.
const SHARED_BUFFERS_DEFAULT: u64 = 128 << 20;

/// The server's machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Processors.
    pub cpus: u32,
    /// How the memory was found out.
    pub memory_from: &'static str,
    /// How the processors were.
    pub cpus_from: &'static str,
}

impl Machine {
    /// Whether the server is on this machine. An address of this machine's says nothing: a tunnel,
    /// a proxy or a container may be behind it. So the session's own process has to be here.
    pub(crate) async fn is_here(connection: &Connection) -> bool {
        if !connection.is_local() {
            return false;
        }
        // Behind a pooler each question may be another session's.
        let sql = "select pg_backend_pid(), current_database()::text";
        let Ok(row) = connection.client.ask_one(sql, &[]).await else { return false };
        let file = format!("/proc/{}/cmdline", row.get::<_, i32>(0));
        let title = std::fs::read(file).unwrap_or_default();
        is_session(&String::from_utf8_lossy(&title), row.get(1))
    }

    /// What was said, else what this machine has if the server is on it, else what the size of the
    /// cache tells, else little.
    pub(super) fn find(
        memory_bytes: Option<u64>,
        cpus: Option<u32>,
        is_here: bool,
        flavour: Flavour,
        settings: &Settings,
    ) -> Machine {
        let here = || is_here.then(memory_here).flatten();
        let (memory_bytes, memory_from) = match memory_bytes {
            Some(bytes) => (bytes, "as said"),
            None => match (here(), by_cache(flavour, settings)) {
                (Some(bytes), _) => (bytes, "this machine's"),
                (None, Some(bytes)) => (bytes, "by shared_buffers"),
                (None, None) => (MEMORY_ASSUMED, "assumed; say --memory"),
            },
        };
        let cores = || std::thread::available_parallelism().ok();
        let cores = is_here.then(cores).flatten().and_then(|it| u32::try_from(it.get()).ok());
        let (cpus, cpus_from) = match (cpus, cores) {
            (Some(cpus), _) => (cpus, "as said"),
            (None, Some(cpus)) => (cpus, "this machine's"),
            (None, None) => (CPUS_ASSUMED, "assumed; say --cpus"),
        };
        Machine { memory_bytes, cpus, memory_from, cpus_from }
    }
}

/// Whether a process calls itself a session with that database: `postgres: joe sales [local] idle`.
fn is_session(title: &str, database: &str) -> bool {
    title.starts_with("postgres: ") && title.contains(&format!(" {database} "))
}

/// A quarter of the memory is the cache's, as a rule; three quarters on Aurora.
fn by_cache(flavour: Flavour, settings: &Settings) -> Option<u64> {
    let cache = settings.get("shared_buffers")?.bytes()?;
    match flavour {
        _ if cache <= SHARED_BUFFERS_DEFAULT => None,
        Flavour::Aurora => Some(cache / 3 * 4),
        _ => Some(cache * 4),
    }
}

/// What the machine has, or the container may use of it.
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
    fn a_process_of_the_same_number_is_not_the_session() {
        assert!(is_session("postgres: joe sales [local] idle\0", "sales"));
        assert!(is_session("postgres: 15/main: joe sales 127.0.0.1(50432) SELECT", "sales"));
        assert!(!is_session("postgres: joe other [local] idle", "sales"));
        assert!(!is_session("postgres: checkpointer ", "sales"));
        assert!(!is_session("/usr/bin/sales --sales", "sales"));
        assert!(!is_session("", "sales"));
    }
}
