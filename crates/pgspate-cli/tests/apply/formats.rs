//! Formats of other tools, found out by their first record, to the same table.

use crate::support::Case;
use crate::{applied, rows};

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
