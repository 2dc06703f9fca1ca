//! Tests of recognising rows in binary COPY format.

use std::sync::Arc;

use super::*;
use crate::encode::Encoded;
use crate::format::{Chunk, ChunkData, ChunkEncoder, EncodeMode, InputRecord};
use crate::{InputPlace, Result};

/// Returns a row of fields in binary COPY format, after its address if there is one.
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

/// Returns the known rows of a table, as read by two readers.
fn known(rows: &[[Option<&str>; 2]], scope: &[usize]) -> KnownRows {
    let hasher = RowHasher::new(2, scope.to_vec());
    let mut parts = [RowsRead::default(), RowsRead::default()];
    for (nth, fields) in rows.iter().enumerate() {
        let part = &mut parts[usize::from(nth * 2 >= rows.len())];
        let bytes = row(Some((nth as u32, 7)), fields);
        assert_eq!(hasher.read(part, &bytes), Some(&[][..]));
    }
    KnownRows::new(hasher, parts.into())
}

fn places(known: &KnownRows) -> Vec<(u32, bool)> {
    let unmet: Vec<_> = known.unmatched().collect();
    assert!(unmet.iter().all(|(tid, _)| tid.item == 7));
    unmet.into_iter().map(|(tid, is_in)| (tid.block, is_in)).collect()
}

#[test]
fn a_row_matches_when_all_of_its_bytes_are_equal() {
    let known = known(&[[Some("1"), Some("a")], [Some("2"), None], [Some("3"), Some("")]], &[]);
    let meet = |fields: [Option<&str>; 2]| known.mark_if_known(&row(None, &fields)[2..], &mut 0);
    assert!(meet([Some("1"), Some("a")]));
    assert!(!meet([Some("1"), Some("b")]));
    assert!(!meet([Some("1a"), Some("")]));
    assert!(!meet([Some("3"), None]));
    assert!(meet([Some("2"), None]));
    assert_eq!(places(&known), [(2, true)]);
    assert!(!known.is_useless());
    assert!(meet([Some("2"), None]), "a repeated row matches");
    assert!(known.is_useless(), "a repeated row makes the filter useless");
}

#[test]
fn a_scope_is_in_the_source_when_one_of_its_rows_is() {
    let rows = ["a", "a", "b", "b", "c"].map(Some);
    let rows: Vec<_> = rows.iter().zip(["1", "2", "3", "4", "5"]).collect();
    let rows: Vec<_> = rows.into_iter().map(|(scope, key)| [*scope, Some(key)]).collect();
    let known = known(&rows, &[0]);
    assert!(known.mark_if_known(&row(None, &[Some("b"), Some("4")])[2..], &mut 0));
    assert_eq!(places(&known), [(0, false), (1, false), (2, true), (4, false)]);
}

#[test]
fn an_absent_row_is_not_found() {
    for rows in 0..9_usize {
        let keys: Vec<String> = (0..rows).map(|key| key.to_string()).collect();
        let all: Vec<_> = keys.iter().map(|key| [Some(key.as_str()), None]).collect();
        let known = known(&all, &[]);
        for absent in 0..50 {
            let other = format!("other {absent}");
            assert!(
                !known.mark_if_known(&row(None, &[Some(&other), None])[2..], &mut absent.clone())
            );
        }
        assert_eq!(places(&known).len(), rows);
    }
}

#[test]
fn rows_match_in_every_order() {
    let keys: Vec<String> = (0..500).map(|key| key.to_string()).collect();
    let all: Vec<_> = keys.iter().map(|key| [Some(key.as_str()), None]).collect();
    // In order, backwards, in leaps, and with some rows replaced by others.
    let orders: [fn(usize) -> usize; 4] = [
        |nth| nth,
        |nth| 499 - nth,
        |nth| nth * 7 % 500,
        |nth| if nth % 9 == 4 { 900 } else { nth },
    ];
    for order in orders {
        let (known, mut next) = (known(&all, &[]), 0);
        for nth in (0..500).map(order) {
            let is_matched =
                known.mark_if_known(&row(None, &[Some(&nth.to_string()), None])[2..], &mut next);
            assert_eq!(is_matched, nth < 500);
        }
        let left = (0..500).filter(|nth| !(0..500).any(|at| order(at) == *nth)).count();
        assert_eq!(places(&known).len(), left);
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
    let known = known(&[[Some("1"), Some("a")]], &[]);
    known.count(TRIAL_ROWS - 1, 0);
    assert!(!known.is_useless());
    known.count(1, 0);
    assert!(known.is_useless());
}

/// Rows 0 to 5, two per call. Rows 2 and 4 are left to the server as text.
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
fn known_rows_are_left_out_of_what_is_encoded() {
    let rows = ["0", "3", "9"].map(|key| [Some(key), Some("x")]);
    let known = Arc::new(known(&rows, &[]));
    let mut encoder = KnownRowFilter::new(Box::new(SixRowEncoder { next: 0 }), Arc::clone(&known));
    let data = ChunkData::Bytes(Vec::new());
    let chunk =
        Arc::new(Chunk { seq: 0, input: 0, byte: 0, line: 0, first_row: 0, digest: None, data });
    let mut out = Encoded::default();
    encoder.begin(chunk, EncodeMode::Binary).unwrap();
    while encoder.fill(&mut out, 1).unwrap() {}
    assert_eq!(out.known_rows, 2);
    assert_eq!(out.text_rows, [2, 4]);
    let rest = ["1", "5"].map(|nth| row(None, &[Some(nth), Some("x")])).concat();
    assert_eq!((out.binary_rows, out.binary), (2, rest));
    assert_eq!((known.matched(), places(&known)), (2, vec![(2, true)]));
}
