//! An encoder that leaves out rows that the table has already.

use std::sync::Arc;

use super::KnownRows;
use crate::encode::Encoded;
use crate::format::{Chunk, ChunkEncoder, EncodeMode, InputRecord};
use crate::{Error, ErrorKind, InputPlace, Result};

/// Encodes with another encoder, and leaves out known rows.
pub(crate) struct KnownRowFilter {
    inner: Box<dyn ChunkEncoder>,
    known: Arc<KnownRows>,
    mode: EncodeMode,
    /// Number of the table's row that probably matches next.
    next: usize,
}

impl KnownRowFilter {
    /// Wraps `inner`, leaving out `known` rows.
    pub(crate) fn new(inner: Box<dyn ChunkEncoder>, known: Arc<KnownRows>) -> KnownRowFilter {
        KnownRowFilter { inner, known, mode: EncodeMode::Binary, next: 0 }
    }

    /// Removes known rows from the `all` binary rows from byte `start` on.
    fn remove_known(&mut self, out: &mut Encoded, start: usize, all: u64) -> Result<()> {
        let (mut read, mut write, mut met) = (start, start, 0);
        for _ in 0..all {
            let fields = read + 2;
            let rest = out.binary.get(fields..);
            let length = rest.and_then(|rest| self.known.hasher.fields_length(rest));
            let Some(end) = length.map(|length| fields + length) else {
                return Err(Error::new(ErrorKind::Bug, "an encoded row is incomplete"));
            };
            if self.known.mark_if_known(&out.binary[fields..end], &mut self.next) {
                met += 1;
            } else {
                out.binary.copy_within(read..end, write);
                write += end - read;
            }
            read = end;
        }
        out.binary.truncate(write);
        out.binary_rows -= met;
        out.known_rows += met;
        self.known.count(all, met);
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
