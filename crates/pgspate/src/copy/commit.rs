//! Commits all lanes at the end of a copy. If the reply to a commit is lost, finds out whether the
//! commit happened.

use std::time::Duration;

use super::lane::FinishedLane;
use super::{CopyJob, Destination, LaneSession};
use crate::numbers::counted;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::{check_no_dropped_keys, read_written_chunks};
use pgspate_target::{TypedQuery, server_error};

/// Time to wait for the end of a transaction whose connection was lost.
const OUTCOME_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two queries for the outcome of such a transaction.
const OUTCOME_POLL: Duration = Duration::from_millis(200);

/// Commits, and waits until the WAL is on disk if the role's `synchronous_commit` says so. In a
/// failed transaction, `commit` alone would roll back without an error, but `set` raises an error.
pub(crate) const COMMIT_DURABLY: &str = "set local synchronous_commit to default; commit";
/// Commits, and waits until the WAL is on disk even if the role's `synchronous_commit` is off,
/// because another program remembers that the rows are committed.
pub(crate) const COMMIT_FOR_OTHERS: &str = "\
set local synchronous_commit to default; \
select pg_catalog.set_config('synchronous_commit', 'on', true) \
from pg_catalog.current_setting('synchronous_commit') level \
where level operator(pg_catalog.=) 'off'; commit";
/// Commits, and waits for the disk on all servers that the transaction spans.
pub(super) const COMMIT_ACROSS_NODES: &str = "set local synchronous_commit to on; commit";
/// Commits without waiting for the disk.
const COMMIT_WITHOUT_FLUSH: &str = "set local synchronous_commit to off; commit";

/// Checks that the transaction that replaces a table's rows has rows, if it must.
///
/// # Errors
/// [`ErrorKind::Plan`] if each row was rejected, or if there was none.
pub(super) fn check_not_emptied(job: &CopyJob, lanes: &[FinishedLane]) -> Result<()> {
    let Destination::Table { surrounding: Some(surrounding), .. } = &job.destination else {
        return Ok(());
    };
    let taken = |lane: &FinishedLane| lane.tally.rows_in - lane.tally.rows_rejected;
    match surrounding.must_have_rows && lanes.iter().map(taken).sum::<u64>() == 0 {
        true => Err(emptying_error()),
        false => Ok(()),
    }
}

/// Returns the error of a replacement that would leave a table without rows.
pub(crate) fn emptying_error() -> Error {
    let message = "there are no rows to put in the place of the table's rows";
    Error::new(ErrorKind::Plan, message)
        .hint("The table is unchanged. Use `--allow-empty` if it is to be emptied.")
}

/// Commits every lane. Only the last commit waits for the disk: the WAL is one sequence, so the
/// last commit makes all earlier commits durable, too. Where commits span servers, each one waits.
///
/// The server has checked all constraints of all lanes before. If a trigger redirects all rows of a
/// lane, the server reports no written row, but the lane must be committed nevertheless.
///
/// # Errors
/// [`ErrorKind::Ledger`] if another load has dropped keys of the table. The first failed commit's
/// error, with a hint that says which rows are committed.
pub(super) async fn commit_lanes(job: &CopyJob, lanes: &[FinishedLane]) -> Result<()> {
    let has_work = |lane: &&FinishedLane| lane.tally.chunks > 0 || job.sql_before().is_some();
    let sessions: Vec<_> = lanes.iter().filter(has_work).flat_map(|lane| &lane.sessions).collect();
    if let (Destination::Table { table, .. }, Some(control), None, false) =
        (&job.destination, &job.control_connection, &job.ledger, sessions.is_empty())
    {
        // With a ledger, inserting each chunk's row checks for dropped keys, the table's name
        // and its types. After these checks, no load can drop keys, and no session can rename or
        // alter the tables: the lanes hold locks on them.
        check_no_dropped_keys(&control.client, table.oid).await?;
        for session in &sessions {
            table.check_unchanged(&session.connection.client).await?;
        }
    }
    for (index, session) in sessions.iter().enumerate() {
        let is_last = index + 1 == sessions.len();
        // If the reply to a commit is lost, the ledger tells whether the commit happened. Without a
        // ledger, the server is asked about the transaction id. A stage is lost with its session.
        let xact = match (&job.ledger, &job.destination) {
            (None, Destination::Table { .. }) => read_transaction(&session.connection).await?,
            _ => None,
        };
        let sql = match is_last {
            _ if job.setup.commits_across_nodes => COMMIT_ACROSS_NODES,
            true => COMMIT_DURABLY,
            false => COMMIT_WITHOUT_FLUSH,
        };
        let Err(error) = session.connection.client.batch_execute(sql).await else { continue };
        let error = explain_partial_commit(job, &sessions, index, error);
        match xact {
            Some(xact) if error.is_retryable() => {
                if !was_committed(job, &xact).await.unwrap_or(false) {
                    return Err(error);
                }
            }
            _ => return Err(error),
        }
    }
    Ok(())
}

/// Checks that the ledger still has all `chunks`, after a connection was lost. A server crash may
/// lose the latest commits, because those commits did not wait for the disk.
///
/// # Errors
/// [`ErrorKind::Connect`], which is retryable, if chunks are missing or connecting fails.
pub(super) async fn check_chunks_survived(job: &CopyJob, chunks: u64) -> Result<()> {
    let in_ledger = count_ledger_chunks(job).await?;
    if in_ledger.is_none_or(|count| count >= chunks) {
        return Ok(());
    }
    let lost = counted(chunks - in_ledger.unwrap_or_default(), "chunk");
    Err(Error::new(ErrorKind::Connect, format!("the server lost {lost} in a crash")))
}

/// Returns whether the ledger has more chunks than when the copy began. A session whose connection
/// was lost may have committed its transaction nevertheless.
pub(super) async fn has_new_chunks(job: &CopyJob) -> bool {
    let chunks = count_ledger_chunks(job).await.ok().flatten();
    let chunks_before = job.ledger.as_ref().map(|ledger| ledger.written_chunks.chunks());
    chunks > chunks_before
}

/// Returns the number of chunks in the ledger, if there is a ledger.
async fn count_ledger_chunks(job: &CopyJob) -> Result<Option<u64>> {
    let Some(ledger) = job.ledger_id() else { return Ok(None) };
    let connection = job.session_opener.open().await?;
    let done = read_written_chunks(&connection.client, ledger).await?;
    connection.close().await;
    Ok(Some(done.chunks()))
}

/// A transaction's id, and the start time of the server that assigned the id. After a failover, a
/// standby that lacks the primary's latest transactions assigns the same ids again.
struct LaneTransaction {
    id: String,
    server_started: String,
}

/// Returns the id of the lane's transaction, if the lane has written anything.
async fn read_transaction(connection: &Connection) -> Result<Option<LaneTransaction>> {
    let sql = "select pg_current_xact_id_if_assigned()::text, pg_postmaster_start_time()::text";
    let failed = server_error("could not prepare to commit".to_owned());
    let row = connection.client.fetch_one(sql, &[]).await.map_err(failed)?;
    let id: Option<String> = row.get(0);
    Ok(id.map(|id| LaneTransaction { id, server_started: row.get(1) }))
}

/// Waits until a transaction whose connection was lost has ended. Returns whether the transaction
/// was committed; false if the outcome cannot be found out.
async fn was_committed(job: &CopyJob, xact: &LaneTransaction) -> Result<bool> {
    let started = std::time::Instant::now();
    while started.elapsed() < OUTCOME_TIMEOUT {
        if let Ok(connection) = job.session_opener.open().await {
            let sql = "select case when pg_postmaster_start_time()::text = $2 \
                              then pg_xact_status($1::text::xid8) end";
            let failed = server_error("could not look up the transaction".to_owned());
            let row = connection.client.fetch_one(sql, &[&xact.id, &xact.server_started]).await;
            let row = row.map_err(failed)?;
            match row.get::<_, Option<&str>>(0) {
                Some("committed") => return Ok(true),
                Some("in progress") => {}
                _ => return Ok(false),
            }
        }
        tokio::time::sleep(OUTCOME_POLL).await;
    }
    Ok(false)
}

/// Explains why the commit of session number `failed` failed. A hint says what is committed and how
/// to continue.
fn explain_partial_commit(
    job: &CopyJob,
    sessions: &[&LaneSession],
    failed: usize,
    error: tokio_postgres::Error,
) -> Error {
    let error = sessions[failed].connection.explain("could not commit every lane", error);
    // With a ledger, the load says how to continue.
    if !matches!(job.destination, Destination::Table { .. }) || job.ledger.is_some() {
        return error;
    }
    let rows = |sessions: &[&LaneSession]| sessions.iter().map(|it| it.rows_written).sum::<u64>();
    let (committed, all) = (rows(&sessions[..failed]), rows(sessions));
    let unsure = sessions[failed].rows_written;
    error.hint(format!(
        "Of {all} rows, {committed} are committed and {unsure} more may be. Count the table's rows \
         before you load again. A load with `--lanes 1` is one transaction."
    ))
}
