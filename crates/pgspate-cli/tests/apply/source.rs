//! A database with logical replication, which is the source of a stream.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use pgspate_embedded::{ThrowawayServer, silent, testing};

use crate::run::{ask, try_ask, wait_until};
use crate::support::LoadCase;
use crate::{Run, finish, spawn};

/// Settings that a source server needs beyond its defaults.
pub(crate) const CONF: &str = "wal_level = logical\nmax_wal_senders = 100\n\
                               max_replication_slots = 100\nmax_connections = 200\n\
                               wal_sender_timeout = 20s\ntimezone = 'UTC'\n";

/// The source server of all tests of the process. Slots need `wal_level = logical`, which the
/// other test servers do not set.
static SERVER: OnceLock<ThrowawayServer> = OnceLock::new();

/// A database of the source server.
pub(crate) struct PublishedDatabase {
    name: String,
}

impl PublishedDatabase {
    /// Creates a database and runs `sql` in it.
    pub(crate) fn new(sql: &str) -> PublishedDatabase {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("source_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        ask(&server().dsn(), &format!("create database {name} template template0"));
        let source = PublishedDatabase { name };
        source.run(sql);
        source
    }

    pub(crate) fn dsn(&self) -> String {
        server().dsn_for(&self.name)
    }

    /// Runs statements one by one. A semicolon at the end of a line ends a statement.
    pub(crate) fn run(&self, sql: &str) {
        for statement in sql.split(";\n").filter(|statement| !statement.trim().is_empty()) {
            ask(&self.dsn(), statement);
        }
    }

    pub(crate) fn value(&self, sql: &str) -> String {
        ask(&self.dsn(), sql)
    }

    /// Returns the URL of the slot. The slot's name is unique to this test.
    pub(crate) fn slot(&self) -> String {
        let slot = self.slot_name();
        format!("{}?slot={slot}&publication=p", server().tcp_dsn_for(&self.name))
    }

    /// Returns the database's name, which appears in messages of the server.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn slot_name(&self) -> String {
        format!("s_{}", self.name)
    }

    /// Waits until a session reads the slot.
    #[track_caller]
    pub(crate) fn wait_for_reader(&self) {
        let slot = self.slot_name();
        let reads = format!(
            "select count(*) from pg_replication_slots join pg_stat_replication \
             on pid = active_pid where slot_name = '{slot}' and state = 'streaming'"
        );
        wait_until("a session reads the slot", || self.value(&reads) == "1");
    }

    /// Returns the rows of a table as text, sorted, in one line.
    pub(crate) fn rows(&self, table: &str) -> String {
        let sql = format!("select string_agg(t::text, ' ' order by t::text) from {table} t");
        self.value(&sql)
    }
}

impl Drop for PublishedDatabase {
    fn drop(&mut self) {
        // A failed test may have left a session that reads the slot.
        let end = format!(
            "select pg_terminate_backend(active_pid) from pg_replication_slots \
             where database = '{0}' and active;
             select count(*) from (select pg_drop_replication_slot(slot_name) \
             from pg_replication_slots where database = '{0}' and not active) x;
             select count(*) = 0 from pg_replication_slots where database = '{0}'",
            self.name
        );
        // A reader may reconnect in between, and then the slot cannot be dropped.
        for _ in 0..100 {
            if try_ask(&server().dsn(), &end).is_ok_and(|is_clear| is_clear == "t") {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let dropped =
            try_ask(&server().dsn(), &format!("drop database {} with (force)", self.name));
        // A second panic would end the process before the first one is reported.
        if !std::thread::panicking() {
            dropped.unwrap();
        }
    }
}

fn server() -> &'static ThrowawayServer {
    SERVER.get_or_init(|| {
        let started = testing::builder().conf(CONF).start(&silent);
        started.unwrap_or_else(|error| panic!("{}", error.chain()))
    })
}

/// Starts `pgspate apply` of the slot with more arguments.
pub(crate) fn follow(
    source: &PublishedDatabase,
    case: &LoadCase,
    args: &str,
) -> std::process::Child {
    let mut command = crate::command(case, args);
    spawn(command.arg(source.slot()))
}

/// Runs `pgspate apply` of the slot to its end.
pub(crate) fn apply_slot(source: &PublishedDatabase, case: &LoadCase, args: &str) -> Run {
    finish(follow(source, case, args))
}

/// Runs `pgspate apply` of the slot, which must succeed. Returns the report.
#[track_caller]
pub(crate) fn apply_slot_and_report(
    source: &PublishedDatabase,
    case: &LoadCase,
    args: &str,
) -> serde_json::Value {
    let run = apply_slot(source, case, &format!("--quiet --json {args}"));
    assert_eq!(run.status, Some(0), "{}{}", run.stderr, run.stdout);
    serde_json::from_str(&run.stdout).unwrap()
}
