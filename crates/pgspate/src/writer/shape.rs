//! The shape of an insert: its table, its columns, what it does about conflicts and what it
//! returns. All records of one shape share their SQL, so they can be written together.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::types::{Kind, Type};

use crate::encode::field::FieldEncoder;
use crate::{Error, ErrorKind, Result, did_you_mean};
use pgspate_target::ledger::record_request_sql;
use pgspate_target::{PgType, SessionSettings, TargetTable, TypeKind, UnloggedExtent, quote_ident};

use super::WriterOptions;
use super::rows::EncodedRows;

/// What an insert does if a row with the same key exists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum OnConflict {
    /// The record is refused, as by a plain INSERT.
    #[default]
    Refuse,
    /// The record is not written. The columns name the unique index; without columns, any counts.
    Ignore(Vec<String>),
    /// The existing row gets the record's values. The columns name the unique index.
    Update(Vec<String>),
}

/// What a caller asks of an insert.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct InsertRequest {
    /// The table, as SQL names it.
    pub table: String,
    /// The columns that the records have. The other columns get their defaults.
    pub columns: Vec<String>,
    /// What to do if a row with the same key exists.
    pub on_conflict: OnConflict,
    /// The columns of the written rows to return; `*` stands for all columns.
    pub returning: Vec<String>,
}

/// What a shape must know of its table.
#[derive(Debug)]
pub(super) struct ShapeFacts {
    pub(super) table: TargetTable,
    /// The settings of a session.
    pub(super) session: SessionSettings,
    /// The columns of the primary key.
    pub(super) primary_key: Vec<String>,
    /// The triggers that run for an updated row: name, and whether it may keep the row as it is.
    pub(super) update_triggers: Vec<(String, bool)>,
    /// The OID of the array type of each type.
    pub(super) arrays: HashMap<u32, u32>,
}

/// An insert that was checked against its table, with its SQL.
#[derive(Debug)]
pub struct InsertShape {
    /// The number of this shape. No other shape of the process has the number.
    pub(super) id: u64,
    /// The request.
    pub request: InsertRequest,
    /// The table's oid.
    pub table_oid: u32,
    /// The table's schema and name, unquoted.
    pub table_name: (String, String),
    /// The columns of the table's primary key, in its order. Empty if the table has none.
    pub primary_key: Vec<String>,
    /// The settings of a session that writes records.
    pub session: SessionSettings,
    /// The types of the requested columns, in the request's order.
    pub column_types: Vec<PgType>,
    /// The returned columns with their types. A column that is asked for twice occurs twice.
    pub returned_columns: Vec<(String, PgType)>,
    /// Why the records of several calls are not written by one statement, if they are not.
    pub alone_reason: Option<String>,
    /// The INSERT of one record, with a parameter for each column.
    single_insert: String,
    /// The INSERT of many records, with an array as parameter for each column. `None` if the
    /// records cannot be sent so.
    set_insert: Option<String>,
    /// The expression that returns a row's requested columns as JSON, if any are requested.
    returned: Option<String>,
    /// Whether one transaction may commit on several servers.
    pub(super) commits_across_nodes: bool,
    /// Why a key could outlive the rows or the rows the key, if that may be.
    keys_obstacle: Option<&'static str>,
    /// How long the keys of calls are kept.
    pub(super) keep_keys: Duration,
    /// Whether the table was changed since the shape was made.
    pub(super) is_outdated: AtomicBool,
    /// The written columns in the table's order.
    columns: Vec<ShapeColumn>,
}

#[derive(Debug)]
struct ShapeColumn {
    /// The column's position in the request.
    position: usize,
    /// The OID of the column's type.
    ty: u32,
    /// The OIDs of the type beneath the column's domains and of its arrays. `None` if an array of
    /// such values cannot be taken apart again.
    element_and_array: Option<(u32, u32)>,
    /// `None` if only the server can read the column's type.
    encoder: Option<FieldEncoder>,
}

impl ShapeColumn {
    /// Returns a condition on the column's type. It is true, or an error if the column has another
    /// type by now. Without it the server would cast values that were encoded for the old type.
    /// `null` is the column of a null row, so that no privilege to read the table is needed.
    ///
    /// The server finds no `array_eq` for arrays of two types. For equal types its planner finds
    /// the condition true, so that it costs nothing when the statement runs. That cannot tell an
    /// array from its elements, nor a domain from the base type that sets send. The type of such a
    /// column is compared when the statement runs, which takes less than a microsecond.
    fn type_condition(&self, null: &str, number: &str, takes_rows: bool) -> String {
        let ty = self.ty;
        match self.element_and_array {
            Some((element, _)) if element == ty => {
                let sent = if takes_rows { number.to_owned() } else { format!("array[{number}]") };
                format!(
                    "{COMPARE_TYPES}case when false then {sent} end, \
                     case when false then array[{null}] end) is null"
                )
            }
            // `concat` is not immutable, so that the planner does not cast its text.
            _ => format!(
                "case when pg_catalog.pg_typeof({null})::pg_catalog.oid \
                 operator(pg_catalog.=) '{ty}'::pg_catalog.oid then true \
                 else pg_catalog.concat('{TYPES_CHANGED}')::pg_catalog.bool end"
            ),
        }
    }
}

/// One of the statements of a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct StatementKind {
    /// Whether the parameters are arrays of values. Otherwise they are the values of one record.
    pub(super) takes_rows: bool,
    /// Whether the statement records the idempotency key of its call.
    pub(super) records_key: bool,
}

/// The text that the server quotes when it refuses a statement whose columns have other types.
const TYPES_CHANGED: &str = "pgspate: columns have other types";
/// The call that the server does not find if columns have other types.
const COMPARE_TYPES: &str = "pg_catalog.array_eq(";
/// The SQLSTATE of records that were encoded for types which their columns no longer have.
const OUTDATED_TYPES: SqlState = SqlState::T_R_SERIALIZATION_FAILURE;
/// How often a caller encodes records that were encoded for types which their columns no longer
/// have, before it gives up.
pub const ENCODINGS_MAX: usize = 4;

/// Returns whether records were encoded for types which their columns no longer have. The records
/// were not written. Their caller asks for the shape again, and encodes them for that one.
pub fn has_outdated_types(error: &Error) -> bool {
    error.kind() == ErrorKind::Plan && error.sqlstate() == Some(&OUTDATED_TYPES)
}

/// The longest value: PostgreSQL takes no longer one.
const FIELD_BYTES_MAX: usize = 1 << 30;

/// The name of the target in the statements.
const ALIAS: &str = "pgspate_row";

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

impl InsertShape {
    /// Checks a request against its table.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the table lacks a column, or a column is named twice.
    pub(super) fn new(
        request: InsertRequest,
        facts: ShapeFacts,
        options: &WriterOptions,
    ) -> Result<InsertShape> {
        let ShapeFacts { table, session, arrays, update_triggers, .. } = &facts;
        check_columns(&request, table)?;
        let position = |name: &str| request.columns.iter().position(|asked| asked == name);
        let columns = table.columns.iter().filter_map(|column| {
            let (position, base) = (position(&column.name)?, column.ty.base());
            let is_array = matches!(base.kind, TypeKind::Array(..));
            let array = arrays.get(&base.oid).filter(|_| !is_array);
            Some(ShapeColumn {
                position,
                ty: column.ty.oid,
                element_and_array: array.map(|array| (base.oid, *array)),
                encoder: FieldEncoder::new(&column.ty, session).ok(),
            })
        });
        let has_insert_rules = table.rules.iter().any(|rule| rule.is_for_insert);
        let proves_types = !table.commits_across_nodes && !has_insert_rules;
        let columns: Vec<ShapeColumn> = columns.collect();
        let (single_insert, set_insert) = inserts_sql(&request, table, &columns, proves_types);
        let mut shape = InsertShape {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            table_oid: table.oid,
            table_name: (table.schema.clone(), table.name.clone()),
            primary_key: facts.primary_key.clone(),
            session: session.clone(),
            column_types: types_of(table, &request.columns).map(|(_, ty)| ty).collect(),
            returned_columns: types_of(table, &returned_names(&request, table)).collect(),
            alone_reason: None,
            single_insert,
            set_insert: None,
            returned: returned_sql(&request, table),
            commits_across_nodes: table.commits_across_nodes,
            keep_keys: options.keep_keys,
            keys_obstacle: find_keys_obstacle(table),
            is_outdated: AtomicBool::new(false),
            columns,
            request,
        };
        let row_obstacle = match has_insert_rules {
            true => Some("rules rewrite an INSERT into the table".to_owned()),
            false => shape.find_row_obstacle(table),
        };
        shape.set_insert = row_obstacle.is_none().then_some(set_insert);
        shape.alone_reason = row_obstacle
            .or_else(|| shape.find_alone_reason(table, update_triggers, options.shares_triggers));
        Ok(shape)
    }

    /// Returns why records cannot be sent as arrays of values, if they cannot.
    fn find_row_obstacle(&self, table: &TargetTable) -> Option<String> {
        if self.columns.is_empty() {
            return Some("the records have no columns".to_owned());
        }
        if !matches!(table.kind, 'r' | 'p') {
            return Some("the target is not a table".to_owned());
        }
        if table.commits_across_nodes {
            return Some("the database has Citus".to_owned());
        }
        self.columns.iter().find_map(|column| {
            let name = &self.request.columns[column.position];
            let ty = table.columns.iter().find(|it| it.name == *name).map(|it| &it.ty.name)?;
            match (&column.encoder, column.element_and_array) {
                (None, _) => Some(format!("only the server can read type {ty} of \"{name}\"")),
                (_, None) => Some(format!("column \"{name}\" has arrays: {ty}")),
                _ => None,
            }
        })
    }

    /// Returns why the records of several calls may not share a statement, if they may not.
    fn find_alone_reason(
        &self,
        table: &TargetTable,
        update_triggers: &[(String, bool)],
        shares_triggers: bool,
    ) -> Option<String> {
        let inserting = table.triggers.iter().map(|it| (&it.name, it.is_before));
        let updating = update_triggers.iter().map(|(name, is_before)| (name, *is_before));
        let updates = matches!(self.request.on_conflict, OnConflict::Update(_));
        // A trigger before the row may keep the row out, and its caller must be told.
        let mut triggers = inserting.chain(updating.filter(|_| updates));
        if let Some((name, _)) = triggers.find(|(_, is_before)| !shares_triggers || *is_before) {
            return Some(format!("the table has trigger \"{name}\""));
        }
        if table.row_security {
            return Some("policies apply, which may read the table".to_owned());
        }
        if let Some(key) = table.self_references.first() {
            return Some(format!("foreign key \"{key}\" refers to the table itself"));
        }
        match self.request.on_conflict {
            OnConflict::Ignore(_) => {
                Some("records may be ignored, and each caller is told".to_owned())
            }
            OnConflict::Refuse | OnConflict::Update(_) => None,
        }
    }

    /// Returns whether records of both shapes are written alike.
    pub(super) fn is_like(&self, other: &InsertShape) -> bool {
        let columns = |shape: &InsertShape| -> Vec<(u32, Option<&'static str>)> {
            let name = |it: &ShapeColumn| it.encoder.as_ref().map(FieldEncoder::family_name);
            shape.columns.iter().map(|column| (column.ty, name(column))).collect()
        };
        self.table_oid == other.table_oid
            && self.primary_key == other.primary_key
            && self.single_insert == other.single_insert
            && self.set_insert == other.set_insert
            && self.returned == other.returned
            && self.returned_columns == other.returned_columns
            && self.alone_reason == other.alone_reason
            && self.keys_obstacle == other.keys_obstacle
            && columns(self) == columns(other)
    }

    /// Returns whether the server has refused a statement because columns have other types.
    pub(super) fn is_refused_for_types(refusal: &DbError) -> bool {
        let message = refusal.message();
        match refusal.code().code() {
            "42883" => message.contains(COMPARE_TYPES),
            "22P02" => message.contains(TYPES_CHANGED),
            _ => false,
        }
    }

    /// Returns the error of records that were encoded for types which their columns no longer have.
    pub(super) fn outdated_error(&self) -> Error {
        let message =
            format!("types of table {} changed while its records were sent", self.request.table);
        Error::new(ErrorKind::Plan, message)
            .with_sqlstate(OUTDATED_TYPES)
            .hint("The records were not written. Send them again.")
    }

    /// Checks that the table's rows are committed together with idempotency keys, and last as long.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if a call that is sent again could be written twice or not at all.
    pub(super) fn check_takes_keys(&self) -> Result<()> {
        let Some(reason) = self.keys_obstacle else { return Ok(()) };
        let message = format!("table {} takes no idempotency keys: {reason}", self.request.table);
        Err(Error::new(ErrorKind::Usage, message).hint(
            "Send the records without a key. If the client chooses their primary key, ignore rows \
             that exist.",
        ))
    }

    /// Returns how many columns are written.
    pub(super) fn column_count(&self) -> usize {
        self.columns.len()
    }

    /// Returns whether many records can be sent by one statement.
    pub(super) fn takes_rows(&self) -> bool {
        self.set_insert.is_some()
    }

    /// Returns whether the statements return a JSON text for each row.
    pub(super) fn returns_rows(&self) -> bool {
        self.returned.is_some()
    }

    /// Returns the SQL of a statement.
    pub(super) fn sql(&self, kind: StatementKind) -> String {
        let insert = match kind.takes_rows {
            true => self.set_insert.as_deref().unwrap_or_default(),
            false => &self.single_insert,
        };
        if kind.records_key {
            let returned = self.returned.as_deref().unwrap_or("null::text");
            let key = self.columns.len() + 1;
            let insert = format!("{insert} returning {returned} as returned");
            return record_request_sql(&insert, key, self.keep_keys);
        }
        match &self.returned {
            Some(returned) => format!("{insert} returning {returned}"),
            None => insert.to_owned(),
        }
    }

    /// Returns the types of a statement's parameters. A column may have another type by now. Then
    /// the server refuses the statement, if that proves the types; otherwise it casts the values.
    pub(super) fn parameter_types(&self, kind: StatementKind) -> Vec<Type> {
        // The driver sends the OID alone.
        let ty = |oid: u32| Type::new(oid.to_string(), oid, Kind::Simple, String::new());
        let types = self.columns.iter().map(|column| match column.element_and_array {
            Some((_, array)) if kind.takes_rows => ty(array),
            _ => ty(column.ty),
        });
        let key = if kind.records_key { 2 } else { 0 };
        types.chain(std::iter::repeat_n(Type::TEXT, key)).collect()
    }

    /// Returns the OIDs of the elements of the arrays by which many records are sent.
    pub(super) fn elements(&self) -> impl Iterator<Item = u32> {
        self.columns.iter().map(|it| it.element_and_array.map_or(0, |(element, _)| element))
    }

    /// Appends a record to `rows`. `fields` are the texts of the requested columns in their order,
    /// as PostgreSQL's input functions take them; `None` is NULL.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the number of fields is not the number of columns.
    pub fn push_record(&self, fields: &[Option<&[u8]>], rows: &mut EncodedRows) -> Result<()> {
        if fields.len() != self.columns.len() {
            let (has, wants) = (fields.len(), self.columns.len());
            let message = format!("a record has {has} values, expected {wants}");
            return Err(Error::new(ErrorKind::Usage, message));
        }
        let is_long = |field: &Option<&[u8]>| field.is_some_and(|it| it.len() > FIELD_BYTES_MAX);
        if fields.iter().any(is_long) {
            let message = "a value has more than 1 GiB";
            return Err(Error::new(ErrorKind::Usage, message));
        }
        for column in &self.columns {
            rows.push_field(fields[column.position], column.encoder.as_ref());
        }
        rows.end_row();
        Ok(())
    }
}

/// Returns why a key could outlive its rows, or the rows their key, if that may be. Keys are in a
/// logged table of the server to which the client is connected.
fn find_keys_obstacle(table: &TargetTable) -> Option<&'static str> {
    match table.unlogged {
        UnloggedExtent::Nothing if table.commits_across_nodes || table.has_foreign_parts => {
            Some("its rows are on another server, which commits for itself")
        }
        UnloggedExtent::Nothing if table.is_written_by_triggers => {
            Some("it is a view whose triggers may write the rows into any table")
        }
        UnloggedExtent::Nothing => None,
        _ => Some("it is unlogged, so a crash of the server empties it"),
    }
}

/// Refuses a column that the table lacks, or that is named twice.
fn check_columns(request: &InsertRequest, table: &TargetTable) -> Result<()> {
    let names: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
    let key = match &request.on_conflict {
        OnConflict::Refuse => &Vec::new(),
        OnConflict::Ignore(key) | OnConflict::Update(key) => key,
    };
    if matches!(&request.on_conflict, OnConflict::Update(key) if key.is_empty()) {
        let message = "an update on conflict needs the columns of a unique index";
        let hint = "Give these columns as the key, for example `key=[\"id\"]` in Python.";
        return Err(Error::new(ErrorKind::Usage, message).hint(hint));
    }
    let returned = request.returning.iter().filter(|name| *name != "*");
    for name in request.columns.iter().chain(key).chain(returned) {
        if !names.contains(&name.as_str()) {
            let message = format!("column \"{name}\" of table {} does not exist", table.sql_name);
            return Err(Error::new(ErrorKind::Usage, message)
                .with_sqlstate(SqlState::UNDEFINED_COLUMN)
                .hint_if(did_you_mean("column", name, names.iter().copied())));
        }
    }
    let mut seen = HashSet::new();
    match request.columns.iter().find(|name| !seen.insert(*name)) {
        Some(name) => {
            let message = format!("column \"{name}\" is named twice");
            Err(Error::new(ErrorKind::Usage, message))
        }
        None => Ok(()),
    }
}

/// Returns the INSERT of one record, and the INSERT of many records as arrays.
fn inserts_sql(
    request: &InsertRequest,
    table: &TargetTable,
    columns: &[ShapeColumn],
    proves_types: bool,
) -> (String, String) {
    let conflict = conflict_sql(request);
    let into = format!("insert into {} as {ALIAS}", table.sql_name);
    if columns.is_empty() {
        return (format!("{into} default values{conflict}"), String::new());
    }
    let names: Vec<_> =
        columns.iter().map(|column| quote_ident(&request.columns[column.position])).collect();
    let numbers: Vec<String> = (1..=names.len()).map(|n| format!("${n}")).collect();
    let unnest: Vec<String> =
        numbers.iter().map(|number| format!("pg_catalog.unnest({number})")).collect();
    let (list, values, unnest) = (names.join(", "), numbers.join(", "), unnest.join(", "));
    let set = format!("{into} ({list}) select * from rows from ({unnest}) r");
    if !proves_types {
        let single = format!("{into} ({list}) values ({values})");
        return (format!("{single}{conflict}"), format!("{set}{conflict}"));
    }
    let condition = |takes_rows| {
        let types = columns.iter().zip(&names).zip(&numbers).map(|((column, name), number)| {
            column.type_condition(&format!("(null::{}).{name}", table.sql_name), number, takes_rows)
        });
        types.collect::<Vec<_>>().join(" and ")
    };
    let single = format!("{into} ({list}) select {values} where {}{conflict}", condition(false));
    (single, format!("{set} where {}{conflict}", condition(true)))
}

/// Returns the ON CONFLICT clause.
fn conflict_sql(request: &InsertRequest) -> String {
    let quoted = |names: &[String]| {
        names.iter().map(|name| quote_ident(name)).collect::<Vec<_>>().join(", ")
    };
    match &request.on_conflict {
        OnConflict::Refuse => String::new(),
        OnConflict::Ignore(key) if key.is_empty() => " on conflict do nothing".to_owned(),
        OnConflict::Ignore(key) => format!(" on conflict ({}) do nothing", quoted(key)),
        OnConflict::Update(key) => {
            let assigned = request.columns.iter().filter(|name| !key.contains(name));
            let mut assignments: Vec<String> = assigned.map(|name| assign(name)).collect();
            if assignments.is_empty() {
                // An update that changes nothing still returns the row.
                assignments = key.iter().map(|name| assign(name)).collect();
            }
            format!(" on conflict ({}) do update set {}", quoted(key), assignments.join(", "))
        }
    }
}

fn assign(name: &str) -> String {
    let name = quote_ident(name);
    format!("{name} = excluded.{name}")
}

/// Returns the expression of the requested columns as one JSON object.
fn returned_sql(request: &InsertRequest, table: &TargetTable) -> Option<String> {
    if request.returning.is_empty() {
        return None;
    }
    let names = returned_names(request, table);
    let names: Vec<String> =
        names.iter().map(|name| format!("{ALIAS}.{}", quote_ident(name))).collect();
    // `r` alone would be a column of this name.
    Some(format!("(select pg_catalog.row_to_json(r.*)::text from (select {}) r)", names.join(", ")))
}

/// Returns the names of the returned columns. `*` stands for all columns.
fn returned_names(request: &InsertRequest, table: &TargetTable) -> Vec<String> {
    let all = || table.columns.iter().map(|column| column.name.clone());
    let mut names = Vec::new();
    for asked in &request.returning {
        match asked.as_str() {
            "*" => names.extend(all()),
            _ => names.push(asked.clone()),
        }
    }
    names
}

/// Returns columns of a table with their types.
fn types_of(table: &TargetTable, names: &[String]) -> impl Iterator<Item = (String, PgType)> {
    names.iter().filter_map(|name| {
        let column = table.columns.iter().find(|column| column.name == *name)?;
        Some((name.clone(), column.ty.clone()))
    })
}
