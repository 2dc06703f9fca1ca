//! Changes by chance, written in every format as its tool writes them, with what else its tool
//! writes and with bad events among them: the table is as it should be, and the letters hold the
//! bad events alone.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::history::Chance;
use crate::support::Case;
use crate::{applied, rows};

/// v, n, note and data of a row.
#[derive(Clone)]
struct Row {
    v: Value,
    n: Value,
    note: Value,
    data: Option<Vec<u8>>,
}

enum Change {
    Insert(u32, Row),
    Update(u32, Row),
    /// Its `v` is none.
    Bad(u32, Row),
    Delete(u32, Row),
    /// From one key to another; the note does not change.
    Move(u32, u32, Row),
}

const NOTES: [&str; 6] =
    ["", "plain", "\"quoted\", with a comma", "back\\slash", "é 😀", "{\"a\":1}"];

fn row(chance: &mut Chance) -> Row {
    let note = NOTES.get(chance.below(7) as usize).map_or(Value::Null, |note| json!(note));
    let data = (chance.below(3) > 0).then(|| vec![0xfb, 0xff, chance.below(256) as u8]);
    let n =
        format!("{}.{:02}", "9876543210".repeat(chance.below(3) as usize) + "1", chance.below(100));
    Row { v: json!(chance.below(1000)), n: json!(n), note, data }
}

/// What happens to a table of at most 20 rows, and what is left of it.
fn changes(chance: &mut Chance) -> (Vec<Change>, BTreeMap<u32, Row>, BTreeSet<u32>) {
    let (mut model, mut all, mut bad) = (BTreeMap::<u32, Row>::new(), Vec::new(), BTreeSet::new());
    for nth in 0..120 {
        let (id, other) = (chance.below(20) as u32, 20 + chance.below(20) as u32);
        let new = row(chance);
        match (chance.below(8), model.get(&id).cloned()) {
            (0, _) => {
                let id = 1000 + nth;
                bad.insert(id);
                all.push(Change::Bad(id, Row { v: json!("x"), ..new }));
            }
            (_, None) => {
                all.push(Change::Insert(id, new.clone()));
                model.insert(id, new);
            }
            (1 | 2, Some(old)) => {
                model.remove(&id);
                all.push(Change::Delete(id, old));
            }
            (3, Some(old)) if !model.contains_key(&other) => {
                let new = Row { note: old.note, ..new };
                model.remove(&id);
                all.push(Change::Move(id, other, new.clone()));
                model.insert(other, new);
            }
            (_, Some(_)) => {
                all.push(Change::Update(id, new.clone()));
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

/// A row as an object, with bytes spelled so.
fn object(id: u32, row: &Row, spell: fn(&[u8]) -> String) -> Value {
    let data = row.data.as_deref().map(spell);
    json!({"id": id, "v": row.v, "n": row.n, "note": row.note, "data": data})
}

/// The same, with every value a string.
fn strings(id: u32, row: &Row) -> Value {
    let mut object = object(id, row, latin1);
    for value in object.as_object_mut().unwrap().values_mut() {
        if value.is_number() {
            *value = json!(value.to_string());
        }
    }
    object
}

/// The lines of a change, and how many events they are.
type Write = fn(&Change, u32) -> (Vec<String>, u64);

fn one(record: &Value) -> (Vec<String>, u64) {
    (vec![record.to_string()], 1)
}

/// A change of a key as what it is to formats that do not know of it.
fn twice(write: Write, from: u32, to: u32, row: &Row, nth: u32) -> (Vec<String>, u64) {
    let (mut lines, _) = write(&Change::Delete(from, row.clone()), nth);
    lines.extend(write(&Change::Insert(to, row.clone()), nth).0);
    (lines, 2)
}

fn plain(change: &Change, _: u32) -> (Vec<String>, u64) {
    let spell = |bytes: &[u8]| format!("\\x{}", hex(bytes));
    let event = |op: &str, row: Value| json!({"op": op, "table": "public.t", "row": row});
    one(&match change {
        Change::Insert(id, row) | Change::Bad(id, row) => event("insert", object(*id, row, spell)),
        Change::Update(id, row) => event("update", object(*id, row, spell)),
        Change::Delete(id, _) => json!({"op": "delete", "table": "public.t", "key": {"id": id}}),
        Change::Move(from, to, row) => {
            let mut row = object(*to, row, spell);
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

fn debezium(change: &Change, nth: u32) -> (Vec<String>, u64) {
    let gone = |id: u32| json!({"id": id, "v": null, "n": null, "note": null, "data": null});
    match change {
        Change::Insert(id, row) | Change::Bad(id, row) => {
            one(&envelope("c", Value::Null, object(*id, row, base64), nth))
        }
        Change::Update(id, row) => one(&envelope("u", Value::Null, object(*id, row, base64), nth)),
        Change::Delete(id, _) => {
            (vec![envelope("d", gone(*id), Value::Null, nth).to_string(), "null".to_owned()], 1)
        }
        Change::Move(from, to, row) => {
            let mut after = object(*to, row, base64);
            after["note"] = json!("__debezium_unavailable_value");
            let delete = envelope("d", gone(*from), Value::Null, nth).to_string();
            let insert = envelope("c", Value::Null, after, nth).to_string();
            (vec![delete, "null".to_owned(), insert], 2)
        }
    }
}

/// With the schemas that Kafka Connect's converter writes.
fn schemas(change: &Change, nth: u32) -> (Vec<String>, u64) {
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

fn flattened(change: &Change, nth: u32) -> (Vec<String>, u64) {
    let flat = |op: &str, id: u32, row: &Row| {
        let mut flat = object(id, row, base64);
        flat["__op"] = json!(op);
        flat["__deleted"] = json!((op == "d").to_string());
        (flat["__schema"], flat["__table"], flat["__lsn"]) =
            (json!("public"), json!("t"), json!(nth));
        one(&flat)
    };
    match change {
        Change::Insert(id, row) | Change::Bad(id, row) => flat("c", *id, row),
        Change::Update(id, row) => flat("u", *id, row),
        Change::Delete(id, row) => flat("d", *id, row),
        Change::Move(from, to, row) => twice(flattened, *from, *to, row, nth),
    }
}

fn columns(id: u32, row: &Row, has_note: bool) -> Vec<(&'static str, &'static str, Value)> {
    let mut columns = vec![("id", "integer", json!(id)), ("v", "integer", row.v.clone())];
    columns.push(("n", "numeric(40,2)", row.n.clone()));
    if has_note {
        columns.push(("note", "text", row.note.clone()));
    }
    columns.push(("data", "bytea", json!(row.data.as_deref().map(hex))));
    columns
}

fn wal2json_2(change: &Change, nth: u32) -> (Vec<String>, u64) {
    let list = |columns: Vec<(&str, &str, Value)>| -> Value {
        let column = |(name, ty, value)| json!({"name": name, "type": ty, "value": value});
        columns.into_iter().map(column).collect()
    };
    let key = |id: u32| json!([{"name": "id", "type": "integer", "value": id}]);
    let mut record = match change {
        Change::Insert(id, row) | Change::Bad(id, row) => {
            json!({"action": "I", "columns": list(columns(*id, row, true))})
        }
        Change::Update(id, row) => json!({"action": "U",
            "columns": list(columns(*id, row, true)), "identity": key(*id)}),
        Change::Delete(id, _) => json!({"action": "D", "identity": key(*id)}),
        Change::Move(from, to, row) => json!({"action": "U",
            "columns": list(columns(*to, row, false)), "identity": key(*from)}),
    };
    (record["schema"], record["table"], record["xid"]) = (json!("public"), json!("t"), json!(nth));
    let mark = |action: &str| json!({"action": action, "xid": nth}).to_string();
    (vec![mark("B"), record.to_string(), mark("C")], 1)
}

fn wal2json_1(change: &Change, nth: u32) -> (Vec<String>, u64) {
    let add = |record: &mut Value, columns: Vec<(&str, &str, Value)>| {
        record["columnnames"] = columns.iter().map(|(name, ..)| *name).collect();
        record["columntypes"] = columns.iter().map(|(_, ty, _)| *ty).collect();
        record["columnvalues"] = columns.into_iter().map(|(.., value)| value).collect();
    };
    let key = |id: u32| json!({"keynames": ["id"], "keytypes": ["integer"], "keyvalues": [id]});
    let mut record = json!({"schema": "public", "table": "t"});
    match change {
        Change::Insert(id, row) | Change::Bad(id, row) => {
            record["kind"] = json!("insert");
            add(&mut record, columns(*id, row, true));
        }
        Change::Update(id, row) => {
            (record["kind"], record["oldkeys"]) = (json!("update"), key(*id));
            add(&mut record, columns(*id, row, true));
        }
        Change::Delete(id, _) => {
            (record["kind"], record["oldkeys"]) = (json!("delete"), key(*id));
        }
        Change::Move(from, to, row) => {
            (record["kind"], record["oldkeys"]) = (json!("update"), key(*from));
            add(&mut record, columns(*to, row, false));
        }
    }
    one(&json!({"xid": nth, "change": [record]}))
}

fn maxwell(change: &Change, nth: u32) -> (Vec<String>, u64) {
    let record = |ty: &str, data: Value, old: Value| {
        one(&json!({"database": "public", "table": "t", "type": ty, "ts": 1, "xid": nth,
            "commit": true, "primary_key_columns": ["id"], "data": data, "old": old}))
    };
    match change {
        Change::Insert(id, row) | Change::Bad(id, row) => {
            record("insert", object(*id, row, base64), Value::Null)
        }
        Change::Update(id, row) => record("update", object(*id, row, base64), json!({"v": 1})),
        Change::Delete(id, row) => record("delete", object(*id, row, base64), Value::Null),
        Change::Move(from, to, row) => {
            record("update", object(*to, row, base64), json!({"id": from}))
        }
    }
}

fn canal(change: &Change, nth: u32) -> (Vec<String>, u64) {
    let message = |ty: &str, data: Value, old: Value| {
        one(&json!({"data": [data], "old": old, "database": "public", "table": "t", "type": ty,
            "isDdl": false, "es": 1, "ts": 1, "id": nth, "pkNames": ["id"], "sql": "",
            "mysqlType": {"id": "int"}, "sqlType": {"id": 4}}))
    };
    match change {
        Change::Insert(id, row) | Change::Bad(id, row) => {
            message("INSERT", strings(*id, row), Value::Null)
        }
        Change::Update(id, row) => message("UPDATE", strings(*id, row), json!([{"v": "1"}])),
        Change::Delete(id, row) => message("DELETE", strings(*id, row), Value::Null),
        Change::Move(from, to, row) => {
            message("UPDATE", strings(*to, row), json!([{"id": from.to_string()}]))
        }
    }
}

/// Flink writes rows that come and rows that go, and of an update both.
fn flink(change: &Change, nth: u32) -> (Vec<String>, u64) {
    let message =
        |ty: &str, id: u32, row: &Row| one(&json!({"data": [object(id, row, base64)], "type": ty}));
    match change {
        Change::Insert(id, row) | Change::Bad(id, row) => message("INSERT", *id, row),
        Change::Update(id, row) => twice(flink, *id, *id, row, nth),
        Change::Delete(id, row) => message("DELETE", *id, row),
        Change::Move(from, to, row) => twice(flink, *from, *to, row, nth),
    }
}

fn dms_json(change: &Change, nth: u32) -> (Vec<String>, u64) {
    let message = |operation: &str, id: u32, row: &Row| {
        let metadata = json!({"record-type": "data", "operation": operation, "timestamp": "now",
            "schema-name": "public", "table-name": "t", "partition-key-type": "primary-key"});
        one(&json!({"data": object(id, row, |bytes| format!("0x{}", hex(bytes))),
            "metadata": metadata}))
    };
    match change {
        Change::Insert(id, row) | Change::Bad(id, row) => message("insert", *id, row),
        Change::Update(id, row) => message("update", *id, row),
        Change::Delete(id, row) => message("delete", *id, row),
        Change::Move(from, to, row) => twice(dms_json, *from, *to, row, nth),
    }
}

fn dms_csv(change: &Change, nth: u32) -> (Vec<String>, u64) {
    let line = |op: &str, id: u32, row: &Row| {
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
        Change::Insert(id, row) | Change::Bad(id, row) => line("I", *id, row),
        Change::Update(id, row) => line("U", *id, row),
        Change::Delete(id, row) => line("D", *id, row),
        Change::Move(from, to, row) => twice(dms_csv, *from, *to, row, nth),
    }
}

const DEBEZIUM: &[&str] = &[
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
const WAL2JSON: &[&str] = &[
    r#"{"action":"M","transactional":false,"prefix":"p","content":"c"}"#,
    "{\"action\":\"B\",\"xid\":1}\n{\"action\":\"C\",\"xid\":1}",
];
const MAXWELL: &[&str] = &[
    r#"{"type":"table-create","database":"d","table":"t","def":{"columns":[]},"ts":1,"sql":"x"}"#,
    r#"{"type":"table-alter","database":"d","table":"t","old":{},"def":{},"ts":1,"sql":"x"}"#,
    r#"{"type":"database-create","database":"d","character_set":"utf8","ts":1,"sql":"x"}"#,
    r#"{"database":"d","table":"t","type":"bootstrap-start","ts":1,"data":{}}"#,
];
const CANAL: &[&str] = &[
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
const DMS: &[&str] = &[concat!(
    r#"{"metadata":{"record-type":"control","operation":"create-table","schema-name":"d","#,
    r#""table-name":"t"},"control":{}}"#,
)];

const FORMATS: [(&str, Write, &[&str], &str); 11] = [
    ("pgspate", plain, &[], ""),
    ("debezium", debezium, DEBEZIUM, ""),
    ("debezium with schemas", schemas, DEBEZIUM, ""),
    ("flattened", flattened, DEBEZIUM, ""),
    ("wal2json 2", wal2json_2, WAL2JSON, ""),
    ("wal2json 1", wal2json_1, &[r#"{"change":[]}"#], ""),
    ("maxwell", maxwell, MAXWELL, ""),
    ("canal", canal, CANAL, ""),
    ("canal of Flink", flink, &[], "--source-table public.t"),
    ("dms json", dms_json, DMS, ""),
    ("dms csv", dms_csv, &[], "--source-table public.t --dms-columns id,v,n,note,data"),
];

#[test]
fn every_format_leads_to_the_table_that_was_meant() {
    for (at, (format, write, noise, args)) in FORMATS.into_iter().enumerate() {
        let mut chance = Chance(at as u64 + 1);
        let (changes, model, bad) = changes(&mut chance);
        let mut lines = Vec::new();
        let mut events = 0;
        for (nth, change) in changes.iter().enumerate() {
            // Each of them is the first record of some stream.
            let turn = if nth == 0 { 1 } else { chance.below(4) };
            if turn == 1 && !noise.is_empty() {
                lines.push(noise[chance.below(noise.len() as u64) as usize].to_owned());
            }
            let (more, count) = write(change, nth as u32 + 1);
            lines.extend(more);
            events += count;
        }
        let case = Case::new(
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
        let args = format!("{args} --max-dead-letters 1000 --batch-rows {}", 1 + chance.below(50));
        let report = applied(&case, &(lines.join("\n") + "\n"), &args);
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

/// Whatever a tool writes beside rows tells its format as well as rows do, wherever it stands.
#[test]
fn the_format_is_found_whatever_comes_first() {
    for (format, write, noise, args) in FORMATS {
        let row = Row { v: json!(1), n: json!("1.50"), note: json!("a"), data: None };
        let (lines, _) = write(&Change::Insert(1, row), 1);
        for first in noise {
            let case = Case::new(
                "create table t (id int primary key, v int, n numeric, note text, data bytea)",
            );
            applied(&case, &format!("{first}\n{}\n", lines.join("\n")), args);
            assert_eq!(rows(&case, "t"), "(1,1,1.50,a,)", "{format}: {first}");
        }
    }
}
