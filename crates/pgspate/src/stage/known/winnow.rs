//! An encoder whose rows are sent only where the table does not have them.

use std::sync::Arc;

use super::Known;
use crate::encode::Encoded;
use crate::format::{Chunk, ChunkEncoder, Mode, Record};
use crate::{Error, Kind, Place, Result};

/// Encodes as another encoder does, and leaves out what is known.
pub(crate) struct Winnower {
    inner: Box<dyn ChunkEncoder>,
    known: Arc<Known>,
    mode: Mode,
    /// The chunk's row that comes next.
    row: u64,
}

impl Winnower {
    /// Leaves `known` rows out of what `inner` encodes.
    pub(crate) fn new(inner: Box<dyn ChunkEncoder>, known: Arc<Known>) -> Winnower {
        Winnower { inner, known, mode: Mode::Binary, row: 0 }
    }

    /// Takes known rows out of the binary rows from `start` on, which are those after the first
    /// `rows`. `texts`: how many rows were left to the server before.
    fn winnow(&mut self, out: &mut Encoded, start: usize, rows: u64, texts: usize) -> Result<()> {
        let all = out.binary_rows - rows;
        let mut left = out.text_rows[texts..].iter().peekable();
        let (mut read, mut write, mut met) = (start, start, 0);
        for _ in 0..all {
            while left.next_if_eq(&&self.row).is_some() {
                self.row += 1;
            }
            let fields = read + 2;
            let fields_end = out.binary.get(fields..);
            let end = fields_end.and_then(|it| self.known.recognition.end_of_fields(it));
            let Some(end) = end.map(|end| fields + end) else {
                return Err(Error::new(Kind::Bug, "an encoded row is not whole"));
            };
            if self.known.meet(&out.binary[fields..end]) {
                out.known_rows.push(self.row);
                met += 1;
            } else {
                out.binary.copy_within(read..end, write);
                write += end - read;
            }
            read = end;
            self.row += 1;
        }
        self.row += left.count() as u64;
        out.binary.truncate(write);
        out.binary_rows -= met;
        self.known.count(all, met);
        Ok(())
    }
}

impl ChunkEncoder for Winnower {
    fn begin(&mut self, chunk: Arc<Chunk>, mode: Mode) -> Result<()> {
        (self.mode, self.row) = (mode, 0);
        self.inner.begin(chunk, mode)
    }

    fn fill(&mut self, out: &mut Encoded, piece: usize) -> Result<bool> {
        if self.mode == Mode::Text {
            return self.inner.fill(out, piece);
        }
        if self.known.is_futile() {
            return Err(Error::new(Kind::Plan, "too little of the source is in the table"));
        }
        let (start, rows, texts) = (out.binary.len(), out.binary_rows, out.text_rows.len());
        let filled = self.inner.fill(out, piece);
        self.winnow(out, start, rows, texts)?;
        filled
    }

    fn place(&self, chunk: &Chunk, row: u64) -> Place {
        self.inner.place(chunk, row)
    }

    fn records(&self, chunk: &Chunk, rows: &[u64]) -> Result<Vec<Record>> {
        self.inner.records(chunk, rows)
    }
}
