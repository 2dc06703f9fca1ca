//! Reads the facts about a target table that are needed to apply events to the table.
//!
//! Each table is read when the stream first names it, and again after its columns were altered.
//! Nothing is changed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use tokio_postgres::Client;

use crate::encode::field::FieldEncoder;
use crate::stage::keys::{self, EQUALS};
use crate::stage::referrers;
use crate::{Error, ErrorKind, Result};
use pgspate_events::fold::FoldKey;
use pgspate_events::key_form::KeyForm;
use pgspate_target::{
    KnownDefinitions, NO_HYPERTABLE_GUARD, PgType, SessionSettings, TableStorage, TargetColumn,
    TargetTable, TypeKind, TypedQuery, UnloggedExtent, has_inheriting_tables, quote_ident,
    server_error, users_path_sql,
};

/// A writable column of a target table.
#[derive(Debug, Clone)]
pub(crate) struct ApplyColumn {
    /// The name, unquoted.
    pub(crate) name: String,
    /// The name, quoted for SQL.
    pub(crate) sql: String,
    /// `pg_type.typname`; for a domain, of its base type.
    pub(crate) typname: Arc<str>,
    /// For a domain: its base type in SQL. The stage uses this type, as the domain may reject NULL.
    pub(crate) base_type: Option<String>,
    /// The default value as an SQL expression.
    pub(crate) default: String,
    /// The type's equality operator, schema-qualified for SQL.
    pub(crate) equals_operator: String,
    /// Whether equal values are always identical. 1.0 and 1.00 are equal but not identical.
    pub(crate) is_exact: bool,
    /// Whether the column is `generated always as identity`, which no update may set.
    pub(crate) is_identity_always: bool,
}

/// A target table of events.
#[derive(Debug, Clone)]
pub(crate) struct ApplyTable {
    pub(crate) table: TargetTable,
    /// The writable columns, in the table's order.
    pub(crate) columns: Vec<ApplyColumn>,
    /// Names of generated columns. Events may name them too.
    pub(crate) generated: Vec<String>,
    /// The key: positions in `columns`, and how each type's spellings are made comparable.
    pub(crate) fold_key: FoldKey,
    /// The columns' encoders; `None` if any column has none.
    pub(crate) encoders: Option<Vec<FieldEncoder>>,
    /// Whether tables inherit from this table. Such tables have rows and events of their own.
    pub(crate) has_inheriting_tables: bool,
    /// OIDs of the tables that its foreign keys reference, of their partitions, and of the tables
    /// that they are partitions of.
    pub(crate) parent_oids: Vec<u32>,
    /// Whether a foreign key references the table and is checked, or acts, before the commit.
    pub(crate) is_referenced: bool,
    /// SQL conditions: a row of some table references row `t`.
    pub(crate) referrers: Vec<String>,
    /// The referrer conditions whose foreign key deletes or changes the referencing rows.
    pub(crate) cascading_referrers: Vec<String>,
    /// Whether triggers of the table may keep changes out.
    pub(crate) may_keep_rows_out: bool,
    /// Whether the table has triggers, apart from those of foreign keys.
    pub(crate) has_triggers: bool,
    /// Whether a foreign key that references the table changes or deletes the referencing rows.
    pub(crate) has_acting_referrers: bool,
    /// Columns outside the key, as positions in `columns`: an update of one of them also changes
    /// the rows that reference it.
    pub(crate) acting_columns: Vec<usize>,
    /// Unique indexes except the key: positions in `columns`.
    pub(crate) unique_indexes: Vec<Vec<usize>>,
    /// Whether the key is the table's primary key.
    pub(crate) has_primary_key: bool,
    /// Whether any constraint or index except the key may refuse a row because of another row.
    pub(crate) has_other_uniqueness: bool,
    /// The type's OID of each column, and whether the column is writable. `None` if rows cannot be
    /// parameters of the table's row type: a domain may reject the NULL of an absent value, or
    /// rows have no addresses.
    pub(crate) record_types: Option<Vec<(u32, bool)>>,
    /// Differs between any two reads of a table, so that each has a stage of its own.
    pub(crate) version: u32,
    /// Whether the table was altered since, so that the router must read the table again.
    pub(crate) is_outdated: Arc<AtomicBool>,
}

/// Returns a new version of a table's facts.
fn next_version() -> u32 {
    static VERSIONS: AtomicU32 = AtomicU32::new(0);
    VERSIONS.fetch_add(1, Relaxed)
}

const COLUMN_TYPES_SQL: &str = "\
with recursive types(attname, typid, identity, typmod, is_beneath) as (
  select a.attname::text, a.atttypid, a.attidentity::text, a.atttypmod, false from pg_attribute a
  where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped
  union all
  select types.attname, t.typbasetype, types.identity, t.typtypmod, true from types
  join pg_type t on t.oid = types.typid where t.typbasetype <> 0)
select attname, t.typname::text, identity = 'a',
       case when identity <> '' then pg_get_serial_sequence($2, attname) end,
       case when is_beneath then format_type(typid, typmod) end
from types join pg_type t on t.oid = types.typid where t.typbasetype = 0";

/// For a table without a usable primary key: the narrowest unique index that identifies every row.
/// Events do not give the values of generated columns.
const UNIQUE_KEY_SQL: &str = "\
select array(select a.attname::text
             from unnest(i.indkey::int2[]) with ordinality as k(attnum, nth)
             join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
             where k.nth <= i.indnkeyatts order by k.nth)
from pg_index i
where i.indrelid = $1 and i.indisunique and i.indimmediate and i.indisvalid
  and i.indpred is null and i.indexprs is null
  and not exists (select from unnest(i.indkey::int2[]) with ordinality as k(attnum, nth)
                  join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
                  where k.nth <= i.indnkeyatts and (not a.attnotnull or a.attgenerated <> ''))
order by i.indisreplident desc, i.indnkeyatts, i.indexrelid limit 1";

const UNIQUE_INDEXES_SQL: &str = "\
select array(select a.attname::text
             from unnest(i.indkey::int2[]) with ordinality as k(attnum, nth)
             join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
             where k.nth <= i.indnkeyatts order by k.nth),
       i.indisunique and i.indimmediate and i.indpred is null and i.indexprs is null,
       i.indisprimary and not i.indimmediate, i.indisexclusion
from pg_index i
where i.indrelid = $1 and (i.indisunique or i.indisexclusion) and i.indisvalid";

const REFERENCES_SQL: &str = "\
with parts(relid) as (select $1::oid union select relid::oid from pg_partition_tree($1::oid)),
     parents(relid) as (select confrelid from pg_constraint
                        where contype = 'f' and conrelid in (select relid from parts))
select array(select relid from parents
             union select t.relid::oid from parents p, pg_partition_tree(p.relid) t
             union select a.relid::oid from parents p, pg_partition_ancestors(p.relid) a),
       exists (select from pg_constraint
               where contype = 'f' and confrelid in (select relid from parts)
                 and not (condeferrable and confdeltype = 'a')),
       exists (select from pg_trigger
               where tgrelid in (select relid from parts) and tgtype & 3::int2 = 3::int2
                 and tgenabled <> 'D' and {no_guard}),
       exists (select from pg_trigger
               where tgrelid in (select relid from parts)
                 -- PostgreSQL 13 and 14 take a partition's copies of triggers for their own.
                 and (not tgisinternal or tgconstraint = 0))";

/// Defaults by column name: of the column, or else of its domain. All names are qualified, because
/// the user's search path is active.
const DEFAULTS_SQL: &str = "\
select a.attname::pg_catalog.text,
       coalesce(pg_catalog.pg_get_expr(d.adbin, d.adrelid),
                pg_catalog.pg_get_expr(t.typdefaultbin, 0))
from pg_catalog.pg_attribute a
join pg_catalog.pg_type t on t.oid operator(pg_catalog.=) a.atttypid
left join pg_catalog.pg_attrdef d
  on d.adrelid operator(pg_catalog.=) a.attrelid and d.adnum operator(pg_catalog.=) a.attnum
where a.attrelid operator(pg_catalog.=) $1
  and (d.oid is not null or t.typdefaultbin is not null)";

/// Reads the defaults as the server prints them under the search path of the later statements.
/// Functions and operators that the search path hides are printed with their schema.
async fn read_defaults(client: &Client, table: &TargetTable) -> Result<HashMap<String, String>> {
    let failed = || server_error(format!("could not look up the defaults of {}", table.sql_name));
    let begin = format!("begin; {}", users_path_sql(true));
    let oid = table.oid;
    let (begun, rows, ended) = tokio::join!(
        biased;
        client.batch_execute(&begin),
        async { client.fetch_all(DEFAULTS_SQL, &[&oid]).await },
        client.batch_execute("rollback")
    );
    begun.map_err(failed())?;
    ended.map_err(failed())?;
    Ok(rows.map_err(failed())?.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Checks that events can be applied to the relation.
///
/// # Errors
/// [`ErrorKind::Plan`] if the relation is no table, or has an `instead` rule or a rule for INSERT,
/// or if row-level security may hide rows of it.
fn check_takes_events(table: &TargetTable) -> Result<()> {
    table.check_is_user_schema()?;
    if !matches!(table.kind, 'r' | 'p') {
        let message = format!("{} is not a table", table.sql_name);
        return Err(Error::new(ErrorKind::Plan, message)
            .hint("Map the events to a table with `--map`, or leave them out with `--tables`."));
    }
    table.check_no_rule_for_events()?;
    if table.row_security {
        // Hidden rows would count as missing, and their updates and deletes would be lost.
        let message = format!(
            "row-level security of {} applies to this role and may hide rows of the stream",
            table.sql_name
        );
        return Err(Error::new(ErrorKind::Plan, message)
            .hint("Apply as a role that sees all rows: `alter role ... bypassrls`."));
    }
    Ok(())
}

fn writable_columns(table: &TargetTable) -> impl Iterator<Item = &TargetColumn> {
    table.columns.iter().filter(|column| !column.is_generated)
}

/// Reads the writable columns. `nondeterministic` has the names of the columns whose collation is
/// nondeterministic.
async fn read_columns(
    client: &Client,
    table: &TargetTable,
    nondeterministic: &[String],
) -> Result<Vec<ApplyColumn>> {
    let types = client.fetch_all(COLUMN_TYPES_SQL, &[&table.oid, &table.sql_name]).await;
    let types = types.map_err(lookup_error(table))?;
    let operators = keys::equality_operators(client, table).await?;
    let defaults = read_defaults(client, table).await?;
    let column = |column: &TargetColumn| {
        let row = types.iter().find(|row| row.get::<_, &str>(0) == column.name);
        let sequence: Option<String> = row.and_then(|row| row.get(3));
        ApplyColumn {
            name: column.name.clone(),
            sql: quote_ident(&column.name).into_owned(),
            typname: row.map_or("text", |row| row.get(1)).into(),
            base_type: row.and_then(|row| row.get(4)),
            default: match sequence {
                Some(sequence) => {
                    format!("pg_catalog.nextval('{}')", sequence.replace('\'', "''"))
                }
                None => defaults.get(&column.name).cloned().unwrap_or("null".to_owned()),
            },
            equals_operator: operators.get(&column.name).map_or(EQUALS, String::as_str).to_owned(),
            is_exact: keys::is_exact(column) && !nondeterministic.contains(&column.name),
            is_identity_always: row.is_some_and(|row| row.get(2)),
        }
    };
    Ok(writable_columns(table).map(column).collect())
}

/// Reads the columns of the primary key, or of a unique index that identifies every row.
async fn read_key(client: &Client, table: &TargetTable) -> Result<Vec<String>> {
    let key = table.primary_key();
    let is_generated =
        |name: &String| table.columns.iter().any(|it| it.name == *name && it.is_generated);
    if !key.is_empty() && !key.iter().any(is_generated) {
        return Ok(key);
    }
    let row = client.fetch_opt(UNIQUE_KEY_SQL, &[&table.oid]).await;
    Ok(row.map_err(lookup_error(table))?.map(|row| row.get(0)).unwrap_or_default())
}

/// Returns [`ApplyTable::record_types`].
fn record_types(table: &TargetTable) -> Option<Vec<(u32, bool)>> {
    let is_domain = |column: &TargetColumn| matches!(column.ty.kind, TypeKind::Domain(_));
    if table.columns.iter().any(is_domain) || !table.storage.facts().has_row_addresses {
        return None;
    }
    Some(table.columns.iter().map(|column| (column.ty.oid, !column.is_generated)).collect())
}

fn lookup_error(table: &TargetTable) -> impl FnOnce(tokio_postgres::Error) -> Error {
    server_error(format!("could not look up table {}", table.sql_name))
}

impl ApplyColumn {
    /// Returns SQL that compares two values with the type's equality operator.
    pub(crate) fn equal_sql(&self, left: &str, right: &str) -> String {
        format!("{left} {} {right}", self.equals_operator)
    }

    /// Returns SQL that is true if two values of the column differ.
    pub(crate) fn differ_sql(&self, left: &str, right: &str) -> String {
        keys::differ_sql(left, &self.equals_operator, right)
    }
}

impl ApplyTable {
    /// Reads the table `name`, which is quoted for SQL. Returns `None` if there is none.
    ///
    /// # Errors
    /// When the server does not answer, or when the relation is no table.
    pub(crate) async fn read(
        client: &Client,
        session: &SessionSettings,
        name: &str,
    ) -> Result<Option<ApplyTable>> {
        let Some(table) = TargetTable::read_with_fingerprint(client, name).await? else {
            return Ok(None);
        };
        check_takes_events(&table)?;
        let failed = || lookup_error(&table);
        let nondeterministic = keys::nondeterministic_columns(client, &table).await?;
        let columns = read_columns(client, &table, &nondeterministic).await?;
        let encoder = |column: &TargetColumn| FieldEncoder::new(&column.ty, session).ok();
        let encoders = writable_columns(&table).map(encoder).collect();
        let generated = table.columns.iter().filter(|column| column.is_generated);
        let generated = generated.map(|column| column.name.clone()).collect();
        let key = read_key(client, &table).await?;
        let at = |name: &String| columns.iter().position(|column| column.name == *name);
        let key_form = |name: &String| {
            let found = table.columns.iter().find(|column| column.name == *name)?;
            let is_nondeterministic = nondeterministic.contains(name);
            Some((at(name)?, KeyForm::of(&found.ty, session, is_nondeterministic)))
        };
        let unique = client.fetch_all(UNIQUE_INDEXES_SQL, &[&table.oid]).await.map_err(failed())?;
        // A type modifier rounds or cuts values. It does not tell spellings of a value apart.
        let value_form = |column: &TargetColumn| {
            KeyForm::of(&PgType { typmod: -1, ..column.ty.clone() }, session, false)
        };
        let fold_key = FoldKey {
            columns: key.iter().filter_map(key_form).collect(),
            value_forms: writable_columns(&table).map(value_form).collect(),
            is_deferrable: unique.iter().any(|row| row.get(2)),
        };
        let is_exclusion = |row: &tokio_postgres::Row| row.get::<_, bool>(3);
        let plain = unique.iter().filter(|row| row.get(1));
        let plain = plain.filter(|row| row.get::<_, Vec<String>>(0) != key);
        let positions =
            plain.filter_map(|row| row.get::<_, Vec<String>>(0).iter().map(at).collect());
        let references = REFERENCES_SQL.replace("{no_guard}", NO_HYPERTABLE_GUARD);
        let references = client.fetch_one(&references, &[&table.oid]).await.map_err(failed())?;
        let has_inheriting_tables = has_inheriting_tables(client, &table).await?;
        let referrers = referrers(client, &table).await?;
        let cascading = referrers.iter().filter(|it| it.cascades);
        let is_of_key = |at: &usize| fold_key.columns.iter().any(|(of_key, _)| of_key == at);
        let acting = referrers.iter().filter(|it| it.acts_on_update).flat_map(|it| &it.columns);
        let mut acting: Vec<_> = acting.filter_map(at).filter(|at| !is_of_key(at)).collect();
        acting.sort_unstable();
        acting.dedup();
        Ok(Some(ApplyTable {
            has_acting_referrers: referrers.iter().any(|it| it.cascades || it.acts_on_update),
            acting_columns: acting,
            cascading_referrers: cascading.map(|it| it.condition.clone()).collect(),
            referrers: referrers.into_iter().map(|it| it.condition).collect(),
            unique_indexes: positions.collect(),
            has_primary_key: key == table.primary_key(),
            has_other_uniqueness: unique.len() > 1 || unique.iter().any(is_exclusion),
            columns,
            generated,
            fold_key,
            encoders,
            parent_oids: references.get(0),
            is_referenced: references.get(1),
            may_keep_rows_out: references.get(2),
            has_triggers: references.get(3),
            record_types: record_types(&table),
            has_inheriting_tables,
            table,
            version: next_version(),
            is_outdated: Arc::default(),
        }))
    }

    /// Returns the table for SQL without its inheriting tables, which have events of their own.
    /// Partitions are included, and all shards of a distributed table.
    pub(crate) fn sql_without_children(&self) -> String {
        match self.has_inheriting_tables {
            true => format!("only {}", self.table.sql_name),
            false => self.table.sql_name.clone(),
        }
    }

    /// Checks whether the table has the column. Generated columns count.
    pub(crate) fn has_column(&self, name: &str) -> bool {
        self.columns.iter().any(|column| column.name == name)
            || self.generated.iter().any(|column| column == name)
    }

    /// Checks whether a foreign key of the table references the table itself.
    pub(crate) fn refers_to_itself(&self) -> bool {
        self.parent_oids.contains(&self.table.oid)
    }

    /// Checks whether deleting and re-inserting rows can free unique values for other rows.
    pub(crate) fn may_reinsert(&self) -> bool {
        let has_row_addresses = self.table.storage.facts().has_row_addresses;
        !self.unique_indexes.is_empty() && self.has_key() && has_row_addresses
    }

    /// Checks whether one statement may write a batch. The table must be a plain table of this
    /// server that survives a crash. No statement may have effects beyond the table's rows.
    pub(crate) fn may_write_by_one_statement(&self) -> bool {
        self.is_plain()
            && self.table.unlogged == UnloggedExtent::Nothing
            && (self.has_fingerprint() && !self.has_acting_referrers)
    }

    /// Checks whether the table is a plain table of this server, without rules and triggers.
    fn is_plain(&self) -> bool {
        let table = &self.table;
        (table.kind == 'r' && table.storage == TableStorage::Plain && !table.commits_across_nodes)
            && (table.rules.is_empty() && !self.has_triggers)
    }

    /// Checks whether MERGE may write rows of the table. The server must count them by this table
    /// only, and no row may wait for another row to be deleted.
    pub(crate) fn may_merge(&self) -> bool {
        self.is_plain() && self.has_key() && !self.has_other_uniqueness
    }

    /// Checks whether alterations matter that leave the columns' names and types as they are.
    /// Columns that pgspate must not set may become ones that it must set. A key that is not the
    /// primary key may become nullable.
    pub(crate) fn needs_columns_mark(&self) -> bool {
        let is_fixed = |column: &ApplyColumn| column.is_identity_always;
        !self.generated.is_empty() || self.columns.iter().any(is_fixed) || !self.has_primary_key
    }

    /// Checks whether the table has a key.
    pub(crate) fn has_key(&self) -> bool {
        !self.fold_key.columns.is_empty()
    }

    /// Returns the table with one more column of type text.
    pub(crate) fn with_column(&self, name: &str) -> ApplyTable {
        let mut facts = self.clone();
        facts.columns.push(ApplyColumn {
            name: name.to_owned(),
            sql: quote_ident(name).into_owned(),
            typname: "text".into(),
            base_type: None,
            default: "null".to_owned(),
            equals_operator: EQUALS.to_owned(),
            is_exact: true,
            is_identity_always: false,
        });
        // Without encoders, rows are staged as text. Rows of the new type cannot be parameters
        // until the table is read again.
        facts.encoders = None;
        facts.record_types = None;
        facts.table.fingerprint.clear();
        facts.version = next_version();
        facts
    }

    /// Checks whether the columns begin with the columns of `old` and the key is the same, so that
    /// a log of events for `old` can be read.
    pub(crate) fn extends(&self, old: &ApplyTable) -> bool {
        let mut both = old.columns.iter().zip(&self.columns);
        self.columns.len() >= old.columns.len()
            && both.all(|(a, b)| a.name == b.name)
            && self.has_key_of(old)
    }

    /// Checks whether the key has the same columns as the key of `old`. If not, events that were
    /// checked against `old` may not identify their rows.
    pub(crate) fn has_key_of(&self, old: &ApplyTable) -> bool {
        let [names, old_names] = [self, old].map(|facts| {
            let key = facts.fold_key.columns.iter();
            let mut names: Vec<_> = key.map(|(at, _)| &facts.columns[*at].name).collect();
            names.sort();
            names
        });
        names == old_names
    }

    /// Checks whether the definition is known as the server has it. It is not if a column was just
    /// added, or if a batch changes the definition itself.
    pub(crate) fn has_fingerprint(&self) -> bool {
        !self.table.fingerprint.is_empty()
    }

    /// Returns the definitions of tables as they were read.
    pub(crate) fn known_definitions<'a>(
        all: impl IntoIterator<Item = &'a ApplyTable>,
    ) -> KnownDefinitions<'a> {
        let mut known = KnownDefinitions::default();
        for ApplyTable { table, has_inheriting_tables, .. } in all {
            // An insert may create a chunk of a hypertable, or a partition.
            let may_have_parts = table.kind == 'p' || table.storage != TableStorage::Plain;
            known.add(table, !has_inheriting_tables && !may_have_parts);
        }
        known
    }
}
