//! Decodes pgoutput, the messages that PostgreSQL's logical replication sends for a publication.
//!
//! A record is one message. Values have the spelling of their types' output functions. A value that
//! an update did not change may be omitted and is absent. The last event of a transaction is held
//! back until the commit message, so that it can be marked as the last event.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::EPOCH_SECS;
use super::message_bytes::MessageBytes;
use crate::{Error, ErrorKind, Result};
use pgspate_events::decode::{Decode, TargetTypes};
use pgspate_events::{
    ChangeEvent, ChangeKind, EventOrigin, EventRow, EventValue, Lsn, SourceTable,
};

/// Decodes messages of pgoutput, protocol versions 1 to 4, without streaming of open transactions.
#[derive(Debug)]
pub struct Pgoutput {
    relations: HashMap<u32, Relation>,
    transaction: Option<Box<str>>,
    /// The LSN of the open transaction's commit, as text.
    commit: Box<str>,
    /// The last event, which is held back until the next event or the commit.
    held: Option<ChangeEvent>,
    /// The time at which the open transaction was committed.
    committed: SystemTime,
    /// The end and commit time of the last whole transaction, until [`Pgoutput::take_end`].
    ended: Option<(Lsn, SystemTime)>,
}

/// A table as the server last described it.
#[derive(Debug)]
struct Relation {
    name: Arc<SourceTable>,
    columns: Arc<[Box<str>]>,
    /// For each column, whether it is part of the key.
    of_key: Vec<bool>,
    key: Option<Arc<[Box<str>]>>,
}

impl Default for Pgoutput {
    fn default() -> Pgoutput {
        Pgoutput::new()
    }
}

impl Pgoutput {
    /// Returns a decoder at the beginning of a session. In each session the server describes the
    /// tables again.
    pub fn new() -> Pgoutput {
        Pgoutput {
            relations: HashMap::new(),
            transaction: None,
            commit: Box::default(),
            held: None,
            committed: UNIX_EPOCH,
            ended: None,
        }
    }

    /// Returns whether a transaction has begun and not ended.
    pub fn is_inside(&self) -> bool {
        self.transaction.is_some()
    }

    /// Returns the end and the commit time of the last transaction that has ended since the last
    /// call. The time is of the server's clock. Once the transaction's events are committed on the
    /// target, everything up to its end may be confirmed.
    pub fn take_end(&mut self) -> Option<(Lsn, SystemTime)> {
        self.ended.take()
    }

    /// Decodes one message.
    fn message(
        &mut self,
        message: &mut MessageBytes<'_>,
        events: &mut Vec<ChangeEvent>,
    ) -> Result<()> {
        match message.byte()? {
            b'B' => {
                let commit = Lsn(message.u64()?);
                let micros = message.u64()?;
                let xid = message.u32()?;
                if self.is_inside() {
                    return Err(malformed("a transaction begins within another one"));
                }
                message.end()?;
                self.transaction = Some(xid.to_string().into());
                self.commit = commit.to_string().into();
                let since = Duration::from_secs(EPOCH_SECS) + Duration::from_micros(micros);
                self.committed = UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH);
            }
            b'C' => {
                message.byte()?;
                message.u64()?;
                let end = Lsn(message.u64()?);
                message.u64()?;
                message.end()?;
                if self.transaction.take().is_none() {
                    return Err(malformed("a transaction ends that has not begun"));
                }
                self.ended = Some((end, self.committed));
                if let Some(mut last) = self.held.take() {
                    last.ends_transaction = true;
                    events.push(last);
                }
            }
            b'R' => self.relation(message)?,
            b'I' | b'U' | b'D' => {
                let event = self.row(message)?;
                events.extend(self.held.replace(event));
            }
            b'T' => self.truncate(message, events)?,
            // The origin of a transaction, types, and messages of pg_logical_emit_message.
            b'O' | b'Y' | b'M' => {}
            b'S' | b'E' | b'c' | b'A' => {
                return Err(malformed("a transaction is streamed before it has ended"));
            }
            _ => return Err(malformed("unknown kind of message")),
        }
        Ok(())
    }

    /// Reads the description of a table.
    fn relation(&mut self, message: &mut MessageBytes<'_>) -> Result<()> {
        let oid = message.u32()?;
        // pgoutput sends an empty name for pg_catalog.
        let schema = match message.text()? {
            "" => "pg_catalog",
            schema => schema,
        };
        let table = message.text()?.to_owned();
        let identity = message.byte()?;
        let (mut columns, mut of_key) = (Vec::new(), Vec::new());
        for _ in 0..message.u16()? {
            of_key.push(message.byte()? & 1 == 1);
            columns.push(Box::<str>::from(message.text()?));
            message.u32()?;
            message.u32()?;
        }
        message.end()?;
        let named = columns.iter().zip(&of_key).filter(|(_, is)| **is);
        let key: Vec<_> = named.map(|(name, _)| name.clone()).collect();
        let name = SourceTable { schema: Some(schema.to_owned()), table };
        let relation = Relation {
            name: Arc::new(name),
            columns: columns.into(),
            of_key,
            // With replica identity full the server marks all columns as key columns.
            key: (identity != b'f' && !key.is_empty()).then(|| key.into()),
        };
        self.relations.insert(oid, relation);
        Ok(())
    }

    /// Reads an insert, update or delete.
    fn row(&mut self, message: &mut MessageBytes<'_>) -> Result<ChangeEvent> {
        let kind = message.tag();
        let relation = self.relation_of(message.u32()?)?;
        let (mut new, mut old) = (None, None);
        let mut part = message.byte()?;
        if kind != b'I' && matches!(part, b'K' | b'O') {
            let row = relation.tuple(message)?;
            old = Some(if part == b'K' { relation.key_of(row)? } else { row });
            part = if kind == b'U' { message.byte()? } else { 0 };
        }
        match (kind, part) {
            (b'I' | b'U', b'N') => new = Some(relation.tuple(message)?),
            (b'D', 0) => {}
            _ => return Err(malformed("unknown part of a change")),
        }
        message.end()?;
        if let (Some(new), Some(old)) = (&mut new, &old) {
            fill_from_old_row(new, old);
        }
        let op = match kind {
            b'I' => ChangeKind::Insert,
            b'U' => ChangeKind::Update,
            _ => ChangeKind::Delete,
        };
        Ok(self.event(relation, op, new, old))
    }

    fn truncate(
        &mut self,
        message: &mut MessageBytes<'_>,
        events: &mut Vec<ChangeEvent>,
    ) -> Result<()> {
        let count = message.u32()?;
        message.byte()?;
        let mut truncated = Vec::new();
        for _ in 0..count {
            let relation = self.relation_of(message.u32()?)?;
            truncated.push(self.event(relation, ChangeKind::Truncate, None, None));
        }
        message.end()?;
        for event in truncated {
            events.extend(self.held.replace(event));
        }
        Ok(())
    }

    fn relation_of(&self, oid: u32) -> Result<&Relation> {
        if !self.is_inside() {
            return Err(malformed("a change outside a transaction"));
        }
        let relation = self.relations.get(&oid);
        relation.ok_or_else(|| malformed("a change of a table that has not been described"))
    }

    fn event(
        &self,
        relation: &Relation,
        op: ChangeKind,
        new: Option<EventRow>,
        old: Option<EventRow>,
    ) -> ChangeEvent {
        ChangeEvent {
            table: relation.name.clone(),
            op,
            new,
            old,
            key: relation.key.clone(),
            origin: EventOrigin {
                source: self.commit.clone(),
                transaction: self.transaction.clone(),
                ordinal: 0,
            },
            ends_transaction: false,
        }
    }
}

impl Relation {
    /// Reads a row of the table.
    fn tuple(&self, message: &mut MessageBytes<'_>) -> Result<EventRow> {
        if usize::from(message.u16()?) != self.columns.len() {
            return Err(malformed("a row has other columns than its table"));
        }
        let mut values = Vec::with_capacity(self.columns.len());
        for _ in 0..self.columns.len() {
            values.push(match message.byte()? {
                b'n' => EventValue::Null,
                b'u' => EventValue::Absent,
                b't' => {
                    let len = message.u32()? as usize;
                    let Ok(text) = simdutf8::basic::from_utf8(message.bytes(len)?) else {
                        return Err(malformed("invalid byte sequence for encoding \"UTF8\""));
                    };
                    EventValue::Text(text.into())
                }
                b'b' => return Err(malformed("a value is binary, which was not asked for")),
                _ => return Err(malformed("unknown kind of value")),
            });
        }
        Ok(EventRow { columns: self.columns.clone(), values })
    }

    /// Reduces an old row to the columns of the key. The server omits the other values.
    fn key_of(&self, row: EventRow) -> Result<EventRow> {
        let Some(key) = &self.key else {
            return Err(malformed("an old key of a table that has none"));
        };
        let values = row.values.into_iter().zip(&self.of_key);
        let values = values.filter(|(_, is)| **is).map(|(value, _)| value).collect();
        Ok(EventRow { columns: key.clone(), values })
    }
}

/// Fills values that the new row omits from the old row, if the old row has all columns.
fn fill_from_old_row(new: &mut EventRow, old: &EventRow) {
    if Arc::ptr_eq(&new.columns, &old.columns) {
        for (new, old) in new.values.iter_mut().zip(&old.values) {
            if *new == EventValue::Absent {
                new.clone_from(old);
            }
        }
    }
}

impl Decode for Pgoutput {
    fn decode(
        &mut self,
        record: &[u8],
        _: &dyn TargetTypes,
        events: &mut Vec<ChangeEvent>,
    ) -> Result<()> {
        let before = events.len();
        let done = self.message(&mut MessageBytes::new(record), events);
        if done.is_err() {
            events.truncate(before);
        }
        done
    }
}

pub(super) fn malformed(what: &str) -> Error {
    Error::new(ErrorKind::Format, what)
}
