//! Applies streams of change events to tables, each event exactly once.
//!
//! - `line_source.rs` reads events from files. `pgspate-replication` reads slots and topics.
//! - `route/` finds the target table of each event.
//! - `batch/` collects events and folds them, so that one row is left for each key.
//! - `write/` writes a batch with deletes, updates and inserts.
//! - `run.rs` connects the source, the batches and the writer.
//!
//! A batch and its position in the stream commit in one transaction. So no event is lost or applied
//! twice.

mod batch;
mod initial_copy;
mod line_source;
mod open_slot;
mod options;
mod plan;
mod report;
mod route;
mod run;
mod stream_origin;
mod watch;
mod write;

pub use initial_copy::CopiedTable;
pub use options::{ApplyOptions, AtEnd};
pub use pgspate_events::{
    ChangeEvent, ChangeKind, EventFormat, EventOrigin, EventRow, EventValue, SourceTable, decode,
};
pub use pgspate_replication::StreamLag;
pub use plan::{ApplyPlan, ApplyPlanTable, plan};
pub use report::ApplyReport;
pub use route::UnknownColumns;
pub use run::{Apply, prepare};
pub use watch::{ApplyProgress, ApplyWatch};
pub use write::ApplyCounts;
