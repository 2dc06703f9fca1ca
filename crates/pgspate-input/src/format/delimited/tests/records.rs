//! Tests of comments, blank lines, trailing delimiters, headers and samples.

use std::sync::Mutex;

use super::*;

/// Returns the rows, after checking that both modes give the same.
fn rows_in_both_modes(setup: &LoadSetup, input: &[u8]) -> Vec<Row> {
    let rows = setup.rows(input);
    let binary = LoadSetup { mode: EncodeMode::Binary, ..setup.clone() }.rows(input);
    assert_eq!(binary, rows, "{}", input.escape_ascii());
    rows
}

#[test]
fn comments_and_blank_lines_are_skipped() {
    let comment = Dialect { comment: Some(b'#'), ..Dialect::csv() };
    let setup = LoadSetup::new(comment.clone(), 1);
    assert_eq!(rows_in_both_modes(&setup, b"#a\nb\n#\"\n#,,\nc#\n\"#\"\n#"), table("b/c#/#"));
    assert_eq!(rows_in_both_modes(&setup, b"\n"), table("~"));
    let blank = Dialect { skip_blank_lines: true, ..comment };
    let setup = LoadSetup::new(blank, 2);
    assert_eq!(rows_in_both_modes(&setup, b"\n\na,b\n\n#\n\n,\n"), table("a|b/~|~"));
    assert_eq!(rows_in_both_modes(&setup, b"\r\n#\"\r\na,b\r\n\r\n"), table("a|b"));
    let text = Dialect { comment: Some(b'#'), skip_blank_lines: true, ..Dialect::text() };
    let setup = LoadSetup::new(text, 1);
    assert_eq!(rows_in_both_modes(&setup, b"#a\\\nb\n\n\\#c\n"), table("b/#c"));
    let one_empty = LoadSetup::new(Dialect { skip_blank_lines: true, ..Dialect::csv() }, 1);
    assert_eq!(rows_in_both_modes(&one_empty, b"\n\"\"\n\na\n"), table("/a"));
}

#[test]
fn a_long_comment_spans_blocks_and_windows() {
    let setup = LoadSetup::new(Dialect { comment: Some(b'#'), ..Dialect::csv() }, 1);
    let comment = format!("#{}\n", "\",#".repeat(500));
    let input = format!("a\n{comment}b\n{comment}{comment}\"c\n#\"\n{comment}");
    assert_eq!(rows_in_both_modes(&setup, input.as_bytes()), table("a/b/c\n#"));
    for chunk_bytes in [1, 2, 1000, 1600] {
        let setup = LoadSetup { chunk_bytes, ..setup.clone() };
        assert_eq!(setup.rows(input.as_bytes()), table("a/b/c\n#"));
    }
}

#[test]
fn a_trailing_delimiter_ends_each_record() {
    let dialect = Dialect { delimiter: b'|', trailing_delimiter: true, ..Dialect::csv() };
    let setup = LoadSetup::new(dialect, 2);
    let rows = vec![row(&["a", "b"]), row(&["c", "~"]), row(&["~", "~"])];
    assert_eq!(rows_in_both_modes(&setup, b"a|b|\n\"c\"||\n||\n"), rows);
    assert_eq!(
        rows_in_both_modes(&setup, b"a|b|\r\nc|d|"),
        vec![row(&["a", "b"]), row(&["c", "d"])]
    );
    let refusal = |input: &[u8]| setup.rows_before_error(input).1.to_string();
    assert_eq!(refusal(b"a|b|c\n"), "extra data after last expected column");
    assert_eq!(refusal(b"a|b|\"\"\n"), "extra data after last expected column");
    assert_eq!(refusal(b"a|b||\n"), "extra data after last expected column");
    assert_eq!(refusal(b"a|b\n"), "missing delimiter at the end of the record");
    assert_eq!(refusal(b"a\n"), "missing data for column \"c1\"");
    let text = Dialect { delimiter: b'|', trailing_delimiter: true, ..Dialect::text() };
    assert_eq!(
        rows_in_both_modes(&LoadSetup::new(text, 1), b"a\\||\n"),
        vec![vec![Some(b"a|".to_vec())]]
    );
}

#[test]
fn a_table_without_columns_gets_one_row_per_line() {
    assert_eq!(LoadSetup::new(Dialect::csv(), 0).load(b"\n\n").rows.len(), 2);
    let setup = LoadSetup { mode: EncodeMode::Binary, ..LoadSetup::new(Dialect::csv(), 0) };
    assert_eq!(setup.rows(b"\n\n\n"), vec![Row::new(); 3]);
}

/// Returns the names in the header.
fn names(dialect: &Dialect, input: &[u8]) -> Result<Vec<String>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let names_seen = Arc::clone(&seen);
    let options = CutOptions {
        dialect: dialect.clone(),
        header: true,
        chunk_bytes: 10,
        columns: Arc::default(),
        map: Arc::new(move |names| {
            let names = names.expect("the input must have a header").iter();
            let names = names.map(|name| String::from_utf8_lossy(name).into_owned());
            *names_seen.lock().unwrap() = names.collect();
            Ok((1, vec![0]))
        }),
    };
    let reader = Box::new(std::io::Cursor::new(input.to_vec()));
    DelimitedCutter::open("in.csv", reader, options)?;
    Ok(std::mem::take(&mut *seen.lock().unwrap()))
}

#[test]
fn headers_are_records() {
    let csv = Dialect::csv();
    assert_eq!(names(&csv, b"a,\"b,\n\"\"c\",,\"\"\nd\n").unwrap(), ["a", "b,\n\"c", "", ""]);
    assert_eq!(names(&csv, b"\xef\xbb\xbf\"a\"\r\n").unwrap(), ["a"]);
    assert_eq!(names(&csv, b"a").unwrap(), ["a"]);
    assert_eq!(names(&Dialect::text(), b"a\\tb\tc\\").unwrap(), ["a\tb", "c"]);
    let pipes = Dialect { delimiter: b'|', trailing_delimiter: true, ..csv.clone() };
    assert_eq!(names(&pipes, b"a|b|\n1|2|\n").unwrap(), ["a", "b"]);
    let comment = Dialect { comment: Some(b'#'), skip_blank_lines: true, ..csv.clone() };
    assert_eq!(names(&comment, b"#\"x\n\n#\na,b\n").unwrap(), ["a", "b"]);
    assert_eq!(names(&comment, b"#only\n#these").unwrap(), [""; 0]);
    let long = format!("\"{}\",b\r\nc,d\r\n", "x\n".repeat(5000));
    assert_eq!(names(&csv, long.as_bytes()).unwrap()[1], "b");
    let error = names(&csv, b"a,\"b\nc,d\n").unwrap_err();
    assert_eq!(error.to_string(), "unterminated CSV quoted field");
    assert_eq!(error.place().unwrap().line, Some(1));
}

#[test]
fn an_error_of_the_mapping_has_a_place() {
    let options = CutOptions {
        dialect: Dialect::csv(),
        header: true,
        chunk_bytes: 10,
        columns: Arc::default(),
        map: Arc::new(|_| Err(Error::new(crate::ErrorKind::Usage, "no such column"))),
    };
    let reader = Box::new(std::io::Cursor::new(b"a\nb\n".to_vec()));
    let error = DelimitedCutter::open("in.csv", reader, options).err().unwrap();
    assert_eq!(error.place().unwrap().source.as_deref(), Some("in.csv"));
}

fn parse_rows(input: &[u8], complete: bool) -> Vec<Row> {
    parse_records(&Dialect::csv(), Eol::Lf, input, complete, 100)
}

#[test]
fn samples_leave_out_a_record_that_is_cut_off() {
    assert_eq!(parse_rows(b"a,b\n,\"\"\nc", true), table("a|b/~|/c"));
    assert_eq!(parse_rows(b"a,b\n,\"\"\nc", false), table("a|b/~|"));
    assert_eq!(parse_rows(b"a,b\nc,d\n", false), table("a|b/c|d"));
    assert_eq!(parse_rows(b"a,b\n\"c\n", false), table("a|b"));
    assert_eq!(parse_rows(b"a,b\nc\r,d\ne\n", true), table("a|b"));
    assert_eq!(parse_rows(b"", true), Vec::<Row>::new());
    assert_eq!(parse_records(&Dialect::csv(), Eol::Lf, b"a\nb\nc\n", true, 2), table("a/b"));
    assert_eq!(parse_records(&Dialect::csv(), Eol::Lf, b"a\n", true, 0), Vec::<Row>::new());
    let crlf = parse_records(&Dialect::csv(), Eol::CrLf, b"a\r\nb\r", false, 9);
    assert_eq!(crlf, table("a"));
}

#[test]
fn samples_leave_out_comments_and_blank_lines() {
    let dialect = Dialect { comment: Some(b'#'), skip_blank_lines: true, ..Dialect::csv() };
    let input = b"#a\n\nb\n#\"\n\nc\n";
    assert_eq!(parse_records(&dialect, Eol::Lf, input, true, 2), table("b/c"));
}

#[test]
fn samples_span_windows() {
    let input = b"abc,\"d\ne\"\n".repeat(200);
    let rows = parse_rows(&input, true);
    assert_eq!(rows.len(), 100);
    assert!(rows.iter().all(|parsed_row| *parsed_row == row(&["abc", "d\ne"])));
}

#[test]
fn count_fields_counts_in_all_windows() {
    let input = b"abc,\"d,e\"\n".repeat(1000);
    assert_eq!(super::super::count_fields(&Dialect::csv(), Eol::Lf, &input), 2000);
}
