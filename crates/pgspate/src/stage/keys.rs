//! Reads the equality operators of a table's columns, and decides whether equal
//! values of a column are identical.

use std::collections::HashMap;

use tokio_postgres::Client;

use crate::Result;
use pgspate_target::{TargetColumn, TargetTable, TypeKind, TypedQuery, server_error};

/// Oids of built-in types whose equal values are identical: bool, "char", name, integers, oid, text
/// types with a deterministic collation, bytea, uuid, dates, times, timestamps, MAC addresses.
/// `numeric` is not among them: 1.0 and 1.00 are equal, but not identical.
const IDENTICAL_IF_EQUAL: [u32; 17] =
    [16, 17, 18, 19, 20, 21, 23, 25, 26, 1043, 1082, 1083, 1114, 1184, 1266, 2950, 829];

/// Query for the names of columns with a nondeterministic collation.
const NONDETERMINISTIC_SQL: &str = "\
select a.attname::text from pg_attribute a join pg_collation c on c.oid = a.attcollation
where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped and not c.collisdeterministic";

/// Oids of built-in types with [`EQUALS`] as the default equality operator and without a collation:
/// bool, bytea, integers, oid, floats, dates, times, timestamps, interval, numeric, uuid.
const PLAIN_TYPES: [u32; 16] =
    [16, 17, 20, 21, 23, 26, 700, 701, 1082, 1083, 1114, 1184, 1186, 1266, 1700, 2950];

/// The built-in equality operator, which also compares arrays, enums, ranges and rows.
pub(crate) const EQUALS: &str = "operator(pg_catalog.=)";

/// Query for each column's name and equality operator. A domain counts as its base type. The query
/// leaves out columns whose type has no default operator class.
const OPERATORS_SQL: &str = "\
with recursive base(attname, typid) as (
    select attname::text, atttypid from pg_attribute
    where attrelid = $1 and attnum > 0 and not attisdropped
    union all
    select base.attname, t.typbasetype from base join pg_type t on t.oid = base.typid
    where t.typtype = 'd')
select distinct on (base.attname) base.attname,
       format('operator(%I.%s)', n.nspname, o.oprname)
from base join pg_opclass c on c.opcintype = base.typid and c.opcdefault
join pg_am am on am.oid = c.opcmethod and am.amname in ('btree', 'hash')
join pg_amop ao on ao.amopfamily = c.opcfamily and ao.amoplefttype = base.typid
               and ao.amoprighttype = base.typid
               and ao.amopstrategy = case am.amname when 'btree' then 3 else 1 end
join pg_operator o on o.oid = ao.amopopr join pg_namespace n on n.oid = o.oprnamespace
order by base.attname, am.amname";

/// Returns the names of columns with a nondeterministic collation.
pub(crate) async fn nondeterministic_columns(
    client: &Client,
    table: &TargetTable,
) -> Result<Vec<String>> {
    if has_plain_types(table) {
        return Ok(Vec::new());
    }
    fetch_names(client, NONDETERMINISTIC_SQL, table).await
}

/// Returns whether all columns have types whose equality needs no lookup.
fn has_plain_types(table: &TargetTable) -> bool {
    table.columns.iter().all(|column| PLAIN_TYPES.contains(&column.ty.oid))
}

/// Runs a query of this file, and returns the column names of its result.
async fn fetch_names(client: &Client, sql: &str, table: &TargetTable) -> Result<Vec<String>> {
    let failed = server_error(format!("could not look up the keys of {}", table.sql_name));
    let rows = client.fetch_all(sql, &[&table.oid]).await.map_err(failed)?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Returns the equality operator of each column by column name. Columns whose type has no default
/// operator class are left out.
pub(crate) async fn equality_operators(
    client: &Client,
    table: &TargetTable,
) -> Result<HashMap<String, String>> {
    if has_plain_types(table) {
        let names = table.columns.iter().map(|column| column.name.clone());
        return Ok(names.map(|name| (name, EQUALS.to_owned())).collect());
    }
    let failed = server_error(format!("could not look up the types of {}", table.sql_name));
    let rows = client.fetch_all(OPERATORS_SQL, &[&table.oid]).await.map_err(failed)?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Returns SQL that is true if two values differ. The SQL replaces `is distinct from`, which would
/// look up its operator on the search path.
pub(crate) fn differ_sql(left: &str, equals: &str, right: &str) -> String {
    format!("({left} {equals} {right}) is not true and ({left} is not null or {right} is not null)")
}

/// Returns SQL that is true if two lists of values are not identical byte by byte. Citus rewrites
/// the operator `*<>` so that it compares the values one by one, and then does not find it.
pub(crate) fn image_differs_sql(left: &str, right: &str) -> String {
    format!("pg_catalog.record_image_ne(row({left}), row({right}))")
}

/// Oids of `numeric` and `character`. With a type modifier, all values of a column have the same
/// scale or length, so equal values are identical.
const IDENTICAL_WITH_MODIFIER: [u32; 2] = [1700, 1042];

/// Returns whether equal values of the column are identical, unless its collation is
/// nondeterministic.
pub(crate) fn is_exact(column: &TargetColumn) -> bool {
    let base = column.ty.base();
    let has_fixed_form = column.ty.typmod >= 0 && IDENTICAL_WITH_MODIFIER.contains(&column.ty.oid);
    has_fixed_form || base.kind == TypeKind::Enum || IDENTICAL_IF_EQUAL.contains(&base.oid)
}
