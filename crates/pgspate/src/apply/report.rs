//! What was applied.

use std::sync::Arc;

use serde::Serialize;

use super::backfill::CopiedTable;
use super::route::{ApplyTable, circle};
use super::write::ApplyCounts;

/// What a run of `apply` did.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ApplyReport {
    /// The stream's name.
    pub stream: String,
    /// Events that had been applied before.
    pub events_before: u64,
    /// What this run did.
    #[serde(flatten)]
    pub counts: ApplyCounts,
    /// The tables, as SQL writes them.
    pub tables: Vec<String>,
    /// Up to where the stream is applied, in the source's words.
    pub position: String,
    /// Tables whose rows were copied before the stream began.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub copied: Vec<CopiedTable>,
    /// Batches that are committed and may have done more than is counted, as the server's answers
    /// were lost with a connection.
    pub uncounted: u64,
    /// Seconds from the first byte to the last commit.
    pub seconds: f64,
    /// It was stopped by a signal, after a whole batch.
    pub is_stopped: bool,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// What the user should know in the end.
pub(super) fn warnings(missing: u64, uncounted: u64, tables: &[Arc<ApplyTable>]) -> Vec<String> {
    let mut warnings = Vec::new();
    if missing > 0 {
        warnings.push(format!(
            "{missing} updates or deletes found no row: the tables were not as the stream takes \
             them to be"
        ));
    }
    if uncounted > 0 {
        warnings.push(format!(
            "{uncounted} {} committed, but answers that say what was done were lost: rows may be \
             in the tables, or missing, that are not in the counts",
            if uncounted == 1 { "batch was" } else { "batches were" }
        ));
    }
    if let Some(facts) = circle(&tables.iter().map(|it| &**it).collect::<Vec<_>>()) {
        warnings.push(format!(
            "foreign keys lead from {} in a circle: where no order of statements will do, events \
             are applied in smaller steps; a deferrable key would spare that",
            facts.table.sql_name
        ));
    }
    warnings
}
