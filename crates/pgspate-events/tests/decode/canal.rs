//! Canal's flat messages.

use pgspate_events::decode::Canal;

use crate::support::{TypedColumns, decode};

const TYPES: TypedColumns = TypedColumns(&[("id", "int8"), ("data", "bytea")]);

fn lines(records: &[&str]) -> Vec<String> {
    decode(&mut Canal::new(), &TYPES, records)
}

#[test]
fn a_message_has_many_rows() {
    let records = [
        r#"{"data":[{"id":"1","data":"a\u00ff\u0001","n":null},{"id":"2","data":"","n":"3"}],
"database":"shop","es":1,"id":1,"isDdl":false,"mysqlType":{"id":"bigint","data":"blob"},
"old":null,"pkNames":["id"],"sql":"","sqlType":{"id":-5},"table":"orders","ts":1,"type":"INSERT"}"#,
        r#"{"data":[{"id":"1","n":"5"},{"id":"4","n":"3"}],"database":"shop","isDdl":false,
"old":[{"n":null},{"id":"2"}],"pkNames":["id"],"table":"orders","type":"UPDATE"}"#,
        r#"{"data":[{"id":"4","n":"3"}],"database":"shop","isDdl":false,"old":null,
"pkNames":["id"],"table":"orders","type":"DELETE"}"#,
    ];
    assert_eq!(
        lines(&records),
        [
            "Insert shop.orders {id=1 data=\\x61ff01 n=NULL} by [id]",
            "Insert shop.orders {id=2 data=\\x n=3} by [id] end",
            "Update shop.orders {id=1 n=5} was {id=1 n=NULL} by [id]",
            "Update shop.orders {id=4 n=3} was {id=2 n=3} by [id] end",
            "Delete shop.orders was {id=4 n=3} by [id] end",
        ]
    );
}

#[test]
fn truncate_is_the_only_statement_with_an_event() {
    let ddl = |ty: &str| {
        format!(
            r#"{{"data":null,"database":"d","isDdl":true,"old":null,"pkNames":null,"sql":"x",
"table":"t","type":"{ty}"}}"#
        )
    };
    for ty in ["CREATE", "ALTER", "ERASE", "RENAME", "QUERY", "CINDEX"] {
        assert_eq!(lines(&[&ddl(ty)]), [""; 0], "{ty}");
    }
    assert_eq!(lines(&[&ddl("TRUNCATE")]), ["Truncate d.t end"]);
}

#[test]
fn malformed_records_are_refused() {
    for (record, error) in [
        ("{}", "the Canal message has no \"type\""),
        (r#"{"type":"UPSERT"}"#, "unknown \"type\" of a message"),
        (
            r#"{"type":"INSERT","data":[]}"#,
            "a record does not name its table | Name it with `--source-table`.",
        ),
        (r#"{"type":"INSERT","table":"t"}"#, "a message has no list \"data\""),
        (
            r#"{"type":"INSERT","table":"t","isDdl":false,"data":[{"id":"1"},{"data":"€"}]}"#,
            "column \"data\" of t: expected bytes as a character for each byte: \"€\"",
        ),
    ] {
        assert_eq!(lines(&[record]), [format!("error: {error}")]);
    }
}
