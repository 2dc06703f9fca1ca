//! Event formats of other tools. pgspate detects each format by its first record.

use std::fs::File;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;

use crate::support::LoadCase;
use crate::{apply, apply_and_report, counts, rows};

/// Applies the events to a table with two rows and compares the rows.
#[track_caller]
fn assert_leads_to(events: &str, args: &str, expected: &str) {
    let case = LoadCase::new("create table t (id int primary key, n numeric, note text)");
    case.db.run("insert into t values (1, 1.50, 'one'), (2, 2, 'two')");
    apply_and_report(&case, events, args);
    assert_eq!(rows(&case, "t"), expected);
}

#[test]
fn debezium_events_are_applied() {
    let source = r#""source":{"connector":"postgresql","db":"d","schema":"public","table":"t"}"#;
    let events = [
        r#"{"before":null,"after":{"id":3,"n":"3.25","note":"three"},"op":"c","#,
        source,
        "}\n",
        r#"{"before":null,"op":"u","#,
        r#""after":{"id":1,"n":"9","note":"__debezium_unavailable_value"},"#,
        source,
        "}\n",
        r#"{"before":{"id":2,"n":null,"note":null},"after":null,"op":"d","#,
        source,
        "}\n",
        "null\n",
    ];
    assert_leads_to(&events.concat(), "", "(1,9,one) (3,3.25,three)");
}

/// A number with a large scale has far more zeros than the event has bytes. Keys may be such
/// numbers.
#[test]
fn debezium_numbers_of_large_scales_keep_their_value() {
    let case = LoadCase::new("create table t (n numeric primary key, v int)");
    let field = r#"{"field":"n","type":"struct","name":"io.debezium.data.VariableScaleDecimal"}"#;
    let fields = format!(r#"[{field},{{"field":"v","type":"int32"}}]"#);
    let schema = format!(
        r#"{{"type":"struct","name":"s.public.t.Envelope","fields":[
{{"field":"after","type":"struct","fields":{fields}}},{{"field":"op","type":"string"}}]}}"#
    );
    let event = |scale: i32, digits: &str, v: u32| {
        let after = format!(r#"{{"n":{{"scale":{scale},"value":"{digits}"}},"v":{v}}}"#);
        let payload = format!(r#"{{"op":"c","after":{after},"source":{{"table":"t"}}}}"#);
        format!(r#"{{"schema":{schema},"payload":{payload}}}"#).replace('\n', "") + "\n"
    };
    let events = event(-131_071, "AQ==", 1)
        + &event(16_383, "/w==", 2)
        + &event(2, "AQ==", 3)
        + &event(-131_070, "Cg==", 4);
    apply_and_report(&case, &events, "");
    let found = "select string_agg(v || ' ' || (n::text in (rpad('1', 131072, '0'), \
                 '-0.' || lpad('1', 16383, '0'), '0.01'))::text, ', ' order by v) from t";
    assert_eq!(case.value(found), "2 true, 3 true, 4 true");
}

/// With `--unknown-columns ignore`, a column that the target lacks may have a value of any type. A
/// time of more than 24 hours becomes an interval.
#[test]
fn debezium_columns_that_the_target_lacks_are_ignored() {
    let case = LoadCase::new("create table t (id int primary key, note interval)");
    let geometry = r#"{"type":"struct","name":"io.debezium.data.geometry.Geometry","field":"g"}"#;
    let time = r#"{"type":"int64","name":"io.debezium.time.MicroTime","field":"note"}"#;
    let id = r#"{"type":"int32","field":"id"}"#;
    let row = format!(r#"{{"type":"struct","fields":[{id},{geometry},{time}],"field":"after"}}"#);
    let op = r#"{"type":"string","field":"op"}"#;
    let name = "s.public.t.Envelope";
    let schema = format!(r#"{{"type":"struct","fields":[{row},{op}],"name":"{name}"}}"#);
    let after = r#"{"id":1,"g":{"wkb":"AQ==","srid":4326},"note":-360000000000}"#;
    let source = r#"{"connector":"mysql","db":"d","schema":"public","table":"t"}"#;
    let payload = format!(r#"{{"before":null,"after":{after},"op":"c","source":{source}}}"#);
    let event = format!("{{\"schema\":{schema},\"payload\":{payload}}}\n");
    case.put("s.ndjson", &event);
    let run = apply(&case, "s.ndjson --quiet");
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("geometry values are not supported"), "{}", run.stderr);
    apply_and_report(&case, &event, "--unknown-columns ignore");
    assert_eq!(rows(&case, "t"), "(1,-100:00:00)");
}

#[test]
fn wal2json_events_are_applied() {
    let v2 = r#"{"action":"B","xid":7}
{"action":"U","xid":7,"schema":"public","table":"t","columns":[
"#;
    // In the file, each record must be one line.
    let v2 = v2.trim_end().to_owned()
        + r#"{"name":"id","type":"integer","value":10},"#
        + r#"{"name":"n","type":"numeric","value":1.50}],"#
        + r#""identity":[{"name":"id","type":"integer","value":1}]}"#
        + "\n{\"action\":\"C\",\"xid\":7}\n";
    assert_leads_to(&v2, "", "(10,1.50,one) (2,2,two)");
    let v1 = r#"{"change":[{"kind":"delete","schema":"public","table":"t","#.to_owned()
        + r#""oldkeys":{"keynames":["id"],"keytypes":["integer"],"keyvalues":[2]}}]}"#
        + "\n";
    assert_leads_to(&v1, "", "(1,1.50,one)");
}

#[test]
fn maxwell_and_canal_events_are_applied() {
    let maxwell = r#"{"database":"shop","table":"t","type":"update","ts":1,"xid":1,"commit":true,"#
        .to_owned()
        + r#""data":{"id":1,"n":7,"note":"m"},"old":{"n":1.5,"note":"one"},"#
        + r#""primary_key_columns":["id"]}"#
        + "\n";
    assert_leads_to(&maxwell, "--map shop.t=public.t", "(1,7,m) (2,2,two)");
    let canal = r#"{"data":[{"id":"2","n":"8","note":"c"}],"old":[{"n":"2"}],"database":"shop","#
        .to_owned()
        + r#""table":"t","type":"UPDATE","isDdl":false,"es":1,"ts":1,"id":1,"pkNames":["id"],"#
        + r#""mysqlType":{},"sqlType":{},"sql":""}"#
        + "\n";
    assert_leads_to(&canal, "--map shop.*=public.* --format canal", "(1,1.50,one) (2,8,c)");
}

/// The source's key is not the target's key, so the event does not tell which row to update.
#[test]
fn an_update_without_the_targets_old_key_is_refused() {
    let case = LoadCase::new("create table t (id int not null, email text not null unique, v int)");
    case.db.run("insert into t values (1, 'a@x', 1)");
    let event = r#"{"op":"update","table":"t","key":{"id":1},"row":{"id":1,"email":"b@x","v":1}}"#;
    case.put("s.ndjson", event);
    insta::assert_snapshot!(apply(&case, "s.ndjson --quiet").refusal(), @r#"
    error: the source identifies rows by (id), and the event lacks the old value of "email"
          … in the target's key
      at: s.ndjson, line 1

    hint: Give public.t a primary key on the columns by which the source identifies rows,
          … or have the source send whole old rows. Debezium's `message.key.columns` must
          … also name the target's key.
    "#);
    assert_eq!(rows(&case, "t"), "(1,a@x,1)");
    // A complete old row has the target's key.
    let plain = r#"{"op":"update","table":"t","key":{"id":1},"old":{"id":1,"email":"a@x","v":1},"#
        .to_owned()
        + "\"row\":{\"id\":1,\"email\":\"b@x\",\"v\":2}}\n";
    apply_and_report(&case, &plain, "--stream plain");
    assert_eq!(rows(&case, "t"), "(1,b@x,2)");
}

/// The source identifies rows by a column that is not the target's key. One update changes both.
#[test]
fn a_wal2json_update_without_the_targets_old_key_is_refused() {
    let v2 = |pk: &str| {
        r#"{"action":"U","schema":"public","table":"t","columns":[
{"name":"id","type":"integer","value":2},{"name":"email","type":"text","value":"b@x"},
{"name":"v","type":"integer","value":2}],
"identity":[{"name":"email","type":"text","value":"a@x"}]"#
            .replace('\n', "")
            + pk
            + "}\n"
    };
    let v1 = r#"{"change":[{"kind":"update","schema":"public","table":"t",
"columnnames":["id","email","v"],"columntypes":["integer","text","integer"],
"columnvalues":[2,"b@x",2],
"oldkeys":{"keynames":["email"],"keytypes":["text"],"keyvalues":["a@x"]}}]}"#
        .replace('\n', "")
        + "\n";
    for events in [v2(""), v2(r#","pk":[{"name":"id","type":"integer"}]"#), v1] {
        let case = LoadCase::new("create table t (id int primary key, email text, v int)");
        case.db.run("insert into t values (1, 'a@x', 1)");
        case.put("s.ndjson", &events);
        let refused = apply(&case, "s.ndjson --quiet").refusal();
        assert!(refused.contains("the source identifies rows by (email)"), "{events}: {refused}");
        assert_eq!(rows(&case, "t"), "(1,a@x,1)", "{events}");
    }
}

/// The source and the target have different keys. pgspate finds the row by the target's key, which
/// the update does not change.
#[test]
fn rows_may_be_identified_by_another_key_than_the_primary_key() {
    let case = LoadCase::new("create table t (id int not null, email text primary key, v int)");
    case.db.run("insert into t values (1, 'a@x', 1)");
    let event = r#"{"action":"U","schema":"public","table":"t","columns":[
{"name":"id","type":"integer","value":1},{"name":"email","type":"text","value":"a@x"},
{"name":"v","type":"integer","value":2}],
"identity":[{"name":"email","type":"text","value":"a@x"}],
"pk":[{"name":"id","type":"integer"}]}"#;
    let events =
        format!("{{\"action\":\"B\"}}\n{}\n{{\"action\":\"C\"}}\n", event.replace('\n', ""));
    apply_and_report(&case, &events, "");
    assert_eq!(rows(&case, "t"), "(1,a@x,2)");
}

/// The source's key is `id`, the target's key is `note`. Events from MySQL have the old values of
/// changed columns, so pgspate knows the old value of `note`.
#[test]
fn old_values_from_mysql_give_the_old_key_of_the_target() {
    let maxwell = |old: &str, data: &str| {
        format!(
            r#"{{"database":"d","table":"t","type":"update","ts":1,"xid":1,"commit":true,{}}}"#,
            format_args!(r#""primary_key_columns":["id"],"data":{data},"old":{old}"#)
        ) + "\n"
    };
    let canal = |old: &str, data: &str| {
        format!(
            r#"{{"data":[{data}],"old":[{old}],"database":"d","table":"t","type":"UPDATE",{}}}"#,
            r#""isDdl":false,"ts":1,"pkNames":["id"]"#
        ) + "\n"
    };
    let moved = (r#"{"note":"one"}"#, r#"{"id":"1","n":"1.50","note":"uno"}"#);
    let changed = (r#"{"n":"2"}"#, r#"{"id":"2","n":"22","note":"two"}"#);
    for events in [
        maxwell(moved.0, moved.1) + &maxwell(changed.0, changed.1),
        canal(moved.0, moved.1) + &canal(changed.0, changed.1),
    ] {
        let case = LoadCase::new("create table t (id int, n numeric, note text primary key)");
        case.db.run("insert into t values (1, 1.50, 'one'), (2, 2, 'two')");
        apply_and_report(&case, &events, "--map d.t=public.t");
        assert_eq!(rows(&case, "t"), "(1,1.50,uno) (2,22,two)");
    }
}

/// CSV files of DMS do not name their table. Without a header, they do not name their columns.
#[test]
fn options_name_the_table_and_columns_of_dms_files() {
    let args = "--source-table public.t --dms-columns id,n,note --dms-null NIL --dms-delimiter ;";
    assert_leads_to("U;1;9;NIL\nI;3;3;\"NIL\"\nD;2;2;two\n", args, "(1,9,) (3,3,NIL)");
    let header = "--source-table t --dms-header --format dms";
    assert_leads_to("id,n,note\nU,1,9,uno\n", header, "(1,9,uno) (2,2,two)");
    let flat = r#"{"id":1,"n":"AMg=","__op":"u"}"#.to_owned() + "\n";
    let debezium = "--source-table t --debezium-decimals text";
    let case = LoadCase::new("create table t (id int primary key, n text)");
    apply_and_report(&case, &flat, debezium);
    assert_eq!(rows(&case, "t"), "(1,AMg=)");
}

/// Applies a full load without the column `Op`, then changes with the column `Op`, then the same
/// files again.
#[test]
fn parquet_files_of_dms_are_applied() {
    let case = LoadCase::new("create table t (id int primary key, n numeric, note text)");
    let write = |name: &str, columns: Vec<(&str, ArrayRef)>| {
        let batch = RecordBatch::try_from_iter_with_nullable(
            columns.into_iter().map(|(name, column)| (name, column, true)),
        )
        .unwrap();
        let file = File::create(case.path(name)).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    };
    let ids = |ids: &[i64]| Arc::new(Int64Array::from(ids.to_vec())) as ArrayRef;
    let texts = |texts: &[Option<&str>]| Arc::new(StringArray::from(texts.to_vec())) as ArrayRef;
    write(
        "a.parquet",
        vec![
            ("id", ids(&[1, 2])),
            ("n", texts(&[Some("1.50"), Some("2")])),
            ("note", texts(&[Some("one"), None])),
        ],
    );
    write(
        "b.parquet",
        vec![
            ("Op", texts(&[Some("I"), Some("U"), Some("D")])),
            ("id", ids(&[3, 2, 1])),
            ("n", texts(&[Some("3"), Some("22"), None])),
            ("note", texts(&[Some("three"), Some("two"), None])),
        ],
    );
    let args = "--source-table public.t --json --quiet --stream s";
    let first = apply(&case, &format!("a.parquet {args}"));
    assert_eq!(first.status, Some(0), "{}", first.stderr);
    assert_eq!(rows(&case, "t"), "(1,1.50,one) (2,2,)");
    let second = apply(&case, &format!("a.parquet b.parquet {args}"));
    let report = serde_json::from_str(&second.stdout).unwrap();
    assert_eq!(counts(&report), [1, 1, 1, 0], "{}", second.stderr);
    assert_eq!(rows(&case, "t"), "(2,22,two) (3,3,three)");
    insta::assert_snapshot!(apply(&case, "b.parquet a.parquet --source-table t --stream s --quiet")
        .refusal(), @"
    error: the input is not the stream that was applied before: its first 5 events differ
      at: a.parquet, line 2

    hint: Give the same files in the same order, or begin a stream of its own with
          … `--stream NAME`.
    ");
    insta::assert_snapshot!(apply(&case, "b.parquet --quiet").refusal(), @"
    error: the rows do not name their table
      at: b.parquet, line 1

    hint: DMS writes it only into the names of its folders. Name the table with
          … `--source-table`.
    ");
}

/// The files of a pattern are sorted by the bytes of their names, so numbers may be out of order.
#[test]
fn files_of_a_pattern_are_read_in_the_order_of_their_numbers() {
    let case = LoadCase::new("create table t (id int primary key, v int)");
    let event =
        |v| format!("{{\"op\":\"insert\",\"table\":\"t\",\"row\":{{\"id\":1,\"v\":{v}}}}}\n");
    for (name, v) in [("a-1.json", 1), ("a-2.json", 2), ("a-10.json", 10), ("b-02.json", 2)] {
        case.put(name, event(v));
    }
    case.put("b-10.json", event(11));
    let refused = apply(&case, "a-*.json --quiet");
    let message = "\"a-10.json\" would be read before \"a-2.json\"";
    assert!(refused.stderr.contains(message), "{}", refused.stderr);
    assert_eq!((refused.status, rows(&case, "t")), (Some(2), String::new()));
    apply(&case, "a-1.json a-2.json a-10.json --quiet").success();
    assert_eq!(rows(&case, "t"), "(1,10)");
    apply(&case, "b-*.json --quiet").success();
    assert_eq!(rows(&case, "t"), "(1,11)");
}
