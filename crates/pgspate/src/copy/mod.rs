//! Chunks and lanes: the one way any byte reaches the server.
//!
//! Every lane is a thread that takes chunks and encodes them, and a connection that streams what
//! was encoded; the two overlap. Lanes commit each chunk together with its row in the
//! ledger, or each lane works in one transaction and all commit when every chunk is in: [`Commit`].

mod commit;
mod context;
pub(crate) mod fill;
mod lane;
mod monitor;
mod pace;
mod pipe;
mod progress;
mod ready;
mod run;
mod session;
mod settle;
mod shared;
mod sift;
mod stream;

use std::sync::Arc;

use crate::format::{ChunkEncoder, Contents, Mode};
use pgspate_target::connect::Connection;
use pgspate_target::ledger::{Done, JobId};
use pgspate_target::session::Limits;

pub(crate) use commit::DURABLY;
pub use progress::{CopyProgress, ProgressSnapshot, Waiting};
pub use ready::SessionOpener;
pub(crate) use ready::{CopySetup, EarlySession, ReadySession};
pub use run::run;
pub(crate) use sift::{is_about_a_row, is_about_one_row};
pub(crate) use stream::{BINARY_HEADER, BINARY_TRAILER, is_keys_down, refused_copy};

/// Bytes per message to the server: long enough that its cost does not show, short enough to
/// stay in the second-level cache between encoding and the socket.
pub(crate) const PIECE_BYTES: usize = 256 << 10;

/// Pieces that may wait between a lane's encoder and its connection.
pub(crate) const PIECES_AHEAD: usize = 8;

/// How many lanes to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lanes {
    /// So many.
    Fixed(usize),
    /// From the first to the second number, while each more lane makes it faster.
    Auto(usize, usize),
}

impl Lanes {
    fn is_auto(self) -> bool {
        matches!(self, Lanes::Auto(..))
    }
}

/// When rows become part of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    /// With the last chunk, lane by lane: a load that fails leaves nothing behind.
    AtEnd,
    /// With each chunk: a load that fails goes on from there when it is run again.
    EachChunk,
}

/// What rows are copied to.
pub enum Destination {
    /// A table.
    Table {
        /// Its oid.
        oid: u32,
        /// What else belongs to the transaction, for one lane that commits at the end.
        around: Option<SurroundingSql>,
    },
    /// StageSeconds of the one lane's sessions, which are kept for what is in them alone.
    Stage {
        /// What each session keeps of the rows, as a condition for COPY's WHERE: all are sent to
        /// each, and each row must be kept by one. Empty for a lane of one session.
        shares: Vec<String>,
    },
    /// The stage of one session, which is kept with its transaction open.
    OpenStage {
        /// What is run first in the transaction.
        before: String,
    },
}

/// The job in the ledger that chunks have their rows in.
pub(crate) struct LedgerJob {
    pub(crate) id: JobId,
    /// The job's rows are lost when the server crashes.
    pub(crate) is_bound: bool,
    /// The chunks that are written already.
    pub(crate) done: Done,
    /// Whether rows that are refused are set aside, and how many. Only where each chunk is
    /// committed.
    pub(crate) rejects: Option<RejectsMax>,
}

/// How many rows that are refused may be set aside.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RejectsMax {
    /// Any number.
    Any,
    /// So many.
    Rows(u64),
    /// So many of a hundred rows that are read.
    Percent(f64),
}

/// Fails if a source is not what was read of it.
pub(crate) type CheckContents = Box<dyn Fn(&Contents) -> crate::Result<()> + Send + Sync>;

/// What is to be copied, and how.
pub struct CopyJob {
    /// Connections for the lanes.
    pub connect: SessionOpener,
    /// The first lane's session, if it is being opened already.
    pub(crate) early: EarlySession,
    /// A connection that is idle meanwhile, to look at what the lanes' backends do.
    pub control: Arc<Connection>,
    /// Makes an encoder for a lane.
    pub encoder: Box<dyn Fn() -> Box<dyn ChunkEncoder> + Send + Sync>,
    /// What sessions copy with.
    pub(crate) copying: CopySetup,
    /// What to begin with. A lane in which most rows are left to the server goes over to text.
    pub mode: Mode,
    /// All chunks in one lane and one COPY statement, as the table requires.
    pub one_statement: bool,
    /// How many lanes.
    pub lanes: Lanes,
    /// The table's name and its columns' names, unquoted, as the server's messages have them.
    pub table_name: String,
    /// In COPY's order.
    pub columns: Vec<String>,
    /// The inputs' names, for places.
    pub input_names: Vec<String>,
    /// Whether a trigger may keep rows out.
    pub may_drop_rows: bool,
    /// Whether the input comes through a pipe, whose reader may block for ever.
    pub is_stream: bool,
    /// When lanes commit. Each chunk only with a ledger.
    pub commit: Commit,
    /// The job in the ledger, if there is one.
    pub(crate) ledger: Option<LedgerJob>,
    /// Judges what was read, before anything of it is committed that can still be taken back: the
    /// inputs must be what they were.
    pub(crate) unchanged: CheckContents,
    /// What the rows are copied to.
    pub destination: Destination,
}

impl CopyJob {
    /// What is run before the first COPY, in its transaction.
    fn before(&self) -> Option<&str> {
        match &self.destination {
            Destination::Table { around, .. } => around.as_ref().map(|it| it.before.as_str()),
            Destination::Stage { .. } => None,
            Destination::OpenStage { before } => Some(before),
        }
    }

    /// What is run after the last one.
    fn after(&self) -> Option<&str> {
        match &self.destination {
            Destination::Table { around, .. } => around.as_ref().map(|it| it.after.as_str()),
            Destination::Stage { .. } | Destination::OpenStage { .. } => None,
        }
    }

    /// Whether the session's transaction is left open.
    fn stays_open(&self) -> bool {
        matches!(self.destination, Destination::OpenStage { .. })
    }

    fn ledger_id(&self) -> Option<JobId> {
        self.ledger.as_ref().map(|ledger| ledger.id)
    }

    /// How many rows may be set aside, if any.
    fn rejects(&self) -> Option<RejectsMax> {
        self.ledger.as_ref()?.rejects
    }
}

/// Statements within the transaction of a lane that does everything in one.
#[derive(Debug, Clone, Default)]
pub struct SurroundingSql {
    /// Before the first COPY.
    pub before: String,
    /// After the last one.
    pub after: String,
}

/// What was done.
#[derive(Debug, Clone, Default)]
pub struct CopyOutcome {
    /// Rows read from the input.
    pub rows_in: u64,
    /// Rows that the server says it wrote.
    pub rows_written: u64,
    /// Rows that were set aside.
    pub rows_rejected: u64,
    /// Of those written, rows that the encoder left to the server as text.
    pub rows_as_text: u64,
    /// Lanes that carried chunks.
    pub lanes: usize,
    /// Chunks of the whole input.
    pub chunks: u64,
    /// Chunks that the ledger had already.
    pub chunks_before: u64,
    /// What took how long.
    pub stages: StageSeconds,
    /// Bytes of COPY data sent.
    pub bytes_sent: u64,
    /// Digests of the inputs, where there is a ledger to keep them.
    pub contents: Contents,
}

/// Seconds that the lanes together spent in each stage.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct StageSeconds {
    /// Reading and cutting.
    pub source: f64,
    /// Encoding.
    pub encode: f64,
    /// Waiting for the network and the server to take bytes.
    pub server: f64,
    /// From the last row to the last commit, of the whole load.
    pub commit: f64,
}

/// A session of a lane, and the rows that it has written.
pub struct LaneSession {
    /// The session.
    pub connection: Connection,
    /// What the server says it wrote.
    pub rows: u64,
}

/// How a run ended.
pub enum CopyEnd {
    /// Everything is committed. The sessions that did it, if they are wanted.
    Done(CopyOutcome, Vec<LaneSession>),
    /// Two lanes wait for each other over a unique key: only one lane can find out which.
    LanesConflict,
    /// A connection was lost, or something else that may not happen again. What is written, the
    /// ledger knows.
    Interrupted(crate::Error),
}
