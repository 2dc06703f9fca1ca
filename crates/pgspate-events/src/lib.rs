//! Change events: decoding them from every format, and folding them by key.
//!
//! - [`decode`]: turns records of Debezium, wal2json, Maxwell, Canal, DMS and pgspate's own format
//!   into [`ChangeEvent`]s. A record that could mean two things is an error, never a guess.
//! - [`log`]: the events of a batch, by tables and columns of the target.
//! - [`mod@fold`]: the outcome of a batch for each row, by its key and column by column.
//! - [`key_form`]: canonical forms of key values: equal values become equal bytes.
//!
//! Everything is computed from bytes. This crate reads no file and asks no server: the caller
//! passes in the types of the target's columns.

pub mod decode;
mod event;
mod event_place;
pub mod fold;
#[cfg(test)]
mod fold_tests;
pub mod key_form;
pub mod log;
#[cfg(test)]
mod shared_keys_tests;

pub use decode::EventFormat;
pub use event::{ChangeEvent, ChangeKind, EventOrigin, EventRow, EventValue, SourceTable};
pub use event_place::{EventPlace, Lsn};

pub(crate) use pgspate_base::{Error, ErrorKind, Result};
