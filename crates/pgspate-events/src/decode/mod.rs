//! Change events from the formats that people have them in.
//!
//! Decoders are pure: a record's bytes and the types of the target's columns go in, events come
//! out. Nothing a record holds makes one panic; what it cannot mean is an error, never a guess.

mod binary;
mod canal;
mod cast;
mod debezium;
mod dms;
mod json;
mod maxwell;
mod moments;
mod mysql;
pub mod own_format;
mod room;
mod shape;
mod sniff;
mod wal2json;

use std::sync::Arc;

pub use canal::Canal;
pub use debezium::{Debezium, DebeziumOptions};
pub use dms::{Dms, DmsOptions};
pub use maxwell::Maxwell;
pub use moments::TimeUnit;
pub use sniff::{DecodeOptions, EventFormat, of, sniff};
pub use wal2json::Wal2json;

pub use json::is_nothing;

use super::event::{ChangeEvent, SourceTable};
use crate::Result;

/// What decoders ask about the target: formats without types of their own need its types.
pub trait TargetTypes {
    /// The type of a column of the table that the source names so, as `pg_type.typname` has it
    /// (`numeric`, `timestamptz`, `_int4`); `None` when there is no such column or table.
    fn of(&self, table: &SourceTable, column: &str) -> Option<Arc<str>>;

    /// Whether what the column holds is passed over, whatever it is.
    fn ignores(&self, _table: &SourceTable, _column: &str) -> bool {
        false
    }
}

/// What a record says of transactions beside its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Grouping {
    /// Nothing: [`ChangeEvent::ends_transaction`] says it.
    #[default]
    AsEvents,
    /// A transaction begins with this record.
    Opens,
    /// The transaction of the events before ends with this record.
    Closes,
    /// Its event deletes a row that the next record may insert again under another key.
    MayPair,
    /// Its event says all of a change whose first half, a delete, was the event before: the delete
    /// is to be taken back.
    Pairs,
}

/// Turns records into events.
pub trait Decode: Send {
    /// Adds what a record says to `events`: none (a heartbeat, a tombstone), one, or many. The
    /// caller sets the positions' `source` and `ordinal`; the decoder sets `transaction`.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Format`] for a record that is malformed or means nothing here; its place
    /// is for the caller to add. `events` is then as it was.
    fn decode(&mut self, record: &[u8], types: &dyn TargetTypes, events: &mut Vec<ChangeEvent>) -> Result<()>;

    /// What the record that was decoded last says of transactions.
    fn grouping(&self) -> Grouping {
        Grouping::AsEvents
    }

    /// Whether an update leaves out columns that did not change without naming them.
    fn leaves_out(&self) -> bool {
        false
    }

    /// The same as [`Decode::decode`] for a message of a topic. One without a value says nothing by
    /// default.
    ///
    /// # Errors
    /// As [`Decode::decode`].
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
    /// The value; none of a tombstone.
    pub value: Option<&'a [u8]>,
    /// Headers by their names.
    pub headers: &'a [(Box<str>, Vec<u8>)],
    /// All messages of the stream come in their order; else only those of one key do.
    pub is_ordered: bool,
}
