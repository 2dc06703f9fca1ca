//! A stream as a service: metrics, and kills of pgspate, the source and the target.
//!
//! `PGSPATE_TEST_FAULTS=100` kills 100 times instead of a few times.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pgspate_embedded::{ThrowawayServer, silent, testing};
use tempfile::TempDir;

use crate::random_history::SplitMix;
use crate::rows;
use crate::run::{ask, command, finish, spawn, wait_until};
use crate::source::{CONF, PublishedDatabase, follow};
use crate::support::LoadCase;

/// Requests a page of the metrics server. Returns the response with its head.
fn scrape(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn metrics_are_served_while_a_stream_runs() {
    let source = PublishedDatabase::new(
        "create table t (id int primary key);\ncreate publication p for table t",
    );
    let case = LoadCase::new("create table t (id int primary key)");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let args = format!("--create-slot --follow --quiet --metrics 127.0.0.1:{port}");
    let mut child = follow(&source, &case, &args);
    source.wait_for_reader();
    source.run("insert into t select generate_series(1, 1234)");
    wait_until("the metrics show the events", || {
        let page = scrape(port, "/metrics").unwrap_or_default();
        page.contains("\npgspate_apply_events_total 1234\n")
            && page.contains("\npgspate_apply_lag_bytes 0\n")
    });
    let page = scrape(port, "/metrics").unwrap();
    let (head, body) = page.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4"),
        "{head}"
    );
    let mut lines = body.lines();
    while let Some(help) = lines.next() {
        let name = help.strip_prefix("# HELP ").unwrap().split(' ').next().unwrap();
        assert!(name.starts_with("pgspate_apply_"), "{name}");
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        assert_eq!(lines.next().unwrap(), format!("# TYPE {name} {kind}"));
        let (of, value) = lines.next().unwrap().split_once(' ').unwrap();
        assert_eq!((of, value.parse::<f64>().is_ok()), (name, true), "{value}");
    }
    assert!(body.contains("\npgspate_apply_connected 1\n"), "{body}");
    assert!(scrape(port, "/").unwrap().starts_with("HTTP/1.1 404 "));
    // A second process cannot listen on the same address.
    let taken = finish(follow(&source, &case, &args));
    assert_eq!(taken.status, Some(2));
    assert!(taken.stderr.contains("could not listen on 127.0.0.1"), "{}", taken.stderr);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(case.value("select count(*) from t"), "1234");
}

const CREATE_TABLES: &str = "\
create table t (id int primary key, v int);
create table other (id int primary key, v int, big text)";

/// Triggers in the target that log each version of a row that was written. A copy that was killed
/// is repeated with empty tables.
const VERSION_LOG: &str = "\
create table log (n bigint generated always as identity, id int, v int);
create function note() returns trigger language plpgsql as $$ begin
  insert into log (id, v) values (new.id, new.v); return new; end $$;
create trigger note after insert or update on t for each row execute function note();
create function forget() returns trigger language plpgsql as $$ begin
  truncate log; return null; end $$;
create trigger forget after truncate on t execute function forget()";

/// Increments rows of the source until `stop` is set. Counts committed transactions in `done`. A
/// refused transaction is not repeated.
fn increment_until_stopped(dsn: &str, stop: &AtomicBool, done: &AtomicU64) {
    let mut random = SplitMix(11);
    while !stop.load(Ordering::Relaxed) {
        let mut attempt = || -> Option<()> {
            let runtime = tokio::runtime::Runtime::new().ok()?;
            runtime.block_on(async {
                let connected = tokio_postgres::connect(dsn, tokio_postgres::NoTls).await;
                let (client, driver) = connected.ok()?;
                tokio::spawn(driver);
                while !stop.load(Ordering::Relaxed) {
                    let id = random.below(20);
                    let sql = format!(
                        "begin; insert into t values ({id}, 0) on conflict (id) do update \
                         set v = t.v + 1; update other set v = v + 1 where id % 7 = {}; commit",
                        id % 7
                    );
                    client.batch_execute(&sql).await.ok()?;
                    done.fetch_add(1, Ordering::Relaxed);
                    // A debug build must be able to apply these changes between two kills.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Some(())
            })
        };
        if attempt().is_none() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn server(conf: &str) -> ThrowawayServer {
    let started = testing::builder().conf(conf).start(&silent);
    started.unwrap_or_else(|error| panic!("{}", error.chain()))
}

/// Kills pgspate, the source and the target in turn while a stream runs. No change is lost, and no
/// version of a row is written twice.
#[test]
fn kills_lose_and_double_no_change() {
    let many = std::env::var("PGSPATE_TEST_FAULTS").ok().map(|many| many.parse::<u64>().unwrap());
    let (source, target) = (server(CONF), server(""));
    ask(&source.dsn(), CREATE_TABLES);
    ask(
        &source.dsn(),
        "insert into other select n, 0, repeat('x', 3000) from generate_series(1, 700) n",
    );
    ask(&source.dsn(), "create publication p for all tables");
    ask(&target.dsn(), &format!("{CREATE_TABLES}; {VERSION_LOG}"));
    let folder = TempDir::with_prefix("pgspate-cli-").unwrap();
    let address = format!("{}?slot=s&publication=p", source.tcp_dsn_for("postgres"));
    let start = |more: &str| -> Child {
        let mut command = command(folder.path(), &["apply", "--to", &target.dsn(), "--quiet"]);
        command.args(["--snapshot", "--retry-for", "60", "--batch-delay", "0"]);
        spawn(command.args(more.split_whitespace()).arg(&address))
    };
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let dsn = source.dsn();
    std::thread::scope(|scope| {
        scope.spawn(|| increment_until_stopped(&dsn, &stop, &done));
        let mut random = SplitMix(5);
        let mut child = start("--follow");
        for nth in 0..many.unwrap_or(9) {
            // The first kills come early, while pgspate copies the rows.
            let pause = if nth < 3 { 30 + 150 * nth } else { random.below(900) };
            std::thread::sleep(Duration::from_millis(pause));
            match if nth < 3 { 0 } else { nth % 3 } {
                0 => {
                    child.kill().unwrap();
                    child.wait().unwrap();
                    child = start("--follow");
                }
                1 => {
                    source.kill().unwrap();
                    source.restart().unwrap();
                }
                _ => {
                    target.kill().unwrap();
                    target.restart().unwrap();
                }
            }
            if let Some(status) = child.try_wait().unwrap() {
                let run = finish(child);
                // The run fails if the target dies during the copy of the rows, or during a
                // transaction that is larger than a batch.
                println!("{nth}: ended with {status}: {}", run.stderr);
                child = start("--follow");
            }
        }
        let before = done.load(Ordering::Relaxed);
        wait_until("the source accepts changes again", || {
            done.load(Ordering::Relaxed) > before + 50
        });
        stop.store(true, Ordering::Relaxed);
        child.kill().unwrap();
        child.wait().unwrap();
    });
    let mut last = finish(start(""));
    if last.status == Some(2) {
        println!("{}", last.stderr);
        last = finish(start(""));
    }
    assert_eq!(last.status, Some(0), "{}", last.stderr);
    for table in ["t", "other"] {
        let sql = format!("select md5(string_agg(t::text, ' ' order by id)) from {table} t");
        assert_eq!(ask(&target.dsn(), &sql), ask(&source.dsn(), &sql), "{table}");
    }
    let twice = "select count(*) from (select from log group by id, v having count(*) > 1) x";
    assert_eq!(ask(&target.dsn(), twice), "0");
    let back = "select count(*) from (select v - lag(v) over (partition by id order by n) as step \
                from log) x where step <= 0";
    assert_eq!(ask(&target.dsn(), back), "0");
    println!("the source committed {} transactions", done.load(Ordering::Relaxed));
}

#[test]
fn a_bad_event_is_set_aside_with_its_place() {
    let source = PublishedDatabase::new(
        "create table t (id int primary key, v int);\ncreate publication p for table t",
    );
    let case = LoadCase::new("create table t (id int primary key, v int check (v <> 2))");
    let create = finish(follow(&source, &case, "--create-slot --quiet"));
    assert_eq!(create.status, Some(0), "{}", create.stderr);
    source.run("insert into t values (1, 1), (2, 2), (3, 3)");
    let refused = finish(follow(&source, &case, "--quiet"));
    assert_eq!(refused.status, Some(2));
    assert!(
        refused.stderr.contains("could not apply the insert of public.t"),
        "{}",
        refused.stderr
    );
    assert!(refused.stderr.contains(", transaction at "), "{}", refused.stderr);
    let run = finish(follow(&source, &case, "--quiet --max-dead-letters 1"));
    assert_eq!(run.status, Some(1), "{}", run.stderr);
    assert_eq!(rows(&case, "t"), "(1,1) (3,3)");
    let letter = "select position, sqlstate, payload::jsonb -> 'row' ->> 'id', \
                  source like 'slot %, transaction at %' from pgspate.dead_letter";
    assert_eq!(
        case.db.query(letter)[0].iter().flatten().cloned().collect::<Vec<_>>(),
        ["1", "23514", "2", "t"]
    );
}
