//! Facts of a table: its columns and their types, and everything that makes writes slow or
//! restricts them.
//!
//! The facts are read once, before planning, in one round trip. The queries work on PostgreSQL 13
//! and newer, and change nothing. Other modules decide what follows from the facts.

use std::collections::HashMap;
use std::sync::LazyLock;

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use super::search_path::table_lookup_cte;
use super::table_parts::{RowPlaces, UnloggedExtent, beneath_sql, row_places_sql};
use super::{TableStorage, TypedParameter, TypedQuery, WrittenTable, server_error};
use crate::{Error, ErrorKind, Result};
use pgspate_base::is_alike;
use pgspate_input::types::{PgType, TypeKind};

/// A table as the catalog describes it.
#[derive(Debug, Clone)]
pub struct TargetTable {
    /// `pg_class.oid`.
    pub oid: u32,
    /// Schema, unquoted.
    pub schema: String,
    /// Name, unquoted.
    pub name: String,
    /// Schema and name as SQL takes them.
    pub sql_name: String,
    /// `pg_class.relkind`: `r` table, `p` partitioned, `v` view, `f` foreign.
    pub kind: char,
    /// Columns in order, without dropped ones.
    pub columns: Vec<TargetColumn>,
    /// Enabled triggers that an INSERT fires.
    pub triggers: Vec<Trigger>,
    /// Names of foreign keys to other tables.
    pub foreign_keys: Vec<String>,
    /// Names of foreign keys to the table itself.
    pub self_references: Vec<String>,
    /// Names of indexes, each with whether the index enforces uniqueness or exclusion.
    pub indexes: Vec<(String, bool)>,
    /// Enabled rules for INSERT, UPDATE or DELETE. Views have those of the relations beneath, too.
    pub rules: Vec<RewriteRule>,
    /// Number of leaf partitions.
    pub partitions: i64,
    /// Whether row-level security applies to the current role.
    pub row_security: bool,
    /// Whether one transaction may commit on several servers: the database has Citus.
    pub commits_across_nodes: bool,
    /// Where the rows are stored.
    pub storage: TableStorage,
    /// How much of the table a server crash empties. Views have what is beneath them.
    pub unlogged: UnloggedExtent,
    /// Whether the table, a partition, or a table beneath the view is a foreign table. Its server
    /// commits rows for itself, before the commit of this one.
    pub has_foreign_parts: bool,
    /// Whether a trigger writes the rows instead of an INSERT into a view, so that they may be in
    /// any table.
    pub is_written_by_triggers: bool,
    /// A digest of the table's definition, for [`KnownDefinitions`].
    pub fingerprint: String,
}

/// A rule of a table (`create rule`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RewriteRule {
    /// The rule's name, unquoted.
    pub name: String,
    /// Whether the rule's statements run instead of the original one (`do instead`).
    pub is_instead: bool,
    /// Whether the rule is for INSERT.
    pub is_for_insert: bool,
    /// Whether the rule belongs to a view, which it makes writable.
    pub is_of_view: bool,
}

impl RewriteRule {
    /// Parses an element of [`rules_sql`].
    fn parse(text: &str) -> RewriteRule {
        let (facts, name) = text.split_at(3);
        RewriteRule {
            name: name.to_owned(),
            is_instead: facts.starts_with('i'),
            is_for_insert: facts.chars().nth(1) == Some('i'),
            is_of_view: facts.ends_with('v'),
        }
    }
}

/// A column as the catalog describes it.
#[derive(Debug, Clone)]
pub struct TargetColumn {
    /// Name, unquoted.
    pub name: String,
    /// The type, with its modifier.
    pub ty: PgType,
    /// `NOT NULL`.
    pub not_null: bool,
    /// The default expression of the column or of its type, as SQL.
    pub default: Option<String>,
    /// Whether the default calls a volatile function other than `nextval`.
    pub default_is_volatile: bool,
    /// Whether the column is generated from other columns. COPY cannot write it.
    pub is_generated: bool,
    /// Whether the column is an identity column.
    pub is_identity: bool,
    /// Whether the column is `generated always as identity`. UPDATE cannot set it.
    pub is_identity_always: bool,
}

impl TargetColumn {
    /// Returns whether the column gets a default if a row is written without it. The values of a
    /// generated column are no defaults.
    pub fn has_default(&self) -> bool {
        !self.is_generated && (self.default.is_some() || self.is_identity)
    }
}

/// A trigger that an INSERT fires.
#[derive(Debug, Clone)]
pub struct Trigger {
    /// Name, unquoted.
    pub name: String,
    /// Whether the trigger fires for each row, not for each statement.
    pub for_each_row: bool,
    /// Whether the trigger fires BEFORE or INSTEAD OF the insert.
    pub is_before: bool,
}

const TABLE: &str = "\
select c.oid, n.nspname::text, c.relname::text, c.relkind::text,
       quote_ident(n.nspname) || '.' || quote_ident(c.relname),
       (select count(*) from pg_partition_tree(c.oid) where isleaf and relid <> c.oid),
       row_security_active(c.oid),
       exists (select from pg_extension where extname = 'citus')";

/// A digest of what decides how rows of table `c` are written. It includes the table's name, kind,
/// persistence, columns, defaults, unique indexes, rules, triggers and foreign keys. It includes
/// row-level security of the table and of the tables that a foreign key connects with it. All names
/// are qualified, because the user's search path may be active. Foreign keys are known by their
/// triggers, as `pg_constraint` has no index on the referenced table.
const FINGERPRINT: &str = "\
pg_catalog.hashtextextended(pg_catalog.concat_ws(';',
  (select pg_catalog.concat_ws(' ', f.relname, f.relnamespace, f.relkind, f.relpersistence)
   from pg_catalog.pg_class f where f.oid operator(pg_catalog.=) c.oid),
  (select pg_catalog.string_agg(pg_catalog.concat_ws(' ', a.attnum, a.atttypid, a.atttypmod,
            a.attcollation, a.attidentity, a.attgenerated, a.attnotnull, a.attname, d.oid),
            ',' order by a.attnum)
   from pg_catalog.pg_attribute a left join pg_catalog.pg_attrdef d
     on d.adrelid operator(pg_catalog.=) a.attrelid and d.adnum operator(pg_catalog.=) a.attnum
   where a.attrelid operator(pg_catalog.=) c.oid and a.attnum operator(pg_catalog.>) 0
     and not a.attisdropped),
  (select pg_catalog.string_agg(pg_catalog.concat_ws(' ', i.indexrelid, i.indimmediate,
            i.indisprimary, i.indisreplident), ',' order by i.indexrelid)
   from pg_catalog.pg_index i
   where i.indrelid operator(pg_catalog.=) c.oid and i.indisunique and i.indisvalid),
  (select pg_catalog.string_agg(pg_catalog.concat_ws(' ', r.oid, r.is_instead, r.ev_enabled),
            ',' order by r.oid)
   from pg_catalog.pg_rewrite r where r.ev_class operator(pg_catalog.=) c.oid),
  (select pg_catalog.string_agg(distinct pg_catalog.concat_ws(' ', t.tgconstraint,
            case when t.tgisinternal and t.tgparentid operator(pg_catalog.=) 0 then 0
                 else t.oid end, t.tgenabled,
            pg_catalog.row_security_active(t.tgconstrrelid)), ',')
   from pg_catalog.pg_trigger t where t.tgrelid operator(pg_catalog.=) c.oid),
  pg_catalog.row_security_active(c.oid))
    collate pg_catalog.\"C\", 0)::pg_catalog.text";

/// Returns a query for `wanted` of the tables that were altered since they were read. A dropped
/// table was. Its parameters, from number `first` on, are those of [`KnownDefinitions`].
fn altered_tables_sql(wanted: &str, first: usize) -> String {
    let [oids, known, childless] = [first, first + 1, first + 2];
    format!(
        "select {wanted} from unnest(${oids}::pg_catalog.oid[], ${known}::pg_catalog.text[], \
                                     ${childless}::pg_catalog.bool[]) c(oid, known, is_childless) \
         where {FINGERPRINT} operator(pg_catalog.<>) c.known \
           or (c.is_childless and exists (select from pg_catalog.pg_inherits h \
                                          where h.inhparent operator(pg_catalog.=) c.oid))"
    )
}

/// A statement that the server refuses, as a division by zero, if a table was altered since it was
/// read. Its parameters are those of [`KnownDefinitions`].
pub static REFUSE_ALTERED_TABLES: LazyLock<String> = LazyLock::new(|| {
    let altered = altered_tables_sql("", 1);
    format!("select 1 operator(pg_catalog./) case when exists ({altered}) then 0 else 1 end")
});

/// A query for the OIDs of tables that were altered since they were read. Its parameters are those
/// of [`KnownDefinitions`].
pub static ALTERED_TABLES: LazyLock<String> = LazyLock::new(|| altered_tables_sql("c.oid", 1));

/// Returns a condition: no table was altered since it was read. Its parameters, from number `first`
/// on, are those of [`KnownDefinitions`].
pub(crate) fn unaltered_condition(first: usize) -> String {
    format!("not exists ({})", altered_tables_sql("", first))
}

/// The definitions of tables as they were read.
#[derive(Debug, Default)]
pub struct KnownDefinitions<'a> {
    oids: Vec<u32>,
    fingerprints: Vec<&'a str>,
    /// Whether a table that begins to inherit from this table counts as an alteration.
    childless: Vec<bool>,
}

impl<'a> KnownDefinitions<'a> {
    /// Adds a table. `is_childless` tells that no table inherits from it, and that none may: an
    /// insert may create a chunk of a hypertable.
    pub fn add(&mut self, table: &'a TargetTable, is_childless: bool) {
        self.oids.push(table.oid);
        self.fingerprints.push(&table.fingerprint);
        self.childless.push(is_childless);
    }

    /// Returns whether no table was added.
    pub fn is_empty(&self) -> bool {
        self.oids.is_empty()
    }

    /// Returns the parameters as values of their own: OIDs, fingerprints, and whether a table is
    /// childless.
    pub fn owned_parameters(&self) -> (Vec<u32>, Vec<String>, Vec<bool>) {
        let fingerprints = self.fingerprints.iter().map(|it| (*it).to_owned()).collect();
        (self.oids.clone(), fingerprints, self.childless.clone())
    }

    /// Returns the parameters of [`ALTERED_TABLES`] and [`REFUSE_ALTERED_TABLES`].
    pub fn parameters(&self) -> [&(dyn ToSql + Sync); 3] {
        [&self.oids, &self.fingerprints, &self.childless]
    }

    /// Returns the OIDs of the tables that were altered since they were read.
    ///
    /// # Errors
    /// The driver's error, if the server refuses the query or the connection fails.
    pub async fn find_altered(&self, client: &Client) -> Result<Vec<u32>, tokio_postgres::Error> {
        let parameters: [&dyn TypedParameter; 3] =
            [&self.oids, &self.fingerprints, &self.childless];
        let rows = client.fetch_all(&ALTERED_TABLES, &parameters).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

/// Returns the rules for writing statements on `c`, and on the relations beneath a view: a letter
/// for each fact, and the name.
fn rules_sql() -> String {
    format!(
        "array(select case when is_instead then 'i' else 'a' end \
                     || case when ev_type = '3' then 'i' else 'o' end \
                     || case when e.relkind = 'v' then 'v' else 't' end || rulename::text \
               from pg_rewrite join pg_class e on e.oid = ev_class \
               where ev_class in ({}) and ev_type <> '1' and ev_enabled <> 'D' order by 1)",
        beneath_sql("c.oid")
    )
}

const FROM: &str = "\
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.oid = (select oid from target)";

const COLUMNS: &str = "\
select a.attname::text, a.atttypid, a.atttypmod, a.attnotnull, a.attgenerated <> '',
       a.attidentity <> '',
       coalesce(pg_get_expr(d.adbin, d.adrelid),
                (select t.typdefault from pg_type t where t.oid = a.atttypid)),
       exists (select from regexp_matches(d.adbin::text, ':(?:func|opfunc)id (\\d+)', 'g') as m(id)
               join pg_proc p on p.oid = m.id[1]::oid
               where p.provolatile = 'v' and p.oid <> 'nextval(regclass)'::regprocedure),
       format_type(a.atttypid, a.atttypmod), a.attidentity = 'a'
from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = (select oid from target) and a.attnum > 0 and not a.attisdropped
order by a.attnum";

/// Every type used by the table's columns, including element, base and range subtypes.
const TYPES: &str = "\
used(oid) as (
  select atttypid from pg_attribute
  where attrelid = (select oid from target) and attnum > 0 and not attisdropped
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

/// A condition: a trigger is not the guard that TimescaleDB before 2.23 creates for a hypertable.
/// TimescaleDB routes each row to a chunk, which has no such trigger.
pub const NO_HYPERTABLE_GUARD: &str = "\
not exists (select from pg_catalog.pg_proc f
            join pg_catalog.pg_depend d on d.objid = f.oid and d.deptype = 'e'
              and d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
            join pg_catalog.pg_extension e on e.oid = d.refobjid
            where f.oid = tgfoid and f.proname = 'insert_blocker' and e.extname = 'timescaledb')";

/// Triggers, including row triggers that only a partition has.
const TRIGGERS: &str = "\
select tgname::text, tgtype & 1 = 1, tgtype & 66 <> 0 from pg_trigger
where (tgrelid = (select oid from target) or tgtype & 1 = 1 and tgparentid = 0
         and tgrelid in (select relid from pg_partition_tree((select oid from target))))
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
  and (conrelid = (select oid from target)
       or conparentid = 0
          and conrelid in (select relid from pg_partition_tree((select oid from target))))
  and not exists (select from pg_constraint p where p.oid = c.conparentid
                    and p.conrelid = c.conrelid)
order by conname";

/// Indexes, including unique indexes that only a partition has.
const INDEXES: &str = "\
select i.indexrelid::regclass::text, i.indisunique or i.indisexclusion
from pg_index i join pg_class c on c.oid = i.indexrelid
where i.indrelid = (select oid from target)
   or (i.indisunique or i.indisexclusion) and not c.relispartition
        and i.indrelid in (select relid from pg_partition_tree((select oid from target)))
order by 1";

impl TargetTable {
    /// Returns whether a column has this name, ignoring case.
    pub fn has_column_alike(&self, name: &str) -> bool {
        self.columns.iter().any(|column| is_alike(&column.name, name))
    }

    /// Returns the table as one that is written into by its name, without binary columns.
    pub fn as_written(&self) -> WrittenTable {
        let (sql_name, oid) = (self.sql_name.clone(), self.oid);
        WrittenTable { sql_name, oid, binary_columns: Vec::new() }
    }

    /// Reads the facts of the table `name`, which is written as in SQL. Returns `None` if the
    /// user's search path has no such table.
    ///
    /// # Errors
    /// [`ErrorKind::Server`] if the server refuses the query, for example because the name is
    /// malformed.
    pub async fn read(client: &Client, name: &str) -> Result<Option<TargetTable>> {
        let failed = || server_error(format!("could not look up table {name}"));
        let target = table_lookup_cte();
        let (places, rules) = (row_places_sql(), rules_sql());
        let table_sql = format!("with {target} {TABLE}, {places}, {FINGERPRINT}, {rules} {FROM}");
        let types_sql = format!("with recursive {target}, {TYPES}");
        loop {
            let fetch_all = async |sql: &str| client.fetch_all(sql, &[&name]).await;
            let fetch = async |sql: &str| fetch_all(&format!("with {target} {sql}")).await;
            let triggers = TRIGGERS.replace("{no_guard}", NO_HYPERTABLE_GUARD);
            let (table, types, columns, keys, triggers, indexes, oid_after) = tokio::join!(
                biased;
                fetch_all(&table_sql),
                fetch_all(&types_sql),
                fetch(COLUMNS),
                fetch(FOREIGN_KEYS),
                fetch(&triggers),
                fetch(INDEXES),
                fetch("select oid from target")
            );
            // In the order of the queries: in a transaction, an error makes the later ones fail.
            let (table, types) = (table.map_err(failed())?, types.map_err(failed())?);
            let (columns, keys) = (columns.map_err(failed())?, keys.map_err(failed())?);
            let (triggers, indexes) = (triggers.map_err(failed())?, indexes.map_err(failed())?);
            let oid_after = oid_after.map_err(failed())?;
            let Some(row) = table.first() else { return Ok(None) };
            let oid = row.get(0);
            if oid_after.first().map(|row| row.get(0)) != Some(Some(oid)) {
                // Another table got the name between the queries. So the answers describe two
                // tables.
                continue;
            }
            let (types, places) = (read_types(&types), RowPlaces::parse(row, 8));
            let keys_where = |to_itself: bool| -> Vec<String> {
                let keys = keys.iter().filter(|key| key.get::<_, bool>(1) == to_itself);
                keys.map(|key| key.get(0)).collect()
            };
            return Ok(Some(TargetTable {
                oid,
                schema: row.get(1),
                name: row.get(2),
                kind: row.get::<_, String>(3).chars().next().unwrap_or('r'),
                sql_name: row.get(4),
                columns: columns.iter().map(|row| read_column(row, &types)).collect(),
                triggers: triggers.iter().map(read_trigger).collect(),
                foreign_keys: keys_where(false),
                self_references: keys_where(true),
                indexes: indexes.iter().map(|row| (row.get(0), row.get(1))).collect(),
                partitions: row.get(5),
                row_security: row.get(6),
                commits_across_nodes: row.get(7),
                storage: TableStorage::read(client, oid).await.map_err(failed())?,
                unlogged: places.unlogged,
                has_foreign_parts: places.has_foreign_parts,
                is_written_by_triggers: places.is_written_by_triggers,
                fingerprint: row.get(9),
                rules: row.get::<_, Vec<&str>>(10).into_iter().map(RewriteRule::parse).collect(),
            }));
        }
    }

    /// Returns the oid of the table `name`, if the user's search path has such a table. Takes no
    /// lock.
    ///
    /// # Errors
    /// The driver's error, if the server refuses the query.
    pub async fn find_oid(
        client: &Client,
        name: &str,
    ) -> Result<Option<u32>, tokio_postgres::Error> {
        let sql = format!("with {} select oid from target", table_lookup_cte());
        Ok(client.fetch_one(&sql, &[&name]).await?.get(0))
    }

    /// Refuses a table in a schema that belongs to the server or to pgspate.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for such a table.
    pub fn check_is_user_schema(&self) -> Result<()> {
        check_is_user_schema(&self.sql_name, &self.schema)
    }

    /// Refuses a table with a rule that runs other statements instead of the original one. The
    /// server reports rows as written that the rule writes elsewhere, or not at all. Refuses any
    /// rule for INSERT: the statement inserts rows that are absent, and they are not absent any
    /// more when the rule runs.
    ///
    /// # Errors
    /// [`ErrorKind::Plan`] for a table with such a rule. A view may have one: it makes the view
    /// writable.
    pub fn check_no_rule_for_events(&self) -> Result<()> {
        self.refuse_rule(|rule| rule.is_instead || rule.is_for_insert)
    }

    /// Refuses a table with a rule that runs other statements instead of an INSERT.
    ///
    /// # Errors
    /// Those of [`TargetTable::check_no_rule_for_events`].
    pub fn check_no_rule_instead_of_insert(&self) -> Result<()> {
        self.refuse_rule(|rule| rule.is_instead && rule.is_for_insert)
    }

    /// Refuses a table with any rule. The counts of written rows would include those of the rule.
    ///
    /// # Errors
    /// [`ErrorKind::Plan`] for a table with rules.
    pub fn check_no_rule(&self) -> Result<()> {
        self.refuse_rule(|_| true)
    }

    fn refuse_rule(&self, is_refused: impl Fn(&RewriteRule) -> bool) -> Result<()> {
        let mut rules = self.rules.iter().filter(|rule| !rule.is_of_view && is_refused(rule));
        let Some(rule) = rules.next() else { return Ok(()) };
        let message =
            format!("rule \"{}\" rewrites statements that write {}", rule.name, self.sql_name);
        Err(Error::new(ErrorKind::Plan, message).hint(
            "Replace the rule by a trigger. `pgspate load` writes by COPY, which no rule rewrites.",
        ))
    }

    /// Returns whether two rows can conflict: whether a unique index or exclusion constraint
    /// exists.
    pub fn has_unique_index(&self) -> bool {
        self.indexes.iter().any(|(_, is_unique)| *is_unique)
    }
}

/// The schema of the ledger.
pub const LEDGER_SCHEMA: &str = "pgspate";

/// Refuses a target in a schema that belongs to the server or to pgspate. `table` is the name that
/// the user gave, for the message.
///
/// # Errors
/// [`ErrorKind::Usage`] for such a schema.
pub fn check_is_user_schema(table: &str, schema: &str) -> Result<()> {
    let owner = if schema == LEDGER_SCHEMA || schema.starts_with("pgspate_job_") {
        "the ledger"
    } else if schema == "information_schema" || schema.starts_with("pg_") {
        // PostgreSQL reserves schema names that begin with `pg_`.
        "the server's catalog"
    } else {
        return Ok(());
    };
    let message =
        format!("could not use {table} as a target: schema \"{schema}\" belongs to {owner}");
    Err(Error::new(ErrorKind::Usage, message).hint("Name a table in another schema."))
}

fn read_column(row: &Row, types: &HashMap<u32, TypeRow>) -> TargetColumn {
    let (oid, typmod) = (row.get(1), row.get(2));
    let mut ty = resolve_type(oid, typmod, types);
    ty.name = row.get(8);
    TargetColumn {
        name: row.get(0),
        ty,
        not_null: row.get(3),
        default: row.get(6),
        default_is_volatile: row.get(7),
        is_generated: row.get(4),
        is_identity: row.get(5),
        is_identity_always: row.get(9),
    }
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
        return PgType { oid, name: oid.to_string(), typmod, kind: TypeKind::Other };
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
