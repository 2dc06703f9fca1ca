//! The commits of lanes that commit together, and what became of one whose answer got lost.

use std::time::Duration;

use super::lane::FinishedLane;
use super::{Destination, CopyJob, LaneSession};
use crate::numbers::counted;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::{check_no_keys_down, read_done};
use pgspate_target::{Ask, server_error};

/// How long a transaction may take to come to its end after its connection was lost.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(200);

/// Commits, and waits for the disk if the role's settings do. In a transaction that has failed
/// `commit` would roll back and report no error, but `set` fails.
pub(crate) const DURABLY: &str = "set local synchronous_commit to default; commit";
/// The same without the wait.
const LATER: &str = "set local synchronous_commit to off; commit";

/// Commits every lane, the last one durably: as the WAL is one sequence, all are durable then.
/// Whatever can be refused was checked in all lanes before. A lane whose rows a trigger has put
/// elsewhere has written none, and yet has something to commit.
pub(super) async fn commit(job: &CopyJob, lanes: &[FinishedLane]) -> Result<()> {
    let has_work = |lane: &&FinishedLane| lane.tally.chunks > 0 || job.before().is_some();
    let working: Vec<_> = lanes.iter().filter(has_work).flat_map(|lane| &lane.sessions).collect();
    if let (Destination::Table { oid, .. }, None, false) =
        (&job.destination, &job.ledger, working.is_empty())
    {
        // With a ledger each chunk's row does that. No keys can go while a lane has rows.
        check_no_keys_down(&job.control.client, *oid).await?;
    }
    for (nth, session) in working.iter().enumerate() {
        let is_last = nth + 1 == working.len();
        // The ledger tells what became of a transaction; without one, its number does.
        let xact = match &job.ledger {
            Some(_) => None,
            None => transaction(&session.connection).await?,
        };
        let sql = if is_last { DURABLY } else { LATER };
        let Err(error) = session.connection.client.batch_execute(sql).await else { continue };
        let error = half_committed(job, &working, nth, error);
        match xact {
            Some(xact) if error.is_retryable() => {
                if !settled(job, &xact).await.unwrap_or(false) {
                    return Err(error);
                }
            }
            _ => return Err(error),
        }
    }
    Ok(())
}

/// That the ledger still has all `chunks`. Those that were committed last may be lost when the
/// server crashes, as their commits did not wait for the disk. Only where a connection was lost.
///
/// # Errors
/// One that can be retried, when chunks are missing or the server cannot be asked.
pub(super) async fn check_kept(job: &CopyJob, chunks: u64) -> Result<()> {
    let kept = ledger_chunks(job).await?;
    if kept.is_none_or(|kept| kept >= chunks) {
        return Ok(());
    }
    let lost = counted(chunks - kept.unwrap_or_default(), "chunk");
    Err(Error::new(ErrorKind::Connect, format!("the server has lost {lost} in a crash")))
}

/// Whether the ledger has chunks by now that it did not have when the job began: those of a session
/// that was cut off from us, and has come to its end after all.
pub(super) async fn has_more(job: &CopyJob) -> bool {
    let chunks = ledger_chunks(job).await.ok().flatten();
    let before = job.ledger.as_ref().map(|ledger| ledger.done.chunks());
    chunks > before
}

/// How many chunks the ledger has, if there is one.
async fn ledger_chunks(job: &CopyJob) -> Result<Option<u64>> {
    let Some(ledger) = job.ledger_id() else { return Ok(None) };
    let connection = job.connect.open().await?;
    let done = read_done(&connection.client, ledger).await?;
    connection.close().await;
    Ok(Some(done.chunks()))
}

/// A transaction, and the run of the server that gave it its number: a standby that has taken over
/// with less than its primary had gives the same number to another one.
struct LaneTransaction {
    number: String,
    server_since: String,
}

/// The lane's transaction, if it has written anything.
async fn transaction(connection: &Connection) -> Result<Option<LaneTransaction>> {
    let sql = "select pg_current_xact_id_if_assigned()::text, pg_postmaster_start_time()::text";
    let failed = server_error("could not prepare to commit".to_owned());
    let row = connection.client.ask_one(sql, &[]).await.map_err(failed)?;
    let number: Option<String> = row.get(0);
    Ok(number.map(|number| LaneTransaction { number, server_since: row.get(1) }))
}

/// Whether a transaction whose answer got lost was committed, once it has come to its end. False
/// when that cannot be known.
async fn settled(job: &CopyJob, xact: &LaneTransaction) -> Result<bool> {
    let started = std::time::Instant::now();
    while started.elapsed() < PATIENCE {
        if let Ok(connection) = job.connect.open().await {
            let sql = "select case when pg_postmaster_start_time()::text = $2 \
                              then pg_xact_status($1::text::xid8) end";
            let failed = server_error("could not look up the transaction".to_owned());
            let row = connection.client.ask_one(sql, &[&xact.number, &xact.server_since]).await;
            let row = row.map_err(failed)?;
            match row.get::<_, Option<&str>>(0) {
                Some("committed") => return Ok(true),
                Some("in progress") => {}
                _ => return Ok(false),
            }
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(false)
}

/// The connection or the server went away between the first commit and the last.
fn half_committed(
    job: &CopyJob,
    sessions: &[&LaneSession],
    nth: usize,
    error: tokio_postgres::Error,
) -> Error {
    let error = sessions[nth].connection.explain("could not commit every lane", error);
    if job.ledger.is_some() {
        return error.hint("Run the same command again: the ledger knows which lanes are in.");
    }
    let rows = |sessions: &[&LaneSession]| sessions.iter().map(|session| session.rows).sum::<u64>();
    let (before, all) = (rows(&sessions[..nth]), rows(sessions));
    let unsure = sessions[nth].rows;
    error.hint(format!(
        "Of {all} rows, {before} are in the table, and {unsure} more may be. Count the table's \
         rows before you load again; a load with `--lanes 1` is one transaction."
    ))
}
