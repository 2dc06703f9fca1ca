//! Debezium: envelopes, keys, headers, tombstones, flattened rows.

use pgspate_events::SourceTable;
use pgspate_events::decode::{Debezium, DebeziumOptions, Decode, KeyedRecord};

use crate::support::{TypedColumns, decode, line};

const TYPES: TypedColumns = TypedColumns(&[("id", "int4"), ("note", "text"), ("price", "numeric")]);

fn lines(records: &[&str]) -> Vec<String> {
    decode(&mut Debezium::default(), &TYPES, records)
}

const SOURCE: &str = r#""source":{"version":"2.7.0.Final","connector":"postgresql","name":"srv",
"ts_ms":1709287200000,"snapshot":"false","db":"shop","sequence":"[null,\"24\"]","schema":"public",
"table":"orders","txId":771,"lsn":24,"xmin":null}"#;

fn envelope(op: &str, before: &str, after: &str) -> String {
    format!(
        r#"{{"before":{before},"after":{after},{SOURCE},"transaction":null,"op":"{op}","ts_ms":1}}"#
    )
}

#[test]
fn every_operation_of_an_envelope_is_decoded() {
    let row = r#"{"id":1,"note":"a\nb"}"#;
    let records = [
        envelope("r", "null", row),
        envelope("c", "null", row),
        envelope("u", "null", r#"{"id":1,"note":null}"#),
        envelope("u", r#"{"id":1,"note":"x"}"#, r#"{"id":2,"note":"x"}"#),
        envelope("d", r#"{"id":2,"note":null}"#, "null"),
        envelope("t", "null", "null"),
        r#"{"op":"m","ts_ms":1,"source":{},"message":{"prefix":"p","content":"aGk="}}"#.to_owned(),
    ];
    let records: Vec<&str> = records.iter().map(String::as_str).collect();
    assert_eq!(
        lines(&records),
        [
            "Snapshot public.orders {id=1 note=a\nb} in 771 end",
            "Insert public.orders {id=1 note=a\nb} in 771 end",
            "Update public.orders {id=1 note=NULL} in 771 end",
            "Update public.orders {id=2 note=x} was {id=1 note=x} in 771 end",
            "Delete public.orders was {id=2 note=NULL} in 771 end",
            "Truncate public.orders in 771 end",
        ]
    );
}

#[test]
fn keys_beside_values_identify_rows() {
    let pair = |key: &str, value: &str| format!(r#"{{"key":{key},"value":{value}}}"#);
    let kcat = |key: &str, payload: &str| {
        let quote = |text: &str| {
            format!("\"{}\"", text.replace('\n', " ").replace('\\', "\\\\").replace('"', "\\\""))
        };
        let payload = if payload == "null" { payload.to_owned() } else { quote(payload) };
        format!(
            r#"{{"topic":"srv.public.orders","partition":0,"offset":3,"tstype":"create","ts":1,
"broker":0,"key":{},"payload":{payload}}}"#,
            quote(key)
        )
    };
    let insert = envelope("c", "null", r#"{"id":1,"note":"a"}"#);
    let delete = envelope("d", r#"{"id":1,"note":null}"#, "null");
    let expected = [
        "Insert public.orders {id=1 note=a} by [id] in 771 end",
        "Delete public.orders was {id=1} by [id] in 771 end",
    ];
    let key = r#"{"id":1}"#;
    for records in [
        [pair(key, &insert), pair(key, &delete), pair(key, "null")],
        [kcat(key, &insert), kcat(key, &delete), kcat(key, "null")],
        [pair(r#""{\"id\":1}""#, &insert), pair(key, &delete), "null".to_owned()],
    ] {
        let records: Vec<&str> = records.iter().map(String::as_str).collect();
        assert_eq!(lines(&records), expected);
    }
}

#[test]
fn a_record_may_have_a_schema_beside_its_payload() {
    let schema = r#"{"type":"struct","fields":[{"type":"struct","fields":[{"type":"int32",
"optional":false,"field":"id"},{"type":"bytes","optional":true,
"name":"org.apache.kafka.connect.data.Decimal","version":1,"parameters":{"scale":"2",
"connect.decimal.precision":"10"},"field":"price"}],"optional":true,
"name":"srv.public.orders.Value","field":"before"},{"type":"struct","fields":[{"type":"int32",
"optional":false,"field":"id"},{"type":"bytes","optional":true,
"name":"org.apache.kafka.connect.data.Decimal","version":1,"parameters":{"scale":"2",
"connect.decimal.precision":"10"},"field":"price"}],"optional":true,
"name":"srv.public.orders.Value","field":"after"},{"type":"string","optional":false,
"field":"op"}],"optional":false,"name":"srv.public.orders.Envelope","version":1}"#;
    let record = |payload: &str| format!(r#"{{"schema":{schema},"payload":{payload}}}"#);
    let records = [
        record(r#"{"before":null,"after":{"id":1,"price":"Dw=="},"op":"c"}"#),
        record(r#"{"before":null,"after":{"id":1,"price":"8A=="},"op":"u"}"#),
        record("null"),
    ];
    let records: Vec<&str> = records.iter().map(String::as_str).collect();
    // Without a source, the schema's name gives the table.
    assert_eq!(
        lines(&records),
        [
            "Insert public.orders {id=1 price=0.15} end",
            "Update public.orders {id=1 price=-0.16} end",
        ]
    );
}

#[test]
fn a_changed_key_is_one_update_that_keeps_omitted_values() {
    let gone = r#""__debezium_unavailable_value""#;
    let header_forms = [
        (
            r#"["__debezium.newkey","{\"id\":2}"]"#.to_owned(),
            r#"["x","y","__debezium.oldkey","{\"id\":1}"]"#.to_owned(),
        ),
        (
            r#"{"__debezium.newkey":{"schema":{"type":"struct","fields":[]},"payload":{"id":2}}}"#
                .to_owned(),
            r#"{"__debezium.oldkey":{"schema":{"type":"struct","fields":[{"type":"int32",
"field":"id"}]},"payload":{"id":1}}}"#
                .to_owned(),
        ),
        (
            r#"[{"key":"__debezium.newkey","value":{"id":2}}]"#.to_owned(),
            r#"[{"key":"__debezium.oldkey","value":"{\"id\":1}"}]"#.to_owned(),
        ),
    ];
    for (new, old) in header_forms {
        let delete = envelope("d", r#"{"id":1,"note":null}"#, "null");
        let insert = envelope("c", "null", &format!(r#"{{"id":2,"note":{gone}}}"#));
        let records = [
            format!(r#"{{"key":{{"id":1}},"headers":{new},"value":{delete}}}"#),
            r#"{"key":{"id":1},"value":null}"#.to_owned(),
            format!(r#"{{"key":{{"id":2}},"headers":{old},"value":{insert}}}"#),
        ];
        let records: Vec<&str> = records.iter().map(String::as_str).collect();
        assert_eq!(
            lines(&records),
            ["Update public.orders {id=2 note=-} was {id=1} by [id] in 771 end"]
        );
    }
}

#[test]
fn messages_about_no_row_have_no_event() {
    for record in [
        r#"{"status":"BEGIN","id":"571:53195829","event_count":null,"data_collections":null,
"ts_ms":1}"#,
        r#"{"status":"END","id":"571:53195832","event_count":2,
"data_collections":[{"data_collection":"public.t","event_count":2}],"ts_ms":1}"#,
        r#"{"ts_ms":1709287200000}"#,
        r#"{"source":{"server":"m"},"databaseName":"d","ddl":"create table t (id int)",
"tableChanges":[]}"#,
        r#"{"key":{"serverName":"srv"},"value":{"ts_ms":1}}"#,
    ] {
        assert_eq!(lines(&[record]), [""; 0], "{record}");
    }
    let record = envelope("c", "null", r#"{"id":1}"#)
        .replace(r#""transaction":null"#, r#""transaction":{"id":"571:53","total_order":1}"#);
    assert_eq!(lines(&[&record]), ["Insert public.orders {id=1} in 571:53 end"]);
}

#[test]
fn flattened_rows_are_decoded() {
    let records = [
        r#"{"id":1,"note":"a","__op":"c","__schema":"public","__table":"orders","__lsn":5,
"__deleted":"false"}"#,
        r#"{"id":1,"note":"b","__op":"u","__schema":"public","__table":"orders"}"#,
        r#"{"id":1,"note":"b","__db":"shop","__table":"orders"}"#,
        r#"{"id":1,"note":"__debezium_unavailable_value","__table":"orders"}"#,
        r#"{"id":1,"note":"b","__deleted":"true","__source_txId":9,"__table":"orders"}"#,
    ];
    assert_eq!(
        lines(&records),
        [
            "Insert public.orders {id=1 note=a} end",
            "Update public.orders {id=1 note=b} end",
            "Snapshot shop.orders {id=1 note=b} end",
            "Update orders {id=1 note=-} end",
            "Delete orders was {id=1 note=b} in 9 end",
        ]
    );
    let table = Some(SourceTable { schema: None, table: "orders".to_owned() });
    let mut decoder = Debezium::new(DebeziumOptions { table, ..DebeziumOptions::default() });
    let records = [
        r#"{"key":{"id":1},"value":{"id":1,"note":"a"}}"#,
        r#"{"key":{"id":1},"value":null}"#,
        r#"{"id":1,"key":"k","value":"v"}"#,
    ];
    assert_eq!(
        decode(&mut decoder, &TYPES, &records),
        [
            "Snapshot orders {id=1 note=a} by [id] end",
            "Delete orders was {id=1} by [id] end",
            "Snapshot orders {id=1 key=k value=v} end",
        ]
    );
}

#[test]
fn a_schema_or_topic_names_the_table_of_a_flattened_row() {
    let schema = r#"{"schema":{"type":"struct","fields":[{"type":"int32","optional":true,
"name":"io.debezium.time.Date","version":1,"field":"day"}],"optional":false,
"name":"srv.public.days.Value"},"payload":{"day":19675}}"#;
    assert_eq!(lines(&[schema]), ["Snapshot public.days {day=2023-11-14} end"]);
    let kcat =
        r#"{"topic":"srv.public.days","partition":0,"offset":0,"key":null,"payload":"{\"id\":1}"}"#;
    assert_eq!(lines(&[kcat]), ["Snapshot public.days {id=1} end"]);
}

#[test]
fn malformed_records_are_refused() {
    for (record, error) in [
        ("7", "expected a JSON object"),
        (r#"{"op":"x","after":null}"#, "unknown \"op\" of an envelope"),
        (r#"{"op":"c","after":null,"source":{"table":"t"}}"#, "an envelope has no \"after\""),
        (r#"{"op":"c","after":[1],"source":{"table":"t"}}"#, "expected a row to be an object"),
        (
            r#"{"op":"d","before":null,"source":{"table":"t"}}"#,
            "a delete does not identify its row | Keep the messages' keys in the dump, give the \
             source's table a primary key, or run `alter table ... replica identity full` there.",
        ),
        (
            r#"{"id":1}"#,
            "a row does not name its table | Let the connector add it with \
             `transforms.unwrap.add.fields=op,table,schema`, or write schemas beside the values.",
        ),
        (r#"{"id":1,"__op":"z","__table":"t"}"#, "unknown \"__op\" of a row"),
        (r#"{"__table":"t"}"#, "a row has no columns"),
    ] {
        assert_eq!(lines(&[record]), [format!("error: {error}")]);
    }
}

/// Decodes messages of a topic: keys and values. Returns the events as lines, or the last error.
fn topic_lines(topic: &str, messages: &[(&str, Option<&str>)]) -> Vec<String> {
    let (mut decoder, mut events) = (Debezium::default(), Vec::new());
    for (key, value) in messages {
        let (key, value) = (Some(key.as_bytes()), value.map(str::as_bytes));
        let record = KeyedRecord { topic, key, value, headers: &[], is_ordered: true };
        if let Err(error) = decoder.decode_keyed(&record, &TYPES, &mut events) {
            return vec![error.to_string()];
        }
    }
    events.iter().map(line).collect()
}

/// Compaction removes the event of a deleted row and keeps its tombstone.
#[test]
fn a_tombstone_without_its_envelope_deletes_the_row() {
    let (one, two) = (r#"{"id":1}"#, r#"{"id":2}"#);
    let insert = envelope("c", "null", r#"{"id":2,"note":"a"}"#);
    let delete = envelope("d", r#"{"id":2,"note":null}"#, "null");
    let (insert, delete) = (Some(insert.as_str()), Some(delete.as_str()));
    let inserted = "Insert public.orders {id=2 note=a} by [id] in 771 end";
    let deleted = "Delete public.orders was {id=2} by [id] in 771 end";
    let by_tombstone = "Delete public.orders was {id=1} by [id] end";
    // The topic need not have the name of the table.
    for topic in ["srv.public.orders", "cdc.all"] {
        assert_eq!(
            topic_lines(topic, &[(two, insert), (two, delete), (two, None), (one, None)]),
            [inserted, deleted, by_tombstone]
        );
        assert_eq!(
            topic_lines(topic, &[(two, delete), (one, None), (two, None)]),
            [deleted, by_tombstone, &by_tombstone.replace('1', "2")]
        );
    }
    // Without the table's name, the row is unknown.
    let other = insert.unwrap().replace("orders", "items");
    let refused = topic_lines("cdc.all", &[(two, insert), (two, Some(&other)), (one, None)]);
    assert!(refused[0].starts_with("a message without a value does not name its table"));
    let schema = r#"{"type":"struct","fields":[],"name":"srv.public.orders.Key"}"#;
    let key = format!(r#"{{"schema":{schema},"payload":{one}}}"#);
    let named = topic_lines("cdc.all", &[(two, insert), (two, Some(&other)), (&key, None)]);
    assert_eq!(named[2], by_tombstone);
    // The only envelope so far is of another table.
    let named = topic_lines("cdc.all", &[(two, Some(&other)), (&key, None)]);
    assert_eq!(named[1], by_tombstone);
}
