//! Chooses whether rows go straight into the shards of a table of Citus, or through the
//! coordinator.
//!
//! Straight is chosen only if the shards then have the rows that the coordinator would have put
//! there. Everything else keeps the coordinator's way, with the reason in the plan.

use std::fmt;

use super::{InputFacts, LoadPlan, PlanRequest};
use crate::format::EncodeMode;
use pgspate_base::numbers::counted;
use pgspate_target::shards::ShardedTable;
use pgspate_target::{PgType, TargetTable, TypeKind, UnloggedExtent};

/// Below this many stored bytes, opening the sessions with the nodes takes longer than it saves.
const COORDINATOR_BYTES_MAX: u64 = 1 << 20;

/// Types below this oid have the same oid on all servers.
const BUILT_IN_BELOW: u32 = 10_000;

/// How rows reach the shards of a table.
#[derive(Debug, Clone)]
pub enum Routing {
    /// The coordinator routes each row, for this reason.
    ByCoordinator(String),
    /// pgspate routes each row by the distribution column, which has this position among the
    /// columns that are written.
    ByPgspate {
        /// The shards.
        table: ShardedTable,
        /// The position of the distribution column.
        field: usize,
    },
}

impl fmt::Display for Routing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Routing::ByCoordinator(reason) => write!(f, "by the coordinator: {reason}"),
            Routing::ByPgspate { table, .. } => write!(
                f,
                "by pgspate, straight into {} on {}, by column \"{}\"",
                counted(table.shards.len() as u64, "shard"),
                counted(table.nodes.len() as u64, "node"),
                table.column
            ),
        }
    }
}

/// Chooses how rows reach the shards; `None` if the table has no shards. All other choices of
/// `plan` must be made already.
pub(super) fn choose_routing(
    table: &TargetTable,
    plan: &LoadPlan,
    input: &InputFacts,
    request: &PlanRequest,
) -> Option<Routing> {
    let sharded = match request.shards.as_ref()? {
        Ok(sharded) => sharded,
        Err(reason) => return Some(Routing::ByCoordinator(reason.clone())),
    };
    if let Some(reason) = obstacle(table, plan, input, request) {
        return Some(Routing::ByCoordinator(reason));
    }
    let position = plan.rows.columns.iter().position(|column| column.name == sharded.column);
    Some(match position {
        Some(field) => Routing::ByPgspate { table: sharded.clone(), field },
        None => Routing::ByCoordinator(format!("the input lacks column \"{}\"", sharded.column)),
    })
}

/// Returns why rows may not go straight into shards, if there is a reason.
fn obstacle(
    table: &TargetTable,
    plan: &LoadPlan,
    input: &InputFacts,
    request: &PlanRequest,
) -> Option<String> {
    let because = |reason: &str| Some(reason.to_owned());
    if !plan.ledger {
        return because("without a ledger nothing decides for all nodes");
    }
    if plan.atomic_plan.is_some() || plan.one_statement {
        return because("everything is one transaction of the coordinator");
    }
    if request.rejects {
        return because("rows are set aside");
    }
    if input.is_stream {
        return because("the input can be read only once");
    }
    if input.stored_bytes.is_none_or(|bytes| bytes < COORDINATOR_BYTES_MAX) {
        return because("the input is small, or its size is not known");
    }
    if plan.rows.mode == EncodeMode::Text {
        return because("the server must read the values");
    }
    if let Some(trigger) = table.triggers.first() {
        return Some(format!("trigger \"{}\"", trigger.name));
    }
    if let Some(key) = table.foreign_keys.iter().chain(&table.self_references).next() {
        return Some(format!("foreign key \"{key}\""));
    }
    if table.row_security || table.unlogged != UnloggedExtent::Nothing {
        return because("the table has row-level security, or is unlogged");
    }
    let other = plan.rows.columns.iter().find(|column| !is_built_in(&column.ty));
    if let Some(column) = other {
        return Some(format!("the type of column \"{}\" is not built in", column.name));
    }
    let is_written = |name: &str| plan.rows.columns.iter().any(|column| column.name == name);
    let mut omitted = table.columns.iter().filter(|column| !is_written(&column.name));
    let omitted = omitted.find(|column| column.has_default());
    omitted.map(|column| format!("the coordinator has the default of column \"{}\"", column.name))
}

/// Returns whether binary values of the type mean the same on every server.
fn is_built_in(ty: &PgType) -> bool {
    ty.oid < BUILT_IN_BELOW
        && match &ty.kind {
            TypeKind::Base | TypeKind::Range(_) => true,
            TypeKind::Array(element, _) => is_built_in(element),
            TypeKind::Enum | TypeKind::Domain(_) | TypeKind::Other => false,
        }
}
