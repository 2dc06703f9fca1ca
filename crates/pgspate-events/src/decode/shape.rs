//! Tables and lists of columns, each kept once and shared by the events that have it.
//!
//! Events of the same columns share one allocation of their names, and what the decoder makes of
//! each column is worked out once for a list. Memory is bounded by limits, not by the stream.

use std::collections::HashMap;
use std::sync::Arc;

use super::TargetTypes;
use super::json::{Json, Str, malformed};
use super::room::RecordBudget;
use crate::{Error, ErrorKind, SourceTable, Result, EventRow, EventValue};

/// Tables kept at most; more than that and all are forgotten.
const TABLES_MAX: usize = 16_384;
/// Lists of columns kept for a table; the one that was not used for longest goes.
const LISTS_MAX: usize = 64;

/// The tables that a decoder has seen. `K` is what it knows of a column.
#[derive(Debug)]
pub(super) struct SourceTables<K> {
    ordinals: HashMap<Box<str>, usize>,
    tables: Vec<SourceTableColumns<K>>,
    scratch: String,
}

impl<K> Default for SourceTables<K> {
    fn default() -> SourceTables<K> {
        SourceTables { ordinals: HashMap::new(), tables: Vec::new(), scratch: String::new() }
    }
}

/// A table, and the lists of columns that its rows came in.
#[derive(Debug)]
pub(super) struct SourceTableColumns<K> {
    pub(super) name: Arc<SourceTable>,
    /// The most recently used first.
    lists: Vec<ColumnList<K>>,
    keys: Vec<Arc<[Box<str>]>>,
}

#[derive(Debug)]
struct ColumnList<K> {
    columns: Arc<[Box<str>]>,
    kinds: Vec<Option<K>>,
}

impl<K> SourceTables<K> {
    /// The table of this name. `variant` keeps apart what the decoder knows of its columns.
    pub(super) fn of(
        &mut self,
        schema: Option<&str>,
        table: &str,
        variant: usize,
    ) -> &mut SourceTableColumns<K> {
        use std::fmt::Write as _;
        self.scratch.clear();
        // No name holds a zero character: PostgreSQL has none and `Str::text` refuses it.
        let _ = match schema {
            Some(schema) => write!(self.scratch, "{schema}\0\0{table}\0"),
            None => write!(self.scratch, "\0{table}\0"),
        };
        if variant != 0 {
            let _ = write!(self.scratch, "{variant}");
        }
        if let Some(&at) = self.ordinals.get(self.scratch.as_str()) {
            return &mut self.tables[at];
        }
        if self.tables.len() == TABLES_MAX {
            self.ordinals.clear();
            self.tables.clear();
        }
        let at = self.tables.len();
        self.ordinals.insert(self.scratch.as_str().into(), at);
        let name = SourceTable { schema: schema.map(str::to_owned), table: table.to_owned() };
        self.tables.push(SourceTableColumns { name: Arc::new(name), lists: Vec::new(), keys: Vec::new() });
        &mut self.tables[at]
    }
}

impl<K> SourceTableColumns<K> {
    /// The row of these fields. `learn` gives what a column is, or none as long as that is not
    /// known; `read` makes the value.
    ///
    /// # Errors
    /// A column twice, more than a record may become, or what `read` says, which is told with the
    /// column.
    pub(super) fn row<V: Copy + SourceText>(
        &mut self,
        fields: &[(Str<'_>, V)],
        types: &dyn TargetTypes,
        learn: &dyn Fn(&str, Option<&str>) -> K,
        read: &mut dyn FnMut(V, &K) -> Result<EventValue>,
    ) -> Result<EventRow> {
        let at = match self.lists.iter().position(|list| list.is_of(fields)) {
            Some(at) => at,
            None => self.add(fields)?,
        };
        self.lists[..=at].rotate_right(1);
        let name = &self.name;
        let list = &mut self.lists[0];
        let mut values = Vec::with_capacity(fields.len());
        let mut room = RecordBudget::default();
        for (at, (_, value)) in fields.iter().enumerate() {
            let column = &list.columns[at];
            let kind = &mut list.kinds[at];
            let fresh;
            let kind = match kind {
                Some(kind) => &*kind,
                None => {
                    let found = types.of(name, column);
                    let learnt = learn(column, found.as_deref());
                    // A column that the target does not have may be added to it.
                    if found.is_some() {
                        &*kind.insert(learnt)
                    } else {
                        fresh = learnt;
                        &fresh
                    }
                }
            };
            let value = match read(*value, kind) {
                Ok(value) => value,
                Err(_) if types.ignores(name, column) => EventValue::Null,
                Err(error) => return Err(in_column(name, column, value.spelled(), &error)),
            };
            room.take_value(&value)?;
            values.push(value);
        }
        Ok(EventRow { columns: list.columns.clone(), values })
    }

    fn add<V>(&mut self, fields: &[(Str<'_>, V)]) -> Result<usize> {
        let mut columns = Vec::with_capacity(fields.len());
        for (key, _) in fields {
            columns.push(Box::<str>::from(key.text()?));
        }
        refuse_twice(&columns)?;
        self.lists.truncate(LISTS_MAX - 1);
        let kinds = columns.iter().map(|_| None).collect();
        self.lists.push(ColumnList { columns: columns.into(), kinds });
        Ok(self.lists.len() - 1)
    }

    /// A list of key columns, shared.
    pub(super) fn key(&mut self, columns: &[Str<'_>]) -> Result<Arc<[Box<str>]>> {
        let is_same = |known: &&Arc<[Box<str>]>| {
            known.len() == columns.len()
                && known.iter().zip(columns).all(|(known, column)| column.is(known))
        };
        if let Some(known) = self.keys.iter().find(is_same) {
            return Ok(known.clone());
        }
        let mut names = Vec::with_capacity(columns.len());
        for column in columns {
            names.push(Box::<str>::from(column.text()?));
        }
        refuse_twice(&names)?;
        self.keys.truncate(LISTS_MAX - 1);
        let names: Arc<[Box<str>]> = names.into();
        self.keys.push(names.clone());
        Ok(names)
    }
}

fn refuse_twice(columns: &[Box<str>]) -> Result<()> {
    let mut sorted: Vec<&str> = columns.iter().map(AsRef::as_ref).collect();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(malformed(format!("column \"{}\" is in a row twice", pair[0]))),
        None => Ok(()),
    }
}

impl<K> ColumnList<K> {
    fn is_of<V>(&self, fields: &[(Str<'_>, V)]) -> bool {
        self.columns.len() == fields.len()
            && self.columns.iter().zip(fields).all(|(column, (key, _))| key.is(column))
    }
}

/// A value as the record spells it.
pub(super) trait SourceText {
    fn spelled(&self) -> &str;
}

impl SourceText for Json<'_> {
    fn spelled(&self) -> &str {
        match self {
            Json::Null => "null",
            Json::Bool(true) => "true",
            Json::Bool(false) => "false",
            Json::String(string) => string.raw(),
            Json::Number(text) | Json::Object(text) | Json::Array(text) => text,
        }
    }
}

/// So much of a value is quoted.
const QUOTED_MAX: usize = 64;

/// The error of a value, with its column. The value is quoted, as the server would: what is read
/// here stands in for its input functions.
fn in_column(table: &SourceTable, column: &str, spelled: &str, error: &Error) -> Error {
    let schema = table.schema.as_ref().map(|schema| format!("{schema}.")).unwrap_or_default();
    let end = spelled.char_indices().nth(QUOTED_MAX).map(|(at, _)| at);
    let cut = if end.is_some() { "..." } else { "" };
    let quoted = &spelled[..end.unwrap_or(spelled.len())];
    let told = Error::new(
        ErrorKind::Format,
        format!("column \"{column}\" of {schema}{}: {error}: \"{quoted}{cut}\"", table.table),
    );
    told.hint_if(error.hint_text())
}

/// The fields of a row object.
pub(super) fn cells<'a>(row: Json<'a>, what: &str) -> Result<Vec<(Str<'a>, Json<'a>)>> {
    match row.object() {
        Some(fields) => fields.all(),
        None => Err(malformed(format!("expected {what} to be an object"))),
    }
}

/// The row as it was, where only the columns that differ are told: `before` over `after`.
pub(super) fn overlay(after: &EventRow, before: &EventRow) -> EventRow {
    let old = |column: &str| before.columns.iter().position(|name| &**name == column);
    let values = after.columns.iter().zip(&after.values);
    let values = values.map(|(column, value)| match old(column) {
        Some(at) => before.values[at].clone(),
        None => value.clone(),
    });
    EventRow { columns: after.columns.clone(), values: values.collect() }
}
