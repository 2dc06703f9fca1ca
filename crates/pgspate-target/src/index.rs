//! The indexes and foreign keys of a table: kind, size, how to recreate each one exactly, and what
//! prevents dropping it.
//!
//! The server prints definitions under the search path `pg_catalog`, as in dumps. So they mean the
//! same in every session.

use tokio_postgres::{Client, Row};

use super::{
    RestoreRecipe, StorageFacts, TargetTable, TypedQuery, server_error, untrusted_owner_sql,
};
use crate::{Error, ErrorKind, Result};

/// Settings under which the server prints and runs definitions. With these settings, printed names
/// are qualified. Constants mean the same, whatever settings the role, the database or the session
/// has.
pub const DEFINITION_SETTINGS: &str = "\
set local search_path = pg_catalog, pg_temp; set local standard_conforming_strings = on; \
set local quote_all_identifiers = off; set local transform_null_equals = off; \
set local array_nulls = on; set local xmloption = content; set local datestyle = 'ISO, YMD'; \
set local intervalstyle = 'postgres'; set local extra_float_digits = 3; \
set local bytea_output = 'hex'; set local lc_monetary = 'C'";

/// The kind of an index or constraint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexKind {
    /// An index that rejects no row.
    Plain,
    /// A unique index without a constraint.
    Unique,
    /// A primary key.
    PrimaryKey,
    /// A unique constraint.
    UniqueConstraint,
    /// An exclusion constraint, or a key `WITHOUT OVERLAPS`.
    Exclusion,
    /// A foreign key. Not an index, but its checks cost a write more than any index.
    ForeignKey,
}

impl IndexKind {
    /// Returns the kind in SQL's words.
    pub fn name(self) -> &'static str {
        match self {
            IndexKind::Plain => "index",
            IndexKind::Unique => "unique index",
            IndexKind::PrimaryKey => "primary key",
            IndexKind::UniqueConstraint => "unique constraint",
            IndexKind::Exclusion => "exclusion constraint",
            IndexKind::ForeignKey => "foreign key",
        }
    }

    /// Returns whether this kind is added with ALTER TABLE.
    pub fn is_constraint(self) -> bool {
        !matches!(self, IndexKind::Plain | IndexKind::Unique)
    }

    /// Returns whether this kind can reject rows.
    pub fn can_reject_rows(self) -> bool {
        self != IndexKind::Plain
    }
}

/// An index or a foreign key of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableIndex {
    /// The kind of index or key.
    pub kind: IndexKind,
    /// The name, unquoted.
    pub name: String,
    /// Bytes on disk; 0 for a foreign key.
    pub bytes: u64,
    /// Why the index can never be dropped and recreated.
    pub obstacle: Option<String>,
    /// The statement that drops the index or key.
    pub drop: String,
    /// How to recreate the index or key.
    pub recipe: RestoreRecipe,
    /// Whether the first step of the recipe can run in parallel with other indexes.
    pub parallel_build: bool,
}

/// Lists indexes. Columns: 0 kind, 1 name, 2 bytes, 3 obstacle, 4 drop statement, 5 recipe,
/// 6 whether the first step only builds the index.
const INDEXES: &str = "\
with tab as (
    select c.oid, c.relnamespace, c.relpersistence,
           format('%I.%I', n.nspname, c.relname) as name
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = $1),
idx as (
    select i.*, c.relname, c.reltablespace, c.relispartition, con.oid as con, con.contype,
           con.condeferrable, con.condeferred, con.coninhcount,
           format('%I.%I', n.nspname, c.relname) as name, tab.name as tab,
           i.indisexclusion as is_exclusion, pg_get_indexdef(i.indexrelid) as def,
           format('CREATE %sINDEX %I ON %s ', case when i.indisunique then 'UNIQUE ' else '' end,
                  c.relname, tab.name) as prefix
    from tab join pg_index i on i.indrelid = tab.oid
    join pg_class c on c.oid = i.indexrelid join pg_namespace n on n.oid = c.relnamespace
    left join pg_constraint con on con.conindid = i.indexrelid and con.conrelid = tab.oid
                               and con.contype in ('p', 'u', 'x')),
parts as (
    select idx.*, json_build_object(
        'definition', case when is_exclusion then pg_get_constraintdef(con)
                           else substr(def, length(prefix) + 1) end,
        'tablespace', (select spcname from pg_tablespace where oid = reltablespace),
        'statistics', coalesce((
            select json_agg(json_build_array(attnum, attstattarget) order by attnum)
            from pg_attribute where attrelid = indexrelid and attstattarget >= 0), '[]'),
        'expression', indexprs is not null,
        'comment', obj_description(indexrelid, 'pg_class'),
        'constraint_comment', obj_description(con, 'pg_constraint'),
        'clustered', indisclustered, 'replica_identity', indisreplident,
        'deferrable', coalesce(condeferrable, false), 'deferred', coalesce(condeferred, false),
        'columns', coalesce((
            select json_agg(json_build_array(a.attnum, a.attname) order by a.attnum)
            from pg_attribute a
            where a.attrelid = indrelid and a.attnum > 0
              and (a.attnum = any(indkey) or exists (
                  select from pg_depend d
                  where d.refclassid = 'pg_class'::regclass and d.refobjid = indrelid
                    and d.refobjsubid = a.attnum
                    and (d.classid = 'pg_class'::regclass and d.objid = indexrelid
                         or d.classid = 'pg_constraint'::regclass and d.objid = con)))), '[]')
        )::text as recipe
    from idx)
select case when is_exclusion then 'x' when con is not null then contype::text
            when indisunique then 'i' else '-' end,
       relname::text, pg_relation_size(indexrelid),
       case when not (indisvalid and indisready and indislive) then 'it is not valid'
            when relispartition then 'it is part of an index of a partitioned table'
            when coninhcount > 0 then 'it is inherited'
            when is_exclusion and con is null
                 or not is_exclusion and left(def, length(prefix)) <> prefix
              then 'pgspate does not support this kind of index'
            when reltablespace <> 0 and not has_tablespace_privilege(reltablespace, 'create')
              then 'this role may not create objects in its tablespace'
            else (
              select case
                when d.refclassid in ('pg_proc'::regclass, 'pg_operator'::regclass,
                                      'pg_opclass'::regclass)
                  then format('it calls %s, which may need a certain search path',
                              f.oid::regprocedure)
                when d.refclassid = 'pg_extension'::regclass
                  then 'it belongs to an extension, or depends on one'
                else pg_describe_object(d.classid, d.objid, d.objsubid) || ' depends on it' end
              from pg_depend d
              left join pg_operator o on d.refclassid = 'pg_operator'::regclass
                                     and o.oid = d.refobjid
              left join pg_proc f on f.prolang not in (12, 13) and f.oid = case
                when d.refclassid = 'pg_proc'::regclass then d.refobjid
                when d.refclassid = 'pg_opclass'::regclass then (
                  select amproc from pg_opclass c join pg_amproc on amprocfamily = c.opcfamily
                  join pg_proc p on p.oid = amproc
                  where c.oid = d.refobjid and p.prolang not in (12, 13) limit 1)
                else o.oprcode end
              where d.refclassid = 'pg_class'::regclass and d.refobjid = indexrelid
                    and d.refobjsubid = 0
                 or d.refclassid = 'pg_constraint'::regclass and d.refobjid = con
                    and d.deptype <> 'i'
                 or d.classid = 'pg_class'::regclass and d.objid = indexrelid
                    and (d.refclassid = 'pg_extension'::regclass
                         or d.refobjid >= 16384 and f.oid is not null)
              order by d.refclassid <> 'pg_class'::regclass, d.classid, d.objid limit 1) end,
       case when con is null then format('drop index %s', name)
            else format('alter table only %s drop constraint %I', tab, relname) end,
       recipe,
       not is_exclusion
from parts order by relname";

/// Lists foreign keys with the same columns as `INDEXES`. Keys that refer to a partitioned table,
/// and keys that are not enforced, have an obstacle.
const FOREIGN_KEYS: &str = "\
with tab as (
    select c.oid, format('%I.%I', n.nspname, c.relname) as name
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = $1),
keys as (
    select con.*, tab.name as tab, far.relkind as far_kind, far.relowner as far_owner,
           pg_get_constraintdef(con.oid) as def, own.names as own, other.names as other,
           own.list as own_list, other.list as other_list,
           format('FOREIGN KEY (%s) REFERENCES %s(%s)', own.names,
                  format('%I.%I', n.nspname, far.relname), other.names) as prefix
    from tab join pg_constraint con on con.conrelid = tab.oid and con.contype = 'f'
    join pg_class far on far.oid = con.confrelid
    join pg_namespace n on n.oid = far.relnamespace
    cross join lateral (
        select string_agg(quote_ident(attname), ', ' order by nth) as names,
               json_agg(json_build_array(attnum, attname) order by nth) as list
        from unnest(con.conkey) with ordinality as k(number, nth)
        join pg_attribute on attrelid = con.conrelid and attnum = number) own
    cross join lateral (
        select string_agg(quote_ident(attname), ', ' order by nth) as names,
               json_agg(json_build_array(attnum, attname) order by nth) as list
        from unnest(con.confkey) with ordinality as k(number, nth)
        join pg_attribute on attrelid = con.confrelid and attnum = number) other)
select 'f', conname::text, 0::bigint,
       case when not convalidated then 'it is not validated'
            when coninhcount > 0 or conparentid <> 0
              then 'it is part of a key of a partitioned table'
            when far_kind <> 'r' then 'it refers to a partitioned table'
            when confrelid = conrelid then 'it refers to the table itself'
            when not pg_has_role(far_owner, 'usage') and exists (
                select from unnest(confkey) as k(attnum)
                where not has_column_privilege(confrelid, k.attnum, 'references'))
              then format('this role may not refer to %s', confrelid::regclass)
            when not has_table_privilege(confrelid, 'select')
              then format('this role may not read %s', confrelid::regclass)
            when {untrusted_owner} is not null
              then format('adding it again would run functions of role %I, which owns %s',
                          {untrusted_owner}, confrelid::regclass)
            when exists (select from pg_trigger t
                         where t.tgconstraint = keys.oid and t.tgenabled <> 'O')
              then 'its triggers are disabled, or fire on replicas'
            when left(def, length(prefix)) <> prefix
              then 'pgspate does not support this kind of foreign key' end,
       format('alter table only %s drop constraint %I', tab, conname),
       json_build_object('definition', substr(def, length(prefix) + 1),
           'constraint_comment', obj_description(keys.oid, 'pg_constraint'),
           'columns', own_list, 'far', confrelid::int8, 'far_columns', other_list)::text,
       false
from keys order by conname";

/// Reads the indexes and foreign keys of a table. Returns none unless `table` is an ordinary table.
/// Must run in a transaction, and changes that transaction's settings.
///
/// # Errors
/// [`ErrorKind::Connect`] if the connection fails, [`ErrorKind::Server`] if the server refuses the
/// query.
pub(super) async fn read(client: &Client, table: &TargetTable) -> Result<Vec<TableIndex>> {
    if table.kind != 'r' {
        return Ok(Vec::new());
    }
    let failed = || server_error("could not read the table's indexes".to_owned());
    let fetch = async |sql| client.fetch_all(sql, &[&table.oid]).await;
    let untrusted_owner = untrusted_owner_sql("confrelid", "conrelid");
    let foreign_keys = FOREIGN_KEYS.replace("{untrusted_owner}", &untrusted_owner);
    let (settings, indexes, keys) = tokio::join!(
        biased;
        client.batch_execute(DEFINITION_SETTINGS),
        fetch(INDEXES),
        fetch(&foreign_keys)
    );
    settings.map_err(failed())?;
    let (indexes, keys) = (indexes.map_err(failed())?, keys.map_err(failed())?);
    indexes.iter().chain(&keys).map(|row| read_index(row, table.storage.facts())).collect()
}

fn read_index(row: &Row, storage: StorageFacts) -> Result<TableIndex> {
    let kind = match row.get::<_, &str>(0) {
        "p" => IndexKind::PrimaryKey,
        "u" => IndexKind::UniqueConstraint,
        "x" => IndexKind::Exclusion,
        "f" => IndexKind::ForeignKey,
        "i" => IndexKind::Unique,
        _ => IndexKind::Plain,
    };
    let recipe = serde_json::from_str(row.get(5)).map_err(|error| {
        Error::new(ErrorKind::Bug, "could not parse the description of an index").because(error)
    })?;
    Ok(TableIndex {
        kind,
        name: row.get(1),
        bytes: row.get::<_, i64>(2).unsigned_abs(),
        obstacle: match (storage.extension, storage.can_restore_keys || !kind.is_constraint()) {
            (Some(extension), false) => Some(format!("{extension} could not add it again")),
            _ => row.get(3),
        },
        drop: row.get(4),
        recipe,
        parallel_build: row.get(6),
    })
}
