//! Settings of a server for a bulk load, and their way back.
//!
//! What is proposed follows from the machine's size and the kind of server, each with its reason
//! and its risk; nothing is ever made smaller than it is. Whatever is changed is recorded in the
//! ledger before, so that it can be put back after whatever crash. What makes data unsafe or tables
//! rot is never touched: fsync, full_page_writes, and synchronous_commit and autovacuum for all.

mod apply;
mod emit;
mod machine;
mod rights;
mod server;
mod settings;
mod way_back;

use serde::Serialize;

pub use apply::{Applied, apply, outstanding, revert};
pub use emit::{Form, emit};
pub use machine::Machine;
pub(crate) use server::{MARKER, Mark, mark};

use crate::{Error, Kind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::Change;
use pgspate_target::measure::server_version;
use pgspate_target::server::Flavour;

/// All that `tune` ever changes.
pub const NAMES: [&str; 9] = [
    "max_wal_size",
    "checkpoint_timeout",
    "checkpoint_completion_target",
    "wal_compression",
    "wal_buffers",
    "maintenance_work_mem",
    "autovacuum_work_mem",
    "max_parallel_maintenance_workers",
    "autovacuum_vacuum_cost_limit",
];

/// These are never touched, whatever is asked.
pub const UNTOUCHED: [&str; 4] = ["fsync", "full_page_writes", "autovacuum", "synchronous_commit"];

/// A setting that would make a bulk load faster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Proposal {
    /// Its name.
    pub name: &'static str,
    /// Its value now, with its unit; behind -1 also what it then is.
    pub now: String,
    /// What it should be, as SQL takes it.
    pub value: String,
    /// The same as a bare number of the server's unit, or a word.
    pub bare_value: String,
    /// Whether it counts only after a restart.
    pub needs_restart: bool,
    /// Why it makes a load faster.
    pub reason: &'static str,
    /// What it costs or endangers meanwhile.
    pub risk: &'static str,
}

/// What is proposed for a server.
#[derive(Debug, Clone, Serialize)]
pub struct Advice {
    /// Which kind of PostgreSQL it is.
    pub flavour: Flavour,
    /// The major version.
    pub major: u32,
    /// The machine that it was made for.
    pub machine: Machine,
    /// The settings that should be others; empty if all are well.
    pub proposals: Vec<Proposal>,
    /// Settings that were changed by an earlier `tune` and not put back.
    pub outstanding: Vec<String>,
}

/// Proposes settings. `machine` is what is known of the server's machine; the rest is found out.
///
/// # Errors
/// When the server cannot be asked.
pub async fn advise(
    connection: &Connection,
    memory_bytes: Option<u64>,
    cpus: Option<u32>,
) -> Result<Advice> {
    let client = &connection.client;
    let flavour = Flavour::of(client).await;
    let now = pgspate_target::server::read(client).await?;
    let is_here = flavour.has_alter_system() && Machine::is_here(connection).await;
    let machine = Machine::find(memory_bytes, cpus, is_here, flavour, &now);
    let proposals = settings::propose(&machine, flavour, &now);
    Ok(Advice {
        flavour,
        major: server_version(client).await / 10_000,
        machine,
        proposals,
        // A ledger that cannot be read is apply's and revert's matter.
        outstanding: outstanding(connection).await.unwrap_or_default(),
    })
}

/// The settings that the marker's changes are of, each once.
pub(crate) fn names(mark: &Mark, changes: &[Change]) -> Vec<String> {
    let mut names: Vec<String> = Vec::with_capacity(changes.len());
    for change in changes.iter().filter(|change| mark.has(change)) {
        if !names.contains(&change.object) {
            names.push(change.object.clone());
        }
    }
    names
}

fn no_alter_system(flavour: Flavour) -> Error {
    Error::new(Kind::Plan, format!("{} has no ALTER SYSTEM", flavour.name())).hint(
        "Have the settings printed with `--emit rds` or `--emit terraform`, and apply them there.",
    )
}
