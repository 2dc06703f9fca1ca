//! URLs with secrets: commands that read such a URL neither show nor keep its secrets.

use crate::recording_server::{RecordedRequest, RecordingServer, WebAnswer};
use crate::scene::{SecretScene, assert_clean};

/// Parameters whose names reveal that they are secret, and parameters with harmless names.
const QUERY: &str = "pwd=m4rk&code=m4rk&jwt=m4rk&session=m4rk&sig=m4rk&part=m4rk&m4rk";

/// Returns rows or events if the request has the secrets. Some paths return errors.
fn answer(request: &RecordedRequest) -> WebAnswer {
    let is_known = request.header("authorization").is_some() && request.path.contains("jwt=m4rk");
    let page = request.path.split('?').next().unwrap_or_default();
    let body = match page {
        _ if !is_known => return ("403 Forbidden", String::new(), "m4rk".to_owned()),
        "/good.csv" => "id,name\n1,a\n2,b\n",
        "/bad.csv" => "id,name\n3,c\nx,d\n",
        "/good.json" => "{\"op\":\"insert\",\"table\":\"t\",\"row\":{\"id\":7,\"name\":\"g\"}}\n",
        "/bad.json" => "{\"op\":\"insert\",\"table\":\"t\",\"row\":{\"id\":\"x\"}}\n",
        "/not.json" => "m",
        "/cut.csv" => {
            return ("200 OK", "Content-Length: 999\r\n".to_owned(), "id,name\n1,a\n".to_owned());
        }
        "/broken.csv" => return ("400 Oh", String::new(), "m4rk".to_owned()),
        _ => return ("404 Not Found", String::new(), "m4rk".to_owned()),
    };
    ("200 OK", String::new(), body.to_owned())
}

/// The commands that read sources, with their exit statuses.
const COMMANDS: &[(&str, i32)] = &[
    ("load /good.csv --table t --plan", 0),
    ("load /good.csv --table t --plan --json", 0),
    ("load /good.csv --table t --json", 0),
    ("load /good.csv --table t", 0),
    ("load /good.csv --create", 0),
    ("load /good.csv --table t --restart", 2),
    ("load /bad.csv --table t", 2),
    ("load /bad.csv --table t --rejects rejects.csv --json", 1),
    ("load /cut.csv --table t", 2),
    ("load /broken.csv --table t", 2),
    ("load /none.csv --table t", 2),
    ("load /good.csv /good.csv --table t", 2),
    ("load /good.csv --format parquet --table t", 2),
    ("sync /good.csv --table t --key id --scope all --json", 0),
    ("sync /good.csv --table t --key id --scope all --check", 0),
    ("sync /bad.csv --table t --key id --scope all", 2),
    ("sync /none.csv --table t --key id --scope all", 2),
    ("apply /good.json", 2),
    ("apply /good.json --stream s --plan", 0),
    ("apply /good.json --stream s --json", 0),
    ("apply /bad.json --stream bad", 2),
    ("apply /bad.json --stream dead --max-dead-letters 9 --json", 1),
    ("apply /not.json --stream not", 2),
    ("apply /none.json --stream none", 2),
    ("lab run storage --results none --data /none.csv", 2),
    ("status", 0),
    ("status --json", 0),
];

#[test]
fn no_command_shows_the_secrets_of_a_url() {
    let scene = SecretScene::new();
    let web = RecordingServer::start(answer);
    let dsn = scene.server.dsn();
    let base = web.url("").replace("http://", "http://m4rk-user:m4rk@");
    for (args, status) in COMMANDS {
        let words = args.split_whitespace().map(|word| match word.starts_with('/') {
            true => format!("{base}{word}?{QUERY}#m4rk"),
            false => word.to_owned(),
        });
        let words: Vec<String> = words.collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = scene.command(&words);
        let run = scene.run(command.args(["--to", &dsn]));
        assert_eq!(run.status, Some(*status), "{args}: {}", run.stderr);
    }
    let asked = web.take();
    assert!(asked.iter().all(|it| it.path.ends_with(QUERY) && it.header("referer").is_none()));
    let jobs = "select count(*) from pgspate.source_file where source::text like '%pwd=...%'";
    assert_ne!(scene.value(jobs), "0");
    assert_ne!(scene.value("select count(*) from pgspate.dead_letter"), "0");
    scene.assert_no_secret_left();
}

#[test]
fn errors_about_a_url_show_no_secrets() {
    let scene = SecretScene::new();
    let web = RecordingServer::start(answer);
    let dsn = scene.server.dsn();
    let url = web.url("/good.csv?code=m4rk");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = format!("http://u:m4rk@{free}/m.csv?code=m4rk");
    for (source, expected) in [
        (url.as_str(), "was denied (HTTP status 403)"),
        (&nobody, "could not fetch"),
        ("http://u:m4rk@/x.csv?code=m4rk", "is not a valid URL"),
        ("http://u:m4rk@h:port/x.csv", "is not a valid URL"),
        ("https:///u:m4rk@x y/x.csv", "is not a valid URL"),
        ("ftp://u:m4rk@h/x.csv", "\"ftp://\" are not supported"),
        ("postgres://u:m4rk@h/d", "\"postgres://\" are not supported"),
        ("file://u:m4rk@h/x.csv", "is not a valid file URL"),
        ("s3n://KEY:m4rk@bucket/x.csv", "must not have a user or password"),
        ("s3://KEY:m4rk+x@bucket/x.csv", "must not have a user or password"),
        ("s3://KEY:m4rk/x@bucket/x.csv", "must not have a user or password"),
        ("gs://m4rk@bucket/x.csv", "must not have a user or password"),
    ] {
        let mut command = scene.command(&["load", source, "--table", "t", "--to", &dsn]);
        let run = scene.run(&mut command);
        assert_eq!(run.status, Some(2), "{source}: {}", run.stderr);
        assert!(run.stderr.contains(expected), "{source}: {}", run.stderr);
    }
    let secret = scene.value("select coalesce(to_regclass('pgspate.version')::text, '')");
    assert_clean("the ledger", &secret);
    scene.assert_no_secret_left();
}
