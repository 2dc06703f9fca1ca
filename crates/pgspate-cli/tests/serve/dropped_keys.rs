//! Records for a table whose keys a load drops.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use crate::run::{command, finish, session, spawn, wait_until};
use crate::scene::ServeScene;

const ROWS: &str = "/tables/k/rows";

/// A table. Each row of a load waits for an advisory lock.
const TABLE: &str = "\
create table k (id int primary key, v text not null);
create function held() returns trigger language plpgsql as
    'begin if current_setting(''application_name'') like ''pgspate load%''
           then perform pg_advisory_xact_lock_shared(7); end if; return new; end';
create trigger held before insert on k for each row execute function held()";

const KEYS: &str = "select count(*) from pg_constraint where conname = 'k_pkey'";
const SESSIONS: &str = "\
from pg_stat_activity where application_name = 'pgspate write' and datname = current_database()";

/// Returns a load into the table, from a new file of that many rows.
fn load_command(scene: &ServeScene, rows: u32, args: &str) -> Command {
    let mut csv = "id,v\n".to_owned();
    (0..rows).for_each(|id| writeln!(csv, "{id},{id:>90}").unwrap());
    let (folder, file) = (scene.process.folder.path(), format!("{rows}.csv"));
    fs::write(folder.join(&file), csv).unwrap();
    let dsn = scene.db.dsn();
    let mut all = vec!["load", &file, "--to", &dsn, "--table", "k", "--quiet"];
    all.extend(args.split(' '));
    command(folder, &all)
}

#[test]
fn records_are_refused_until_a_load_has_put_the_keys_back() {
    let scene = ServeScene::with_sql(TABLE, &["--table", "k"]);
    assert_eq!(scene.post(ROWS, r#"{"id":9000,"v":"first"}"#).status, 201);
    // `serve` keeps what it knows of the table, but no session that keeps the keys.
    scene.value(&format!("select count(pg_terminate_backend(pid)) {SESSIONS}"));
    wait_until("its sessions end", || scene.value(&format!("select count(*) {SESSIONS}")) == "0");
    let (runtime, holder) = session(&scene.db.dsn());
    runtime.block_on(holder.batch_execute("begin; select pg_advisory_xact_lock(7)")).unwrap();
    let load = spawn(&mut load_command(&scene, 1000, "--rebuild-indexes always --lanes 2"));
    let waits = "select count(*) from pg_stat_activity where datname = current_database() \
                 and application_name like 'pgspate load%' and wait_event = 'advisory'";
    wait_until("a row waits", || scene.value(waits) != "0");
    assert_eq!(scene.value(KEYS), "0");
    // The last request has other columns, so `serve` asks the server about the table again.
    for body in [r#"{"id":9001,"v":"x"}"#, r#"{"id":9000,"v":"twice"}"#, r#"{"v":"x"}"#] {
        for prefer in ["return=minimal", "resolution=merge-duplicates", "rows=each"] {
            let answer = scene.post_prefer(ROWS, prefer, body);
            let is_each = answer.status == 200;
            let refused = if is_each { answer.lines().remove(0) } else { answer.json() };
            assert_eq!(refused["code"], "55006", "{prefer} {body}: {answer:?}");
            assert!(refused["message"].as_str().unwrap().contains("has dropped primary key"));
            let status = if is_each { refused["status"].as_u64() } else { None };
            assert_eq!(status.unwrap_or(answer.status.into()), 503);
            assert!(is_each || answer.header("retry-after") == "1", "{answer:?}");
        }
    }
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    let run = finish(load);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(scene.value(KEYS), "1");
    assert_eq!(scene.post(ROWS, r#"{"id":9001,"v":"x"}"#).status, 201);
    assert_eq!(scene.post(ROWS, r#"{"id":9000,"v":"twice"}"#).status, 409);
    let merged = scene.post_prefer(ROWS, "resolution=merge-duplicates", r#"{"id":9000,"v":"new"}"#);
    assert_eq!(merged.status, 201);
    assert_eq!(scene.value("select count(*) || ' ' || count(distinct id) from k"), "1002 1002");
    assert_eq!(
        scene.value("select string_agg(v, ' ' order by id) from k where id >= 9000"),
        "new x"
    );
}

#[test]
fn a_load_keeps_the_keys_for_a_session_that_writes_records() {
    let scene = ServeScene::with_sql(
        "create table k (id int primary key, v text not null)",
        &["--table", "k"],
    );
    // The session stays, and so does the empty table, from which a load would drop the keys.
    assert_eq!(scene.post(ROWS, r#"{"id":1}"#).status, 400);
    let refused = finish(spawn(&mut load_command(&scene, 10, "--rebuild-indexes always")));
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    let words = |text: &str| {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("session ") && text.contains("pgspate write"), "{text}");
        assert!(text.contains("writes into the table"), "{text}");
    };
    assert!(refused.stderr.contains("indexes of public.k cannot be dropped"), "{}", refused.stderr);
    words(&refused.stderr);
    let loaded = finish(spawn(&mut load_command(&scene, 90_000, "--json")));
    assert_eq!(loaded.status, Some(0), "{}", loaded.stderr);
    let report: serde_json::Value = serde_json::from_str(&loaded.stdout).unwrap();
    let warning = report["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with("indexes are kept: session "), "{warning}");
    words(warning);
    assert_eq!(report["rebuilt"], serde_json::json!([]));
    assert_eq!(scene.value("select count(*) from k"), "90000");
}
