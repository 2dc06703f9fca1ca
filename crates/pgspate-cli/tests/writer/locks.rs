//! Records that wait for locks of other sessions, and records that need not wait with them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pgspate::writer::{InsertOutcome, InsertRequest, OnConflict, WriterOptions};
use pgspate::{ErrorKind, Result};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

use crate::run::wait_until;
use crate::scene::{WriterScene, call, encode, into, record, short_waits, sqlstate, value};

/// A session that holds locks until its transaction ends.
fn hold(scene: &WriterScene, sql: &str) -> Client {
    scene.runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&scene.db.dsn(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute(&format!("begin; {sql}")).await.unwrap();
        client
    })
}

fn roll_back(scene: &WriterScene, holder: &Client) {
    scene.runtime.block_on(holder.batch_execute("rollback")).unwrap();
}

/// Sends a record by each of `count` callers, and does not wait for them.
fn send(
    scene: &WriterScene,
    request: &InsertRequest,
    id: &'static str,
    count: usize,
) -> Vec<JoinHandle<Result<InsertOutcome>>> {
    let spawn = |_| {
        let (writer, request) = (scene.writer.clone(), request.clone());
        scene.runtime.spawn(async move { call(&writer, &request, &[record(&[id])]).await })
    };
    (0..count).map(spawn).collect()
}

/// Callers that wait for one key use up neither the lanes nor the sessions that wait for locks.
fn check_others_pass(connections: usize, on_conflict: OnConflict) {
    let options = WriterOptions { connections, ..short_waits() };
    let scene = WriterScene::with_options("create table t (id int primary key)", options);
    let is_refused = on_conflict == OnConflict::Refuse;
    let request = InsertRequest { on_conflict, ..into("t", &["id"]) };
    let long = hold(&scene, "insert into t values (50)");
    let short = hold(&scene, "insert into t values (60)");
    let waiting = send(&scene, &request, "50", 200);
    wait_until("callers wait", || scene.writer.report().lock_waits >= 200);
    let others: Vec<_> = (100..600).map(|id| record(&[&id.to_string()])).collect();
    for outcome in scene.insert_at_once(&request, &others) {
        assert_eq!(outcome.unwrap().rows, 1);
    }
    // The lock of this record is held for a shorter time than that of those before it.
    let second = send(&scene, &request, "60", 1).pop().unwrap();
    wait_until("one more caller waits", || scene.writer.report().lock_waits >= 201);
    roll_back(&scene, &short);
    assert_eq!(scene.runtime.block_on(second).unwrap().unwrap().rows, 1);
    assert!(waiting.iter().all(|caller| !caller.is_finished()));
    roll_back(&scene, &long);
    let outcomes = waiting.into_iter().map(|it| scene.runtime.block_on(it).unwrap());
    let outcomes: Vec<_> = outcomes.collect();
    let written = outcomes.iter().filter(|it| it.as_ref().is_ok_and(|it| it.rows == 1)).count();
    assert_eq!(written, 1);
    let code = if is_refused { "23505" } else { "" };
    let mut others = outcomes.iter().filter(|it| !it.as_ref().is_ok_and(|it| it.rows == 1));
    assert!(others.all(|it| sqlstate(it) == code));
    assert_eq!(value(&scene.db, "select count(*) from t"), "502");
    scene.close();
    let sessions = "select count(*) from pg_stat_activity where application_name = 'pgspate write'";
    wait_until("the sessions end", || value(&scene.db, sessions) == "0");
}

#[test]
fn others_pass_callers_that_wait_for_one_key() {
    check_others_pass(8, OnConflict::Refuse);
}

#[test]
fn others_pass_if_a_single_session_may_wait() {
    check_others_pass(2, OnConflict::Refuse);
}

/// Records that may be ignored are sent by statements of their own, all at once.
#[test]
fn others_pass_in_a_pipeline() {
    check_others_pass(8, OnConflict::Ignore(Vec::new()));
}

/// Locks the table again and again by two sessions. So one of them always waits for the other, and
/// whoever does not wait for its turn never gets the lock. Stops with the returned sender.
fn keep_locking(scene: &WriterScene, table: &str) -> watch::Sender<bool> {
    let stop = watch::Sender::new(false);
    let sql =
        format!("begin; lock {table} in share row exclusive mode; select pg_sleep(0.3); commit");
    for _ in 0..2 {
        let (dsn, sql, stop) = (scene.db.dsn(), sql.clone(), stop.subscribe());
        scene.runtime.spawn(async move {
            let (client, connection) = tokio_postgres::connect(&dsn, NoTls).await.unwrap();
            tokio::spawn(connection);
            while !*stop.borrow() {
                client.batch_execute(&sql).await.unwrap();
            }
        });
    }
    stop
}

/// With so few connections, one session tries all that waits, and it must also wait itself.
#[test]
fn a_single_connection_waits_for_a_lock_that_is_never_free() {
    let options = WriterOptions { connections: 1, ..short_waits() };
    let scene = WriterScene::with_options("create table t (id int primary key)", options);
    let request = into("t", &["id"]);
    // The table's facts are read and the statement is prepared before it is locked.
    scene.insert_at_once(&request, &[record(&["0"])]).remove(0).unwrap();
    let stop = keep_locking(&scene, "t");
    let waiting = "select count(*) from pg_locks where relation = 't'::regclass and not granted";
    wait_until("a session waits for the lock", || value(&scene.db, waiting) == "1");
    let sent = send(&scene, &request, "1", 1).pop().unwrap();
    assert_eq!(scene.runtime.block_on(sent).unwrap().unwrap().rows, 1);
    assert!(scene.writer.report().lock_waits > 0);
    stop.send_replace(true);
    scene.close();
}

/// The facts of a partitioned table cannot be read while a partition is locked.
#[test]
fn callers_of_other_tables_pass_a_table_with_a_locked_partition() {
    let scene = WriterScene::with_options(
        "create table p (id int) partition by range (id); \
         create table p1 partition of p for values from (0) to (10); create table t (id int)",
        short_waits(),
    );
    let holder = hold(&scene, "lock p1 in access exclusive mode");
    let waiting = send(&scene, &into("p", &["id"]), "1", 30);
    let asks = "select count(*) from pg_locks where relation = 'p1'::regclass and not granted";
    wait_until("a session waits for the partition", || value(&scene.db, asks) == "1");
    // Each of these callers would wait for a second before the other one.
    let began = Instant::now();
    let other = scene.insert_at_once(&into("t", &["id"]), &[record(&["1"])]).remove(0);
    assert_eq!(other.unwrap().rows, 1);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(waiting.iter().all(|caller| !caller.is_finished()));
    roll_back(&scene, &holder);
    for caller in waiting {
        assert_eq!(scene.runtime.block_on(caller).unwrap().unwrap().rows, 1);
    }
    scene.close();
}

#[test]
fn records_of_a_call_that_wait_for_a_lock_keep_their_order() {
    let options = WriterOptions { connections: 8, ..short_waits() };
    let sql = "create table t (id int primary key, value int); insert into t values (1, 0)";
    let scene = WriterScene::with_options(sql, options);
    let keys = vec!["id".to_owned()];
    let request =
        InsertRequest { on_conflict: OnConflict::Update(keys), ..into("t", &["id", "value"]) };
    let shape = scene.shape(&request);
    let holder = hold(&scene, "select from t for update");
    let encode = |value: i32| encode(&shape, &[record(&["1", &value.to_string()])]).unwrap();
    let calls = 30;
    let rows: Vec<_> = (1..=calls).map(encode).collect();
    let writer = Arc::clone(&scene.writer);
    let sent = scene.runtime.spawn(async move { writer.insert_each(&shape, rows).await });
    wait_until("all wait", || scene.writer.report().lock_waits >= calls as u64);
    roll_back(&scene, &holder);
    let outcomes = scene.runtime.block_on(sent).unwrap().unwrap();
    assert!(outcomes.iter().all(Result::is_ok));
    assert_eq!(value(&scene.db, "select value from t"), calls.to_string());
}

/// Each call is a transaction of its own, because points have no binary form. One of them ends the
/// session that tries the others after it.
#[test]
fn a_lost_session_leaves_only_the_call_that_was_sent_unknown() {
    let options = WriterOptions { connections: 1, ..short_waits() };
    let scene = WriterScene::with_options(
        "create table t (id int, place point);
         create function wait() returns trigger language plpgsql as
             'begin perform pg_advisory_xact_lock(7);
              if new.id = -1 then perform pg_terminate_backend(pg_backend_pid()); end if;
              return new; end';
         create trigger wait before insert on t for each row execute function wait()",
        options,
    );
    let request = into("t", &["id", "place"]);
    let holder = hold(&scene, "select pg_advisory_xact_lock(7)");
    let mut sent = Vec::new();
    for id in ["1", "-1", "2", "3", "4"] {
        let (writer, request) = (scene.writer.clone(), request.clone());
        sent.push(scene.runtime.spawn(async move {
            let records = [record(&[id, "(1,2)"]), record(&[id, "(3,4)"])];
            call(&writer, &request, &records).await
        }));
        wait_until("the call waits", || scene.writer.report().lock_waits >= sent.len() as u64);
    }
    roll_back(&scene, &holder);
    let outcomes: Vec<_> = sent.into_iter().map(|it| scene.runtime.block_on(it).unwrap()).collect();
    let unknown = outcomes[1].as_ref().unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::OutcomeUnknown, "{unknown:?}");
    for outcome in outcomes.iter().enumerate().filter_map(|(at, it)| (at != 1).then_some(it)) {
        assert_eq!(outcome.as_ref().unwrap().rows, 2);
    }
    assert_eq!(value(&scene.db, "select count(*) from t"), "8");
    scene.close();
}
