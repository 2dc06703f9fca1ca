//! The encoder continues after a rejected record, and returns records as they are in the input.

use super::*;
use crate::format::delimited::{RecordLayout, first_line};
use crate::format::{InputRecord, is_row_error};

/// Each row of an input. A rejected row is its error message and line.
type RowOutcomes = Vec<Result<Row, (String, u64)>>;

/// Returns the rows and their records, after checking that they are equal in both modes and for all
/// values of `fill_bytes`.
fn rows_and_records(setup: &LoadSetup, input: &[u8]) -> (RowOutcomes, Vec<InputRecord>) {
    let mut seen: Option<(RowOutcomes, Vec<InputRecord>)> = None;
    for (mode, fill_bytes) in
        [(EncodeMode::Text, 1), (EncodeMode::Text, 1 << 20), (EncodeMode::Binary, 1 << 20)]
    {
        let setup = LoadSetup { mode, fill_bytes, ..setup.clone() };
        let found = rows_and_records_once(&setup, input);
        let seen = seen.get_or_insert_with(|| found.clone());
        assert_eq!(found, *seen, "{}", input.escape_ascii());
    }
    seen.unwrap()
}

fn rows_and_records_once(setup: &LoadSetup, input: &[u8]) -> (RowOutcomes, Vec<InputRecord>) {
    let mut encoder =
        DelimitedEncoder::new(setup.dialect.clone(), setup.columns.clone(), setup.server_version);
    let (mut all, mut records) = (Vec::new(), Vec::new());
    for chunk in setup.chunks(input).unwrap() {
        let chunk = Arc::new(chunk);
        let mut rows: RowOutcomes = Vec::new();
        encoder.begin(Arc::clone(&chunk), setup.mode).unwrap();
        let mut out = Encoded::default();
        loop {
            let more = encoder.fill(&mut out, setup.fill_bytes);
            rows.extend(rows_of(&out, rows.len() as u64).into_iter().map(Ok));
            out.clear();
            match more {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    assert!(is_row_error(&error));
                    let place = error.place().unwrap();
                    assert_eq!(*place, encoder.place(&chunk, rows.len() as u64));
                    rows.push(Err((error.to_string(), place.line.unwrap())));
                }
            }
        }
        assert!(!encoder.fill(&mut out, 1).unwrap());
        let ordinals: Vec<u64> = (0..rows.len() as u64).collect();
        let chunk_records = encoder.records(&chunk, &ordinals).unwrap();
        for (row, record) in ordinals.iter().zip(&chunk_records) {
            assert_eq!(record.place, encoder.place(&chunk, *row));
        }
        assert!(encoder.records(&chunk, &[rows.len() as u64 + 9]).is_err());
        all.extend(rows);
        records.extend(chunk_records);
    }
    (all, records)
}

/// Describes each row: its first field, or `!` and the line of the error.
fn outline(rows: &RowOutcomes) -> String {
    let part = |row: &Result<Row, (String, u64)>| match row {
        Ok(row) => String::from_utf8(row[0].clone().unwrap_or_default()).unwrap(),
        Err((_, line)) => format!("!{line}"),
    };
    rows.iter().map(part).collect::<Vec<_>>().join(" ")
}

/// Checks the outline, and that the records together are the whole input.
fn check(setup: &LoadSetup, input: &[u8], expected: &str) {
    for chunk_bytes in [1 << 20, 1] {
        let setup = LoadSetup { chunk_bytes, ..setup.clone() };
        let (rows, records) = rows_and_records(&setup, input);
        assert_eq!(outline(&rows), expected, "{}", input.escape_ascii());
        let all: Vec<u8> = records.into_iter().flat_map(|record| record.bytes).collect();
        let skipped = input.len() - all.len().min(input.len());
        assert!(
            all == input[skipped..] || all[..all.len() - 1] == *input,
            "{} is not {}",
            all.escape_ascii(),
            input.escape_ascii()
        );
    }
}

#[test]
fn rows_after_a_wrong_number_of_fields() {
    let csv = LoadSetup::new(Dialect::csv(), 2);
    check(&csv, b"a,1\nb\nc,3\n", "a !2 c");
    check(&csv, b"b\na,1\n", "!1 a");
    check(&csv, b"a,1\nb,2,3", "a !2");
    check(&csv, b"a\nb\n\"c\n\"\nd,1,\n", "!1 !2 !3 !5");
    check(&csv, b"a,1\n\nb,2\n", "a !2 b");
    let text = LoadSetup::new(Dialect::text(), 2);
    check(&text, b"a\t1\nb\nc\\\n\t3\n", "a !2 c\n");
    let tbl = Dialect { trailing_delimiter: true, delimiter: b'|', ..Dialect::csv() };
    check(&LoadSetup::new(tbl, 2), b"a|1|\nb|2|x\nc|3|\nd|4\n", "a !2 c !4");
}

#[test]
fn rows_after_a_wrong_line_end() {
    let csv = LoadSetup::new(Dialect::csv(), 1);
    check(&csv, b"a\nb\rc\nd\n", "a !2 d");
    check(&csv, b"a\rb\nc\rd\r", "a !2 d");
    check(&csv, b"a\r\nb\nc\r\n", "a !2 c");
    check(&csv, b"a\nb\r\nc\r\nd\n", "a !2 !3 d");
    check(&LoadSetup::new(Dialect::text(), 1), b"a\nb\r\nc\n", "a !2 c");
}

#[test]
fn an_unterminated_quote_takes_the_rest_of_the_input() {
    let csv = LoadSetup::new(Dialect::csv(), 1);
    check(&csv, b"a\n\"b\nc\nd\n", "a !2");
    check(&csv, b"\"", "!1");
    let (_, records) = rows_and_records(&csv, b"a\n\"b\nc\nd");
    assert_eq!(records[1].bytes, b"\"b\nc\nd\n");
}

#[test]
fn rows_after_an_end_marker_before_the_end() {
    let text = LoadSetup::new(Dialect::text(), 1);
    check(&text, b"a\n\\.\nb\n", "a !2 b");
    check(&text, b"a\\.\nb\n", "!1 b");
    check(&text, b"a\n\\.b\nc\n", "a !2 c");
    let (rows, _) = rows_and_records(&text, b"a\n\\.\n\\.\nb\n");
    assert_eq!(outline(&rows), "a !2 !3 b");
    let (rows, records) = rows_and_records(&text, b"a\nb\n\\.\n");
    assert_eq!((outline(&rows).as_str(), records.len()), ("a b", 2));
    let csv = LoadSetup { server_version: 170_000, ..LoadSetup::new(Dialect::csv(), 1) };
    check(&csv, b"a\n\\.\nb\n", "a !2 b");
}

#[test]
fn comments_and_blank_lines_are_not_counted_as_rows() {
    let dialect = Dialect { comment: Some(b'#'), skip_blank_lines: true, ..Dialect::csv() };
    let setup = LoadSetup { header: true, ..LoadSetup::new(dialect.clone(), 2) };
    let input = b"#\"\nh,i\n\na,1\n#b\nc\n\nd,4\n";
    let (rows, records) = rows_and_records(&setup, input);
    assert_eq!(outline(&rows), "a !6 d");
    assert_eq!(records[1].bytes, b"c\n");
    assert_eq!(first_line(&dialect, Eol::Lf, input), b"h,i\n");
    assert_eq!(first_line(&dialect, Eol::Lf, b"#\n"), b"");
    assert_eq!(first_line(&Dialect::csv(), Eol::CrLf, b"\"a\r\nb\"\r\nc"), b"\"a\r\nb\"\r\n");
}

#[test]
fn many_refusals_in_many_windows() {
    let input = b"a,\"x\ny\"\nb\nc,1,2\nd,4\n".repeat(300);
    let (rows, records) = rows_and_records(&LoadSetup::new(Dialect::csv(), 2), &input);
    assert_eq!(rows.len(), 1200);
    for (repeat, four_rows) in rows.chunks(4).enumerate() {
        let line = 5 * repeat as u64;
        assert_eq!(outline(&four_rows.to_vec()), format!("a !{} !{} d", line + 3, line + 4));
    }
    let all: Vec<u8> = records.into_iter().flat_map(|record| record.bytes).collect();
    assert_eq!(all, input);
}

/// Returns the first two records of an input, rewritten for the layout `target`.
fn rewrite_two_records(setup: &LoadSetup, input: &[u8], target: RecordLayout) -> String {
    let mut encoder = DelimitedEncoder::new(setup.dialect.clone(), setup.columns.clone(), 180_000)
        .with_output_layout(target);
    let chunk = Arc::new(setup.chunks(input).unwrap().remove(0));
    encoder.begin(Arc::clone(&chunk), EncodeMode::Text).unwrap();
    let records = encoder.records(&chunk, &[0, 1]).unwrap();
    records.iter().map(|record| record.bytes.escape_ascii().to_string()).collect()
}

#[test]
fn records_of_other_inputs_are_rewritten_for_the_first_inputs_layout() {
    let layout = |eol, field_of: &[usize]| {
        let columns = Arc::default();
        RecordLayout { eol, fields: 3, field_of: field_of.to_vec(), columns }
    };
    let mut setup = LoadSetup::new(Dialect::csv(), 3);
    let input = b"a,\"b,\r\n\",c\r\nd\r\n";
    assert_eq!(
        rewrite_two_records(&setup, input, layout(Eol::CrLf, &[0, 1, 2])),
        r#"a,\"b,\r\n\",c\r\n"#.to_owned() + r"d\r\n"
    );
    setup.field_of = vec![2, 0, 1];
    assert_eq!(
        rewrite_two_records(&setup, input, layout(Eol::Lf, &[0, 1, 2])),
        r#"c,a,\"b,\r\n\"\nd\n"#
    );
    // A field that belongs to no column is kept.
    setup.columns.pop();
    setup.field_of = vec![2, 0];
    let map: Vec<usize> = vec![2, 0];
    let input = b"a,\"b\",c\n";
    let options = CutOptions {
        dialect: Dialect::csv(),
        header: false,
        chunk_bytes: 1 << 20,
        columns: Arc::default(),
        map: Arc::new(move |_| Ok((3, map.clone()))),
    };
    let reader = Box::new(std::io::Cursor::new(input.to_vec()));
    let chunk = DelimitedCutter::open("in.csv", reader, options).unwrap().next().unwrap().unwrap();
    let encoder = DelimitedEncoder::new(Dialect::csv(), setup.columns.clone(), 180_000)
        .with_output_layout(layout(Eol::Lf, &[0, 1]));
    assert_eq!(encoder.records(&chunk, &[0]).unwrap()[0].bytes, b"c,a,\"b\"\n");
}

#[test]
fn a_single_backslash_at_the_end_of_the_input_is_dropped() {
    let text = LoadSetup::new(Dialect::text(), 1);
    let records = |input: &[u8]| {
        let (_, records) = rows_and_records(&text, input);
        records.into_iter().map(|record| record.bytes).collect::<Vec<_>>()
    };
    assert_eq!(records(b"a\nb\\"), [&b"a\n"[..], b"b\n"]);
    assert_eq!(records(b"a\nb\\\n"), [&b"a\n"[..], b"b\\\n\n"]);
    assert_eq!(records(b"a\nb\\\\"), [&b"a\n"[..], b"b\\\\\n"]);
}
