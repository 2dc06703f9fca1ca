//! Rejected input: the server's messages, and the rows before the error.

use super::*;
use crate::ErrorKind;
use crate::format::sniff::UnseenMarks;

fn csv(columns: usize) -> LoadSetup {
    LoadSetup::new(Dialect::csv(), columns)
}

fn text(columns: usize) -> LoadSetup {
    LoadSetup::new(Dialect::text(), columns)
}

/// Returns the number of rows before the error, the error's message, and the error's line. Checks
/// that both modes give the same.
fn rows_error_and_line(setup: &LoadSetup, input: &[u8]) -> (usize, String, u64) {
    let refusal_in_mode = |mode| {
        let (rows, error) = LoadSetup { mode, ..setup.clone() }.rows_before_error(input);
        assert_eq!(error.kind(), ErrorKind::Format);
        assert_eq!(error.sqlstate().map(|code| code.code()), Some("22P04"), "{error}");
        let line = error.place().and_then(|place| place.line).unwrap();
        (rows, error.to_string(), line)
    };
    let text = refusal_in_mode(EncodeMode::Text);
    assert_eq!(refusal_in_mode(EncodeMode::Binary), text);
    text
}

fn hint(setup: &LoadSetup, input: &[u8]) -> String {
    setup.rows_before_error(input).1.hint_text().unwrap().to_owned()
}

#[test]
fn all_lines_must_end_like_the_first() {
    let cases: [(&[u8], &str); 6] = [
        (b"a\nb\rc\n", "unquoted carriage return found in data"),
        (b"a\nb\r\n", "unquoted carriage return found in data"),
        (b"a\rb\nc\r", "unquoted newline found in data"),
        (b"a\rb\r\nc\r", "unquoted newline found in data"),
        (b"a\r\nb\nc\r\n", "unquoted newline found in data"),
        (b"a\r\nb\rc\r\n", "unquoted carriage return found in data"),
    ];
    for (input, message) in cases {
        let rows = if input == b"a\rb\r\nc\r" { 2 } else { 1 };
        let (found, said, _) = rows_error_and_line(&csv(1), input);
        assert_eq!((found, said.as_str()), (rows, message), "{}", input.escape_ascii());
        let (_, said, _) = rows_error_and_line(&text(1), input);
        assert_eq!(said, message.replace("unquoted", "literal"), "{}", input.escape_ascii());
    }
    assert_eq!(
        hint(&csv(1), b"a\nb\r\n"),
        "The first line ends with a newline, so all lines must end like this. If no value has line \
         ends, `tr -d '\\r'` makes all of them newlines."
    );
    assert!(hint(&csv(1), b"a\r\nb\n").contains("a carriage return and a newline,"));
    assert_eq!(csv(1).rows(b"a\n\"b\r\"\n\"\r\n\"\n").len(), 3);
}

#[test]
fn an_unterminated_quote_is_an_error() {
    let message = "unterminated CSV quoted field".to_owned();
    assert_eq!(rows_error_and_line(&csv(2), b"a,b\nc,\"d\ne,f\n"), (1, message.clone(), 2));
    assert_eq!(rows_error_and_line(&csv(2), b"a,b\n\"\n\",\"\n\n"), (1, message.clone(), 2));
    assert_eq!(rows_error_and_line(&csv(1), b"\""), (0, message, 1));
}

#[test]
fn too_few_and_too_many_fields_are_errors() {
    let missing = |name: &str| format!("missing data for column \"{name}\"");
    let extra = "extra data after last expected column".to_owned();
    assert_eq!(rows_error_and_line(&csv(3), b"a,b,c\nd\n"), (1, missing("c1"), 2));
    assert_eq!(rows_error_and_line(&csv(3), b"a,b,c\n\"d\n\",e\n"), (1, missing("c2"), 2));
    assert_eq!(rows_error_and_line(&csv(3), b"a,b,c\nd,e,f,\n"), (1, extra.clone(), 2));
    assert_eq!(rows_error_and_line(&text(2), b"a\tb\n\n"), (1, missing("c1"), 2));
    assert_eq!(rows_error_and_line(&text(1), b"a\nb\tc\n"), (1, extra.clone(), 2));
    assert_eq!(hint(&csv(3), b"d\n"), "Expected 3 fields, found 1.");
    assert_eq!(hint(&csv(1), b"d,e\n"), "Expected 1 field, found 2.");
    // The message names the column whose field is missing.
    let mut reordered = csv(3);
    reordered.field_of = vec![2, 0, 1];
    assert_eq!(rows_error_and_line(&reordered, b"a,b\n"), (0, missing("c0"), 1));
    assert_eq!(rows_error_and_line(&csv(0), b"\n\na\n"), (2, extra, 3));
}

#[test]
fn far_too_many_fields_are_an_error() {
    let many = [b"a\n".to_vec(), b",".repeat(100_000), b"\n".to_vec()].concat();
    let extra = "extra data after last expected column".to_owned();
    assert_eq!(rows_error_and_line(&csv(1), &many), (1, extra, 2));
}

#[test]
fn a_record_over_the_limit_is_an_error() {
    let long = [b"a\n\"b\n\"\n".to_vec(), b"c".repeat(200_000), b"\nd\n".to_vec()].concat();
    let message = "record is longer than 1 GiB, the limit of PostgreSQL".to_owned();
    assert_eq!(rows_error_and_line(&csv(1), &long), (2, message.clone(), 4));
    // The cutter stops reading a record that never ends.
    let endless = |start: &[u8]| {
        let setup = LoadSetup { chunk_bytes: 10, ..csv(1) };
        let reader = Box::new(std::io::Cursor::new(start.to_vec()).chain(std::io::repeat(b'c')));
        let options = CutOptions {
            dialect: setup.dialect.clone(),
            header: false,
            chunk_bytes: 10,
            columns: Arc::default(),
            map: Arc::new(|_| Ok((1, vec![0]))),
        };
        let mut cutter = DelimitedCutter::open("in.csv", reader, options)?;
        while cutter.next()?.is_some() {}
        Ok::<_, Error>(())
    };
    for (start, line) in
        [(&b"a\nb\nc\n\"d\n\n"[..], 4), (b"a\n\"\n\"\n\"", 4), (b"\"\n\n", 1), (b"", 1)]
    {
        let error = endless(start).unwrap_err();
        assert_eq!(error.to_string(), message);
        assert_eq!(error.place().unwrap().line, Some(line), "{}", start.escape_ascii());
        assert!(error.hint_text().unwrap().contains("--quote"));
    }
}

#[test]
fn end_markers_of_copy_text() {
    for input in [&b"a\nb\n\\.\n"[..], b"a\r\nb\r\n\\.\r\n", b"a\rb\r\\.\r"] {
        assert_eq!(text(1).rows(input), table("a/b"), "{}", input.escape_ascii());
    }
    assert_eq!(text(1).rows(b"\\.\n"), Vec::<Row>::new());
    let follows = "data follows the end-of-copy marker".to_owned();
    assert_eq!(rows_error_and_line(&text(1), b"a\n\\.\nb\n"), (1, follows.clone(), 2));
    assert_eq!(rows_error_and_line(&text(1), b"a\n\\.\n\n"), (1, follows, 2));
    let not_alone = "end-of-copy marker is not alone on its line".to_owned();
    for input in [&b"a\n\\."[..], b"a\n\\.b\n", b"a\nb\\.\n", b"a\nb\t\\.\n", b"a\r\n\\.\rb\r\n"] {
        assert_eq!(
            rows_error_and_line(&text(1), input),
            (1, not_alone.clone(), 2),
            "{}",
            input.escape_ascii()
        );
    }
    let mismatch = "end-of-copy marker does not match previous newline style".to_owned();
    for input in [&b"a\n\\.\r\n"[..], b"a\r\n\\.\n", b"a\r\\.\nb"] {
        assert_eq!(
            rows_error_and_line(&text(1), input),
            (1, mismatch.clone(), 2),
            "{}",
            input.escape_ascii()
        );
    }
    assert_eq!(text(1).rows(b"\\\\.\n"), vec![row(&["\\."])]);
}

#[test]
fn an_end_marker_ends_csv_data_before_version_18() {
    let old = |columns| LoadSetup { server_version: 170_004, ..csv(columns) };
    assert_eq!(old(1).rows(b"a\n\\.\n"), table("a"));
    assert_eq!(csv(1).rows(b"a\n\\.\n"), table("a/\\."));
    assert_eq!(old(2).rows(b"a,b\n\\.\n"), table("a|b"));
    assert_eq!(rows_error_and_line(&csv(2), b"a,b\n\\.\n").1, "missing data for column \"c1\"");
    assert_eq!(
        rows_error_and_line(&old(1), b"a\n\\.\nb\n").1,
        "data follows the end-of-copy marker"
    );
    for input in [&b"a\n\"\\.\"\n"[..], b"a\n\\.", b"\"a\n\\.\n\"\n"] {
        assert_eq!(old(1).rows(input), csv(1).rows(input), "{}", input.escape_ascii());
    }
    let dotted = LoadSetup {
        server_version: 170_004,
        ..LoadSetup::new(Dialect { delimiter: b'.', ..Dialect::csv() }, 2)
    };
    assert_eq!(dotted.rows(b"a.b\n\\.\n"), table("a|b"));
}

#[test]
fn the_server_decides_which_of_two_errors_is_reported() {
    // The server checks the encoding before it counts the fields.
    for input in [&b"a,b\n\xff\n"[..], b"a,b\n\xff,c,d\n"] {
        let (rows, error) =
            LoadSetup { mode: EncodeMode::Binary, ..csv(2) }.rows_before_error(input);
        assert_eq!((rows, error.sqlstate().unwrap().code()), (1, "22P04"));
        assert_eq!(csv(2).rows(input).len(), 2, "{}", input.escape_ascii());
    }
    // The server reads all present fields before it reports a missing one.
    let mut numbers = csv(2);
    let ty = PgType { oid: 23, name: "integer".into(), typmod: -1, kind: TypeKind::Base };
    numbers.columns[0].encoder = Some(FieldEncoder::new(&ty, &session_settings()).unwrap());
    assert_eq!(numbers.rows(b"x\n"), table("x"));
    assert_eq!(rows_error_and_line(&numbers, b"1\n").1, "missing data for column \"c1\"");
    assert_eq!(
        rows_error_and_line(&numbers, b"x,y,z\n").1,
        "extra data after last expected column"
    );
}

#[test]
fn an_encoder_can_begin_again_after_an_error() {
    let setup = csv(1);
    let mut encoder = DelimitedEncoder::new(setup.dialect.clone(), setup.columns.clone(), 180_000);
    let chunk = Arc::new(setup.chunks(b"a\nb,c\nd\n").unwrap().remove(0));
    let mut out = Encoded::default();
    for _ in 0..2 {
        encoder.begin(Arc::clone(&chunk), EncodeMode::Text).unwrap();
        let error = encoder.fill(&mut out, 1 << 20).unwrap_err();
        assert_eq!(error.place().unwrap().line, Some(2));
    }
    assert_eq!(out.text, b"a\na\n");
    let good = Arc::new(setup.chunks(b"e\n").unwrap().remove(0));
    encoder.begin(good, EncodeMode::Text).unwrap();
    assert!(!encoder.fill(&mut out, 1 << 20).unwrap());
    assert_eq!((&out.text[..], &out.text_rows[..]), (&b"a\na\ne\n"[..], &[0, 0, 0][..]));
}

#[test]
fn ambiguous_dialects_are_rejected() {
    let csv = Dialect::csv();
    let text = Dialect::text();
    for dialect in [
        Dialect { delimiter: b'"', ..csv.clone() },
        Dialect { delimiter: b'\n', ..csv.clone() },
        Dialect { quote: Some(b'\r'), ..csv.clone() },
        Dialect { escape: b'\n', ..csv.clone() },
        Dialect { quote: Some(0), ..csv.clone() },
        Dialect { null: b"a,b".to_vec(), ..csv.clone() },
        Dialect { null: b"\"".to_vec(), ..csv.clone() },
        Dialect { null: b"\n".to_vec(), ..csv.clone() },
        Dialect { comment: Some(b','), ..csv.clone() },
        Dialect { comment: Some(b'"'), ..csv.clone() },
        Dialect { comment: Some(b'\n'), ..csv.clone() },
        Dialect { delimiter: b'n', ..text.clone() },
        Dialect { delimiter: b'\\', ..text.clone() },
        Dialect { delimiter: b'N', ..text.clone() },
    ] {
        assert_eq!(dialect.check().unwrap_err().kind(), ErrorKind::Usage, "{dialect:?}");
        let setup = LoadSetup::new(dialect, 1);
        assert_eq!(setup.rows_before_error(b"a\n").1.kind(), ErrorKind::Usage);
    }
    csv.check().unwrap();
    text.check().unwrap();
    Dialect { quote: None, escape: b'\n', ..csv }.check().unwrap();
}

/// Such quotes would be left out of the values, or join rows.
#[test]
fn a_quote_without_the_guessed_escape_is_refused() {
    let dialect = Dialect { escape: b'\\', ..Dialect::csv() };
    let setup = LoadSetup::new(dialect.clone(), 2);
    let first_error = |input: &[u8]| {
        let encoder = DelimitedEncoder::new(dialect.clone(), setup.columns.clone(), 180_000);
        let unseen = UnseenMarks { unescaped_quote: true, ..UnseenMarks::default() };
        let (mut encoder, mut out) = (encoder.refusing(unseen), Encoded::default());
        for chunk in setup.chunks(input).unwrap() {
            encoder.begin(Arc::new(chunk), EncodeMode::Binary).unwrap();
            if let Err(error) = encoder.fill(&mut out, usize::MAX) {
                return Some(error);
            }
        }
        None
    };
    assert!(first_error(b"1,\"say \\\"hi\\\"\"\n2,\"\"\n3,x\n").is_none());
    for late in [&b"2,\"a \"\"q\"\" b\"\n"[..], b"2,5\" disk\"\n", b"2,\"a\"b\n"] {
        let error = first_error(&[b"1,\"say \\\"hi\\\"\"\n", late].concat()).unwrap();
        let expected =
            "a quote (\") is within a field without the escape (\\) of the first records";
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.place().and_then(|place| place.line), Some(2));
        assert!(error.hint_text().unwrap().contains("`--escape '\"'`"));
    }
}
