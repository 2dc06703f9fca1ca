//! Streams of changes, applied to tables through temporary tables, exactly once.
//!
//! Events become, per key and column by column, what is left of them; deletes, updates and inserts
//! then run as one transaction with the position in the stream: no event is lost or doubled.

#[cfg(test)]
mod alike_tests;
mod batch;
mod canon;
pub mod decode;
mod event;
mod facts;
mod feed;
mod fold;
#[cfg(test)]
mod fold_tests;
mod inputs;
mod kafka;
mod lines;
mod log;
mod names;
mod open;
mod order;
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

pub use decode::Format;
pub use event::{Event, Name, Op, Position, Row, Value};
pub use feed::AtEnd;
pub use plan::{Plan, PlanTable, plan};
pub use report::{Counts, Report};
pub use route::UnknownColumns;
pub use run::{Apply, Options, prepare};
pub use slot::Copied;
pub use watch::{Lag, Progress, Watch};
