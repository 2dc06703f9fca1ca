//! Chunks and lanes: the one way any byte reaches the server.
//!
//! Every lane is a thread that takes chunks and encodes them, and a connection that streams what
//! was encoded; the two overlap. Each lane works in one transaction, and the lanes commit only
//! when every chunk is in: a load that fails leaves nothing behind.

mod context;
mod lane;
mod monitor;
#[cfg_attr(not(test), allow(dead_code, reason = "for the ledger, which sets rows aside"))]
mod pace;
mod pipe;
mod progress;
mod run;
mod settle;
mod shared;
#[cfg_attr(not(test), allow(dead_code, reason = "for the ledger, which sets rows aside"))]
mod sift;
mod stream;

use std::pin::Pin;
use std::sync::Arc;

use crate::Result;
use crate::format::{ChunkEncoder, Mode};
use crate::target::connect::Connection;

pub use progress::{Progress, Snapshot, Waiting};
pub use run::run;

/// Opens one more connection to the target.
pub type Connect =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Connection>> + Send>> + Send + Sync>;

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

/// What is to be copied, and how.
pub struct Job {
    /// Connections for the lanes.
    pub connect: Connect,
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
    /// In COPY's order.
    pub columns: Vec<String>,
    /// The inputs' names, for places.
    pub input_names: Vec<String>,
    /// Whether a trigger may keep rows out.
    pub may_drop_rows: bool,
    /// Whether the input comes through a pipe, whose reader may block for ever.
    pub is_stream: bool,
}

/// What was done.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Rows read from the input.
    pub rows_in: u64,
    /// Rows that the server says it wrote.
    pub rows_written: u64,
    /// Of these, rows that the encoder left to the server as text.
    pub rows_as_text: u64,
    /// Lanes that carried chunks.
    pub lanes: usize,
    /// Chunks.
    pub chunks: u64,
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
}

/// How a run ended.
pub enum End {
    /// Everything is committed.
    Done(Outcome),
    /// Two lanes wait for each other over a unique key: only one lane can find out which.
    LanesConflict,
}
