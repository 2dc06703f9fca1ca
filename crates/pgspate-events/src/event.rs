//! One change of one row, as every format of change streams comes to be.
//!
//! Values are text as PostgreSQL's input functions take it: numbers are never made into floating
//! point on the way. A column that an event says nothing of is absent, which is not NULL.

use std::sync::Arc;

/// What a change does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// A row comes to be. It may be there already when a stream is read again.
    Insert,
    /// Columns of a row change; of its key too, when [`ChangeEvent::old`] has another one.
    Update,
    /// A row goes.
    Delete,
    /// All rows of the table go.
    Truncate,
    /// A row as it was when the stream began: an insert that may find its row there.
    Snapshot,
}

impl ChangeKind {
    /// What it is called in messages.
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

/// A table, as the source names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceTable {
    /// The schema; of sources that have databases only, the database.
    pub schema: Option<String>,
    /// The table.
    pub table: String,
}

/// What an event says of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventValue {
    /// Nothing: it stays as it is.
    Absent,
    /// It is NULL.
    Null,
    /// It is this, as the input function of its type reads it.
    Text(Box<str>),
}

impl EventValue {
    /// About how many bytes of memory it takes.
    pub(crate) fn held_bytes(&self) -> usize {
        size_of::<EventValue>()
            + match self {
                EventValue::Text(text) => text.len(),
                EventValue::Null | EventValue::Absent => 0,
            }
    }
}

/// Columns and what they hold, in the same order and of the same number.
///
/// The names are shared by the events of a table, so that equal pointers mean equal columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRow {
    /// The names, as the source spells them.
    pub columns: Arc<[Box<str>]>,
    /// What each of them holds.
    pub values: Vec<EventValue>,
}

/// Where an event stands in its stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventOrigin {
    /// The source's own word for it, such as an LSN or a file's name and line: for people.
    pub source: Box<str>,
    /// The transaction of the source, where events name it.
    pub transaction: Option<Box<str>>,
    /// Counts the events of the stream from 0; the same event has the same one whenever it is read.
    pub ordinal: u64,
}

/// A change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeEvent {
    /// Of which table.
    pub table: Arc<SourceTable>,
    /// What it does.
    pub op: ChangeKind,
    /// The row as it is after the change: of an insert, update and snapshot.
    pub new: Option<EventRow>,
    /// What is known of the row before the change: its key at least, of a delete; of an update only
    /// when the source tells it. With replica identity full the whole row.
    pub old: Option<EventRow>,
    /// The columns that identify a row, where the source names them; the target's primary key else.
    pub key: Option<Arc<[Box<str>]>>,
    /// Where it stands.
    pub position: EventOrigin,
    /// The transaction of the source ends with it, or the source has none: a commit may follow.
    pub ends_transaction: bool,
}

impl ChangeEvent {
    /// A change from the old row to the new one, after which a commit may follow. Nothing else is
    /// known of it.
    pub(crate) fn of(table: Arc<SourceTable>, op: ChangeKind, old: Option<EventRow>, new: Option<EventRow>) -> ChangeEvent {
        let (key, position) = (None, EventOrigin::default());
        ChangeEvent { table, op, new, old, key, position, ends_transaction: true }
    }

    /// About how many bytes of memory it takes.
    pub(crate) fn held_bytes(&self) -> usize {
        let rows = [&self.new, &self.old].into_iter().flatten();
        let values = rows.flat_map(|row| &row.values).map(EventValue::held_bytes);
        size_of::<ChangeEvent>() + values.sum::<usize>()
    }
}
