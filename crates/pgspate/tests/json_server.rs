//! JSON rows that pgspate loads by COPY, compared with the rows that `json_populate_record`
//! returns.

#[allow(dead_code)]
#[path = "../../pgspate-input/tests/support/json_rows.rs"]
mod json_rows;

use bytes::Bytes;
use futures_util::SinkExt;
use json_rows::{array, base, options, rows};
use pgspate::format::keyed::KeyedOptions;
use pgspate::target::quote_ident;
use pgspate_embedded::testing;
use tokio_postgres::{Client, NoTls};

fn table() -> KeyedOptions {
    options(vec![
        ("i", base(23, "integer")),
        ("n", base(1700, "numeric")),
        ("f", base(701, "double precision")),
        ("b", base(16, "boolean")),
        ("t", base(25, "text")),
        ("d", base(1082, "date")),
        ("j", base(3802, "jsonb")),
        ("ia", array(1007, base(23, "integer"))),
        ("ta", array(1009, base(25, "text"))),
        ("ja", array(3807, base(3802, "jsonb"))),
    ])
}

const COLUMNS: &str = "i int, n numeric, f float8, b bool, t text, d date, j jsonb, ia int[], \
                       ta text[], ja jsonb[]";

/// Records for which both ways must give the same row, or an error with the same SQLSTATE.
const RECORDS: &[&str] = &[
    r#"{}"#,
    r#"{"i":null,"t":null,"j":null,"ia":null}"#,
    r#"{"i":1,"n":1.500,"f":1e-3,"b":true,"t":"x","d":"2024-02-29","j":{"a":1}}"#,
    r#"{"i":"7","n":"1e3","f":"NaN","b":"off","t":5,"d":"today"}"#,
    r#"{"n":123456789012345678901234567890.123456789}"#,
    r#"{"n":1.0e+10,"f":0.1}"#,
    r#"{"i":1.5}"#,
    r#"{"i":1e2}"#,
    r#"{"i":99999999999}"#,
    r#"{"i":true}"#,
    r#"{"i":{"a":1}}"#,
    r#"{"i":[1]}"#,
    r#"{"i":""}"#,
    r#"{"b":1}"#,
    r#"{"b":"maybe"}"#,
    r#"{"t":true}"#,
    r#"{"t":{"a" : [1, "b"]}}"#,
    r#"{"t":[1,  2]}"#,
    r#"{"t":"tab\tnewline\nreturn\rback\\slash\u00e9\ud83d\ude00"}"#,
    r#"{"t":"\\N"}"#,
    r#"{"t":"\\."}"#,
    r#"{"t":""}"#,
    r#"{"t":"\u0000"}"#,
    r#"{"t":"\ud800"}"#,
    r#"{"d":"2023-02-29"}"#,
    r#"{"d":20240101}"#,
    r#"{"j":"string"}"#,
    r#"{"j":12.50}"#,
    r#"{"j":false}"#,
    r#"{"j":[null,{"b":1,"a":2,"b":3}]}"#,
    r#"{"i":1,"i":2}"#,
    r#"{"ia":[1,2,null]}"#,
    r#"{"ia":[]}"#,
    r#"{"ia":[[1,2],[3,4]]}"#,
    r#"{"ia":["5",6]}"#,
    r#"{"ia":"{7,8}"}"#,
    r#"{"ia":5}"#,
    r#"{"ia":{"a":1}}"#,
    r#"{"ia":[1,[2]]}"#,
    r#"{"ia":[[1],2]}"#,
    r#"{"ia":[[1],[2,3]]}"#,
    r#"{"ia":["x"]}"#,
    r#"{"ta":["a","b,c","{d}","\"q\"","\\","NULL","null",""," s ",null,1.50,true]}"#,
    r#"{"ta":[{"a":"b\"c"},"x\ny"]}"#,
    r#"{"ta":[["a"],["b"]]}"#,
    r#"{"ta":[["a"],"b"]}"#,
    r#"{"ta":["a",["b"]]}"#,
    r#"{"ja":[1,"two",null,{"three":[3]},true]}"#,
    r#"{"ja":[[{"a":1}],[{"b":2}]]}"#,
    r#"{"ja":[{"a":1},[2,3]]}"#,
    r#"{"ta":"not an array"}"#,
    r#"{"ia":[[[[[[[1]]]]]]]}"#,
    r#"{"ia":[[],[]]}"#,
    r#"{"ia":[[],1]}"#,
    r#"{"ia":[null,[1]]}"#,
    r#"{"ta":["a\u0000"]}"#,
    r#"{"ja":[{"a":"\u0000"}]}"#,
    r#"{"j":"\u0000"}"#,
    r#"{"j":"\ud800"}"#,
    r#"{"j":{"a":1e400000}}"#,
    r#"{"n":1e400000}"#,
    r#"{"n":-0.0,"f":-0,"i":-0}"#,
    r#"{"b":"t","t":"\u001f\u007f"}"#,
];

async fn connect(dsn: &str) -> Client {
    let (client, connection) =
        tokio_postgres::connect(dsn, NoTls).await.expect("could not connect to the test server");
    tokio::spawn(connection);
    client
}

async fn copy(client: &Client, text: String) -> Result<(), tokio_postgres::Error> {
    let sink = client.copy_in("copy ours from stdin").await?;
    let mut sink = std::pin::pin!(sink);
    sink.send(Bytes::from(text)).await?;
    sink.finish().await.map(|_| ())
}

#[tokio::test]
async fn rows_equal_those_of_json_populate_record() {
    let database = testing::database();
    let client = connect(&database.dsn()).await;
    client
        .batch_execute(&format!(
            "set datestyle = iso; create temp table ours ({COLUMNS}); \
             create temp table theirs ({COLUMNS})"
        ))
        .await
        .unwrap();
    let mut different = Vec::new();
    for record in RECORDS {
        client.batch_execute("truncate ours, theirs").await.unwrap();
        let ours = match rows(record.as_bytes(), 1 << 20, &table()) {
            Ok(text) => copy(&client, text).await.map_err(|e| e.code().unwrap().clone()),
            Err(error) => Err(error.sqlstate().unwrap().clone()),
        };
        let insert =
            "insert into theirs select * from json_populate_record(null::theirs, $1::text::json)";
        let theirs = client.execute(insert, &[record]).await;
        let theirs = theirs.map(|_| ()).map_err(|e| e.code().unwrap().clone());
        if ours != theirs {
            different.push(format!("{record}: {ours:?}, not {theirs:?}"));
            continue;
        }
        let compare = "select (select array_agg(r::text) from ours r)::text, \
                       (select array_agg(r::text) from theirs r)::text";
        let row = client.query_one(compare, &[]).await.unwrap();
        let (ours, theirs): (Option<String>, Option<String>) = (row.get(0), row.get(1));
        if ours != theirs {
            different.push(format!("{record}: {ours:?}, not {theirs:?}"));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[tokio::test]
async fn quote_ident_quotes_every_word_that_the_server_quotes() {
    let database = testing::database();
    let client = connect(&database.dsn()).await;
    let words =
        client.query("select word, quote_ident(word) from pg_get_keywords()", &[]).await.unwrap();
    assert!(words.len() > 400);
    for row in words {
        let (word, theirs): (String, String) = (row.get(0), row.get(1));
        let ours = quote_ident(&word);
        assert!(ours == theirs || ours == format!("\"{word}\""), "{word}");
    }
}
