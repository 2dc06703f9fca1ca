//! Tests of JSON records as COPY rows: values, keys, and the places of errors.

#[allow(dead_code)]
#[path = "support/json_rows.rs"]
mod json_rows;

use std::sync::Arc;

use json_rows::{array, base, options, refusal, rows};
use pgspate_base::{Error, ErrorKind};
use pgspate_input::encode::Encoded;
use pgspate_input::encode::field::FieldEncoder;
use pgspate_input::format::json::JsonEncoder;
use pgspate_input::format::keyed::{KeyedColumn, KeyedOptions};
use pgspate_input::format::{Chunk, ChunkData, ChunkEncoder, EncodeMode, is_row_error};
use pgspate_input::types::{PgType, SessionSettings, TypeKind};
use proptest::prelude::*;
use serde_json::Value;

fn example_table() -> KeyedOptions {
    options(vec![
        ("id", base(20, "bigint")),
        ("name", base(25, "text")),
        ("doc", base(3802, "jsonb")),
        ("tags", array(1009, base(25, "text"))),
    ])
}

fn encode_rows(json: &str) -> String {
    rows(json.as_bytes(), 1 << 20, &example_table()).unwrap()
}

fn place(error: &Error) -> (u64, u64) {
    let place = error.place().unwrap();
    assert_eq!(place.source.as_deref(), Some("in.json"));
    (place.line.unwrap(), place.byte.unwrap())
}

fn chunk(data: &[u8]) -> Arc<Chunk> {
    let data = ChunkData::Bytes(data.to_vec());
    Arc::new(Chunk { seq: 0, input: 0, byte: 0, line: 1, first_row: 0, digest: None, data })
}

#[test]
fn values_keep_the_text_of_the_input() {
    assert_eq!(
        encode_rows(r#"{"id":1.50e3,"name":"é\n","doc":{"a" : 1},"tags":["x",null]}"#),
        "1.50e3\té\\n\t{\"a\" : 1}\t{\"x\",NULL}\n"
    );
    assert_eq!(
        encode_rows(r#"{"id":123456789012345678901234567890}"#),
        "123456789012345678901234567890\t\\N\t\\N\t\\N\n"
    );
    assert_eq!(
        encode_rows(r#"{"name":true,"doc":true,"tags":"{1,2}"}"#),
        "\\N\ttrue\ttrue\t{1,2}\n"
    );
    assert_eq!(encode_rows(r#"{"name":{"a":[1]},"doc":"s"}"#), "\\N\t{\"a\":[1]}\t\"s\"\t\\N\n");
    assert_eq!(encode_rows(r#"{"name":"\\N","doc":null}"#), "\\N\t\\\\N\t\\N\t\\N\n");
    assert_eq!(encode_rows("{}"), "\\N\t\\N\t\\N\t\\N\n");
}

/// The schema of the extension may be any.
#[test]
fn an_object_is_hstore_in_an_hstore_column() {
    for name in ["hstore", "public.hstore"] {
        let domain = PgType {
            oid: 99_999,
            name: "public.labels".into(),
            typmod: -1,
            kind: TypeKind::Domain(Box::new(base(88_888, name))),
        };
        let table = options(vec![("h", base(88_888, name)), ("d", domain)]);
        let json = r#"{"h":{"a":"1","b":null},"d":{"c":2}}
{"h":"x=>y","d":{}}"#;
        let expected = "\"a\"=>\"1\", \"b\"=>NULL\t\"c\"=>\"2\"\nx=>y\t\n";
        assert_eq!(rows(json.as_bytes(), 1 << 20, &table).unwrap(), expected);
    }
}

#[test]
fn the_last_of_equal_keys_counts() {
    assert_eq!(encode_rows(r#"{"id":1,"id":2,"name":"a","name":null}"#), "2\t\\N\t\\N\t\\N\n");
    assert_eq!(encode_rows(r#"{"name":"\u0000","n\u0061me":"b"}"#), "\\N\tb\t\\N\t\\N\n");
}

#[test]
fn keys_may_change_from_row_to_row() {
    let input =
        "{\"id\":1,\"name\":\"a\"}\n{\"name\":\"b\",\"id\":2}\n{\"id\":3}\n{\"name\":\"d\"}";
    assert_eq!(
        encode_rows(input),
        "1\ta\t\\N\t\\N\n2\tb\t\\N\t\\N\n3\t\\N\t\\N\t\\N\n\\N\td\t\\N\t\\N\n"
    );
}

#[test]
fn arrays_are_rows_by_position() {
    let whole = "1\ta\t{}\t{}\n";
    assert_eq!(encode_rows(r#"[1,"a",{},[]]"#), whole);
    assert_eq!(encode_rows(r#"[[1,"a",{},[]], [1,"a",{},[]]]"#), whole.repeat(2));
    let error = refusal(b"{}\n[1,2]", &example_table());
    assert_eq!(error.to_string(), "the array has 2 values, but the load has 4 columns");
    assert_eq!(place(&error), (2, 3));
}

#[test]
fn unknown_keys_are_named_with_the_nearest_column() {
    let error = refusal(b"{\"id\":1}\n{\"id\":2, \"nmae\":[{}]}", &example_table());
    assert_eq!(error.kind(), ErrorKind::Format);
    assert_eq!(error.to_string(), "key \"nmae\" names no column");
    assert_eq!(place(&error), (2, 18));
    assert!(error.hint_text().unwrap().starts_with("Did you mean column \"name\"?"));
    let lenient = KeyedOptions { ignore_unknown: true, ..example_table() };
    let got = rows(b"{\"zzz\":{\"id\":5},\"id\":1}", 100, &lenient).unwrap();
    assert_eq!(got, "1\t\\N\t\\N\t\\N\n");
}

#[test]
fn keys_can_be_mapped_to_other_columns() {
    let mut table = example_table();
    table.keys.insert("ID".into(), 0);
    assert_eq!(rows(b"{\"ID\":7}", 100, &table).unwrap(), "7\t\\N\t\\N\t\\N\n");
}

#[test]
fn invalid_json_is_refused_with_its_place() {
    let cases: [(&[u8], &str, (u64, u64)); 9] = [
        (b"{\"id\":1}\n{\"id\":}", "invalid JSON: expected a value", (2, 15)),
        (b"{\"id\":1}\n\n 12 ", "expected an object, found a number", (3, 11)),
        (b"{\"id\":1} x", "invalid JSON: expected a value", (1, 9)),
        (b"{\"id\":1,}", "invalid JSON: expected a key in double quotes", (1, 8)),
        (b"{\"id\":01}", "invalid JSON: a number begins with a zero", (1, 7)),
        (b"{\"id\":1", "invalid JSON: the input ends inside an object", (1, 7)),
        (
            b"{\"id\":1}\n{\"name\":\"a\tb\"}",
            "invalid JSON: control character in a string",
            (2, 19),
        ),
        (b"[{\"id\":1}]\n]", "invalid JSON: expected nothing after the end of the array", (2, 11)),
        (b"{}\n{\"id\":\"\xff\"}", "invalid byte sequence for encoding \"UTF8\"", (2, 10)),
    ];
    for (input, message, at) in cases {
        let error = refusal(input, &example_table());
        assert_eq!(error.to_string(), message);
        assert_eq!(place(&error), at, "{message}");
        assert_eq!(error.kind(), ErrorKind::Format);
    }
}

#[test]
fn unsupported_escapes_are_refused_with_the_servers_sqlstate() {
    for (json, code) in [("\\u0000", "22P05"), ("\\ud800", "22P02"), ("\\udc00x", "22P02")] {
        let input = format!("{{}}\n{{\"id\":1,\"name\":\"a{json}\"}}");
        let error = refusal(input.as_bytes(), &example_table());
        assert_eq!(error.kind(), ErrorKind::Type);
        assert_eq!(error.sqlstate().unwrap().code(), code);
        assert_eq!(error.place().unwrap().column.as_deref(), Some("name"));
        assert_eq!(place(&error), (2, 3));
        // The server checks the escapes of a json value.
        let doc = format!("{{\"doc\":\"a{json}\"}}");
        assert!(rows(doc.as_bytes(), 100, &example_table()).is_ok());
    }
}

#[test]
fn a_comma_without_a_record_has_a_place() {
    assert_eq!(place(&refusal(b",\n\n ", &example_table())).0, 1);
}

/// Encodes a chunk, continuing after errors. Returns each row as text, or as `!` and the line of
/// its error, and the records of all rows.
fn encode_past_errors(input: &[u8], options: KeyedOptions) -> (Vec<String>, Vec<String>) {
    let mut encoder = JsonEncoder::new(options);
    let chunk = chunk(input);
    let mut seen: Vec<String> = Vec::new();
    encoder.begin(chunk.clone(), EncodeMode::Text).unwrap();
    loop {
        let mut out = Encoded::default();
        let more = encoder.fill(&mut out, 1 << 20);
        let ordinals: Vec<u64> = (seen.len() as u64..).take(out.text_rows.len()).collect();
        assert_eq!(out.text_rows, ordinals);
        seen.extend(String::from_utf8(out.text).unwrap().lines().map(str::to_owned));
        match more {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                assert!(is_row_error(&error), "{error}");
                let at = encoder.place(&chunk, seen.len() as u64);
                assert!(at.byte <= error.place().unwrap().byte);
                seen.push(format!("!{}", at.line.unwrap()));
            }
        }
    }
    let rows: Vec<u64> = (0..seen.len() as u64).collect();
    let records = encoder.records(&chunk, &rows).unwrap();
    for (row, record) in rows.iter().zip(&records) {
        assert_eq!(record.place, encoder.place(&chunk, *row));
        assert!(record.bytes.ends_with(b"\n"));
    }
    assert!(encoder.records(&chunk, &[seen.len() as u64]).is_err());
    let text = records.iter().map(|record| record.bytes.escape_ascii().to_string());
    (seen, text.collect())
}

#[test]
fn encoding_continues_after_a_refused_record() {
    let table = || options(vec![("a", base(25, "text"))]);
    for (input, rows, records) in [
        (
            &b"{\"a\":1}\n{\"a\":x}\n{\"b\":1}\n\
              \xff\n{\"a\":\"\xff\"}\n{\"a\":5}\n 7 \n{\"a\":\n6}"[..],
            &["1", "!2", "!3", "!4", "5", "!7", "6"][..],
            &[
                r#"{\"a\":1}\n"#,
                r#"{\"a\":x}\n"#,
                r#"{\"b\":1}\n"#,
                r#"\xff\n{\"a\":\"\xff\"}\n"#,
                r#"{\"a\":5}\n"#,
                r"7\n",
                r#"{\"a\":\n6}\n"#,
            ][..],
        ),
        (
            b"[{\"a\":1}, {\"a\":},\n{\"b\":[]},oops, [2], [1,2], {\"a\":\"\xff\"}, {\"a\":3}]\n",
            &["1", "!1", "!2", "!2", "2", "!2", "!2", "3"],
            &[
                r#"{\"a\":1}\n"#,
                r#"{\"a\":}\n"#,
                r#"{\"b\":[]}\n"#,
                r"oops\n",
                r"[2]\n",
                r"[1,2]\n",
                r#"{\"a\":\"\xff\"}\n"#,
                r#"{\"a\":3}\n"#,
            ],
        ),
        (b"[{\"a\":1},{]}, {\"a\":2}]", &["1", "!1"], &[r#"{\"a\":1}\n"#, r#"{]}, {\"a\":2}]\n"#]),
        (b"[{\"a\":1}] 3 4", &["1", "!1"], &[r#"{\"a\":1}\n"#, r"3 4\n"]),
    ] {
        let (seen, found) = encode_past_errors(input, table());
        assert_eq!(seen, rows, "{}", input.escape_ascii());
        assert_eq!(found, records, "{}", input.escape_ascii());
    }
}

#[test]
fn a_key_of_an_unloaded_column_is_no_row_error() {
    let columns = Arc::new(["a", "b"].map(str::to_owned).into());
    let table = KeyedOptions { table_columns: columns, ..options(vec![("a", base(25, "text"))]) };
    assert!(!is_row_error(&refusal(b"{\"b\":1}", &table)));
}

#[test]
fn rows_are_binary_if_all_columns_have_encoders() {
    let session = SessionSettings::of_version(150_000);
    let column = |name: &str, oid, ty| KeyedColumn {
        name: name.into(),
        field: Some(FieldEncoder::new(&base(oid, ty), &session).unwrap()),
        date_format: None,
        guessed_type: None,
        ty: base(oid, ty),
    };
    let mut encoder = JsonEncoder::new(KeyedOptions::new(vec![
        column("a", 25, "text"),
        column("b", 114, "json"),
    ]));
    let chunk = chunk(b"{\"a\":\"x\\n\",\"b\":[ 1]}\n{\"b\":\"y\"}\n");
    encoder.begin(chunk.clone(), EncodeMode::Binary).unwrap();
    let mut out = Encoded::default();
    assert!(encoder.fill(&mut out, 1).unwrap());
    assert_eq!(out.binary, b"\0\x02\0\0\0\x02x\n\0\0\0\x04[ 1]");
    out.clear();
    assert!(!encoder.fill(&mut out, 1000).unwrap());
    assert_eq!(out.binary, b"\0\x02\xff\xff\xff\xff\0\0\0\x03\"y\"");
    assert_eq!((out.binary_rows, out.text_rows.len()), (1, 0));
    encoder.begin(chunk, EncodeMode::Text).unwrap();
    out.clear();
    assert!(!encoder.fill(&mut out, 1000).unwrap());
    assert_eq!(
        (out.text.as_slice(), out.text_rows),
        (&b"x\\n\t[ 1]\n\\N\t\"y\"\n"[..], vec![0, 1])
    );
}

fn random_json_bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"a\"",
        "\"",
        "\\",
        "\\u0000",
        "\\ud800",
        "\\n",
        "1",
        "-",
        "e5",
        ".0",
        "true",
        "null",
        " ",
        "\n",
        "}\n{",
        "é",
        "\t",
        "\u{0}",
        "{\"a\":1}",
        "\u{feff}",
    ]);
    let bytes = piece.prop_map(|s| s.as_bytes().to_vec());
    prop::collection::vec(prop_oneof![20 => bytes, 1 => any::<u8>().prop_map(|b| vec![b])], 0..40)
        .prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 3000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_bytes_give_rows_or_errors(input in random_json_bytes()) {
        let table = KeyedOptions { ignore_unknown: true, ..options(vec![
            ("a", array(1009, base(25, "text"))), ("b", base(25, "text")),
        ])};
        encode_past_errors(&input, table.clone());
        let mut encoder = JsonEncoder::new(table);
        let chunk = chunk(&input);
        encoder.begin(chunk.clone(), EncodeMode::Text).unwrap();
        let mut out = Encoded::default();
        for _ in 0..=input.len() {
            if let Ok(false) = encoder.fill(&mut out, 1 << 20) {
                for &row in &out.text_rows {
                    prop_assert!(encoder.place(&chunk, row).byte.unwrap() < input.len() as u64);
                }
                return Ok(());
            }
        }
        prop_assert!(false, "the encoder does not end");
    }

    #[test]
    fn json_is_valid_if_serde_json_accepts_it(input in random_json_bytes()) {
        let record = [b"{\"a\":", &input[..], b"}"].concat();
        let table = options(vec![("a", base(114, "json"))]);
        let ours = rows(&record, 1 << 20, &table);
        // The raw values of serde_json and of pgspate do not check surrogates.
        let theirs: Vec<Result<std::collections::HashMap<&str, &serde_json::value::RawValue>, _>> =
            serde_json::Deserializer::from_slice(&record).into_iter().collect();
        let valid = theirs.iter().all(|value| value.is_ok());
        let one_key = theirs.iter().flatten().all(|map| map.keys().all(|key| *key == "a"));
        prop_assert_eq!(ours.is_ok(), valid && one_key, "{:?}", String::from_utf8_lossy(&record));
    }

    #[test]
    fn strings_equal_those_of_serde_json(text in any::<String>()) {
        let json = serde_json::to_string(&serde_json::json!({ "b": text })).unwrap();
        let table = options(vec![("b", base(25, "text"))]);
        if text.contains('\0') {
            prop_assert!(rows(json.as_bytes(), 100, &table).is_err());
        } else {
            let escaped = text.replace('\\', "\\\\").replace('\t', "\\t")
                .replace('\n', "\\n").replace('\r', "\\r");
            prop_assert_eq!(rows(json.as_bytes(), 100, &table).unwrap(), escaped + "\n");
        }
    }
}

#[test]
fn numbers_keep_every_digit() {
    let json = r#"{"name":-0.10000000000000000000000000000000001E+0400}"#;
    assert!(serde_json::from_str::<Value>(json).is_err(), "no float can hold it");
    assert_eq!(encode_rows(json), "\\N\t-0.10000000000000000000000000000000001E+0400\t\\N\t\\N\n");
}
