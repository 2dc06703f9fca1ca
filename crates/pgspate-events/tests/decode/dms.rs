//! AWS DMS: csv lines, Parquet batches, JSON messages.

use std::sync::Arc;

use arrow_array::builder::StringViewBuilder;
use arrow_array::{ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray};
use arrow_array::{Decimal128Array, TimestampMicrosecondArray};
use pgspate_events::SourceTable;
use pgspate_events::decode::{Dms, DmsOptions};

use crate::support::{TypedColumns, decode, line};

const TYPES: TypedColumns = TypedColumns(&[("id", "int8"), ("data", "bytea"), ("note", "text")]);

fn table() -> Option<SourceTable> {
    Some(SourceTable { schema: Some("shop".to_owned()), table: "orders".to_owned() })
}

fn options(columns: &[&str]) -> DmsOptions {
    let columns = columns.iter().map(|name| (*name).to_owned()).collect();
    DmsOptions { table: table(), columns: Some(columns), ..DmsOptions::default() }
}

#[test]
fn csv_rows_may_lack_an_operation() {
    let records = [
        "1,NULL,\"a,\"\"b\"\"\"",
        "2,0x00ff,\"NULL\"\r\n",
        "I,3,,x",
        "U,3,0A,-",
        "D,3,NULL,NULL",
        "",
    ];
    let options = DmsOptions { absent: Some("-".to_owned()), ..options(&["id", "data", "note"]) };
    assert_eq!(
        decode(&mut Dms::new(options), &TYPES, &records),
        [
            "Snapshot shop.orders {id=1 data=NULL note=a,\"b\"} end",
            "Snapshot shop.orders {id=2 data=\\x00ff note=NULL} end",
            "Insert shop.orders {id=3 data=\\x note=x} end",
            "Update shop.orders {id=3 data=\\x0a note=-} end",
            "Delete shop.orders was {id=3 data=NULL note=NULL} end",
        ]
    );
}

#[test]
fn a_header_names_the_columns() {
    let options = || DmsOptions { table: table(), ..DmsOptions::default() };
    let records = ["Op,id,note", "I,1,a", "Op,id,note,data", "U,1,b,00"];
    let expected =
        ["Insert shop.orders {id=1 note=a} end", "Update shop.orders {id=1 note=b data=\\x00} end"];
    assert_eq!(decode(&mut Dms::new(options()), &TYPES, &records), expected);
    let records = ["id,note", "1,a", "id,note", "2,b"];
    let with_header = DmsOptions { has_header: true, ..options() };
    assert_eq!(
        decode(&mut Dms::new(with_header), &TYPES, &records),
        ["Snapshot shop.orders {id=1 note=a} end", "Snapshot shop.orders {id=2 note=b} end"]
    );
    // A line that may be a row is not read as a header.
    let refused = decode(&mut Dms::new(options()), &TYPES, &records).concat();
    assert!(refused.starts_with("error: the columns of the rows are unknown"), "{refused}");
}

#[test]
fn the_layout_of_s3_as_a_source_names_tables() {
    let options = DmsOptions { table: None, ..options(&["id", "note"]) };
    let records = ["INSERT,orders,shop,1,a", "UPDATE,orders,shop,1,b", "DELETE,orders,shop,1,b"];
    assert_eq!(
        decode(&mut Dms::new(options), &TYPES, &records),
        [
            "Insert shop.orders {id=1 note=a} end",
            "Update shop.orders {id=1 note=b} end",
            "Delete shop.orders was {id=1 note=b} end",
        ]
    );
}

#[test]
fn messages_name_their_table_and_columns() {
    let message = |operation: &str, data: &str| {
        format!(
            r#"{{"data":{data},"metadata":{{"timestamp":"2024-03-01T10:00:00.1Z",
"record-type":"data","operation":"{operation}","partition-key-type":"schema-table",
"schema-name":"shop","table-name":"orders","transaction-id":7}}}}"#
        )
    };
    let records = [
        message("load", r#"{"id":1,"note":null,"data":"0x0a"}"#),
        message("insert", r#"{"id":2,"note":"a","data":""}"#),
        message("update", r#"{"id":2,"note":"b","data":""}"#),
        message("delete", r#"{"id":2}"#),
        r#"{"metadata":{"record-type":"control","operation":"create-table",
"schema-name":"shop","table-name":"orders"}}"#
            .to_owned(),
    ];
    let records: Vec<&str> = records.iter().map(String::as_str).collect();
    assert_eq!(
        decode(&mut Dms::default(), &TYPES, &records),
        [
            "Snapshot shop.orders {id=1 note=NULL data=\\x0a} in 7 end",
            "Insert shop.orders {id=2 note=a data=\\x} in 7 end",
            "Update shop.orders {id=2 note=b data=\\x} in 7 end",
            "Delete shop.orders was {id=2} in 7 end",
        ]
    );
    // By default DMS omits columns that are NULL or empty.
    let lacking = [message("insert", r#"{"id":1,"note":"a"}"#), message("update", r#"{"id":1}"#)];
    let lacking: Vec<&str> = lacking.iter().map(String::as_str).collect();
    let refused = decode(&mut Dms::default(), &TYPES, &lacking).concat();
    assert!(refused.contains("lacks columns") && refused.contains("IncludeNullAndEmpty=true"));
    let before = r#"{"data":{"id":2},"before-image":{"id":1},"metadata":{"record-type":"data",
"operation":"update","schema-name":"shop","table-name":"orders"}}"#;
    assert_eq!(
        decode(&mut Dms::default(), &TYPES, &[before]),
        ["Update shop.orders {id=2} was {id=1} end"]
    );
}

#[test]
fn parquet_batches_may_lack_operations() {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("Op", Arc::new(StringArray::from(vec![Some("I"), Some("U"), Some("D"), None]))),
        ("id", Arc::new(Int64Array::from(vec![1, 1, 1, i64::MAX]))),
        ("data", Arc::new(BinaryArray::from_opt_vec(vec![Some(b"\0\xff"), None, None, Some(b"")]))),
        (
            "price",
            Arc::new(
                Decimal128Array::from(vec![Some(150), Some(-1), None, Some(0)])
                    .with_precision_and_scale(10, 2)
                    .unwrap(),
            ),
        ),
        ("at", Arc::new(TimestampMicrosecondArray::from(vec![Some(0), None, None, Some(-1)]))),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns.iter().map(|(name, column)| (*name, column.clone(), true)),
    )
    .unwrap();
    let options = DmsOptions { table: table(), ..DmsOptions::default() };
    let mut events = Vec::new();
    let mut decoder = Dms::new(options);
    decoder.batch(&batch, &TYPES, &mut events).unwrap();
    assert_eq!(
        events.iter().map(line).collect::<Vec<_>>(),
        [
            "Insert shop.orders {id=1 data=\\x00ff price=1.50 at=1970-01-01 00:00:00} end",
            "Update shop.orders {id=1 data=NULL price=-0.01 at=NULL} end",
            "Delete shop.orders was {id=1 data=NULL price=NULL at=NULL} end",
            "Snapshot shop.orders {id=9223372036854775807 data=\\x price=0.00 \
             at=1969-12-31 23:59:59.999999} end",
        ]
    );
    // A file of a full load has no operations.
    let load = batch.project(&[1]).unwrap();
    events.clear();
    decoder.batch(&load.slice(0, 1), &TYPES, &mut events).unwrap();
    assert_eq!(line(&events[0]), "Snapshot shop.orders {id=1} end");
    let bad: ArrayRef = Arc::new(StringArray::from(vec!["I", "X"]));
    let bad = RecordBatch::try_from_iter([("Op", bad)]).unwrap();
    assert_eq!(decoder.batch(&bad, &TYPES, &mut events).unwrap(), 1);
    assert!(decoder.batch(&bad.slice(1, 1), &TYPES, &mut events).is_err());
    assert_eq!(events.len(), 2, "a refused row must leave no events");
}

/// A dictionary stores a value once, but each row's event has its own copy of the text.
#[test]
fn rows_that_share_a_large_value_are_decoded_in_parts() {
    let note = "x".repeat(300 << 10);
    let mut notes = StringViewBuilder::new();
    let page = notes.append_block(note.as_bytes().into());
    for _ in 0..10_000 {
        notes.try_append_view(page, 0, note.len() as u32).unwrap();
    }
    let notes: ArrayRef = Arc::new(notes.finish());
    let batch = RecordBatch::try_from_iter([("note", notes)]).unwrap();
    let mut decoder = Dms::new(DmsOptions { table: table(), ..DmsOptions::default() });
    let mut events = Vec::new();
    let rows = decoder.batch(&batch, &TYPES, &mut events).unwrap();
    assert!((1..10).contains(&rows) && rows == events.len(), "{rows} rows at once");
}

#[test]
fn malformed_records_are_refused() {
    let named = options(&["id", "note"]);
    for (record, error) in [
        ("1,a,b", "a row has 3 fields, but there are 2 columns"),
        ("X,1,a", "a row has 3 fields, but there are 2 columns"),
        ("I,1,\"a", "the line ends inside quotes"),
        ("INSERT,t,s,1", "a row has 1 values, but there are 2 columns"),
        ("{}", "the DMS message has no \"metadata\""),
        (r#"{"metadata":{}}"#, "a message does not name its \"operation\""),
        (r#"{"metadata":{"operation":"x"}}"#, "unknown \"operation\" of a message"),
        (r#"{"metadata":{"operation":"load"}}"#, "a message does not name its table"),
    ] {
        let found = decode(&mut Dms::new(named.clone()), &TYPES, &[record]).concat();
        assert_eq!(found, format!("error: {error}"), "{record}");
    }
    // A row without an operation after rows with one may have lost its last value.
    let found = decode(&mut Dms::new(named.clone()), &TYPES, &["D,1", "I,1,a", "2,b", "U,2"]);
    let short = "error: a row has 1 values, but there are 2 columns";
    assert_eq!(found.last().map(String::as_str), Some(short));
    let nameless = DmsOptions { table: None, ..named };
    let found = decode(&mut Dms::new(nameless), &TYPES, &["I,1,a"]).concat();
    assert!(found.starts_with("error: the rows do not name their table"), "{found}");
}
