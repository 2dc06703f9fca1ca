//! Copies an input in the open transaction of one session, and collects its bad rows.
//!
//! Every chunk goes the way that a load takes for refused chunks. So rows are text, and savepoints
//! surround them. Nothing is committed: good rows and rejects belong to the caller's transaction.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::reject::write_good_rows;
use super::shared::too_many_rejects;
use super::stream::BEGIN_READ_COMMITTED;
use super::{CopyJob, CopyProgress, LaneSession};
use crate::format::{ContentDigests, Cutter};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::Reject;
use pgspate_target::server_error;

/// The rows of an input in an open transaction, and its bad rows.
pub(crate) struct RejectingCopy {
    pub(crate) session: LaneSession,
    /// The bad rows. [`Reject::row`] is the row's number within the input.
    pub(crate) rejects: Vec<Reject>,
}

/// Copies the rows of `cutter` in a transaction that stays open. At most `rejects_max` rows may be
/// bad. Blocks; call it from a thread that does not belong to `runtime`.
///
/// # Errors
/// [`ErrorKind::Server`] if more rows are bad, or for a refusal that is not about a row. An error
/// of the input or of the connection.
pub(crate) fn run_rejecting(
    job: &CopyJob,
    connection: Connection,
    mut cutter: Box<dyn Cutter>,
    rejects_max: u64,
    progress: &CopyProgress,
    runtime: &tokio::runtime::Handle,
) -> Result<RejectingCopy> {
    let failed = server_error("could not begin to copy".to_owned());
    runtime
        .block_on(async {
            connection.client.batch_execute(&job.setup.session_settings_sql()).await?;
            connection.client.batch_execute(BEGIN_READ_COMMITTED).await
        })
        .map_err(failed)?;
    let mut rejects = Vec::new();
    let (mut rows_in, mut rows_written) = (0, 0);
    loop {
        progress.stop.check()?;
        let Some(chunk) = cutter.next()? else { break };
        let chunk = Arc::new(chunk);
        let mut encoder = (job.make_encoder)();
        let writing = write_good_rows(&connection, job, encoder.as_mut(), &chunk);
        let written = runtime.block_on(writing)?;
        let numbered = |reject: Reject| Reject { row: rows_in + reject.row, ..reject };
        rejects.extend(written.rejects.into_iter().map(numbered));
        rows_in += written.rows_in;
        rows_written += written.rows_written;
        progress.rows.store(rows_in, Relaxed);
        progress.rejected.store(rejects.len() as u64, Relaxed);
        check_count(&rejects, rejects_max)?;
    }
    (job.check_unchanged)(&ContentDigests::default())?;
    Ok(RejectingCopy { session: LaneSession { connection, rows_written }, rejects })
}

fn check_count(rejects: &[Reject], rejects_max: u64) -> Result<()> {
    let Some(last) = rejects.last().filter(|_| rejects.len() as u64 > rejects_max) else {
        return Ok(());
    };
    let message = format!("{} (SQLSTATE {})", last.message, last.sqlstate.code());
    let cause = Error::new(ErrorKind::Server, message).at(last.place.clone());
    let allowed = rejects_max.to_string();
    Err(too_many_rejects(rejects.len() as u64, &allowed).because(cause))
}
