//! Tests that bit masks and the byte-by-byte walk give the same index, and that scans in parts and
//! as a whole agree.

use proptest::prelude::*;

use super::super::CopyFormat;
use super::super::field_index::{
    FieldIndex, HAS_ESCAPES, LineFault, OFFSET_MASK, RECORD_END, ScanRules,
};
use super::super::lines::{detect_eol, ends_in_quote, last_offset_outside_escape};
use super::*;

type IndexedWindow = (usize, Vec<u32>, Option<LineFault>);

/// Indexes every window of `bytes`.
fn windows(bytes: &[u8], rules: &ScanRules) -> Vec<IndexedWindow> {
    let mut index = FieldIndex::default();
    let mut windows = Vec::new();
    while index.next_start < bytes.len() && index.fault.is_none() {
        index.scan(bytes, index.next_start, rules);
        windows.push((index.next_start, index.ends().to_vec(), index.fault));
    }
    windows
}

fn bytes_of(alphabet: &'static [u8], len: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(alphabet), 0..len)
}

/// Generates long runs of one byte, to fill blocks with backslashes or quotes.
fn runs() -> impl Strategy<Value = Vec<u8>> {
    let run = (prop::sample::select(b"\\\"a,\n".as_slice()), 1..70_usize);
    let runs = prop::collection::vec(run, 0..12);
    runs.prop_map(|runs| runs.into_iter().flat_map(|(byte, len)| vec![byte; len]).collect())
}

fn eol() -> impl Strategy<Value = Eol> {
    prop::sample::select(vec![Eol::Lf, Eol::CrLf, Eol::Cr])
}

fn assert_masks_and_walk_agree(dialect: &Dialect, eol: Eol, bytes: &[u8]) {
    let rules = ScanRules::new(dialect, eol);
    assert_eq!(windows(bytes, &rules), windows(bytes, &rules.without_masks()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn masks_and_walk_agree(bytes in bytes_of(b"aaaaaa,\"\"\n\r\\.", 300), eol in eol()) {
        assert_masks_and_walk_agree(&Dialect::csv(), eol, &bytes);
        assert_masks_and_walk_agree(&Dialect { quote: None, ..Dialect::csv() }, eol, &bytes);
        assert_masks_and_walk_agree(&Dialect { delimiter: b',', ..Dialect::text() }, eol, &bytes);
    }

    #[test]
    fn masks_and_walk_agree_without_line_end_faults(bytes in bytes_of(b"aaaaa,\"\"\n\\.N", 600)) {
        let lines = bytes.split(|byte| *byte == b'\n');
        let with = |eol: &[u8]| lines.clone().collect::<Vec<_>>().join(eol);
        for (eol, bytes) in
            [(Eol::Lf, with(b"\n")), (Eol::CrLf, with(b"\r\n")), (Eol::Cr, with(b"\r"))]
        {
            assert_masks_and_walk_agree(&Dialect::csv(), eol, &bytes);
            let text = Dialect { delimiter: b',', ..Dialect::text() };
            assert_masks_and_walk_agree(&text, eol, &bytes);
        }
    }

    #[test]
    fn masks_and_walk_agree_about_runs(bytes in runs(), eol in eol()) {
        assert_masks_and_walk_agree(&Dialect::csv(), eol, &bytes);
        assert_masks_and_walk_agree(&Dialect { delimiter: b',', ..Dialect::text() }, eol, &bytes);
    }

    #[test]
    fn the_index_agrees_with_a_simple_parser(bytes in bytes_of(b"ab,,\"\"\n", 300)) {
        let rules = ScanRules::new(&Dialect::csv(), Eol::Lf);
        let (mut expected, mut in_quote, mut escapes, mut complete) = (Vec::new(), false, 0, 0);
        for (at, byte) in bytes.iter().enumerate() {
            match byte {
                b'"' => (in_quote, escapes) = (!in_quote, HAS_ESCAPES),
                b',' | b'\n' if !in_quote => {
                    let record = if *byte == b'\n' { RECORD_END } else { 0 };
                    expected.push(at as u32 | escapes | record);
                    escapes = 0;
                    complete = if *byte == b'\n' { expected.len() } else { complete };
                }
                _ => {}
            }
        }
        if !in_quote && bytes.last().is_some_and(|byte| *byte != b'\n') {
            expected.push(bytes.len() as u32 | escapes | RECORD_END);
            complete = expected.len();
        }
        expected.truncate(complete);
        let mut found = Vec::new();
        let mut start = 0;
        for (next, ends, _) in windows(&bytes, &rules) {
            found.extend(ends.iter().map(|end| end + start as u32));
            start = next;
        }
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn ends_in_quote_agrees_in_parts(bytes in bytes_of(b"a\"\\\\\n", 60), at in 0..60_usize) {
        let dialect = Dialect { escape: b'\\', ..Dialect::csv() };
        let at = last_offset_outside_escape(&dialect, &bytes, 0, at.min(bytes.len()));
        let before = ends_in_quote(&dialect, &bytes[..at], false);
        let whole = ends_in_quote(&dialect, &bytes, false);
        prop_assert_eq!(ends_in_quote(&dialect, &bytes[at..], before), whole);
    }

    #[test]
    fn a_line_end_detected_early_is_right(bytes in bytes_of(b"a\"\\\n\r", 40)) {
        for dialect in [Dialect::csv(), Dialect::text()] {
            let whole = detect_eol(&dialect, &bytes, true).unwrap();
            for len in 0..bytes.len() {
                if let Some(early) = detect_eol(&dialect, &bytes[..len], false) {
                    prop_assert_eq!(early, whole);
                }
            }
        }
    }

    #[test]
    fn no_input_and_no_dialect_panics(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        chunk_bytes in 1..99_usize,
        special in prop::array::uniform4(any::<u8>()),
        text in any::<bool>(),
        version in 17..19_u32,
    ) {
        let [delimiter, quote, escape, comment] = special;
        let dialect = Dialect {
            format: if text { CopyFormat::Text } else { CopyFormat::Csv },
            delimiter,
            quote: (!text).then_some(quote),
            escape: if text { b'\\' } else { escape },
            comment: (comment % 2 == 0).then_some(comment),
            skip_blank_lines: comment % 3 == 0,
            trailing_delimiter: comment % 5 == 0,
            ..Dialect::csv()
        };
        let header = comment % 7 == 0;
        let version = version * 10_000;
        for mode in [EncodeMode::Text, EncodeMode::Binary] {
            let plain = LoadSetup::new(dialect.clone(), 2);
            let setup = LoadSetup { chunk_bytes, header, mode, server_version: version, ..plain };
            setup.load(&bytes);
        }
    }
}

#[test]
fn offsets_count_from_the_start_of_the_window() {
    let bytes = b"aa,b\n".repeat(100);
    let rules = ScanRules::new(&Dialect::csv(), Eol::Lf);
    let found = windows(&bytes, &rules);
    assert!(found.len() > 2);
    let first = &found[1].1[..2];
    assert_eq!(first, [2, 4 | RECORD_END]);
    assert!(
        found.iter().flat_map(|(_, ends, _)| ends).all(|end| ((end & OFFSET_MASK) as usize) < 200)
    );
}

#[test]
fn the_first_line_end_outside_quotes_decides() {
    let csv = Dialect::csv();
    assert_eq!(detect_eol(&csv, b"a\nb\r\n", true), Some(Eol::Lf));
    assert_eq!(detect_eol(&csv, b"\"\n\"\r\n", true), Some(Eol::CrLf));
    assert_eq!(detect_eol(&csv, b"\"\r\n\"\r", false), None);
    assert_eq!(detect_eol(&csv, b"\"\r\n\"\r", true), Some(Eol::Cr));
    assert_eq!(detect_eol(&csv, b"\"\r\n", false), None);
    assert_eq!(detect_eol(&csv, b"a\rb\n", true), Some(Eol::Cr));
    assert_eq!(detect_eol(&csv, b"a", true), Some(Eol::Lf));
    assert_eq!(detect_eol(&Dialect::text(), b"a\\\nb\\\\\r\n", true), Some(Eol::CrLf));
    assert_eq!(detect_eol(&Dialect::text(), b"a\\\r\n", true), Some(Eol::Lf));
    let comment = Dialect { comment: Some(b'#'), ..csv };
    assert_eq!(detect_eol(&comment, b"#\"\r\na\n", true), Some(Eol::CrLf));
}
