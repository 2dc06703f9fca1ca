//! Records of inputs: lines, however blocks are cut, and rows of Parquet files.
//!
//! The last line of an input needs no newline. Inputs are read in their order by a thread of their
//! own, which nobody waits for: a pipe may be silent for ever.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use super::piece::Piece;
use crate::format::parquet::{ParquetCutter, ParquetFile};
use crate::format::{ChunkData, Cutter};
use crate::source::{self, Input};
use crate::{Error, Kind, Result};

/// Bytes asked for at once.
const BLOCK_BYTES: usize = 256 << 10;
/// Longest record. A source transaction in one record, as wal2json writes them, may be large.
const LINE_BYTES_MAX: usize = 1 << 30;
/// How a Parquet file begins.
const PARQUET: &[u8] = b"PAR1";
/// How often a file that may grow is looked at.
const GROWTH_LOOK: Duration = Duration::from_millis(3);

/// Some bytes of an input.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) input: u32,
    pub(crate) bytes: Vec<u8>,
    /// The input has no more.
    pub(crate) ends: bool,
}

/// Reads all inputs into blocks, until nobody wants them any more.
pub(crate) fn read(inputs: &[Input], follows: bool, pieces: &SyncSender<Result<Piece>>) {
    for (nth, input) in inputs.iter().enumerate() {
        let is_last = nth + 1 == inputs.len();
        let grows = follows && is_last && input.local_path().is_some();
        let read = match is_parquet(input) {
            Ok(true) => read_rows(nth, input, pieces),
            Ok(false) => read_one(nth as u32, input, grows, pieces),
            Err(error) => Err(error),
        };
        match read {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                let _ = pieces.send(Err(error));
                return;
            }
        }
    }
}

/// Whether it is a Parquet file, which says so itself. A stream is none: it is read at random.
fn is_parquet(input: &Input) -> Result<bool> {
    Ok(!input.is_stream() && input.peek(PARQUET.len())? == PARQUET)
}

/// False when the rows are not wanted any more.
fn read_rows(nth: usize, input: &Input, pieces: &SyncSender<Result<Piece>>) -> Result<bool> {
    let file = ParquetFile::open(input.name(), input.ranges()?)?;
    let mut cutter = ParquetCutter::new(Arc::new(file), nth, None);
    let mut first = 1;
    while let Some(chunk) = cutter.next()? {
        let ChunkData::Rows(rows) = chunk.data else {
            return Err(Error::new(Kind::Bug, "a Parquet file came as text"));
        };
        for batch in rows.open()? {
            let batch = batch?;
            let rows = batch.num_rows() as u64;
            if pieces.send(Ok(Piece::Rows { input: nth as u32, first, batch })).is_err() {
                return Ok(false);
            }
            first += rows;
        }
    }
    Ok(true)
}

/// False when the blocks are not wanted any more.
fn read_one(
    nth: u32,
    input: &Input,
    grows: bool,
    pieces: &SyncSender<Result<Piece>>,
) -> Result<bool> {
    let mut reader = input.reader()?;
    loop {
        let mut bytes = Vec::new();
        let read = reader.read_into(&mut bytes, BLOCK_BYTES);
        let read = read.map_err(|error| source::error_of(error, input.name()))?;
        if read == 0 && grows {
            std::thread::sleep(GROWTH_LOOK);
            // An empty block tells whether anybody listens.
        }
        let ends = read == 0 && !grows;
        let block = Block { input: nth, bytes, ends };
        if pieces.send(Ok(Piece::Block(block))).is_err() {
            return Ok(false);
        }
        if ends {
            return Ok(true);
        }
    }
}

/// Cuts blocks into lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    buf: Vec<u8>,
    at: usize,
    /// Where a newline may still be.
    searched: usize,
    input: u32,
    line: u64,
    ends: bool,
}

impl Lines {
    /// Adds the next block. All lines of the one before have been taken.
    pub(crate) fn add(&mut self, block: Block) -> Result<()> {
        if block.input != self.input {
            self.input = block.input;
            self.line = 0;
        }
        self.buf.drain(..self.at);
        self.searched -= self.at;
        self.at = 0;
        self.ends = block.ends;
        if self.buf.is_empty() {
            self.buf = block.bytes;
        } else {
            self.buf.extend_from_slice(&block.bytes);
        }
        if self.buf.len() > LINE_BYTES_MAX {
            let message = format!("a record is longer than {} MiB", LINE_BYTES_MAX >> 20);
            return Err(Error::new(Kind::Format, message));
        }
        Ok(())
    }

    /// The next whole line without its end; its input, and its number there from 1.
    pub(crate) fn next(&mut self) -> Option<(&[u8], (u32, u64))> {
        let start = self.at;
        let end = match memchr::memchr(b'\n', &self.buf[self.searched..]) {
            Some(found) => {
                let end = self.searched + found;
                self.at = end + 1;
                end
            }
            None if self.ends && start < self.buf.len() => {
                self.at = self.buf.len();
                self.at
            }
            None => {
                self.searched = self.buf.len();
                return None;
            }
        };
        self.searched = self.at;
        self.line += 1;
        let mut line = &self.buf[start..end];
        if self.line == 1 {
            line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
        }
        Some((line.strip_suffix(b"\r").unwrap_or(line), (self.input, self.line)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_do_not_depend_on_blocks() {
        let text = b"\xEF\xBB\xBFone\r\n\ntwo three\nlast";
        for size in 1..text.len() + 1 {
            let mut lines = Lines::default();
            let mut found = Vec::new();
            let mut take = |lines: &mut Lines, block: Block| {
                lines.add(block).unwrap();
                while let Some((line, stand)) = lines.next() {
                    found.push((String::from_utf8(line.to_vec()).unwrap(), stand));
                }
            };
            for input in 0..2 {
                for bytes in text.chunks(size) {
                    take(&mut lines, Block { input, bytes: bytes.to_vec(), ends: false });
                }
                take(&mut lines, Block { input, bytes: Vec::new(), ends: true });
            }
            let expected = ["one", "", "two three", "last"].into_iter().enumerate();
            let expected: Vec<_> = [0, 1]
                .into_iter()
                .flat_map(|input| {
                    expected.clone().map(move |(nth, it)| (it.to_owned(), (input, nth as u64 + 1)))
                })
                .collect();
            assert_eq!(found, expected, "blocks of {size}");
        }
    }
}
