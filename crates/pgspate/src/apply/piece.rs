//! What the reader of a source hands to whoever makes batches.

use arrow_array::RecordBatch;

use super::kafka::Taken;
use super::lines::Block;
use super::replication::Received;

/// Some of the input.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Bytes that are to be decoded.
    Block(Block),
    /// Rows of a file of DMS's, the first of which has this number.
    Rows { input: u32, first: u64, batch: RecordBatch },
    /// Events of a slot.
    Received(Received),
    /// What comes of topics.
    Topics(Taken),
}
