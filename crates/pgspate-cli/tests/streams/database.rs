//! Source databases with logical replication, and the comparison of a source with a target.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use pgspate_embedded::testing::{self, TestDb};
use pgspate_embedded::{ThrowawayServer, silent};

use crate::run::{ask, session};
use crate::workload::{WorkloadPhase, schema};

const CONF: &str = "wal_level = logical\nmax_wal_senders = 60\nmax_replication_slots = 60\n\
                    timezone = 'UTC'\n";

/// Returns the source server of all tests of the process. Slots need `wal_level = logical`, which
/// the other test servers do not set.
pub(crate) fn server() -> &'static ThrowawayServer {
    static SERVER: OnceLock<ThrowawayServer> = OnceLock::new();
    SERVER.get_or_init(|| {
        let started = testing::builder().conf(CONF).start(&silent);
        started.unwrap_or_else(|error| panic!("{}", error.chain()))
    })
}

/// A database of the source server.
pub(crate) struct WorkloadSource {
    pub(crate) name: String,
}

impl WorkloadSource {
    /// Creates a database with the tables of the workload.
    pub(crate) fn new() -> WorkloadSource {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("source_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        ask(&server().dsn(), &format!("create database {name} template template0"));
        let source = WorkloadSource { name };
        ask(&source.dsn(), &schema());
        source
    }

    pub(crate) fn dsn(&self) -> String {
        server().dsn_for(&self.name)
    }

    /// Runs the transactions of a workload's phase.
    pub(crate) fn run_transactions(&self, phase: &WorkloadPhase) {
        let (runtime, client) = session(&self.dsn());
        for transaction in &phase.transactions {
            if let Err(error) = runtime.block_on(client.batch_execute(&transaction.sql)) {
                // Deferred constraints may refuse the whole transaction.
                assert!(!transaction.must_succeed, "{error:?}: {}", transaction.sql);
                runtime.block_on(client.batch_execute("rollback")).unwrap();
            }
        }
    }
}

impl Drop for WorkloadSource {
    fn drop(&mut self) {
        let slots = "select count(pg_drop_replication_slot(slot_name)) \
                     from pg_replication_slots where database = current_database() and not active";
        let _ = crate::run::try_ask(&self.dsn(), slots);
        let drop = format!("drop database {} with (force)", self.name);
        let _ = crate::run::try_ask(&server().dsn(), &drop);
    }
}

/// Returns the differing rows of two databases, compared by the columns that the target has.
pub(crate) fn differences(source: &str, target: &TestDb) -> Vec<String> {
    let columns = "select c.relname, quote_ident(c.relname), \
                          string_agg(quote_ident(attname), ', ' order by attname) \
                   from pg_class c join pg_attribute on attrelid = c.oid \
                   where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') \
                   and attnum > 0 and not attisdropped group by c.oid order by 1";
    let mut found = Vec::new();
    for row in target.query(columns) {
        let [Some(name), Some(table), Some(columns)] = &row[..] else { continue };
        let sql = format!(
            "select coalesce(string_agg(r, E'\\n' order by r collate \"C\"), '') \
             from (select row({columns})::text from {table}) t(r)"
        );
        let theirs = ask(source, &sql);
        let ours = ask(&target.dsn(), &sql);
        if theirs != ours {
            found.push(format!("{name} ({columns})\n{}", line_differences(&theirs, &ours)));
        }
    }
    found
}

/// Returns a few of the lines that only one of the texts has.
pub(crate) fn line_differences(theirs: &str, ours: &str) -> String {
    let only = |of: &str, other: &str, sign: &str| {
        let mut rest: Vec<&str> = other.lines().collect();
        let mut lines = Vec::new();
        for line in of.lines() {
            match rest.iter().position(|known| *known == line) {
                Some(at) => drop(rest.swap_remove(at)),
                None => lines.push(format!("{sign} {}", clip_line(line))),
            }
        }
        lines.truncate(4);
        lines.join("\n")
    };
    format!("{}\n{}", only(theirs, ours, "source"), only(ours, theirs, "target"))
}

/// Returns the line, with the middle cut out if the line is very long.
fn clip_line(line: &str) -> String {
    let chars: Vec<char> = line.chars().collect();
    if chars.len() < 700 {
        return line.to_owned();
    }
    let ends = |part: &[char]| part.iter().collect::<String>();
    format!("{} … {}", ends(&chars[..500]), ends(&chars[chars.len() - 150..]))
}
