//! Tests of recognising rows in binary COPY format.

use std::sync::Arc;

use super::*;
use crate::encode::Encoded;
use crate::format::{Chunk, ChunkData, ChunkEncoder, EncodeMode, InputRecord};
use crate::{InputPlace, Result};

/// Returns a row of text fields in binary COPY format. The first field is the address `tid`, if
/// there is one.
fn row(tid: Option<(u32, u16)>, fields: &[Option<&str>]) -> Vec<u8> {
    let count = fields.len() + usize::from(tid.is_some());
    let mut row = i16::try_from(count).unwrap().to_be_bytes().to_vec();
    if let Some((block, item)) = tid {
        row.extend_from_slice(&[0, 0, 0, 6]);
        row.extend_from_slice(&block.to_be_bytes());
        row.extend_from_slice(&item.to_be_bytes());
    }
    for field in fields {
        let length = field.map_or(-1, |text| i32::try_from(text.len()).unwrap());
        row.extend_from_slice(&length.to_be_bytes());
        row.extend_from_slice(field.unwrap_or_default().as_bytes());
    }
    row
}

/// Returns the known rows of a table. Two readers have each read one half of the table.
fn known_rows(rows: &[[Option<&str>; 2]], scope: &[usize]) -> KnownRows {
    let hasher = RowHasher::new(2, scope.to_vec());
    let mut parts = [RowsRead::default(), RowsRead::default()];
    for (nth, fields) in rows.iter().enumerate() {
        let part = &mut parts[usize::from(nth * 2 >= rows.len())];
        let bytes = row(Some((nth as u32, 7)), fields);
        assert_eq!(hasher.read(part, &bytes), Some(&[][..]));
    }
    KnownRows::new(hasher, parts.into())
}

/// Returns, for each unmatched row, its block and whether the source has rows of its scope.
fn unmatched_blocks(known: &KnownRows) -> Vec<(u32, bool)> {
    let unmatched: Vec<_> = known.unmatched().collect();
    assert!(unmatched.iter().all(|(tid, _)| tid.item == 7));
    unmatched.into_iter().map(|(tid, scope_in_source)| (tid.block, scope_in_source)).collect()
}

#[test]
fn a_row_matches_when_all_of_its_bytes_are_equal() {
    let known =
        known_rows(&[[Some("1"), Some("a")], [Some("2"), None], [Some("3"), Some("")]], &[]);
    let is_known =
        |fields: [Option<&str>; 2]| known.mark_if_known(&row(None, &fields)[2..], &mut 0);
    assert!(is_known([Some("1"), Some("a")]));
    assert!(!is_known([Some("1"), Some("b")]));
    assert!(!is_known([Some("1a"), Some("")]));
    assert!(!is_known([Some("3"), None]));
    assert!(is_known([Some("2"), None]));
    assert_eq!(unmatched_blocks(&known), [(2, true)]);
    assert!(!known.is_useless());
    assert!(is_known([Some("2"), None]), "a repeated row matches");
    assert!(known.is_useless(), "a repeated row makes the filter useless");
}

#[test]
fn a_scope_is_in_the_source_when_one_of_its_rows_is() {
    let rows = ["a", "a", "b", "b", "c"].map(Some);
    let rows: Vec<_> = rows.iter().zip(["1", "2", "3", "4", "5"]).collect();
    let rows: Vec<_> = rows.into_iter().map(|(scope, key)| [*scope, Some(key)]).collect();
    let known = known_rows(&rows, &[0]);
    assert!(known.mark_if_known(&row(None, &[Some("b"), Some("4")])[2..], &mut 0));
    assert_eq!(unmatched_blocks(&known), [(0, false), (1, false), (2, true), (4, false)]);
}

#[test]
fn an_absent_row_is_not_found() {
    for rows in 0..9_usize {
        let keys: Vec<String> = (0..rows).map(|key| key.to_string()).collect();
        let all: Vec<_> = keys.iter().map(|key| [Some(key.as_str()), None]).collect();
        let known = known_rows(&all, &[]);
        for absent in 0..50 {
            let other = format!("other {absent}");
            assert!(
                !known.mark_if_known(&row(None, &[Some(&other), None])[2..], &mut absent.clone())
            );
        }
        assert_eq!(unmatched_blocks(&known).len(), rows);
    }
}

#[test]
fn rows_match_in_every_order() {
    let keys: Vec<String> = (0..500).map(|key| key.to_string()).collect();
    let all: Vec<_> = keys.iter().map(|key| [Some(key.as_str()), None]).collect();
    // In the table's order, backwards, in leaps of seven, and with some unknown rows.
    let orders: [fn(usize) -> usize; 4] = [
        |nth| nth,
        |nth| 499 - nth,
        |nth| nth * 7 % 500,
        |nth| if nth % 9 == 4 { 900 } else { nth },
    ];
    for order in orders {
        let (known, mut next) = (known_rows(&all, &[]), 0);
        for nth in (0..500).map(order) {
            let is_matched =
                known.mark_if_known(&row(None, &[Some(&nth.to_string()), None])[2..], &mut next);
            assert_eq!(is_matched, nth < 500);
        }
        let unmatched = (0..500).filter(|nth| !(0..500).any(|at| order(at) == *nth)).count();
        assert_eq!(unmatched_blocks(&known).len(), unmatched);
        assert!(!known.is_useless());
    }
}

#[test]
fn an_incomplete_row_is_not_read() {
    let hasher = RowHasher::new(2, Vec::new());
    let bytes = row(Some((1, 2)), &[Some("ab"), None]);
    for end in 0..bytes.len() {
        assert_eq!(hasher.read(&mut RowsRead::default(), &bytes[..end]), None, "{end}");
    }
    let other = row(Some((1, 2)), &[Some("ab")]);
    assert_eq!(hasher.read(&mut RowsRead::default(), &other), None);
}

#[test]
fn the_filter_is_useless_when_hardly_any_row_matches() {
    let known = known_rows(&[[Some("1"), Some("a")]], &[]);
    known.count_lookups(TRIAL_ROWS - 1, 0);
    assert!(!known.is_useless());
    known.count_lookups(1, 0);
    assert!(known.is_useless());
}

/// Encodes rows 0 to 5, two rows per call. Rows 2 and 4 are text for the server to parse.
struct SixRowEncoder {
    next: u64,
}

impl ChunkEncoder for SixRowEncoder {
    fn begin(&mut self, _: Arc<Chunk>, _: EncodeMode) -> Result<()> {
        self.next = 0;
        Ok(())
    }

    fn fill(&mut self, out: &mut Encoded, _: usize) -> Result<bool> {
        for _ in 0..2 {
            match self.next {
                2 | 4 => out.text_rows.push(self.next),
                nth => {
                    out.binary.extend(row(None, &[Some(&nth.to_string()), Some("x")]));
                    out.binary_rows += 1;
                }
            }
            self.next += 1;
        }
        Ok(self.next < 6)
    }

    fn place(&self, _: &Chunk, _: u64) -> InputPlace {
        InputPlace::default()
    }

    fn records(&self, _: &Chunk, _: &[u64]) -> Result<Vec<InputRecord>> {
        Ok(Vec::new())
    }
}

#[test]
fn known_rows_are_removed_from_the_encoded_rows() {
    let rows = ["0", "3", "9"].map(|key| [Some(key), Some("x")]);
    let known = Arc::new(known_rows(&rows, &[]));
    let mut encoder = KnownRowFilter::new(Box::new(SixRowEncoder { next: 0 }), Arc::clone(&known));
    let data = ChunkData::Bytes(Vec::new());
    let chunk =
        Arc::new(Chunk { seq: 0, input: 0, byte: 0, line: 0, first_row: 0, digest: None, data });
    let mut out = Encoded::default();
    encoder.begin(chunk, EncodeMode::Binary).unwrap();
    while encoder.fill(&mut out, 1).unwrap() {}
    assert_eq!(out.known_rows, 2);
    assert_eq!(out.text_rows, [2, 4]);
    let sent = ["1", "5"].map(|nth| row(None, &[Some(nth), Some("x")])).concat();
    assert_eq!((out.binary_rows, out.binary), (2, sent));
    assert_eq!((known.matched(), unmatched_blocks(&known)), (2, vec![(2, true)]));
}
