//! Tests of chunks of JSON: concatenated they are the input, and each contains whole records.

#[allow(dead_code)]
#[path = "support/json_rows.rs"]
mod json_rows;

use std::io::{Cursor, Error as IoError, Read};

use json_rows::{base, bytes, cut, options, rows};
use pgspate_base::ErrorKind;
use pgspate_input::format::Cutter;
use pgspate_input::format::json::{JsonCutLimits, JsonCutter};
use pgspate_input::format::keyed::KeyedInput;
use proptest::prelude::*;
use serde_json::Value;

/// Returns inputs with these rows, in every layout.
fn layouts(values: &[Value]) -> Vec<String> {
    let compact: Vec<String> = values.iter().map(Value::to_string).collect();
    let pretty: Vec<String> =
        values.iter().map(|v| serde_json::to_string_pretty(v).unwrap()).collect();
    vec![
        compact.join("\n"),
        format!("\u{feff}{}\r\n", compact.join("\r\n")),
        format!("\n\n{}\n\n", compact.join("\n \n")),
        compact.concat(),
        pretty.join("\n"),
        pretty.concat(),
        format!("[{}]", compact.join(",")),
        format!("\u{feff} [\n{}\n]\n\n", pretty.join("\n,\n")),
        serde_json::to_string_pretty(values).unwrap(),
    ]
}

fn object() -> impl Strategy<Value = Value> {
    let text = proptest::string::string_regex("[a\"\\\\{}\\[\\],:\n é😀]{0,12}").unwrap().boxed();
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        text.clone().prop_map(Value::from),
    ];
    let inner = leaf.prop_recursive(3, 12, 3, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::hash_map("[ab{\"]{0,2}", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    });
    (inner, text).prop_map(|(a, b)| serde_json::json!({ "a": a, "b": b }))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn layout_and_chunk_size_do_not_change_the_rows(
        values in prop::collection::vec(object(), 1..12),
        chunk_bytes in prop_oneof![1usize..40, 40usize..4000],
    ) {
        let table = options(vec![("a", base(114, "json")), ("b", base(25, "text"))]);
        for input in layouts(&values) {
            let got = rows(input.as_bytes(), chunk_bytes, &table).unwrap();
            let lines: Vec<&str> = got.lines().collect();
            prop_assert_eq!(lines.len(), values.len(), "{}", input);
            for (line, value) in lines.iter().zip(&values) {
                let (a, b) = line.split_once('\t').unwrap();
                let a: Value = match a {
                    "\\N" => Value::Null,
                    text => serde_json::from_str(&unescape(text)).unwrap(),
                };
                prop_assert_eq!(&a, &value["a"]);
                prop_assert_eq!(unescape(b), value["b"].as_str().unwrap());
            }
        }
    }

    #[test]
    fn chunks_are_contiguous(
        values in prop::collection::vec(object(), 1..12),
        chunk_bytes in 1usize..300,
    ) {
        for input in layouts(&values) {
            let chunks = cut(input.as_bytes(), chunk_bytes).unwrap();
            let mut end = 0;
            for (nth, chunk) in chunks.iter().enumerate() {
                prop_assert_eq!(chunk.seq, nth as u64);
                let start = chunk.byte as usize;
                prop_assert!(input[end..start].trim().is_empty());
                end = start + bytes(chunk).len();
                prop_assert_eq!(bytes(chunk), &input.as_bytes()[start..end]);
                let first = input[start..].find('{').unwrap();
                let line = input[..start + first].matches('\n').count() as u64 + 1;
                prop_assert_eq!(chunk.line, line);
            }
            prop_assert!(input[end..].trim().is_empty());
        }
    }

    #[test]
    fn random_bytes_are_cut_without_panic(
        input in prop::collection::vec(
            prop::sample::select(b"{}[]\",:\\\n \t1a\xff\xEF\xBB\xBFnu".to_vec()), 0..200),
        chunk_bytes in 1usize..100,
    ) {
        let input = [b"[".as_slice(), &input].concat();
        if let Ok(chunks) = cut(&input, chunk_bytes) {
            for chunk in chunks {
                let start = chunk.byte as usize;
                prop_assert!(input[start..].starts_with(bytes(&chunk)));
            }
        }
    }
}

fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        out.push(match char {
            '\\' => match chars.next().unwrap() {
                't' => '\t',
                'n' => '\n',
                'r' => '\r',
                other => other,
            },
            other => other,
        });
    }
    out
}

#[test]
fn empty_inputs_have_no_chunks() {
    for input in ["", "\n", "  \r\n\t ", "\u{feff}", "\u{feff}\n\n"] {
        assert!(cut(input.as_bytes(), 10).unwrap().is_empty(), "{input:?}");
    }
}

#[test]
fn chunks_have_the_requested_size() {
    let input = "{\"a\":1}\n".repeat(10_000);
    let sizes: Vec<usize> =
        cut(input.as_bytes(), 1000).unwrap().iter().map(|c| bytes(c).len()).collect();
    assert_eq!((sizes.len(), sizes[0], sizes[79]), (80, 1000, 1000));
    let input = format!("[{}{{}}]", "{\"a\":1},".repeat(10_000));
    let longest = cut(input.as_bytes(), 1000).unwrap().iter().map(|c| bytes(c).len()).max();
    assert!(longest.unwrap() <= 1008);
}

#[test]
fn a_record_may_be_larger_than_a_chunk_but_not_than_the_limit() {
    let record = format!("{{\"a\":\"{}\"}}", "x".repeat(5000));
    for input in [format!("{record}\n{record}"), format!("{record}{record}"), format!("[{record}]")]
    {
        let chunks = cut(input.as_bytes(), 100).unwrap();
        assert!(bytes(&chunks[0]).len() >= record.len());
        let limits = JsonCutLimits { chunk_bytes: 100, record_bytes_max: 2000 };
        // Far larger than the lookahead, so that the limit is reached before the end.
        let long = input.replacen("xx", &"y".repeat(300_000), 1);
        let reader = Box::new(Cursor::new(long.into_bytes()));
        let mut cutter = JsonCutter::new(vec![KeyedInput { name: "x".into(), reader }], limits);
        let error = cutter.next().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Format);
        assert_eq!(error.to_string(), "a record is larger than 2000 bytes");
    }
}

#[test]
fn several_inputs_are_cut_in_order() {
    let input = |text: &str| KeyedInput {
        name: "x".into(),
        reader: Box::new(Cursor::new(text.as_bytes().to_vec())),
    };
    let inputs = vec![input("{}\n{}"), input(""), input("[{},{}]")];
    let limits = JsonCutLimits { chunk_bytes: 1, ..JsonCutLimits::default() };
    let mut cutter = JsonCutter::new(inputs, limits);
    let mut seen = Vec::new();
    while let Some(chunk) = cutter.next().unwrap() {
        seen.push((chunk.seq, chunk.input, chunk.byte));
    }
    assert_eq!(seen, [(0, 0, 0), (1, 0, 3), (2, 2, 0), (3, 2, 3)]);
}

struct FailingReader;

impl Read for FailingReader {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(IoError::other("the disk is gone"))
    }
}

#[test]
fn a_read_error_is_the_cause() {
    let reader = Box::new(Cursor::new(b"{\"a\":1}\n{".to_vec()).chain(FailingReader));
    let mut cutter =
        JsonCutter::new(vec![KeyedInput { name: "x".into(), reader }], JsonCutLimits::default());
    let error = cutter.next().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Source);
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "the disk is gone");
    assert_eq!(error.place().unwrap().byte, Some(9));
}

#[test]
fn an_unclosed_array_is_an_error_after_its_rows() {
    let reader = Box::new(Cursor::new(b"[{\"a\":1},\n{\"a\":2}\n".to_vec()));
    let mut cutter =
        JsonCutter::new(vec![KeyedInput { name: "x".into(), reader }], JsonCutLimits::default());
    assert!(cutter.next().unwrap().is_some());
    let error = cutter.next().unwrap_err();
    assert_eq!(error.to_string(), "the input ends inside its array");
    assert_eq!((error.place().unwrap().line, error.place().unwrap().byte), (Some(3), Some(18)));
}

#[test]
fn other_formats_are_refused_at_their_first_byte() {
    let error = cut(b"\n\nid,name\n1,2\n", 100).unwrap_err();
    assert_eq!(error.to_string(), "expected a JSON object or array");
    assert_eq!((error.place().unwrap().line, error.place().unwrap().byte), (Some(3), Some(2)));
    let error = cut(b"\xFF\xFE{\0}\0", 100).unwrap_err();
    assert_eq!(error.to_string(), "the input is UTF-16, not UTF-8");
    assert!(error.hint_text().unwrap().contains("iconv"));
}

#[test]
fn invalid_sequences_of_values_are_refused() {
    let table = options(vec![("a", base(25, "text"))]);
    for chunk_bytes in 1..30 {
        assert!(rows(b"{\"a\":1},{\"a\":2}", chunk_bytes, &table).is_err());
        assert!(rows(b"{\"a\":1}\n,\n{\"a\":2}", chunk_bytes, &table).is_err());
        assert!(rows(b"[{\"a\":1}]\n[{\"a\":2}]", chunk_bytes, &table).is_err());
        assert!(rows(b"[{\"a\":1},]", chunk_bytes, &table).is_err());
        assert!(rows(b"[{\"a\":1}", chunk_bytes, &table).is_err());
        assert!(rows(b"[", chunk_bytes, &table).is_err());
    }
}
