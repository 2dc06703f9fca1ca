//! The records of a chunk one after the other, those with a fault included.
//!
//! The walk depends on the chunk's bytes alone, and counts the rows that the encoder counts.

use std::ops::Range;

use super::fields::ends_in_escape;
use super::lines::{count_lines, find_edge, is_skipped, skip_line_end};
use super::scan::{Fault, Index, OFFSET, RECORD, Rules};
use super::{Dialect, Eol, Family, Layout};
use crate::format::{Chunk, Record, no_such_row};
use crate::{InputPlace, Result};

/// A walk over the records of one chunk: where they stand, with their line ends.
pub(super) struct Walk<'a> {
    dialect: &'a Dialect,
    eol: Eol,
    bytes: &'a [u8],
    rules: Rules,
    index: Index,
    /// Next entry of the index.
    at: usize,
    record_start: usize,
}

impl<'a> Walk<'a> {
    pub(super) fn new(dialect: &'a Dialect, eol: Eol, bytes: &'a [u8]) -> Walk<'a> {
        let rules = Rules::new(dialect, eol);
        Walk { dialect, eol, bytes, rules, index: Index::default(), at: 0, record_start: 0 }
    }
}

impl Iterator for Walk<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        loop {
            while let Some(end) = self.index.ends().get(self.at) {
                self.at += 1;
                if end & RECORD == 0 {
                    continue;
                }
                let (start, end) = (self.record_start, self.index.start + (end & OFFSET) as usize);
                self.record_start = skip_line_end(self.bytes, end, self.eol);
                if !is_skipped(self.dialect, &self.bytes[start..end]) {
                    return Some(start..self.record_start);
                }
            }
            if let Some(fault) = self.index.fault {
                if is_last_marker(fault, &self.bytes[self.index.next..], self.eol) {
                    return None;
                }
                let start = self.index.next;
                pass_fault(&mut self.index, self.dialect, self.eol, self.bytes);
                return Some(start..self.index.next);
            }
            if self.index.next >= self.bytes.len() {
                return None;
            }
            self.record_start = self.index.next;
            self.index.scan(self.bytes, self.record_start, &self.rules);
            self.at = 0;
        }
    }
}

/// Whether the fault is a `\.` behind which nothing comes.
pub(super) fn is_last_marker(fault: Fault, rest: &[u8], eol: Eol) -> bool {
    fault == Fault::EndMarker && rest.len() == b"\\.".len() + eol.bytes().len()
}

/// Has the index go on behind the record with a fault: at the next record edge, as the cutter
/// finds them.
pub(super) fn pass_fault(index: &mut Index, dialect: &Dialect, eol: Eol, bytes: &[u8]) {
    let edge = find_edge(dialect, eol, bytes, index.next, false);
    index.next = edge.unwrap_or(bytes.len());
    index.fault = None;
}

/// The line and the byte, both from the chunk's start, at which data row `row` begins.
pub(super) fn locate(dialect: &Dialect, bytes: &[u8], eol: Eol, row: u64) -> (u64, u64) {
    let mut walk = Walk::new(dialect, eol, bytes);
    let nth = usize::try_from(row).unwrap_or(usize::MAX);
    let start = walk.nth(nth).map_or(bytes.len(), |record| record.start);
    (count_lines(&bytes[..start], eol), start as u64)
}

/// The records of rows, whose ordinals ascend.
pub(super) fn records(
    dialect: &Dialect,
    chunk: &Chunk,
    (bytes, layout): (&[u8], &Layout),
    like: Option<&Layout>,
    rows: &[u64],
) -> Result<Vec<Record>> {
    let mut walk = (0..).zip(Walk::new(dialect, layout.eol, bytes));
    let (mut line, mut counted_to) = (chunk.line, 0);
    let mut found = Vec::with_capacity(rows.len());
    for row in rows {
        let (_, record) = walk.find(|(nth, _)| nth == row).ok_or_else(|| no_such_row(*row))?;
        line += count_lines(&bytes[counted_to..record.start], layout.eol);
        counted_to = record.start;
        let byte = Some(chunk.byte + record.start as u64);
        let place = InputPlace { line: Some(line), byte, ..InputPlace::default() };
        let bytes = &bytes[record];
        let bytes = match like {
            Some(like) => rewritten(dialect, bytes, layout, like),
            None => with_end(dialect, bytes, layout.eol, layout.eol),
        };
        found.push(Record { place, bytes });
    }
    Ok(found)
}

/// The record as it would stand in an input laid out as `to` is.
fn rewritten(dialect: &Dialect, record: &[u8], from: &Layout, to: &Layout) -> Vec<u8> {
    if from.field_of == to.field_of {
        return with_end(dialect, record, from.eol, to.eol);
    }
    let mut index = Index::default();
    index.scan(record, 0, &Rules::new(dialect, from.eol));
    if index.ends().len() != from.fields || index.fault.is_some() {
        return with_end(dialect, record, from.eol, to.eol);
    }
    let mut start = 0;
    let mut fields = Vec::with_capacity(from.fields);
    for end in index.ends() {
        let end = (end & OFFSET) as usize;
        fields.push(Some(&record[start..end]));
        start = end + 1;
    }
    // Fields that feed no column may take any place that is left.
    let mut placed = vec![None; fields.len()];
    for (here, there) in from.field_of.iter().zip(&to.field_of) {
        if let (Some(field), Some(place)) = (fields.get_mut(*here), placed.get_mut(*there)) {
            *place = field.take();
        }
    }
    let mut others = fields.into_iter().flatten();
    let placed = placed.into_iter().map(|field| field.or_else(|| others.next()));
    let placed: Vec<_> = placed.map(Option::unwrap_or_default).collect();
    let mut bytes = placed.join(&dialect.delimiter);
    bytes.extend_from_slice(to.eol.bytes());
    bytes
}

/// The record with the line end `to` for its own, or for none.
fn with_end(dialect: &Dialect, record: &[u8], from: Eol, to: Eol) -> Vec<u8> {
    let is_escaped = |bytes: &[u8]| dialect.family == Family::Text && ends_in_escape(bytes);
    // A record that is refused for its line end may have but the last byte of one.
    let ends = [from.bytes(), &[from.last_byte()]];
    let line = ends.into_iter().find_map(|end| record.strip_suffix(end));
    match line.filter(|line| !is_escaped(line)) {
        Some(_) if from == to => record.to_vec(),
        Some(line) => [line, to.bytes()].concat(),
        // At the end of the input an escape may stand alone, and does not count.
        None => [&record[..record.len() - usize::from(is_escaped(record))], to.bytes()].concat(),
    }
}
