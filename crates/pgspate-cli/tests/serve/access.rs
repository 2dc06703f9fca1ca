//! Who may write: tokens, hosts, origins, and the addresses that need them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use pgspate_embedded::testing;
use rustix::process::Signal;

use crate::run::{Run, command, finish, spawn, wait_until};
use crate::scene::{ServeProcess, ServeScene, TABLES};

const ROWS: &str = "/tables/note/rows";
const BODY: &str = r#"{"text":"x"}"#;

fn write_tokens(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Runs `pgspate serve` with arguments that it refuses.
fn refused_start(folder: &Path, dsn: &str, args: &[&str]) -> Run {
    let all = [&["serve", "--to", dsn, "--table", "note"], args].concat();
    let run = finish(spawn(&mut command(folder, &all)));
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    run
}

#[test]
fn a_token_is_needed_and_read_again_on_sighup() {
    let db = testing::database();
    db.run(TABLES);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    write_tokens(&file, "# of the shop\nfirst-token\n\nsecond-token\n", 0o600);
    let args = ["--table", "note", "--tokens", "tokens", "--listen", "0.0.0.0:0"];
    let process = ServeProcess::start(&db.dsn(), folder, &args);
    let post = |authorization: &str| process.post(ROWS, &[("authorization", authorization)], BODY);
    for token in ["Bearer first-token", "bearer second-token"] {
        assert_eq!(post(token).status, 201, "{token}");
    }
    let unknown = [
        "",
        "Bearer",
        "Bearer ",
        "Bearer first-toke",
        "Bearer first-token2",
        "Basic first-token",
        "first-token",
        "Bearer # of the shop",
    ];
    for token in unknown {
        let refused = post(token);
        assert_eq!((refused.status, refused.code().as_str()), (401, "unauthorized"), "{token}");
        assert_eq!(refused.header("www-authenticate"), "Bearer");
    }
    assert_eq!(process.post(ROWS, &[], BODY).status, 401);
    // The numbers need a token; the probes and the page, which has no number in it, need none.
    for (path, status) in [("/stats", 401), ("/metrics", 401), ("/healthz", 200), ("/", 200)] {
        assert_eq!(process.get(path).status, status, "{path}");
    }
    // With a token any name of the host will do.
    let headers = [("authorization", "Bearer first-token"), ("host", "writer.example")];
    assert_eq!(process.post(ROWS, &headers, BODY).status, 201);

    write_tokens(&file, "third-token\n", 0o600);
    process.signal(Signal::HUP);
    wait_until("the new token counts", || post("Bearer third-token").status == 201);
    assert_eq!(post("Bearer first-token").status, 401);
    // A file that cannot be used changes nothing.
    write_tokens(&file, "fourth-token\n", 0o644);
    process.signal(Signal::HUP);
    wait_until("the file is refused", || process.stderr().contains("group or world access"));
    assert_eq!(post("Bearer third-token").status, 201);
    assert_eq!(post("Bearer fourth-token").status, 401);
}

#[test]
fn files_of_tokens_that_others_can_read_are_refused() {
    let db = testing::database();
    db.run(TABLES);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    let refusal = |text: &str, mode: u32| {
        write_tokens(&file, text, mode);
        refused_start(folder.path(), &db.dsn(), &["--tokens", "tokens"]).stderr
    };
    for mode in [0o640, 0o604, 0o644] {
        assert!(refusal("token\n", mode).contains("has group or world access"), "{mode:o}");
    }
    assert!(refusal("\n# nothing\n", 0o600).contains("has no token"));
    assert!(refusal("a token\n", 0o600).contains("has a character that is not valid"));
    let missing = refused_start(folder.path(), &db.dsn(), &["--tokens", "missing"]);
    assert!(missing.stderr.contains("could not read token file"), "{}", missing.stderr);
}

#[test]
fn without_credentials_only_this_machine_may_connect() {
    let db = testing::database();
    db.run(TABLES);
    let folder = tempfile::tempdir().unwrap();
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:8480"] {
        let run = refused_start(folder.path(), &db.dsn(), &["--listen", address]);
        assert!(run.stderr.contains("every machine of the network could write"), "{}", run.stderr);
        assert!(run.stderr.contains("--tokens"), "{}", run.stderr);
    }
    let missing = refused_start(folder.path(), &db.dsn(), &["--table", "nowhere"]);
    assert!(missing.stderr.contains("nowhere does not exist"), "{}", missing.stderr);
}

#[test]
fn pages_of_other_hosts_and_origins_may_not_write() {
    let scene = ServeScene::new(&[]);
    let port = scene.process.authority().rsplit(':').next().unwrap().to_owned();
    let status = |headers: &[(&str, &str)]| scene.process.post(ROWS, headers, BODY).status;
    let local = format!("localhost:{port}");
    for host in [local.as_str(), "127.0.0.1", "[::1]:80"] {
        assert_eq!(status(&[("host", host)]), 201, "{host}");
    }
    // A page under a name that leads to this machine (DNS rebinding).
    for host in ["evil.example", "localhost.evil.example", "10.0.0.1", ""] {
        assert_eq!(status(&[("host", host)]), 403, "{host}");
    }
    // A page of another origin, or of a file.
    for origin in ["http://evil.example", "null", "http://localhost:1", "https://localhost"] {
        assert_eq!(status(&[("host", &local), ("origin", origin)]), 403, "{origin}");
    }
    assert_eq!(status(&[("host", &local), ("sec-fetch-site", "cross-site")]), 403);
    let own = format!("http://{local}");
    let same = [("host", local.as_str()), ("origin", &own), ("sec-fetch-site", "same-origin")];
    assert_eq!(status(&same), 201);
    let link = [("sec-fetch-site", "cross-site")];
    assert_eq!(scene.process.send("GET", "/", &link, b"").status, 200);
    assert_eq!(scene.process.send("GET", "/stats", &link, b"").status, 403);
    for path in ["/stats", "/metrics", "/"] {
        let answer = scene.process.send("GET", path, &[("host", "evil.example")], b"");
        assert_eq!(answer.status, 403, "{path}");
    }
    // What a form can send without being asked is no record.
    for media in ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded"] {
        let answer = scene.process.send("POST", ROWS, &[("content-type", media)], BODY.as_bytes());
        assert_eq!(answer.status, 415, "{media}");
    }
    let answer = scene.process.send("OPTIONS", ROWS, &[("origin", "http://evil.example")], b"");
    assert_eq!(answer.status, 403);
    assert_eq!(answer.header("access-control-allow-origin"), "");
    assert_eq!(scene.value("select count(*) from note"), "4");
}

#[test]
fn a_name_that_stands_for_several_tables_is_not_served() {
    let sql = "create schema a; create schema \"a.b\";
create table a.\"b.c\" (text text); create table \"a.b\".c (text text);
create table a.b (text text); create table \"a.b\" (text text);";
    let tables = ["a.\"b.c\"", "\"a.b\".c", "a.b", "\"a.b\"", "a.b"];
    let args: Vec<&str> = tables.iter().flat_map(|table| ["--table", table]).collect();
    let scene = ServeScene::with_sql(sql, &args);
    for (name, status) in
        [("a.b.c", 404), ("a.b", 404), ("b.c", 201), ("c", 201), ("b", 201), ("public.a.b", 201)]
    {
        let answer = scene.post(&format!("/tables/{name}/rows"), BODY);
        assert_eq!(answer.status, status, "{name}: {answer:?}");
    }
    let counts = "select (select count(*) from a.\"b.c\"), (select count(*) from \"a.b\".c), \
                  (select count(*) from a.b), (select count(*) from public.\"a.b\")";
    assert_eq!(scene.db.query(counts)[0], vec![Some("1".to_owned()); 4]);
}
