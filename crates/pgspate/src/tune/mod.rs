//! Settings of a server for a bulk load, and their way back.
//!
//! What is proposed follows from the machine's size and the kind of server, each with its reason
//! and its risk; nothing is ever made smaller than it is. Whatever is changed is recorded in the
//! ledger before, so that it can be put back after whatever crash. What makes data unsafe or tables
//! rot is never touched: fsync, full_page_writes, and synchronous_commit and autovacuum for all.

mod apply;
mod emit;
mod machine;
mod settings;

use serde::Serialize;

pub use apply::{Applied, apply, outstanding, revert};
pub use emit::{Form, emit};
pub use machine::Machine;

use crate::Result;
use crate::doctor::Flavour;
use crate::doctor::scene;
use crate::measure::server_version;
use crate::target::connect::Connection;

/// What a change of a setting is called in the ledger.
pub(crate) const SETTING: &str = "setting";

/// These are never touched, whatever is asked.
pub const UNTOUCHED: [&str; 4] = ["fsync", "full_page_writes", "autovacuum", "synchronous_commit"];

/// A setting that would make a bulk load faster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Proposal {
    /// Its name.
    pub name: &'static str,
    /// Its value now, with its unit.
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
    let now = scene::settings(client).await?;
    let machine = Machine::find(memory_bytes, cpus, connection.is_local(), flavour, &now);
    let proposals = settings::propose(&machine, flavour, &now);
    // A ledger that cannot be read is apply's and revert's matter.
    let outstanding = crate::ledger::outstanding(client, None).await.unwrap_or_default();
    let outstanding = outstanding.into_iter().filter(|it| it.kind == SETTING);
    Ok(Advice {
        flavour,
        major: server_version(client).await / 10_000,
        machine,
        proposals,
        outstanding: outstanding.map(|it| it.object).collect(),
    })
}
