//! Sends chunks of rows to the server over lanes. Every row that pgspate writes goes through this
//! module.
//!
//! A lane is a thread that takes and encodes chunks, and a connection that streams the encoded
//! bytes. Encoding and sending overlap. [`Commit`] decides when lanes commit: after each chunk,
//! together with the chunk's row in the ledger; or once, when all chunks are written.
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
mod run;
mod session_registry;
mod session_setup;
mod shared;
mod stream;
pub(crate) mod temp_table;

use std::sync::Arc;

use crate::format::{ChunkEncoder, ContentDigests, EncodeMode};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::{JobId, WrittenChunks};
use pgspate_target::session::WaitLimits;

pub(crate) use commit::COMMIT_DURABLY;
pub use progress::{CopyProgress, ProgressSnapshot, Waiting};
pub(crate) use reject::{blames_one_row, is_row_error_code};
pub use run::run;
pub use session_setup::SessionOpener;
pub(crate) use session_setup::{CopySetup, EarlySession, ReadySession};
pub(crate) use stream::{BINARY_HEADER, BINARY_TRAILER, copy_error, is_keys_dropped_error};

/// Bytes per message to the server. The size is large enough that the cost per message is
/// negligible, and small enough that a message stays in the second-level cache between encoding and
/// sending.
pub(crate) const PIECE_BYTES: usize = 256 << 10;

/// Number of encoded pieces that may wait between a lane's encoder and its connection.
pub(crate) const PIECES_AHEAD: usize = 8;

/// The number of lanes to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lanes {
    /// Exactly this number.
    Fixed(usize),
    /// Starts with the first number, and adds lanes up to the second number while throughput grows.
    Auto(usize, usize),
}

impl Lanes {
    fn is_auto(self) -> bool {
        matches!(self, Lanes::Auto(..))
    }
}

/// The time at which rows are committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    /// Commits after the last chunk, one lane after the other. A load that fails leaves no rows
    /// behind.
    AtEnd,
    /// Commits after each chunk. A load that failed resumes there when it is run again.
    EachChunk,
}

/// The table that rows are copied to.
pub enum Destination {
    /// An existing table, or the shadow of one.
    Table {
        /// The table's oid.
        oid: u32,
        /// Other statements of the same transaction. Only for one lane that commits at the end.
        surrounding: Option<SurroundingSql>,
    },
    /// A stage table in each session of the single lane. The sessions are returned, because
    /// temporary tables end with their session.
    Stage {
        /// One COPY WHERE condition per session. All rows are sent to every session, and exactly
        /// one condition must hold for each row. Empty if the lane has one session that keeps every
        /// row.
        shares: Vec<String>,
    },
    /// The stage table of one session. The session is returned with its transaction open.
    OpenStage {
        /// SQL that the transaction begins with.
        before: String,
    },
}

/// The ledger's job, which records the chunks of this copy.
pub(crate) struct LedgerJob {
    pub(crate) id: JobId,
    /// Whether the job's rows are lost when the server crashes, as for an unlogged table.
    pub(crate) is_bound: bool,
    /// Chunks that earlier runs have written.
    pub(crate) done: WrittenChunks,
    /// The number of rows that may be rejected; `None` if the first bad row ends the load. Only
    /// with [`Commit::EachChunk`].
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

/// Everything that a run of [`run()`] needs.
pub struct CopyJob {
    /// Opens the connections of the lanes.
    pub session_opener: SessionOpener,
    /// The first lane's session, if it was opened in advance.
    pub(crate) early_session: EarlySession,
    /// A connection for queries during the copy, such as those of the monitor.
    pub control_connection: Arc<Connection>,
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
    /// Names of the inputs, for places in error messages.
    pub input_names: Vec<String>,
    /// Whether a BEFORE ROW trigger may skip rows.
    pub may_drop_rows: bool,
    /// Whether the input is a stream, such as standard input. Reading a stream can block forever,
    /// and a stream cannot be read again.
    pub is_stream: bool,
    /// The time at which lanes commit. [`Commit::EachChunk`] needs a ledger.
    pub commit: Commit,
    /// The ledger's job, if the run keeps a ledger.
    pub(crate) ledger: Option<LedgerJob>,
    /// Checks, before the last commit, that the inputs did not change while they were read.
    pub(crate) check_unchanged: CheckContents,
    /// The table that rows are copied to.
    pub destination: Destination,
}

impl CopyJob {
    /// Returns the SQL to run before the first COPY, in the same transaction.
    fn sql_before(&self) -> Option<&str> {
        match &self.destination {
            Destination::Table { surrounding, .. } => {
                surrounding.as_ref().map(|it| it.before.as_str())
            }
            Destination::Stage { .. } => None,
            Destination::OpenStage { before } => Some(before),
        }
    }

    /// Returns the SQL to run after the last COPY, in the same transaction.
    fn sql_after(&self) -> Option<&str> {
        match &self.destination {
            Destination::Table { surrounding, .. } => {
                surrounding.as_ref().map(|it| it.after.as_str())
            }
            Destination::Stage { .. } | Destination::OpenStage { .. } => None,
        }
    }

    /// Returns whether the session's transaction stays open after the copy.
    fn keeps_transaction_open(&self) -> bool {
        matches!(self.destination, Destination::OpenStage { .. })
    }

    fn ledger_id(&self) -> Option<JobId> {
        self.ledger.as_ref().map(|ledger| ledger.id)
    }

    /// Returns the number of rows that may be rejected; `None` if none may.
    fn rejects_max(&self) -> Option<RejectsMax> {
        self.ledger.as_ref()?.rejects_max
    }
}

/// Statements around the COPY of a lane that does everything in one transaction.
#[derive(Debug, Clone, Default)]
pub struct SurroundingSql {
    /// SQL to run before the first COPY.
    pub before: String,
    /// SQL to run after the last COPY.
    pub after: String,
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
    /// Rows that were written as text, because the encoder could not encode them.
    pub rows_as_text: u64,
    /// Lanes that wrote at least one chunk.
    pub lanes: usize,
    /// Chunks in the whole input.
    pub chunks: u64,
    /// Chunks that earlier runs had written.
    pub chunks_before: u64,
    /// Seconds per stage of the work.
    pub stages: StageSeconds,
    /// Bytes of COPY data sent.
    pub bytes_sent: u64,
    /// Digests of the inputs; empty without a ledger.
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
    /// Seconds from the last row to the last commit of the whole load.
    pub commit: f64,
}

/// A session of a lane, with the number of rows that it wrote.
pub struct LaneSession {
    /// The session's connection.
    pub connection: Connection,
    /// Rows that the server reported as written.
    pub rows_written: u64,
}

/// The way in which a copy ended.
pub enum CopyEnd {
    /// All rows are committed, or staged. For a stage, the sessions that hold the staged rows
    /// follow.
    Done(CopyOutcome, Vec<LaneSession>),
    /// Two lanes inserted the same unique key and waited for each other. A repetition with one lane
    /// can tell which row is the second one.
    LanesConflict,
    /// The copy was interrupted by a lost connection or another error that may not happen again.
    /// The ledger knows which chunks are written.
    Interrupted(crate::Error),
}
