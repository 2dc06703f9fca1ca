//! The change event: one change of one row, into which every format is decoded.
//!
//! Values are text that PostgreSQL's input functions read; no number becomes floating point on the
//! way. A column that an event does not give is absent. Absent is not NULL.

use std::sync::Arc;

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// A row is inserted. When a stream is read again, the target may have the row already.
    Insert,
    /// Columns of a row change. The key changes too if [`ChangeEvent::old`] has another key.
    Update,
    /// A row is deleted.
    Delete,
    /// All rows of the table are deleted.
    Truncate,
    /// A row that existed when the stream began. The target may have the row already.
    Snapshot,
}

impl ChangeKind {
    /// Returns the name of the kind in messages.
    pub fn name(self) -> &'static str {
        match self {
            ChangeKind::Insert => "insert",
            ChangeKind::Update => "update",
            ChangeKind::Delete => "delete",
            ChangeKind::Truncate => "truncate",
            ChangeKind::Snapshot => "snapshot row",
        }
    }
}

/// A table's name in the source.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceTable {
    /// The schema, or the database if the source has no schemas.
    pub schema: Option<String>,
    /// The name of the table.
    pub table: String,
}

/// A column's value in an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventValue {
    /// The event does not give the column, which keeps its value.
    Absent,
    /// NULL.
    Null,
    /// A value, as the input function of the column's type reads it.
    Text(Box<str>),
}

impl EventValue {
    /// Estimates the memory that the value takes, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        size_of::<EventValue>()
            + match self {
                EventValue::Text(text) => text.len(),
                EventValue::Null | EventValue::Absent => 0,
            }
    }
}

/// A row image of an event: columns and their values, in the same order.
///
/// Events of a table share the list of names. Equal pointers mean equal columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRow {
    /// The columns' names, as the source spells them.
    pub columns: Arc<[Box<str>]>,
    /// The columns' values.
    pub values: Vec<EventValue>,
}

/// The place of an event in the source: transaction and count.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventOrigin {
    /// The place as the source writes it, such as an LSN or a file's name and line.
    pub source: Box<str>,
    /// The source's transaction, if the events name it.
    pub transaction: Option<Box<str>>,
    /// The event's number in the stream, from 0. The number is the same each time the stream is
    /// read.
    pub ordinal: u64,
}

/// A change of one row, or a truncate of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeEvent {
    /// The table whose row changes.
    pub table: Arc<SourceTable>,
    /// The kind of change.
    pub op: ChangeKind,
    /// The row after the change: for an insert, an update and a snapshot row.
    pub new: Option<EventRow>,
    /// The row before the change, as far as the source gives it. A delete gives the key at least;
    /// an update may give nothing. With `replica identity full` the source gives the whole row.
    pub old: Option<EventRow>,
    /// The columns that identify a row, if the source names them. If not, the target's primary key
    /// does.
    pub key: Option<Arc<[Box<str>]>>,
    /// The event's place in the source.
    pub origin: EventOrigin,
    /// Whether a commit may follow: the event ends a transaction of the source, or the source names
    /// no transactions.
    pub ends_transaction: bool,
}

impl ChangeEvent {
    /// Returns an event without key and origin, after which a commit may follow.
    pub(crate) fn of(
        table: Arc<SourceTable>,
        op: ChangeKind,
        old: Option<EventRow>,
        new: Option<EventRow>,
    ) -> ChangeEvent {
        let (key, origin) = (None, EventOrigin::default());
        ChangeEvent { table, op, new, old, key, origin, ends_transaction: true }
    }

    /// Estimates the memory that the event takes, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        let rows = [&self.new, &self.old].into_iter().flatten();
        let values = rows.flat_map(|row| &row.values).map(EventValue::held_bytes);
        size_of::<ChangeEvent>() + values.sum::<usize>()
    }
}
