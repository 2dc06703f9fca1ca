//! Fields to values: quotes, escapes, NULL, and what only the server can tell.

use super::*;

fn csv(columns: usize) -> Setup {
    Setup::new(Dialect::csv(), columns)
}

fn text(columns: usize) -> Setup {
    Setup::new(Dialect::text(), columns)
}

/// The rows, which must be the same in both modes.
fn both(setup: &Setup, input: &[u8]) -> Vec<Row> {
    let rows = setup.rows(input);
    let binary = Setup { mode: Mode::Binary, ..setup.clone() }.rows(input);
    assert_eq!(binary, rows, "{}", input.escape_ascii());
    rows
}

#[test]
fn quotes_may_stand_anywhere() {
    assert_eq!(both(&csv(3), b"\"a\",b\"c,\"d,\"\"\"\"\n"), table("a|bc,d|\""));
    assert_eq!(both(&csv(2), b"a\"\",\"\"b\n"), table("a|b"));
    assert_eq!(both(&csv(2), b"\"a\"\"b\"\"\",\"\"\"\"\"\"\n"), table("a\"b\"|\"\""));
    assert_eq!(both(&csv(1), b"\" a \"\n a \n"), table(" a / a "));
    let without = Setup::new(Dialect { quote: None, ..Dialect::csv() }, 2);
    assert_eq!(both(&without, b"\"a,b\"\n"), table("\"a|b\""));
}

#[test]
fn an_escape_counts_within_quotes_and_before_quote_or_escape() {
    let setup = Setup::new(Dialect { escape: b'\\', ..Dialect::csv() }, 1);
    let input = b"\"a\\\"b\"\n\"a\\\\\"\n\"a\\b\"\na\\b\na\\\\b\n\"a\"\"b\"\n\\\"a\"\n";
    let rows = [&b"a\"b"[..], b"a\\", b"a\\b", b"a\\b", b"a\\\\b", b"ab", b"\\a"];
    let rows: Vec<Row> = rows.into_iter().map(|value| vec![Some(value.to_vec())]).collect();
    assert_eq!(both(&setup, input), rows);
    let delimiter = Setup::new(Dialect { escape: b',', ..Dialect::csv() }, 2);
    assert_eq!(both(&delimiter, b"\"a,\"b\",\"c\"\n"), vec![row(&["a\"b", "c"])]);
}

#[test]
fn null_is_an_unquoted_spelling() {
    assert_eq!(both(&csv(3), b",\"\",a\n"), table("~||a"));
    let na = Setup::new(Dialect { null: b"NA".to_vec(), ..Dialect::csv() }, 4);
    assert_eq!(both(&na, b"NA,\"NA\",,N\"A\"\n"), table("~|NA||NA"));
    assert_eq!(both(&text(4), b"\\N\t\\\\N\t\tN\n"), table("~|\\N||N"));
    let empty = Setup::new(Dialect { null: Vec::new(), ..Dialect::text() }, 2);
    assert_eq!(both(&empty, b"\t\\N\n"), table("~|N"));
    let odd = Setup::new(Dialect { null: b"\\b".to_vec(), ..Dialect::text() }, 2);
    assert_eq!(both(&odd, b"\\b\t\\\\b\n"), table("~|\\b"));
}

#[test]
fn columns_may_force_null_or_not_null() {
    let mut setup = Setup::new(Dialect { null: b"NA".to_vec(), ..Dialect::csv() }, 4);
    setup.columns[0].force_null = true;
    setup.columns[1].force_not_null = true;
    (setup.columns[2].force_null, setup.columns[2].force_not_null) = (true, true);
    assert_eq!(both(&setup, b"\"NA\",\"NA\",\"NA\",\"NA\"\n"), table("~|NA|~|NA"));
    assert_eq!(both(&setup, b"NA,NA,NA,NA\n"), table("~|NA|NA|~"));
    assert_eq!(both(&setup, b"\"N\"A,a,\"N\"\"A\",b\n"), table("~|a|N\"A|b"));
}

#[test]
fn backslashes_of_copy_text() {
    let input = b"\\b\\f\\n\\r\\t\\v\\\\\\q\\|\ta\\\tb\n";
    let rows = vec![vec![Some(b"\x08\x0c\n\r\t\x0b\\q|".to_vec()), Some(b"a\tb".to_vec())]];
    assert_eq!(both(&text(2), input), rows);
    assert_eq!(both(&text(1), b"a\\\nb\\\\\nc\n"), table("a\nb\\/c"));
    assert_eq!(
        both(&text(1), b"\\101\\x41\\x4g\\1012\\x412\\7\\18\\8\\x\\xg\n"),
        table("AA\x04gA2A2\x07\x0188xxg")
    );
}

#[test]
fn a_backslash_before_the_end_of_the_input_is_dropped() {
    assert_eq!(both(&text(1), b"a\\"), table("a"));
    assert_eq!(both(&text(1), b"\\N\\"), table("~"));
    assert_eq!(both(&text(1), b"a\\\\"), table("a\\"));
    assert_eq!(both(&text(2), b"a\tb\\\\\\"), table("a|b\\"));
    let comma = Setup::new(Dialect { delimiter: b',', ..Dialect::text() }, 2);
    assert_eq!(both(&comma, b"a,b\\"), table("a|b"));
}

/// The row as sent: how many in binary, and the text of those left to the server.
fn sent(setup: &Setup, input: &[u8]) -> (u64, Vec<u8>) {
    let mut encoder =
        DelimitedEncoder::new(setup.dialect.clone(), setup.columns.clone(), setup.version);
    let chunk = setup.chunks(input).unwrap().remove(0);
    let mut out = Encoded::default();
    encoder.begin(Arc::new(chunk), Mode::Binary).unwrap();
    while encoder.fill(&mut out, 1).unwrap() {}
    (out.binary_rows, out.text)
}

#[test]
fn bytes_in_doubt_reach_the_server_as_they_stand() {
    // Numbers above 127 are in the server's encoding.
    assert_eq!(sent(&text(1), b"\\303\\xa9\n"), (0, b"\\303\\xa9\n".to_vec()));
    let comma = Setup::new(Dialect { delimiter: b',', ..Dialect::text() }, 2);
    assert_eq!(sent(&comma, b"\\303\\xa99,a\n"), (0, b"\\303\\2519\ta\n".to_vec()));
    assert_eq!(sent(&comma, b"\\0,a\n"), (0, b"\\000\ta\n".to_vec()));
    assert_eq!(sent(&text(1), b"\\177\\x7f\n").0, 1);
    // Halves of a character that only a quote or a backslash keeps apart.
    assert_eq!(sent(&csv(1), b"\xc3\"\xa9\"\n"), (0, b"\xc3\\\xa9\n".to_vec()));
    assert_eq!(sent(&csv(1), b"\"\xc3\"\"\"\"\xa9\"\n").0, 1);
    assert_eq!(sent(&comma, b"\xc3\\\xa9,a\n"), (0, b"\xc3\\\xa9\ta\n".to_vec()));
    assert_eq!(sent(&csv(1), "é\"é\"\n".as_bytes()), (0, "é\\é\n".into()));
    assert_eq!(sent(&csv(1), "\"é\"\"é\"\"\"\"é\"\n".as_bytes()).0, 1);
    // Nor is what is wrong in either form.
    assert_eq!(sent(&csv(1), b"\xc3\n\xa9\n").0, 2);
}

#[test]
fn text_for_the_server_is_escaped() {
    let pipe = Setup::new(Dialect { delimiter: b'|', ..Dialect::csv() }, 3);
    assert_eq!(both(&pipe, b"a\tb|\\N|\"c\r\n\\\"\n"), vec![row(&["a\tb", "\\N", "c\r\n\\"])]);
    let tab = Setup::new(Dialect { delimiter: b'\t', ..Dialect::csv() }, 3);
    assert_eq!(both(&tab, b"a\\\t\"b\tc\"\t\n"), vec![row(&["a\\", "b\tc", "~"])]);
    let pipe = Setup::new(Dialect { delimiter: b'|', ..Dialect::text() }, 3);
    assert_eq!(both(&pipe, b"a\tb|\\||\\\\N\n"), vec![row(&["a\tb", "|", "\\N"])]);
}

#[test]
fn fields_go_to_the_columns_that_the_header_gives_them() {
    let mut setup = csv(3);
    setup.field_of = vec![2, 0, 1];
    assert_eq!(both(&setup, b"a,\"b\",c\n,d,\n"), table("c|a|b/~|~|d"));
    let mut setup = text(2);
    setup.field_of = vec![1, 0];
    let rows = vec![row(&["b\n", "a"]), row(&["\\", "~"])];
    assert_eq!(both(&setup, b"a\tb\\\n\n\\N\t\\\\\n"), rows);
}

#[test]
fn a_column_without_an_encoder_makes_the_row_text() {
    let mut setup = csv(2);
    setup.columns[1].encoder = None;
    assert_eq!(sent(&setup, b"a,b\n,\"c\t\"\n"), (0, b"a\tb\n\\N\tc\\t\n".to_vec()));
    assert_eq!(both(&setup, b"a,b\n,\n"), table("a|b/~|~"));
}
