//! Tests of the place of a row: its line and byte in the input.

use super::*;

/// Returns the line and byte of each row, after checking that all chunk sizes give the same.
fn places(setup: &LoadSetup, input: &[u8]) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    for chunk_bytes in [1 << 20, 1, 4] {
        let setup = LoadSetup { chunk_bytes, ..setup.clone() };
        let mut encoder = DelimitedEncoder::new(
            setup.dialect.clone(),
            setup.columns.clone(),
            setup.server_version,
        );
        let mut chunk_places = Vec::new();
        for chunk in setup.chunks(input).unwrap() {
            let chunk = Arc::new(chunk);
            let mut out = Encoded::default();
            encoder.begin(Arc::clone(&chunk), EncodeMode::Text).unwrap();
            while encoder.fill(&mut out, 1 << 20).unwrap() {}
            for row in out.text_rows {
                let place = encoder.place(&chunk, row);
                chunk_places.push((place.line.unwrap(), place.byte.unwrap()));
            }
        }
        if chunk_bytes == 1 << 20 {
            found = chunk_places;
        } else {
            assert_eq!(chunk_places, found);
        }
    }
    found
}

#[test]
fn lines_are_counted_as_an_editor_does() {
    let csv = LoadSetup::new(Dialect::csv(), 1);
    assert_eq!(places(&csv, b"a\n\"b\n\nc\"\nd\n"), [(1, 0), (2, 2), (5, 9)]);
    assert_eq!(places(&csv, b"a\r\n\"b\r\n\"\r\nd"), [(1, 0), (2, 3), (4, 10)]);
    assert_eq!(places(&csv, b"a\r\"b\r\"\rd\r"), [(1, 0), (2, 2), (4, 7)]);
    let text = LoadSetup::new(Dialect::text(), 1);
    assert_eq!(places(&text, b"a\\\nb\nc\n\\.\n"), [(1, 0), (3, 5)]);
}

#[test]
fn byte_order_mark_header_comments_and_blank_lines_count() {
    let dialect = Dialect { comment: Some(b'#'), skip_blank_lines: true, ..Dialect::csv() };
    let setup = LoadSetup { header: true, ..LoadSetup::new(dialect, 1) };
    let input = b"\xef\xbb\xbf#\n\n\"h\n\"\n#\"\n\na\n\nb\n";
    assert_eq!(places(&setup, input), [(7, 15), (9, 18)]);
    let crlf = b"#\r\nh\r\n\r\na\r\n#b\nc\r\n\"b\r\n\"\r\n";
    assert_eq!(places(&setup, crlf), [(4, 8), (7, 17)]);
}

#[test]
fn the_place_of_a_late_row_in_a_chunk_is_right() {
    let setup = LoadSetup::new(Dialect::csv(), 2);
    let input = b"abcdef,\"x\ny\"\n".repeat(500);
    let found = places(&setup, &input);
    assert_eq!(found.len(), 500);
    assert_eq!(found[499], (2 * 499 + 1, 13 * 499));
}

#[test]
fn a_place_has_no_row_and_no_source() {
    let setup = LoadSetup::new(Dialect::csv(), 2);
    let place = setup.rows_before_error(b"a,b\nc\n").1.place().cloned().unwrap();
    assert_eq!((place.line, place.byte, place.row, place.source), (Some(2), Some(4), None, None));
}
