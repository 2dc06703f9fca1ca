//! Which columns identify a row, which are compared, and how.
//!
//! Rows are matched by the types' own equality, as unique indexes match them, with NULL equal to
//! NULL. They are compared by what they hold: where equal values may look different (`1.0` and
//! `1.00`, `Ada` and `ada` in citext), what differs is written.

use std::collections::HashMap;

use tokio_postgres::Client;

use crate::plan::PlannedColumn;
use crate::stage::keys::{self, EQUALS};
use crate::{Error, ErrorKind, Result};
use pgspate_target::{Column, Table, quote_ident, server_error};

/// Whether no two rows of the table can have the same key: a unique index on nothing but columns of
/// it, none of which can be NULL, that finds equal what the columns' types do. A table's index does
/// not see the rows of tables that inherit from it.
const IS_UNIQUE: &str = "\
select exists (
    select from pg_index i
    join pg_class t on t.oid = i.indrelid
    where i.indrelid = $1 and i.indisunique and i.indisvalid and i.indpred is null
      and (t.relkind = 'p' or not exists (select from pg_inherits where inhparent = t.oid))
      and i.indexprs is null and (
        select bool_and(a.attnotnull and a.attname = any($2) and c.opcdefault
                        and i.indcollation[k.nth - 1] = a.attcollation)
        from unnest(i.indkey::int2[]) with ordinality as k(attnum, nth)
        join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
        join pg_opclass c on c.oid = i.indclass[k.nth - 1]
        where k.nth <= i.indnkeyatts))";

/// A column of the target that the source has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SyncColumn {
    /// As SQL writes it.
    pub(super) name: String,
    /// The operator that finds values of its type equal, as SQL names it on any search path.
    pub(super) equals: String,
    pub(super) is_nullable: bool,
    /// Equal values are the same value.
    pub(super) is_exact: bool,
    /// Never written by an update: the server forbids it.
    pub(super) is_fixed: bool,
    /// Not compared.
    pub(super) is_ignored: bool,
}

/// The columns by their part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SyncColumns {
    pub(super) key: Vec<SyncColumn>,
    pub(super) others: Vec<SyncColumn>,
    /// The table has each key once.
    pub(super) key_is_unique: bool,
    /// Rows that differ are found again by key: where the table is kept on several servers, a
    /// place is not one row's.
    pub(super) found_by_key: bool,
}

/// Whether the table has each key once.
pub(super) async fn is_unique(client: &Client, table: &Table, key: &[String]) -> Result<bool> {
    let failed = server_error(format!("could not look up the keys of {}", table.sql_name));
    Ok(client.query_one(IS_UNIQUE, &[&table.oid, &key]).await.map_err(failed)?.get(0))
}

impl SyncColumns {
    /// Sorts the written columns. `key`: as the user names them, or the primary key's.
    pub(super) fn sort(
        table: &Table,
        written: &[PlannedColumn],
        key: &[String],
        ignored: &[String],
        lenient: &[String],
        operators: &HashMap<String, String>,
    ) -> Result<SyncColumns> {
        if key.is_empty() {
            let message = format!("{} has no primary key to match rows by", table.sql_name);
            return Err(Error::new(ErrorKind::Usage, message)
                .hint("Name the columns that identify a row with `--key a,b`."));
        }
        for name in key.iter().chain(ignored) {
            let is_written = written.iter().any(|column| column.name == *name);
            let is_there = table.columns.iter().any(|column| column.name == *name);
            let problem = match (is_there, is_written) {
                (_, true) => continue,
                (true, false) => format!("column \"{name}\" is not in the source"),
                (false, _) => {
                    format!("column \"{name}\" of relation \"{}\" does not exist", table.name)
                }
            };
            return Err(Error::new(ErrorKind::Usage, problem));
        }
        let column = |name: &str| table.columns.iter().find(|column| column.name == name);
        let sorted = |name: &str| -> Option<SyncColumn> {
            let mut sorted = SyncColumn::of(column(name)?);
            sorted.is_exact &= !lenient.iter().any(|other| other == name);
            if let Some(operator) = operators.get(name) {
                operator.clone_into(&mut sorted.equals);
            }
            sorted.is_ignored = ignored.iter().any(|other| other == name);
            Some(sorted)
        };
        let others = written.iter().map(|column| column.name.as_str());
        let others = others.filter(|name| !key.iter().any(|of_key| of_key == name));
        Ok(SyncColumns {
            key: key.iter().filter_map(|name| sorted(name)).collect(),
            others: others.filter_map(sorted).collect(),
            key_is_unique: false,
            found_by_key: false,
        })
    }

    /// All, the key first.
    pub(super) fn all(&self) -> impl Iterator<Item = &SyncColumn> {
        self.key.iter().chain(&self.others)
    }

    /// Those whose difference makes a row another one. Of the key, those that can be equal and
    /// yet differ.
    pub(super) fn compared(&self) -> impl Iterator<Item = &SyncColumn> {
        let key = self.key.iter().filter(|column| !column.is_exact);
        key.chain(&self.others).filter(|column| !column.is_ignored && !column.is_fixed)
    }

    /// Those that an update sets.
    pub(super) fn set(&self) -> impl Iterator<Item = &SyncColumn> {
        let key = self.key.iter().filter(|column| !column.is_exact);
        key.chain(&self.others).filter(|column| !column.is_fixed)
    }
}

impl SyncColumn {
    fn of(column: &Column) -> SyncColumn {
        SyncColumn {
            name: quote_ident(&column.name).into_owned(),
            equals: EQUALS.to_owned(),
            is_nullable: !column.not_null,
            is_exact: keys::is_exact(column),
            is_fixed: column.is_identity,
            is_ignored: false,
        }
    }

    /// Whether the columns of two rows match, NULL with NULL. Arrays have that equality, and it
    /// can be hashed and sorted, which `is not distinct from` cannot.
    pub(super) fn matches(&self, left: &str, right: &str) -> String {
        let name = &self.name;
        match self.is_nullable {
            true => format!("array[{left}.{name}] {EQUALS} array[{right}.{name}]"),
            false => format!("{left}.{name} {} {right}.{name}", self.equals),
        }
    }
}
