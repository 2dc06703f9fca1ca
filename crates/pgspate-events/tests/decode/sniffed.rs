//! pgspate detects the format of a stream by its first record, or refuses the stream.

use pgspate_events::decode::{DecodeOptions, EventFormat, decoder_of, sniff};

#[test]
fn the_format_of_a_record_is_detected() {
    for (record, name) in [
        (r#"{"change":[]}"#, "wal2json"),
        (r#"{"action":"B"}"#, "wal2json"),
        (r#"{"data":{},"metadata":{"operation":"load"}}"#, "dms"),
        ("I,1,Smith,Bob", "dms"),
        ("Op,id,name", "dms"),
        ("INSERT,employee,hr,101", "dms"),
        (r#"{"data":[],"database":"d","isDdl":false,"type":"INSERT","ts":1}"#, "canal"),
        (r#"{"database":"d","table":"t","type":"insert","ts":1,"data":{}}"#, "maxwell"),
        (r#"{"before":null,"after":{},"op":"c","source":{}}"#, "debezium"),
        (r#"{"schema":{},"payload":{}}"#, "debezium"),
        (r#"{"key":{"id":1},"value":{"op":"c"}}"#, "debezium"),
        (r#"{"topic":"t","partition":0,"key":"{}","payload":"{}"}"#, "debezium"),
        (r#"{"id":1,"__deleted":"false"}"#, "debezium"),
        (r#"{"data":[{"id":1}],"type":"INSERT"}"#, "canal"),
        (r#"{"data":[{"id":1}],"database":"d","table":"t","ts":1,"type":"DELETE"}"#, "canal"),
        (r#"{"data":{"id":1},"type":"insert"}"#, "maxwell"),
        (r#"{"type":"table-create","database":"d","table":"t","def":{},"ts":1}"#, "maxwell"),
        (r#"{"source":{},"databaseName":"d","ddl":"create table t ()"}"#, "debezium"),
        (r#"{"ts_ms":1}"#, "debezium"),
        (r#"{"key":null,"value":null}"#, "debezium"),
        (r#"{"op":"insert","table":"t","row":{"id":1}}"#, "pgspate"),
        (r#"{"op":"delete","table":"t","key":{"id":1}}"#, "pgspate"),
    ] {
        let (format, why) = sniff(record.as_bytes()).unwrap();
        assert_eq!(format.name(), name, "{record}");
        assert!(why.starts_with("it"), "{why}");
        assert_eq!(EventFormat::by_name(name).unwrap(), format);
        assert_eq!(
            decoder_of(format, &DecodeOptions::default()).is_none(),
            format == EventFormat::Pgspate
        );
    }
}

#[test]
fn a_record_of_unknown_format_is_refused() {
    for record in
        ["{}", "1,2,3", "I", "[1]", "{\"id\":1}", "", r#"{"change":[],"metadata":{}}"#, r#"{"a":"#]
    {
        assert!(sniff(record.as_bytes()).is_err(), "{record}");
    }
    let error = sniff(b"{\"id\":1}").unwrap_err();
    assert_eq!(
        error.hint_text().unwrap(),
        "Name the format with `--format`: debezium, wal2json, maxwell, canal, dms, pgspate."
    );
    assert_eq!(
        error.to_string(),
        "could not detect the format of the events: the first record is an object with \"id\""
    );
    let error = EventFormat::by_name("avro").unwrap_err();
    assert_eq!(error.to_string(), "unknown format of events: \"avro\"");
}
