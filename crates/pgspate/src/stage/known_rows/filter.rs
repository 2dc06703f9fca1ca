//! An encoder that leaves out source rows that the table has already.

use std::sync::Arc;

use super::KnownRows;
use crate::encode::Encoded;
use crate::format::{Chunk, ChunkEncoder, EncodeMode, InputRecord};
use crate::{Error, ErrorKind, InputPlace, Result};

/// Encodes rows with another encoder, and removes rows that the table has.
pub(crate) struct KnownRowFilter {
    inner: Box<dyn ChunkEncoder>,
    known: Arc<KnownRows>,
    mode: EncodeMode,
    /// The table's row that probably matches the next source row, counted from 0.
    next_match: usize,
}

impl KnownRowFilter {
    /// Returns an encoder that encodes with `inner` and removes `known` rows.
    pub(crate) fn new(inner: Box<dyn ChunkEncoder>, known: Arc<KnownRows>) -> KnownRowFilter {
        KnownRowFilter { inner, known, mode: EncodeMode::Binary, next_match: 0 }
    }

    /// Removes known rows from the last `rows` binary rows of `out`. The first of these rows begins
    /// at byte `start`.
    fn remove_known(&mut self, out: &mut Encoded, start: usize, rows: u64) -> Result<()> {
        let (mut read_at, mut write_at, mut matched) = (start, start, 0);
        for _ in 0..rows {
            let fields = read_at + 2;
            let rest = out.binary.get(fields..);
            let length = rest.and_then(|rest| self.known.hasher.fields_length(rest));
            let Some(end) = length.map(|length| fields + length) else {
                return Err(Error::new(ErrorKind::Bug, "an encoded row is incomplete"));
            };
            if self.known.mark_if_known(&out.binary[fields..end], &mut self.next_match) {
                matched += 1;
            } else {
                out.binary.copy_within(read_at..end, write_at);
                write_at += end - read_at;
            }
            read_at = end;
        }
        out.binary.truncate(write_at);
        out.binary_rows -= matched;
        out.known_rows += matched;
        self.known.count_lookups(rows, matched);
        Ok(())
    }
}

impl ChunkEncoder for KnownRowFilter {
    fn begin(&mut self, chunk: Arc<Chunk>, mode: EncodeMode) -> Result<()> {
        self.mode = mode;
        self.inner.begin(chunk, mode)
    }

    fn fill(&mut self, out: &mut Encoded, piece: usize) -> Result<bool> {
        if self.mode == EncodeMode::Text {
            return self.inner.fill(out, piece);
        }
        if self.known.is_useless() {
            // The sync then starts over without a filter.
            return Err(Error::new(ErrorKind::Plan, "too few rows of the source are in the table"));
        }
        let (start, rows) = (out.binary.len(), out.binary_rows);
        let filled = self.inner.fill(out, piece);
        self.remove_known(out, start, out.binary_rows - rows)?;
        filled
    }

    fn place(&self, chunk: &Chunk, row: u64) -> InputPlace {
        self.inner.place(chunk, row)
    }

    fn records(&self, chunk: &Chunk, rows: &[u64]) -> Result<Vec<InputRecord>> {
        self.inner.records(chunk, rows)
    }
}
