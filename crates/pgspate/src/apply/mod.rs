//! Streams of changes, applied to tables through temporary tables, exactly once.
//!
//! Events become, per key and column by column, what is left of them; deletes, updates and inserts
//! then run as one transaction with the position in the stream: no event is lost or doubled.

mod batch;
mod facts;
mod feed;
mod inputs;
mod kafka;
mod lines;
mod names;
mod open;
mod order;
mod piece;
mod plan;
mod prepare;
pub mod replication;
mod report;
mod route;
mod run;
mod slot;
mod statements;
mod watch;
mod write;

pub use feed::AtEnd;
pub use pgspate_events::{Event, Format, Name, Op, Position, Row, Value, decode};
pub use plan::{Plan, PlanTable, plan};
pub use report::{Counts, Report};
pub use route::UnknownColumns;
pub use run::{Apply, Options, prepare};
pub use slot::Copied;
pub use watch::{Lag, Progress, Watch};
