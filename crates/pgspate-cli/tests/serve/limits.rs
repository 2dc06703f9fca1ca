//! The limits of a request, and what is refused before its body arrives.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use crate::scene::{ServeProcess, ServeScene, TABLES, head, read_answer};

const ROWS: &str = "/tables/note/rows";

#[test]
fn a_request_with_too_many_records_writes_none() {
    let scene = ServeScene::new(&[]);
    let lines = |count: usize| "{\"text\":\"a\"}\n".repeat(count);
    let csv = |count: usize| format!("text\n{}", "a\n".repeat(count));
    let cases = [("application/x-ndjson", lines(100_001), ""), ("text/csv", csv(100_001), "")];
    let each = [
        ("application/x-ndjson", lines(10_001), "rows=each"),
        ("text/csv", csv(10_001), "rows=each"),
    ];
    for (media, body, prefer) in cases.into_iter().chain(each) {
        let headers = [("content-type", media), ("prefer", prefer)];
        let answer = scene.process.send("POST", ROWS, &headers, body.as_bytes());
        let case = (answer.status, answer.code());
        assert_eq!(case, (413, "too_many_records".to_owned()), "{media} {prefer}");
    }
    assert_eq!(scene.value("select count(*) from note"), "0");
    let headers = [("content-type", "text/csv"), ("prefer", "rows=each")];
    let answer = scene.process.send("POST", ROWS, &headers, csv(10_000).as_bytes());
    assert_eq!((answer.status, answer.lines().len()), (200, 10_000));
    assert_eq!(scene.value("select count(*) from note"), "10000");
}

#[test]
fn records_with_too_many_sets_of_keys_are_refused() {
    let scene = ServeScene::new(&[]);
    let objects: Vec<_> = (0..101).map(|nth| format!("{{\"column {nth}\":1}}")).collect();
    let answer = scene.post(ROWS, &format!("[{}]", objects.join(",")));
    assert_eq!((answer.status, answer.code().as_str()), (400, "too_many_shapes"));
    // A line is refused by itself, for its own reason: it does not have the columns before it.
    let headers = [("content-type", "application/x-ndjson"), ("prefer", "rows=each")];
    let body = objects.join("\n");
    let lines = scene.process.send("POST", ROWS, &headers, body.as_bytes()).lines();
    let codes: Vec<_> = lines.iter().map(|line| line["code"].as_str().unwrap()).collect();
    assert_eq!((codes.len(), codes[100]), (101, "too_many_shapes"));
    assert!(codes[..100].iter().all(|code| *code == "42703"), "{codes:?}");
}

/// None of the clients sends its body, and each has its answer.
#[test]
fn refusals_do_not_wait_for_the_body() {
    let db = pgspate_embedded::testing::database();
    db.run(TABLES);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    fs::write(&file, "token\n").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let args = ["--table", "note", "--tokens", "tokens"];
    let process = ServeProcess::start(&db.dsn(), folder, &args);
    let token = ("authorization", "Bearer token");
    let media = ("content-type", "application/json");
    let cases = [
        (ROWS, vec![media], 401),
        (ROWS, vec![media, ("authorization", "Bearer other")], 401),
        ("/tables/account/rows", vec![media, token], 404),
        (ROWS, vec![token], 415),
        (ROWS, vec![media, token, ("idempotency-key", "")], 400),
        (ROWS, vec![media, token, ("prefer", "tx=rollback")], 400),
        ("/tables/note/rows?id=eq.1", vec![media, token], 400),
        (ROWS, vec![media, token, ("origin", "http://elsewhere.example")], 403),
    ];
    for (path, headers, status) in cases {
        let mut stream = process.connect();
        let head = head("POST", path, process.authority(), &headers, 1000);
        stream.write_all(head.as_bytes()).unwrap();
        let answer = read_answer(&mut stream);
        assert_eq!(answer.status, status, "{path} {headers:?} {answer:?}");
    }
}
