//! Decodes wal2json, both versions of its format. wal2json is a plugin for PostgreSQL's logical
//! decoding that writes JSON.
//!
//! Version 1 has one record for each transaction. Version 2 has one record for each change, between
//! a `B` and a `C` record. Columns that a row lacks were not changed, and are absent. Events of
//! version 2 are returned at once, but only the `C` ends the transaction: a transaction that is cut
//! off before its `C` never counts as whole.

use super::byte_spellings::is_hex;
use super::json::{Json, JsonFields, JsonItems, JsonStr, has_no_value, malformed, object};
use super::json_values::{ByteSpelling, JsonSpelling, TypeFamily, text};
use super::record_budget::RecordBudget;
use super::source_tables::{SourceTableColumns, SourceTables, SourceText};
use super::{Decode, RecordGrouping, TargetTypes};
use crate::{ChangeEvent, ChangeKind, EventOrigin, EventRow, EventValue, Result};

const SPELLING: JsonSpelling = JsonSpelling::of_bytes(ByteSpelling::Hex);

/// Decodes wal2json of either version.
#[derive(Debug, Default)]
pub struct Wal2json {
    tables: SourceTables<TypeFamily>,
    /// Whether a transaction of version 2 is open: its `B` has come, its `C` has not.
    is_open: bool,
    grouping: RecordGrouping,
}

/// A value, with its type if the record names it.
#[derive(Clone, Copy)]
struct TypedValue<'a> {
    value: Json<'a>,
    ty: Option<JsonStr<'a>>,
}

impl SourceText for TypedValue<'_> {
    fn spelled(&self) -> &str {
        self.value.spelled()
    }
}

/// The fields of a change.
#[derive(Default)]
struct Wal2jsonChange<'a> {
    action: Option<JsonStr<'a>>,
    schema: Option<JsonStr<'a>>,
    table: Option<JsonStr<'a>>,
    new: Option<Vec<(JsonStr<'a>, TypedValue<'a>)>>,
    old: Option<Vec<(JsonStr<'a>, TypedValue<'a>)>>,
    key: Option<Vec<JsonStr<'a>>>,
    transaction: Option<Box<str>>,
}

impl Wal2json {
    /// Returns a decoder at the beginning of a stream.
    pub fn new() -> Wal2json {
        Wal2json::default()
    }

    /// Adds the events of a transaction of version 1.
    fn transaction(
        &mut self,
        changes: Json<'_>,
        xid: Option<&str>,
        types: &dyn TargetTypes,
        events: &mut Vec<ChangeEvent>,
    ) -> Result<()> {
        let Some(mut changes) = changes.array() else {
            return Err(malformed("expected \"change\" to be an array"));
        };
        let before = events.len();
        let mut budget = RecordBudget::default();
        while let Some(change) = changes.next()? {
            let mut change = version_1(change)?;
            change.transaction = xid.map(Into::into);
            if let Some(event) = self.event(&change, types)? {
                budget.take_event(&event)?;
                events.push(event);
            }
        }
        if events.len() > before
            && let Some(last) = events.last_mut()
        {
            last.ends_transaction = true;
        }
        Ok(())
    }

    /// Returns the event of a change. Logical decoding messages have none.
    fn event(
        &mut self,
        change: &Wal2jsonChange<'_>,
        types: &dyn TargetTypes,
    ) -> Result<Option<ChangeEvent>> {
        let Some(action) = change.action else {
            return Err(malformed("expected \"change\" of version 1 or \"action\" of version 2"));
        };
        let action = action.text()?;
        let op = match action.as_ref() {
            "insert" | "I" => ChangeKind::Insert,
            "update" | "U" => ChangeKind::Update,
            "delete" | "D" => ChangeKind::Delete,
            "truncate" | "T" => ChangeKind::Truncate,
            "message" | "M" => return Ok(None),
            _ => return Err(malformed("unknown kind of change")),
        };
        let Some(name) = change.table else {
            return Err(malformed("a change does not name its table"));
        };
        let schema = change.schema.map(JsonStr::text).transpose()?;
        let table = self.tables.of(schema.as_deref(), &name.text()?, 0);
        let is_same = |old: &[(JsonStr<'_>, TypedValue<'_>)]| is_within(old, change.new.as_deref());
        let key = match (&change.old, op) {
            // The old row has the columns by which the source identifies rows, and no others have
            // a known old value.
            (Some(old), ChangeKind::Update) => {
                let names: Vec<_> = old.iter().map(|(name, _)| *name).collect();
                Some(table.key(&names)?)
            }
            _ => change.key.as_deref().map(|key| table.key(key)).transpose()?,
        };
        let new = match (&change.new, op) {
            (Some(new), ChangeKind::Insert | ChangeKind::Update) => Some(row(table, new, types)?),
            (None, ChangeKind::Insert | ChangeKind::Update) => {
                return Err(malformed("a change has no columns"));
            }
            _ => None,
        };
        // In a table without a key, only the whole old row identifies the row, even if no value
        // changed.
        let is_whole = |old: &[_]| change.new.as_ref().is_some_and(|new| old.len() >= new.len());
        let old = match (&change.old, op) {
            (Some(old), ChangeKind::Delete) => Some(row(table, old, types)?),
            (Some(old), ChangeKind::Update) if !is_same(old) || is_whole(old) => {
                Some(row(table, old, types)?)
            }
            (None, ChangeKind::Delete) => {
                return Err(malformed("a delete does not identify its row").hint(
                    "Give the source's table a primary key, or run `alter table ... replica \
                     identity full` there.",
                ));
            }
            _ => None,
        };
        let origin =
            EventOrigin { transaction: change.transaction.clone(), ..EventOrigin::default() };
        let table = table.name.clone();
        Ok(Some(ChangeEvent { table, op, new, old, key, origin, ends_transaction: false }))
    }

    /// Adds the event of a version 2 record.
    fn change(
        &mut self,
        change: &Wal2jsonChange<'_>,
        types: &dyn TargetTypes,
        events: &mut Vec<ChangeEvent>,
    ) -> Result<()> {
        let is = |action: &str| change.action.is_some_and(|found| found.is(action));
        if is("B") || is("C") {
            self.is_open = is("B");
            self.grouping = if self.is_open {
                RecordGrouping::OpensTransaction
            } else {
                RecordGrouping::ClosesTransaction
            };
            return Ok(());
        }
        let Some(mut event) = self.event(change, types)? else { return Ok(()) };
        // With wal2json's option include-transaction off there are no `B` and `C`.
        event.ends_transaction = !self.is_open;
        events.push(event);
        Ok(())
    }
}

impl Decode for Wal2json {
    fn decode(
        &mut self,
        record: &[u8],
        types: &dyn TargetTypes,
        events: &mut Vec<ChangeEvent>,
    ) -> Result<()> {
        self.grouping = RecordGrouping::ByEvents;
        if has_no_value(record) {
            return Ok(());
        }
        let before = events.len();
        let mut fields = object(record)?;
        let mut change = Wal2jsonChange::default();
        let (mut changes, mut xid) = (None, None);
        while let Some(key) = fields.next_key()? {
            if let Some(mut list) = open_columns(key, &mut fields) {
                let cells = columns(&mut list)?;
                fields.close_array(list);
                match key {
                    _ if key.is("columns") => change.new = Some(cells),
                    _ if key.is("identity") => change.old = Some(cells),
                    _ => change.key = Some(cells.iter().map(|(name, _)| *name).collect()),
                }
                continue;
            }
            match fields.value()? {
                value if key.is("change") => changes = Some(value),
                value if key.is("xid") => xid = value.word()?,
                Json::String(value) if key.is("action") => change.action = Some(value),
                Json::String(value) if key.is("schema") => change.schema = Some(value),
                Json::String(value) if key.is("table") => change.table = Some(value),
                _ => {}
            }
        }
        let done = match changes {
            Some(changes) => self.transaction(changes, xid.as_deref(), types, events),
            None => {
                change.transaction = xid.map(Into::into);
                self.change(&change, types, events)
            }
        };
        if done.is_err() {
            events.truncate(before);
        }
        done
    }

    fn grouping(&self) -> RecordGrouping {
        self.grouping
    }

    fn omits_unchanged(&self) -> bool {
        true
    }
}

/// Opens the list of columns that version 2 has under this key.
fn open_columns<'a>(key: JsonStr<'a>, fields: &mut JsonFields<'a>) -> Option<JsonItems<'a>> {
    let is_list = ["columns", "identity", "pk"].iter().any(|name| key.is(name));
    if is_list { fields.open_array() } else { None }
}

/// Reads a list of columns of version 2: `[{"name", "type", "value"}]`.
fn columns<'a>(list: &mut JsonItems<'a>) -> Result<Vec<(JsonStr<'a>, TypedValue<'a>)>> {
    let mut cells = Vec::with_capacity(16);
    while let Some(mut fields) = list.next_object("a column")? {
        let mut name = None;
        let mut cell = TypedValue { value: Json::Null, ty: None };
        while let Some((key, value)) = fields.next()? {
            match value {
                _ if key.is("value") => cell.value = value,
                Json::String(value) if key.is("name") => name = Some(value),
                Json::String(value) if key.is("type") => cell.ty = Some(value),
                _ => {}
            }
        }
        list.close_object(fields);
        match name {
            Some(name) => cells.push((name, cell)),
            None => return Err(malformed("a column has no name")),
        }
    }
    Ok(cells)
}

/// Reads a change of version 1.
fn version_1<'a>(change: Json<'a>) -> Result<Wal2jsonChange<'a>> {
    let Some(mut fields) = change.object() else {
        return Err(malformed("expected a change to be an object"));
    };
    let mut found = Wal2jsonChange::default();
    let [mut names, mut types, mut values] = [None; 3];
    while let Some((key, value)) = fields.next()? {
        match value {
            Json::String(value) if key.is("kind") => found.action = Some(value),
            Json::String(value) if key.is("schema") => found.schema = Some(value),
            Json::String(value) if key.is("table") => found.table = Some(value),
            _ if key.is("columnnames") => names = Some(value),
            _ if key.is("columntypes") => types = Some(value),
            _ if key.is("columnvalues") => values = Some(value),
            _ if key.is("oldkeys") => {
                let [names, types, values] = parts(value, ["keynames", "keytypes", "keyvalues"])?;
                found.old = Some(join_columns(names, types, values)?);
            }
            _ if key.is("pk") => {
                let [names, ..] = parts(value, ["pknames", "", ""])?;
                found.key = Some(strings(names)?);
            }
            _ => {}
        }
    }
    if names.is_some() {
        found.new = Some(join_columns(names, types, values)?);
    }
    Ok(found)
}

/// Returns the values of the fields of these names.
fn parts<'a>(value: Json<'a>, names: [&str; 3]) -> Result<[Option<Json<'a>>; 3]> {
    let mut found = [None; 3];
    if let Some(mut fields) = value.object() {
        while let Some((key, value)) = fields.next()? {
            for (name, found) in names.iter().zip(&mut found) {
                if key.is(name) {
                    *found = Some(value);
                }
            }
        }
    }
    Ok(found)
}

fn strings<'a>(list: Option<Json<'a>>) -> Result<Vec<JsonStr<'a>>> {
    let mut found = Vec::with_capacity(16);
    let Some(mut items) = list.and_then(Json::array) else {
        return Err(malformed("a change has no list of its columns' names"));
    };
    while let Some(item) = items.next()? {
        match item {
            Json::String(name) => found.push(name),
            _ => return Err(malformed("expected the name of a column to be a string")),
        }
    }
    Ok(found)
}

/// Joins the lists of names, types and values of version 1 to columns.
fn join_columns<'a>(
    names: Option<Json<'a>>,
    types: Option<Json<'a>>,
    values: Option<Json<'a>>,
) -> Result<Vec<(JsonStr<'a>, TypedValue<'a>)>> {
    let names = strings(names)?;
    let mut types = types.and_then(Json::array);
    let Some(mut values) = values.and_then(Json::array) else {
        return Err(malformed("a change has no list of its columns' values"));
    };
    let mut cells = Vec::with_capacity(names.len());
    for name in names {
        let ty = match types.as_mut().map(|types| types.next()).transpose()?.flatten() {
            Some(Json::String(ty)) => Some(ty),
            _ => None,
        };
        let Some(value) = values.next()? else {
            return Err(malformed("a change has more columns than values"));
        };
        cells.push((name, TypedValue { value, ty }));
    }
    match values.next()? {
        None => Ok(cells),
        Some(_) => Err(malformed("a change has more values than columns")),
    }
}

/// Returns whether an update leaves all columns of the old row unchanged.
fn is_within(
    old: &[(JsonStr<'_>, TypedValue<'_>)],
    new: Option<&[(JsonStr<'_>, TypedValue<'_>)]>,
) -> bool {
    let new = new.unwrap_or_default();
    let mut from = 0;
    old.iter().all(|(name, cell)| {
        // The old and the new row are in the table's order.
        let found = new[from..].iter().position(|(known, _)| known == name);
        from += found.map_or(0, |at| at + 1);
        found.is_some() && new[from - 1].1.value == cell.value
    })
}

fn row(
    table: &mut SourceTableColumns<TypeFamily>,
    cells: &[(JsonStr<'_>, TypedValue<'_>)],
    types: &dyn TargetTypes,
) -> Result<EventRow> {
    let learn = |_: &str, ty: Option<&str>| ty.map_or(TypeFamily::Other, TypeFamily::of);
    table.row(cells, types, &learn, &mut |cell, family| cast(cell, family))
}

/// Returns a value as text. wal2json omits the `\x` of bytes; arrays are literals already.
fn cast(cell: TypedValue<'_>, family: &TypeFamily) -> Result<EventValue> {
    let is_bytea = match cell.ty {
        Some(ty) => ty.is("bytea"),
        None => *family == TypeFamily::Bytea,
    };
    match cell.value {
        Json::String(value) if is_bytea => {
            let value = value.text()?;
            let digits = value.strip_prefix("\\x").unwrap_or(&value);
            if !is_hex(digits) {
                return Err(malformed("expected bytes as hexadecimal digits"));
            }
            Ok(text(format!("\\x{digits}")))
        }
        other => SPELLING.cast(other, &TypeFamily::Other),
    }
}
