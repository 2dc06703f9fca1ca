//! Streams of changes, applied to tables through temporary tables, exactly once.
//!
//! - `inputs.rs` gives records of files; slots and topics are in `pgspate-replication`.
//! - `route/` finds the target's table of each event.
//! - `batch/` gathers events, and folds them by key and column by column to what is left of them.
//! - `write/` writes a batch: deletes, updates and inserts.
//!
//! A batch and its position in the stream are one transaction, so that no event is lost or doubled.
//! `run.rs` ties these together.

mod backfill;
mod batch;
mod inputs;
mod open;
mod options;
mod origin;
mod plan;
mod report;
mod route;
mod run;
mod watch;
mod write;

pub use backfill::CopiedTable;
pub use options::{AtEnd, ApplyOptions};
pub use pgspate_events::{ChangeEvent, EventFormat, SourceTable, ChangeKind, EventOrigin, EventRow, EventValue, decode};
pub use pgspate_replication::Lag;
pub use plan::{ApplyPlan, ApplyPlanTable, plan};
pub use report::ApplyReport;
pub use route::UnknownColumns;
pub use run::{Apply, prepare};
pub use watch::{ApplyProgress, ApplyWatch};
pub use write::ApplyCounts;
