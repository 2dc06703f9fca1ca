//! Rejected rows of a job. Those of the attempts that count stay.

use tokio_postgres::Client;

use super::FleetTicket;
use crate::Result;
use crate::copy::too_many_rejects;
use pgspate_target::ledger::{self, SealedPart};

impl FleetTicket {
    /// Keeps the rejected rows of these attempts, and deletes those of others. Returns how many
    /// stay.
    ///
    /// # Errors
    /// [`ErrorKind::Server`](crate::ErrorKind::Server) if more rows are rejected than the job
    /// allows.
    pub(super) async fn keep_rejects(
        &self,
        client: &Client,
        attempts: &[&SealedPart],
    ) -> Result<i64> {
        let Some(most) = self.options.max_rejects else { return Ok(0) };
        let xids = attempts.iter().map(|it| it.xid).collect();
        let rejected = ledger::keep_rejects(client, self.job, xids).await?;
        match rejected > most {
            true => Err(too_many_rejects(rejected, &most.to_string())),
            false => Ok(rejected.cast_signed()),
        }
    }
}
