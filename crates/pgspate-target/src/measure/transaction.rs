//! Counters of this session's work on a table within its current transaction.
//!
//! The counters also include earlier transactions that this session has not yet reported. So only
//! the difference of two reads within one transaction is meaningful.

use tokio_postgres::Client;

use crate::{NO_HYPERTABLE_GUARD, Result, TypedQuery, server_error};

/// Counters of rows that this session wrote.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TransactionCounters {
    /// Inserted rows.
    pub inserted: u64,
    /// Updated rows.
    pub updated: u64,
    /// Deleted rows.
    pub deleted: u64,
    /// HOT updates: updates that wrote no index.
    pub updated_hot: u64,
    /// Whether triggers may keep rows out, and the server counts rows.
    pub may_keep_rows_out: bool,
}

/// The table {table}, its partitions and children.
const PARTS: &str = "\
parts(relid) as (select relid::oid from pg_partition_tree({table}::oid::regclass)
                 union select inhrelid from pg_inherits where inhparent = {table}::oid
                 union select {table}::oid)";

/// The counters of a table, and whether it is more than a plain table without triggers.
const PLAIN_COUNTERS: &str = "\
select pg_stat_get_xact_tuples_inserted(oid), pg_stat_get_xact_tuples_updated(oid),
       pg_stat_get_xact_tuples_deleted(oid), pg_stat_get_xact_tuples_hot_updated(oid), false,
       relkind <> 'r' or relhassubclass or relhastriggers
from pg_catalog.pg_class where oid operator(pg_catalog.=) $1";

/// The counters of a table with its partitions, and whether triggers may keep rows out.
const TRANSACTION_COUNTERS: &str = "\
select coalesce(sum(pg_stat_get_xact_tuples_inserted(relid)), 0)::int8,
       coalesce(sum(pg_stat_get_xact_tuples_updated(relid)), 0)::int8,
       coalesce(sum(pg_stat_get_xact_tuples_deleted(relid)), 0)::int8,
       coalesce(sum(pg_stat_get_xact_tuples_hot_updated(relid)), 0)::int8,
       current_setting('track_counts') = 'on' and exists (
         select from pg_trigger where tgrelid in (select relid from parts)
         and tgtype & 3::int2 = 3::int2 and not tgisinternal and tgenabled <> 'D' and {no_guard})
from parts";

impl TransactionCounters {
    /// Reads the counters. Must run in the transaction.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the connection fails,
    /// [`ErrorKind::Server`](crate::ErrorKind::Server) if the server refuses the query.
    pub async fn read(client: &Client, table: u32) -> Result<TransactionCounters> {
        let failed = || server_error("could not read the counters of the transaction".to_owned());
        let mut row = client.fetch_one(PLAIN_COUNTERS, &[&table]).await.map_err(failed())?;
        if row.get(5) {
            let counters = TRANSACTION_COUNTERS.replace("{no_guard}", NO_HYPERTABLE_GUARD);
            let sql = format!("with {} {counters}", PARTS.replace("{table}", "$1"));
            row = client.fetch_one(&sql, &[&table]).await.map_err(failed())?;
        }
        let count = |at| row.get::<_, i64>(at).unsigned_abs();
        Ok(TransactionCounters {
            inserted: count(0),
            updated: count(1),
            deleted: count(2),
            updated_hot: count(3),
            may_keep_rows_out: row.get(4),
        })
    }

    /// Returns a query for the number of rows that the session deleted or updated.
    pub fn changed_sql(table: u32) -> String {
        let parts = PARTS.replace("{table}", &table.to_string());
        format!(
            "with {parts} select coalesce(sum(pg_stat_get_xact_tuples_updated(relid) + \
             pg_stat_get_xact_tuples_deleted(relid)), 0)::int8 from parts"
        )
    }

    /// Returns the difference to an earlier read.
    pub fn since(self, before: TransactionCounters) -> TransactionCounters {
        TransactionCounters {
            inserted: self.inserted.saturating_sub(before.inserted),
            updated: self.updated.saturating_sub(before.updated),
            deleted: self.deleted.saturating_sub(before.deleted),
            updated_hot: self.updated_hot.saturating_sub(before.updated_hot),
            may_keep_rows_out: self.may_keep_rows_out,
        }
    }
}
