//! Facts of a table: its columns and their types, and everything that makes writes slow or
//! restricts them.
//!
//! The facts are read once, before planning (`table_lookup.rs`). Reading changes nothing. Other
//! modules decide what follows from the facts.

use std::sync::LazyLock;

use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use super::search_path::table_lookup_cte;
use super::table_parts::UnloggedExtent;
use super::{TableStorage, TypedParameter, TypedQuery, WrittenTable};
use crate::{Error, ErrorKind, Result};
use pgspate_base::is_alike;
use pgspate_input::types::PgType;

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
    /// The primary key, and the unique indexes that can identify rows.
    pub unique_keys: Vec<UniqueKey>,
    /// Enabled rules for INSERT, UPDATE or DELETE. Views have those of the relations beneath, too.
    pub rules: Vec<RewriteRule>,
    /// Number of leaf partitions.
    pub partitions: i64,
    /// Whether other tables inherit from the table. Partitions and chunks of a hypertable count.
    pub has_children: bool,
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
    /// A digest of the table's definition, for [`KnownDefinitions`]; empty if it was not asked for.
    pub fingerprint: String,
}

/// A unique index without expressions: its columns, in the index's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UniqueKey {
    /// Names of the columns, unquoted.
    pub columns: Vec<String>,
    /// Whether the index is that of the primary key.
    pub is_primary: bool,
    /// Whether no two rows of the table itself can have the same values in the columns. These
    /// cannot be NULL, and the index is valid, covers all rows, and uses the default equality of
    /// their types.
    pub identifies_rows: bool,
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
    /// Parses a rule: a letter for each fact, and the name.
    pub(super) fn parse(text: &str) -> RewriteRule {
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

/// A digest of what decides how rows of table `c` are written. It includes the table's name, kind,
/// persistence, columns, defaults, unique indexes, rules, triggers and foreign keys. It includes
/// row-level security of the table and of the tables that a foreign key connects with it. All names
/// are qualified, because the user's search path may be active. Foreign keys are known by their
/// triggers, as `pg_constraint` has no index on the referenced table.
pub(super) const FINGERPRINT: &str = "\
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
/// table was. Its parameters are those of [`KnownDefinitions`].
fn altered_tables_sql(wanted: &str) -> String {
    format!(
        "select {wanted} from unnest($1::pg_catalog.oid[], $2::pg_catalog.text[], \
                                     $3::pg_catalog.bool[]) c(oid, known, is_childless) \
         where {FINGERPRINT} operator(pg_catalog.<>) c.known \
           or (c.is_childless and exists (select from pg_catalog.pg_inherits h \
                                          where h.inhparent operator(pg_catalog.=) c.oid))"
    )
}

/// A statement that the server refuses, as a division by zero, if a table was altered since it was
/// read. Its parameters are those of [`KnownDefinitions`].
pub static REFUSE_ALTERED_TABLES: LazyLock<String> = LazyLock::new(|| {
    let altered = altered_tables_sql("");
    format!("select 1 operator(pg_catalog./) case when exists ({altered}) then 0 else 1 end")
});

/// A query for the OIDs of tables that were altered since they were read. Its parameters are those
/// of [`KnownDefinitions`].
pub static ALTERED_TABLES: LazyLock<String> = LazyLock::new(|| altered_tables_sql("c.oid"));

/// The parts of a mark of the definition of table `c`, except of its columns. The mark costs the
/// server less than [`FINGERPRINT`]. It has the table's row in `pg_class`, the number of its other
/// rows in the catalog, and the sum of the transactions that wrote them. Every alteration writes
/// rows by a later transaction. So equal marks mean equal definitions. Different marks may mean
/// equal definitions too, for example after `truncate`. Must run in a pinned search path.
const DEFINITION_PARTS: &str = "\
c.xmin,
  (select concat(count(*), ' ', sum(i.xmin::text::int8)) from pg_index i
   where i.indrelid = c.oid and i.indisunique and i.indisvalid),
  case when c.relhastriggers then
    (select concat(count(*), ' ', sum(t.xmin::text::int8), ' ',
                   count(*) filter (where row_security_active(t.tgconstrrelid)))
     from pg_trigger t where t.tgrelid = c.oid) end,
  case when c.relhasrules then
    (select concat(count(*), ' ', sum(r.xmin::text::int8)) from pg_rewrite r
     where r.ev_class = c.oid) end,
  c.relrowsecurity and row_security_active(c.oid)";

/// The part for the columns.
const COLUMNS_PART: &str = "\
(select concat(count(*), ' ', sum(a.xmin::text::int8)) from pg_attribute a
 where a.attrelid = c.oid and a.attnum > 0)";

/// Returns the SQL of the mark of the definition of table `c`.
fn definition_mark_sql(marks_columns: bool) -> String {
    match marks_columns {
        true => format!("concat_ws(' ', {DEFINITION_PARTS}, {COLUMNS_PART})"),
        false => format!("concat_ws(' ', {DEFINITION_PARTS})"),
    }
}

/// Returns a query for the mark of a table, by which [`is_unaltered_sql`] knows its definition
/// again. Has no row if the table was altered since it was read. Its parameters are those of
/// [`KnownDefinitions`].
pub fn find_definition_mark_sql(marks_columns: bool) -> String {
    format!(
        "select {} from pg_class c \
         where c.oid = any($1) and not exists ({})",
        definition_mark_sql(marks_columns),
        altered_tables_sql("")
    )
}

/// Returns a condition: the table with the OID `oid` still has the definition with the mark `mark`.
/// Both are SQL. Without `marks_columns`, the statement must return a NULL of each column of the
/// table: the server refuses a prepared statement whose result has other columns than before. So
/// columns have the same names, types and collations. They may be nullable, identities or generated
/// now.
pub fn is_unaltered_sql(oid: &str, mark: &str, marks_columns: bool) -> String {
    let found = definition_mark_sql(marks_columns);
    format!("exists (select from pg_class c where c.oid = {oid} and {found} = {mark})")
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

/// A condition: a trigger is not the guard that TimescaleDB before 2.23 creates for a hypertable.
/// TimescaleDB routes each row to a chunk, which has no such trigger.
pub const NO_HYPERTABLE_GUARD: &str = "\
not exists (select from pg_catalog.pg_proc f
            join pg_catalog.pg_depend d on d.objid = f.oid and d.deptype = 'e'
              and d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass::pg_catalog.oid
            join pg_catalog.pg_extension e on e.oid = d.refobjid
            where f.oid = tgfoid and f.proname = 'insert_blocker' and e.extname = 'timescaledb')";

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

    /// Returns the names of the primary key's columns, in key order.
    pub fn primary_key(&self) -> Vec<String> {
        let key = self.unique_keys.iter().find(|key| key.is_primary);
        key.map_or_else(Vec::new, |key| key.columns.clone())
    }

    /// Returns whether no two rows of the table can have the same values in the columns `key`. An
    /// index of a table does not cover tables that inherit from the table. Only an index of a
    /// hypertable covers its chunks, because its columns decide to which chunk a row belongs.
    pub fn is_unique(&self, key: &[String]) -> bool {
        let covers_all_rows = self.kind == 'p' || self.storage.is_in_chunks() || !self.has_children;
        let is_within = |it: &UniqueKey| it.columns.iter().all(|column| key.contains(column));
        covers_all_rows && self.unique_keys.iter().any(|it| it.identifies_rows && is_within(it))
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
