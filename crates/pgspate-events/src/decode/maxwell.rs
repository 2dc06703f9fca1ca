//! Maxwell's JSON: rows of MySQL's binary log.
//!
//! Rows are whole. An update tells the columns that it changed as they were before, so that the old
//! row is known, too: by whatever columns the target finds its rows. The last row of a transaction
//! says so.

use super::cast::{Bytes, Form, Spelling};
use super::json::{Json, Str, is_nothing, malformed, object};
use super::shape::{Table, Tables, cells, overlay};
use super::{Decode, Types};
use crate::{Event, Name, Op, Position, Result, Row};

const SPELLING: Spelling = Spelling { bytes: Bytes::Base64, json_strings: true };

/// Decodes Maxwell's JSON.
#[derive(Debug, Default)]
pub struct Maxwell {
    tables: Tables<Form>,
    /// Of records that name none.
    table: Option<Name>,
}

/// The fields of a record that mean something here.
#[derive(Default)]
struct Record<'a> {
    ty: Option<Str<'a>>,
    database: Option<Str<'a>>,
    table: Option<Str<'a>>,
    data: Option<Json<'a>>,
    old: Option<Json<'a>>,
    key: Option<Vec<Str<'a>>>,
    xid: Option<Box<str>>,
    /// It says where in its transaction it stands.
    is_inside: bool,
    is_last: bool,
}

impl Maxwell {
    /// A decoder at the beginning of a stream.
    pub fn new() -> Maxwell {
        Maxwell::default()
    }

    /// The same, of records that do not name their table.
    pub(super) fn of_table(table: Option<Name>) -> Maxwell {
        Maxwell { table, ..Maxwell::default() }
    }

    fn event(&mut self, record: &Record<'_>, op: Op, types: &dyn Types) -> Result<Event> {
        let Some(data) = record.data else { return Err(malformed("a row has no \"data\"")) };
        let table = named(&mut self.tables, record.database, record.table, &self.table)?;
        let key = record.key.as_deref().filter(|key| !key.is_empty());
        let event = Event {
            table: table.name.clone(),
            op,
            new: None,
            old: None,
            key: key.map(|key| table.key(key)).transpose()?,
            position: Position { transaction: record.xid.clone(), ..Position::default() },
            ends_transaction: record.is_last || !record.is_inside,
        };
        let data = row(table, data, types)?;
        if op == Op::Delete {
            return Ok(Event { old: Some(data), ..event });
        }
        let mut old = None;
        if let (Op::Update, Some(changed)) = (op, record.old.filter(|old| *old != Json::Null)) {
            let changed = cells(changed, "\"old\"")?;
            old = Some(overlay(&data, &cast(table, &changed, types)?));
        }
        Ok(Event { new: Some(data), old, ..event })
    }
}

impl Decode for Maxwell {
    fn decode(&mut self, record: &[u8], types: &dyn Types, events: &mut Vec<Event>) -> Result<()> {
        if is_nothing(record) {
            return Ok(());
        }
        let record = Record::read(record)?;
        let Some(ty) = record.ty else {
            return Err(malformed("a record of Maxwell's has a \"type\", this one has none"));
        };
        let ty = ty.text()?;
        let op = match ty.as_ref() {
            "insert" => Op::Insert,
            "update" => Op::Update,
            "delete" => Op::Delete,
            "bootstrap-insert" => Op::Snapshot,
            "bootstrap-start" | "bootstrap-complete" | "heartbeat" => return Ok(()),
            // What is done to tables, of which the target may have none.
            _ if ty.starts_with("table-") || ty.starts_with("database-") => return Ok(()),
            _ => return Err(malformed("unknown \"type\" of a record")),
        };
        events.push(self.event(&record, op, types)?);
        Ok(())
    }

    /// With `binlog_row_image` of minimal or noblob.
    fn leaves_out(&self) -> bool {
        true
    }
}

impl<'a> Record<'a> {
    fn read(record: &'a [u8]) -> Result<Record<'a>> {
        let mut fields = object(record)?;
        let mut found = Record::default();
        while let Some((key, value)) = fields.next()? {
            match value {
                Json::String(value) if key.is("type") => found.ty = Some(value),
                Json::String(value) if key.is("database") => found.database = Some(value),
                Json::String(value) if key.is("table") => found.table = Some(value),
                _ if key.is("data") => found.data = Some(value),
                _ if key.is("old") => found.old = Some(value),
                _ if key.is("xid") => found.xid = value.word()?.map(Into::into),
                _ if key.is("xoffset") => found.is_inside = true,
                _ if key.is("commit") => found.is_last = value == Json::Bool(true),
                _ if key.is("primary_key_columns") => found.key = Some(names(value)?),
                _ => {}
            }
        }
        Ok(found)
    }
}

/// The table of a record, or the one that is said for those that name none.
pub(super) fn named<'t>(
    tables: &'t mut Tables<Form>,
    database: Option<Str<'_>>,
    table: Option<Str<'_>>,
    other: &Option<Name>,
) -> Result<&'t mut Table<Form>> {
    match (table, other) {
        (Some(table), _) => {
            let schema = database.map(Str::text).transpose()?;
            Ok(tables.of(schema.as_deref(), &table.text()?, 0))
        }
        (None, Some(name)) => Ok(tables.of(name.schema.as_deref(), &name.table, 0)),
        (None, None) => {
            Err(malformed("a record does not name its table")
                .hint("Name it with `--source-table`."))
        }
    }
}

/// A list of names.
pub(super) fn names<'a>(list: Json<'a>) -> Result<Vec<Str<'a>>> {
    let mut found = Vec::new();
    let Some(mut items) = list.array() else { return Ok(found) };
    while let Some(item) = items.next()? {
        match item {
            Json::String(name) => found.push(name),
            _ => return Err(malformed("expected the name of a key's column to be a string")),
        }
    }
    Ok(found)
}

fn row(table: &mut Table<Form>, row: Json<'_>, types: &dyn Types) -> Result<Row> {
    cast(table, &cells(row, "\"data\"")?, types)
}

fn cast(table: &mut Table<Form>, row: &[(Str<'_>, Json<'_>)], types: &dyn Types) -> Result<Row> {
    let learn = |_: &str, ty: Option<&str>| ty.map_or(Form::Other, Form::of);
    table.row(row, types, &learn, &mut |value, form| SPELLING.cast(value, form))
}
