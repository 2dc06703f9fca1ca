//! Commits the transactions of several nodes as one.
//!
//! Each node's transaction is prepared. The commit of a transaction on the coordinator, which
//! records the chunks in the ledger, decides about all of them. After a fault in between,
//! `resolve_prepared` reads the decision.

use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio_postgres::error::SqlState;

use super::writer::ShardWriter;
use crate::copy::commit::COMMIT_ACROSS_NODES;
use crate::copy::stream::{BEGIN_READ_COMMITTED, copy_error};
use crate::copy::{CopyProgress, ReadySession, WaitLimits};
use crate::numbers::counted;
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::{ChunkRecord, ChunkRecorder, is_chunk_recorded};
use pgspate_target::shards::{PreparedName, PreparedOrigin};
use pgspate_target::{TypedQuery, server_error};

/// How long the second session with the coordinator waits for locks that the first one has. Only
/// a session that waits for the first one can be in between.
const SECOND_LOCK_TIMEOUT: &str = "set local lock_timeout = '1s'";

/// Two sessions with the coordinator. Both hold the locks on the table that a writer holds, so that
/// no other session can drop, truncate or rewrite the table, or move its shards.
pub(super) struct CoordinatorSessions {
    /// Its commit decides. It releases the locks, before the nodes know the decision.
    pub(super) deciding: ReadySession,
    /// Holds the locks until all nodes know the decision.
    pub(super) holding: ReadySession,
    /// Whether `holding` has the locks.
    is_held: bool,
    limits: WaitLimits,
}

impl CoordinatorSessions {
    pub(super) fn new(
        deciding: ReadySession,
        holding: ReadySession,
        limits: WaitLimits,
    ) -> CoordinatorSessions {
        CoordinatorSessions { deciding, holding, is_held: false, limits }
    }

    /// Begins the transactions in which the next chunks are committed.
    ///
    /// If another session waits for the locks of the first session, the second one would wait for
    /// that other session, without end. Then both give way, and begin again after it.
    pub(super) async fn begin(&mut self) -> Result<()> {
        loop {
            if !self.is_held {
                begin_with_locks(&self.holding, "").await?;
                self.is_held = true;
            }
            match begin_with_locks(&self.deciding, SECOND_LOCK_TIMEOUT).await {
                Err(error) if error.sqlstate() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                    self.release().await;
                }
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        let sql = format!("set local lock_timeout = {}", self.limits.lock_timeout_millis());
        let set = self.deciding.connection.client.batch_execute(&sql).await;
        set.map_err(|error| copy_error(&self.deciding.connection, error))
    }

    /// Releases the locks of both sessions.
    pub(super) async fn release(&mut self) {
        roll_back(&self.deciding).await;
        roll_back(&self.holding).await;
        self.is_held = false;
    }
}

/// Begins a transaction with a COPY of no rows. It takes the locks that each COPY through the
/// coordinator takes.
async fn begin_with_locks(session: &ReadySession, settings: &str) -> Result<()> {
    let ReadySession { connection, text, .. } = session;
    let failed = |error| copy_error(connection, error);
    let begin = format!("{BEGIN_READ_COMMITTED}; {settings}");
    connection.client.batch_execute(&begin).await.map_err(failed)?;
    let sink = pin!(connection.client.copy_in::<_, Bytes>(text).await.map_err(failed)?);
    sink.finish().await.map_err(failed)?;
    Ok(())
}

/// Rolls the transaction back, so that its locks are free. Errors are ignored: the server rolls
/// back when the session ends.
async fn roll_back(session: &ReadySession) {
    let _ = session.connection.client.batch_execute("rollback").await;
}

/// Commits the writers' transactions and records `chunks` in the ledger, all or nothing. The
/// transactions of `coordinator` have begun.
///
/// # Errors
/// A retryable error if the outcome is unknown, or if a node could not be told the decision. After
/// any other error, nothing is committed.
pub(super) async fn commit_all(
    coordinator: &CoordinatorSessions,
    writers: &[ShardWriter],
    (origin, recorder): (&PreparedOrigin, &ChunkRecorder),
    chunks: &[ChunkRecord],
    progress: &CopyProgress,
) -> Result<()> {
    let Some(first) = chunks.first() else { return Ok(()) };
    let connection = &coordinator.deciding.connection;
    let client = &connection.client;
    let failed = server_error("could not prepare to commit".to_owned());
    let row = client
        .fetch_one("select pg_catalog.pg_current_xact_id()::pg_catalog.text", &[])
        .await
        .map_err(failed)?;
    let xid = row.get::<_, &str>(0).parse().unwrap_or_default();
    let name = |session| {
        let (origin, chunk) = (origin.clone(), first.chunk);
        PreparedName { origin, job: recorder.job.0, chunk, xid, session }
    };
    let with_rows: Vec<(String, &ShardWriter)> = (writers.iter().enumerate())
        .filter(|(_, writer)| writer.rows > 0)
        .map(|(session, writer)| (name(session).to_string(), writer))
        .collect();
    let prepared = async {
        let node_xids = read_node_xids(&with_rows).await?;
        run_on_all(&with_rows, "prepare transaction").await.map(|()| node_xids)
    };
    let prepared = prepared.await;
    let decided = match prepared {
        Ok(node_xids) => {
            progress.committed.unverified_chunks.store(true, Relaxed);
            decide(coordinator, recorder, chunks).await.map(|()| node_xids)
        }
        Err(error) => {
            roll_back(&coordinator.deciding).await;
            Err(Undecided::RolledBack(error))
        }
    };
    match decided {
        Ok(node_xids) => {
            progress.committed.unverified_chunks.store(false, Relaxed);
            commit_prepared(&with_rows, &node_xids).await
        }
        Err(Undecided::RolledBack(error)) => {
            let _ = run_on_all(&with_rows, "rollback prepared").await;
            Err(error)
        }
        // The transactions stay prepared until the ledger can be read.
        Err(Undecided::Unknown(error)) => {
            let message = "the outcome of a commit is not known yet";
            Err(Error::new(ErrorKind::Connect, message).because(error))
        }
    }
}

/// Why the coordinator has not said that the chunks are committed.
enum Undecided {
    /// No chunk is committed.
    RolledBack(Error),
    /// All may be committed: the commit was sent.
    Unknown(Error),
}

/// Records the chunks in the ledger, and commits.
async fn decide(
    coordinator: &CoordinatorSessions,
    recorder: &ChunkRecorder,
    chunks: &[ChunkRecord],
) -> Result<(), Undecided> {
    let connection = &coordinator.deciding.connection;
    let record = recorder.insert_chunks_sql(chunks);
    if let Err(error) = connection.client.batch_execute(&record).await {
        let is_recorded = is_chunk_recorded(&error);
        let error = copy_error(connection, error);
        roll_back(&coordinator.deciding).await;
        return Err(Undecided::RolledBack(match is_recorded {
            // A lost session of this job has written a chunk. The next attempt leaves it out.
            true => Error::new(ErrorKind::Connect, "a chunk was written meanwhile").because(error),
            false => error,
        }));
    }
    let committed = connection.client.batch_execute(COMMIT_ACROSS_NODES).await;
    committed.map_err(|error| Undecided::Unknown(connection.explain("could not commit", error)))
}

/// Reads the id of each writer's transaction. Fails if the transaction has failed: then PREPARE
/// would roll it back without an error. The preparation waits for the node's standbys.
async fn read_node_xids(transactions: &[(String, &ShardWriter)]) -> Result<Vec<String>> {
    let read = async |(_, writer): &(String, &ShardWriter)| {
        let failed = || server_error("could not prepare to commit".to_owned());
        let client = &writer.connection.client;
        let set = "set local synchronous_commit to on";
        client.batch_execute(set).await.map_err(failed())?;
        let sql = "select pg_catalog.pg_current_xact_id()::pg_catalog.text";
        Ok(client.fetch_one(sql, &[]).await.map_err(failed())?.get(0))
    };
    join_all(transactions.iter().map(read)).await.into_iter().collect()
}

/// Runs `statement` with each transaction's name.
async fn run_on_all(transactions: &[(String, &ShardWriter)], statement: &str) -> Result<()> {
    let run = async |(name, writer): &(String, &ShardWriter)| {
        let connection = &writer.connection;
        let done = connection.client.batch_execute(&format!("{statement} '{name}'")).await;
        done.map_err(|error| copy_error(connection, error))
    };
    join_all(transactions.iter().map(run)).await.into_iter().collect()
}

/// Commits the prepared transactions. A transaction that does not exist any more may have been
/// committed by another session, by the same decision.
///
/// # Errors
/// [`ErrorKind::Ledger`] if a node has not committed it, so that rows are lost which the ledger
/// counts.
async fn commit_prepared(
    transactions: &[(String, &ShardWriter)],
    node_xids: &[String],
) -> Result<()> {
    let commit = async |((name, writer), xid): (&(String, &ShardWriter), &String)| {
        let connection = &writer.connection;
        let done = connection.client.batch_execute(&format!("commit prepared '{name}'")).await;
        match done {
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_OBJECT) => {
                check_is_committed(writer, xid).await
            }
            // Another session is ending it.
            Err(error) if error.code() == Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE) => {
                let message = "another session commits the rows of a node";
                Err(Error::new(ErrorKind::Connect, message).because(copy_error(connection, error)))
            }
            done => done.map_err(|error| copy_error(connection, error)),
        }
    };
    join_all(transactions.iter().zip(node_xids).map(commit)).await.into_iter().collect()
}

/// Checks that a node has committed the transaction with this id.
async fn check_is_committed(writer: &ShardWriter, xid: &str) -> Result<()> {
    let failed = server_error("could not look up a prepared transaction".to_owned());
    let sql = "select pg_catalog.pg_xact_status($1::text::xid8) \
                      is not distinct from 'committed'";
    let row = writer.connection.client.fetch_one(sql, &[&xid]).await.map_err(failed)?;
    if row.get(0) {
        return Ok(());
    }
    let rows = counted(writer.rows, "row");
    let message = format!("a node has lost {rows} that the ledger counts as written");
    Err(Error::new(ErrorKind::Ledger, message).hint(
        "Another session has rolled back a prepared transaction of pgspate, or the node has failed \
         over to a standby that lacks it. Delete the rows of this load, run `pgspate status \
         --forget JOB`, and load again.",
    ))
}
