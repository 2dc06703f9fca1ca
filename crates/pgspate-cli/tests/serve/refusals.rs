//! Refused requests: their status and their code.

use crate::scene::ServeScene;

const ROWS: &str = "/tables/account/rows";

#[track_caller]
fn assert_refused(answer: &crate::scene::Answer, status: u16, code: &str) {
    assert_eq!((answer.status, answer.code().as_str()), (status, code), "{answer:?}");
}

#[test]
fn requests_that_cannot_be_answered_are_refused() {
    let scene = ServeScene::new(&["--max-body", "10kB"]);
    let body = r#"{"id":1,"name":"a"}"#;
    for path in ["/tables/nothing/rows", "/tables/private.account/rows"] {
        assert_refused(&scene.post(path, body), 404, "table_not_served");
    }
    assert_refused(&scene.post("/rows", body), 404, "not_found");
    assert_refused(&scene.process.get(ROWS), 405, "wrong_method");
    let with_media =
        |media: &[(&str, &str)]| scene.process.send("POST", ROWS, media, body.as_bytes());
    assert_refused(&with_media(&[]), 415, "unsupported_media_type");
    for media in
        ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1"]
    {
        assert_refused(&with_media(&[("content-type", media)]), 415, "unsupported_media_type");
    }
    let zipped = [("content-type", "application/json"), ("content-encoding", "gzip")];
    assert_refused(&with_media(&zipped), 415, "unsupported_media_type");
    let large = format!(r#"{{"id":1,"name":"{}"}}"#, "a".repeat(10_000));
    assert_refused(&scene.post(ROWS, &large), 413, "body_too_large");
    let path = "/tables/account/rows?id=eq.1";
    assert_refused(&scene.post(path, body), 400, "invalid_query");
    for body in ["", "{", "[{]", "1", "{\"id\":1}x", "\u{feff}", "[1]"] {
        assert_refused(&scene.post(ROWS, body), 400, "invalid_body");
    }
    // The hint of the engine also names a flag of `pgspate load`.
    let answer = scene.post(ROWS, r#"{"id":1,"name":"\ud800"}"#);
    assert_eq!(answer.status, 400, "{answer:?}");
    let said = format!("{answer:?}");
    assert!(said.contains("surrogate") && !said.contains("--"), "{said}");
    assert_eq!(scene.value("select count(*) from account"), "0");
}

#[test]
fn errors_of_the_server_have_the_statuses_of_postgrest() {
    let sql = "\
create table parent (id int primary key);
create table child (id int primary key, up int references parent,
  n int check (n > 0), m int not null);
create function refuse() returns trigger language plpgsql as
  $$ begin raise exception 'not today' using hint = 'Try tomorrow.', detail = 'It is late.'; end $$;
create table shut (id int);
create trigger refuse before insert on shut for each row execute function refuse();
create table hidden (id int);";
    let tables = ["--table", "child", "--table", "shut", "--table", "hidden"];
    let scene = ServeScene::with_sql(sql, &tables);
    let post = |table: &str, body: &str| scene.post(&format!("/tables/{table}/rows"), body);
    assert_refused(&post("child", r#"{"id":1,"up":7,"n":1,"m":1}"#), 409, "23503");
    assert_refused(&post("child", r#"{"id":1,"n":0,"m":1}"#), 400, "23514");
    assert_refused(&post("child", r#"{"id":1,"n":1}"#), 400, "23502");
    assert_refused(&post("child", r#"{"id":"one","m":1}"#), 400, "22P02");
    assert_refused(&post("child", r#"{"id":99999999999,"m":1}"#), 400, "22003");
    let refused = post("shut", r#"{"id":1}"#);
    assert_refused(&refused, 400, "P0001");
    let error = refused.json();
    assert_eq!(error["message"], "not today");
    assert_eq!(
        (error["details"].as_str(), error["hint"].as_str()),
        (Some("It is late."), Some("Try tomorrow."))
    );
    scene.db.run("drop table hidden");
    assert_refused(&post("hidden", r#"{"id":1}"#), 404, "42P01");
}

#[test]
fn a_role_without_the_privilege_gets_403() {
    let scene = ServeScene::new(&[]);
    let role = format!("reader_{}", scene.db.name().replace('-', "_"));
    scene.db.run(&format!("create role \"{role}\" login"));
    let dsn = format!("{} user={role}", scene.db.dsn());
    let folder = tempfile::tempdir().unwrap();
    let process = crate::scene::ServeProcess::start(&dsn, folder, &["--table", "account"]);
    let answer = process.post(ROWS, &[], r#"{"id":1,"name":"a"}"#);
    assert_refused(&answer, 403, "42501");
    drop(process);
    scene.db.run(&format!("drop role \"{role}\""));
}

#[test]
fn a_full_queue_refuses_before_the_body_is_read() {
    use std::io::Write;
    let scene = ServeScene::new(&["--queue", "64KiB"]);
    // A request takes room as its body arrives.
    let mut slow = scene.process.connect();
    let headers = [("content-type", "application/json")];
    let head = crate::scene::head("POST", ROWS, scene.process.authority(), &headers, 60_000);
    slow.write_all(head.as_bytes()).unwrap();
    let body = format!(r#"{{"id":1,"name":"{}"}}"#, "a".repeat(60_000 - 18));
    let (begin, rest) = body.split_at(59_000);
    slow.write_all(begin.as_bytes()).unwrap();
    crate::run::wait_until("the room is taken", || {
        scene.process.get("/stats").json()["queued_bytes"].as_u64() > Some(50_000)
    });
    let body = format!(r#"{{"id":2,"name":"{}"}}"#, "b".repeat(10_000));
    let refused = scene.post(ROWS, &body);
    assert_refused(&refused, 429, "queue_full");
    assert_eq!(refused.header("retry-after"), "1");
    // A small request still fits.
    assert_eq!(scene.post(ROWS, r#"{"id":3,"name":"c"}"#).status, 201);
    slow.write_all(rest.as_bytes()).unwrap();
    assert_eq!(crate::scene::read_answer(&mut slow).status, 201);
    assert_eq!(scene.post(ROWS, &body).status, 201);
}

#[test]
fn a_limit_of_bodies_beyond_offsets_of_32_bits_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["serve", "--table", "t", "--max-body", "4GiB"];
    let run = crate::run::finish(crate::run::spawn(&mut crate::run::command(folder.path(), &args)));
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("expected less than 4GiB"), "{}", run.stderr);
}

#[test]
fn a_stated_length_takes_no_room_without_bytes() {
    use std::io::Write;
    let scene = ServeScene::new(&["--queue", "64KiB"]);
    let headers = [("content-type", "application/json")];
    let head = crate::scene::head("POST", ROWS, scene.process.authority(), &headers, 60_000);
    let begin = || {
        let mut slow = scene.process.connect();
        slow.write_all(head.as_bytes()).unwrap();
        slow
    };
    let slow = begin();
    crate::run::wait_until("the request has begun", || {
        scene.process.get("/stats").json()["queued_bytes"].as_u64() > Some(0)
    });
    let body = format!(r#"{{"id":1,"name":"{}"}}"#, "a".repeat(20_000));
    assert_eq!(scene.post(ROWS, &body).status, 201);
    drop(slow);
}

#[test]
fn the_text_of_records_takes_room_and_a_request_may_take_all_of_it() {
    use std::io::Write;
    let columns: Vec<String> = (0..500).map(|nth| format!("c{nth} int")).collect();
    let sql = format!("create table wide ({})", columns.join(", "));
    let scene = ServeScene::with_sql(&sql, &["--table", "wide", "--queue", "64KiB"]);
    let names: Vec<&str> = columns.iter().map(|it| it.split(' ').next().unwrap()).collect();
    let path = format!("/tables/wide/rows?columns={}", names.join(","));
    // Some bytes of body, and 1500 bytes of text for each record.
    let records = |count: usize| format!("[{}]", vec!["{}"; count].join(","));
    assert_eq!(scene.post(&path, &records(200)).status, 201);
    let headers = [("content-type", "application/json")];
    let head = crate::scene::head("POST", &path, scene.process.authority(), &headers, 60_000);
    let mut slow = scene.process.connect();
    slow.write_all(format!("{head}{}", " ".repeat(50_000)).as_bytes()).unwrap();
    crate::run::wait_until("the room is taken", || {
        scene.process.get("/stats").json()["queued_bytes"].as_u64() > Some(45_000)
    });
    assert_refused(&scene.post(&path, &records(20)), 429, "queue_full");
    assert_eq!(scene.post(&path, &records(1)).status, 201);
}

/// A request of HTTP/1 without a length ends with its head.
#[test]
fn a_request_that_states_no_body_is_refused() {
    let scene = ServeScene::new(&[]);
    let body = "{\"id\":1,\"name\":\"a\"}\n";
    for media in ["application/x-ndjson", "application/json", "text/csv"] {
        for body in ["", body] {
            let authority = scene.process.authority();
            let head = format!(
                "POST {ROWS} HTTP/1.1\r\nhost: {authority}\r\ncontent-type: {media}\r\n\r\n"
            );
            let answer = crate::scene::exchange(scene.process.connect(), &head, body.as_bytes());
            assert_refused(&answer, 411, "length_required");
            assert_eq!(answer.header("connection"), "close");
        }
    }
    // A length of zero states that there are no records.
    let empty = [("content-type", "application/x-ndjson")];
    let answer = scene.process.send("POST", ROWS, &empty, b"");
    assert_eq!((answer.status, answer.header("content-range")), (201, "*/0"));
    assert_eq!(scene.value("select count(*) from account"), "0");
}

#[test]
fn several_headers_of_the_body_are_refused() {
    let scene = ServeScene::new(&[]);
    let (csv, json) = (("content-type", "text/csv"), ("content-type", "application/json"));
    let (plain, zipped) = (("content-encoding", "identity"), ("content-encoding", "gzip"));
    let body = r#"{"id":1,"name":"a"}"#;
    for headers in [&[json, csv][..], &[csv, json], &[json, json], &[json, plain, zipped]] {
        let answer = scene.process.send("POST", ROWS, headers, body.as_bytes());
        assert_refused(&answer, 415, "unsupported_media_type");
        assert!(answer.body.contains("several headers Content-"), "{answer:?}");
    }
    assert_eq!(scene.process.send("POST", ROWS, &[json, plain], body.as_bytes()).status, 201);
}

#[test]
fn a_column_that_the_header_names_twice_is_refused() {
    let scene = ServeScene::new(&[]);
    let send = |query: &str| {
        let media = [("content-type", "text/csv")];
        let path = format!("{ROWS}{query}");
        scene.process.send("POST", &path, &media, b"id,name,name,balance,balance\n1,a,b,2,3\n")
    };
    for query in ["", "?columns=id,name", "?columns=id,balance"] {
        let answer = send(query);
        assert_refused(&answer, 400, "invalid_request");
        assert!(answer.body.contains("is named twice"), "{answer:?}");
    }
    // Columns that are not written may have any names.
    assert_refused(&send("?columns=id"), 400, "23502");
}
