//! Tests of field values: quotes, escapes, NULL, and values that only the server can check.

use super::*;

fn csv(columns: usize) -> LoadSetup {
    LoadSetup::new(Dialect::csv(), columns)
}

fn text(columns: usize) -> LoadSetup {
    LoadSetup::new(Dialect::text(), columns)
}

/// Returns the rows, after checking that both modes give the same.
fn rows_in_both_modes(setup: &LoadSetup, input: &[u8]) -> Vec<Row> {
    let rows = setup.rows(input);
    let binary = LoadSetup { mode: EncodeMode::Binary, ..setup.clone() }.rows(input);
    assert_eq!(binary, rows, "{}", input.escape_ascii());
    rows
}

#[test]
fn quotes_may_stand_anywhere_in_a_field() {
    assert_eq!(rows_in_both_modes(&csv(3), b"\"a\",b\"c,\"d,\"\"\"\"\n"), table("a|bc,d|\""));
    assert_eq!(rows_in_both_modes(&csv(2), b"a\"\",\"\"b\n"), table("a|b"));
    assert_eq!(rows_in_both_modes(&csv(2), b"\"a\"\"b\"\"\",\"\"\"\"\"\"\n"), table("a\"b\"|\"\""));
    assert_eq!(rows_in_both_modes(&csv(1), b"\" a \"\n a \n"), table(" a / a "));
    let without = LoadSetup::new(Dialect { quote: None, ..Dialect::csv() }, 2);
    assert_eq!(rows_in_both_modes(&without, b"\"a,b\"\n"), table("\"a|b\""));
}

#[test]
fn an_escape_counts_only_within_quotes_before_a_quote_or_escape() {
    let setup = LoadSetup::new(Dialect { escape: b'\\', ..Dialect::csv() }, 1);
    let input = b"\"a\\\"b\"\n\"a\\\\\"\n\"a\\b\"\na\\b\na\\\\b\n\"a\"\"b\"\n\\\"a\"\n";
    let rows = [&b"a\"b"[..], b"a\\", b"a\\b", b"a\\b", b"a\\\\b", b"ab", b"\\a"];
    let rows: Vec<Row> = rows.into_iter().map(|value| vec![Some(value.to_vec())]).collect();
    assert_eq!(rows_in_both_modes(&setup, input), rows);
    let delimiter = LoadSetup::new(Dialect { escape: b',', ..Dialect::csv() }, 2);
    assert_eq!(rows_in_both_modes(&delimiter, b"\"a,\"b\",\"c\"\n"), vec![row(&["a\"b", "c"])]);
}

#[test]
fn null_is_the_unquoted_null_string() {
    assert_eq!(rows_in_both_modes(&csv(3), b",\"\",a\n"), table("~||a"));
    let na = LoadSetup::new(Dialect { null: b"NA".to_vec(), ..Dialect::csv() }, 4);
    assert_eq!(rows_in_both_modes(&na, b"NA,\"NA\",,N\"A\"\n"), table("~|NA||NA"));
    assert_eq!(rows_in_both_modes(&text(4), b"\\N\t\\\\N\t\tN\n"), table("~|\\N||N"));
    let empty = LoadSetup::new(Dialect { null: Vec::new(), ..Dialect::text() }, 2);
    assert_eq!(rows_in_both_modes(&empty, b"\t\\N\n"), table("~|N"));
    let odd = LoadSetup::new(Dialect { null: b"\\b".to_vec(), ..Dialect::text() }, 2);
    assert_eq!(rows_in_both_modes(&odd, b"\\b\t\\\\b\n"), table("~|\\b"));
}

#[test]
fn force_null_and_force_not_null_apply_to_their_columns() {
    let mut setup = LoadSetup::new(Dialect { null: b"NA".to_vec(), ..Dialect::csv() }, 4);
    setup.columns[0].force_null = true;
    setup.columns[1].force_not_null = true;
    (setup.columns[2].force_null, setup.columns[2].force_not_null) = (true, true);
    assert_eq!(rows_in_both_modes(&setup, b"\"NA\",\"NA\",\"NA\",\"NA\"\n"), table("~|NA|~|NA"));
    assert_eq!(rows_in_both_modes(&setup, b"NA,NA,NA,NA\n"), table("~|NA|NA|~"));
    assert_eq!(rows_in_both_modes(&setup, b"\"N\"A,a,\"N\"\"A\",b\n"), table("~|a|N\"A|b"));
}

#[test]
fn backslash_escapes_of_copy_text() {
    let input = b"\\b\\f\\n\\r\\t\\v\\\\\\q\\|\ta\\\tb\n";
    let rows = vec![vec![Some(b"\x08\x0c\n\r\t\x0b\\q|".to_vec()), Some(b"a\tb".to_vec())]];
    assert_eq!(rows_in_both_modes(&text(2), input), rows);
    assert_eq!(rows_in_both_modes(&text(1), b"a\\\nb\\\\\nc\n"), table("a\nb\\/c"));
    assert_eq!(
        rows_in_both_modes(&text(1), b"\\101\\x41\\x4g\\1012\\x412\\7\\18\\8\\x\\xg\n"),
        table("AA\x04gA2A2\x07\x0188xxg")
    );
}

#[test]
fn a_backslash_before_the_end_of_the_input_is_dropped() {
    assert_eq!(rows_in_both_modes(&text(1), b"a\\"), table("a"));
    assert_eq!(rows_in_both_modes(&text(1), b"\\N\\"), table("~"));
    assert_eq!(rows_in_both_modes(&text(1), b"a\\\\"), table("a\\"));
    assert_eq!(rows_in_both_modes(&text(2), b"a\tb\\\\\\"), table("a|b\\"));
    let comma = LoadSetup::new(Dialect { delimiter: b',', ..Dialect::text() }, 2);
    assert_eq!(rows_in_both_modes(&comma, b"a,b\\"), table("a|b"));
}

/// Returns the number of binary rows, and the text of the rows that are left to the server.
fn binary_count_and_text(setup: &LoadSetup, input: &[u8]) -> (u64, Vec<u8>) {
    let mut encoder =
        DelimitedEncoder::new(setup.dialect.clone(), setup.columns.clone(), setup.server_version);
    let chunk = setup.chunks(input).unwrap().remove(0);
    let mut out = Encoded::default();
    encoder.begin(Arc::new(chunk), EncodeMode::Binary).unwrap();
    while encoder.fill(&mut out, 1).unwrap() {}
    (out.binary_rows, out.text)
}

#[test]
fn values_that_only_the_server_can_check_are_sent_as_text() {
    // Numeric escapes above 127 are bytes in the server's encoding.
    assert_eq!(binary_count_and_text(&text(1), b"\\303\\xa9\n"), (0, b"\\303\\xa9\n".to_vec()));
    let comma = LoadSetup::new(Dialect { delimiter: b',', ..Dialect::text() }, 2);
    assert_eq!(
        binary_count_and_text(&comma, b"\\303\\xa99,a\n"),
        (0, b"\\303\\2519\ta\n".to_vec())
    );
    assert_eq!(binary_count_and_text(&comma, b"\\0,a\n"), (0, b"\\000\ta\n".to_vec()));
    assert_eq!(binary_count_and_text(&text(1), b"\\177\\x7f\n").0, 1);
    // Only a quote or a backslash separates the two halves of a character.
    assert_eq!(binary_count_and_text(&csv(1), b"\xc3\"\xa9\"\n"), (0, b"\xc3\\\xa9\n".to_vec()));
    assert_eq!(binary_count_and_text(&csv(1), b"\"\xc3\"\"\"\"\xa9\"\n").0, 1);
    assert_eq!(binary_count_and_text(&comma, b"\xc3\\\xa9,a\n"), (0, b"\xc3\\\xa9\ta\n".to_vec()));
    assert_eq!(binary_count_and_text(&csv(1), "é\"é\"\n".as_bytes()), (0, "é\\é\n".into()));
    assert_eq!(binary_count_and_text(&csv(1), "\"é\"\"é\"\"\"\"é\"\n".as_bytes()).0, 1);
    // Bytes that are invalid in both forms are encoded as usual; the server rejects them.
    assert_eq!(binary_count_and_text(&csv(1), b"\xc3\n\xa9\n").0, 2);
}

#[test]
fn text_for_the_server_is_escaped() {
    let pipe = LoadSetup::new(Dialect { delimiter: b'|', ..Dialect::csv() }, 3);
    assert_eq!(
        rows_in_both_modes(&pipe, b"a\tb|\\N|\"c\r\n\\\"\n"),
        vec![row(&["a\tb", "\\N", "c\r\n\\"])]
    );
    let tab = LoadSetup::new(Dialect { delimiter: b'\t', ..Dialect::csv() }, 3);
    assert_eq!(rows_in_both_modes(&tab, b"a\\\t\"b\tc\"\t\n"), vec![row(&["a\\", "b\tc", "~"])]);
    let pipe = LoadSetup::new(Dialect { delimiter: b'|', ..Dialect::text() }, 3);
    assert_eq!(rows_in_both_modes(&pipe, b"a\tb|\\||\\\\N\n"), vec![row(&["a\tb", "|", "\\N"])]);
}

#[test]
fn fields_go_to_the_columns_that_field_of_names() {
    let mut setup = csv(3);
    setup.field_of = vec![2, 0, 1];
    assert_eq!(rows_in_both_modes(&setup, b"a,\"b\",c\n,d,\n"), table("c|a|b/~|~|d"));
    let mut setup = text(2);
    setup.field_of = vec![1, 0];
    let rows = vec![row(&["b\n", "a"]), row(&["\\", "~"])];
    assert_eq!(rows_in_both_modes(&setup, b"a\tb\\\n\n\\N\t\\\\\n"), rows);
}

#[test]
fn a_row_is_text_if_a_column_has_no_encoder() {
    let mut setup = csv(2);
    setup.columns[1].encoder = None;
    assert_eq!(
        binary_count_and_text(&setup, b"a,b\n,\"c\t\"\n"),
        (0, b"a\tb\n\\N\tc\\t\n".to_vec())
    );
    assert_eq!(rows_in_both_modes(&setup, b"a,b\n,\n"), table("a|b/~|~"));
}
