//! Random changes in every format, as the format's tool writes them. The stream also has bad
//! events, and the tool's records that are not rows. The table must have the expected rows, and the
//! dead letters must be exactly the bad events.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::random_history::SplitMix;
use crate::support::LoadCase;
use crate::{apply_and_report, rows};

/// The columns `v`, `n`, `note` and `data` of a row.
#[derive(Clone)]
struct ChangedRow {
    v: Value,
    n: Value,
    note: Value,
    data: Option<Vec<u8>>,
}

/// A change of one row, by its key.
enum RowChange {
    Insert(u32, ChangedRow),
    Update(u32, ChangedRow),
    /// An insert whose `v` is no integer.
    Bad(u32, ChangedRow),
    Delete(u32, ChangedRow),
    /// A change from the first key to the second. The row keeps its note.
    Move(u32, u32, ChangedRow),
}

const NOTES: [&str; 6] =
    ["", "plain", "\"quoted\", with a comma", "back\\slash", "é 😀", "{\"a\":1}"];

/// Returns a row with random values.
fn random_row(random: &mut SplitMix) -> ChangedRow {
    let note = NOTES.get(random.below(7) as usize).map_or(Value::Null, |note| json!(note));
    let data = (random.below(3) > 0).then(|| vec![0xfb, 0xff, random.below(256) as u8]);
    let n =
        format!("{}.{:02}", "9876543210".repeat(random.below(3) as usize) + "1", random.below(100));
    ChangedRow { v: json!(random.below(1000)), n: json!(n), note, data }
}

/// Returns random changes of a table, the rows after the changes, and the keys of the bad events.
fn random_changes(
    random: &mut SplitMix,
) -> (Vec<RowChange>, BTreeMap<u32, ChangedRow>, BTreeSet<u32>) {
    let (mut model, mut all, mut bad) =
        (BTreeMap::<u32, ChangedRow>::new(), Vec::new(), BTreeSet::new());
    for nth in 0..120 {
        let (id, other) = (random.below(20) as u32, 20 + random.below(20) as u32);
        let new = random_row(random);
        match (random.below(8), model.get(&id).cloned()) {
            (0, _) => {
                let id = 1000 + nth;
                bad.insert(id);
                all.push(RowChange::Bad(id, ChangedRow { v: json!("x"), ..new }));
            }
            (_, None) => {
                all.push(RowChange::Insert(id, new.clone()));
                model.insert(id, new);
            }
            (1 | 2, Some(old)) => {
                model.remove(&id);
                all.push(RowChange::Delete(id, old));
            }
            (3, Some(old)) if !model.contains_key(&other) => {
                let new = ChangedRow { note: old.note, ..new };
                model.remove(&id);
                all.push(RowChange::Move(id, other, new.clone()));
                model.insert(other, new);
            }
            (_, Some(_)) => {
                all.push(RowChange::Update(id, new.clone()));
                model.insert(id, new);
            }
        }
    }
    (all, model, bad)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = bytes.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte));
    let digit = |at: u32| char::from(DIGITS[(bits >> (18 - 6 * at) & 63) as usize]);
    (0..4).map(digit).collect()
}

fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

/// Returns a row as a JSON object. `spell` writes bytes as text.
fn json_object(id: u32, row: &ChangedRow, spell: fn(&[u8]) -> String) -> Value {
    let data = row.data.as_deref().map(spell);
    json!({"id": id, "v": row.v, "n": row.n, "note": row.note, "data": data})
}

/// Returns a row as a JSON object whose values are all strings.
fn json_strings(id: u32, row: &ChangedRow) -> Value {
    let mut object = json_object(id, row, latin1);
    for value in object.as_object_mut().unwrap().values_mut() {
        if value.is_number() {
            *value = json!(value.to_string());
        }
    }
    object
}

/// Writes a change, which is the nth of the stream. Returns its lines, and how many events the
/// lines have.
type EventWriter = fn(&RowChange, u32) -> (Vec<String>, u64);

/// Returns the line of a change that is one record and one event.
fn single_event(record: &Value) -> (Vec<String>, u64) {
    (vec![record.to_string()], 1)
}

/// Returns a key change as a delete and an insert, for formats that have no key changes.
fn delete_and_insert(
    write: EventWriter,
    from: u32,
    to: u32,
    row: &ChangedRow,
    nth: u32,
) -> (Vec<String>, u64) {
    let (mut lines, _) = write(&RowChange::Delete(from, row.clone()), nth);
    lines.extend(write(&RowChange::Insert(to, row.clone()), nth).0);
    (lines, 2)
}

fn plain(change: &RowChange, _: u32) -> (Vec<String>, u64) {
    let spell = |bytes: &[u8]| format!("\\x{}", hex(bytes));
    let event = |op: &str, row: Value| json!({"op": op, "table": "public.t", "row": row});
    single_event(&match change {
        RowChange::Insert(id, row) | RowChange::Bad(id, row) => {
            event("insert", json_object(*id, row, spell))
        }
        RowChange::Update(id, row) => event("update", json_object(*id, row, spell)),
        RowChange::Delete(id, _) => json!({"op": "delete", "table": "public.t", "key": {"id": id}}),
        RowChange::Move(from, to, row) => {
            let mut row = json_object(*to, row, spell);
            row.as_object_mut().unwrap().remove("note");
            json!({"op": "update", "table": "public.t", "key": {"id": from}, "row": row})
        }
    })
}

fn envelope(op: &str, before: Value, after: Value, nth: u32) -> Value {
    let source = json!({"version": "3.4", "connector": "postgresql", "name": "srv", "db": "d",
        "schema": "public", "table": "t", "txId": nth, "lsn": nth, "snapshot": "false"});
    json!({"before": before, "after": after, "source": source, "op": op, "ts_ms": 1})
}

fn debezium(change: &RowChange, nth: u32) -> (Vec<String>, u64) {
    let gone = |id: u32| json!({"id": id, "v": null, "n": null, "note": null, "data": null});
    match change {
        RowChange::Insert(id, row) | RowChange::Bad(id, row) => {
            single_event(&envelope("c", Value::Null, json_object(*id, row, base64), nth))
        }
        RowChange::Update(id, row) => {
            single_event(&envelope("u", Value::Null, json_object(*id, row, base64), nth))
        }
        RowChange::Delete(id, _) => {
            (vec![envelope("d", gone(*id), Value::Null, nth).to_string(), "null".to_owned()], 1)
        }
        RowChange::Move(from, to, row) => {
            let mut after = json_object(*to, row, base64);
            after["note"] = json!("__debezium_unavailable_value");
            let delete = envelope("d", gone(*from), Value::Null, nth).to_string();
            let insert = envelope("c", Value::Null, after, nth).to_string();
            (vec![delete, "null".to_owned(), insert], 2)
        }
    }
}

/// Returns a Debezium event with the debezium_with_schemas that Kafka Connect's converter writes.
fn debezium_with_schemas(change: &RowChange, nth: u32) -> (Vec<String>, u64) {
    let field = |name: &str, ty: &str| json!({"field": name, "type": ty, "optional": true});
    let fields = json!([
        field("id", "int32"),
        field("v", "int32"),
        field("n", "string"),
        field("note", "string"),
        field("data", "bytes")
    ]);
    let row = |name: &str| json!({"field": name, "type": "struct", "fields": fields});
    let schema = json!({"type": "struct", "name": "srv.public.t.Envelope",
        "fields": [row("before"), row("after"), field("op", "string")]});
    let (lines, count) = debezium(change, nth);
    let wrap = |line: String| {
        let payload: Value = serde_json::from_str(&line).unwrap();
        // The schema comes first, as the converter writes it.
        format!("{{\"schema\":{schema},\"payload\":{payload}}}")
    };
    (lines.into_iter().map(wrap).collect(), count)
}

fn flattened(change: &RowChange, nth: u32) -> (Vec<String>, u64) {
    let flat = |op: &str, id: u32, row: &ChangedRow| {
        let mut flat = json_object(id, row, base64);
        flat["__op"] = json!(op);
        flat["__deleted"] = json!((op == "d").to_string());
        (flat["__schema"], flat["__table"], flat["__lsn"]) =
            (json!("public"), json!("t"), json!(nth));
        single_event(&flat)
    };
    match change {
        RowChange::Insert(id, row) | RowChange::Bad(id, row) => flat("c", *id, row),
        RowChange::Update(id, row) => flat("u", *id, row),
        RowChange::Delete(id, row) => flat("d", *id, row),
        RowChange::Move(from, to, row) => delete_and_insert(flattened, *from, *to, row, nth),
    }
}

fn columns(id: u32, row: &ChangedRow, has_note: bool) -> Vec<(&'static str, &'static str, Value)> {
    let mut columns = vec![("id", "integer", json!(id)), ("v", "integer", row.v.clone())];
    columns.push(("n", "numeric(40,2)", row.n.clone()));
    if has_note {
        columns.push(("note", "text", row.note.clone()));
    }
    columns.push(("data", "bytea", json!(row.data.as_deref().map(hex))));
    columns
}

fn wal2json_2(change: &RowChange, nth: u32) -> (Vec<String>, u64) {
    let list = |columns: Vec<(&str, &str, Value)>| -> Value {
        let column = |(name, ty, value)| json!({"name": name, "type": ty, "value": value});
        columns.into_iter().map(column).collect()
    };
    let key = |id: u32| json!([{"name": "id", "type": "integer", "value": id}]);
    let mut record = match change {
        RowChange::Insert(id, row) | RowChange::Bad(id, row) => {
            json!({"action": "I", "columns": list(columns(*id, row, true))})
        }
        RowChange::Update(id, row) => json!({"action": "U",
            "columns": list(columns(*id, row, true)), "identity": key(*id)}),
        RowChange::Delete(id, _) => json!({"action": "D", "identity": key(*id)}),
        RowChange::Move(from, to, row) => json!({"action": "U",
            "columns": list(columns(*to, row, false)), "identity": key(*from)}),
    };
    (record["schema"], record["table"], record["xid"]) = (json!("public"), json!("t"), json!(nth));
    let mark = |action: &str| json!({"action": action, "xid": nth}).to_string();
    (vec![mark("B"), record.to_string(), mark("C")], 1)
}

fn wal2json_1(change: &RowChange, nth: u32) -> (Vec<String>, u64) {
    let add = |record: &mut Value, columns: Vec<(&str, &str, Value)>| {
        record["columnnames"] = columns.iter().map(|(name, ..)| *name).collect();
        record["columntypes"] = columns.iter().map(|(_, ty, _)| *ty).collect();
        record["columnvalues"] = columns.into_iter().map(|(.., value)| value).collect();
    };
    let key = |id: u32| json!({"keynames": ["id"], "keytypes": ["integer"], "keyvalues": [id]});
    let mut record = json!({"schema": "public", "table": "t"});
    match change {
        RowChange::Insert(id, row) | RowChange::Bad(id, row) => {
            record["kind"] = json!("insert");
            add(&mut record, columns(*id, row, true));
        }
        RowChange::Update(id, row) => {
            (record["kind"], record["oldkeys"]) = (json!("update"), key(*id));
            add(&mut record, columns(*id, row, true));
        }
        RowChange::Delete(id, _) => {
            (record["kind"], record["oldkeys"]) = (json!("delete"), key(*id));
        }
        RowChange::Move(from, to, row) => {
            (record["kind"], record["oldkeys"]) = (json!("update"), key(*from));
            add(&mut record, columns(*to, row, false));
        }
    }
    single_event(&json!({"xid": nth, "change": [record]}))
}

fn maxwell(change: &RowChange, nth: u32) -> (Vec<String>, u64) {
    let record = |ty: &str, data: Value, old: Value| {
        single_event(&json!({"database": "public", "table": "t", "type": ty, "ts": 1, "xid": nth,
            "commit": true, "primary_key_columns": ["id"], "data": data, "old": old}))
    };
    match change {
        RowChange::Insert(id, row) | RowChange::Bad(id, row) => {
            record("insert", json_object(*id, row, base64), Value::Null)
        }
        RowChange::Update(id, row) => {
            record("update", json_object(*id, row, base64), json!({"v": 1}))
        }
        RowChange::Delete(id, row) => record("delete", json_object(*id, row, base64), Value::Null),
        RowChange::Move(from, to, row) => {
            record("update", json_object(*to, row, base64), json!({"id": from}))
        }
    }
}

fn canal(change: &RowChange, nth: u32) -> (Vec<String>, u64) {
    let message = |ty: &str, data: Value, old: Value| {
        single_event(
            &json!({"data": [data], "old": old, "database": "public", "table": "t", "type": ty,
            "isDdl": false, "es": 1, "ts": 1, "id": nth, "pkNames": ["id"], "sql": "",
            "mysqlType": {"id": "int"}, "sqlType": {"id": 4}}),
        )
    };
    match change {
        RowChange::Insert(id, row) | RowChange::Bad(id, row) => {
            message("INSERT", json_strings(*id, row), Value::Null)
        }
        RowChange::Update(id, row) => {
            message("UPDATE", json_strings(*id, row), json!([{"v": "1"}]))
        }
        RowChange::Delete(id, row) => message("DELETE", json_strings(*id, row), Value::Null),
        RowChange::Move(from, to, row) => {
            message("UPDATE", json_strings(*to, row), json!([{"id": from.to_string()}]))
        }
    }
}

/// Returns Flink's records: a deleted row, an inserted row, or both for an update.
fn flink(change: &RowChange, nth: u32) -> (Vec<String>, u64) {
    let message = |ty: &str, id: u32, row: &ChangedRow| {
        single_event(&json!({"data": [json_object(id, row, base64)], "type": ty}))
    };
    match change {
        RowChange::Insert(id, row) | RowChange::Bad(id, row) => message("INSERT", *id, row),
        RowChange::Update(id, row) => delete_and_insert(flink, *id, *id, row, nth),
        RowChange::Delete(id, row) => message("DELETE", *id, row),
        RowChange::Move(from, to, row) => delete_and_insert(flink, *from, *to, row, nth),
    }
}

fn dms_json(change: &RowChange, nth: u32) -> (Vec<String>, u64) {
    let message = |operation: &str, id: u32, row: &ChangedRow| {
        let metadata = json!({"record-type": "data", "operation": operation, "timestamp": "now",
            "schema-name": "public", "table-name": "t", "partition-key-type": "primary-key"});
        single_event(&json!({"data": json_object(id, row, |bytes| format!("0x{}", hex(bytes))),
            "metadata": metadata}))
    };
    match change {
        RowChange::Insert(id, row) | RowChange::Bad(id, row) => message("insert", *id, row),
        RowChange::Update(id, row) => message("update", *id, row),
        RowChange::Delete(id, row) => message("delete", *id, row),
        RowChange::Move(from, to, row) => delete_and_insert(dms_json, *from, *to, row, nth),
    }
}

fn dms_csv(change: &RowChange, nth: u32) -> (Vec<String>, u64) {
    let line = |op: &str, id: u32, row: &ChangedRow| {
        let text = |value: &Value| match value {
            Value::String(text) => format!("\"{}\"", text.replace('"', "\"\"")),
            Value::Null => "NULL".to_owned(),
            other => other.to_string(),
        };
        let data = row.data.as_deref().map_or("NULL".to_owned(), hex);
        let cells = [text(&row.v), text(&row.n), text(&row.note), data].join(",");
        (vec![format!("{op},{id},{cells}")], 1)
    };
    match change {
        RowChange::Insert(id, row) | RowChange::Bad(id, row) => line("I", *id, row),
        RowChange::Update(id, row) => line("U", *id, row),
        RowChange::Delete(id, row) => line("D", *id, row),
        RowChange::Move(from, to, row) => delete_and_insert(dms_csv, *from, *to, row, nth),
    }
}

/// Records of Debezium that are not rows.
const DEBEZIUM_NOISE: &[&str] = &[
    r#"{"ts_ms":1709287200000}"#,
    r#"{"ts_ms":1709287200000,"ts_us":1709287200000000,"ts_ns":1709287200000000000}"#,
    concat!(
        r#"{"status":"BEGIN","id":"571:53195829","event_count":null,"data_collections":null,"#,
        r#""ts_ms":1}"#,
    ),
    r#"{"status":"END","id":"571:5","event_count":1,"data_collections":[],"ts_ms":1}"#,
    concat!(
        r#"{"source":{"connector":"mysql","server":"m"},"ts_ms":1,"databaseName":"d","#,
        r#""schemaName":null,"ddl":"create table t (id int)","tableChanges":[{"type":"CREATE","#,
        r#""id":"\"d\".\"t\""}]}"#,
    ),
    concat!(
        r#"{"source":{"server":"m"},"position":{"file":"b.1"},"databaseName":"d","#,
        r#""ddl":"drop table x"}"#,
    ),
    r#"{"key":null,"value":null}"#,
    r#"{"key":{"serverName":"srv"},"value":{"ts_ms":1}}"#,
    "null",
];
const WAL2JSON_NOISE: &[&str] = &[
    r#"{"action":"M","transactional":false,"prefix":"p","content":"c"}"#,
    "{\"action\":\"B\",\"xid\":1}\n{\"action\":\"C\",\"xid\":1}",
];
const MAXWELL_NOISE: &[&str] = &[
    r#"{"type":"table-create","database":"d","table":"t","def":{"columns":[]},"ts":1,"sql":"x"}"#,
    r#"{"type":"table-alter","database":"d","table":"t","old":{},"def":{},"ts":1,"sql":"x"}"#,
    r#"{"type":"database-create","database":"d","character_set":"utf8","ts":1,"sql":"x"}"#,
    r#"{"database":"d","table":"t","type":"bootstrap-start","ts":1,"data":{}}"#,
];
const CANAL_NOISE: &[&str] = &[
    concat!(
        r#"{"data":null,"database":"d","es":1,"id":1,"isDdl":true,"mysqlType":null,"old":null,"#,
        r#""pkNames":null,"sql":"create table t (id int)","sqlType":null,"table":"t","ts":1,"#,
        r#""type":"CREATE"}"#,
    ),
    concat!(
        r#"{"data":null,"database":"","es":1,"id":1,"isDdl":false,"sql":"x","table":"","ts":1,"#,
        r#""type":"QUERY"}"#,
    ),
    concat!(
        r#"{"id":0,"database":"","table":"","pkNames":null,"isDdl":false,"#,
        r#""type":"TIDB_WATERMARK","es":1,"ts":1,"sql":"","data":null,"old":null,"#,
        r#""_tidb":{"watermarkTs":1}}"#,
    ),
];
const DMS_NOISE: &[&str] = &[concat!(
    r#"{"metadata":{"record-type":"control","operation":"create-table","schema-name":"d","#,
    r#""table-name":"t"},"control":{}}"#,
)];

/// The formats: the name, the writer of changes, records that are not rows, and arguments.
const FORMATS: [(&str, EventWriter, &[&str], &str); 11] = [
    ("pgspate", plain, &[], ""),
    ("debezium", debezium, DEBEZIUM_NOISE, ""),
    ("debezium with schemas", debezium_with_schemas, DEBEZIUM_NOISE, ""),
    ("flattened", flattened, DEBEZIUM_NOISE, ""),
    ("wal2json 2", wal2json_2, WAL2JSON_NOISE, ""),
    ("wal2json 1", wal2json_1, &[r#"{"change":[]}"#], ""),
    ("maxwell", maxwell, MAXWELL_NOISE, ""),
    ("canal", canal, CANAL_NOISE, ""),
    ("canal of Flink", flink, &[], "--source-table public.t"),
    ("dms json", dms_json, DMS_NOISE, ""),
    ("dms csv", dms_csv, &[], "--source-table public.t --dms-columns id,v,n,note,data"),
];

#[test]
fn every_format_leads_to_the_expected_table() {
    for (at, (format, write, noise, args)) in FORMATS.into_iter().enumerate() {
        let mut random = SplitMix(at as u64 + 1);
        let (changes, model, bad) = random_changes(&mut random);
        let mut lines = Vec::new();
        let mut events = 0;
        for (nth, change) in changes.iter().enumerate() {
            // A stream begins with a record that is not a row, if the format has such records.
            let turn = if nth == 0 { 1 } else { random.below(4) };
            if turn == 1 && !noise.is_empty() {
                lines.push(noise[random.below(noise.len() as u64) as usize].to_owned());
            }
            let (more, count) = write(change, nth as u32 + 1);
            lines.extend(more);
            events += count;
        }
        let case = LoadCase::new(
            "create table t (id int primary key, v int, n numeric, note text, data bytea); \
             create table model (like t)",
        );
        for (id, row) in &model {
            let note = row
                .note
                .as_str()
                .map_or("null".to_owned(), |note| format!("'{}'", note.replace('\'', "''")));
            let data = row.data.as_deref();
            let data = data.map_or("null".to_owned(), |data| format!("'\\x{}'", hex(data)));
            let (v, n) = (&row.v, row.n.as_str().unwrap());
            case.db.run(&format!("insert into model values ({id}, {v}, {n}, {note}, {data})"));
        }
        let args = format!("{args} --max-dead-letters 1000 --batch-rows {}", 1 + random.below(50));
        let report = apply_and_report(&case, &(lines.join("\n") + "\n"), &args);
        assert_eq!(rows(&case, "t"), rows(&case, "model"), "{format}");
        assert_eq!(report["dead_letters"], bad.len(), "{format}");
        assert_eq!(
            (&report["events"], &report["missing"]),
            (&events.into(), &0.into()),
            "{format}"
        );
        let letters = "select coalesce(string_agg(payload::json -> 'row' ->> 'id', ' ' order by \
                       position), '') from pgspate.dead_letter where table_name = 'public.t'";
        let bad: Vec<String> = bad.iter().map(u32::to_string).collect();
        assert_eq!(case.value(letters), bad.join(" "), "{format}");
    }
}

/// pgspate detects the format also if the first record is not a row.
#[test]
fn the_format_is_detected_from_any_first_record() {
    for (format, write, noise, args) in FORMATS {
        let row = ChangedRow { v: json!(1), n: json!("1.50"), note: json!("a"), data: None };
        let (lines, _) = write(&RowChange::Insert(1, row), 1);
        for first in noise {
            let case = LoadCase::new(
                "create table t (id int primary key, v int, n numeric, note text, data bytea)",
            );
            apply_and_report(&case, &format!("{first}\n{}\n", lines.join("\n")), args);
            assert_eq!(rows(&case, "t"), "(1,1,1.50,a,)", "{format}: {first}");
        }
    }
}
