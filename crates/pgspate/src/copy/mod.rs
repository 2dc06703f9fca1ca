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
use crate::ledger::{Done, JobId};
use crate::session::Limits;
use crate::target::connect::Connection;

pub(crate) use commit::DURABLY;
pub use progress::{Progress, Snapshot, Waiting};
pub use ready::Connect;
pub(crate) use ready::{Copying, Early, Ready};
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

/// What becomes of the sessions of a job that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Afterwards {
    /// They are closed.
    Close,
    /// They are kept, for what is in them alone.
    Keep,
    /// They are kept with their transactions open, of which nothing is committed.
    KeepOpen,
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
pub struct Job {
    /// Connections for the lanes.
    pub connect: Connect,
    /// The first lane's session, if it is being opened already.
    pub(crate) early: Early,
    /// A connection that is idle meanwhile, to look at what the lanes' backends do.
    pub control: Arc<Connection>,
    /// Makes an encoder for a lane.
    pub encoder: Box<dyn Fn() -> Box<dyn ChunkEncoder> + Send + Sync>,
    /// `COPY ... (format binary)`.
    pub binary_sql: String,
    /// `COPY ... (format text)`.
    pub text_sql: String,
    /// What to begin with. A lane in which most rows are left to the server goes over to text.
    pub mode: Mode,
    /// All chunks in one lane and one COPY statement, as the table requires.
    pub one_statement: bool,
    /// How many lanes.
    pub lanes: Lanes,
    /// The table's name and its columns' names, unquoted, as the server's messages have them.
    pub table_name: String,
    /// Its oid; 0 for rows that are staged.
    pub table_oid: u32,
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
    /// The job that chunks' rows in the ledger belong to, if they have any.
    pub(crate) ledger: Option<JobId>,
    /// The job's rows are lost when the server crashes.
    pub(crate) is_bound: bool,
    /// Its lock, which the job's session holds.
    pub(crate) lock_key: Option<i64>,
    /// The chunks that are written already.
    pub done: Done,
    /// Whether rows that are refused are set aside, and how many. Only with a ledger, where each
    /// chunk is committed.
    pub rejects: Option<RejectsMax>,
    /// How long lanes wait.
    pub limits: Limits,
    /// Judges what was read, before anything of it is committed that can still be taken back: the
    /// inputs must be what they were.
    pub(crate) unchanged: CheckContents,
    /// What else belongs to the transaction, for one lane that commits at the end.
    pub around: Option<Around>,
    /// What becomes of the lanes' sessions.
    pub afterwards: Afterwards,
    /// What each session of the one lane keeps of the rows, as a condition for COPY's WHERE: all
    /// are sent to each, and each row must be kept by one. Empty for a lane of one session.
    pub shares: Vec<String>,
}

/// Statements within the transaction of a lane that does everything in one.
#[derive(Debug, Clone, Default)]
pub struct Around {
    /// Before the first COPY.
    pub before: String,
    /// After the last one.
    pub after: String,
}

/// What was done.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
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
    /// Seconds that all lanes together spent reading and cutting.
    pub source_seconds: f64,
    /// Seconds that all lanes together spent encoding.
    pub encode_seconds: f64,
    /// Seconds that all lanes together waited for the connection to take bytes.
    pub send_seconds: f64,
    /// Seconds from the last row to the last commit.
    pub commit_seconds: f64,
    /// Bytes of COPY data sent.
    pub bytes_sent: u64,
    /// Digests of the inputs, where there is a ledger to keep them.
    pub contents: Contents,
}

/// A session of a lane, and the rows that it has written.
pub struct LaneSession {
    /// The session.
    pub connection: Connection,
    /// What the server says it wrote.
    pub rows: u64,
}

/// How a run ended.
pub enum End {
    /// Everything is committed. The sessions that did it, if they are wanted.
    Done(Outcome, Vec<LaneSession>),
    /// Two lanes wait for each other over a unique key: only one lane can find out which.
    LanesConflict,
    /// A connection was lost, or something else that may not happen again. What is written, the
    /// ledger knows.
    Interrupted(crate::Error),
}
