//! The rows that attempts have written into the stage or the shadow of a job.

use tokio_postgres::Client;

use super::FleetTicket;
use crate::Result;
use crate::sync::fleet_job::missing_rows_error;
use pgspate_target::ledger::{self, ATTEMPT_COLUMN, SealedPart};
use pgspate_target::{quote_ident, server_error};

/// Attempts that wrote the same columns into the stage.
pub(super) struct StagedParts<'a> {
    pub(super) ticket: &'a FleetTicket,
    pub(super) columns: &'a [String],
    pub(super) parts: &'a [&'a SealedPart],
}

impl StagedParts<'_> {
    /// Returns the number of rows that the attempts have written.
    pub(super) fn rows(&self) -> i64 {
        self.parts.iter().map(|it| it.rows).sum()
    }

    /// Returns the columns in SQL, each with this prefix.
    pub(super) fn columns_in(&self, prefix: &str) -> String {
        let columns = self.columns.iter().map(|name| format!("{prefix}{}", quote_ident(name)));
        columns.collect::<Vec<_>>().join(", ")
    }

    /// Returns the query for the rows of the attempts.
    pub(super) fn select(&self) -> String {
        format!("select {} {}", self.columns_in("stage."), self.from())
    }

    /// Deletes the rows of all other attempts.
    pub(super) async fn delete_others(&self, client: &Client) -> Result<()> {
        let failed = server_error(format!("could not complete {}", self.ticket.title()));
        let delete = format!(
            "delete from only {} as stage where not {}",
            self.ticket.destination,
            self.condition()
        );
        client.execute(&delete, &[]).await.map(drop).map_err(failed)
    }

    /// Checks that the table's columns still have the types of the rows. Otherwise the server would
    /// cast the values. The transaction must hold a lock on the table.
    pub(super) async fn check_types(&self, client: &Client, table: &str) -> Result<()> {
        let (ticket, columns) = (self.ticket, self.columns);
        match ledger::has_stage_types(client, &ticket.destination, columns, table).await? {
            true => Ok(()),
            false => Err(ticket.altered_error()),
        }
    }

    fn from(&self) -> String {
        format!("from only {} as stage where {}", self.ticket.destination, self.condition())
    }

    /// Returns the condition for rows of the attempts.
    fn condition(&self) -> String {
        if self.ticket.options.max_rejects.is_some() {
            // Rows of savepoints have other transactions' numbers. So a column has the number.
            let xids: Vec<_> = self.parts.iter().map(|it| it.xid.to_string()).collect();
            return format!(
                "stage.{ATTEMPT_COLUMN} operator(pg_catalog.=) any ('{{{}}}'::pg_catalog.int8[])",
                xids.join(",")
            );
        }
        // Rows know the last 32 bits of their transaction's number.
        let xids = self.parts.iter().map(|it| (it.xid & 0xffff_ffff).to_string());
        format!(
            "stage.xmin operator(pg_catalog.=) any ('{{{}}}'::pg_catalog.xid[])",
            xids.collect::<Vec<_>>().join(",")
        )
    }

    /// Checks that the stage has all rows of the attempts.
    pub(super) async fn check_count(&self, client: &Client) -> Result<()> {
        let (ticket, expected) = (self.ticket, self.rows());
        let failed = || server_error(format!("could not read the rows of {}", ticket.title()));
        let count = format!("select pg_catalog.count(*) {}", self.from());
        let staged: i64 = client.query_one(&count, &[]).await.map_err(failed())?.get(0);
        if staged == expected {
            return Ok(());
        }
        let [staged, expected] = [staged, expected].map(i64::unsigned_abs);
        Err(missing_rows_error(ticket.job, staged, expected))
    }
}
