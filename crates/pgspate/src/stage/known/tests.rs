//! Rows in binary COPY format, known and looked up.

use std::sync::Arc;

use super::*;
use crate::encode::Encoded;
use crate::format::{Chunk, ChunkData, ChunkEncoder, Mode, Record};
use crate::{InputPlace, Result};

/// A row of fields in binary COPY format, behind where it is.
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

/// What is known of a table of these rows, by two that have read it.
fn known(rows: &[[Option<&str>; 2]], scope: &[usize]) -> KnownRows {
    let recognition = RowHasher::new(2, scope.to_vec());
    let mut parts = [RowsRead::default(), RowsRead::default()];
    for (nth, fields) in rows.iter().enumerate() {
        let part = &mut parts[usize::from(nth * 2 >= rows.len())];
        let bytes = row(Some((nth as u32, 7)), fields);
        assert_eq!(recognition.read(part, &bytes), Some(&[][..]));
    }
    KnownRows::new(recognition, parts.into())
}

fn places(known: &KnownRows) -> Vec<(u32, bool)> {
    let unmet: Vec<_> = known.unmet().collect();
    assert!(unmet.iter().all(|(tid, _)| tid.item == 7));
    unmet.into_iter().map(|(tid, is_in)| (tid.block, is_in)).collect()
}

#[test]
fn a_row_is_met_when_all_of_its_bytes_are_the_same() {
    let known = known(&[[Some("1"), Some("a")], [Some("2"), None], [Some("3"), Some("")]], &[]);
    let meet = |fields: [Option<&str>; 2]| known.meet(&row(None, &fields)[2..], &mut 0);
    assert!(meet([Some("1"), Some("a")]));
    assert!(!meet([Some("1"), Some("b")]));
    assert!(!meet([Some("1a"), Some("")]));
    assert!(!meet([Some("3"), None]));
    assert!(meet([Some("2"), None]));
    assert_eq!(places(&known), [(2, true)]);
    assert!(!known.is_futile());
    assert!(meet([Some("2"), None]), "a row that comes again");
    assert!(known.is_futile(), "is for the server to see");
}

#[test]
fn a_scope_is_in_the_source_when_one_of_its_rows_is() {
    let rows = ["a", "a", "b", "b", "c"].map(Some);
    let rows: Vec<_> = rows.iter().zip(["1", "2", "3", "4", "5"]).collect();
    let rows: Vec<_> = rows.into_iter().map(|(scope, key)| [*scope, Some(key)]).collect();
    let known = known(&rows, &[0]);
    assert!(known.meet(&row(None, &[Some("b"), Some("4")])[2..], &mut 0));
    assert_eq!(places(&known), [(0, false), (1, false), (2, true), (4, false)]);
}

#[test]
fn a_row_that_is_not_there_is_not_found() {
    for rows in 0..9_usize {
        let keys: Vec<String> = (0..rows).map(|key| key.to_string()).collect();
        let all: Vec<_> = keys.iter().map(|key| [Some(key.as_str()), None]).collect();
        let known = known(&all, &[]);
        for absent in 0..50 {
            let other = format!("other {absent}");
            assert!(!known.meet(&row(None, &[Some(&other), None])[2..], &mut absent.clone()));
        }
        assert_eq!(places(&known).len(), rows);
    }
}

#[test]
fn rows_are_met_in_every_order() {
    let keys: Vec<String> = (0..500).map(|key| key.to_string()).collect();
    let all: Vec<_> = keys.iter().map(|key| [Some(key.as_str()), None]).collect();
    // As they are, backwards, by leaps, and with others in between, one in place of a row.
    let orders: [fn(usize) -> usize; 4] = [
        |nth| nth,
        |nth| 499 - nth,
        |nth| nth * 7 % 500,
        |nth| if nth % 9 == 4 { 900 } else { nth },
    ];
    for order in orders {
        let (known, mut next) = (known(&all, &[]), 0);
        for nth in (0..500).map(order) {
            let is_met = known.meet(&row(None, &[Some(&nth.to_string()), None])[2..], &mut next);
            assert_eq!(is_met, nth < 500);
        }
        let left = (0..500).filter(|nth| !(0..500).any(|at| order(at) == *nth)).count();
        assert_eq!(places(&known).len(), left);
        assert!(!known.is_futile());
    }
}

#[test]
fn rows_in_pieces_are_none() {
    let recognition = RowHasher::new(2, Vec::new());
    let bytes = row(Some((1, 2)), &[Some("ab"), None]);
    for end in 0..bytes.len() {
        assert_eq!(recognition.read(&mut RowsRead::default(), &bytes[..end]), None, "{end}");
    }
    let other = row(Some((1, 2)), &[Some("ab")]);
    assert_eq!(recognition.read(&mut RowsRead::default(), &other), None);
}

#[test]
fn it_is_futile_when_hardly_any_row_is_met() {
    let known = known(&[[Some("1"), Some("a")]], &[]);
    known.count(TRIAL_ROWS - 1, 0);
    assert!(!known.is_futile());
    known.count(1, 0);
    assert!(known.is_futile());
}

/// Rows 0 to 5, of which 2 and 4 are left to the server; two at a time.
struct Six {
    next: u64,
}

impl ChunkEncoder for Six {
    fn begin(&mut self, _: Arc<Chunk>, _: Mode) -> Result<()> {
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

    fn records(&self, _: &Chunk, _: &[u64]) -> Result<Vec<Record>> {
        Ok(Vec::new())
    }
}

#[test]
fn known_rows_are_left_out_of_what_is_encoded() {
    let rows = ["0", "3", "9"].map(|key| [Some(key), Some("x")]);
    let known = Arc::new(known(&rows, &[]));
    let mut encoder = KnownRowFilter::new(Box::new(Six { next: 0 }), Arc::clone(&known));
    let data = ChunkData::Bytes(Vec::new());
    let chunk =
        Arc::new(Chunk { seq: 0, input: 0, byte: 0, line: 0, first_row: 0, digest: None, data });
    let mut out = Encoded::default();
    encoder.begin(chunk, Mode::Binary).unwrap();
    while encoder.fill(&mut out, 1).unwrap() {}
    assert_eq!(out.known_rows, 2);
    assert_eq!(out.text_rows, [2, 4]);
    let rest = ["1", "5"].map(|nth| row(None, &[Some(nth), Some("x")])).concat();
    assert_eq!((out.binary_rows, out.binary), (2, rest));
    assert_eq!((known.met(), places(&known)), (2, vec![(2, true)]));
}
