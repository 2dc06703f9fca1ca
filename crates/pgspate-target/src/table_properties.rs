//! All properties of a table except its rows and its oid. Before one table replaces another,
//! pgspate checks that both tables have equal properties.
//!
//! Names in properties are qualified. So two tables have equal properties only if they have the
//! same name while the properties are read. Properties that only some server versions have are read
//! on those versions.

use tokio_postgres::Client;

use super::TypedQuery;

/// SQL for the options that users set for a column, such as n_distinct, as a sorted array of text.
/// The row of pg_attribute is `a`.
///
/// PostgreSQL 15.20 gives every column of a new table the option pg_attver, whose value differs
/// from table to table. No user sets it, so it is left out.
pub const COLUMN_OPTIONS: &str = "\
array(select o from unnest(a.attoptions) o where o not like 'pg\\_attver=%' order by o)";

/// A property: the object that has it, and its value as text.
pub type TableProperty = (String, String);

/// Reads a table's properties, in an order that depends only on the properties. Must run under
/// [`DEFINITION_SETTINGS`](super::DEFINITION_SETTINGS), so that names are qualified and constants
/// are complete.
pub async fn table_properties(
    client: &Client,
    oid: u32,
    server_version: u32,
) -> Result<Vec<TableProperty>, tokio_postgres::Error> {
    let compression = if server_version >= 140_000 { "a.attcompression" } else { "''" };
    let columns = COLUMNS.replace(":compression", compression).replace(":options", COLUMN_OPTIONS);
    let mut properties = Vec::new();
    for sql in
        [TABLE, &columns, CONSTRAINTS, INDEXES, TRIGGERS_AND_RULES, POLICIES, STATISTICS, SEQUENCES]
    {
        let rows = client.fetch_all(sql, &[&oid]).await?;
        properties.extend(rows.iter().map(|row| (row.get(0), row.get(1))));
    }
    Ok(properties)
}

/// Returns the names of the objects whose properties differ.
pub fn differing_properties(one: &[TableProperty], other: &[TableProperty]) -> Vec<String> {
    let lacks = |all: &[TableProperty], property: &TableProperty| !all.contains(property);
    let mut names: Vec<String> = one
        .iter()
        .filter(|property| lacks(other, property))
        .map(|(name, _)| name.clone())
        .collect();
    names
        .extend(other.iter().filter(|property| lacks(one, property)).map(|(name, _)| name.clone()));
    names.sort_unstable();
    names.dedup();
    names
}

const TABLE: &str = "\
select 'table', concat_ws('|', c.relkind, c.relpersistence, am.amname, s.spcname, c.relreplident,
  c.relrowsecurity, c.relforcerowsecurity, pg_get_userbyid(c.relowner),
  array(select o from unnest(c.reloptions) o order by o),
  array(select o from unnest(t.reloptions) o order by o),
  array(select x::text from aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) x
        order by 1),
  quote_nullable(obj_description(c.oid, 'pg_class')))
from pg_class c left join pg_am am on am.oid = c.relam
left join pg_tablespace s on s.oid = c.reltablespace
left join pg_class t on t.oid = c.reltoastrelid
where c.oid = $1";

/// Columns and their properties. The declared number of array dimensions is left out, since
/// PostgreSQL ignores it.
const COLUMNS: &str = "\
select 'column ' || quote_ident(a.attname), concat_ws('|',
  row_number() over (order by a.attnum), format_type(a.atttypid, a.atttypmod),
  a.attcollation::regcollation, a.attnotnull, a.attidentity, a.attgenerated, a.attstorage,
  :compression, coalesce(a.attstattarget, -1),
  :options,
  array(select x::text from aclexplode(a.attacl) x order by 1),
  quote_nullable(pg_get_expr(d.adbin, d.adrelid)),
  quote_nullable(col_description(a.attrelid, a.attnum)))
from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped
order by a.attnum";

const CONSTRAINTS: &str = "\
select 'constraint ' || quote_ident(c.conname), concat_ws('|', c.contype,
  pg_get_constraintdef(c.oid), c.condeferrable, c.condeferred, c.convalidated, c.conislocal,
  c.coninhcount, c.conindid::regclass,
  array(select tgenabled from pg_trigger where tgconstraint = c.oid order by 1),
  quote_nullable(obj_description(c.oid, 'pg_constraint')))
from pg_constraint c where c.conrelid = $1 order by 1, 2";

const INDEXES: &str = "\
select 'index ' || quote_ident(c.relname), concat_ws('|', pg_get_indexdef(c.oid), i.indisprimary,
  i.indisclustered, i.indisreplident, i.indisvalid, i.indisready, i.indimmediate, s.spcname,
  array(select o from unnest(c.reloptions) o order by o),
  array(select coalesce(attstattarget, -1) from pg_attribute where attrelid = c.oid
        order by attnum),
  pg_get_userbyid(c.relowner), quote_nullable(obj_description(c.oid, 'pg_class')))
from pg_index i join pg_class c on c.oid = i.indexrelid
left join pg_tablespace s on s.oid = c.reltablespace
where i.indrelid = $1 order by 1, 2";

const TRIGGERS_AND_RULES: &str = "\
select 'trigger ' || quote_ident(tgname), concat_ws('|', pg_get_triggerdef(oid), tgenabled,
  quote_nullable(obj_description(oid, 'pg_trigger')))
from pg_trigger where tgrelid = $1 and not tgisinternal
union all
select 'rule ' || quote_ident(rulename), concat_ws('|', pg_get_ruledef(oid), ev_enabled)
from pg_rewrite where ev_class = $1 order by 1, 2";

const POLICIES: &str = "\
select 'policy ' || quote_ident(polname), concat_ws('|', polcmd, polpermissive,
  array(select case role when 0 then 'public' else pg_get_userbyid(role) end
        from unnest(polroles) role order by 1),
  quote_nullable(pg_get_expr(polqual, polrelid)),
  quote_nullable(pg_get_expr(polwithcheck, polrelid)),
  quote_nullable(obj_description(oid, 'pg_policy')))
from pg_policy where polrelid = $1 order by 1, 2";

const STATISTICS: &str = "\
select 'statistics ' || quote_ident(stxname), concat_ws('|', pg_get_statisticsobjdef(oid),
  coalesce(stxstattarget, -1), pg_get_userbyid(stxowner),
  quote_nullable(obj_description(oid, 'pg_statistic_ext')))
from pg_statistic_ext where stxrelid = $1 order by 1, 2";

const SEQUENCES: &str = "\
select 'sequence ' || c.oid::regclass, concat_ws('|', a.attname, d.deptype, c.relpersistence,
  q.seqtypid::regtype, q.seqstart, q.seqincrement, q.seqmax, q.seqmin, q.seqcache, q.seqcycle,
  pg_get_userbyid(c.relowner),
  array(select x::text from aclexplode(coalesce(c.relacl, acldefault('s', c.relowner))) x
        order by 1),
  quote_nullable(obj_description(c.oid, 'pg_class')))
from pg_depend d join pg_class c on c.oid = d.objid join pg_sequence q on q.seqrelid = c.oid
join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
where d.classid = 'pg_class'::regclass and d.refclassid = 'pg_class'::regclass
  and d.refobjid = $1 and d.refobjsubid > 0 and d.deptype in ('a', 'i')
order by 1, 2";
