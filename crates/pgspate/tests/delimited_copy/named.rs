//! Cases in which pgspate once differed from COPY, or could easily differ.

use pgspate::format::delimited::Dialect;

use crate::case::DelimitedCase;
use crate::judge::CopyJudge;

fn csv() -> Dialect {
    Dialect::csv()
}

fn text() -> Dialect {
    Dialect::text()
}

#[tokio::test]
async fn unusual_input_is_read_as_copy_reads_it() {
    let db = pgspate_embedded::testing::database();
    let mut judge = CopyJudge::new(&db.dsn()).await;
    let slash = Dialect { escape: b'\\', ..csv() };
    // With these delimiters, the characters of an end-of-copy marker are two fields.
    let dots = Dialect { delimiter: b'.', ..csv() };
    let backslashes = Dialect { delimiter: b'\\', ..csv() };
    let cases: &[(Dialect, usize, &[u8])] = &[
        (csv(), 2, b""),
        (csv(), 1, b"\n"),
        (csv(), 1, b"\r\n\r\n"),
        (csv(), 2, b"a,b\r"),
        (csv(), 2, b"a,b\rc,d\n"),
        (csv(), 2, b"a,b\r\nc,d\n"),
        (csv(), 2, b"a,b\r\nc,d\r"),
        (csv(), 2, b"a,b\nc,d\r\n"),
        (csv(), 2, b"\"a\r\n\",b\nc,d\n"),
        (csv(), 2, b"\"\",\"a\"b\"\"\"c\"\"\"\n"),
        (csv(), 2, b"a,\"b"),
        (csv(), 2, b"a\n"),
        (csv(), 2, b"a,b,c\n"),
        (csv(), 1, b"\\."),
        (csv(), 1, b"\\.\n"),
        (csv(), 1, b"a\n\\.\n"),
        (csv(), 1, b"a\r\n\\.\r\n"),
        (csv(), 1, b"a\r\n\\."),
        (csv(), 1, b"\"\\.\"\n"),
        (csv(), 1, b"\"a\n\\.\n\"\n"),
        (csv(), 2, b"a,b\n\\.\n"),
        (csv(), 1, b"a\n\\.\nb\n"),
        (csv(), 1, b"\\.x\n"),
        (csv(), 1, b"x\\.\n"),
        (slash.clone(), 1, b"\"a\\\\\"\n\"\\\"\n\"\n"),
        (slash.clone(), 1, b"\"a\\\n\"\n"),
        (slash, 1, b"\\\"a\n\"\n"),
        (dots.clone(), 2, b"a.b\n\\.\n"),
        (dots, 2, b".\r\\.\r"),
        (backslashes, 2, b"a\\b\n\\.\n"),
        (csv(), 1, b"\xc3\"\xa9\"\n"),
        (csv(), 1, "é\"é\"\n".as_bytes()),
        (text(), 1, b"\\.\n"),
        (text(), 1, b"\\."),
        (text(), 1, b"a\n\\.\n"),
        (text(), 1, b"a\n\\."),
        (text(), 1, b"a\n\\.\r\n"),
        (text(), 1, b"a\r\n\\.\n"),
        (text(), 1, b"a\r\n\\.\r\n"),
        (text(), 1, b"a\r\\.\r"),
        (text(), 1, b"\\.\r\n"),
        (text(), 1, b"a\\.\n"),
        (text(), 1, b"a\\"),
        (text(), 1, b"\\N\\"),
        (text(), 1, b"\\"),
        (text(), 2, b"a\\\tb\tc\n"),
        (text(), 1, b"a\\\nb\n"),
        (text(), 1, b"a\\\r\nb\n"),
        (text(), 1, b"x\r\na\\\r\nb\r\n"),
        (text(), 1, b"x\r\na\\\nb\r\n"),
        (text(), 1, b"\\303\\251\\xc3\\xa9\\x41\\101\\x4g\\x\\8\\q\n"),
        (text(), 1, b"\\303\xa9\n"),
        (text(), 1, b"\xc3\\\xa9\n"),
        (text(), 1, b"\xc3\\251\n"),
        (text(), 1, b"\\0\n"),
        (text(), 1, b"\\400\n"),
        (text(), 2, b"\xff\n"),
        (text(), 2, b"\\377\n"),
        (text(), 1, b"\xff\t\n"),
        (text(), 1, b"\\N\n\\\\N\n\\NN\n"),
    ];
    for (dialect, columns, input) in cases {
        let ways = [(1, "UTF8"), (3, "UTF8"), (1 << 20, "UTF8"), (1 << 20, "LATIN1")];
        for (chunk_bytes, client_encoding) in ways {
            let case = DelimitedCase::new(dialect.clone(), *columns, input);
            let case = DelimitedCase { chunk_bytes, client_encoding, ..case };
            let why = judge.difference(&case).await;
            assert_eq!(why, None, "{}", input.escape_ascii());
        }
    }
}
