//! Proposes settings for a bulk load, applies them, and puts the old values back.
//!
//! Proposals follow from the machine's size and the kind of server; each has a reason and a risk.
//! No setting is ever made smaller. The old value of a setting is recorded in the ledger before the
//! setting is changed, so that it can be put back after any crash. Settings that make data unsafe
//! or stop vacuum are never changed: fsync, full_page_writes, synchronous_commit and autovacuum.

mod apply;
mod emit;
mod machine;
mod rights;
mod server;
mod settings;
mod undo;

use serde::Serialize;

pub use apply::{TuneOutcome, apply, outstanding, revert};
pub use emit::{EmitFormat, emit};
pub use machine::ServerMachine;
pub(crate) use server::{MARKER, TuneMarker, read_marker};

use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::RecordedChange;
use pgspate_target::measure::server_version;
use pgspate_target::server::Flavour;

/// All settings that `tune` can change.
pub const TUNED_SETTINGS: [&str; 9] = [
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

/// Settings that `tune` never changes.
pub const UNTOUCHED_SETTINGS: [&str; 4] =
    ["fsync", "full_page_writes", "autovacuum", "synchronous_commit"];

/// A setting that would make a bulk load faster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SettingProposal {
    /// The setting's name.
    pub name: &'static str,
    /// The current value with its unit; for -1 also the setting that then counts, and its value.
    pub now: String,
    /// The proposed value, as SQL takes it.
    pub value: String,
    /// The proposed value as a plain number in the server's unit, or as a word.
    pub bare_value: String,
    /// Whether the value takes effect only after a restart.
    pub needs_restart: bool,
    /// Why the value makes a load faster.
    pub reason: &'static str,
    /// What the value costs or endangers.
    pub risk: &'static str,
}

/// The proposals for a server.
#[derive(Debug, Clone, Serialize)]
pub struct TuneAdvice {
    /// The kind of PostgreSQL: plain, a provider's, or with an extension such as Citus.
    pub flavour: Flavour,
    /// The major version.
    pub major: u32,
    /// The machine that the proposals are made for.
    pub machine: ServerMachine,
    /// The settings to change; empty if all are suitable.
    pub proposals: Vec<SettingProposal>,
    /// Settings of which the session has a value of its own, and the server's value cannot be read.
    /// For them, and for those that follow them, nothing is proposed.
    pub unseen: Vec<&'static str>,
    /// Settings that an earlier `tune` has changed and not put back.
    pub outstanding: Vec<String>,
}

/// Proposes settings. Memory and CPUs of the server's machine are found out if they are not given.
///
/// # Errors
/// [`ErrorKind::Server`] if the server's settings cannot be read.
pub async fn advise(
    connection: &Connection,
    memory_bytes: Option<u64>,
    cpus: Option<u32>,
) -> Result<TuneAdvice> {
    let client = &connection.client;
    let flavour = Flavour::detect(client).await;
    let (now, unseen) = server::read_server_settings(client).await?;
    let is_here = flavour.has_alter_system() && ServerMachine::is_here(connection).await;
    let machine = ServerMachine::find(memory_bytes, cpus, is_here, flavour, &now);
    let proposals = settings::propose(&machine, flavour, &now);
    Ok(TuneAdvice {
        flavour,
        major: server_version(client).await / 10_000,
        machine,
        proposals,
        unseen,
        // An unreadable ledger is an error only for `apply` and `revert`.
        outstanding: outstanding(connection).await.unwrap_or_default(),
    })
}

/// Returns the settings that the `apply` of the marker has changed, each once.
pub(crate) fn changed_settings(marker: &TuneMarker, changes: &[RecordedChange]) -> Vec<String> {
    let mut names: Vec<String> = Vec::with_capacity(changes.len());
    for change in changes.iter().filter(|change| marker.has(change)) {
        if !names.contains(&change.object) {
            names.push(change.object.clone());
        }
    }
    names
}

fn no_alter_system(flavour: Flavour) -> Error {
    Error::new(ErrorKind::Plan, format!("{} has no ALTER SYSTEM", flavour.name())).hint(
        "Print the settings with `--emit rds` or `--emit terraform`, and apply them with the \
         provider's tools.",
    )
}
