//! What this session has done to a table within its transaction, and nobody else.
//!
//! What earlier transactions of the session have not handed over yet is counted too, so it is the
//! difference of two looks in one transaction that says something.

use tokio_postgres::Client;

use crate::{Ask, Result, server_error};

/// Rows that this session wrote.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Own {
    /// Updates for which no index had to be written.
    pub updated_hot: u64,
}

const OWN: &str = "\
select coalesce(sum(pg_stat_get_xact_tuples_hot_updated(relid)), 0)::int8
from (select relid::oid from pg_partition_tree($1::oid::regclass)
      union select $1::oid) parts(relid)";

impl Own {
    /// Looks, within the transaction.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn look(client: &Client, table: u32) -> Result<Own> {
        let failed = server_error("could not look up what was written".to_owned());
        let row = client.ask_one(OWN, &[&table]).await.map_err(failed)?;
        Ok(Own { updated_hot: row.get::<_, i64>(0).unsigned_abs() })
    }

    /// What was done since an earlier look.
    pub fn since(self, before: Own) -> Own {
        Own { updated_hot: self.updated_hot.saturating_sub(before.updated_hot) }
    }
}
