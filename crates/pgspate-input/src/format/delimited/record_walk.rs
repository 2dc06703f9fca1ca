//! Iterates over the records of a chunk, including records with errors.
//!
//! The walk and the encoder number the records alike. The numbers depend on the chunk's bytes
//! alone.

use std::ops::Range;

use super::field_index::{FieldIndex, LineFault, OFFSET_MASK, RECORD_END, ScanRules};
use super::fields::ends_in_escape;
use super::lines::{count_lines, find_edge, is_skipped, skip_line_end};
use super::{CopyFormat, Dialect, Eol, RecordLayout};
use crate::format::{Chunk, InputRecord, no_such_row_error};
use crate::{InputPlace, Result};

/// Iterates over the byte ranges of a chunk's records, line ends included.
pub(super) struct DelimitedRecordWalk<'a> {
    dialect: &'a Dialect,
    eol: Eol,
    bytes: &'a [u8],
    rules: ScanRules,
    index: FieldIndex,
    /// The next entry of the field index.
    next_end: usize,
    /// Where the record of the next entry starts.
    record_start: usize,
}

impl<'a> DelimitedRecordWalk<'a> {
    pub(super) fn new(dialect: &'a Dialect, eol: Eol, bytes: &'a [u8]) -> DelimitedRecordWalk<'a> {
        let rules = ScanRules::new(dialect, eol);
        DelimitedRecordWalk {
            dialect,
            eol,
            bytes,
            rules,
            index: FieldIndex::default(),
            next_end: 0,
            record_start: 0,
        }
    }
}

impl Iterator for DelimitedRecordWalk<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        loop {
            while let Some(end) = self.index.ends().get(self.next_end) {
                self.next_end += 1;
                if end & RECORD_END == 0 {
                    continue;
                }
                let (start, end) =
                    (self.record_start, self.index.start + (end & OFFSET_MASK) as usize);
                self.record_start = skip_line_end(self.bytes, end, self.eol);
                if !is_skipped(self.dialect, &self.bytes[start..end]) {
                    return Some(start..self.record_start);
                }
            }
            if let Some(fault) = self.index.fault {
                if is_last_marker(fault, &self.bytes[self.index.next_start..], self.eol) {
                    return None;
                }
                let start = self.index.next_start;
                skip_faulty_record(&mut self.index, self.dialect, self.eol, self.bytes);
                return Some(start..self.index.next_start);
            }
            if self.index.next_start >= self.bytes.len() {
                return None;
            }
            self.record_start = self.index.next_start;
            self.index.scan(self.bytes, self.record_start, &self.rules);
            self.next_end = 0;
        }
    }
}

/// Returns whether `fault` is an end marker (`\.`) after which no data follows.
pub(super) fn is_last_marker(fault: LineFault, rest: &[u8], eol: Eol) -> bool {
    fault == LineFault::EndMarker && rest.len() == b"\\.".len() + eol.bytes().len()
}

/// Makes the index continue after a record with an error. The index continues at the next record
/// edge that the cutter would find.
pub(super) fn skip_faulty_record(
    index: &mut FieldIndex,
    dialect: &Dialect,
    eol: Eol,
    bytes: &[u8],
) {
    let edge = find_edge(dialect, eol, bytes, index.next_start, false);
    index.next_start = edge.unwrap_or(bytes.len());
    index.fault = None;
}

/// Returns the line and the byte at which data row `row` begins, counted from the chunk's start.
pub(super) fn line_and_byte_of_row(
    dialect: &Dialect,
    bytes: &[u8],
    eol: Eol,
    row: u64,
) -> (u64, u64) {
    let mut walk = DelimitedRecordWalk::new(dialect, eol, bytes);
    let records_before = usize::try_from(row).unwrap_or(usize::MAX);
    let start = walk.nth(records_before).map_or(bytes.len(), |record| record.start);
    (count_lines(&bytes[..start], eol), start as u64)
}

/// Returns the bytes and the places of the records with the numbers `rows`, which must ascend. With
/// `target`, the records are rewritten for an input with the layout `target`.
pub(super) fn records(
    dialect: &Dialect,
    chunk: &Chunk,
    (bytes, layout): (&[u8], &RecordLayout),
    target: Option<&RecordLayout>,
    rows: &[u64],
) -> Result<Vec<InputRecord>> {
    let mut walk = (0..).zip(DelimitedRecordWalk::new(dialect, layout.eol, bytes));
    let (mut line, mut counted_to) = (chunk.line, 0);
    let mut found = Vec::with_capacity(rows.len());
    for row in rows {
        let (_, record) =
            walk.find(|(number, _)| number == row).ok_or_else(|| no_such_row_error(*row))?;
        line += count_lines(&bytes[counted_to..record.start], layout.eol);
        counted_to = record.start;
        let byte = Some(chunk.byte + record.start as u64);
        let place = InputPlace { line: Some(line), byte, ..InputPlace::default() };
        let bytes = &bytes[record];
        let bytes = match target {
            Some(target) => rewrite_for_layout(dialect, bytes, layout, target),
            None => with_line_end(dialect, bytes, layout.eol, layout.eol),
        };
        found.push(InputRecord { place, bytes });
    }
    Ok(found)
}

/// Rewrites a record of an input with the layout `from` for an input with the layout `to`.
fn rewrite_for_layout(
    dialect: &Dialect,
    record: &[u8],
    from: &RecordLayout,
    to: &RecordLayout,
) -> Vec<u8> {
    if from.field_of == to.field_of {
        return with_line_end(dialect, record, from.eol, to.eol);
    }
    let mut index = FieldIndex::default();
    index.scan(record, 0, &ScanRules::new(dialect, from.eol));
    if index.ends().len() != from.fields || index.fault.is_some() {
        return with_line_end(dialect, record, from.eol, to.eol);
    }
    let mut start = 0;
    let mut fields = Vec::with_capacity(from.fields);
    for end in index.ends() {
        let end = (end & OFFSET_MASK) as usize;
        fields.push(Some(&record[start..end]));
        start = end + 1;
    }
    // Fields that belong to no column fill the remaining positions.
    let mut placed = vec![None; fields.len()];
    for (old_index, new_index) in from.field_of.iter().zip(&to.field_of) {
        if let (Some(field), Some(slot)) = (fields.get_mut(*old_index), placed.get_mut(*new_index))
        {
            *slot = field.take();
        }
    }
    let mut others = fields.into_iter().flatten();
    let placed = placed.into_iter().map(|field| field.or_else(|| others.next()));
    let placed: Vec<_> = placed.map(Option::unwrap_or_default).collect();
    let mut bytes = placed.join(&dialect.delimiter);
    bytes.extend_from_slice(to.eol.bytes());
    bytes
}

/// Returns the record with the line end `to`. The record may have the line end `from`, or none.
fn with_line_end(dialect: &Dialect, record: &[u8], from: Eol, to: Eol) -> Vec<u8> {
    let is_escaped = |bytes: &[u8]| dialect.format == CopyFormat::Text && ends_in_escape(bytes);
    // A record with a wrong line end may have only the last byte of a line end.
    let ends = [from.bytes(), &[from.last_byte()]];
    let line = ends.into_iter().find_map(|end| record.strip_suffix(end));
    match line.filter(|line| !is_escaped(line)) {
        Some(_) if from == to => record.to_vec(),
        Some(line) => [line, to.bytes()].concat(),
        // COPY drops a single backslash at the end of the input.
        None => [&record[..record.len() - usize::from(is_escaped(record))], to.bytes()].concat(),
    }
}
