//! Maxwell's records.

use pgspate_events::decode::Maxwell;

use crate::support::{TypedColumns, decode};

const TYPES: TypedColumns =
    TypedColumns(&[("id", "int8"), ("data", "bytea"), ("doc", "jsonb"), ("tags", "_text")]);

fn lines(records: &[&str]) -> Vec<String> {
    decode(&mut Maxwell::new(), &TYPES, records)
}

#[test]
fn the_last_row_of_a_transaction_ends_it() {
    let records = [
        r#"{"database":"shop","table":"orders","type":"insert","ts":1477053217,"xid":23396,
"xoffset":0,"primary_key_columns":["id"],"data":{"id":1,"m":4.20,"c":"2016-10-21 05:33:37.523000",
"data":"aGk=","doc":{"a": 1.0},"tags":["a","b"],"n":null}}"#,
        r#"{"database":"shop","table":"orders","type":"update","ts":1477053218,"xid":23396,
"xoffset":1,"primary_key_columns":["id"],"data":{"id":1,"m":5},"old":{"m":4.20}}"#,
        r#"{"database":"shop","table":"orders","type":"update","ts":1477053218,"xid":23396,
"xoffset":2,"primary_key_columns":["id"],"data":{"id":2,"m":5},"old":{"id":1}}"#,
        r#"{"database":"shop","table":"orders","type":"delete","ts":1477053219,"xid":23396,
"commit":true,"primary_key_columns":["id"],"data":{"id":2,"m":5}}"#,
    ];
    assert_eq!(
        lines(&records),
        [
            "Insert shop.orders {id=1 m=4.20 c=2016-10-21 05:33:37.523000 data=\\x6869 \
             doc={\"a\": 1.0} tags={\"a\",\"b\"} n=NULL} by [id] in 23396",
            "Update shop.orders {id=1 m=5} was {id=1 m=4.20} by [id] in 23396",
            "Update shop.orders {id=2 m=5} was {id=1 m=5} by [id] in 23396",
            "Delete shop.orders was {id=2 m=5} by [id] in 23396 end",
        ]
    );
}

#[test]
fn the_old_row_has_all_columns_if_there_is_no_key() {
    let update = r#"{"database":"d","table":"t","type":"update","ts":1,"data":{"a":2,"b":"x",
"c":null},"old":{"a":1,"c":3}}"#;
    assert_eq!(lines(&[update]), ["Update d.t {a=2 b=x c=NULL} was {a=1 b=x c=3} end"]);
}

#[test]
fn bootstrap_rows_are_snapshot_rows_and_schema_changes_have_no_event() {
    let records = [
        r#"{"database":"d","table":"t","type":"bootstrap-start","ts":1,"data":{}}"#,
        r#"{"database":"d","table":"t","type":"bootstrap-insert","ts":1,"data":{"id":1,
"doc":"text"}}"#,
        r#"{"database":"d","table":"t","type":"bootstrap-complete","ts":1,"data":{}}"#,
        r#"{"type":"table-create","database":"d","table":"u","def":{},"ts":1,
"sql":"create table u"}"#,
    ];
    assert_eq!(lines(&records), ["Snapshot d.t {id=1 doc=\"text\"} end"]);
}

#[test]
fn malformed_records_are_refused() {
    for (record, error) in [
        ("[]", "expected a JSON object"),
        ("{}", "the Maxwell record has no \"type\""),
        (r#"{"type":"insert","table":"t"}"#, "a row has no \"data\""),
        (r#"{"type":"upsert"}"#, "unknown \"type\" of a record"),
        (r#"{"type":"insert","table":"t","data":[1]}"#, "expected \"data\" to be an object"),
    ] {
        assert_eq!(lines(&[record]), [format!("error: {error}")]);
    }
}
