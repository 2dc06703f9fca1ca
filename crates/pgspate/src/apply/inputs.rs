//! Records of inputs: lines, however blocks are cut, and rows of Parquet files.
//!
//! The last line of an input needs no newline. Inputs are read in their order by a thread of their
//! own, which nobody waits for: a pipe may be silent for ever.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;

use crate::format::parquet::{ParquetCutter, ParquetFile};
use crate::format::{ChunkData, Cutter};
use crate::source::{self, Input};
use crate::{Error, ErrorKind, Result};
use pgspate_events::EventPlace;
use pgspate_replication::{EventSource, Pieces, Trail};

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
pub(crate) struct InputBlock {
    pub(crate) input: u32,
    pub(crate) bytes: Vec<u8>,
    /// The input has no more.
    pub(crate) ends: bool,
}

/// What an input hands on.
#[derive(Debug)]
pub(crate) enum InputPiece {
    /// Bytes that are to be cut into lines.
    InputBlock(InputBlock),
    /// Rows of a file of DMS's, the first of which stands here.
    Rows { first: InputLine, batch: RecordBatch },
}

/// A line of an input, or a row of one: its number, from 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct InputLine {
    pub(crate) input: u32,
    pub(crate) number: u64,
}

impl From<InputLine> for EventPlace {
    fn from(InputLine { input, number }: InputLine) -> EventPlace {
        EventPlace::Line { input, line: number }
    }
}

/// The last line that was taken: all are read again each time.
pub(crate) type LinePosition = Trail<InputLine>;

/// Reads inputs, one after the other.
pub(crate) struct LineSource {
    pub(crate) inputs: Vec<Input>,
    /// What is appended to the last one is waited for.
    pub(crate) follows: bool,
}

impl EventSource for LineSource {
    type Position = LinePosition;
    type Piece = InputPiece;
    const HEEDS_STOP: bool = false;

    fn read(&mut self, pieces: &Pieces<InputPiece>) {
        for (nth, input) in self.inputs.iter().enumerate() {
            let is_last = nth + 1 == self.inputs.len();
            let grows = self.follows && is_last && input.local_path().is_some();
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

    fn close(self) {}
}

/// Whether it is a Parquet file, which says so itself. A stream is none: it is read at random.
fn is_parquet(input: &Input) -> Result<bool> {
    Ok(!input.is_stream() && input.peek(PARQUET.len())? == PARQUET)
}

/// False when the rows are not wanted any more.
fn read_rows(nth: usize, input: &Input, pieces: &Pieces<InputPiece>) -> Result<bool> {
    let file = ParquetFile::open(input.name(), input.ranges()?)?;
    let mut cutter = ParquetCutter::new(Arc::new(file), nth);
    let mut first = InputLine { input: nth as u32, number: 1 };
    while let Some(chunk) = cutter.next()? {
        let ChunkData::Rows(rows) = chunk.data else {
            return Err(Error::new(ErrorKind::Bug, "a Parquet file came as text"));
        };
        for batch in rows.open()? {
            let batch = batch?;
            let rows = batch.num_rows() as u64;
            if pieces.send(Ok(InputPiece::Rows { first, batch })).is_err() {
                return Ok(false);
            }
            first.number += rows;
        }
    }
    Ok(true)
}

/// False when the blocks are not wanted any more.
fn read_one(nth: u32, input: &Input, grows: bool, pieces: &Pieces<InputPiece>) -> Result<bool> {
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
        let block = InputBlock { input: nth, bytes, ends };
        if pieces.send(Ok(InputPiece::Block(block))).is_err() {
            return Ok(false);
        }
        if ends {
            return Ok(true);
        }
    }
}

/// Cuts blocks into lines.
#[derive(Debug, Default)]
pub(crate) struct LineSplitter {
    buf: Vec<u8>,
    at: usize,
    /// Where a newline may still be.
    searched: usize,
    line: InputLine,
    ends: bool,
}

impl LineSplitter {
    /// Adds the next block. All lines of the one before have been taken.
    pub(crate) fn add(&mut self, block: InputBlock) -> Result<()> {
        if block.input != self.line.input {
            self.line = InputLine { input: block.input, number: 0 };
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
            return Err(Error::new(ErrorKind::Format, message));
        }
        Ok(())
    }

    /// The next whole line without its end, and which one it is.
    pub(crate) fn next(&mut self) -> Option<(&[u8], InputLine)> {
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
        self.line.number += 1;
        let mut line = &self.buf[start..end];
        if self.line.number == 1 {
            line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
        }
        Some((line.strip_suffix(b"\r").unwrap_or(line), self.line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_do_not_depend_on_blocks() {
        let text = b"\xEF\xBB\xBFone\r\n\ntwo three\nlast";
        for size in 1..text.len() + 1 {
            let mut lines = LineSplitter::default();
            let mut found = Vec::new();
            let mut take = |lines: &mut LineSplitter, block: InputBlock| {
                lines.add(block).unwrap();
                while let Some((line, event_place)) = lines.next() {
                    found.push((String::from_utf8(line.to_vec()).unwrap(), event_place));
                }
            };
            for input in 0..2 {
                for bytes in text.chunks(size) {
                    take(&mut lines, InputBlock { input, bytes: bytes.to_vec(), ends: false });
                }
                take(&mut lines, InputBlock { input, bytes: Vec::new(), ends: true });
            }
            let expected = ["one", "", "two three", "last"].into_iter().enumerate();
            let expected: Vec<_> = [0, 1]
                .into_iter()
                .flat_map(|input| {
                    expected.clone().map(move |(nth, it)| {
                        (it.to_owned(), InputLine { input, number: nth as u64 + 1 })
                    })
                })
                .collect();
            assert_eq!(found, expected, "blocks of {size}");
        }
    }
}
