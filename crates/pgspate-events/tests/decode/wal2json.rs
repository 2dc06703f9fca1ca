//! Records of wal2json, both versions of its format.

use pgspate_events::decode::Wal2json;

use crate::support::{TypedColumns, decode};

const TYPES: TypedColumns = TypedColumns(&[("id", "int4"), ("note", "text"), ("data", "bytea")]);

fn lines(records: &[&str]) -> Vec<String> {
    decode(&mut Wal2json::new(), &TYPES, records)
}

#[test]
fn a_record_of_version_1_is_a_transaction() {
    let record = r#"{"xid":771,"timestamp":"2024-03-01 10:00:00.1+00","change":[
        {"kind":"insert","schema":"shop","table":"orders","columnnames":["id","price","note",
"data"],
         "columntypes":["integer","numeric(10,2)","text","bytea"],
         "columnvalues":[1,10.50,"a \"b\"","00ff"]},
        {"kind":"update","schema":"shop","table":"orders","columnnames":["id","price"],
         "columntypes":["integer","numeric(10,2)"],"columnvalues":[2,99999999999999999999.10],
         "oldkeys":{"keynames":["id"],"keytypes":["integer"],"keyvalues":[1]}},
        {"kind":"update","schema":"shop","table":"orders","pk":{"pknames":["id"],
"pktypes":["integer"]},
         "columnnames":["id","price"],"columntypes":["integer","numeric(10,2)"],
"columnvalues":[2,null],
         "oldkeys":{"keynames":["id"],"keytypes":["integer"],"keyvalues":[2]}},
        {"kind":"message","transactional":true,"prefix":"p","content":"c"},
        {"kind":"delete","schema":"shop","table":"orders",
         "oldkeys":{"keynames":["id"],"keytypes":["integer"],"keyvalues":[2]}},
        {"kind":"message","transactional":true,"prefix":"p","content":"c"}]}"#;
    assert_eq!(
        lines(&[record]),
        [
            "Insert shop.orders {id=1 price=10.50 note=a \"b\" data=\\x00ff} in 771",
            "Update shop.orders {id=2 price=99999999999999999999.10} was {id=1} by [id] in 771",
            "Update shop.orders {id=2 price=NULL} by [id] in 771",
            "Delete shop.orders was {id=2} in 771 end",
        ]
    );
    assert_eq!(lines(&[r#"{"change":[]}"#, "", " null "]), [""; 0]);
}

#[test]
fn version_2_ends_a_transaction_with_its_last_event() {
    let records = [
        r#"{"action":"B","xid":5,"lsn":"0/1"}"#,
        r#"{"action":"I","xid":5,"schema":"public","table":"t","columns":[{"name":"id",
"type":"integer","value":1},{"name":"data","type":"bytea","value":""}],"pk":[{"name":"id",
"type":"integer"}]}"#,
        r#"{"action":"M","transactional":true,"prefix":"p","content":"c"}"#,
        r#"{"action":"U","xid":5,"schema":"public","table":"t","columns":[{"name":"id",
"type":"integer","value":2}],"identity":[{"name":"id","type":"integer","value":1}]}"#,
        r#"{"action":"T","xid":5,"schema":"public","table":"u"}"#,
        r#"{"action":"C","xid":5,"lsn":"0/2"}"#,
        r#"{"action":"B","xid":6}"#,
        r#"{"action":"C","xid":6}"#,
    ];
    assert_eq!(
        lines(&records),
        [
            "Insert public.t {id=1 data=\\x} by [id] in 5",
            "Update public.t {id=2} was {id=1} by [id] in 5",
            "Truncate public.u in 5 end",
        ]
    );
    // The transaction is truncated, so no event ends the transaction.
    assert_eq!(
        lines(&records[..4]),
        [
            "Insert public.t {id=1 data=\\x} by [id] in 5",
            "Update public.t {id=2} was {id=1} by [id] in 5",
        ]
    );
    // Without `B` and `C` each change is a transaction.
    assert_eq!(lines(&records[4..5]), ["Truncate public.u in 5 end"]);
}

#[test]
fn replica_identity_full_gives_the_old_row() {
    let update = r#"{"action":"U","schema":"s","table":"t","columns":[{"name":"id",
"type":"integer","value":1},{"name":"note","type":"text","value":"new"}],"identity":[{"name":"id",
"type":"integer","value":1},{"name":"note","type":"text","value":"old"}]}"#;
    assert_eq!(
        lines(&[update]),
        ["Update s.t {id=1 note=new} was {id=1 note=old} by [id note] end"]
    );
}

#[test]
fn types_may_be_left_out() {
    let insert = r#"{"action":"I","schema":"s","table":"t","columns":[{"name":"data",
"value":"0a"},{"name":"note","value":"0a"}]}"#;
    assert_eq!(lines(&[insert]), ["Insert s.t {data=\\x0a note=0a} end"]);
}

#[test]
fn malformed_records_are_refused() {
    for (record, error) in [
        ("{}", "expected \"change\" of version 1 or \"action\" of version 2"),
        (r#"{"action":"X"}"#, "unknown kind of change"),
        (r#"{"action":"I","table":"t"}"#, "a change has no columns"),
        (r#"{"action":"I","columns":[]}"#, "a change does not name its table"),
        (
            r#"{"action":"D","schema":"s","table":"t"}"#,
            "a delete does not identify its row | Give the source's table a primary key, or run \
             `alter table ... replica identity full` there.",
        ),
        (r#"{"change":[{"kind":"insert","table":"t"}]}"#, "a change has no columns"),
        (
            r#"{"change":[{"kind":"insert","table":"t","columnnames":["a"],"columnvalues":[]}]}"#,
            "a change has more columns than values",
        ),
        (
            r#"{"change":[{"kind":"insert","table":"t","columnnames":["a","a"],
"columnvalues":[1,2]}]}"#,
            "a row has column \"a\" twice",
        ),
        (
            r#"{"action":"I","table":"t","columns":[{"name":"d","type":"bytea","value":"x"}]}"#,
            "column \"d\" of t: expected bytes as hexadecimal digits: \"x\"",
        ),
    ] {
        assert_eq!(lines(&[record]), [format!("error: {error}")]);
    }
}
