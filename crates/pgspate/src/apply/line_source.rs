//! Reads change records from files: lines, and rows of Parquet files.
//!
//! The lines do not depend on the sizes of the pieces in which an input is read, and the last line
//! needs no newline. A thread of its own reads the inputs in order. The run does not wait for this
//! thread, because a pipe may stay silent forever.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;

use crate::format::parquet::{ParquetCutter, ParquetFile};
use crate::format::{ChunkData, Cutter};
use crate::source::{self, Input};
use crate::{Error, ErrorKind, Result};
use pgspate_events::EventPlace;
use pgspate_replication::{DigestedPosition, EventSender, EventSource};

/// Bytes to read at once.
const BLOCK_BYTES: usize = 256 << 10;
/// The longest record. wal2json may write a whole source transaction as one record.
const LINE_BYTES_MAX: usize = 1 << 30;
/// The first bytes of a Parquet file.
const PARQUET_MAGIC: &[u8] = b"PAR1";
/// How often to check whether a file has grown.
const GROWTH_CHECK_INTERVAL: Duration = Duration::from_millis(3);

/// Some bytes of an input.
#[derive(Debug)]
pub(crate) struct InputBlock {
    pub(crate) input: u32,
    pub(crate) bytes: Vec<u8>,
    /// Whether the input has ended.
    pub(crate) ends: bool,
}

/// A piece of an input, as the reader hands it to the feed.
#[derive(Debug)]
pub(crate) enum InputPiece {
    /// Bytes to split into lines.
    Block(InputBlock),
    /// Rows of a Parquet file that AWS DMS wrote. `first` is the place of the first row.
    Rows { first: InputLine, batch: RecordBatch },
    /// All present bytes of a file that may grow were sent.
    ReachedEnd,
}

/// A line or a row of an input, by its number, which starts at 1.
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

/// The last line that was applied. Each run reads the inputs from the start again.
pub(crate) type LinePosition = DigestedPosition<InputLine>;

/// Reads inputs one after the other.
pub(crate) struct LineSource {
    pub(crate) inputs: Vec<Input>,
    /// Whether to wait for bytes that are appended to the last input.
    pub(crate) follows: bool,
    /// The name of the stream, for errors.
    pub(crate) stream: String,
}

impl EventSource for LineSource {
    type Position = LinePosition;
    type Piece = InputPiece;
    const ENDS_ON_STOP: bool = false;

    fn read(&mut self, pieces: &EventSender<InputPiece>) {
        for (nth, input) in self.inputs.iter().enumerate() {
            let is_last = nth + 1 == self.inputs.len();
            let grows = self.follows && is_last && input.local_path().is_some();
            let read = match is_parquet(input) {
                Ok(true) => read_parquet_rows(nth, input, pieces),
                Ok(false) => self.read_blocks(nth as u32, grows, pieces),
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

/// Checks whether an input is a Parquet file, by its first bytes. A stream never is, because
/// Parquet needs random access.
fn is_parquet(input: &Input) -> Result<bool> {
    Ok(!input.is_stream() && input.peek(PARQUET_MAGIC.len())? == PARQUET_MAGIC)
}

/// Sends the rows of a Parquet file. Returns false when the receiver has ended.
fn read_parquet_rows(nth: usize, input: &Input, pieces: &EventSender<InputPiece>) -> Result<bool> {
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

impl LineSource {
    /// Sends the bytes of an input. Returns false when the receiver has ended.
    fn read_blocks(&self, nth: u32, grows: bool, pieces: &EventSender<InputPiece>) -> Result<bool> {
        let input = &self.inputs[nth as usize];
        let mut reader = input.reader()?;
        let mut reached_end = false;
        loop {
            let mut bytes = Vec::new();
            let read = reader.read_into(&mut bytes, BLOCK_BYTES);
            let read = read.map_err(|error| source::read_error(error, input.name()))?;
            if read == 0 && grows {
                if !pieces.are_wanted() {
                    return Ok(false);
                }
                if !std::mem::replace(&mut reached_end, true)
                    && pieces.send(Ok(InputPiece::ReachedEnd)).is_err()
                {
                    return Ok(false);
                }
                if input.is_replaced() {
                    return Err(replaced_error(input.name(), &self.stream));
                }
                std::thread::sleep(GROWTH_CHECK_INTERVAL);
                continue;
            }
            reached_end = false;
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
}

/// Returns the error for a followed file whose name another file has by now.
fn replaced_error(name: &str, stream: &str) -> Error {
    let message = format!("\"{name}\" was replaced by another file");
    Error::new(ErrorKind::Source, message).hint(format!(
        "To continue, name the same files, the old file under the name that it has now, and then \
         the new file, with `--stream '{stream}'`."
    ))
}

/// A line of an input, without its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordLine<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) place: InputLine,
    /// Whether the input ends within the line, so that the line may be written in part only.
    pub(crate) is_unterminated: bool,
}

/// Splits blocks into lines.
#[derive(Debug, Default)]
pub(crate) struct LineSplitter {
    buf: Vec<u8>,
    at: usize,
    /// The bytes from `at` to this index have no newline.
    searched: usize,
    line: InputLine,
    ends: bool,
}

impl LineSplitter {
    /// Adds the next block. The caller has taken all lines of the previous block.
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

    /// Returns whether the last line is complete.
    pub(crate) fn is_between_lines(&self) -> bool {
        self.at == self.buf.len()
    }

    /// Returns the next line. The rest of an input that has ended counts as a line.
    pub(crate) fn next(&mut self) -> Option<RecordLine<'_>> {
        let start = self.at;
        let (end, is_unterminated) = match memchr::memchr(b'\n', &self.buf[self.searched..]) {
            Some(found) => {
                let end = self.searched + found;
                self.at = end + 1;
                (end, false)
            }
            None if self.ends && start < self.buf.len() => {
                self.at = self.buf.len();
                (self.at, true)
            }
            None => {
                self.searched = self.buf.len();
                return None;
            }
        };
        self.searched = self.at;
        self.line.number += 1;
        let mut bytes = &self.buf[start..end];
        if self.line.number == 1 {
            bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
        }
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        Some(RecordLine { bytes, place: self.line, is_unterminated })
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
                while let Some(RecordLine { bytes, place, is_unterminated }) = lines.next() {
                    let text = String::from_utf8(bytes.to_vec()).unwrap();
                    assert_eq!(is_unterminated, text == "last");
                    found.push((text, place));
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
