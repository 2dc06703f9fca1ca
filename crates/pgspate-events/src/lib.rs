//! Change events: what a stream says of rows, and what is left of it.
//!
//! - [`decode`]: records of Debezium, wal2json, Maxwell, Canal, DMS and pgspate's own format, as
//!   [`ChangeEvent`]s. A record that could mean two things is an error, never a guess.
//! - [`log`]: the events of a batch, by tables and columns of the target.
//! - [`mod@fold`]: what is left of each row of a batch, by its key and column by column.
//! - [`canon`]: values of keys, so spelled that equal ones are equal bytes.
//!
//! All of it is computed from bytes: no file is read here, and no server is asked. What the target
//! knows is passed in.

#[cfg(test)]
mod alike_tests;
pub mod canon;
pub mod decode;
mod event;
pub mod fold;
#[cfg(test)]
mod fold_tests;
pub mod log;
mod event_place;

pub use decode::EventFormat;
pub use event::{ChangeEvent, SourceTable, ChangeKind, EventOrigin, EventRow, EventValue};
pub use event_place::{EventPlace, Lsn};

pub(crate) use pgspate_base::{Error, ErrorKind, Result};
