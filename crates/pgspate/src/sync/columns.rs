//! Decides which columns identify a row, which are compared, and how.
//!
//! Rows are matched by the equality of the key columns' types, as in a unique index, with NULL
//! equal to NULL. Matched rows are compared by their stored values. If equal values have different
//! text, such as `1.0` and `1.00`, or `Ada` and `ada` in citext, the difference is written.

use std::collections::HashMap;

use tokio_postgres::Client;

use super::staging::Staging;
use super::statements::Scope;
use super::{SyncOptions, vacuum};
use crate::plan::PlannedColumn;
use crate::stage::keys::{self, EQUALS};
use crate::{Error, ErrorKind, Result, did_you_mean};
use pgspate_target::ledger::check_no_dropped_keys;
use pgspate_target::{TargetColumn, TargetTable, TypeKind, quote_ident, server_error};

/// Oids of `int2vector` and `oidvector`, which are arrays by another name.
const ARRAY_LIKE_TYPES: [u32; 2] = [22, 30];

/// Oids of `float4` and `float8`.
const FLOAT_TYPES: [u32; 2] = [700, 701];

/// Most columns that a sync compares. A table has at most 1600 columns, and the table of
/// differences has three columns beside those of the source.
const COLUMNS_MAX: usize = 1597;

/// A column of the target that the source has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SyncColumn {
    /// The column's name, quoted as in SQL.
    pub(super) name: String,
    /// The equality operator of the column's type, schema-qualified.
    pub(super) equals: String,
    pub(super) is_nullable: bool,
    /// Whether the type is an array.
    pub(super) is_array: bool,
    /// Whether equal values are identical.
    pub(super) is_exact: bool,
    /// Whether the type is a float. Its equal values are identical, except 0 and -0, and NaNs,
    /// which all read as NaN.
    pub(super) is_float: bool,
    /// Whether an update cannot set the column, as for `generated always as identity`.
    pub(super) is_fixed: bool,
    /// Whether the column is not compared.
    pub(super) is_ignored: bool,
}

/// The columns by their role in the sync.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SyncColumns {
    pub(super) key: Vec<SyncColumn>,
    pub(super) others: Vec<SyncColumn>,
    /// Whether the table cannot have two rows with the same key.
    pub(super) key_is_unique: bool,
    /// Whether an UPDATE may set key columns. If not, equal keys are not compared byte by byte.
    pub(super) may_set_key: bool,
}

/// Returns whether the column's type is an array, or a domain over an array.
fn is_array(column: &TargetColumn) -> bool {
    let base = column.ty.base();
    matches!(base.kind, TypeKind::Array(..)) || ARRAY_LIKE_TYPES.contains(&base.oid)
}

/// Checks that the server can match rows by these columns of `table`. `role` says what the columns
/// are for, in words. `operators` are the equality operators that are known by column.
///
/// # Errors
/// [`ErrorKind::Plan`] for a type whose values cannot be compared, such as json or point.
pub(super) async fn check_comparable(
    client: &Client,
    table: &TargetTable,
    role: &str,
    names: &[String],
    operators: &HashMap<String, String>,
) -> Result<()> {
    let is_unsure =
        |it: &&TargetColumn| names.contains(&it.name) && !operators.contains_key(&it.name);
    for column in table.columns.iter().filter(is_unsure) {
        // Only the server knows whether arrays, rows and types of extensions can be matched. The
        // condition must have no other part by which the server could join.
        let sync_column =
            SyncColumn { is_nullable: true, is_array: false, ..SyncColumn::of(column) };
        let name = &sync_column.name;
        let rows = format!("(select null::{} as {name})", column.ty.name);
        let sql = format!(
            "explain select from {rows} a full join {rows} b on {}",
            sync_column.matches("a", "b")
        );
        let failed = server_error(format!("could not compare column \"{}\"", column.name));
        let Err(refusal) = client.batch_execute(&sql).await.map_err(failed) else { continue };
        if refusal.sqlstate().is_none() {
            return Err(refusal);
        }
        return Err(incomparable_error(table, column, role));
    }
    Ok(())
}

/// Returns the error for a column whose values the server cannot compare.
fn incomparable_error(table: &TargetTable, column: &TargetColumn, role: &str) -> Error {
    let (name, ty) = (&column.name, &column.ty.name);
    let message = format!(
        "column \"{name}\" of the {role} has type {ty}, and the server cannot tell whether two \
         values of this type are equal"
    );
    let jsonb = match ty.strip_prefix("json") {
        Some(rest @ ("" | "[]")) => format!(
            " Or compare as jsonb: `alter table {} alter column {} type jsonb{rest}`.",
            table.sql_name,
            quote_ident(name)
        ),
        _ => String::new(),
    };
    Error::new(ErrorKind::Plan, message)
        .hint(format!("Name columns of other types for the {role}, such as an id.{jsonb}"))
}

/// Decides which columns are the key, and which are compared or ignored.
pub(super) async fn classify_columns(
    staging: &Staging,
    options: &SyncOptions,
) -> Result<SyncColumns> {
    let (table, client) = (&staging.table, &staging.control().client);
    if options.vacuums && !vacuum::is_allowed(staging.control(), table.oid).await? {
        let message = format!("this role may not vacuum {}", table.sql_name);
        return Err(Error::new(ErrorKind::Plan, message)
            .hint("Leave out `--vacuum`, or run the sync as the table's owner."));
    }
    let nondeterministic = keys::nondeterministic_columns(client, table).await?;
    let key = match options.key.is_empty() {
        false => options.key.clone(),
        true => table.primary_key(),
    };
    if key.is_empty() {
        check_no_dropped_keys(client, table.oid).await?;
    }
    let is_unique = table.is_unique(&key);
    let operators = keys::equality_operators(client, table).await?;
    check_comparable(client, table, "key", &key, &operators).await?;
    if let Scope::By(names) = &options.scope {
        check_comparable(client, table, "scope", names, &operators).await?;
    }
    let (written, ignored) = (&staging.plan.columns, &options.ignored);
    let columns =
        SyncColumns::classify(table, written, &key, ignored, &nondeterministic, &operators)?;
    let storage = table.storage.facts();
    if let (Some(extension), false, false) =
        (storage.extension, storage.has_row_addresses, is_unique)
    {
        let message = format!(
            "{} {} of {extension}, so rows are found by key only, but no unique index covers the \
             key",
            table.sql_name, storage.lack_of_addresses
        );
        return Err(Error::new(ErrorKind::Plan, message).hint("Name a unique key with `--key`."));
    }
    if let Scope::By(names) = &options.scope {
        for name in names {
            if !staging.plan.columns.iter().any(|column| column.name == *name) {
                return Err(staging.missing_scope_column(name));
            }
        }
    }
    Ok(SyncColumns { key_is_unique: is_unique, may_set_key: storage.may_set_key, ..columns })
}

impl SyncColumns {
    /// Classifies the columns of the source. `key` names the key's columns, and `ignored` the
    /// columns that are not compared.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if `key` is empty, or if the table or the source lacks a named column.
    pub(super) fn classify(
        table: &TargetTable,
        written: &[PlannedColumn],
        key: &[String],
        ignored: &[String],
        nondeterministic: &[String],
        operators: &HashMap<String, String>,
    ) -> Result<SyncColumns> {
        if key.is_empty() {
            let message = format!("{} has no primary key to match rows by", table.sql_name);
            return Err(Error::new(ErrorKind::Usage, message)
                .hint("Name the columns that identify a row with `--key a,b`."));
        }
        for name in key.iter().chain(ignored) {
            let is_written = written.iter().any(|column| column.name == *name);
            let is_in_table = table.columns.iter().any(|column| column.name == *name);
            let problem = match (is_in_table, is_written) {
                (_, true) => continue,
                (true, false) => format!("column \"{name}\" is not in the source"),
                (false, _) => {
                    format!("column \"{name}\" of relation \"{}\" does not exist", table.name)
                }
            };
            let names = table.columns.iter().map(|column| column.name.as_str());
            let hint = "Name columns of the source that identify a row with `--key a,b`.";
            let is_missing_key = is_in_table && key.contains(name);
            return Err(Error::new(ErrorKind::Usage, problem)
                .hint_if(is_missing_key.then_some(hint))
                .hint_if(did_you_mean("column", name, names).filter(|_| !is_in_table)));
        }
        if written.len() > COLUMNS_MAX {
            let message = format!(
                "the source has {} columns, but a sync compares at most {COLUMNS_MAX}",
                written.len()
            );
            return Err(Error::new(ErrorKind::Plan, message).hint(
                "Leave columns out of the source, or replace the rows with `pgspate load`.",
            ));
        }
        let column = |name: &str| table.columns.iter().find(|column| column.name == name);
        let sync_column = |name: &str| -> Option<SyncColumn> {
            let mut sync_column = SyncColumn::of(column(name)?);
            sync_column.is_exact &= !nondeterministic.iter().any(|other| other == name);
            if let Some(operator) = operators.get(name) {
                operator.clone_into(&mut sync_column.equals);
            }
            sync_column.is_ignored = ignored.iter().any(|other| other == name);
            Some(sync_column)
        };
        let others = written.iter().map(|column| column.name.as_str());
        let others = others.filter(|name| !key.iter().any(|of_key| of_key == name));
        Ok(SyncColumns {
            key: key.iter().filter_map(|name| sync_column(name)).collect(),
            others: others.filter_map(sync_column).collect(),
            key_is_unique: false,
            may_set_key: true,
        })
    }

    /// Returns all columns, the key first.
    pub(super) fn all(&self) -> impl Iterator<Item = &SyncColumn> {
        self.key.iter().chain(&self.others)
    }

    /// Returns the columns that are compared. A key column is compared only if its equal values may
    /// have different text.
    pub(super) fn compared(&self) -> impl Iterator<Item = &SyncColumn> {
        let key = self.key.iter().filter(|column| !column.is_exact && self.may_set_key);
        key.chain(&self.others).filter(|column| !column.is_ignored && !column.is_fixed)
    }

    /// Returns the columns that an update sets.
    pub(super) fn set(&self) -> impl Iterator<Item = &SyncColumn> {
        let key = self.key.iter().filter(|column| !column.is_exact && self.may_set_key);
        key.chain(&self.others).filter(|column| !column.is_fixed)
    }
}

impl SyncColumn {
    fn of(column: &TargetColumn) -> SyncColumn {
        SyncColumn {
            name: quote_ident(&column.name).into_owned(),
            equals: EQUALS.to_owned(),
            is_nullable: !column.not_null,
            is_array: is_array(column),
            is_exact: keys::is_exact(column),
            is_float: FLOAT_TYPES.contains(&column.ty.base().oid),
            is_fixed: column.is_identity_always,
            is_ignored: false,
        }
    }

    /// Returns SQL that is true if the column is equal in two rows, with NULL equal to NULL. The
    /// SQL compares arrays, whose equality treats NULLs as equal. Unlike `is not distinct from`,
    /// array equality can be hashed and sorted.
    pub(super) fn matches(&self, left: &str, right: &str) -> String {
        let name = &self.name;
        let in_arrays = format!("array[{left}.{name}] {EQUALS} array[{right}.{name}]");
        match (self.is_nullable, self.is_array) {
            // An array of a NULL array is an empty array, as is an array of an empty array.
            (true, true) => format!(
                "(({left}.{name} is null) {EQUALS} ({right}.{name} is null) and {in_arrays})"
            ),
            (true, false) => in_arrays,
            (false, _) => format!("{left}.{name} {} {right}.{name}", self.equals),
        }
    }

    /// Returns SQL that is true if the column is not identical in two rows. The column must be
    /// exact or a float. If a value is NULL in a column that may not be NULL, the rows differ.
    pub(super) fn differs(&self, left: &str, right: &str) -> String {
        let [left, right] = [left, right].map(|of| format!("{of}.{}", self.name));
        let differs = match self.is_nullable {
            true => keys::differ_sql(&left, &self.equals, &right),
            false => format!("({left} {} {right}) is not true", self.equals),
        };
        match self.is_exact {
            true => differs,
            false => {
                let image_differs = keys::image_differs_sql(&left, &right);
                format!("({differs}) or ({left} {} '0' and {image_differs})", self.equals)
            }
        }
    }
}
