//! Objects that refer to a table by its oid. If another table of the same name replaced the table,
//! these objects would be lost, or would still refer to the old table.
//!
//! The facts are read before planning, and again under the lock under which one table replaces
//! another. Nothing is changed. Obstacles are texts for the user.

use tokio_postgres::{Client, Row};

use super::{TableStorage, TargetTable, TypedQuery, server_error, untrusted_owner_sql};
use crate::Result;

/// The objects and properties that are bound to a table.
#[derive(Debug, Clone, Default)]
pub struct TableDependencies {
    /// Whether the table is known to have no row. False if this role may not read all rows.
    pub is_empty: bool,
    /// Whether tables other than its partitions inherit from the table.
    pub has_inheriting_tables: bool,
    /// Whether the table itself stores its rows, in a heap. Only then can rows be written frozen.
    pub is_heap: bool,
    /// Foreign keys of other tables that refer to the table.
    pub references: Vec<IncomingForeignKey>,
    /// Names of the triggers that TRUNCATE fires.
    pub truncate_triggers: Vec<String>,
    /// Why no other table can replace this one, in words. Empty if another table can.
    pub replace_obstacles: Vec<String>,
}

/// A foreign key of another table that refers to this table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncomingForeignKey {
    /// The table that has the foreign key, quoted for SQL.
    pub table: String,
    /// The constraint's name, quoted for SQL.
    pub name: String,
    /// The text after the name in `ADD CONSTRAINT`.
    pub definition: String,
    /// The constraint's comment.
    pub comment: Option<String>,
    /// Whether existing rows were checked, and the constraint's triggers fire as usual.
    pub is_enforced: bool,
    /// An owner of the other table or its partitions who is not trusted.
    pub untrusted_owner: Option<String>,
}

const FACTS: &str = "\
select exists (select from pg_inherits where inhparent = c.oid) and c.relkind in ('r', 'f'),
       coalesce(am.amname = 'heap', false) and c.relkind = 'r',
       array(select tgname::text from pg_trigger t where tgrelid in (
                 select c.oid union select relid from pg_partition_tree(c.oid))
               and not tgisinternal and tgtype & 32 <> 0 and tgenabled <> 'D' order by 1)
from pg_class c left join pg_am am on am.oid = c.relam where c.oid = $1";

const HAS_INHERITING_TABLES: &str = "\
select exists (select from pg_inherits where inhparent = c.oid) \
                     and c.relkind = 'r' from pg_class c where c.oid = $1";

/// Foreign keys that refer to the table. Of a key between partitioned tables, only the topmost
/// constraint is listed. Keys from the same partitioned table are left out.
const REFERENCES: &str = "\
with recursive upwards(oid, conparentid) as (
  select oid, conparentid from pg_constraint where contype = 'f' and confrelid in (
    select $1::oid union select relid from pg_partition_tree($1::oid))
  union
  select p.oid, p.conparentid from upwards u join pg_constraint p on p.oid = u.conparentid)
select quote_ident(n.nspname) || '.' || quote_ident(r.relname), quote_ident(c.conname),
       pg_get_constraintdef(c.oid), obj_description(c.oid, 'pg_constraint'),
       c.convalidated and not exists (select from pg_trigger t
                                      where t.tgconstraint = c.oid and t.tgenabled <> 'O'),
       {untrusted_owner}
from pg_constraint c join pg_class r on r.oid = c.conrelid
join pg_namespace n on n.oid = r.relnamespace
where c.conparentid = 0 and c.oid in (select oid from upwards)
  and coalesce(pg_partition_root(c.conrelid), c.conrelid)
      <> coalesce(pg_partition_root($1::oid), $1::oid)
order by 1, 2";

impl TableDependencies {
    /// Reads the dependencies of a table.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the connection fails,
    /// [`ErrorKind::Server`](crate::ErrorKind::Server) if the server refuses the query.
    pub async fn read(client: &Client, table: &TargetTable) -> Result<TableDependencies> {
        let failed =
            || server_error(format!("could not look up what depends on {}", table.sql_name));
        // With an empty search path, the server prints only qualified names.
        client.batch_execute("begin; set local search_path = ''").await.map_err(failed())?;
        let dependencies = read(client, table).await;
        client.batch_execute("rollback").await.map_err(failed())?;
        dependencies.map_err(failed())
    }
}

/// Reads the foreign keys of other tables that refer to the table, in the open transaction. The
/// transaction keeps its search path.
///
/// # Errors
/// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the connection fails,
/// [`ErrorKind::Server`](crate::ErrorKind::Server) if the server refuses the query.
pub async fn read_references(client: &Client, table_oid: u32) -> Result<Vec<IncomingForeignKey>> {
    let failed = || server_error("could not look up foreign keys that refer to a table".to_owned());
    let begin = "savepoint pgspate_references; set local search_path = ''";
    client.batch_execute(begin).await.map_err(failed())?;
    let references = fetch_references(client, table_oid).await.map_err(failed())?;
    let end = "rollback to savepoint pgspate_references; release savepoint pgspate_references";
    client.batch_execute(end).await.map_err(failed())?;
    Ok(references)
}

/// Reads the foreign keys that refer to the table. Must run with an empty search path.
async fn fetch_references(
    client: &Client,
    table_oid: u32,
) -> Result<Vec<IncomingForeignKey>, tokio_postgres::Error> {
    let untrusted_owner = untrusted_owner_sql("c.conrelid", "$1");
    let references = REFERENCES.replace("{untrusted_owner}", &untrusted_owner);
    let rows = client.fetch_all(&references, &[&table_oid]).await?;
    Ok(rows.iter().map(read_incoming_key).collect())
}

/// Returns whether other tables inherit from the table. Partitions do not count, nor do tables in
/// which an extension stores the rows.
///
/// # Errors
/// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the connection fails,
/// [`ErrorKind::Server`](crate::ErrorKind::Server) if the server refuses the query.
pub async fn has_inheriting_tables(client: &Client, table: &TargetTable) -> Result<bool> {
    let failed = server_error(format!("could not look up what inherits from {}", table.sql_name));
    let row = client.fetch_one(HAS_INHERITING_TABLES, &[&table.oid]).await.map_err(failed)?;
    let has_children: bool = row.get(0);
    Ok(has_children && table.storage == TableStorage::Plain)
}

async fn read(
    client: &Client,
    table: &TargetTable,
) -> Result<TableDependencies, tokio_postgres::Error> {
    let oid = table.oid;
    let facts = client.fetch_one(FACTS, &[&oid]).await?;
    let references = fetch_references(client, oid).await?;
    let mut dependencies = TableDependencies {
        // Determined below, if this role may read the table. A refused query would abort the
        // transaction.
        is_empty: false,
        has_inheriting_tables: facts.get(0),
        is_heap: facts.get(1),
        references,
        truncate_triggers: facts.get(2),
        replace_obstacles: replace_obstacles(client, oid).await?,
    };
    let may_read =
        "select has_table_privilege($1::oid, 'SELECT') and not row_security_active($1::oid)";
    if matches!(table.kind, 'r' | 'p') && client.fetch_one(may_read, &[&oid]).await?.get(0) {
        let sql = format!("select not exists (select 1 from {})", table.sql_name);
        dependencies.is_empty = client.fetch_one(&sql, &[]).await?.get(0);
    }
    Ok(dependencies)
}

fn read_incoming_key(row: &Row) -> IncomingForeignKey {
    IncomingForeignKey {
        table: row.get(0),
        name: row.get(1),
        definition: row.get(2),
        comment: row.get(3),
        is_enforced: row.get(4),
        untrusted_owner: row.get(5),
    }
}

/// Returns why no other table can replace this one. Must run with an empty search path.
pub async fn replace_obstacles(
    client: &Client,
    oid: u32,
) -> Result<Vec<String>, tokio_postgres::Error> {
    // Any other table already has an obstacle in PROPERTIES. Its dependencies would only list its
    // partitions.
    let ordinary = "select relkind = 'r' and not relispartition from pg_class where oid = $1";
    let is_ordinary = client.fetch_opt(ordinary, &[&oid]).await?.is_some_and(|row| row.get(0));
    let queries: &[&str] = if is_ordinary { &[PROPERTIES, DEPENDENTS] } else { &[PROPERTIES] };
    let mut obstacles = Vec::new();
    for sql in queries {
        obstacles.extend(
            client.fetch_all(sql, &[&oid]).await?.iter().map(|row| row.get::<_, String>(0)),
        );
    }
    Ok(obstacles)
}

/// Obstacles: properties that a copy of the table would not have, and privileges that this role
/// lacks for creating a copy.
const PROPERTIES: &str = "\
with t as (select c.*, n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace
           where c.oid = $1)
select 'it is partitioned' from t where relkind = 'p'
union all select 'it is not an ordinary table' from t where relkind not in ('r', 'p')
union all select 'it is temporary' from t where relpersistence = 't'
union all select 'it is a partition' from t where relispartition
union all select 'it inherits from another table' from t
  where not relispartition and exists (select from pg_inherits where inhrelid = t.oid)
union all select 'it is a typed table' from t where reloftype <> 0
union all select 'its access method is ' || amname from t join pg_am on pg_am.oid = relam
  where relkind = 'r' and amname <> 'heap'
union all select 'trigger ' || quote_ident(tgname) || ' fires on INSERT or TRUNCATE'
  from pg_trigger where tgrelid = $1 and not tgisinternal and tgtype & 36 <> 0
union all select 'it has constraint trigger ' || quote_ident(tgname) from pg_trigger
  where tgrelid = $1 and not tgisinternal and tgconstraint <> 0 and tgtype & 36 = 0
union all select 'it has rule ' || quote_ident(rulename) from pg_rewrite where ev_class = $1
union all select 'its foreign key ' || quote_ident(conname) || ' refers to itself'
  from pg_constraint where conrelid = $1 and contype = 'f' and confrelid = $1
union all select 'its foreign key ' || quote_ident(conname) || ' is not validated'
  from pg_constraint where conrelid = $1 and contype = 'f' and not convalidated
union all select 'its index ' || quote_ident(relname) || ' is not valid' from pg_index
  join pg_class i on i.oid = indexrelid where indrelid = $1 and not (indisvalid and indisready)
union all select 'publication ' || quote_ident(pubname) || ' contains it'
  from pg_publication_tables p, t
  where p.schemaname = t.nspname and p.tablename = t.relname
union all select 'a subscription fills it' where exists (
  select from pg_subscription_rel where srrelid = $1)
union all select 'replication slot ' || quote_ident(slot_name) || ' would not replicate the change'
  from pg_replication_slots where slot_type = 'logical' and database = current_database()
union all select 'it has a security label' where exists (
  select from pg_seclabel where classoid = 'pg_class'::regclass and objoid = $1)
union all select 'its row type has privileges of its own' from pg_type where typrelid = $1
  and typacl is not null
union all select 'a role other than its owner has granted privileges on it' from t where exists (
  select from aclexplode(relacl) where grantor <> relowner) or exists (
  select from pg_attribute, aclexplode(attacl) where attrelid = $1 and grantor <> relowner)
union all select 'this role does not own it' from t where not pg_has_role(relowner, 'USAGE')
union all select 'its owner may not create tables in schema ' || quote_ident(nspname) from t
  where not has_schema_privilege(relowner, relnamespace, 'CREATE')
union all select 'this role may not create tables in schema ' || quote_ident(nspname) from t
  where not has_schema_privilege(relnamespace, 'CREATE')
union all select 'this role may not create schemas in the database'
  where not has_database_privilege(current_database(), 'CREATE')";

/// Objects outside the table that depend on the table or its parts. Sequences of serial columns
/// move to the new table, together with their dependents.
const DEPENDENTS: &str = "\
with owned(oid, is_identity) as (
  select d.objid, d.deptype = 'i' from pg_depend d join pg_class s on s.oid = d.objid
  where d.classid = 'pg_class'::regclass and d.refclassid = 'pg_class'::regclass
    and d.refobjid = $1 and d.refobjsubid > 0 and d.deptype in ('a', 'i') and s.relkind = 'S'),
keys(oid) as (select oid from pg_constraint where conrelid = $1),
part(classid, objid) as (
  select 'pg_class'::regclass, $1::oid
  union select 'pg_class'::regclass, reltoastrelid from pg_class where oid = $1
  union select 'pg_class'::regclass, indexrelid from pg_index where indrelid in (
        select unnest(array[oid, reltoastrelid]) from pg_class where oid = $1)
  union select 'pg_class'::regclass, oid from owned
  union select 'pg_type'::regclass, unnest(array[c.reltype, t.reltype]) from pg_class c
        left join pg_class t on t.oid = c.reltoastrelid where c.oid = $1
  union select 'pg_type'::regclass, reltype from pg_class where oid in (select oid from owned)
  union select 'pg_type'::regclass, typarray from pg_type where typrelid = $1
  union select 'pg_attrdef'::regclass, oid from pg_attrdef where adrelid = $1
  union select 'pg_constraint'::regclass, oid from keys
  union select 'pg_trigger'::regclass, oid from pg_trigger
        where tgrelid = $1 or tgconstraint in (select oid from keys)
  union select 'pg_rewrite'::regclass, oid from pg_rewrite where ev_class = $1
  union select 'pg_policy'::regclass, oid from pg_policy where polrelid = $1
  union select 'pg_statistic_ext'::regclass, oid from pg_statistic_ext where stxrelid = $1)
select distinct case when d.classid = 'pg_rewrite'::regclass
                     then pg_describe_object('pg_class'::regclass, w.ev_class, 0)
                     else pg_describe_object(d.classid, d.objid, d.objsubid) end || ' depends on it'
from pg_depend d join part p on (d.refclassid, d.refobjid) = (p.classid, p.objid)
left join pg_rewrite w on d.classid = 'pg_rewrite'::regclass and w.oid = d.objid
where d.classid <> 'pg_publication_rel'::regclass
  and not exists (select from part q where (q.classid, q.objid) = (d.classid, d.objid))
  and not exists (select from owned o where o.oid = d.refobjid and not o.is_identity
                    and d.refclassid = 'pg_class'::regclass)
union all
select pg_describe_object(d.refclassid, d.refobjid, 0) || ' contains it or a part of it'
from pg_depend d join part p on (d.classid, d.objid) = (p.classid, p.objid)
where d.deptype in ('e', 'x')
order by 1";
