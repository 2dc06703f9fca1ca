//! Decoders of change events, one for each format.
//!
//! A decoder does no I/O: a record's bytes and the types of the target's columns go in, events come
//! out. No record makes a decoder panic. A record without a clear meaning is an error, never a
//! guess.

mod byte_spellings;
mod canal;
mod debezium;
mod dms;
mod json;
mod json_values;
mod maxwell;
mod moments;
mod mysql_record;
pub mod own_format;
mod record_budget;
mod sniff;
mod source_tables;
mod wal2json;

use std::sync::Arc;

pub use canal::Canal;
pub use debezium::{Debezium, DebeziumOptions};
pub use dms::{Dms, DmsOptions};
pub use maxwell::Maxwell;
pub use moments::TimeUnit;
pub use sniff::{DecodeOptions, EventFormat, decoder_of, sniff};
pub use wal2json::Wal2json;

pub use json::has_no_value;

use super::event::{ChangeEvent, SourceTable};
use crate::Result;

/// The types of the target's columns. Formats that carry no types need them.
pub trait TargetTypes {
    /// Returns the type of a column as its `pg_type.typname`: `numeric`, `timestamptz`, `_int4`.
    /// Returns `None` if the target has no such column or table. The arguments are names in the
    /// source.
    fn type_of(&self, table: &SourceTable, column: &str) -> Option<Arc<str>>;

    /// Returns a number that changes when the types may have changed.
    fn version(&self) -> u64 {
        0
    }

    /// Returns whether the column's values are ignored, also values that cannot be read.
    fn ignores_column(&self, _table: &SourceTable, _column: &str) -> bool {
        false
    }
}

/// How a record groups events into transactions and pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RecordGrouping {
    /// The record groups nothing: [`ChangeEvent::ends_transaction`] tells where transactions end.
    #[default]
    ByEvents,
    /// The record begins a transaction.
    OpensTransaction,
    /// The record ends the transaction of the previous events.
    ClosesTransaction,
    /// The record's event is a delete, and the next record may insert the row under another key.
    MayBeFirstHalf,
    /// The record's event is an update of a key. The previous event was the delete of the same row:
    /// the caller must remove that delete.
    SecondHalf,
}

/// Turns records into events.
pub trait Decode: Send {
    /// Adds the events of a record to `events`: none (a heartbeat, a tombstone), one, or many. The
    /// decoder sets `transaction` of each event's origin; the caller sets `source` and `ordinal`.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Format`] for a record that is malformed or has no meaning in the format.
    /// The caller adds the record's place to the error. `events` is then unchanged.
    fn decode(
        &mut self,
        record: &[u8],
        types: &dyn TargetTypes,
        events: &mut Vec<ChangeEvent>,
    ) -> Result<()>;

    /// Returns how the record that was decoded last groups events.
    fn grouping(&self) -> RecordGrouping {
        RecordGrouping::ByEvents
    }

    /// Returns whether updates may omit unchanged columns without naming them.
    fn omits_unchanged(&self) -> bool {
        false
    }

    /// Decodes a message of a topic, as [`Decode::decode`] does a record. By default a message
    /// without a value has no events.
    ///
    /// # Errors
    /// The errors of [`Decode::decode`].
    fn decode_keyed(
        &mut self,
        record: &KeyedRecord<'_>,
        types: &dyn TargetTypes,
        events: &mut Vec<ChangeEvent>,
    ) -> Result<()> {
        match record.value {
            Some(value) => self.decode(value, types, events),
            None => Ok(()),
        }
    }
}

/// A message of a topic.
#[derive(Debug, Clone, Copy)]
pub struct KeyedRecord<'a> {
    /// The topic's name.
    pub topic: &'a str,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The value; `None` for a tombstone.
    pub value: Option<&'a [u8]>,
    /// The headers: names and values.
    pub headers: &'a [(Box<str>, Vec<u8>)],
    /// Whether all messages of the stream come in order. If false, only messages of the same key
    /// come in order.
    pub is_ordered: bool,
}
