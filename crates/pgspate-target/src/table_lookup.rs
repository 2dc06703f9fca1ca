//! Reads the facts of a table in as few and as small queries as its kind needs.
//!
//! A new session pays for each query: the server fills its caches, and plans. So the first queries
//! read what every table has, and tell which other facts the table may have. The queries for those
//! are sent only then. All queries work on PostgreSQL 13 and newer.

use std::collections::HashMap;

use tokio_postgres::{Client, Error as DriverError, Row};

use super::search_path::{FOUND_TABLE, table_lookup_cte};
use super::table::{
    FINGERPRINT, NO_HYPERTABLE_GUARD, RewriteRule, TargetColumn, TargetTable, Trigger, UniqueKey,
};
use super::table_parts::{RowPlaces, UnloggedExtent, beneath_sql, row_places_sql};
use super::{TableStorage, TypedParameter, TypedQuery, server_error};
use crate::Result;
use pgspate_input::types::{PgType, TypeKind};

/// The table itself, and whether the database has Citus, and Citus or TimescaleDB, which may store
/// its rows. `{fingerprint}` is an expression.
const TABLE: &str = "\
select c.oid, n.nspname::text, c.relname::text, c.relkind::text,
       quote_ident(n.nspname) || '.' || quote_ident(c.relname), row_security_active(c.oid),
       c.relpersistence = 'u', c.relhassubclass, c.relhastriggers, c.relhasrules,
       exists (select from pg_extension where extname = 'citus'),
       exists (select from pg_extension where extname = 'timescaledb')
         or to_regclass('pg_catalog.pg_dist_partition') is not null,
       {fingerprint}
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.oid = (select oid from target)";

/// The columns, without defaults.
const COLUMNS: &str = "\
select attnum, attname::text, atttypid, atttypmod, format_type(atttypid, atttypmod), attnotnull,
       attgenerated <> '', attidentity::text, atthasdef, attcollation
from pg_attribute
where attrelid = {found} and attnum > 0 and not attisdropped
order by attnum";

/// The table's own indexes. The last column tells whether no two rows can be equal in the index's
/// columns, if these cannot be NULL and have the collations of the table.
const INDEXES: &str = "\
select i.indexrelid::regclass::text, i.indisunique or i.indisexclusion, i.indisprimary,
       i.indkey::int2[], i.indnkeyatts, i.indcollation::oid[],
       i.indisunique and i.indisvalid and i.indpred is null and i.indexprs is null
       and not exists (select from pg_opclass o
                       where o.oid = any(i.indclass::oid[]) and not o.opcdefault)
from pg_index i where i.indrelid = {found} order by 1";

/// Facts of relations that have partitions, children or rules, or are beneath a view.
/// `{places}` and `{rules}` are expressions.
const PARTS: &str = "\
select (select count(*) from pg_partition_tree(c.oid) where isleaf and relid <> c.oid),
       exists (select from pg_inherits where inhparent = c.oid), {places}, {rules}
from pg_class c where c.oid = $1";

/// The defaults of columns: the column's number, the default, and whether it calls a volatile
/// function other than `nextval`.
const DEFAULTS: &str = "\
select a.attnum,
       coalesce(pg_get_expr(d.adbin, d.adrelid),
                (select t.typdefault from pg_type t where t.oid = a.atttypid)),
       exists (select from regexp_matches(d.adbin::text, ':(?:func|opfunc)id (\\d+)', 'g') as m(id)
               join pg_proc p on p.oid = m.id[1]::oid
               where p.provolatile = 'v' and p.oid <> 'nextval(regclass)'::regprocedure)
from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped";

/// Every type used by the table's columns, including element, base and range subtypes.
const TYPES: &str = "\
with recursive used(oid) as (
  select atttypid from pg_attribute where attrelid = $1 and attnum > 0 and not attisdropped
  union
  select part.oid from used join pg_type t on t.oid = used.oid
  left join pg_range r on r.rngtypid = t.oid
  cross join lateral (values (t.typelem), (t.typbasetype), (coalesce(r.rngsubtype, 0))) part(oid)
  where part.oid <> 0)
select t.oid, format_type(t.oid, null), t.typtype::text, t.typbasetype, t.typtypmod,
       case when t.typcategory = 'A' and t.typlen = -1 and t.oid not in (22, 30)
            then t.typelem else 0 end,
       ascii(t.typdelim), coalesce(r.rngsubtype, 0),
       t.typreceive <> 0
from used join pg_type t on t.oid = used.oid left join pg_range r on r.rngtypid = t.oid";

/// Triggers, including row triggers that only a partition has.
const TRIGGERS: &str = "\
select tgname::text, tgtype & 1 = 1, tgtype & 66 <> 0 from pg_trigger
where (tgrelid = $1 or tgtype & 1 = 1 and tgparentid = 0
         and tgrelid in (select relid from pg_partition_tree($1)))
  and not tgisinternal and tgtype & 4 = 4 and {no_guard}
  and tgenabled in ('A', case current_setting('session_replication_role')
                           when 'replica' then 'R' else 'O' end)
order by tgname";

/// Foreign keys, including keys that only a partition has. A key to any part of the same
/// partitioned table counts as a key to the table itself.
const FOREIGN_KEYS: &str = "\
select conname::text, coalesce(pg_partition_root(confrelid), confrelid)
                      = coalesce(pg_partition_root(conrelid), conrelid)
from pg_constraint c
where contype = 'f'
  and (conrelid = $1
       or conparentid = 0 and conrelid in (select relid from pg_partition_tree($1)))
  and not exists (select from pg_constraint p where p.oid = c.conparentid
                    and p.conrelid = c.conrelid)
order by conname";

/// Unique indexes that only a partition has.
const INDEXES_OF_PARTITIONS: &str = "\
select i.indexrelid::regclass::text, true
from pg_index i join pg_class c on c.oid = i.indexrelid
where (i.indisunique or i.indisexclusion) and not c.relispartition and i.indrelid <> $1
  and i.indrelid in (select relid from pg_partition_tree($1))";

/// Oids of built-in types whose facts are known: base types with a binary form, without a default.
/// They are bool, bytea, "char", name, integers, text, oid, json, xml and jsonb. Also floats,
/// money, numeric, uuid, network addresses, char, varchar, bit strings, dates, times and interval.
const BASE_TYPES: [u32; 31] = [
    16, 17, 18, 19, 20, 21, 23, 25, 26, 114, 142, 650, 700, 701, 774, 790, 829, 869, 1042, 1043,
    1082, 1083, 1114, 1184, 1186, 1266, 1560, 1562, 1700, 2950, 3802,
];

/// A table that was looked up by its name, and the facts that the first queries have read.
pub struct FoundTable {
    table: TargetTable,
    /// The columns as in [`COLUMNS`].
    columns: Vec<Row>,
    /// Whether a column may have a default.
    may_have_defaults: bool,
    /// Whether the table may have partitions or children, or is a view.
    may_have_parts: bool,
    has_rules: bool,
    has_triggers: bool,
    /// Whether the database has an extension that may store the rows.
    has_extension: bool,
}

impl TargetTable {
    /// Reads the facts of the table `name`, which is written as in SQL. Returns `None` if the
    /// user's search path has no such table.
    ///
    /// # Errors
    /// [`ErrorKind::Server`](crate::ErrorKind::Server) if the server refuses the query, for example
    /// because the name is malformed.
    pub async fn read(client: &Client, name: &str) -> Result<Option<TargetTable>> {
        read(client, name, "''").await
    }

    /// Reads the facts with [`TargetTable::fingerprint`].
    ///
    /// # Errors
    /// Those of [`TargetTable::read`].
    pub async fn read_with_fingerprint(client: &Client, name: &str) -> Result<Option<TargetTable>> {
        read(client, name, FINGERPRINT).await
    }
}

async fn read(client: &Client, name: &str, fingerprint: &str) -> Result<Option<TargetTable>> {
    match FoundTable::look_up(client, name, fingerprint).await? {
        Some(found) => found.complete(client).await.map(Some),
        None => Ok(None),
    }
}

impl FoundTable {
    /// Looks up the table `name`, without its fingerprint. The queries are sent together.
    ///
    /// # Errors
    /// Those of [`TargetTable::read`].
    pub async fn find(client: &Client, name: &str) -> Result<Option<FoundTable>> {
        FoundTable::look_up(client, name, "''").await
    }

    /// Looks the table up again if it has no columns: another session may have replaced it between
    /// two of the queries.
    async fn look_up(client: &Client, name: &str, fingerprint: &str) -> Result<Option<FoundTable>> {
        match FoundTable::look_up_once(client, name, fingerprint).await? {
            Some(found) if found.columns.is_empty() => {
                FoundTable::look_up_once(client, name, fingerprint).await
            }
            found => Ok(found),
        }
    }

    async fn look_up_once(
        client: &Client,
        name: &str,
        fingerprint: &str,
    ) -> Result<Option<FoundTable>> {
        let failed = || lookup_error(name);
        let table = TABLE.replace("{fingerprint}", fingerprint);
        let table = format!("with {} {table}", table_lookup_cte());
        // The table's oid is in a setting, so that all answers describe one table.
        let [columns, indexes] = [COLUMNS, INDEXES].map(|sql| sql.replace("{found}", FOUND_TABLE));
        let values: [&dyn TypedParameter; 1] = [&name];
        let (table, columns, indexes) = tokio::join!(
            biased;
            client.fetch_all(&table, &values),
            client.fetch_all(&columns, &[]),
            client.fetch_all(&indexes, &[])
        );
        // In the order of the queries: in a transaction, an error makes the later ones fail.
        let table = table.map_err(failed())?;
        let (columns, indexes) = (columns.map_err(failed())?, indexes.map_err(failed())?);
        Ok(table.first().map(|row| FoundTable::of_rows(row, columns, &indexes)))
    }

    fn of_rows(row: &Row, columns: Vec<Row>, indexes: &[Row]) -> FoundTable {
        let kind = row.get::<_, String>(3).chars().next().unwrap_or('r');
        let is_unlogged: bool = row.get(6);
        let mut table = TargetTable {
            oid: row.get(0),
            schema: row.get(1),
            name: row.get(2),
            kind,
            sql_name: row.get(4),
            columns: columns.iter().map(|row| read_column(row, &HashMap::new())).collect(),
            triggers: Vec::new(),
            foreign_keys: Vec::new(),
            self_references: Vec::new(),
            indexes: indexes.iter().map(|row| (row.get(0), row.get(1))).collect(),
            unique_keys: Vec::new(),
            partitions: 0,
            has_children: false,
            row_security: row.get(5),
            commits_across_nodes: row.get(10),
            storage: TableStorage::Plain,
            unlogged: match is_unlogged {
                true => UnloggedExtent::Everything,
                false => UnloggedExtent::Nothing,
            },
            has_foreign_parts: kind == 'f',
            is_written_by_triggers: false,
            fingerprint: row.get(12),
            rules: Vec::new(),
        };
        table.unique_keys = indexes.iter().filter_map(|it| read_key(it, &columns)).collect();
        let has_default = |column: &Row| column.get::<_, bool>(8);
        FoundTable {
            may_have_defaults: columns.iter().any(has_default),
            may_have_parts: !matches!(kind, 'r' | 'f') || row.get(7),
            has_triggers: row.get(8),
            has_rules: row.get(9),
            has_extension: row.get(11),
            columns,
            table,
        }
    }

    /// Returns whether the table may have facts that are still to be read.
    pub fn is_incomplete(&self) -> bool {
        self.may_have_defaults
            || self.may_have_parts
            || self.has_rules
            || self.has_triggers
            || self.has_extension
            || self.has_other_types()
    }

    /// Returns whether a column has a type that the server must describe.
    fn has_other_types(&self) -> bool {
        self.table.columns.iter().any(|column| !BASE_TYPES.contains(&column.ty.oid))
    }

    /// Reads the rest of the facts, in queries that are sent together.
    ///
    /// # Errors
    /// Those of [`TargetTable::read`].
    pub async fn complete(self, client: &Client) -> Result<TargetTable> {
        let failed = || lookup_error(&self.table.sql_name);
        let oid = self.table.oid;
        let fetch = async |is_needed: bool, sql: &str| match is_needed {
            true => client.fetch_all(sql, &[&oid]).await,
            false => Ok(Vec::new()),
        };
        let may_have_parts = self.may_have_parts;
        let asks_for_parts = may_have_parts || self.has_rules;
        let has_other_types = self.has_other_types();
        let parts = parts_sql();
        let triggers = TRIGGERS.replace("{no_guard}", NO_HYPERTABLE_GUARD);
        let may_have_triggers = may_have_parts || self.has_triggers;
        let (types, defaults, parts, keys, triggers, indexes) = tokio::join!(
            biased;
            fetch(has_other_types, TYPES),
            fetch(has_other_types || self.may_have_defaults, DEFAULTS),
            fetch(asks_for_parts, &parts),
            fetch(may_have_triggers, FOREIGN_KEYS),
            fetch(may_have_triggers, &triggers),
            fetch(may_have_parts, INDEXES_OF_PARTITIONS)
        );
        let (types, defaults) = (types.map_err(failed())?, defaults.map_err(failed())?);
        let (parts, keys) = (parts.map_err(failed())?, keys.map_err(failed())?);
        let (triggers, indexes) = (triggers.map_err(failed())?, indexes.map_err(failed())?);
        let storage = match self.has_extension {
            true => TableStorage::read(client, oid).await.map_err(failed())?,
            false => TableStorage::Plain,
        };
        let FoundTable { mut table, columns, .. } = self;
        table.storage = storage;
        if has_other_types {
            let types = read_types(&types);
            table.columns = columns.iter().map(|row| read_column(row, &types)).collect();
        }
        table.add_defaults(&columns, &defaults);
        match parts.first() {
            Some(row) => table.add_parts(row),
            None if asks_for_parts => return Err(replaced_error(&table.sql_name)),
            None => {}
        }
        let keys_where = |to_itself: bool| -> Vec<String> {
            let keys = keys.iter().filter(|key| key.get::<_, bool>(1) == to_itself);
            keys.map(|key| key.get(0)).collect()
        };
        table.foreign_keys = keys_where(false);
        table.self_references = keys_where(true);
        table.triggers = triggers.iter().map(read_trigger).collect();
        if !indexes.is_empty() {
            table.indexes.extend(indexes.iter().map(|row| (row.get(0), row.get(1))));
            table.indexes.sort();
        }
        Ok(table)
    }
}

impl TargetTable {
    /// Adds the rows of [`DEFAULTS`] to the columns, whose rows are `columns`.
    fn add_defaults(&mut self, columns: &[Row], defaults: &[Row]) {
        for (column, row) in self.columns.iter_mut().zip(columns) {
            let number: i16 = row.get(0);
            if let Some(default) = defaults.iter().find(|it| it.get::<_, i16>(0) == number) {
                column.default = default.get(1);
                column.default_is_volatile = default.get(2);
            }
        }
    }

    /// Adds the row of [`PARTS`].
    fn add_parts(&mut self, row: &Row) {
        let places = RowPlaces::parse(row, 2);
        self.partitions = row.get(0);
        self.has_children = row.get(1);
        self.unlogged = places.unlogged;
        self.has_foreign_parts = places.has_foreign_parts;
        self.is_written_by_triggers = places.is_written_by_triggers;
        self.rules = row.get::<_, Vec<&str>>(3).into_iter().map(RewriteRule::parse).collect();
    }
}

/// Returns the error for a table that another session has dropped during the look-up.
fn replaced_error(name: &str) -> crate::Error {
    let message = format!("another session has dropped or replaced {name} meanwhile");
    crate::Error::new(crate::ErrorKind::Plan, message).hint("Run the same command again.")
}

fn lookup_error(name: &str) -> impl FnOnce(DriverError) -> crate::Error + use<> {
    server_error(format!("could not look up table {name}"))
}

/// Returns [`PARTS`] with its expressions.
///
/// The rules are those for writing statements on `c`, and on the relations beneath a view: a letter
/// for each fact, and the name.
fn parts_sql() -> String {
    let rules = format!(
        "array(select case when is_instead then 'i' else 'a' end \
                     || case when ev_type = '3' then 'i' else 'o' end \
                     || case when e.relkind = 'v' then 'v' else 't' end || rulename::text \
               from pg_rewrite join pg_class e on e.oid = ev_class \
               where ev_class in ({}) and ev_type <> '1' and ev_enabled <> 'D' order by 1)",
        beneath_sql("c.oid")
    );
    PARTS.replace("{places}", &row_places_sql()).replace("{rules}", &rules)
}

fn read_column(row: &Row, types: &HashMap<u32, TypeRow>) -> TargetColumn {
    let (oid, typmod) = (row.get(2), row.get(3));
    let mut ty = resolve_type(oid, typmod, types);
    ty.name = row.get(4);
    let identity: &str = row.get(7);
    TargetColumn {
        name: row.get(1),
        ty,
        not_null: row.get(5),
        default: None,
        default_is_volatile: false,
        is_generated: row.get(6),
        is_identity: !identity.is_empty(),
        is_identity_always: identity == "a",
    }
}

/// Returns the columns of an index as in [`INDEXES`], if it is unique and has no expressions.
/// `columns` are as in [`COLUMNS`].
fn read_key(index: &Row, columns: &[Row]) -> Option<UniqueKey> {
    let (numbers, count): (Vec<i16>, i16) = (index.get(3), index.get(4));
    let collations: Vec<u32> = index.get(5);
    let has_default_equality: bool = index.get(6);
    let is_primary: bool = index.get(2);
    if !has_default_equality && !is_primary {
        return None;
    }
    let count = usize::try_from(count).unwrap_or(0);
    let of_key = numbers.iter().zip(&collations).take(count).map(|(number, collation)| {
        let column = columns.iter().find(|it| it.get::<_, i16>(0) == *number)?;
        let is_plain = column.get::<_, bool>(5) && column.get::<_, u32>(9) == *collation;
        Some((column.get(1), is_plain))
    });
    let of_key = of_key.collect::<Option<Vec<(String, bool)>>>()?;
    let identifies_rows = has_default_equality && of_key.iter().all(|(_, is_plain)| *is_plain);
    let columns = of_key.into_iter().map(|(name, _)| name).collect();
    Some(UniqueKey { columns, is_primary, identifies_rows })
}

fn read_trigger(row: &Row) -> Trigger {
    Trigger { name: row.get(0), for_each_row: row.get(1), is_before: row.get(2) }
}

/// A row of `pg_type`.
struct TypeRow {
    name: String,
    typtype: String,
    base: u32,
    typmod: i32,
    element: u32,
    delimiter: u8,
    subtype: u32,
    has_receive: bool,
}

fn read_types(rows: &[Row]) -> HashMap<u32, TypeRow> {
    let read_type = |row: &Row| TypeRow {
        name: row.get(1),
        typtype: row.get(2),
        base: row.get(3),
        typmod: row.get(4),
        element: row.get(5),
        delimiter: row.get::<_, i32>(6) as u8,
        subtype: row.get(7),
        has_receive: row.get(8),
    };
    rows.iter().map(|row| (row.get(0), read_type(row))).collect()
}

fn resolve_type(oid: u32, typmod: i32, types: &HashMap<u32, TypeRow>) -> PgType {
    let Some(row) = types.get(&oid) else {
        let is_base = BASE_TYPES.contains(&oid);
        let kind = if is_base { TypeKind::Base } else { TypeKind::Other };
        return PgType { oid, name: oid.to_string(), typmod, kind };
    };
    let kind = match row.typtype.as_str() {
        _ if !row.has_receive => TypeKind::Other,
        "b" if row.element != 0 => {
            TypeKind::Array(Box::new(resolve_type(row.element, typmod, types)), row.delimiter)
        }
        "b" => TypeKind::Base,
        "e" => TypeKind::Enum,
        "d" => TypeKind::Domain(Box::new(resolve_type(row.base, row.typmod, types))),
        "r" => TypeKind::Range(Box::new(resolve_type(row.subtype, -1, types))),
        _ => TypeKind::Other,
    };
    PgType { oid, name: row.name.clone(), typmod, kind }
}
