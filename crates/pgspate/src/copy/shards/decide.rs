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
use crate::copy::{CopyProgress, ReadySession};
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::{ChunkRecord, JobId, is_chunk_recorded};
use pgspate_target::shards::{PreparedName, database_oid};
use pgspate_target::{TypedQuery, server_error};

/// A session with the coordinator that holds the table's locks as a writer does.
pub(super) struct CoordinatorSession(pub(super) ReadySession);

impl CoordinatorSession {
    /// Begins a transaction with a COPY of no rows. It takes the locks that each COPY through the
    /// coordinator takes: nobody can drop, truncate or rewrite the table, or move its shards.
    pub(super) async fn begin(&self) -> Result<()> {
        let ReadySession { connection, text, .. } = &self.0;
        let failed = |error| copy_error(connection, error);
        connection.client.batch_execute(BEGIN_READ_COMMITTED).await.map_err(failed)?;
        let sink = pin!(connection.client.copy_in::<_, Bytes>(text).await.map_err(failed)?);
        sink.finish().await.map_err(failed)?;
        Ok(())
    }

    /// Rolls the transaction back, so that its locks are free. Errors are ignored: the server rolls
    /// back when the session ends.
    pub(super) async fn roll_back(&self) {
        let _ = self.0.connection.client.batch_execute("rollback").await;
    }
}

/// Commits the writers' transactions and records `chunks` in the ledger, all or nothing. Also
/// begins and ends a transaction of `coordinator`.
///
/// # Errors
/// A retryable error if the outcome is unknown, or if a node could not be told the decision. After
/// any other error, nothing is committed.
pub(super) async fn commit_all(
    coordinator: &CoordinatorSession,
    writers: &[ShardWriter],
    job: JobId,
    chunks: &[ChunkRecord],
    progress: &CopyProgress,
) -> Result<()> {
    let Some(first) = chunks.first() else { return Ok(()) };
    let client = &coordinator.0.connection.client;
    let database = database_oid(client).await?;
    coordinator.begin().await?;
    let failed = server_error("could not prepare to commit".to_owned());
    let row = client.fetch_one("select pg_current_xact_id()::text", &[]).await.map_err(failed)?;
    let xid = row.get::<_, &str>(0).parse().unwrap_or_default();
    let name = |session| PreparedName { database, job: job.0, chunk: first.chunk, xid, session };
    let with_rows: Vec<(String, &ShardWriter)> = (writers.iter().enumerate())
        .filter(|(_, writer)| writer.rows > 0)
        .map(|(session, writer)| (name(session).to_string(), writer))
        .collect();
    let prepared = run_on_all(&with_rows, "prepare transaction").await;
    let decided = match prepared {
        Ok(()) => {
            progress.committed.unverified_chunks.store(true, Relaxed);
            decide(coordinator, job, chunks).await
        }
        Err(error) => {
            coordinator.roll_back().await;
            Err(error)
        }
    };
    if let Err(error) = decided {
        // If the outcome is unknown, the transactions stay prepared until the ledger can be read.
        if !(error.is_retryable() && coordinator.0.connection.is_closed()) {
            let _ = run_on_all(&with_rows, "rollback prepared").await;
        }
        return Err(error);
    }
    progress.committed.unverified_chunks.store(false, Relaxed);
    run_on_all(&with_rows, "commit prepared").await
}

/// Records the chunks in the ledger, and commits.
async fn decide(
    coordinator: &CoordinatorSession,
    job: JobId,
    chunks: &[ChunkRecord],
) -> Result<()> {
    let connection = &coordinator.0.connection;
    let record = job.insert_chunks_sql(chunks, false);
    if let Err(error) = connection.client.batch_execute(&record).await {
        let is_recorded = is_chunk_recorded(&error);
        let error = copy_error(connection, error);
        coordinator.roll_back().await;
        return Err(match is_recorded {
            // A lost session of this job has written a chunk. The next attempt leaves it out.
            true => Error::new(ErrorKind::Connect, "a chunk was written meanwhile").because(error),
            false => error,
        });
    }
    let committed = connection.client.batch_execute(COMMIT_ACROSS_NODES).await;
    committed.map_err(|error| connection.explain("could not commit", error))
}

/// Runs `statement` with each transaction's name. A prepared transaction that does not exist any
/// more was ended by another session, by the same decision.
async fn run_on_all(transactions: &[(String, &ShardWriter)], statement: &str) -> Result<()> {
    let run = async |(name, writer): &(String, &ShardWriter)| {
        let connection = &writer.connection;
        let done = connection.client.batch_execute(&format!("{statement} '{name}'")).await;
        match done {
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_OBJECT) => Ok(()),
            done => done.map_err(|error| copy_error(connection, error)),
        }
    };
    join_all(transactions.iter().map(run)).await.into_iter().collect()
}
