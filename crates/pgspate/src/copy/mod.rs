//! Sends chunks of rows to the server over lanes. Every row that pgspate writes goes through this
//! module.
//!
//! A lane is a thread that takes and encodes chunks, and a connection that sends the encoded bytes.
//! Encoding and sending overlap. [`Commit`] decides when lanes commit. Either a lane commits each
//! chunk, together with the chunk's row in the ledger. Or all lanes commit once, at the end.
//!
//! `load` and `sync` build a [`CopyJob`] and call [`run()`].

mod batch_size;
mod commit;
mod cutter_thread;
mod error_context;
mod first_refusal;
mod lane;
mod monitor;
mod progress;
mod reject;
mod rejecting;
mod run;
mod session_registry;
mod session_setup;
mod shards;
mod shared;
mod stream;
mod surrounding;
pub(crate) mod temp_table;

use std::sync::Arc;

use crate::format::{ChunkEncoder, ContentDigests, EncodeMode};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::{ChunkRecorder, JobId, WrittenChunks};
use pgspate_target::session::WaitLimits;
use pgspate_target::{IncomingForeignKey, StorageFacts, WrittenTable};

pub(crate) use commit::{COMMIT_DURABLY, COMMIT_FOR_OTHERS, emptying_error};
pub use progress::{CopyProgress, ProgressSnapshot, Waiting};
pub(crate) use reject::{blames_one_row, is_row_error_code};
pub(crate) use rejecting::{AttemptRejects, run_rejecting};
pub use run::run;
pub use session_setup::SessionOpener;
pub(crate) use session_setup::{CopySetup, EarlySession, ReadySession};
pub(crate) use shards::ShardRoute;
pub(crate) use shared::too_many_rejects;
pub(crate) use stream::{BINARY_HEADER, BINARY_TRAILER, copy_error, is_keys_dropped_error};

/// Bytes per message to the server. The size is large enough that the cost per message is
/// negligible, and small enough that a message stays in the processor's second-level cache between
/// encoding and sending.
pub(crate) const PIECE_BYTES: usize = 256 << 10;

/// Maximum number of encoded pieces that wait between a lane's encoder and the lane's connection.
pub(crate) const PIECES_AHEAD: usize = 8;

/// The number of lanes to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lanes {
    /// Exactly this number of lanes.
    Fixed(usize),
    /// The number of lanes at the start, and the maximum number. Lanes are added while throughput
    /// grows.
    Auto(usize, usize),
}

impl Lanes {
    fn is_auto(self) -> bool {
        matches!(self, Lanes::Auto(..))
    }

    /// Returns the most lanes.
    pub(crate) fn max(self) -> usize {
        match self {
            Lanes::Fixed(count) | Lanes::Auto(_, count) => count,
        }
    }
}

/// The time at which rows are committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    /// After the last chunk, one lane after the other. A load that fails before the first commit
    /// leaves no rows behind.
    AtEnd,
    /// After each chunk. If a load fails, running the load again skips the committed chunks.
    EachChunk,
}

/// The table that rows are copied to.
pub enum Destination {
    /// An existing table, or the shadow of an existing table.
    Table {
        /// The table's name and oid.
        table: WrittenTable,
        /// Statements before and after COPY in the same transaction. Only for a single lane that
        /// commits at the end.
        surrounding: Option<SurroundingSql>,
    },
    /// A stage table in each session of the single lane. The sessions are returned, because the
    /// server drops a temporary table when its session ends.
    Stage {
        /// One COPY WHERE condition per session. All rows are sent to every session, and exactly
        /// one condition must hold for each row. The list is empty if the lane has one session that
        /// keeps every row.
        where_conditions: Vec<String>,
    },
    /// A stage or a table, in one session. The session is returned with its transaction still open.
    OpenTransaction {
        /// SQL that the transaction begins with.
        before: String,
        /// Whether only some of the rows are sent. After a refusal, the caller sends all of them.
        is_partial: bool,
    },
}

/// The ledger's job, which records the chunks of this copy.
pub(crate) struct LedgerJob {
    /// Records the chunks, with the job's number.
    pub(crate) recorder: ChunkRecorder,
    /// Chunks that are written already, by earlier runs or by earlier attempts of this run.
    pub(crate) written_chunks: WrittenChunks,
    /// Chunks that earlier runs have written.
    pub(crate) chunks_before: WrittenChunks,
    /// The number of rows that may be rejected; `None` if the first bad row ends the load. Requires
    /// [`Commit::EachChunk`].
    pub(crate) rejects_max: Option<RejectsMax>,
}

/// The number of rows that may be rejected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RejectsMax {
    /// No limit.
    Any,
    /// At most this number of rows.
    Rows(u64),
    /// At most this percentage of the rows that were read.
    Percent(f64),
}

/// Returns an error if a source has changed since it was read.
pub(crate) type CheckContents = Box<dyn Fn(&ContentDigests) -> crate::Result<()> + Send + Sync>;

/// Everything that [`run()`] needs to copy one input.
pub struct CopyJob {
    /// Opens the connections of the lanes.
    pub session_opener: SessionOpener,
    /// The first lane's session, if that session was opened in advance.
    pub(crate) early_session: EarlySession,
    /// A connection for queries during the copy, such as those of the monitor; `None` if the copy
    /// has one session alone. Then the progress does not say what the server waits for.
    pub control_connection: Option<Arc<Connection>>,
    /// Creates one encoder per lane.
    pub make_encoder: Box<dyn Fn() -> Box<dyn ChunkEncoder> + Send + Sync>,
    /// Settings and COPY statements of the lanes' sessions.
    pub(crate) setup: CopySetup,
    /// The COPY format that lanes start with. A lane changes to text when the encoder leaves most
    /// rows to the server.
    pub mode: EncodeMode,
    /// Whether all chunks must go through one lane and one COPY statement.
    pub one_statement: bool,
    /// The number of lanes.
    pub lanes: Lanes,
    /// The table's name, unquoted, as the server's error messages show it.
    pub table_name: String,
    /// The columns' names, unquoted, in COPY's order.
    pub columns: Vec<String>,
    /// Names of the inputs, for error messages.
    pub input_names: Vec<String>,
    /// Whether a BEFORE ROW trigger may skip rows, so that the server writes fewer rows than sent.
    pub may_skip_rows: bool,
    /// What holds for statements on the table that rows are copied to.
    pub storage: StorageFacts,
    /// Whether the input is a stream, such as standard input. Reading a stream can block forever,
    /// and a stream can be read only once.
    pub is_stream: bool,
    /// The time at which lanes commit. [`Commit::EachChunk`] needs a ledger.
    pub commit: Commit,
    /// The ledger's job, if the run keeps a ledger.
    pub(crate) ledger: Option<LedgerJob>,
    /// Checks that the inputs did not change while pgspate read them. With [`Commit::AtEnd`], the
    /// check runs before the first commit; with [`Commit::EachChunk`], after the last chunk.
    pub(crate) check_unchanged: CheckContents,
    /// The table that rows are copied to.
    pub destination: Destination,
    /// How rows reach the shards, if rows are copied straight into shards. Needs a ledger, a table
    /// as destination, binary rows, no rejects, no surrounding SQL, and an input that can be read
    /// again.
    pub(crate) shard_route: Option<Arc<ShardRoute>>,
}

impl CopyJob {
    /// Returns the SQL to run before the first COPY, in the same transaction.
    fn sql_before(&self) -> Option<&str> {
        match &self.destination {
            Destination::Table { surrounding, .. } => {
                surrounding.as_ref().map(|it| it.before.as_str())
            }
            Destination::Stage { .. } => None,
            Destination::OpenTransaction { before, .. } => Some(before),
        }
    }

    /// Returns the SQL to run after the last COPY, in the same transaction.
    fn sql_after(&self) -> Option<&str> {
        match &self.destination {
            Destination::Table { surrounding, .. } => {
                surrounding.as_ref().map(|it| it.after.as_str())
            }
            Destination::Stage { .. } | Destination::OpenTransaction { .. } => None,
        }
    }

    /// Returns whether the lane's transaction stays open after the copy.
    fn keeps_transaction_open(&self) -> bool {
        matches!(self.destination, Destination::OpenTransaction { .. })
    }

    fn ledger_id(&self) -> Option<JobId> {
        self.ledger.as_ref().map(|ledger| ledger.recorder.job)
    }

    /// Returns the number of rows that may be rejected; `None` if none may.
    fn rejects_max(&self) -> Option<RejectsMax> {
        self.ledger.as_ref()?.rejects_max
    }
}

/// Statements around the COPY of a lane that runs everything in one transaction.
#[derive(Debug, Clone, Default)]
pub struct SurroundingSql {
    /// Foreign keys of other tables that `before` drops and `after` adds again.
    pub references: Vec<IncomingForeignKey>,
    /// SQL to run before the first COPY.
    pub before: String,
    /// SQL to run after the last COPY.
    pub after: String,
    /// Whether the transaction must not be committed without rows.
    pub must_have_rows: bool,
}

/// The result of a copy.
#[derive(Debug, Clone, Default)]
pub struct CopyOutcome {
    /// Rows read from the input.
    pub rows_in: u64,
    /// Rows that the server reported as written.
    pub rows_written: u64,
    /// Rows that were rejected.
    pub rows_rejected: u64,
    /// Rows that were written as COPY text, because the encoder could not encode them in binary.
    pub rows_as_text: u64,
    /// Lanes that wrote at least one chunk.
    pub lanes: usize,
    /// Chunks in the whole input.
    pub chunks: u64,
    /// Chunks that were skipped, because the ledger had them already.
    pub chunks_before: u64,
    /// Seconds per stage of the work.
    pub stages: StageSeconds,
    /// Bytes of COPY data sent.
    pub bytes_sent: u64,
    /// Digests of the inputs; empty without a ledger, and for a stream.
    pub contents: ContentDigests,
}

/// Seconds per stage of the work, added up over all lanes.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct StageSeconds {
    /// Reading the source and cutting it into chunks.
    pub source: f64,
    /// Encoding.
    pub encode: f64,
    /// Waiting until the network and the server accept more bytes.
    pub server: f64,
    /// From the last row to the last commit of the whole load.
    pub commit: f64,
}

/// A session of a lane, with the number of rows that it wrote.
pub struct LaneSession {
    /// The session's connection.
    pub connection: Arc<Connection>,
    /// Rows that the server reported as written.
    pub rows_written: u64,
}

/// The way in which a copy ended.
pub enum CopyEnd {
    /// All rows are committed or staged. The sessions are those that hold staged rows; none if the
    /// rows are committed.
    Done(CopyOutcome, Vec<LaneSession>),
    /// Two lanes inserted rows that conflict, such as two rows with the same unique key. If the
    /// copy is repeated with one lane, the server reports the second of the two rows.
    LanesConflict,
    /// The copy was interrupted by a lost connection or another error that a new attempt may avoid.
    /// The ledger, if there is one, knows which chunks are written.
    Interrupted(crate::Error),
    /// Rows could not go straight into the shards, for this reason, and nothing is left of the
    /// attempt. The copy must be repeated through the coordinator.
    NotRoutable(crate::Error),
}
