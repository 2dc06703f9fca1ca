//! Random records: no decoder panics, and a refused record leaves no events.

use pgspate_events::SourceTable;
use pgspate_events::decode::{
    Canal, Debezium, DebeziumOptions, Decode, Dms, DmsOptions, Maxwell, Wal2json, sniff,
};
use proptest::prelude::*;

use crate::support::TypedColumns;

/// Valid records: one of each format, and more of the larger formats.
const RECORDS: [&str; 11] = [
    r#"{"change":[{"kind":"update","schema":"s","table":"t","columnnames":["id","b"],
"columntypes":["integer","bytea"],"columnvalues":[1,"00ff"],
"oldkeys":{"keynames":["id"],"keytypes":["integer"],"keyvalues":[1]}}],"xid":7}"#,
    r#"{"action":"U","schema":"s","table":"t","columns":[{"name":"id","type":"integer","value":1}],
"identity":[{"name":"id","type":"integer","value":2}],"pk":[{"name":"id","type":"integer"}]}"#,
    r#"{"database":"d","table":"t","type":"update","ts":1,"xid":5,"commit":true,
"data":{"id":1,"j":{"a":[1]},"b":"aGk="},"old":{"id":2},"primary_key_columns":["id"]}"#,
    r#"{"data":[{"id":"1","b":"\u00ff"},{"id":"2"}],"old":[{"id":"3"},{}],"database":"d",
"table":"t","isDdl":false,"pkNames":["id"],"type":"UPDATE"}"#,
    r#"{"data":{"id":1,"b":"0x00"},"metadata":{"record-type":"data","operation":"update",
"schema-name":"s","table-name":"t","transaction-id":7}}"#,
    "I,1,00ff,\"a\"\"b\"",
    "INSERT,t,s,1,NULL,b",
    r#"{"key":{"id":1},"headers":["__debezium.oldkey","{\"id\":2}"],"value":{"op":"c","after":
{"id":1,"n":"1.5","b":"AQ==","d":19000,"t":0,"ts":1709287200123456,"a":["x",null,"1"],
"h":{"a":"b"}},"source":{"schema":"s","table":"t","txId":5}}}"#,
    r#"{"schema":{"type":"struct","fields":[{"type":"struct","field":"after","fields":[
{"field":"n","type":"bytes","name":"org.apache.kafka.connect.data.Decimal",
"parameters":{"scale":"2"}},{"field":"v","type":"struct",
"name":"io.debezium.data.VariableScaleDecimal"},{"field":"bits","type":"bytes",
"name":"io.debezium.data.Bits","parameters":{"length":"9"}},{"field":"a","type":"array",
"items":{"type":"int32","name":"io.debezium.time.Date"}},{"field":"ts","type":"int64",
"name":"io.debezium.time.MicroTimestamp"},{"field":"p","type":"struct",
"name":"io.debezium.data.geometry.Point"}]},{"type":"string","field":"op"}],
"name":"srv.s.t.Envelope"},"payload":{"op":"u","after":{"n":"AeJA","v":{"scale":2,"value":"AeJA"},
"bits":"/wE=","a":[1,null,-5],"ts":-1,"p":{"x":1,"y":2}}}}"#,
    r#"{"topic":"a.s.t","partition":0,"offset":1,"key":"{\"id\":1}",
"payload":"{\"id\":1,\"n\":\"NaN\",\"__op\":\"u\"}"}"#,
    r#"{"id":1,"note":"__debezium_unavailable_value","__deleted":"true","__table":"t"}"#,
];

const TYPES: TypedColumns = TypedColumns(&[
    ("id", "int4"),
    ("b", "bytea"),
    ("n", "numeric"),
    ("d", "date"),
    ("t", "time"),
    ("ts", "timestamptz"),
    ("a", "_date"),
    ("h", "hstore"),
    ("j", "jsonb"),
    ("bits", "bit"),
]);

fn decoders() -> Vec<Box<dyn Decode>> {
    let table = || Some(SourceTable { schema: None, table: "t".to_owned() });
    let columns = Some(["id", "b", "n"].map(str::to_owned).to_vec());
    vec![
        Box::new(Wal2json::new()),
        Box::new(Maxwell::new()),
        Box::new(Canal::new()),
        Box::new(Dms::new(DmsOptions { table: table(), columns, ..DmsOptions::default() })),
        Box::new(Debezium::new(DebeziumOptions { table: table(), ..DebeziumOptions::default() })),
    ]
}

fn check(records: &[Vec<u8>]) {
    for mut decoder in decoders() {
        let mut events = Vec::new();
        for record in records {
            let before = events.len();
            if decoder.decode(record, &TYPES, &mut events).is_err() {
                assert_eq!(events.len(), before);
            }
        }
        for event in events {
            for row in [event.new, event.old].into_iter().flatten() {
                assert_eq!(row.columns.len(), row.values.len());
            }
        }
    }
    for record in records {
        let _ = sniff(record);
    }
}

#[test]
fn the_valid_records_are_decoded() {
    for record in RECORDS {
        let taken = decoders()
            .iter_mut()
            .any(|decoder| decoder.decode(record.as_bytes(), &TYPES, &mut Vec::new()).is_ok());
        assert!(taken, "{record}");
    }
}

#[test]
fn a_truncated_record_does_not_panic() {
    for record in RECORDS {
        for end in 0..record.len() {
            check(&[record.as_bytes()[..end].to_vec()]);
        }
    }
}

/// Generates a record with some bytes changed, and some parts doubled or removed.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let edit = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..5_u8, any::<u8>());
    (prop::sample::select(&RECORDS[..]), prop::collection::vec(edit, 0..4)).prop_map(
        |(record, edits)| {
            let mut bytes = record.as_bytes().to_vec();
            for (from, to, what, byte) in edits {
                if bytes.is_empty() {
                    break;
                }
                let (from, to) = (from.index(bytes.len()), to.index(bytes.len()));
                let (from, to) = (from.min(to), from.max(to));
                match what {
                    0 => bytes[from] = byte,
                    1 => drop(bytes.drain(from..to)),
                    2 => bytes.insert(from, b"\"{}[],:\\0-9e.n"[usize::from(byte) % 14]),
                    3 => {
                        let part = bytes[from..to].to_vec();
                        bytes.splice(to..to, part);
                    }
                    _ => {
                        let digits: &[u8] =
                            if byte % 2 == 0 { b"99999999999999999999" } else { b"-1e9" };
                        let at = bytes.iter().skip(from).position(u8::is_ascii_digit);
                        let at = at.map_or(from, |at| from + at);
                        bytes.splice(at..=at.min(bytes.len() - 1), digits.iter().copied());
                    }
                }
            }
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn mutated_records_do_not_panic(records in prop::collection::vec(mutated(), 1..4)) {
        check(&records);
    }

    #[test]
    fn bytes_do_not_panic(record in prop::collection::vec(any::<u8>(), 0..200)) {
        check(&[record.clone(), [b"{", &record[..]].concat()]);
    }
}
