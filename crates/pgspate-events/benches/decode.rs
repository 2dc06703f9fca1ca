//! Measures decoded events per second, by format, for small rows of one table.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pgspate_events::SourceTable;
use pgspate_events::decode::{
    Canal, Debezium, Decode, Dms, DmsOptions, Maxwell, TargetTypes, Wal2json,
};

const RECORDS: usize = 1000;

struct OrderColumnTypes;

impl TargetTypes for OrderColumnTypes {
    fn type_of(&self, _: &SourceTable, column: &str) -> Option<Arc<str>> {
        Some(match column {
            "id" => "int8".into(),
            "qty" => "int4".into(),
            "price" => "numeric".into(),
            "at" => "timestamptz".into(),
            _ => "text".into(),
        })
    }
}

fn debezium(id: usize) -> String {
    format!(
        r#"{{"before":null,"after":{{"id":{id},"qty":5,"price":"10.50","note":"a small note",
"at":"2024-03-01T10:00:00.123456Z"}},"source":{{"version":"2.7.0.Final","connector":"postgresql",
"name":"srv","ts_ms":1709287200000,"snapshot":"false","db":"shop","sequence":"[null,\"24\"]",
"schema":"public","table":"orders","txId":771,"lsn":24,"xmin":null}},"transaction":null,"op":"u",
"ts_ms":1709287200001}}"#
    )
}

fn with_schema(id: usize) -> String {
    let row = r#"{"type":"struct","fields":[{"type":"int64","optional":false,"field":"id"},
{"type":"int32","optional":true,"field":"qty"},{"type":"string","optional":true,"field":"price"},
{"type":"string","optional":true,"field":"note"},{"type":"string","optional":true,
"name":"io.debezium.time.ZonedTimestamp","version":1,"field":"at"}],"optional":true,
"name":"srv.public.orders.Value","field":"#;
    format!(
        r#"{{"schema":{{"type":"struct","fields":[{row}"before"}},{row}"after"}},
{{"type":"string","optional":false,"field":"op"}}],"optional":false,
"name":"srv.public.orders.Envelope","version":1}},"payload":{}}}"#,
        debezium(id)
    )
}

fn wal2json(id: usize) -> String {
    format!(
        r#"{{"action":"U","xid":771,"schema":"public","table":"orders","columns":[{{"name":"id",
"type":"bigint","value":{id}}},{{"name":"qty","type":"integer","value":5}},{{"name":"price",
"type":"numeric(10,2)","value":10.50}},{{"name":"note","type":"text","value":"a small note"}},
{{"name":"at","type":"timestamp with time zone","value":"2024-03-01 10:00:00.123456+00"}}],
"identity":[{{"name":"id","type":"bigint","value":{id}}}]}}"#
    )
}

fn maxwell(id: usize) -> String {
    format!(
        r#"{{"database":"shop","table":"orders","type":"update","ts":1709287200,"xid":771,
"xoffset":3,"primary_key_columns":["id"],"data":{{"id":{id},"qty":5,"price":10.50,
"note":"a small note","at":"2024-03-01 10:00:00.123456"}},"old":{{"qty":4}}}}"#
    )
}

fn canal(id: usize) -> String {
    format!(
        r#"{{"data":[{{"id":"{id}","qty":"5","price":"10.50","note":"a small note",
"at":"2024-03-01 10:00:00.123456"}}],"database":"shop","es":1709287200000,"id":7,"isDdl":false,
"mysqlType":{{"id":"bigint","qty":"int","price":"decimal(10,2)","note":"varchar(20)",
"at":"datetime(6)"}},"old":[{{"qty":"4"}}],"pkNames":["id"],"sql":"","sqlType":{{"id":-5,"qty":4,
"price":3,"note":12,"at":93}},"table":"orders","ts":1709287200001,"type":"UPDATE"}}"#
    )
}

fn dms(id: usize) -> String {
    format!("U,{id},5,10.50,a small note,2024-03-01 10:00:00.123456")
}

/// The name of a format, its record for an id, and its decoder.
type BenchedFormat = (&'static str, fn(usize) -> String, Box<dyn Decode>);

fn rates(criterion: &mut Criterion) {
    let columns = ["id", "qty", "price", "note", "at"].map(str::to_owned).to_vec();
    let table = Some(SourceTable { schema: Some("shop".to_owned()), table: "orders".to_owned() });
    let options = DmsOptions { table, columns: Some(columns), ..DmsOptions::default() };
    let formats: [BenchedFormat; 6] = [
        ("debezium", debezium, Box::new(Debezium::default())),
        ("debezium with schema", with_schema, Box::new(Debezium::default())),
        ("wal2json", wal2json, Box::new(Wal2json::new())),
        ("maxwell", maxwell, Box::new(Maxwell::new())),
        ("canal", canal, Box::new(Canal::new())),
        ("dms", dms, Box::new(Dms::new(options))),
    ];
    let mut group = criterion.benchmark_group("decode");
    group.throughput(Throughput::Elements(RECORDS as u64));
    for (name, record, mut decoder) in formats {
        let records: Vec<String> = (0..RECORDS).map(record).collect();
        group.bench_function(name, |bencher| {
            let mut events = Vec::new();
            bencher.iter(|| {
                for record in &records {
                    events.clear();
                    decoder.decode(record.as_bytes(), &OrderColumnTypes, &mut events).unwrap();
                    black_box(&events);
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, rates);
criterion_main!(benches);
