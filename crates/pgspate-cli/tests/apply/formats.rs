//! Formats of other tools, found out by their first record, to the same table.

use crate::support::Case;
use crate::{applied, apply, rows};

#[track_caller]
fn leads_to(events: &str, args: &str, expected: &str) {
    let case = Case::new("create table t (id int primary key, n numeric, note text)");
    case.db.run("insert into t values (1, 1.50, 'one'), (2, 2, 'two')");
    applied(&case, events, args);
    assert_eq!(rows(&case, "t"), expected);
}

#[test]
fn debezium() {
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
    leads_to(&events.concat(), "", "(1,9,one) (3,3.25,three)");
}

#[test]
fn wal2json() {
    let v2 = r#"{"action":"B","xid":7}
{"action":"U","xid":7,"schema":"public","table":"t","columns":[
"#;
    // One record a line.
    let v2 = v2.trim_end().to_owned()
        + r#"{"name":"id","type":"integer","value":10},"#
        + r#"{"name":"n","type":"numeric","value":1.50}],"#
        + r#""identity":[{"name":"id","type":"integer","value":1}]}"#
        + "\n{\"action\":\"C\",\"xid\":7}\n";
    leads_to(&v2, "", "(10,1.50,one) (2,2,two)");
    let v1 = r#"{"change":[{"kind":"delete","schema":"public","table":"t","#.to_owned()
        + r#""oldkeys":{"keynames":["id"],"keytypes":["integer"],"keyvalues":[2]}}]}"#
        + "\n";
    leads_to(&v1, "", "(1,1.50,one)");
}

#[test]
fn maxwell_and_canal() {
    let maxwell = r#"{"database":"shop","table":"t","type":"update","ts":1,"xid":1,"commit":true,"#
        .to_owned()
        + r#""data":{"id":1,"n":7,"note":"m"},"old":{"n":1.5,"note":"one"},"#
        + r#""primary_key_columns":["id"]}"#
        + "\n";
    leads_to(&maxwell, "--map shop.t=public.t", "(1,7,m) (2,2,two)");
    let canal = r#"{"data":[{"id":"2","n":"8","note":"c"}],"old":[{"n":"2"}],"database":"shop","#
        .to_owned()
        + r#""table":"t","type":"UPDATE","isDdl":false,"es":1,"ts":1,"id":1,"pkNames":["id"],"#
        + r#""mysqlType":{},"sqlType":{},"sql":""}"#
        + "\n";
    leads_to(&canal, "--map shop.*=public.* --format canal", "(1,1.50,one) (2,8,c)");
}

/// What identifies rows at the source does not tell which row of the target an update is about.
#[test]
fn a_target_with_another_key_than_the_source() {
    let case = Case::new("create table t (id int not null, email text not null unique, v int)");
    case.db.run("insert into t values (1, 'a@x', 1)");
    let event = |old: &str| {
        r#"{"database":"d","table":"t","type":"update","data":{"id":1,"email":"b@x","v":1},"#
            .to_owned()
            + old
            + "\"primary_key_columns\":[\"id\"]}\n"
    };
    case.put("s.ndjson", event("\"old\":{\"email\":\"a@x\"},"));
    insta::assert_snapshot!(apply(&case, "s.ndjson --quiet --map d.t=public.t").refusal(), @r#"
    error: the source identifies rows by (id), and the event does not say what "email" of
          … the target's key was before
      at: s.ndjson, line 1

    hint: Give public.t a primary key of the columns by which the source identifies rows,
          … or have the source send whole old rows.
    "#);
    assert_eq!(rows(&case, "t"), "(1,a@x,1)");
    // A whole old row says it.
    let plain = r#"{"op":"update","table":"t","key":{"id":1},"old":{"id":1,"email":"a@x","v":1},"#
        .to_owned()
        + "\"row\":{\"id\":1,\"email\":\"b@x\",\"v\":2}}\n";
    applied(&case, &plain, "--stream plain");
    assert_eq!(rows(&case, "t"), "(1,b@x,2)");
}

/// A row that was found by the target's key, and keeps it, though the source's key is another one.
#[test]
fn what_identifies_a_row_need_not_be_the_primary_key() {
    let case = Case::new("create table t (id int not null, email text primary key, v int)");
    case.db.run("insert into t values (1, 'a@x', 1)");
    let event = r#"{"action":"U","schema":"public","table":"t","columns":[
{"name":"id","type":"integer","value":1},{"name":"email","type":"text","value":"a@x"},
{"name":"v","type":"integer","value":2}],
"identity":[{"name":"email","type":"text","value":"a@x"}],
"pk":[{"name":"id","type":"integer"}]}"#;
    let events =
        format!("{{\"action\":\"B\"}}\n{}\n{{\"action\":\"C\"}}\n", event.replace('\n', ""));
    applied(&case, &events, "");
    assert_eq!(rows(&case, "t"), "(1,a@x,2)");
}
