//! Rejected rows of jobs of distributed engines such as Spark. Rejects of the attempts that count
//! stay.
//!
//! Until the job is complete, `reject.chunk` is the negative number of the attempt's transaction.
//! Then it is the number of the part. `reject.row` is the row's number within the part.

use tokio_postgres::Client;

use super::fleet_job::NewFleetJob;
use super::fleet_stage::stage_name;
use super::job::{JobId, ledger_error};
use super::reject::{Reject, insert_rejects};
use crate::{Result, TypedQuery, server_error};

/// The column of a stage that has the number of the attempt's transaction. A row that was written
/// under a savepoint has another number as its `xmin`.
pub const ATTEMPT_COLUMN: &str = "pgspate_attempt";

/// Adds the column for the number of the attempt's transaction to the stage, if `new` wants it.
pub(super) async fn mark_attempts(
    client: &Client,
    job: i64,
    fence: i64,
    new: NewFleetJob<'_>,
) -> Result<()> {
    if !new.marks_attempts {
        return Ok(());
    }
    let add = format!(
        "alter table {} add column {ATTEMPT_COLUMN} int8 not null default txid_current()",
        stage_name(job, fence)
    );
    let failed = server_error("could not create the job's stage".to_owned());
    client.batch_execute(&add).await.map_err(failed)
}

/// Writes the rejected rows of an attempt, in its open transaction. The user's search path may be
/// set, so operators are qualified.
///
/// # Errors
/// [`ErrorKind::Server`](crate::ErrorKind::Server) if the ledger cannot be written.
/// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the connection fails.
pub async fn insert_attempt_rejects(client: &Client, job: i64, rejects: &[Reject]) -> Result<()> {
    if rejects.is_empty() {
        return Ok(());
    }
    let sql = "select pg_catalog.txid_current()";
    let xid: i64 = client.fetch_one(sql, &[]).await.map_err(ledger_error())?.get(0);
    let chunk = xid.wrapping_neg().cast_unsigned();
    insert_rejects(client, JobId(job), chunk, rejects).await.map_err(ledger_error())
}

/// Deletes rejected rows of all attempts but these, and numbers the others by their parts. Returns
/// the number of rejected rows. The user's search path may be set, so operators are qualified.
///
/// # Errors
/// [`ErrorKind::Server`](crate::ErrorKind::Server) if the ledger cannot be written.
/// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the connection fails.
pub async fn keep_rejects(client: &Client, job: i64, attempts: Vec<i64>) -> Result<u64> {
    let delete = "delete from pgspate.reject where job operator(pg_catalog.=) $1 \
                  and chunk operator(pg_catalog.<) 0 \
                  and not (operator(pg_catalog.-) chunk) operator(pg_catalog.=) any ($2)";
    client.run_statement(delete, &[&job, &attempts]).await.map_err(ledger_error())?;
    let number = "update pgspate.reject r set chunk = p.part from pgspate.part p \
                  where r.job operator(pg_catalog.=) $1 and p.job operator(pg_catalog.=) r.job \
                    and p.xid operator(pg_catalog.=) (operator(pg_catalog.-) r.chunk)";
    client.run_statement(number, &[&job]).await.map_err(ledger_error())
}
