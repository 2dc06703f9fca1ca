//! Streams of changes, applied to tables through temporary tables, exactly once.
//!
//! Events become, per key and column by column, what is left of them; deletes, updates and inserts
//! then run as one transaction with the position in the stream, so that no event is lost or
//! doubled.

pub mod decode;
mod event;
pub mod replication;

pub use event::{Event, Name, Op, Position, Row, Value};
