//! Debezium's changes of keys without headers, and records that only look like such changes.

use pgspate_events::SourceTable;
use pgspate_events::decode::{Debezium, DebeziumOptions, Decode, KeyedRecord};

use crate::support::{TypedColumns, decode, line};

const TYPES: TypedColumns = TypedColumns(&[("id", "int4"), ("note", "text"), ("h", "hstore")]);
const UNAVAILABLE: &str = "\"__debezium_unavailable_value\"";

fn lines(records: &[String]) -> Vec<String> {
    let records: Vec<&str> = records.iter().map(String::as_str).collect();
    decode(&mut Debezium::default(), &TYPES, &records)
}

fn envelope(op: &str, row: &str, lsn: u32) -> String {
    let source = format!(
        r#"{{"connector":"postgresql","schema":"public","table":"t","txId":5,"lsn":{lsn}}}"#
    );
    let (before, after) = if op == "d" { (row, "null") } else { ("null", row) };
    format!(r#"{{"before":{before},"after":{after},"source":{source},"op":"{op}"}}"#)
}

fn row(id: u32, note: &str) -> String {
    format!(r#"{{"id":{id},"note":{note}}}"#)
}

#[test]
fn a_delete_and_an_insert_of_one_change_are_one_update() {
    let delete = envelope("d", &row(1, "null"), 24);
    let insert = envelope("c", &row(2, UNAVAILABLE), 24);
    let joined = ["Update public.t {id=2 note=-} was {id=1} in 5 end"];
    assert_eq!(lines(&[delete.clone(), insert.clone()]), joined);
    for between in ["null", "", r#"{"key":{"id":1},"value":null}"#, r#"{"ts_ms":1}"#] {
        let records = [delete.clone(), between.to_owned(), insert.clone()];
        assert_eq!(lines(&records), joined, "{between}");
    }
    // Messages with keys, but without headers.
    let pair = |key: u32, value: &str| format!(r#"{{"key":{{"id":{key}}},"value":{value}}}"#);
    assert_eq!(
        lines(&[pair(1, &delete), pair(1, "null"), pair(2, &insert)]),
        ["Update public.t {id=2 note=-} was {id=1} by [id] in 5 end"]
    );
}

/// An insert that omits a value stays an insert, which is refused later.
#[test]
fn records_that_are_not_known_to_be_one_change_are_not_joined() {
    let delete = envelope("d", &row(1, "null"), 24);
    let deleted = "Delete public.t was {id=1 note=NULL} in 5 end";
    for (insert, expected) in [
        (envelope("c", &row(2, UNAVAILABLE), 25), "Insert public.t {id=2 note=-} in 5 end"),
        (envelope("c", &row(2, "\"a\""), 24), "Insert public.t {id=2 note=a} in 5 end"),
        (
            envelope("c", &row(2, UNAVAILABLE), 24).replace("\"table\":\"t\"", "\"table\":\"u\""),
            "Insert public.u {id=2 note=-} in 5 end",
        ),
    ] {
        assert_eq!(lines(&[delete.clone(), insert]), [deleted, expected]);
    }
    // Another event comes between delete and insert.
    let insert = envelope("c", &row(2, UNAVAILABLE), 24);
    let between = envelope("c", &row(3, "\"a\""), 23);
    assert_eq!(lines(&[delete.clone(), between, insert.clone()]).len(), 3);
    // Without a place in the log, nothing shows that the delete and the insert are one change.
    let no_lsn = |record: &str| record.replace(",\"lsn\":24", "");
    assert_eq!(
        lines(&[no_lsn(&delete), no_lsn(&insert)]),
        [deleted, "Insert public.t {id=2 note=-} in 5 end"]
    );
}

/// A message's events may be committed before the next message is decoded. So an insert is not
/// joined to the delete of the message before. Without its omitted value it is refused later.
#[test]
fn messages_of_a_topic_are_not_joined_without_headers() {
    let mut decoder = Debezium::default();
    let mut events = Vec::new();
    for (key, op, note) in [(1, "d", "null"), (2, "c", UNAVAILABLE)] {
        let value = envelope(op, &row(key, note), 24);
        let key = format!("{{\"id\":{key}}}");
        let (key, value) = (Some(key.as_bytes()), Some(value.as_bytes()));
        let record =
            KeyedRecord { topic: "s.public.t", key, value, headers: &[], is_ordered: true };
        decoder.decode_keyed(&record, &TYPES, &mut events).unwrap();
    }
    let lines: Vec<String> = events.iter().map(line).collect();
    let deleted = "Delete public.t was {id=1} by [id] in 5 end";
    assert_eq!(lines, [deleted, "Insert public.t {id=2 note=-} by [id] in 5 end"]);
}

#[test]
fn flattened_rows_of_a_key_that_changed() {
    let at = r#""__schema":"public","__table":"t""#;
    let flat = |id: u32, note: &str, rest: &str| {
        format!(r#"{{"id":{id},"note":{note},{at},"__lsn":24,{rest}}}"#)
    };
    let insert = flat(2, UNAVAILABLE, r#""__op":"c","__deleted":"false""#);
    let delete = flat(1, "null", r#""__op":"d","__deleted":"true""#);
    assert_eq!(
        lines(&[delete.clone(), insert.clone()]),
        ["Update public.t {id=2 note=-} was {id=1} end"]
    );
    // Headers give the old key. The delete is a row marked as deleted, a tombstone, or missing.
    let new = r#""headers":{"__debezium.newkey":{"id":2}}"#;
    let old = r#""headers":{"__debezium.oldkey":{"id":1}}"#;
    let insert = format!(r#"{{"key":{{"id":2}},{old},"value":{insert}}}"#);
    let schema = r#"{"type":"struct","fields":[],"name":"srv.public.t.Key"}"#;
    let key = format!(r#""key":{{"schema":{schema},"payload":{{"id":1}}}}"#);
    let first = r#"{"key":{"id":9},"value":{"id":9,"__schema":"public","__table":"t"}}"#;
    let first_is = "Snapshot public.t {id=9} by [id] end";
    for delete in [
        vec![
            format!("{{{key},{new},\"value\":{delete}}}"),
            format!("{{{key},{new},\"value\":null}}"),
        ],
        vec![format!("{{{key},{new},\"value\":null}}")],
        vec![format!("{{{key},\"value\":null}}")],
        vec![],
    ] {
        let mut records = vec![first.to_owned()];
        records.extend(delete);
        records.push(insert.clone());
        assert_eq!(
            lines(&records),
            [first_is, "Update public.t {id=2 note=-} was {id=1} by [id] end"],
            "{records:?}"
        );
    }
}

#[test]
fn a_tombstone_is_of_the_table_that_its_key_names() {
    let schema =
        |table: &str| format!(r#"{{"type":"struct","fields":[],"name":"srv.public.{table}.Key"}}"#);
    let key = |table: &str| format!(r#"{{"schema":{},"payload":{{"id":1}}}}"#, schema(table));
    let table = Some(SourceTable { schema: None, table: "orders".to_owned() });
    let mut decoder = Debezium::new(DebeziumOptions { table, ..DebeziumOptions::default() });
    let tombstone = format!(r#"{{"key":{},"value":null}}"#, key("items"));
    let records = [r#"{"key":{"id":1},"value":{"id":1,"note":"a"}}"#, &tombstone];
    assert_eq!(
        decode(&mut decoder, &TYPES, &records),
        ["Snapshot orders {id=1 note=a} by [id] end", "Delete public.items was {id=1} by [id] end",]
    );
}

#[test]
fn a_record_of_null_key_and_null_value_is_a_tombstone() {
    let table = || Some(SourceTable { schema: None, table: "t".to_owned() });
    let decoder =
        || Debezium::new(DebeziumOptions { table: table(), ..DebeziumOptions::default() });
    let nothing = r#"{"key":null,"value":null}"#;
    let inserted = r#"{"key":null,"value":{"id":1,"note":"a"}}"#;
    assert_eq!(decode(&mut decoder(), &TYPES, &[nothing]), [""; 0]);
    assert_eq!(
        decode(&mut decoder(), &TYPES, &[inserted, nothing]),
        ["Snapshot t {id=1 note=a} end"]
    );
    // A table with the columns `key` and `value` has rows that look like pairs.
    assert_eq!(
        decode(&mut decoder(), &TYPES, &[r#"{"key":"a","value":"b"}"#, nothing]),
        ["Snapshot t {key=a value=b} end", "Snapshot t {key=NULL value=NULL} end"]
    );
}

#[test]
fn maps_within_strings_are_maps() {
    let value = |h: &str| lines(&[envelope("c", &format!(r#"{{"id":1,"h":{h}}}"#), 1)]).concat();
    for (json, expected) in [
        (r#""{\"a\":\"b c\",\"d\":null}""#, "h=\"a\"=>\"b c\", \"d\"=>NULL"),
        (r#""{}""#, "h="),
        (r#""{\"__debezium_unavailable_value\":\"__debezium_unavailable_value\"}""#, "h=-"),
        (r#""\"a\"=>\"b\"""#, "h=\"a\"=>\"b\""),
        (r#""{a=>1""#, "h={a=>1"),
    ] {
        assert_eq!(value(json), format!("Insert public.t {{id=1 {expected}}} in 5 end"), "{json}");
    }
}
