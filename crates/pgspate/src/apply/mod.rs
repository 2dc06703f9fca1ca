//! Streams of changes, applied to tables through temporary tables, exactly once.
//!
//! Events become, per key and column by column, what is left of them; deletes, updates and inserts
//! then run as one transaction with the position in the stream: no event is lost, none doubled.

pub mod decode;
mod event;

pub use event::{Event, Name, Op, Position, Row, Value};
