//! The same history of a table, written in every format, must give the same table.

use pgspate_events::SourceTable;
use pgspate_events::decode::{Canal, Debezium, Decode, Dms, DmsOptions, Maxwell, Wal2json};

use crate::events::{TableContents, apply};
use crate::support::{TypedColumns, try_decode};

const TYPES: TypedColumns = TypedColumns(&[
    ("id", "int8"),
    ("qty", "int4"),
    ("price", "numeric"),
    ("note", "text"),
    ("data", "bytea"),
]);

fn expected() -> TableContents {
    let row = |values: [Option<&str>; 5]| {
        let columns = ["id", "qty", "price", "note", "data"];
        let cells = columns.iter().zip(values);
        cells.map(|(name, value)| (name.to_string(), value.map(str::to_owned))).collect()
    };
    TableContents::from([
        ("3".to_owned(), row([Some("3"), None, Some("0.10"), Some(""), None])),
        (
            "4".to_owned(),
            row([
                Some("4"),
                Some("7"),
                Some("12345678901234567890.5"),
                Some("x\"y"),
                Some("\\x01"),
            ]),
        ),
    ])
}

fn check(decoder: &mut dyn Decode, records: &[&str]) {
    let events = try_decode(decoder, &TYPES, records).unwrap();
    assert_eq!(apply(&events), expected());
    assert!(events.last().unwrap().ends_transaction);
    // Events with the same columns share one list of names.
    let lists: Vec<_> = events.iter().filter_map(|event| event.new.as_ref()).collect();
    assert!(std::ptr::eq(&*lists[0].columns, &*lists[1].columns));
}

#[test]
fn wal2json_version_2() {
    let column = |name: &str, ty: &str, value: &str| {
        format!(r#"{{"name":"{name}","type":"{ty}","value":{value}}}"#)
    };
    let change = |action: &str, row: [&str; 5], old: Option<&str>| {
        let types = ["bigint", "integer", "numeric(30,2)", "text", "bytea"];
        let names = ["id", "qty", "price", "note", "data"];
        let cells = (0..5).filter(|at| !row[*at].is_empty());
        let cells: Vec<_> = cells.map(|at| column(names[at], types[at], row[at])).collect();
        let mut fields = vec![format!(r#""action":"{action}","schema":"shop","table":"orders""#)];
        if !cells.is_empty() {
            fields.push(format!(r#""columns":[{}]"#, cells.join(",")));
        }
        if let Some(old) = old {
            fields.push(format!(r#""identity":[{}]"#, column("id", "bigint", old)));
        }
        format!("{{{}}}", fields.join(","))
    };
    let records = [
        r#"{"action":"B"}"#.to_owned(),
        change("I", ["1", "5", "10.50", "\"a\"", "\"00ff\""], None),
        change("I", ["2", "null", "0.10", "\"\"", "null"], None),
        change("U", ["1", "6", "10.50", "\"a\"", ""], Some("1")),
        change("U", ["3", "null", "0.10", "\"\"", "null"], Some("2")),
        change("D", [""; 5], Some("1")),
        change("I", ["4", "7", "12345678901234567890.5", r#""x\"y""#, "\"01\""], None),
        r#"{"action":"C"}"#.to_owned(),
    ];
    check(&mut Wal2json::new(), &records.each_ref().map(String::as_str));
}

#[test]
fn wal2json_version_1() {
    let names = r#""columnnames":["id","qty","price","note","data"],
"columntypes":["bigint","integer","numeric(30,2)","text","bytea"]"#;
    let at = r#""schema":"shop","table":"orders""#;
    let old = |id: u8| {
        format!(r#""oldkeys":{{"keynames":["id"],"keytypes":["bigint"],"keyvalues":[{id}]}}"#)
    };
    let record = format!(
        r#"{{"change":[
{{"kind":"insert",{at},{names},"columnvalues":[1,5,10.50,"a","00ff"]}},
{{"kind":"insert",{at},{names},"columnvalues":[2,null,0.10,"",null]}},
{{"kind":"update",{at},"columnnames":["id","qty"],"columnvalues":[1,6],{}}},
{{"kind":"update",{at},{names},"columnvalues":[3,null,0.10,"",null],{}}},
{{"kind":"delete",{at},{}}},
{{"kind":"insert",{at},{names},"columnvalues":[4,7,12345678901234567890.5,"x\"y","01"]}}]}}"#,
        old(1),
        old(2),
        old(1)
    );
    check(&mut Wal2json::new(), &[&record]);
}

#[test]
fn debezium() {
    let gone = r#""X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==""#;
    let envelope = |op: &str, before: &str, after: &str| {
        format!(
            r#"{{"before":{before},"after":{after},"op":"{op}",
"source":{{"db":"d","schema":"shop","table":"orders","txId":5}}}}"#
        )
    };
    let row = |values: [&str; 5]| {
        let [id, qty, price, note, data] = values;
        format!(r#"{{"id":{id},"qty":{qty},"price":{price},"note":{note},"data":{data}}}"#)
    };
    let records = [
        envelope("c", "null", &row(["1", "5", "10.50", "\"a\"", "\"AP8=\""])),
        envelope("c", "null", &row(["2", "null", "0.10", "\"\"", "null"])),
        envelope("u", "null", &row(["1", "6", "10.50", "\"a\"", gone])),
        format!(
            r#"{{"key":{{"id":2}},"headers":{{"__debezium.newkey":{{"id":3}}}},"value":{}}}"#,
            envelope("d", r#"{"id":2}"#, "null")
        ),
        r#"{"key":{"id":2},"value":null}"#.to_owned(),
        format!(
            r#"{{"key":{{"id":3}},"headers":{{"__debezium.oldkey":{{"id":2}}}},"value":{}}}"#,
            envelope("c", "null", &row(["3", "null", "0.10", "\"\"", gone]))
        ),
        envelope("d", r#"{"id":1,"qty":null}"#, "null"),
        envelope(
            "c",
            "null",
            &row(["4", "7", "\"12345678901234567890.5\"", r#""x\"y""#, "\"AQ==\""]),
        ),
    ];
    check(&mut Debezium::default(), &records.each_ref().map(String::as_str));
}

#[test]
fn maxwell() {
    let record = |ty: &str, data: &str, rest: &str| {
        format!(
            r#"{{"database":"shop","table":"orders","type":"{ty}","ts":1,"xid":5,{rest},
"primary_key_columns":["id"],"data":{data}}}"#
        )
    };
    let first = r#"{"id":1,"qty":5,"price":10.50,"note":"a","data":"AP8="}"#;
    let second = r#"{"id":2,"qty":null,"price":0.10,"note":"","data":null}"#;
    let records = [
        record("insert", first, r#""xoffset":0"#),
        record("insert", second, r#""xoffset":1"#),
        record("update", &first.replace("5,", "6,"), r#""xoffset":2,"old":{"qty":5}"#),
        record("update", &second.replace("2,", "3,"), r#""xoffset":3,"old":{"id":2}"#),
        record("delete", &first.replace("5,", "6,"), r#""xoffset":4"#),
        record(
            "insert",
            r#"{"id":4,"qty":7,"price":12345678901234567890.5,"note":"x\"y","data":"AQ=="}"#,
            r#""commit":true"#,
        ),
    ];
    check(&mut Maxwell::new(), &records.each_ref().map(String::as_str));
}

#[test]
fn canal() {
    let message = |ty: &str, data: &str, old: &str| {
        format!(
            r#"{{"data":{data},"old":{old},"database":"shop","table":"orders","isDdl":false,
"pkNames":["id"],"type":"{ty}","es":1,"ts":1}}"#
        )
    };
    let first = r#"{"id":"1","qty":"5","price":"10.50","note":"a","data":"\u0000ÿ"}"#;
    let second = r#"{"id":"2","qty":null,"price":"0.10","note":"","data":null}"#;
    let records = [
        message("INSERT", &format!("[{first},{second}]"), "null"),
        message(
            "UPDATE",
            &format!("[{},{}]", first.replace("\"5\"", "\"6\""), second.replace("\"2\"", "\"3\"")),
            r#"[{"qty":"5"},{"id":"2"}]"#,
        ),
        message("DELETE", &format!("[{first}]"), "null"),
        message(
            "INSERT",
            r#"[{"id":"4","qty":"7","price":"12345678901234567890.5","note":"x\"y",
"data":"\u0001"}]"#,
            "null",
        ),
    ];
    check(&mut Canal::new(), &records.each_ref().map(String::as_str));
}

#[test]
fn dms() {
    // DMS has no event for a changed key. So the history has a delete and an insert instead.
    let lines = [
        "1,5,10.50,a,00ff",
        "I,2,NULL,0.10,,NULL",
        "U,1,6,10.50,a,00ff",
        "D,2,NULL,0.10,,NULL",
        "I,3,NULL,0.10,,NULL",
        "D,1,6,10.50,a,00ff",
        "I,4,7,12345678901234567890.5,\"x\"\"y\",01",
    ];
    let columns = ["id", "qty", "price", "note", "data"].map(str::to_owned).to_vec();
    let table = Some(SourceTable { schema: Some("shop".to_owned()), table: "orders".to_owned() });
    let options = DmsOptions { table, columns: Some(columns), ..DmsOptions::default() };
    check(&mut Dms::new(options), &lines);
    let message = |operation: &str, data: &str| {
        format!(
            r#"{{"data":{data},"metadata":{{"record-type":"data","operation":"{operation}",
"schema-name":"shop","table-name":"orders"}}}}"#
        )
    };
    let moved = r#"{"id":2,"qty":null,"price":0.10,"note":"","data":null}"#;
    let records = [
        message("load", r#"{"id":1,"qty":5,"price":10.50,"note":"a","data":"0x00ff"}"#),
        message("insert", moved),
        message("delete", r#"{"id":1,"qty":5,"price":10.50,"note":"a","data":"0x00ff"}"#),
        message("delete", moved),
        message("insert", &moved.replace("2,", "3,")),
        message(
            "insert",
            r#"{"id":4,"qty":7,"price":12345678901234567890.5,"note":"x\"y","data":"01"}"#,
        ),
    ];
    check(&mut Dms::default(), &records.each_ref().map(String::as_str));
}
