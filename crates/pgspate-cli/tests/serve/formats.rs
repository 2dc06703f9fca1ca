//! The formats of bodies, and that values are stored as `load` stores them.

use std::fs;
use std::io::Write;
use std::net::Shutdown;
use std::sync::Arc;

use arrow_array::{Float64Array, Int32Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow_schema::{DataType, Field, Schema, TimeUnit};

use crate::run::{command, finish, spawn};
use crate::scene::{ServeScene, read_answer};

#[test]
fn a_json_object_and_an_array_are_written() {
    let scene = ServeScene::new(&[]);
    let answer = scene.post("/tables/account/rows", r#"{"id": 1, "name": "é\n\"\\"}"#);
    assert_eq!((answer.status, answer.body.as_str()), (201, ""), "{answer:?}");
    assert_eq!(answer.header("content-range"), "*/1");
    let body = r#" [ {"id": 2, "name": "b"} , {"name": "c", "id": 3} ] "#;
    let answer = scene.post("/tables/public.account/rows", body);
    assert_eq!((answer.status, answer.header("content-range")), (201, "*/2"));
    let rows =
        scene.value("select string_agg(id || name || balance, ';' order by id) from account");
    assert_eq!(rows, "1é\n\"\\7.00;2b7.00;3c7.00");
    assert_eq!(scene.post("/tables/account/rows", "[]").status, 201);
    assert_eq!(scene.post("/tables/note/rows", "{}").status, 201);
    assert_eq!(scene.value("select count(*) from note"), "1");
}

#[test]
fn lines_csv_and_arrow_are_written() {
    let scene = ServeScene::new(&[]);
    let send = |media: &str, body: &[u8]| {
        let answer =
            scene.process.send("POST", "/tables/account/rows", &[("content-type", media)], body);
        assert_eq!(answer.status, 201, "{media}: {answer:?}");
    };
    send("application/x-ndjson", b"{\"id\":1,\"name\":\"a\"}\r\n\n{\"id\":2,\"name\":\"b\"}");
    send("text/csv; charset=utf-8", b"name,id\n\"c\"\"\nd\",3\n\"\",4\n");
    let schema = Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int32, false),
        Field::new("name", DataType::Utf8, false),
    ]));
    let columns: Vec<Arc<dyn arrow_array::Array>> = vec![
        Arc::new(Int32Array::from(vec![5, 6])),
        Arc::new(StringArray::from(vec!["e\\N\t", "f"])),
    ];
    let batch = RecordBatch::try_new(schema, columns).unwrap();
    send("application/vnd.apache.arrow.stream", &arrow_stream(&batch));
    let rows = scene.value("select string_agg(id || name, ';' order by id) from account");
    assert_eq!(rows, "1a;2b;3c\"\nd;4;5e\\N\t;6f");
}

#[test]
fn a_body_of_unknown_length_is_written() {
    let scene = ServeScene::new(&[]);
    let mut stream = scene.process.connect();
    let head = "POST /tables/account/rows HTTP/1.1\r\nhost: localhost\r\n\
                content-type: application/json\r\ntransfer-encoding: chunked\r\n\
                connection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let body = r#"{"id":1,"name":"chunked"}"#;
    for part in body.as_bytes().chunks(10) {
        stream.write_all(format!("{:x}\r\n", part.len()).as_bytes()).unwrap();
        stream.write_all(part).unwrap();
        stream.write_all(b"\r\n").unwrap();
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_answer(&mut stream).status, 201);
    assert_eq!(scene.value("select name from account"), "chunked");
}

const TYPES: &str = "\
 (id int primary key, i8 bigint, n numeric, n2 numeric(10,2), f8 double precision, f4 real,
  b boolean, t text, c char(4), d date, ts timestamp, tz timestamptz, iv interval, u uuid,
  by bytea, j json, jb jsonb, ia int[], ta text[], inet inet, r int4range)";

/// Records with values at the edges of their types.
const LINES: &str = include_str!("rows.ndjson");

#[test]
fn json_lines_are_stored_as_load_stores_them() {
    let sql = format!("create table posted {TYPES}; create table loaded {TYPES};");
    let scene = ServeScene::with_sql(&sql, &["--table", "posted"]);
    let folder = scene.process.folder.path();
    fs::write(folder.join("rows.ndjson"), LINES).unwrap();
    load(&scene, "rows.ndjson", "loaded");
    let first: serde_json::Value = serde_json::from_str(LINES.lines().next().unwrap()).unwrap();
    let names: Vec<&str> = first.as_object().unwrap().keys().map(String::as_str).collect();
    let path = format!("/tables/posted/rows?columns={}", names.join(","));
    let media = [("content-type", "application/x-ndjson")];
    let answer = scene.process.send("POST", &path, &media, LINES.as_bytes());
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_equal(&scene, 4);
    // Each record by itself, which is another statement.
    scene.db.run("truncate posted");
    let headers = [media[0], ("prefer", "rows=each")];
    let answer = scene.process.send("POST", &path, &headers, LINES.as_bytes());
    assert!(answer.lines().iter().all(|line| line["status"] == 201), "{answer:?}");
    assert_equal(&scene, 4);
}

#[test]
fn csv_is_stored_as_load_stores_it() {
    let sql = format!("create table posted {TYPES}; create table loaded {TYPES};");
    let scene = ServeScene::with_sql(&sql, &["--table", "posted"]);
    let csv = "id,n,f8,t,d,tz,by,ta,jb\n\
               1,1.50,0.1,\"\",2024-02-29,2024-02-29 12:00+02,\\x00ff,\"{a,\"\"b c\"\"}\",{}\n\
               2,,,,,,,,\n\
               3,1e5,NaN,\" x \"\"\n\",infinity,,\\\\,,\"{\"\"a\"\": 1}\"\n";
    fs::write(scene.process.folder.path().join("rows.csv"), csv).unwrap();
    load(&scene, "rows.csv", "loaded");
    let media = [("content-type", "text/csv")];
    let answer = scene.process.send("POST", "/tables/posted/rows", &media, csv.as_bytes());
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_equal(&scene, 3);
}

#[test]
fn arrow_is_stored_as_load_stores_it() {
    let columns = "(id int primary key, f8 double precision, n numeric, tz timestamptz, t text)";
    let sql = format!("create table posted {columns}; create table loaded {columns};");
    let scene = ServeScene::with_sql(&sql, &["--table", "posted"]);
    let zone = DataType::Timestamp(TimeUnit::Microsecond, Some("Europe/Berlin".into()));
    let schema = Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int32, false),
        Field::new("f8", DataType::Float64, true),
        Field::new("n", DataType::Float64, true),
        Field::new("tz", zone, true),
        Field::new("t", DataType::Utf8, true),
    ]));
    let numbers = vec![Some(0.1), None, Some(f64::NAN)];
    let moments = vec![Some(1_709_200_800_123_456), None, Some(-1)];
    let columns: Vec<Arc<dyn arrow_array::Array>> = vec![
        Arc::new(Int32Array::from(vec![1, 2, 3])),
        Arc::new(Float64Array::from(numbers.clone())),
        Arc::new(Float64Array::from(numbers)),
        Arc::new(TimestampMicrosecondArray::from(moments).with_timezone("Europe/Berlin")),
        Arc::new(StringArray::from(vec![Some("\\N"), None, Some("")])),
    ];
    let stream = arrow_stream(&RecordBatch::try_new(schema, columns).unwrap());
    fs::write(scene.process.folder.path().join("rows.arrows"), &stream).unwrap();
    load(&scene, "rows.arrows", "loaded");
    let media = [("content-type", "application/vnd.apache.arrow.stream")];
    let answer = scene.process.send("POST", "/tables/posted/rows", &media, &stream);
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_equal(&scene, 3);
}

#[test]
fn many_records_of_one_body_are_one_unit() {
    let scene = ServeScene::new(&[]);
    let objects: Vec<String> =
        (0..5000).map(|id| format!(r#"{{"id":{id},"name":"name {id}"}}"#)).collect();
    let body = format!("[{}]", objects.join(","));
    let answer = scene.post("/tables/account/rows", &body);
    assert_eq!((answer.status, answer.header("content-range")), (201, "*/5000"));
    // The last record is refused, and with it all others.
    let body = body.replace("\"id\":0,", "\"id\":9000,").replace("\"id\":1,", "\"id\":9001,");
    let answer = scene.post("/tables/account/rows", &body);
    assert_eq!((answer.status, answer.code().as_str()), (409, "23505"));
    assert_eq!(scene.value("select count(*) from account where id >= 5000"), "0");
}

#[test]
fn a_csv_line_of_a_backslash_and_a_dot_is_data() {
    let sql = "create table word (text text)";
    let scene = ServeScene::with_sql(sql, &["--table", "word"]);
    let media = [("content-type", "text/csv")];
    let answer = scene.process.send("POST", "/tables/word/rows", &media, b"text\n\\.\nb\n\\.\n");
    assert_eq!((answer.status, answer.header("content-range")), (201, "*/3"), "{answer:?}");
    assert_eq!(scene.value("select string_agg(text, ' ') from word"), "\\. b \\.");
}

#[test]
fn an_arrow_stream_that_is_not_whole_is_refused() {
    let scene = ServeScene::new(&["--max-body", "10kB"]);
    let media = [("content-type", "application/vnd.apache.arrow.stream")];
    let send = |body: &[u8]| scene.process.send("POST", "/tables/note/rows", &media, body);
    let schema = Arc::new(Schema::new(vec![Field::new("text", DataType::Utf8, false)]));
    let stream = |text: String, codec: Option<CompressionType>| {
        let columns: Vec<Arc<dyn arrow_array::Array>> =
            vec![Arc::new(StringArray::from(vec![text]))];
        let batch = RecordBatch::try_new(schema.clone(), columns).unwrap();
        let options = IpcWriteOptions::default().try_with_compression(codec).unwrap();
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &schema, options).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        writer.into_inner().unwrap()
    };
    let small = stream("a".to_owned(), None);
    assert_eq!(send(&small).status, 201);
    // Two streams, of which a reader would read the first one.
    assert_eq!(send(&[small.as_slice(), &small].concat()).status, 400);
    let end_marker = 8;
    assert_eq!(send(&small[..small.len() - end_marker]).status, 400);
    // A small body that needs much memory.
    let bomb = stream("a".repeat(1_000_000), Some(CompressionType::ZSTD));
    assert!(bomb.len() < 10_000);
    let refused = send(&bomb);
    assert_eq!((refused.status, refused.code().as_str()), (400, "invalid_body"), "{refused:?}");
    assert!(refused.body.contains("expected at most 40000"), "{refused:?}");
    assert_eq!(send(&stream("a".repeat(9000), Some(CompressionType::ZSTD))).status, 201);
    assert_eq!(scene.value("select count(*) from note"), "2");
}

fn arrow_stream(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

fn load(scene: &ServeScene, file: &str, table: &str) {
    let args = ["load", file, "--table", table, "--to", &scene.db.dsn()];
    let run = finish(spawn(&mut command(scene.process.folder.path(), &args)));
    assert_eq!(run.status, Some(0), "{}", run.stderr);
}

#[track_caller]
fn assert_equal(scene: &ServeScene, rows: usize) {
    let rows_of =
        |table: &str| scene.db.query(&format!("select id, {table}::text from {table} order by id"));
    let (posted, loaded) = (rows_of("posted"), rows_of("loaded"));
    assert_eq!(posted.len(), rows);
    assert_eq!(posted, loaded);
}

/// The values of a body are encoded for the types that its columns have when they are written.
#[test]
fn columns_may_get_other_types() {
    let sql = "create table t (id int, v float8)";
    let scene = ServeScene::with_sql(sql, &["--table", "t"]);
    let rows = "/tables/t/rows";
    let exact = "9223372036854775807.25";
    let stored = || scene.value("select string_agg(v::text, ' ' order by id) from t where id > 0");
    assert_eq!(scene.post(rows, r#"{"id":0,"v":1}"#).status, 201);
    scene.db.run("alter table t alter v type numeric");
    let body = format!(r#"{{"id":1,"v":{exact}}}"#);
    assert_eq!(scene.post(rows, &body).status, 201);
    assert_eq!(stored(), exact);
    scene.db.run("alter table t alter v type float8; delete from t");
    assert_eq!(scene.post(rows, r#"{"id":0,"v":1}"#).status, 201);
    scene.db.run("alter table t alter v type numeric");
    let record = |id: i32| format!(r#"{{"id":{id},"v":{exact}}}"#);
    let body = format!(r#"[{},{{"id":"x","v":1}},{}]"#, record(1), record(2));
    let answer = scene.post_prefer(rows, "rows=each", &body);
    let statuses: Vec<_> =
        answer.body.lines().map(|line| line.contains("\"status\":201")).collect();
    assert_eq!(statuses, [true, false, true], "{}", answer.body);
    assert_eq!(stored(), format!("{exact} {exact}"));
}
