//! Reads the foreign keys that refer to a table, and returns for each key the SQL condition that a
//! row of the table is referred to.

use tokio_postgres::Client;

use crate::Result;
use pgspate_target::{TargetTable, TypedQuery, server_error, untrusted_owner_sql};

/// Query for the foreign keys. Columns: the condition that a row of the referring table refers to
/// row `t`; whether the key's ON DELETE action changes or deletes the referring rows.
///
/// The condition queries the referring table only if this role may read all of its rows and trusts
/// its owner, because the query runs the owner's functions as this role. Otherwise the condition is
/// `true`: every row counts as referred to.
const REFERRERS_SQL: &str = "\
with parts(oid) as (select relid::oid from pg_partition_tree($1::oid::regclass)
                    union select $1::oid)
select case when not has_table_privilege(c.conrelid, 'select') or row_security_active(c.conrelid)
                 or {untrusted_owner} is not null then 'true' else
       format('exists (select 1 from %I.%I c where %s)', n.nspname, far.relname,
              (select string_agg(format('t.%I operator(%I.%s) c.%I', parent.attname, o.nspname,
                                        op.oprname, child.attname), ' and ')
               from unnest(c.conkey, c.confkey, c.conpfeqop) as k(child, parent, op)
               join pg_attribute child on child.attrelid = c.conrelid and child.attnum = k.child
               join pg_attribute parent
                 on parent.attrelid = c.confrelid and parent.attnum = k.parent
               join pg_operator op on op.oid = k.op
               join pg_namespace o on o.oid = op.oprnamespace)) end,
       c.confdeltype not in ('a', 'r')
from pg_constraint c join pg_class far on far.oid = c.conrelid
join pg_namespace n on n.oid = far.relnamespace
where c.contype = 'f' and c.conparentid = 0 and c.confrelid in (select oid from parts)";

/// A foreign key that refers to a table. The key may belong to another table or to the table
/// itself.
pub(crate) struct Referrer {
    /// SQL that is true if some row refers to row `t`.
    pub(crate) condition: String,
    /// Whether deleting a row also changes or deletes the rows that refer to it.
    pub(crate) cascades: bool,
}

/// Returns the foreign keys that refer to the table or to one of its partitions.
///
/// # Errors
/// [`ErrorKind::Server`](crate::ErrorKind::Server) if the server refuses the query,
/// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the connection fails.
pub(crate) async fn referrers(client: &Client, table: &TargetTable) -> Result<Vec<Referrer>> {
    let failed = format!("could not look up what refers to {}", table.sql_name);
    let untrusted_owner = untrusted_owner_sql("c.conrelid", "$1");
    let sql = REFERRERS_SQL.replace("{untrusted_owner}", &untrusted_owner);
    let rows = client.fetch_all(&sql, &[&table.oid]).await.map_err(server_error(failed))?;
    Ok(rows.iter().map(|row| Referrer { condition: row.get(0), cascades: row.get(1) }).collect())
}
