//! The report of a run of `apply`.

use std::sync::Arc;

use serde::Serialize;

use super::initial_copy::CopiedTable;
use super::route::{ApplyTable, find_reference_cycle};
use super::write::ApplyCounts;
use crate::numbers::counted;

/// The result of a run of `apply`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ApplyReport {
    /// The stream's name.
    pub stream: String,
    /// Events of the stream that earlier runs applied.
    pub events_before: u64,
    /// Counts of this run.
    #[serde(flatten)]
    pub counts: ApplyCounts,
    /// The target tables, quoted for SQL.
    pub tables: Vec<String>,
    /// The position in the source up to which the stream is applied.
    pub position: String,
    /// Tables whose rows were copied before the stream began.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub copied: Vec<CopiedTable>,
    /// Committed batches whose counts may be too low, because the server's replies were lost with a
    /// connection.
    pub uncounted: u64,
    /// Seconds from the first byte to the last commit.
    pub seconds: f64,
    /// Whether a signal stopped the run. The run stops between two batches.
    pub is_stopped: bool,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// Returns the warnings at the end of a run.
pub(super) fn warnings(
    counts: &ApplyCounts,
    uncounted: u64,
    tables: &[Arc<ApplyTable>],
) -> Vec<String> {
    let mut warnings = Vec::new();
    let missing = counts.missing;
    if missing > 0 {
        warnings.push(format!(
            "{missing} {} found no row: the target tables differ from what the stream expects",
            if missing == 1 { "update or delete" } else { "updates or deletes" }
        ));
    }
    if counts.changes_kept_out > 0 {
        let changes = counted(counts.changes_kept_out, "change");
        warnings.push(format!("triggers of the target tables kept out {changes}"));
    }
    if uncounted > 0 {
        warnings.push(format!(
            "the server's replies to {uncounted} committed {} were lost with a connection; the \
             counts of rows may be too low",
            if uncounted == 1 { "batch" } else { "batches" }
        ));
    }
    if let Some(facts) = find_reference_cycle(&tables.iter().map(|it| &**it).collect::<Vec<_>>()) {
        warnings.push(format!(
            "foreign keys form a cycle that includes {}: events that no order of statements can \
             write are applied in smaller steps; a deferrable foreign key would avoid that",
            facts.table.sql_name
        ));
    }
    warnings
}
