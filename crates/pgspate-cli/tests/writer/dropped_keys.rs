//! Records for a table whose keys a load has dropped.

use std::fmt::Write as _;

use pgspate::ledger::KEYS_DROPPED;
use pgspate::writer::{InsertRequest, OnConflict, WriterOptions};

use crate::run::{Run, command, session, spawn, wait_until};
use crate::scene::{Record, WriterScene, into, record, short_waits, sqlstate, value};

/// A table. Each row of a load waits for an advisory lock, after it is inserted, so that records
/// may still share statements.
const TABLE: &str = "\
create table t (id int primary key, v text);
create function held() returns trigger language plpgsql as
    'begin if current_setting(''application_name'') like ''pgspate load%''
           then perform pg_advisory_xact_lock_shared(7); end if; return new; end';
create trigger held after insert on t for each row execute function held()";

const SESSIONS: &str = "\
from pg_stat_activity where application_name like 'pgspate %' and datname = current_database()";

/// Drops the keys by a load that is killed.
fn drop_keys(scene: &WriterScene) {
    let folder = tempfile::tempdir().unwrap();
    let mut csv = "id,v\n".to_owned();
    (0..1000).for_each(|id| writeln!(csv, "{id},x").unwrap());
    std::fs::write(folder.path().join("t.csv"), csv).unwrap();
    let dsn = scene.db.dsn();
    let (runtime, holder) = session(&dsn);
    runtime.block_on(holder.batch_execute("begin; select pg_advisory_xact_lock(7)")).unwrap();
    let args = ["load", "t.csv", "--to", &dsn, "--rebuild-indexes", "always", "--quiet"];
    let mut load = spawn(&mut command(folder.path(), &args));
    let waits = format!("select count(*) {SESSIONS} and wait_event = 'advisory'");
    wait_until("a row waits", || value(&scene.db, &waits) != "0");
    load.kill().unwrap();
    load.wait().unwrap();
    end_sessions(scene);
}

/// Ends all sessions of pgspate, also those of the writer.
fn end_sessions(scene: &WriterScene) {
    value(&scene.db, &format!("select count(pg_terminate_backend(pid)) {SESSIONS}"));
    let count = format!("select count(*) {SESSIONS}");
    wait_until("the sessions end", || value(&scene.db, &count) == "0");
}

#[test]
fn records_of_sets_are_refused_while_keys_are_dropped() {
    let options = WriterOptions { shares_triggers: true, connections: 4, ..short_waits() };
    let scene = WriterScene::with_options(TABLE, options);
    let request = into("t", &["id"]);
    let on_conflict = OnConflict::Update(vec!["id".into()]);
    let merging = InsertRequest { on_conflict, ..into("t", &["id"]) };
    for request in [&request, &merging] {
        let written = scene.insert_at_once(request, &[record(&["5000"])]).remove(0);
        assert_eq!(written.unwrap().rows, 1);
    }
    end_sessions(&scene);
    drop_keys(&scene);
    let records: Vec<Record> = (5000..5500).map(|id| record(&[&id.to_string()])).collect();
    for request in [&request, &merging] {
        for outcome in scene.insert_at_once(request, &records) {
            assert_eq!(sqlstate(&outcome), KEYS_DROPPED.code());
        }
    }
    assert_eq!(value(&scene.db, "select count(*) from t"), "1");
    let folder = tempfile::tempdir().unwrap();
    let restore = ["status", "--restore", "--to", &scene.db.dsn()];
    let run = Run::of(command(folder.path(), &restore).output().unwrap());
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    // The writer has kept both shapes.
    let outcomes = scene.insert_at_once(&request, &records);
    assert_eq!(outcomes.iter().filter(|it| it.is_ok()).count(), 499);
    assert_eq!(sqlstate(&outcomes[0]), "23505");
    assert!(scene.insert_at_once(&merging, &records).iter().all(Result::is_ok));
    assert_eq!(value(&scene.db, "select count(*) from t"), "500");
}

#[test]
fn records_of_a_view_are_refused_while_keys_of_its_table_are_dropped() {
    let views = "create view w as select * from t; create view v as select id from w where id > 0";
    let scene = WriterScene::new(&format!("{TABLE}; {views}"));
    let request = into("v", &["id"]);
    let send = || scene.insert_at_once(&request, &[record(&["5000"])]).remove(0);
    assert_eq!(send().unwrap().rows, 1);
    end_sessions(&scene);
    drop_keys(&scene);
    assert_eq!(sqlstate(&send()), KEYS_DROPPED.code());
    assert_eq!(value(&scene.db, "select count(*) from t"), "1");
}

#[test]
fn a_load_keeps_the_keys_of_a_table_while_a_session_writes_into_a_view_of_it() {
    let scene = WriterScene::new(
        "create table t (id int primary key); create view w as select id from t; \
         create view v as select id from w where id > 0",
    );
    let written = scene.insert_at_once(&into("v", &["id"]), &[record(&["1"])]).remove(0);
    assert_eq!(written.unwrap().rows, 1);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("t.csv"), "id\n2\n").unwrap();
    let dsn = scene.db.dsn();
    let args = ["load", "t.csv", "--to", &dsn, "--rebuild-indexes", "always", "--quiet"];
    let refused = Run::of(command(folder.path(), &args).output().unwrap());
    assert_eq!(refused.status, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("pgspate write"), "{}", refused.stderr);
    scene.close();
    let run = Run::of(command(folder.path(), &args).output().unwrap());
    assert_eq!(run.status, Some(0), "{}", run.stderr);
}
