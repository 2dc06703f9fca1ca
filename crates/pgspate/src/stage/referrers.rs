//! Reads the foreign keys that refer to a table, and returns for each key the SQL condition that a
//! row of the table is referred to.

use tokio_postgres::{Client, Row};

use crate::Result;
use pgspate_target::{TargetTable, TypedQuery, server_error, untrusted_owner_sql};

/// Query for the foreign keys that refer to a table, to its partitions or to the table that it is a
/// partition of.
///
/// Column 0 is the condition that a row of the referring table refers to row `t`. Columns 1 and 2
/// tell whether the ON DELETE and ON UPDATE actions change or delete the referring rows. Column 3
/// has the names of the columns that the key refers to.
///
/// The condition queries the referring table only if this role may read all of its rows and trusts
/// its owner, because the query runs the owner's functions as this role. Otherwise the condition is
/// `true`: every row counts as referred to.
const REFERRERS_SQL: &str = "\
with parts(oid) as (select relid::oid from pg_partition_tree($1::oid::regclass)
                    union select relid::oid from pg_partition_ancestors($1::oid::regclass)
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
       c.confdeltype not in ('a', 'r'), c.confupdtype not in ('a', 'r'),
       array(select a.attname::text from pg_attribute a
             where a.attrelid = c.confrelid and a.attnum = any(c.confkey))
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
    /// Whether an update of the columns also changes the rows that refer to the row.
    pub(crate) acts_on_update: bool,
    /// The names of the columns that the key refers to.
    pub(crate) columns: Vec<String>,
}

/// Returns the foreign keys that refer to the table, to its partitions or to the table that it is a
/// partition of.
///
/// # Errors
/// [`ErrorKind::Server`](crate::ErrorKind::Server) if the server refuses the query,
/// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the connection fails.
pub(crate) async fn referrers(client: &Client, table: &TargetTable) -> Result<Vec<Referrer>> {
    let failed = format!("could not look up what refers to {}", table.sql_name);
    let untrusted_owner = untrusted_owner_sql("c.conrelid", "$1");
    let sql = REFERRERS_SQL.replace("{untrusted_owner}", &untrusted_owner);
    let rows = client.fetch_all(&sql, &[&table.oid]).await.map_err(server_error(failed))?;
    let referrer = |row: &Row| Referrer {
        condition: row.get(0),
        cascades: row.get(1),
        acts_on_update: row.get(2),
        columns: row.get(3),
    };
    Ok(rows.iter().map(referrer).collect())
}
