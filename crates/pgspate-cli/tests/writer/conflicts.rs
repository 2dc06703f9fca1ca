//! Records whose key exists: ignored, or written over the row.

use pgspate::writer::{InsertRequest, OnConflict};

use crate::scene::{WriterScene, into, record, returning, sqlstate, value};

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn an_ignored_record_is_told_from_a_written_one() {
    let scene = WriterScene::new("create table t (id int primary key); insert into t values (3)");
    for target in [names(&["id"]), Vec::new()] {
        let request = InsertRequest {
            on_conflict: OnConflict::Ignore(target),
            ..returning(into("t", &["id"]), &["id"])
        };
        scene.db.run("delete from t where id > 3");
        let records: Vec<_> =
            (3..103).chain(53..153).map(|id| record(&[&id.to_string()])).collect();
        let outcomes = scene.insert_at_once(&request, &records);
        let written: u64 = outcomes.iter().map(|outcome| outcome.as_ref().unwrap().rows).sum();
        assert_eq!(written, 149);
        assert_eq!(outcomes[0].as_ref().unwrap().returned, [] as [String; 0]);
        for (record, outcome) in records.iter().zip(&outcomes) {
            if let [row] = &outcome.as_ref().unwrap().returned[..] {
                assert_eq!(*row, format!("{{\"id\":{}}}", record[0].as_ref().unwrap()));
            }
        }
    }
}

#[test]
fn the_last_record_of_a_key_remains() {
    let scene = WriterScene::new(
        "create table t (id int primary key, n int, note text default 'first'); \
         insert into t values (0, -1, 'kept')",
    );
    let request = InsertRequest {
        on_conflict: OnConflict::Update(names(&["id"])),
        ..returning(into("t", &["id", "n"]), &["id", "n", "note"])
    };
    let shape = scene.shape(&request);
    assert_eq!(shape.alone_reason, None);
    // Each key occurs five times in one call, and many keys in one set.
    let records = (0..500).map(|n: i32| record(&[&(n % 100).to_string(), &n.to_string()]));
    let rows = records.map(|record| crate::scene::encode(&shape, &[record]).unwrap()).collect();
    let outcomes = scene.runtime.block_on(scene.writer.insert_each(&shape, rows)).unwrap();
    for (n, outcome) in outcomes.iter().enumerate() {
        let note = if n % 100 == 0 { "kept" } else { "first" };
        let expected = format!("{{\"id\":{},\"n\":{n},\"note\":\"{note}\"}}", n % 100);
        assert_eq!(outcome.as_ref().unwrap().returned, [expected]);
    }
    assert_eq!(value(&scene.db, "select count(*) from t where n = 400 + id"), "100");
}

#[test]
fn a_conflict_without_a_unique_index_is_refused_in_the_servers_words() {
    let scene = WriterScene::new("create table t (id int, n int)");
    let request = InsertRequest {
        on_conflict: OnConflict::Update(names(&["id"])),
        ..into("t", &["id", "n"])
    };
    let outcomes = scene.insert_at_once(&request, &[record(&["1", "2"]), record(&["2", "2"])]);
    assert!(outcomes.iter().all(|outcome| sqlstate(outcome) == "42P10"), "{outcomes:?}");
    let without_key =
        InsertRequest { on_conflict: OnConflict::Update(Vec::new()), ..into("t", &["id"]) };
    let error = scene.runtime.block_on(scene.writer.shape(&without_key)).unwrap_err();
    assert_eq!(error.to_string(), "an update on conflict needs the columns of a unique index");
}

#[test]
fn a_table_with_rules_is_refused() {
    let scene = WriterScene::new(
        "create table t (id int); create rule r as on insert to t do instead nothing; \
         create table u (id int); create rule r as on delete to u do instead nothing",
    );
    let error = scene.runtime.block_on(scene.writer.shape(&into("t", &["id"]))).unwrap_err();
    assert_eq!(error.to_string(), "rule \"r\" rewrites statements that write public.t");
    scene.runtime.block_on(scene.writer.shape(&into("u", &["id"]))).unwrap();
}

#[test]
fn an_update_of_the_key_columns_alone_returns_the_row() {
    let scene = WriterScene::new("create table t (id int primary key, n int default 7)");
    scene.db.run("insert into t values (1, 5)");
    let request = InsertRequest {
        on_conflict: OnConflict::Update(names(&["id"])),
        ..returning(into("t", &["id"]), &["*"])
    };
    let outcome = scene.insert_at_once(&request, &[record(&["1"])]).remove(0).unwrap();
    assert_eq!(outcome.returned, ["{\"id\":1,\"n\":5}"]);
}
