//! The indexes and foreign keys of a table: what each is, what it costs, the statements that make
//! it again exactly as it is, and what forbids to drop it.
//!
//! Definitions are printed for the search path `pg_catalog`, as dumps have them, so that they mean
//! the same in every session.

use tokio_postgres::{Client, Row};

use super::{Ask, Table, server_error};
use crate::Result;

/// The search path that definitions are printed for and read under.
pub(crate) const SEARCH_PATH: &str = "set local search_path = pg_catalog, pg_temp";

/// What enforces or speeds something up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexKind {
    /// An index that refuses nothing.
    Plain,
    /// A unique index that is no constraint's.
    Unique,
    /// A primary key.
    PrimaryKey,
    /// A unique constraint.
    UniqueConstraint,
    /// An exclusion constraint, or a key without overlaps.
    Exclusion,
    /// A foreign key: no index, but what costs most of all.
    ForeignKey,
}

impl IndexKind {
    /// In words, as SQL has them.
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

    /// Whether it refuses rows.
    pub fn refuses(self) -> bool {
        self != IndexKind::Plain
    }
}

/// An index, or a foreign key, of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// What it is.
    pub kind: IndexKind,
    /// Its name, unquoted.
    pub name: String,
    /// Bytes on disk; 0 for a foreign key.
    pub bytes: u64,
    /// Whether it is over an expression: statistics of its own go when it is dropped.
    pub has_expression: bool,
    /// Why it cannot be dropped and made again, whatever is asked.
    pub obstacle: Option<String>,
    /// The statement that drops it.
    pub drop: String,
    /// What makes it again, each step in a transaction of its own.
    pub steps: Vec<String>,
    /// Whether the first step can run beside those of other indexes.
    pub beside: bool,
}

/// Everything about an index that `create index` does not say is set by statements behind it.
/// Columns: 0 kind, 1 name, 2 bytes, 3 has an expression, 4 obstacle, 5 drop, 6 to 8 steps, 9
/// whether the first step builds the index by itself.
const INDEXES: &str = "\
with tab as (
    select c.oid, c.relnamespace, c.relpersistence,
           format('%I.%I', n.nspname, c.relname) as name
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = $1),
idx as (
    select i.*, c.relname, c.reltablespace, c.relispartition, con.oid as con, con.contype,
           con.condeferrable, con.condeferred, con.coninhcount,
           format('%I.%I', n.nspname, c.relname) as name, tab.name as tab,
           obj_description(i.indexrelid, 'pg_class') as note,
           obj_description(con.oid, 'pg_constraint') as con_note,
           i.indisexclusion as is_exclusion
    from tab join pg_index i on i.indrelid = tab.oid
    join pg_class c on c.oid = i.indexrelid join pg_namespace n on n.oid = c.relnamespace
    left join pg_constraint con on con.conindid = i.indexrelid and con.conrelid = tab.oid
                               and con.contype in ('p', 'u', 'x')),
parts as (
    select idx.*,
           format('set local default_tablespace = %L; ', coalesce(
               (select spcname from pg_tablespace where oid = reltablespace), '')) as space,
           coalesce((select string_agg(format('; alter index %s alter column %s set statistics %s',
                                              idx.name, attnum, attstattarget), '' order by attnum)
                     from pg_attribute
                     where attrelid = indexrelid and attstattarget >= 0), '')
           || case when note is null then '' else format('; comment on index %s is %L', idx.name, note)
              end as about,
           coalesce('; ' || nullif(concat_ws('; ',
               case when con_note is not null then
                    format('comment on constraint %I on %s is %L', relname, tab, con_note) end,
               case when indisclustered then
                    format('alter table only %s cluster on %I', tab, relname) end,
               case when indisreplident then
                    format('alter table only %s replica identity using index %I', tab, relname) end),
               ''), '') as marks
    from idx)
select case when is_exclusion then 'x' when con is not null then contype::text
            when indisunique then 'i' else '-' end,
       relname::text, pg_relation_size(indexrelid), indexprs is not null,
       case when not (indisvalid and indisready and indislive) then 'it is not valid'
            when relispartition then 'it is part of an index of a partitioned table'
            when coninhcount > 0 then 'it is inherited'
            when is_exclusion and con is null then 'it is of a kind that pgspate does not know'
            when reltablespace <> 0 and not has_tablespace_privilege(reltablespace, 'create')
              then 'this role may not create anything in its tablespace'
            else (
              select case
                when d.refclassid in ('pg_proc'::regclass, 'pg_operator'::regclass,
                                      'pg_opclass'::regclass)
                  then format('it calls %s, which need not work under another search path',
                              f.oid::regprocedure)
                when d.refclassid = 'pg_extension'::regclass
                  then 'an extension has to do with it'
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
       case when not is_exclusion then space || pg_get_indexdef(indexrelid) || about
            else space || format('alter table only %s add constraint %I %s', tab, relname,
                                 pg_get_constraintdef(con)) || about || marks end,
       case when not is_exclusion and con is not null
            then format('alter table only %s add constraint %I %s using index %I%s%s', tab, relname,
                        case contype when 'p' then 'primary key' else 'unique' end, relname,
                        case when condeferrable then ' deferrable' else '' end,
                        case when condeferred then ' initially deferred' else '' end) || marks
            when not is_exclusion then nullif(substr(marks, 3), '') end,
       null::text,
       not is_exclusion
from parts order by relname";

/// The same columns. What refers to a partitioned table, or to none that checks it, stays.
const FOREIGN_KEYS: &str = "\
with tab as (
    select c.oid, format('%I.%I', n.nspname, c.relname) as name
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = $1)
select 'f', con.conname::text, 0::bigint, false,
       case when not con.convalidated then 'it is not validated'
            when con.coninhcount > 0 or con.conparentid <> 0
              then 'it is part of a key of a partitioned table'
            when far.relkind <> 'r' then 'it refers to a partitioned table'
            when con.confrelid = con.conrelid then 'it refers to the table itself'
            when not pg_has_role(far.relowner, 'usage') and exists (
                select from unnest(con.confkey) as k(attnum)
                where not has_column_privilege(con.confrelid, k.attnum, 'references'))
              then format('this role may not refer to %s', con.confrelid::regclass)
            when not has_table_privilege(con.confrelid, 'select')
              then format('this role may not read %s', con.confrelid::regclass)
            when exists (select from pg_trigger t
                         where t.tgconstraint = con.oid and t.tgenabled <> 'O')
              then 'its triggers are switched off or on for replicas' end,
       format('alter table only %s drop constraint %I', tab.name, con.conname),
       format('alter table only %s add constraint %I %s not valid', tab.name, con.conname,
              pg_get_constraintdef(con.oid))
       || coalesce(format('; comment on constraint %I on %s is ', con.conname, tab.name)
                   || quote_literal(obj_description(con.oid, 'pg_constraint')), ''),
       format('alter table only %s validate constraint %I', tab.name, con.conname),
       null::text, false
from tab join pg_constraint con on con.conrelid = tab.oid and con.contype = 'f'
join pg_class far on far.oid = con.confrelid
order by con.conname";

/// The indexes and foreign keys of a table; of one that is no ordinary table, none. Within a
/// transaction, whose search path it sets.
///
/// # Errors
/// Those of the connection.
pub(super) async fn read(client: &Client, table: &Table) -> Result<Vec<Index>> {
    if table.kind != 'r' {
        return Ok(Vec::new());
    }
    let failed = || server_error("could not look up the table's indexes".to_owned());
    let ask = async |sql| client.ask_all(sql, &[&table.oid]).await;
    let (set, indexes, keys) = tokio::join!(
        biased;
        client.batch_execute(SEARCH_PATH),
        ask(INDEXES),
        ask(FOREIGN_KEYS)
    );
    set.map_err(failed())?;
    let (indexes, keys) = (indexes.map_err(failed())?, keys.map_err(failed())?);
    Ok(indexes.iter().chain(&keys).map(index).collect())
}

fn index(row: &Row) -> Index {
    let kind = match row.get::<_, &str>(0) {
        "p" => IndexKind::PrimaryKey,
        "u" => IndexKind::UniqueConstraint,
        "x" => IndexKind::Exclusion,
        "f" => IndexKind::ForeignKey,
        "i" => IndexKind::Unique,
        _ => IndexKind::Plain,
    };
    let steps = [6, 7, 8].map(|nth| row.get::<_, Option<String>>(nth));
    Index {
        kind,
        name: row.get(1),
        bytes: row.get::<_, i64>(2).unsigned_abs(),
        has_expression: row.get(3),
        obstacle: row.get(4),
        drop: row.get(5),
        steps: steps.into_iter().flatten().collect(),
        beside: row.get(9),
    }
}
