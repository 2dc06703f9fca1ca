//! Counters of this session's work on a table within its current transaction.
//!
//! The counters also include earlier transactions that this session has not yet reported. So only
//! the difference of two reads within one transaction is meaningful.

use tokio_postgres::Client;

use crate::{Result, TypedQuery, server_error};

/// Counters of rows that this session wrote.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TransactionCounters {
    /// HOT updates: updates that wrote no index.
    pub updated_hot: u64,
}

const TRANSACTION_COUNTERS: &str = "\
select coalesce(sum(pg_stat_get_xact_tuples_hot_updated(relid)), 0)::int8
from (select relid::oid from pg_partition_tree($1::oid::regclass)
      union select inhrelid from pg_inherits where inhparent = $1::oid
      union select $1::oid) parts(relid)";

impl TransactionCounters {
    /// Reads the counters. Must run in the transaction.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the connection fails,
    /// [`ErrorKind::Server`](crate::ErrorKind::Server) if the server refuses the query.
    pub async fn read(client: &Client, table: u32) -> Result<TransactionCounters> {
        let failed = server_error("could not read the counters of the transaction".to_owned());
        let row = client.fetch_one(TRANSACTION_COUNTERS, &[&table]).await.map_err(failed)?;
        Ok(TransactionCounters { updated_hot: row.get::<_, i64>(0).unsigned_abs() })
    }

    /// Returns the difference to an earlier read.
    pub fn since(self, before: TransactionCounters) -> TransactionCounters {
        TransactionCounters { updated_hot: self.updated_hot.saturating_sub(before.updated_hot) }
    }
}
