//! DMS's messages for Kafka and Kinesis: `{"data": {...}, "metadata": {...}}`.
//!
//! Unless it is told otherwise DMS leaves out columns that are NULL or empty, and it does not tell
//! which of both. An update that lacks a column which rows of its table had is refused, as it could
//! not be written.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::super::cast::TypeFamily;
use super::super::json::{Json, Str, malformed, object};
use super::super::shape::cells;
use super::{Dms, SPELLING};
use crate::decode::TargetTypes;
use crate::{ChangeEvent, SourceTable, ChangeKind, EventOrigin, Result, EventRow};

/// The columns that a table's rows have had.
#[derive(Debug, Default)]
pub(super) struct Seen(HashMap<Arc<SourceTable>, Columns>);

#[derive(Debug, Default)]
struct Columns {
    all: HashSet<Box<str>>,
    /// A list that has all of them.
    whole: Option<Arc<[Box<str>]>>,
}

/// Tables kept at most; more than that and all are forgotten.
const TABLES_MAX: usize = 16_384;

impl Seen {
    fn check(&mut self, table: &Arc<SourceTable>, op: ChangeKind, row: &EventRow) -> Result<()> {
        if self.0.len() > TABLES_MAX {
            self.0.clear();
        }
        let columns = self.0.entry(table.clone()).or_default();
        if columns.whole.as_ref().is_some_and(|whole| Arc::ptr_eq(whole, &row.columns)) {
            return Ok(());
        }
        columns.all.extend(row.columns.iter().cloned());
        if columns.all.len() == row.columns.len() {
            columns.whole = Some(row.columns.clone());
        } else if op == ChangeKind::Update {
            return Err(malformed("a row lacks columns that others of its table have").hint(
                "They may be NULL or empty. Set `IncludeNullAndEmpty=true` of the endpoint, so \
                 that DMS writes which.",
            ));
        }
        Ok(())
    }
}

impl Dms {
    pub(super) fn message(&mut self, record: &[u8], types: &dyn TargetTypes) -> Result<Option<ChangeEvent>> {
        let mut fields = object(record)?;
        let [mut data, mut before, mut metadata] = [None; 3];
        while let Some((key, value)) = fields.next()? {
            if key.is("data") {
                data = Some(value);
            } else if key.is("before-image") || key.is("before") {
                before = Some(value);
            } else if key.is("metadata") {
                metadata = Some(value);
            }
        }
        let Some(metadata) = metadata else {
            return Err(malformed("a message of DMS's has \"metadata\", this one has none"));
        };
        let metadata = Metadata::read(metadata)?;
        let Some(operation) = metadata.operation else {
            return Err(malformed("a message does not name its \"operation\""));
        };
        let op = match operation.text()?.as_ref() {
            "load" => ChangeKind::Snapshot,
            "insert" => ChangeKind::Insert,
            "update" => ChangeKind::Update,
            "delete" => ChangeKind::Delete,
            "truncate-table" => ChangeKind::Truncate,
            // What is done to tables, of which the target may have none.
            _ if metadata.is_control => return Ok(None),
            _ => return Err(malformed("unknown \"operation\" of a message")),
        };
        let Some(name) = metadata.table else {
            return Err(malformed("a message does not name its table"));
        };
        let schema = metadata.schema.map(Str::text).transpose()?;
        let table = self.tables.of(schema.as_deref(), &name.text()?, 0);
        let learn = |_: &str, ty: Option<&str>| ty.map_or(TypeFamily::Other, TypeFamily::of);
        let mut row = |json: Json<'_>| {
            let cast = &mut |value, form: &TypeFamily| SPELLING.cast(value, form);
            table.row(&cells(json, "\"data\"")?, types, &learn, cast)
        };
        let before = before.filter(|before| *before != Json::Null).map(&mut row).transpose()?;
        let (mut new, mut old) = (None, before);
        match (op, data) {
            (ChangeKind::Truncate, _) => {}
            (ChangeKind::Delete, Some(data)) if old.is_none() => old = Some(row(data)?),
            (ChangeKind::Delete, _) if old.is_some() => {}
            (ChangeKind::Insert | ChangeKind::Update | ChangeKind::Snapshot, Some(data)) => new = Some(row(data)?),
            _ => return Err(malformed("a message has no \"data\"")),
        }
        let table = table.name.clone();
        if let Some(new) = &new {
            self.seen.check(&table, op, new)?;
        }
        let position = EventOrigin { transaction: metadata.transaction, ..EventOrigin::default() };
        Ok(Some(ChangeEvent { table, op, new, old, key: None, position, ends_transaction: true }))
    }
}

/// What a message says of itself.
#[derive(Default)]
struct Metadata<'a> {
    is_control: bool,
    operation: Option<Str<'a>>,
    schema: Option<Str<'a>>,
    table: Option<Str<'a>>,
    transaction: Option<Box<str>>,
}

impl<'a> Metadata<'a> {
    fn read(json: Json<'a>) -> Result<Metadata<'a>> {
        let Some(mut fields) = json.object() else {
            return Err(malformed("expected \"metadata\" to be an object"));
        };
        let mut found = Metadata::default();
        while let Some((key, value)) = fields.next()? {
            match value {
                Json::String(ty) if key.is("record-type") => found.is_control = ty.is("control"),
                Json::String(name) if key.is("operation") => found.operation = Some(name),
                Json::String(name) if key.is("schema-name") => found.schema = Some(name),
                Json::String(name) if key.is("table-name") => found.table = Some(name),
                _ if key.is("transaction-id") => {
                    found.transaction = value.word()?.map(Into::into);
                }
                _ => {}
            }
        }
        Ok(found)
    }
}
