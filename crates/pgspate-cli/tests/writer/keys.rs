//! Calls with an idempotency key: written once, however often they are sent.

use std::sync::Arc;
use std::time::Duration;

use pgspate::ErrorKind;
use pgspate::writer::{InsertOutcome, InsertRequest, Writer, WriterOptions};
use pgspate::{Error, Result};

use crate::run::wait_until;
use crate::scene::{
    Record, WriterScene, code, encode_with_key, into, open_writer, record, returning, short_waits,
    value,
};

/// Sends records with a key.
async fn call_with_key(
    writer: &Writer,
    request: &InsertRequest,
    key: &str,
    records: &[Record],
) -> Result<InsertOutcome> {
    let shape = writer.shape(request).await?;
    writer.insert(&shape, encode_with_key(&shape, key, records)?).await
}

fn send(
    scene: &WriterScene,
    request: &InsertRequest,
    key: &str,
    records: &[Record],
) -> Result<InsertOutcome> {
    scene.runtime.block_on(call_with_key(&scene.writer, request, key, records))
}

fn kind(error: &Error) -> ErrorKind {
    error.kind()
}

#[test]
fn a_column_of_any_name_is_returned() {
    let scene = WriterScene::new(
        "create type pair as (id int, name text); \
         create table t (id int generated always as identity, r pair, t int)",
    );
    for (returned, expected) in [
        (&["id"][..], "{\"id\":1}"),
        (&["r", "t"][..], "{\"r\":{\"id\":9,\"name\":\"a\"},\"t\":5}"),
    ] {
        let request = returning(into("t", &["r", "t"]), returned);
        let written = send(&scene, &request, expected, &[record(&["(9,a)", "5"])]).unwrap();
        assert_eq!(written.returned, [expected]);
    }
}

#[test]
fn a_call_that_is_sent_again_gets_the_same_answer() {
    let scene = WriterScene::new(
        "create table t (id int generated always as identity, name text, at timestamp)",
    );
    let request = returning(into("t", &["name", "at"]), &["id", "name"]);
    let one = [record(&["one", "2024-02-29"])];
    let first = send(&scene, &request, "a", &one).unwrap();
    assert_eq!(first.returned, ["{\"id\":1,\"name\":\"one\"}"]);
    let repeat = |first: InsertOutcome| InsertOutcome { is_repeat: true, ..first };
    assert_eq!(send(&scene, &request, "a", &one).unwrap(), repeat(first));
    // Several records; and records with a text that only the server can read.
    for (key, at) in [("b", "2024-02-29"), ("c", "yesterday")] {
        let many: Vec<_> = (0..20).map(|nth| record(&[&nth.to_string(), at])).collect();
        let first = send(&scene, &request, key, &many).unwrap();
        assert_eq!((first.rows, first.returned.len()), (20, 20));
        assert_eq!(send(&scene, &request, key, &many).unwrap(), repeat(first));
    }
    assert_eq!(value(&scene.db, "select count(*) from t"), "41");
    let other = send(&scene, &request, "a", &[record(&["two", "2024-02-29"])]).unwrap_err();
    assert_eq!(kind(&other), ErrorKind::KeyReused);
    assert_eq!(
        other.to_string(),
        "the idempotency key was used for another table, other records or other returned columns"
    );
    let other_columns = into("t", &["name"]);
    let error = send(&scene, &other_columns, "a", &[record(&["one"])]).unwrap_err();
    assert_eq!(kind(&error), ErrorKind::KeyReused);
    let no_returning = into("t", &["name"]);
    assert_eq!(send(&scene, &no_returning, "d", &[record(&["x"])]).unwrap().rows, 1);
    assert_eq!(send(&scene, &no_returning, "d", &[record(&["x"])]).unwrap().returned.len(), 0);
    assert_eq!(value(&scene.db, "select count(*) from t"), "42");
}

/// A crash would empty the table and keep the key, or another server would commit for itself.
#[test]
fn tables_whose_rows_may_outlive_their_keys_or_not_last_as_long_take_none() {
    let scene = WriterScene::new(
        "create unlogged table t (id int); \
         create table p (id int) partition by range (id); \
         create table p1 partition of p for values from (0) to (10); \
         create unlogged table p2 partition of p for values from (10) to (20); \
         create foreign data wrapper w; create server s foreign data wrapper w; \
         create foreign table f (id int) server s; \
         create table q (id int) partition by range (id); \
         create table q1 partition of q for values from (0) to (10); \
         create foreign table q2 partition of q for values from (10) to (20) server s; \
         create view tv as select id from t; create view tw as select id from tv; \
         create view fv as select id from f; create view qv as select id from q; \
         create table o (id int); create view ov as select id from o; \
         create view ow as select id from ov; \
         create function put() returns trigger language plpgsql as 'begin return null; end'; \
         create trigger put instead of insert on ov for each row execute function put()",
    );
    for (table, reason) in [
        ("t", "is unlogged"),
        ("p", "is unlogged"),
        ("f", "another server"),
        ("q", "another server"),
        ("tw", "is unlogged"),
        ("fv", "another server"),
        ("qv", "another server"),
        ("ov", "a view whose triggers"),
        ("ow", "a view whose triggers"),
    ] {
        let request = into(table, &["id"]);
        let error = send(&scene, &request, "a", &[record(&["1"])]).unwrap_err();
        let begin = format!("table {table} takes no idempotency keys: ");
        assert!(error.to_string().starts_with(&begin), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    let outcome = scene.insert_at_once(&into("p", &["id"]), &[record(&["2"])]).remove(0);
    assert_eq!(outcome.unwrap().rows, 1);
}

#[test]
fn a_refused_call_may_be_sent_again_with_its_key() {
    let scene = WriterScene::new("create table t (id int primary key); insert into t values (1)");
    let request = into("t", &["id"]);
    for _ in 0..2 {
        let refused = send(&scene, &request, "a", &[record(&["1"])]).unwrap_err();
        assert_eq!(code(&refused), "23505");
    }
    scene.db.run("delete from t");
    assert_eq!(send(&scene, &request, "a", &[record(&["1"])]).unwrap().rows, 1);
    assert_eq!(send(&scene, &request, "a", &[record(&["1"])]).unwrap().rows, 1);
    assert_eq!(value(&scene.db, "select count(*) from t"), "1");
    for wrong in ["", &"x".repeat(256), "a\0b"] {
        let error = send(&scene, &request, wrong, &[record(&["2"])]).unwrap_err();
        assert_eq!(kind(&error), ErrorKind::Usage, "{wrong}");
    }
}

#[test]
fn equal_calls_at_the_same_time_are_written_once() {
    let scene = WriterScene::new("create table t (id int generated always as identity, n int)");
    let request = returning(into("t", &["n"]), &["id", "n"]);
    let mut answers: Vec<Vec<String>> = Vec::new();
    scene.runtime.block_on(async {
        let mut callers = tokio::task::JoinSet::new();
        for nth in 0..200 {
            let (writer, request) = (Arc::clone(&scene.writer), request.clone());
            callers.spawn(async move {
                let (key, n) = (format!("key {}", nth % 10), (nth % 10).to_string());
                call_with_key(&writer, &request, &key, &[record(&[&n])]).await
            });
        }
        while let Some(answer) = callers.join_next().await {
            answers.push(answer.unwrap().unwrap().returned);
        }
    });
    answers.sort();
    answers.dedup();
    assert_eq!(answers.len(), 10, "{answers:?}");
    assert_eq!(value(&scene.db, "select count(*) from t"), "10");
}

/// Writers of one role may keep keys for different times.
#[test]
fn a_key_is_kept_for_as_long_as_its_own_writer_says() {
    let scene = WriterScene::new("create table t (id int, place point)");
    let request = into("t", &["id", "place"]);
    let one = [record(&["1", "(1,2)"])];
    send(&scene, &request, "long", &one).unwrap();
    // Points have no binary form, so several records are a transaction.
    send(&scene, &request, "transaction", &[one[0].clone(), one[0].clone()]).unwrap();
    assert_eq!(value(&scene.db, "select count(*) from pgspate.request where expires is null"), "0");
    scene.db.run(
        "insert into pgspate.request (key, fingerprint, rows, answer) values ('old', '', 1, '{}'); \
         update pgspate.request set written = written - interval '1 hour', \
                                    expires = expires - interval '1 hour'",
    );
    let send_by_another = |keep: u64, key: &str, forgotten: &str| {
        let keep_keys = Duration::from_secs(keep);
        let options = WriterOptions { keep_keys, ..short_waits() };
        let writer = open_writer(&scene.db.dsn(), options, &scene.runtime).unwrap();
        scene.runtime.block_on(call_with_key(&writer, &request, key, &one)).unwrap();
        let left = format!("select count(*) from pgspate.request where key = '{forgotten}'");
        wait_until("a key is forgotten", || value(&scene.db, &left) == "0");
        scene.runtime.block_on(writer.close());
    };
    let keys = "select string_agg(key, ' ' order by key) from pgspate.request";
    // Version 6 of the ledger has recorded this key, without a time.
    send_by_another(60, "brief", "old");
    assert_eq!(value(&scene.db, keys), "brief long transaction");
    let brief = "update pgspate.request set expires = expires - interval '61 s' \
                 where key = 'brief' and expires < now() + interval '61 s'";
    scene.db.run(brief);
    send_by_another(u64::MAX, "eternal", "brief");
    assert_eq!(value(&scene.db, keys), "eternal long transaction");
}
