//! An encoder whose rows are sent only where the table does not have them.

use std::sync::Arc;

use super::KnownRows;
use crate::encode::Encoded;
use crate::format::{Chunk, ChunkEncoder, Mode, Record};
use crate::{Error, ErrorKind, InputPlace, Result};

/// Encodes as another encoder does, and leaves out what is known.
pub(crate) struct KnownRowFilter {
    inner: Box<dyn ChunkEncoder>,
    known: Arc<KnownRows>,
    mode: Mode,
    /// The row of the table that is likely to be the next one.
    next: usize,
}

impl KnownRowFilter {
    /// Leaves `known` rows out of what `inner` encodes.
    pub(crate) fn new(inner: Box<dyn ChunkEncoder>, known: Arc<KnownRows>) -> KnownRowFilter {
        KnownRowFilter { inner, known, mode: Mode::Binary, next: 0 }
    }

    /// Takes known rows out of the binary rows from `start` on, of which there are `all`.
    fn winnow(&mut self, out: &mut Encoded, start: usize, all: u64) -> Result<()> {
        let (mut read, mut write, mut met) = (start, start, 0);
        for _ in 0..all {
            let fields = read + 2;
            let rest = out.binary.get(fields..);
            let length = rest.and_then(|rest| self.known.recognition.fields_length(rest));
            let Some(end) = length.map(|length| fields + length) else {
                return Err(Error::new(ErrorKind::Bug, "an encoded row is not whole"));
            };
            if self.known.meet(&out.binary[fields..end], &mut self.next) {
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
    fn begin(&mut self, chunk: Arc<Chunk>, mode: Mode) -> Result<()> {
        self.mode = mode;
        self.inner.begin(chunk, mode)
    }

    fn fill(&mut self, out: &mut Encoded, piece: usize) -> Result<bool> {
        if self.mode == Mode::Text {
            return self.inner.fill(out, piece);
        }
        if self.known.is_futile() {
            return Err(Error::new(ErrorKind::Plan, "too little of the source is in the table"));
        }
        let (start, rows) = (out.binary.len(), out.binary_rows);
        let filled = self.inner.fill(out, piece);
        self.winnow(out, start, out.binary_rows - rows)?;
        filled
    }

    fn place(&self, chunk: &Chunk, row: u64) -> InputPlace {
        self.inner.place(chunk, row)
    }

    fn records(&self, chunk: &Chunk, rows: &[u64]) -> Result<Vec<Record>> {
        self.inner.records(chunk, rows)
    }
}
