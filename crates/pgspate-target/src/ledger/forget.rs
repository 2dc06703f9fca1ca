//! Removes a job's rows from the ledger if the job's run left nothing behind.

use tokio_postgres::Client;

use super::job::{JobId, ledger_error};
use super::{RecordedChange, change, shadow};
use crate::{Result, TypedQuery};

/// Drops the job's shadow table, then forgets the job's chunks. The caller empties the job's table
/// in the same transaction.
pub async fn forget_chunks_and_shadow(client: &Client, job: JobId) -> Result<()> {
    shadow::drop_shadow(client, job).await?;
    forget_chunks(client, job, "").await
}

/// Forgets the job's chunks that meet `condition`, and the rejected rows of these chunks.
async fn forget_chunks(client: &Client, job: JobId, condition: &str) -> Result<()> {
    for sql in [
        &format!("delete from pgspate.ledger where job = $1 {condition}"),
        "delete from pgspate.reject r where job = $1 and not exists \
         (select from pgspate.ledger l where l.job = r.job and l.chunk = r.chunk)",
    ] {
        client.run_statement(sql, &[&job.0]).await.map_err(ledger_error())?;
    }
    Ok(())
}

/// Forgets a job whose run left nothing behind. The job stays if a disconnected session has written
/// chunks meanwhile. The job also stays if it has changes that are not put back, since only the
/// ledger knows the dropped keys. Returns these changes.
pub async fn forget_unused_job(client: &Client, job: JobId) -> Result<Vec<RecordedChange>> {
    let had_shadow = shadow::drop_shadow(client, job).await?;
    let condition = if had_shadow { "" } else { "and rows_written + rows_rejected = 0" };
    forget_chunks(client, job, condition).await?;
    let changes = client.run_statement(change::FORGET_DONE, &[&job.0]).await;
    changes.map_err(ledger_error())?;
    run_with_lock_timeout(
        client,
        &format!(
            "delete from pgspate.job where job = {0} \
             and not exists (select from pgspate.change where change.job = {0}) \
             and not exists (select from pgspate.ledger where ledger.job = {0})",
            job.0
        ),
    )
    .await?;
    change::outstanding_changes(client, Some(job.0)).await
}

/// Runs a statement with a lock timeout. Only a disconnected session holds the ledger's locks for
/// long, and the run must not wait for it forever.
async fn run_with_lock_timeout(client: &Client, sql: &str) -> Result<()> {
    // One message is one transaction.
    let sql = format!("set local lock_timeout = '10s'; {sql}");
    client.batch_execute(&sql).await.map_err(ledger_error())
}
