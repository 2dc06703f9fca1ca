//! Copies an input in the open transaction of one session, and rejects its bad rows.
//!
//! Every chunk goes the way that a load takes for refused chunks. So rows are text, and savepoints
//! surround them. Nothing is committed: good rows and rejects belong to the caller's transaction.
//! The rejects of a chunk are written before the next chunk is read, so memory does not grow.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::reject::write_good_rows;
use super::shared::too_many_rejects;
use super::stream::BEGIN_READ_COMMITTED;
use super::{CopyJob, CopyProgress, LaneSession};
use crate::format::{ContentDigests, Cutter};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::{self, Reject};
use pgspate_target::server_error;

/// Where the bad rows of an attempt go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttemptRejects {
    /// The job in the ledger.
    pub(crate) job: i64,
    /// The number of rows that may be bad.
    pub(crate) rows_max: u64,
}

/// Copies the rows of `cutter` in a transaction that stays open, and writes bad rows to the ledger.
/// The row's number is its number within the input. Blocks; call it from a thread that does not
/// belong to `runtime`.
///
/// # Errors
/// [`ErrorKind::Server`] if too many rows are bad, or for a refusal that is not about a row. An
/// error of the input or of the connection.
pub(crate) fn run_rejecting(
    job: &CopyJob,
    connection: Arc<Connection>,
    mut cutter: Box<dyn Cutter>,
    rejects: AttemptRejects,
    progress: &CopyProgress,
    runtime: &tokio::runtime::Handle,
) -> Result<LaneSession> {
    let failed = server_error("could not begin to copy".to_owned());
    runtime
        .block_on(async {
            connection.client.batch_execute(&job.setup.session_settings_sql()).await?;
            connection.client.batch_execute(BEGIN_READ_COMMITTED).await
        })
        .map_err(failed)?;
    let (mut rows_in, mut rows_written, mut rejected) = (0, 0, 0);
    loop {
        progress.stop.check()?;
        let Some(chunk) = cutter.next()? else { break };
        let chunk = Arc::new(chunk);
        let mut encoder = (job.make_encoder)();
        let writing = write_good_rows(&connection, job, encoder.as_mut(), &chunk);
        let written = runtime.block_on(writing)?;
        let numbered = |reject: Reject| Reject { row: rows_in + reject.row, ..reject };
        let bad_rows: Vec<_> = written.rejects.into_iter().map(numbered).collect();
        rows_in += written.rows_in;
        rows_written += written.rows_written;
        rejected += bad_rows.len() as u64;
        progress.rows.store(rows_in, Relaxed);
        progress.rejected.store(rejected, Relaxed);
        check_count(&bad_rows, rejected, rejects.rows_max)?;
        let insert = ledger::insert_attempt_rejects(&connection.client, rejects.job, &bad_rows);
        runtime.block_on(insert)?;
    }
    (job.check_unchanged)(&ContentDigests::default())?;
    Ok(LaneSession { connection, rows_written })
}

/// Checks the number of rejected rows, of which the last ones are `rejects`.
fn check_count(rejects: &[Reject], rejected: u64, rejects_max: u64) -> Result<()> {
    let Some(last) = rejects.last().filter(|_| rejected > rejects_max) else { return Ok(()) };
    let message = format!("{} (SQLSTATE {})", last.message, last.sqlstate.code());
    let cause = Error::new(ErrorKind::Server, message).at(last.place.clone());
    Err(too_many_rejects(rejected, &rejects_max.to_string()).because(cause))
}
