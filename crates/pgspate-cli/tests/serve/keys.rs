//! `Idempotency-Key`: a request that is sent again is written once.

use crate::scene::{ServeProcess, ServeScene};

const ROWS: &str = "/tables/note/rows";

#[test]
fn a_request_with_a_known_key_gets_the_first_answer() {
    let scene = ServeScene::new(&[]);
    let send = |key: &str, body: &str| {
        let headers = [("idempotency-key", key), ("prefer", "return=representation")];
        scene.process.post(ROWS, &headers, body)
    };
    let first = send("\"k-1\"", r#"{"text":"a"}"#);
    assert_eq!((first.status, first.body.as_str()), (201, r#"[{"id":1,"text":"a"}]"#));
    // A key in quotes, as the draft of the header has it, is the same key.
    for key in ["\"k-1\"", "k-1"] {
        let again = send(key, r#"{"text":"a"}"#);
        assert_eq!((again.status, &again.body), (201, &first.body));
    }
    let other = send("k-1", r#"{"text":"b"}"#);
    assert_eq!((other.status, other.code().as_str()), (422, "key_reused"));
    assert_eq!(send("k-2", r#"{"text":"a"}"#).status, 201);
    assert_eq!(scene.value("select count(*) from note"), "2");
    let stats = scene.process.get("/stats").json();
    let tables = stats["tables"].as_array().unwrap();
    let note = tables.iter().find(|it| it["table"] == "public.note").unwrap();
    assert_eq!(note["rows"], 2, "repeated requests write nothing");
    assert_eq!(stats["writer"]["rows"], 2, "{stats}");
    for invalid in ["", "\"\"", &"k".repeat(300)] {
        let refused = send(invalid, r#"{"text":"c"}"#);
        assert_eq!(refused.status, 400, "{invalid}: {refused:?}");
    }
}

#[test]
fn the_order_of_columns_and_the_format_make_no_other_request() {
    let scene = ServeScene::new(&[]);
    let send = |media: &str, body: &str| {
        let headers = [("content-type", media), ("idempotency-key", "k")];
        scene.process.send("POST", "/tables/account/rows", &headers, body.as_bytes()).status
    };
    assert_eq!(send("application/json", r#"{"id":1,"name":"a"}"#), 201);
    assert_eq!(send("application/json", r#"[{"name":"a","id":1}]"#), 201);
    assert_eq!(send("text/csv", "name,id\na,1\n"), 201);
    assert_eq!(send("text/csv", "name,id\na,2\n"), 422);
}

#[test]
fn records_that_are_written_each_by_itself_have_a_key_each() {
    let scene = ServeScene::new(&[]);
    let headers = [("idempotency-key", "batch"), ("prefer", "rows=each")];
    let send = |path: &str, body: &str| scene.process.post(path, &headers, body).lines();
    let body = r#"[{"id":1,"name":"a"},{"id":2,"name":null},{"id":3,"name":"c"}]"#;
    let first = send("/tables/account/rows", body);
    assert_eq!((&first[0]["status"], &first[1]["status"]), (&201.into(), &400.into()));
    let again = send("/tables/account/rows", body);
    assert_eq!(again, first);
    // The refused record was not written, so that its key may come with another record.
    let mended = send("/tables/account/rows", &body.replace("null", "\"b\""));
    assert!(mended.iter().all(|line| line["status"] == 201), "{mended:?}");
    assert_eq!(scene.value("select count(*) from account"), "3");
}

#[test]
fn the_key_of_a_record_is_no_key_that_a_client_can_send() {
    let scene = ServeScene::new(&[]);
    let each = [("idempotency-key", "batch"), ("prefer", "rows=each")];
    let body = r#"[{"text":"a"},{"text":"b"}]"#;
    let lines = scene.process.post(ROWS, &each, body).lines();
    assert!(lines.iter().all(|line| line["status"] == 201), "{lines:?}");
    let own = [("idempotency-key", "batch/1")];
    assert_eq!(scene.process.post(ROWS, &own, r#"{"text":"c"}"#).status, 201);
    assert_eq!(scene.value("select count(*) from note"), "3");
}

#[test]
fn a_ledger_of_another_version_is_no_fault_of_the_request() {
    let scene = ServeScene::new(&[]);
    let key = [("idempotency-key", "k")];
    assert_eq!(scene.process.post(ROWS, &key, r#"{"text":"a"}"#).status, 201);
    scene.db.run("update pgspate.version set version = 9999");
    let folder = tempfile::tempdir().unwrap();
    let later = ServeProcess::start(&scene.db.dsn(), folder, &["--table", "note"]);
    let refused = later.post(ROWS, &key, r#"{"text":"a"}"#);
    assert_eq!((refused.status, refused.code().as_str()), (500, "ledger"), "{refused:?}");
    // Without a key nothing needs the ledger.
    assert_eq!(later.post(ROWS, &[], r#"{"text":"a"}"#).status, 201);
}

#[test]
fn an_invalid_key_is_refused_before_the_body_is_read() {
    let scene = ServeScene::new(&[]);
    let (long, longest) = ("k".repeat(256), "k".repeat(250));
    let each = ("prefer", "rows=each");
    let several = [("idempotency-key", "a"), ("idempotency-key", "b")];
    let too_long = [("idempotency-key", long.as_str())];
    let too_long_for_each = [("idempotency-key", &long[..251]), each];
    for headers in [&several[..], &too_long, &too_long_for_each] {
        // The body is none at all.
        let refused = scene.process.post(ROWS, headers, "");
        assert_eq!((refused.status, refused.code().as_str()), (400, "invalid_key"), "{refused:?}");
    }
    let body = format!("[{}]", vec![r#"{"text":"a"}"#; 10_000].join(","));
    let lines = scene.process.post(ROWS, &[("idempotency-key", &longest), each], &body).lines();
    assert!(lines.iter().all(|line| line["status"] == 201));
}

/// Records without a key have no field that tells how many they are.
#[test]
fn empty_records_of_another_number_are_other_records() {
    let scene = ServeScene::new(&[]);
    let send = |key, body: &str| scene.process.post(ROWS, &[("idempotency-key", key)], body);
    for (key, first, other) in [("k", "[{}]", "[{},{},{}]"), ("l", "[{},{}]", "[{}]")] {
        let written = send(key, first);
        assert_eq!(written.status, 201, "{written:?}");
        let again = send(key, first);
        assert_eq!((again.status, again.headers), (201, written.headers));
        let refused = send(key, other);
        assert_eq!((refused.status, refused.code().as_str()), (422, "key_reused"));
    }
    assert_eq!(scene.value("select count(*) from note"), "3");
}
