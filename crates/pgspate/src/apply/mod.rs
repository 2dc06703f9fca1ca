//! Streams of changes, applied to tables through temporary tables, exactly once.
//!
//! A source gives events, each with its position (`source/`). They are routed to tables of the
//! target (`route/`), gathered in batches and folded to what is left of them, per key and column by
//! column (`batch/`), and written (`write/`): deletes, updates and inserts run as one transaction
//! with the position in the stream, so that no event is lost or doubled. `run.rs` ties these
//! together.

mod backfill;
mod batch;
mod open;
mod options;
mod origin;
mod plan;
mod report;
mod route;
mod run;
mod source;
mod watch;
mod write;

pub use backfill::Copied;
pub use options::{AtEnd, Options};
pub use pgspate_events::{Event, Format, Name, Op, Position, Row, Value, decode};
pub use plan::{Plan, PlanTable, plan};
pub use report::Report;
pub use route::UnknownColumns;
pub use run::{Apply, prepare};
pub use source::{Lag, replication};
pub use watch::{Progress, Watch};
pub use write::Counts;
