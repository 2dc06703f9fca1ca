//! Rows and errors must not depend on the sizes of chunks, reads and encoded pieces.

use super::*;
use crate::format::ChunkData;

fn bytes(chunk: &Chunk) -> &[u8] {
    match &chunk.data {
        ChunkData::Delimited(bytes, _) => bytes,
        _ => panic!("the chunk must be delimited"),
    }
}

/// Returns setups and inputs with all special cases in which a chunk can end.
fn edge_cases() -> Vec<(LoadSetup, Vec<u8>)> {
    let backslash = Dialect { escape: b'\\', ..Dialect::csv() };
    let comment = Dialect { comment: Some(b'#'), skip_blank_lines: true, ..Dialect::csv() };
    let trailing = Dialect { delimiter: b'|', trailing_delimiter: true, ..Dialect::csv() };
    let long = format!("a,\"{}\"\nb,\"{}\"\"\"\n", "x\n".repeat(90), "\"\"\n".repeat(60));
    let cases: Vec<(Dialect, usize, &[u8])> = vec![
        (Dialect::csv(), 2, b"a,b\n\"c\n\nd\",\"\"\"\n\"\"\"\ne,\"f\"\"\"\n\"\",\n,g"),
        (Dialect::csv(), 2, b"a,b\r\n\"c\r\n\",\"\r\"\r\n\"\n\",\"\"\r\nd,e\r\n"),
        (Dialect::csv(), 2, b"a,b\r\"c\r\",\"\n\"\rd,e"),
        (Dialect::csv(), 2, b"a,b\rc,d\r\ne,f\r"),
        (Dialect::csv(), 2, b"a,b\r\nc,d\ne,f\r\n"),
        (Dialect::csv(), 2, b"a,b\nc,d\r\ne,f\n"),
        (Dialect::csv(), 2, b"a,b\nc,d\n\"e,f\ng,h\n"),
        (Dialect::csv(), 2, b"a,b\nc\n\xff,\xfe\nd,e,f\n"),
        (Dialect::csv(), 1, b"\n\na\n\n\"\n\"\n"),
        (Dialect::csv(), 2, long.as_bytes()),
        (backslash.clone(), 2, b"\"a\\\"\n\\\\\",b\n\"\\\\\\\"\n\",\\\"\n\"\n\"\\\n\",\"\\\\\"\n"),
        (backslash, 1, b"\"\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\"\n\\\\\"\n\"\n\\\n\"\"\n"),
        (Dialect::text(), 2, b"a\\\n\tb\\\\\nc\\\t\td\\\\\\\n\n\\N\t\\\\N\n\\.\n"),
        (Dialect::text(), 1, b"a\\\\\\\\\\\\\\\\\\\\\\\n\\\\\n\\"),
        (Dialect::text(), 1, b"a\r\nb\\\r\\\n\r\n\\.\r\n"),
        (Dialect::text(), 1, b"a\\\rb\rc\r\\.\r"),
        (Dialect::text(), 1, b"a\n\\.\nb\nc\n"),
        (Dialect::text(), 1, b"a\nb\n\\.c\nd\n"),
        (Dialect::text(), 1, b"a\nb\n\\.\r\nd\n"),
        (comment.clone(), 2, b"#\"\n\na,b\n#,\n#\n\"#\n#\",c\n\n\n#x\nd,e\n#\""),
        (comment.clone(), 2, b"#\n\r\n\r\na,b\r\n#\n\"\r\n\"c\r\n\",d\r\n"),
        (comment, 2, b"#\"\ra,b\r#\n\rc,\"\r#\"\r"),
        (trailing.clone(), 2, b"a|b|\n\"c|\n\"||\n||\n"),
        (trailing, 2, b"a|b|\nc|d|\ne|f\ng|h|\n"),
    ];
    let mut all: Vec<_> = cases
        .into_iter()
        .map(|(dialect, columns, input)| (LoadSetup::new(dialect, columns), input.to_vec()))
        .collect();
    let old = LoadSetup { server_version: 170_000, ..LoadSetup::new(Dialect::csv(), 1) };
    for input in
        [&b"a\nb\n\\.\n"[..], b"a\n\\.\nb\nc\n", b"a\n\\.", b"\"\n\\.\n\"\n\\.\n\\.\n\\.\n"]
    {
        all.push((old.clone(), input.to_vec()));
        all.push((LoadSetup::new(Dialect::csv(), 1), input.to_vec()));
    }
    for index in 0..all.len() {
        let (setup, input) = &all[index];
        let with_header = LoadSetup { header: true, ..setup.clone() };
        all.push((with_header, [b"\xef\xbb\xbf".as_slice(), input].concat()));
    }
    all
}

fn message_line_and_byte(error: &Option<Error>) -> Option<(String, Option<u64>, Option<u64>)> {
    let error = error.as_ref()?;
    let place = error.place().cloned().unwrap_or_default();
    Some((error.to_string(), place.line, place.byte))
}

#[test]
fn rows_do_not_depend_on_chunks_reads_and_pieces() {
    for (setup, input) in edge_cases() {
        let whole = setup.load(&input);
        let mut sizes: Vec<usize> = (1..=input.len()).collect();
        sizes.push(0);
        for (index, chunk_bytes) in sizes.into_iter().enumerate() {
            let read_bytes = [1, 2, 3, 7, 64, usize::MAX][index % 6];
            let fill_bytes = [1, 10, 1 << 20][index % 3];
            for mode in [EncodeMode::Text, EncodeMode::Binary] {
                let setup =
                    LoadSetup { chunk_bytes, read_bytes, fill_bytes, mode, ..setup.clone() };
                let loaded = setup.load(&input);
                let case = format!("{}, chunks of {chunk_bytes}, {mode:?}", input.escape_ascii());
                assert_eq!(
                    message_line_and_byte(&loaded.error),
                    message_line_and_byte(&whole.error),
                    "{case}"
                );
                assert_eq!(loaded.rows, whole.rows, "{case}");
            }
        }
    }
}

#[test]
fn reads_do_not_move_the_cuts() {
    for (setup, input) in edge_cases() {
        for chunk_bytes in [1, 5, 20, 60] {
            let cuts = |read_bytes| -> Vec<(u64, u64, Vec<u8>)> {
                let setup = LoadSetup { chunk_bytes, read_bytes, ..setup.clone() };
                let Ok(chunks) = setup.chunks(&input) else { return Vec::new() };
                chunks.iter().map(|chunk| (chunk.byte, chunk.line, bytes(chunk).to_vec())).collect()
            };
            let at_once = cuts(usize::MAX);
            for read_bytes in 1..20 {
                assert_eq!(cuts(read_bytes), at_once, "{}", input.escape_ascii());
            }
        }
    }
}

#[test]
fn the_chunks_together_are_the_input() {
    for (setup, input) in edge_cases() {
        for chunk_bytes in 1..40 {
            let Ok(chunks) = (LoadSetup { chunk_bytes, ..setup.clone() }).chunks(&input) else {
                continue;
            };
            let Some(first) = chunks.first() else { continue };
            let joined: Vec<u8> = chunks.iter().flat_map(|chunk| bytes(chunk).to_vec()).collect();
            assert_eq!(joined, input[first.byte as usize..]);
            for (number, chunk) in chunks.iter().enumerate() {
                assert_eq!(chunk.seq, number as u64);
                let before = &input[..chunk.byte as usize];
                let ChunkData::Delimited(_, layout) = &chunk.data else {
                    panic!("the chunk must be delimited")
                };
                let end = if layout.eol == Eol::Cr { b'\r' } else { b'\n' };
                let lines = before.iter().filter(|byte| **byte == end).count() as u64;
                assert_eq!(chunk.line, lines + 1);
                // Every chunk except the last one is longer than `chunk_bytes`.
                let is_last = number + 1 == chunks.len();
                assert!(is_last || bytes(chunk).len() > chunk_bytes, "{chunk_bytes}");
            }
        }
    }
}

#[test]
fn a_chunk_ends_at_the_next_record_edge() {
    let setup = |chunk_bytes| LoadSetup { chunk_bytes, ..LoadSetup::new(Dialect::csv(), 1) };
    let sizes = |chunk_bytes| -> Vec<usize> {
        let chunks = setup(chunk_bytes).chunks(b"aa\nbb\ncc\n\"\n\"\n").unwrap();
        chunks.iter().map(|chunk| bytes(chunk).len()).collect()
    };
    assert_eq!(sizes(1), [3, 3, 3, 4]);
    assert_eq!(sizes(2), [3, 3, 3, 4]);
    assert_eq!(sizes(3), [6, 7]);
    assert_eq!(sizes(9), [13]);
    assert_eq!(sizes(100), [13]);
    assert_eq!(sizes(usize::MAX), [13]);
}

#[test]
fn empty_inputs_have_no_chunks_and_no_layout() {
    for input in [&b""[..], b"\xef\xbb\xbf"] {
        for header in [false, true] {
            let options = CutOptions {
                dialect: Dialect::csv(),
                header,
                chunk_bytes: 10,
                columns: Arc::default(),
                map: Arc::new(|_| panic!("an input without records has no columns to map")),
            };
            let reader = Box::new(std::io::Cursor::new(input.to_vec()));
            assert!(DelimitedCutter::open("-", reader, options).unwrap().next().unwrap().is_none());
        }
    }
    let only_header = LoadSetup { header: true, ..LoadSetup::new(Dialect::csv(), 2) };
    assert_eq!(only_header.rows(b"a,b"), Vec::<Row>::new());
    assert_eq!(only_header.rows(b"a,b\r\n"), Vec::<Row>::new());
}

#[test]
fn a_failed_read_is_a_source_error() {
    struct BrokenReader;
    impl Read for BrokenReader {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("gone"))
        }
    }
    let reader = std::io::Cursor::new(b"a\nb\nc\nd\n".repeat(4)).chain(BrokenReader);
    let options = CutOptions {
        dialect: Dialect::csv(),
        header: false,
        chunk_bytes: 4,
        columns: Arc::default(),
        map: Arc::new(|_| Ok((1, vec![0]))),
    };
    let mut cutter = DelimitedCutter::open("far.csv", Box::new(reader), options).unwrap();
    let error = loop {
        match cutter.next() {
            Ok(chunk) => assert!(chunk.is_some()),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), crate::ErrorKind::Source);
}
