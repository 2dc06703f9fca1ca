//! Columns get other types while records are encoded for the old ones: a value is stored as given,
//! or its caller learns that it was not written.

use std::sync::Arc;

use pgspate::writer::{
    InsertOutcome, InsertRequest, InsertShape, OnConflict, WriterOptions, has_outdated_types,
};
use pgspate::{Error, ErrorKind, Result};
use tokio_postgres::error::SqlState;

use crate::scene::{
    Record, WriterScene, call_at_once, encode, encode_with_key, into, open_writer, record,
    returning, short_waits, sqlstate, value,
};

/// Inserts records that were encoded for this shape, whatever the table is now.
fn insert(
    scene: &WriterScene,
    shape: &Arc<InsertShape>,
    records: &[Record],
) -> Result<InsertOutcome> {
    let rows = encode(shape, records)?;
    scene.runtime.block_on(scene.writer.insert(shape, rows))
}

fn is_outdated(outcome: &Result<InsertOutcome>) -> bool {
    outcome.as_ref().is_err_and(has_outdated_types)
}

fn call(scene: &WriterScene, request: &InsertRequest, text: &str) -> Result<InsertOutcome> {
    scene.insert_at_once(request, &[record(&[text])]).remove(0)
}

/// Sets the database's time zone.
const IN_NEW_YORK: &str = "\
do $$ begin
  execute format('alter database %I set timezone = ''America/New_York''', current_database());
end $$";

/// Each value would be stored otherwise if the server cast it from the old type.
#[test]
fn values_are_never_cast_from_an_old_type() {
    let changes = [
        ("float8", "numeric", "9223372036854775807.25", "9223372036854775807.25"),
        ("float4", "float8", "0.1", "0.1"),
        ("numeric", "text", "1e+16", "1e+16"),
        ("numeric", "varchar(9)", "-0", "-0"),
        ("text[]", "text", "{ a }", "{ a }"),
        ("date", "timestamp", "2024-01-02 03:04:05", "2024-01-02 03:04:05"),
        ("timestamp", "timestamptz", "2024-01-02 12:00:00Z", "2024-01-02 07:00:00-05"),
    ];
    for (old, new, text, stored) in changes {
        let scene = WriterScene::new(&format!("{IN_NEW_YORK}; create table t (v {old})"));
        let request = into("t", &["v"]);
        let shape = scene.shape(&request);
        // The statement of one record is prepared before the table changes.
        insert(&scene, &shape, &[vec![None]]).unwrap();
        scene.db.run(&format!("alter table t alter v type {new} using null"));
        let outcome = insert(&scene, &shape, &[record(&[text])]);
        assert!(outcome.is_err(), "{old} {new}: {outcome:?}");
        call(&scene, &request, text).unwrap();
        let rows = scene.db.query("select v::text from t where v is not null");
        assert_eq!(rows, [[Some(stored.to_owned())]], "{old} {new}");
    }
}

/// One record, several records, a record with a key, and records that the server reads as text.
#[test]
fn no_statement_takes_records_for_an_old_type() {
    let options = WriterOptions { connections: 1, ..short_waits() };
    let sql = "create domain cents as float8 check (value > -1); \
               create table t (id int primary key, v float8, c cents)";
    let scene = WriterScene::with_options(sql, options);
    let plain = into("t", &["id", "v"]);
    let update =
        InsertRequest { on_conflict: OnConflict::Update(vec!["id".into()]), ..plain.clone() };
    let requests = [plain.clone(), update, returning(plain, &["v"]), into("t", &["id", "c"])];
    let shapes: Vec<_> = requests.iter().map(|request| scene.shape(request)).collect();
    let with_id = |request: &InsertRequest| scene.shape(&returning(request.clone(), &["id"]));
    let shapes_of_sets: Vec<_> = requests.iter().map(with_id).collect();
    scene.db.run("alter table t alter v type numeric, alter c type numeric");
    let one = |id: i32| record(&[&id.to_string(), "9223372036854775807.25"]);
    // Only the server reads such a number.
    let text = |id: i32| record(&[&id.to_string(), "1e-320"]);
    for shape in &shapes_of_sets {
        let calls: Vec<_> = (0..200).map(|id| encode(shape, &[one(id)]).unwrap()).collect();
        let sent = scene.writer.insert_each(shape, calls);
        let outcomes = scene.runtime.block_on(sent).unwrap();
        assert!(outcomes.iter().all(is_outdated), "{:?}", outcomes[0]);
    }
    for shape in &shapes {
        assert!(is_outdated(&insert(&scene, shape, &[one(1), one(2)])));
        assert!(is_outdated(&insert(&scene, shape, &[one(1)])));
        assert!(is_outdated(&insert(&scene, shape, &[text(1), one(2)])));
        for records in [vec![one(1)], vec![text(1), one(2)]] {
            let keyed = encode_with_key(shape, "k", &records).unwrap();
            assert!(is_outdated(&scene.runtime.block_on(scene.writer.insert(shape, keyed))));
        }
    }
    assert_eq!(value(&scene.db, "select count(*) from t"), "0");
    assert_eq!(value(&scene.db, "select count(*) from pgspate.request"), "0");
    let report = scene.writer.report();
    assert_eq!((report.rows, report.refused), (0, 0));
    let records: Vec<_> = (0..200).map(one).collect();
    for outcome in scene.insert_at_once(&requests[0], &records) {
        outcome.unwrap();
    }
    let exact = "select count(*) from t where v = 9223372036854775807.25";
    assert_eq!(value(&scene.db, exact), "200");
}

/// The old type refuses the value before the server sees the condition of the statement.
#[test]
fn a_value_that_only_the_new_type_takes_is_encoded_again() {
    let scene = WriterScene::new("create table t (v int4)");
    let request = into("t", &["v"]);
    call(&scene, &request, "1").unwrap();
    scene.db.run("alter table t alter v type int8");
    call(&scene, &request, "2147483648").unwrap();
    assert_eq!(sqlstate(&call(&scene, &request, "9223372036854775808")), "22003");
    let shape = scene.shape(&request);
    scene.db.run("alter table t alter v type date using null");
    // The server has no cast between the types, so that it refuses to prepare the statement.
    let outcome = insert(&scene, &shape, &[record(&["1"]), record(&["2"])]);
    assert!(outcome.is_err(), "{outcome:?}");
    call(&scene, &request, "2024-01-01").unwrap();
}

/// A role that may only insert has no right to read the table.
#[test]
fn the_check_needs_no_right_to_read_the_table() {
    let scene = WriterScene::new("create table t (v float8)");
    let role = format!("{}_role", scene.db.name());
    scene.db.run(&format!("create role {role}; grant insert on t to {role}"));
    let dsn = format!("{} options='-c role={role}'", scene.db.dsn());
    let writer = open_writer(&dsn, short_waits(), &scene.runtime).unwrap();
    let calls = (0..50).map(|_| vec![record(&["1"])]).collect();
    for outcome in scene.runtime.block_on(call_at_once(&writer, &into("t", &["v"]), calls)) {
        outcome.unwrap();
    }
    scene.runtime.block_on(writer.close());
    scene.db.run(&format!("drop owned by {role}; drop role {role}"));
}

/// A rule gets a statement without the check of the types.
#[test]
fn a_table_with_rules_takes_records() {
    let sql = "create table t (v float8); create table log (v float8); \
               create rule r as on insert to t do also insert into log values (new.v)";
    let scene = WriterScene::new(sql);
    call(&scene, &into("t", &["v"]), "1.5").unwrap();
    assert_eq!(value(&scene.db, "select v from log"), "1.5");
}

#[test]
fn the_error_says_that_nothing_was_written() {
    let scene = WriterScene::new("create table t (v float8)");
    let shape = scene.shape(&into("t", &["v"]));
    scene.db.run("alter table t alter v type numeric");
    let error: Error = insert(&scene, &shape, &[record(&["1"])]).unwrap_err();
    assert_eq!(error.to_string(), "types of table t changed while its records were sent");
    assert_eq!(error.hint_text(), Some("The records were not written. Send them again."));
    assert_eq!(error.kind(), ErrorKind::Plan);
    assert_eq!(error.sqlstate(), Some(&SqlState::T_R_SERIALIZATION_FAILURE));
}
