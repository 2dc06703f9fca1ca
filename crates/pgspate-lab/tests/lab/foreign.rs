//! A server that is not the lab's own is left as it was.

use std::sync::Arc;

use pgspate::{Kind, load};
use pgspate_embedded::testing::{TestDb, database};
use pgspate_lab::{experiments, read};

use crate::support::{ROWS_BEFORE, dsn, options, run};

/// What is in the database: schemas, tables, and settings of the server.
fn everything(database: &TestDb) -> Vec<Vec<Option<String>>> {
    let mut all =
        database.query("select nspname from pg_namespace where nspname !~ '^pg_' order by 1");
    all.extend(database.query(
        "select oid::regclass from pg_class where relkind in ('r', 'i', 'S') \
                               and relnamespace::regnamespace::text !~ '^pg_' order by 1",
    ));
    let settings = "select name, setting from pg_settings where source = 'configuration file' \
                    order by 1";
    all.extend(database.query(settings));
    all
}

#[test]
fn trials_are_made_in_a_schema_and_nothing_is_left() {
    let database = database();
    database.run("create table mine (id int); insert into mine values (1)");
    let before = everything(&database);
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options.to = Some(dsn(&database.dsn()));
    options.installation = None;
    let summary = run(&options, None).0.unwrap();
    assert_eq!((summary.measured, summary.skipped.len()), (4, 2));
    assert_eq!(summary.skipped[0].1, "it needs settings of the whole server");
    assert_eq!(everything(&database), before);
    let lines = read(folder.path()).unwrap();
    assert_eq!(lines.len(), 6);
    for line in lines {
        assert_eq!(line.skipped.is_some(), line.trial.is("work_mem", "8MB"));
        let rows = line.skipped.is_none().then_some(ROWS_BEFORE as f64 + 1000.0);
        assert_eq!(line.value("rows"), rows);
        assert!(line.conditions.target != "own" && !line.conditions.target.contains("password"));
    }
    assert_eq!(run(&options, None).0.unwrap().before, 6);
}

#[test]
fn a_run_that_is_stopped_leaves_nothing_either() {
    let database = database();
    let before = everything(&database);
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options.to = Some(dsn(&database.dsn()));
    let error = run(&options, Some(1)).0.unwrap_err();
    assert_eq!(error.kind(), Kind::Cancelled);
    assert_eq!(everything(&database), before);
}

#[test]
fn a_schema_that_is_not_the_labs_is_not_touched() {
    let database = database();
    database.run("create schema pgspate_lab; create table pgspate_lab.mine (id int)");
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options.to = Some(dsn(&database.dsn()));
    let error = run(&options, None).0.unwrap_err();
    assert_eq!(error.to_string(), "schema \"pgspate_lab\" is there already, and is not the lab's");
    assert!(error.hint_text().unwrap().contains("alter schema pgspate_lab rename"));
    assert_eq!(database.query("select count(*) from pgspate_lab.mine")[0][0].as_deref(), Some("0"));
}

#[test]
fn a_ledger_is_as_it_was_or_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.csv");
    std::fs::write(&file, "1\n2\n").unwrap();
    for has_ledger in [false, true] {
        let database = database();
        if has_ledger {
            database.run("create table mine (id int)");
            let options = load::Options {
                sources: vec![file.display().to_string()],
                table: Some("mine".to_owned()),
                ..load::Options::default()
            };
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let load = load::prepare(options, dsn(&database.dsn()), runtime.handle()).unwrap();
            assert_eq!(load.run(&Arc::default()).unwrap().rows_written, 2);
        }
        let jobs = "select to_regclass('pgspate.job'), to_regclass('pgspate.ledger')";
        let all = "select job, table_name from pgspate.job";
        let look = || match has_ledger {
            true => database.query(all),
            false => database.query(jobs),
        };
        let (before, ledger) = (everything(&database), look());
        let results = tempfile::tempdir().unwrap();
        let mut options = options(results.path());
        options.experiments = vec![experiments::find("bulk").unwrap()];
        (options.scale, options.repeats) = (Some(0.000_01), 1);
        options.to = Some(dsn(&database.dsn()));
        options.only = vec![("strategy".to_owned(), "pgspate".to_owned())];
        let summary = run(&options, None).0.unwrap();
        assert_eq!((summary.measured, summary.skipped.len()), (2, 3));
        assert_eq!((everything(&database), look()), (before, ledger));
    }
}

#[test]
fn files_of_the_users_own_are_tried_out_and_leave_nothing() {
    let files = tempfile::tempdir().unwrap();
    // A server has a table of that name already: it is not this one.
    std::fs::write(files.path().join("mine.csv"), "id,order\n1,a\n2,\n").unwrap();
    let database = database();
    database.run("create table mine (id int); insert into mine values (1)");
    let before = everything(&database);
    let results = tempfile::tempdir().unwrap();
    let mut options = options(results.path());
    options.experiments = vec![experiments::find("bulk").unwrap()];
    options.data = vec![files.path().display().to_string()];
    (options.scale, options.repeats) = (None, 1);
    options.to = Some(dsn(&database.dsn()));
    let summary = run(&options, None).0.unwrap();
    assert_eq!((summary.measured, summary.skipped.len()), (3, 9));
    assert_eq!(everything(&database), before);
    assert_eq!(database.query("select count(*) from mine")[0][0].as_deref(), Some("1"));
    for line in read(results.path()).unwrap().iter().filter(|line| line.skipped.is_none()) {
        assert_eq!(line.value("rows"), Some(2.0), "{}", line.trial.label());
        assert_eq!(line.conditions.data.tables[0].name, "mine");
    }
    std::fs::write(files.path().join("mine.csv"), "id,order\n1,a\n2,b,c\n").unwrap();
    options.fresh = true;
    let (ended, began) = run(&options, None);
    let error = ended.unwrap_err();
    assert_eq!(error.place().and_then(|place| place.line), Some(3), "{error}");
    // The data's fault, and no trial's.
    assert!(error.to_string().starts_with("could not load "), "{error}");
    assert_eq!(began, [""; 0]);
    assert_eq!(everything(&database), before);
}
