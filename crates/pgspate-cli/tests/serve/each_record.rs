//! `Prefer: rows=each`: an outcome for each record.

use serde_json::{Value, json};

use crate::scene::ServeScene;

const ROWS: &str = "/tables/account/rows";

fn statuses(lines: &[Value]) -> Vec<u64> {
    lines.iter().map(|line| line["status"].as_u64().unwrap()).collect()
}

#[test]
fn a_refused_record_leaves_the_others_alone() {
    let scene = ServeScene::new(&[]);
    let body = r#"[{"id":1,"name":"a"},{"id":1,"name":"b"},{"id":2,"name":null},
                   {"id":"x","name":"c"},{"id":3,"name":"d"},{"id":4,"name":"\u0000"}]"#;
    let answer = scene.post_prefer(ROWS, "rows=each", body);
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/x-ndjson"));
    let lines = answer.lines();
    assert_eq!(statuses(&lines), [201, 409, 400, 400, 201, 400], "{answer:?}");
    let codes: Vec<_> = lines.iter().map(|it| it["code"].as_str().unwrap_or_default()).collect();
    assert_eq!(codes[1..4], ["23505", "23502", "22P02"]);
    assert_eq!(lines[1]["details"], "Key (id)=(1) already exists.");
    assert_eq!(lines[3]["message"], "invalid input syntax for type integer: \"x\"");
    let indexes: Vec<_> = lines.iter().map(|line| line["index"].as_u64().unwrap()).collect();
    assert_eq!(indexes, [0, 1, 2, 3, 4, 5]);
    assert_eq!(scene.value("select string_agg(id::text, ',' order by id) from account"), "1,3");
}

#[test]
fn each_record_has_its_row() {
    let scene = ServeScene::new(&[]);
    let prefer = "rows=each, return=representation, resolution=ignore-duplicates";
    let body = r#"[{"id":1,"name":"a"},{"id":1,"name":"b"}]"#;
    let lines = scene.post_prefer(ROWS, prefer, body).lines();
    assert_eq!(lines[0]["row"], json!({"id": 1, "name": "a", "balance": 7.0}));
    assert_eq!(lines[1], json!({"index": 1, "status": 201, "rows": 0}));
}

#[test]
fn an_invalid_line_is_refused_alone() {
    let scene = ServeScene::new(&[]);
    let lines = "not json\n{\"id\":1,\"name\":\"a\"}\n[1]\n\n{\"id\":2,\"name\":\"b\"\n\
                 {\"id\":3,\"name\":\"c\",\"balance\":1}\n{\"id\":4,\"nam\":\"d\"}\n";
    let headers = [("content-type", "application/x-ndjson"), ("prefer", "rows=each")];
    let answer = scene.process.send("POST", ROWS, &headers, lines.as_bytes());
    let found = answer.lines();
    assert_eq!(statuses(&found), [400, 201, 400, 400, 201, 400], "{answer:?}");
    assert_eq!(found[0]["code"], "invalid_body");
    assert_eq!(found[3]["details"].as_str().unwrap().split(',').next(), Some("line 5"));
    assert_eq!(found[5]["code"], "42703");
    // Together, an invalid line refuses all.
    let headers = [headers[0]];
    let refused = scene.process.send("POST", ROWS, &headers, lines.as_bytes());
    assert_eq!(refused.status, 400);
    let only_invalid = scene.process.send("POST", ROWS, &headers, b"nothing");
    assert_eq!((only_invalid.status, only_invalid.code().as_str()), (400, "invalid_body"));
    assert_eq!(scene.value("select string_agg(id::text, ',' order by id) from account"), "1,3");
}

#[test]
fn a_record_with_the_wrong_number_of_fields_is_refused_alone() {
    let scene = ServeScene::new(&[]);
    let headers = [("content-type", "text/csv"), ("prefer", "rows=each")];
    let answer = scene.process.send("POST", ROWS, &headers, b"id,name\n1,a\n2\n3,c,d\n4,e\n");
    let lines = answer.lines();
    assert_eq!(statuses(&lines), [201, 400, 400, 201], "{answer:?}");
    assert_eq!((&lines[1]["code"], &lines[2]["code"]), (&"22P04".into(), &"22P04".into()));
    // Also if as many fields are left as columns are written.
    let path = "/tables/account/rows?columns=id,name";
    let answer = scene.process.send("POST", path, &headers, b"balance,id,name\n5,6\n1,7,g\n");
    assert_eq!(statuses(&answer.lines()), [400, 201], "{answer:?}");
    assert_eq!(answer.lines()[0]["message"], "missing data for column \"name\"");
    let ids = scene.value("select string_agg(id::text, ',' order by id) from account");
    assert_eq!(ids, "1,4,7");
}

#[test]
fn records_with_different_keys_are_written_in_their_order() {
    let sql = "create table parent (id int primary key, up int references parent, name text)";
    let scene = ServeScene::with_sql(sql, &["--table", "parent"]);
    let body = r#"[{"id":1},{"id":2,"up":1},{"id":3,"up":2,"name":"x"},{"id":4},{"id":5,"up":9}]"#;
    let answer = scene.post_prefer("/tables/parent/rows", "rows=each", body);
    assert_eq!(statuses(&answer.lines()), [201, 201, 201, 201, 409], "{answer:?}");
    assert_eq!(answer.lines()[4]["code"], "23503");
}
