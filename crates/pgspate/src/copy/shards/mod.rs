//! Copies rows straight into the shards of a hash-distributed table of Citus.
//!
//! The coordinator neither parses nor routes the rows. Lanes encode chunks and split the rows by
//! shard ([`RowSplitter`]). Sessions with the nodes write them ([`ShardWriter`]). All chunks, or a
//! group of them if chunks are committed one by one, are committed together (`decide.rs`).
//!
//! An attempt either commits its chunks or leaves nothing. So after a refusal the caller repeats
//! the copy through the coordinator, which reports the first refused row as `\copy` would.

mod decide;
mod split;
mod writer;
mod writer_tasks;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use self::decide::{CoordinatorSessions, commit_all};
use self::split::{RowSplitter, ShardPiece};
use self::writer::ShardWriter;
use self::writer_tasks::WriterTasks;
use super::shared::SharedRun;
use super::{
    Commit, CopyEnd, CopyOutcome, Lanes, PIECE_BYTES, ReadySession, SessionOpener, StageSeconds,
};
use crate::encode::Encoded;
use crate::format::{Chunk, ChunkEncoder, EncodeMode};
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::{ChunkRecord, ChunkRecorder};
use pgspate_target::shards::{
    PreparedOrigin, ShardSession, ShardedTable, find_other_server, is_reached_by_coordinator,
};

/// Chunks that are committed together, if chunks are committed one by one. Each commit waits for
/// the disks of all nodes.
const GROUP_CHUNKS: usize = 16;
const TICK: Duration = Duration::from_millis(20);

/// How the rows of a copy reach the shards of their table.
pub(crate) struct ShardRoute {
    pub(crate) table: ShardedTable,
    /// The table's name, as SQL takes it.
    pub(crate) sql_name: String,
    /// The position of the distribution column among the columns that are written.
    pub(crate) field: usize,
    /// Opens sessions with each node.
    pub(crate) openers: Vec<SessionOpener>,
    /// The binary COPY statement of each shard.
    pub(crate) copy_sql: Vec<String>,
}

/// A copy into shards that runs.
struct ShardCopy<'a> {
    shared: &'a SharedRun<'a>,
    route: &'a Arc<ShardRoute>,
    recorder: &'a ChunkRecorder,
    runtime: &'a Handle,
    /// The number of lanes, which encode.
    lanes: usize,
    /// Which session writes each shard.
    session_of_shard: Vec<usize>,
    rows_in: u64,
    chunks: u64,
    committing: Duration,
}

/// Runs the job to its end. Blocks.
///
/// # Errors
/// The user's request to stop. [`ErrorKind::Ledger`] if a node has lost committed rows.
pub(super) fn run(
    shared: &SharedRun<'_>,
    route: &Arc<ShardRoute>,
    recorder: &ChunkRecorder,
    runtime: &Handle,
) -> Result<CopyEnd> {
    let error = match ShardCopy::new(shared, route, recorder, runtime).run() {
        Ok(outcome) => return Ok(CopyEnd::Done(outcome, Vec::new())),
        Err(error) => error,
    };
    shared.check_cancelled()?;
    if error.kind() == ErrorKind::Ledger {
        // The ledger counts rows that a node has lost. Repeating the copy would leave them out.
        return Err(error);
    }
    Ok(match is_interruption(&error) {
        true => CopyEnd::Interrupted(error),
        false => CopyEnd::NotRoutable(error),
    })
}

/// Returns whether another attempt may succeed by the same way. A node without a free connection
/// may never have one.
fn is_interruption(error: &Error) -> bool {
    error.is_retryable() && error.sqlstate() != Some(&SqlState::TOO_MANY_CONNECTIONS)
}

impl<'a> ShardCopy<'a> {
    fn new(
        shared: &'a SharedRun<'a>,
        route: &'a Arc<ShardRoute>,
        recorder: &'a ChunkRecorder,
        runtime: &'a Handle,
    ) -> ShardCopy<'a> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let lanes = match shared.job.lanes {
            Lanes::Fixed(lanes) => lanes,
            Lanes::Auto(first, most) => first.max(most.min(cores)),
        };
        let (table, mut sessions) = (&route.table, 0);
        let mut session_of_shard = vec![0; table.shards.len()];
        let sessions_a_node = lanes.div_ceil(table.nodes.len());
        for node in 0..table.nodes.len() {
            let shards: Vec<usize> = table.shards_on(node).collect();
            let count = sessions_a_node.min(shards.len());
            for (ordinal, shard) in shards.into_iter().enumerate() {
                session_of_shard[shard] = sessions + ordinal % count;
            }
            sessions += count;
        }
        ShardCopy {
            shared,
            route,
            recorder,
            runtime,
            lanes,
            session_of_shard,
            rows_in: 0,
            chunks: 0,
            committing: Duration::ZERO,
        }
    }

    fn run(mut self) -> Result<CopyOutcome> {
        let (job, shared) = (self.shared.job, self.shared);
        let control = job.control_connection.as_ref();
        let control = &control.ok_or_else(lacks_control_connection)?.client;
        let opening = async {
            let deciding = job.open_lane_session("").await?;
            let holding = ReadySession::open(&job.session_opener, &job.setup).await?;
            let writers = self.open_writers(control).await?;
            let sessions = CoordinatorSessions::new(deciding, holding, job.setup.limits);
            let origin = PreparedOrigin::read(control).await?;
            Ok::<_, Error>((sessions, writers, origin))
        };
        let (mut coordinator, mut writers, origin) = self.block_on(opening)?;
        loop {
            self.block_on(async {
                coordinator.begin().await?;
                let begun = writers.iter_mut().map(|writer| writer.begin(self.route));
                try_join_all(begun).await
            })?;
            let (written, chunks) = self.copy_group(writers)?;
            writers = written;
            let is_last = shared.are_all_chunks_cut();
            self.check_before_commit(&chunks, &writers, is_last)?;
            let started = Instant::now();
            let recorder = (&origin, self.recorder);
            let committing = commit_all(&coordinator, &writers, recorder, &chunks, shared.progress);
            self.runtime.block_on(committing)?;
            self.committing += started.elapsed();
            self.count_committed(&chunks);
            if is_last {
                break;
            }
        }
        let contents = shared.contents();
        if job.commit == Commit::EachChunk {
            (job.check_unchanged)(&contents)?;
        }
        // The locks must be free before the caller restores the table's keys.
        self.runtime.block_on(coordinator.release());
        shared.check_confirmed(self.chunks)?;
        Ok(self.outcome())
    }

    /// Opens the sessions with the nodes, and checks that the coordinator sees them there.
    async fn open_writers(&self, coordinator: &Client) -> Result<Vec<ShardWriter>> {
        let count = self.session_of_shard.iter().max().map_or(0, |last| last + 1);
        let opening = (0..count).map(async |session| {
            let shards = 0..self.session_of_shard.len();
            let shards: Vec<usize> =
                shards.filter(|shard| self.session_of_shard[*shard] == session).collect();
            let node = shards.first().map_or(0, |shard| self.route.table.shards[*shard].node);
            match ShardWriter::open(self.shared.job, self.route, node, shards).await {
                Err(error) if error.is_retryable() => {
                    Err(self.explain_unreachable(coordinator, node, error).await)
                }
                opened => opened,
            }
        });
        let writers = try_join_all(opening).await?;
        let sessions: Vec<ShardSession> = writers.iter().map(|it| it.identity.clone()).collect();
        match find_other_server(coordinator, &sessions).await? {
            None => Ok(writers),
            Some(node) => {
                let message = format!("the name of {node} leads to another server from here");
                Err(Error::new(ErrorKind::Plan, message))
            }
        }
    }

    /// Returns the error for a node that could not be reached. It is not retryable if the
    /// coordinator reaches the node: the rows can go through the coordinator.
    async fn explain_unreachable(&self, coordinator: &Client, node: usize, error: Error) -> Error {
        let node = &self.route.table.nodes[node];
        match is_reached_by_coordinator(coordinator, node).await {
            Ok(true) => {
                let message = format!("only the coordinator can reach {node}");
                Error::new(ErrorKind::Plan, message).because(error)
            }
            Ok(false) | Err(_) => error,
        }
    }

    /// Runs `work`. Returns an error if the load ends before `work` is done.
    fn block_on<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime.block_on(super::lane::run_until_load_ends(self.shared, None, work))
    }

    /// Copies chunks until the input ends or the group is complete. Returns the sessions, whose
    /// transactions are open, and the chunks.
    fn copy_group(
        &self,
        writers: Vec<ShardWriter>,
    ) -> Result<(Vec<ShardWriter>, Vec<ChunkRecord>)> {
        let quota = match self.shared.job.commit {
            Commit::AtEnd => usize::MAX,
            Commit::EachChunk => GROUP_CHUNKS,
        };
        let group = ChunkGroup {
            quota: AtomicUsize::new(quota),
            chunks: Mutex::default(),
            has_failed: AtomicBool::new(false),
        };
        let (tasks, senders) = WriterTasks::start(writers, self.route, self.runtime);
        let encoded = self.run_lanes(&group, senders, &tasks);
        // A session's error explains why a lane could not send, so it comes first.
        let writers = self.runtime.block_on(tasks.join())?;
        if let Some(failure) = self.shared.take_failure() {
            return Err(failure.error);
        }
        encoded?;
        let writers = writers.ok_or_else(over)?;
        let mut chunks = group.chunks.into_inner().expect("no lane has panicked");
        chunks.sort_by_key(|record| record.chunk);
        Ok((writers, chunks))
    }

    /// Runs the lanes until the group is complete. Aborts the writing tasks after a failure, as a
    /// lane may wait for a session. Returns the first lane's error.
    fn run_lanes(
        &self,
        group: &ChunkGroup,
        senders: Vec<mpsc::Sender<ShardPiece>>,
        tasks: &WriterTasks,
    ) -> Result<()> {
        thread::scope(|scope| {
            let lanes: Vec<_> = (0..self.lanes)
                .map(|_| {
                    self.shared.progress.lanes.fetch_add(1, Relaxed);
                    let senders = senders.clone();
                    let watcher = thread::current();
                    scope.spawn(move || {
                        let encoded = self.encode_chunks(group, &senders);
                        watcher.unpark();
                        encoded
                    })
                })
                .collect();
            // The tasks end when the last sender is dropped.
            drop(senders);
            let has_failed = || self.shared.is_over() || group.has_failed.load(Relaxed);
            while !lanes.iter().all(thread::ScopedJoinHandle::is_finished) || !tasks.are_finished()
            {
                thread::park_timeout(TICK);
                if has_failed() {
                    break;
                }
            }
            if has_failed() {
                self.runtime.block_on(tasks.abort());
            }
            let lanes =
                lanes.into_iter().map(|lane| lane.join().unwrap_or_else(|_| Err(panicked())));
            // All lanes are joined, also after an error.
            lanes.collect::<Vec<Result<()>>>().into_iter().collect()
        })
    }

    /// Runs one lane: takes chunks, encodes them, and sends their rows to the shards' sessions.
    fn encode_chunks(
        &self,
        group: &ChunkGroup,
        senders: &[mpsc::Sender<ShardPiece>],
    ) -> Result<()> {
        let mut encoder = (self.shared.job.make_encoder)();
        let mut splitter = RowSplitter::new(self.route);
        let mut send = |piece: ShardPiece| {
            let started = Instant::now();
            let progress = self.shared.progress;
            progress.sent.fetch_add(piece.bytes.len() as u64, Relaxed);
            let sent = senders[self.session_of_shard[piece.shard]].blocking_send(piece);
            progress.send_nanos.fetch_add(started.elapsed().as_nanos() as u64, Relaxed);
            sent.is_ok()
        };
        let encoded = (|| {
            while group.take_slot() {
                let Some(chunk) = self.shared.next_chunk() else { break };
                let rows = self.encode_chunk(&chunk, encoder.as_mut(), &mut splitter, &mut send)?;
                group.add(&chunk, rows);
            }
            match self.shared.is_over() || !splitter.send_all(&mut send) {
                true => Err(over()),
                false => Ok(()),
            }
        })();
        group.has_failed.fetch_or(encoded.is_err(), Relaxed);
        encoded
    }

    /// Encodes a chunk and hands its rows to `splitter`. Returns the number of rows.
    fn encode_chunk(
        &self,
        chunk: &Arc<Chunk>,
        encoder: &mut dyn ChunkEncoder,
        splitter: &mut RowSplitter<'_>,
        send: &mut impl FnMut(ShardPiece) -> bool,
    ) -> Result<u64> {
        let (mut out, mut rows) = (Encoded::default(), 0);
        let progress = self.shared.progress;
        let started = (Instant::now(), progress.send_nanos.load(Relaxed));
        encoder.begin(Arc::clone(chunk), EncodeMode::Binary)?;
        loop {
            let has_more = encoder.fill(&mut out, PIECE_BYTES)?;
            if !out.text_rows.is_empty() {
                let message = "a value must be read by the server";
                return Err(Error::new(ErrorKind::Plan, message));
            }
            if self.shared.is_over() || !splitter.add(&out.binary, &mut *send)? {
                return Err(over());
            }
            rows += out.binary_rows;
            out.clear();
            if !has_more {
                break;
            }
        }
        let sending = progress.send_nanos.load(Relaxed) - started.1;
        let encoding = (started.0.elapsed().as_nanos() as u64).saturating_sub(sending);
        progress.encode_nanos.fetch_add(encoding, Relaxed);
        progress.bytes.fetch_add(chunk.stored_bytes(), Relaxed);
        progress.rows.fetch_add(rows, Relaxed);
        Ok(rows)
    }

    /// Checks that the sessions have written every row of the chunks, and that the sources have not
    /// changed if this is the only commit.
    fn check_before_commit(
        &self,
        chunks: &[ChunkRecord],
        writers: &[ShardWriter],
        is_last: bool,
    ) -> Result<()> {
        self.shared.check_cancelled()?;
        let sent: u64 = chunks.iter().map(|chunk| chunk.rows_in).sum();
        let written: u64 = writers.iter().map(|writer| writer.rows).sum();
        if sent != written {
            let message = format!("sent {sent} rows but the servers wrote {written}");
            return Err(Error::new(ErrorKind::Bug, message));
        }
        if self.shared.job.commit == Commit::AtEnd {
            self.shared.check_confirmed(self.chunks + chunks.len() as u64)?;
            (self.shared.job.check_unchanged)(&self.shared.contents())?;
        }
        match self.shared.is_over() && !is_last {
            true => Err(over()),
            false => Ok(()),
        }
    }

    fn count_committed(&mut self, chunks: &[ChunkRecord]) {
        let rows = chunks.iter().map(|chunk| chunk.rows_in).sum();
        self.rows_in += rows;
        self.chunks += chunks.len() as u64;
        self.shared.progress.committed.add(rows, chunks.len() as u64);
    }

    fn outcome(&self) -> CopyOutcome {
        let progress = self.shared.progress;
        let [source, encode, server] = progress.stage_nanos().map(|nanos| nanos as f64 / 1e9);
        CopyOutcome {
            rows_in: self.rows_in,
            rows_written: self.rows_in,
            rows_rejected: 0,
            rows_as_text: 0,
            lanes: self.lanes.min(usize::try_from(self.chunks).unwrap_or(usize::MAX)),
            chunks: self.shared.chunks(),
            chunks_before: self.shared.skipped(),
            stages: StageSeconds { source, encode, server, commit: self.committing.as_secs_f64() },
            bytes_sent: progress.sent.load(Relaxed),
            contents: self.shared.contents(),
        }
    }
}

/// Chunks that are committed together.
struct ChunkGroup {
    /// The number of chunks that may still be taken.
    quota: AtomicUsize,
    chunks: Mutex<Vec<ChunkRecord>>,
    /// Whether a lane has failed.
    has_failed: AtomicBool,
}

impl ChunkGroup {
    /// Returns whether one more chunk may be taken, and counts it.
    fn take_slot(&self) -> bool {
        self.quota.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    fn add(&self, chunk: &Chunk, rows: u64) {
        let record = ChunkRecord {
            chunk: chunk.seq,
            input: chunk.input,
            position: chunk.position(),
            digest: chunk.digest,
            rows_in: rows,
            rows_written: rows,
            rows_rejected: 0,
        };
        self.chunks.lock().expect("no panic while held").push(record);
    }
}

/// Returns the error of work that ends because other work has failed, or the load was stopped.
fn over() -> Error {
    Error::new(ErrorKind::Connect, "the copy ended early")
}

fn lacks_control_connection() -> Error {
    Error::new(ErrorKind::Bug, "a copy into shards has no connection for queries")
}

fn panicked() -> Error {
    Error::new(ErrorKind::Bug, "a lane panicked")
}
