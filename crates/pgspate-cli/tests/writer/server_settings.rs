//! Settings and triggers that decide what a record becomes, and whether it is durable.

use pgspate::writer::{InsertRequest, OnConflict};

use crate::scene::{WriterScene, into, record, value};

/// Sessions that are opened later, and a shape that is kept, read values as the first session did.
#[test]
fn a_later_time_zone_of_the_database_does_not_reach_an_open_writer() {
    let scene = WriterScene::new("create table t (id int, at timestamptz)");
    let request = into("t", &["id", "at"]);
    // The client encodes the first spelling, and leaves the second one to the server.
    let times = ["2026-05-01 12:00:00", "May 1 2026 12:00"];
    let insert = |first: usize| {
        let ids = [first, first + 1].map(|id| id.to_string());
        let records = [record(&[&ids[0], times[0]]), record(&[&ids[1], times[1]])];
        for outcome in scene.insert_at_once(&request, &records) {
            assert_eq!(outcome.unwrap().rows, 1);
        }
    };
    insert(1);
    let database = value(&scene.db, "select quote_ident(current_database())");
    scene.db.run(&format!("alter database {database} set timezone = 'Asia/Tokyo'"));
    scene.db.run(
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity \
         where datname = current_database() and application_name = 'pgspate write'",
    );
    insert(3);
    assert_eq!(value(&scene.db, "select count(distinct at) from t"), "1");
    assert_eq!(value(&scene.db, "select count(*) from t"), "4");
    scene.close();
}

/// A session takes over a later default of each setting that it has not set itself.
#[test]
fn a_later_default_of_synchronous_commit_does_not_reach_an_open_session() {
    let scene = WriterScene::new(
        "create function source() returns text language sql \
         as $$select source from pg_settings where name = 'synchronous_commit'$$; \
         create table t (id int, source text default source())",
    );
    let request = InsertRequest { returning: vec!["source".to_owned()], ..into("t", &["id"]) };
    let outcome = scene.insert_at_once(&request, &[record(&["1"])]).remove(0).unwrap();
    assert_eq!(outcome.returned, [r#"{"source":"session"}"#]);
    scene.close();
}

/// Callers whose rows a trigger keeps as they are share no statement with others.
#[test]
fn a_trigger_that_keeps_rows_as_they_are_harms_no_other_caller() {
    let scene = WriterScene::new(
        "create table t (id int primary key, value int); \
         insert into t select n, n from generate_series(1, 50) n; \
         create trigger unchanged before update on t \
         for each row execute function suppress_redundant_updates_trigger()",
    );
    let on_conflict = OnConflict::Update(vec!["id".to_owned()]);
    let request = InsertRequest { on_conflict, ..into("t", &["id", "value"]) };
    let records: Vec<_> = (1..=100).map(|n| record(&[&n.to_string(), &n.to_string()])).collect();
    for (outcome, n) in scene.insert_at_once(&request, &records).into_iter().zip(1..) {
        assert_eq!(outcome.unwrap().rows, u64::from(n > 50), "{n}");
    }
    assert_eq!(value(&scene.db, "select count(*) from t where value = id"), "100");
    scene.close();
}
