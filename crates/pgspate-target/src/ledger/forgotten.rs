//! What of a job is forgotten when nothing of it is left.

use tokio_postgres::Client;

use super::job::{JobId, failed};
use super::{Change, change, shadow};
use crate::{Ask, Result};

/// Forgets the chunks of a job whose table is emptied in the same transaction. Its shadow table
/// goes first.
pub async fn clear(client: &Client, job: JobId) -> Result<()> {
    shadow::drop(client, job).await?;
    forget_chunks(client, job, "").await
}

async fn forget_chunks(client: &Client, job: JobId, which: &str) -> Result<()> {
    for sql in [
        &format!("delete from pgspate.ledger where job = $1 {which}"),
        "delete from pgspate.reject r where job = $1 and not exists \
         (select from pgspate.ledger l where l.job = r.job and l.chunk = r.chunk)",
    ] {
        client.tell(sql, &[&job.0]).await.map_err(failed())?;
    }
    Ok(())
}

/// Forgets a job whose run left nothing behind. What a session that was cut off from us has written
/// meanwhile stays, and the job with it. So does a job with changes that are not put back: they are
/// all that is known of the keys that the table had. These changes.
pub async fn forget_unused(client: &Client, job: JobId) -> Result<Vec<Change>> {
    let had_shadow = shadow::drop(client, job).await?;
    let without_rows = if had_shadow { "" } else { "and rows_written + rows_rejected = 0" };
    forget_chunks(client, job, without_rows).await?;
    let changes = client.tell(change::FORGET_DONE, &[&job.0]).await;
    changes.map_err(failed())?;
    with_patience(
        client,
        &format!(
            "delete from pgspate.job where job = {0} \
             and not exists (select from pgspate.change where change.job = {0}) \
             and not exists (select from pgspate.ledger where ledger.job = {0})",
            job.0
        ),
    )
    .await?;
    change::outstanding(client, Some(job.0)).await
}

/// Runs a statement. Nobody holds the ledger's locks for long but a session that is cut off, and
/// for that nobody waits for ever.
async fn with_patience(client: &Client, sql: &str) -> Result<()> {
    // Both are one transaction.
    let sql = format!("set local lock_timeout = '10s'; {sql}");
    client.batch_execute(&sql).await.map_err(failed())
}
