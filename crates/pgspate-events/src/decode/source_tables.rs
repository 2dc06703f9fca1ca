//! The tables and lists of columns that a decoder has seen, shared by their events.
//!
//! Events with the same columns share one list of names. What the decoder knows of each column is
//! computed once for each list. Memory is bounded by limits, however long the stream is.

use std::collections::HashMap;
use std::sync::Arc;

use super::TargetTypes;
use super::json::{Json, JsonStr, malformed};
use super::record_budget::RecordBudget;
use crate::{Error, ErrorKind, EventRow, EventValue, Result, SourceTable};

/// The most tables that are kept. When one more is added, all earlier tables are forgotten.
const TABLES_MAX: usize = 16_384;
/// The most lists of columns that are kept for a table. The least recently used list is dropped.
const LISTS_MAX: usize = 64;

/// The tables that a decoder has seen. `K` is what the decoder knows of a column.
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

/// A table, and the lists of columns that its rows have had.
#[derive(Debug)]
pub(super) struct SourceTableColumns<K> {
    pub(super) name: Arc<SourceTable>,
    /// The lists of columns, most recently used first.
    lists: Vec<ColumnList<K>>,
    /// The [`TargetTypes::version`] by which the decoder knows the columns.
    types_version: u64,
    keys: Vec<Arc<[Box<str>]>>,
}

#[derive(Debug)]
struct ColumnList<K> {
    columns: Arc<[Box<str>]>,
    kinds: Vec<Option<K>>,
}

impl<K> SourceTables<K> {
    /// Returns the table of this name. Tables of different `variant`s are kept apart, because what
    /// the decoder knows of their columns differs.
    pub(super) fn of(
        &mut self,
        schema: Option<&str>,
        table: &str,
        variant: usize,
    ) -> &mut SourceTableColumns<K> {
        use std::fmt::Write as _;
        self.scratch.clear();
        // A zero byte separates names: PostgreSQL allows none, and `JsonStr::text` refuses it.
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
        self.tables.push(SourceTableColumns {
            name: Arc::new(name),
            lists: Vec::new(),
            types_version: 0,
            keys: Vec::new(),
        });
        &mut self.tables[at]
    }
}

impl<K> SourceTableColumns<K> {
    /// Builds the row of a record's fields. `learn` takes a column and its type in the target, and
    /// returns what the decoder knows of the column. `read` turns a field into a value.
    ///
    /// # Errors
    /// For a column that occurs twice, for values that take too much memory, and when `read` fails;
    /// then the error names the column.
    pub(super) fn row<V: Copy + SourceText>(
        &mut self,
        fields: &[(JsonStr<'_>, V)],
        types: &dyn TargetTypes,
        learn: &dyn Fn(&str, Option<&str>) -> K,
        read: &mut dyn FnMut(V, &K) -> Result<EventValue>,
    ) -> Result<EventRow> {
        let version = types.version();
        if self.types_version != version {
            self.types_version = version;
            self.lists.iter_mut().for_each(|list| list.kinds.fill_with(|| None));
        }
        let at = match self.lists.iter().position(|list| list.is_of(fields)) {
            Some(at) => at,
            None => self.add(fields)?,
        };
        self.lists[..=at].rotate_right(1);
        let name = &self.name;
        let list = &mut self.lists[0];
        let mut values = Vec::with_capacity(fields.len());
        let mut budget = RecordBudget::default();
        for (at, (_, value)) in fields.iter().enumerate() {
            let column = &list.columns[at];
            let kind = &mut list.kinds[at];
            let fresh;
            let kind = match kind {
                Some(kind) => &*kind,
                None => {
                    let found = types.type_of(name, column);
                    let learnt = learn(column, found.as_deref());
                    // Nothing is remembered of a column that the target lacks: it may be added
                    // later.
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
                Err(_) if types.ignores_column(name, column) => EventValue::Null,
                Err(error) => return Err(in_column(name, column, value.spelled(), &error)),
            };
            budget.take_value(&value)?;
            values.push(value);
        }
        Ok(EventRow { columns: list.columns.clone(), values })
    }

    fn add<V>(&mut self, fields: &[(JsonStr<'_>, V)]) -> Result<usize> {
        let mut columns = Vec::with_capacity(fields.len());
        for (key, _) in fields {
            columns.push(Box::<str>::from(key.text()?));
        }
        refuse_repeated_column(&columns)?;
        self.lists.truncate(LISTS_MAX - 1);
        let kinds = columns.iter().map(|_| None).collect();
        self.lists.push(ColumnList { columns: columns.into(), kinds });
        Ok(self.lists.len() - 1)
    }

    /// Returns the shared list of a key's columns.
    pub(super) fn key(&mut self, columns: &[JsonStr<'_>]) -> Result<Arc<[Box<str>]>> {
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
        refuse_repeated_column(&names)?;
        self.keys.truncate(LISTS_MAX - 1);
        let names: Arc<[Box<str>]> = names.into();
        self.keys.push(names.clone());
        Ok(names)
    }
}

fn refuse_repeated_column(columns: &[Box<str>]) -> Result<()> {
    let mut sorted: Vec<&str> = columns.iter().map(AsRef::as_ref).collect();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(malformed(format!("a row has column \"{}\" twice", pair[0]))),
        None => Ok(()),
    }
}

impl<K> ColumnList<K> {
    fn is_of<V>(&self, fields: &[(JsonStr<'_>, V)]) -> bool {
        self.columns.len() == fields.len()
            && self.columns.iter().zip(fields).all(|(column, (key, _))| key.is(column))
    }
}

/// A value that can be quoted in an error as the record spells it.
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

/// The most characters of a value that an error quotes.
const QUOTED_MAX: usize = 64;

/// Adds the column and the value to an error. The value is quoted as the server's input functions
/// would quote it.
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

/// Returns the fields of a row, which must be an object; `what` names it in the error.
pub(super) fn cells<'a>(row: Json<'a>, what: &str) -> Result<Vec<(JsonStr<'a>, Json<'a>)>> {
    match row.object() {
        Some(fields) => fields.all(),
        None => Err(malformed(format!("expected {what} to be an object"))),
    }
}

/// Returns the old row of an update whose record gives only the old values of changed columns: the
/// values of `before`, else those of `after`.
pub(super) fn overlay(after: &EventRow, before: &EventRow) -> EventRow {
    let old = |column: &str| before.columns.iter().position(|name| &**name == column);
    let values = after.columns.iter().zip(&after.values);
    let values = values.map(|(column, value)| match old(column) {
        Some(at) => before.values[at].clone(),
        None => value.clone(),
    });
    EventRow { columns: after.columns.clone(), values: values.collect() }
}
