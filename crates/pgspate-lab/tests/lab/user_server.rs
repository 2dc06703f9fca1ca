//! Tests that the lab leaves the user's server as it was.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgspate::{ErrorKind, load, reading};
use pgspate_embedded::testing::{TestDb, database};
use pgspate_lab::{LabEvent, LabOptions, experiments, read, report};

use crate::support::{ROWS_BEFORE, TOY, dsn, dsn_with, options, run, run_with_events};

/// Lists schemas, tables and server settings.
fn list_everything(database: &TestDb) -> Vec<Vec<Option<String>>> {
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

/// Loads two rows into a table, with a ledger.
fn load_into(database: &TestDb, table: &str, folder: &Path) {
    let file = folder.join("two.csv");
    std::fs::write(&file, "1\n2\n").unwrap();
    let options = load::LoadOptions {
        reading: reading::ReadingOptions::of_sources(vec![file.display().to_string()]),
        table: Some(table.to_owned()),
        ..load::LoadOptions::default()
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let load = load::prepare(options, dsn(&database.dsn()), runtime.handle()).unwrap();
    assert_eq!(load.run(&Arc::default()).unwrap().rows_written, 2);
}

/// Returns the options of a run on the user's server.
fn options_on(database: &TestDb, folder: &Path) -> LabOptions {
    LabOptions { to: Some(dsn(&database.dsn())), installation: None, ..options(folder) }
}

#[test]
fn trials_run_in_their_own_schema_and_leave_nothing() {
    let database = database();
    database.run("create table mine (id int); insert into mine values (1)");
    let before = list_everything(&database);
    let folder = tempfile::tempdir().unwrap();
    let options = options_on(&database, folder.path());
    let summary = run(&options, None).0.unwrap();
    assert_eq!((summary.measured, summary.skipped.len()), (4, 2));
    assert_eq!(
        summary.skipped[0].1,
        "it needs server settings that the lab does not change on your server"
    );
    assert_eq!(list_everything(&database), before);
    let lines = read(folder.path()).unwrap();
    assert_eq!(lines.len(), 6);
    for line in lines {
        assert_eq!(line.skipped.is_some(), line.trial.is("work_mem", "8MB"));
        let rows = line.skipped.is_none().then_some(ROWS_BEFORE as f64 + 1000.0);
        assert_eq!(line.value("rows"), rows);
        assert!(line.conditions.target != "own" && !line.conditions.target.contains("password"));
    }
    // A repeated run considers skipped trials again, and writes no second line for them.
    let again = run(&options, None).0.unwrap();
    assert_eq!((again.before, again.measured, again.skipped.len()), (4, 0, 2));
    let lines = read(folder.path()).unwrap();
    assert_eq!(lines.len(), 6);
    let page = report::page(&[&TOY], &lines, folder.path()).unwrap();
    assert!(page.contains(" GiB memory") && !page.contains(" 0 processors"), "{page}");
}

#[test]
fn jobs_of_other_runs_in_a_new_ledger_are_kept() {
    let database = database();
    database.run("create table mine (id int)");
    let folder = tempfile::tempdir().unwrap();
    let is_loaded = AtomicBool::new(false);
    let load = |event: &LabEvent<'_>| {
        if matches!(event, LabEvent::Measured { .. }) && !is_loaded.swap(true, Ordering::Relaxed) {
            load_into(&database, "mine", folder.path());
        }
    };
    let results = folder.path().join("results");
    let summary =
        run_with_events(&options_on(&database, &results), None, &|event, _| load(event)).0.unwrap();
    assert!(summary.measured > 1);
    let jobs = database.query("select table_name, rows_written from pgspate.job");
    assert_eq!(jobs, [[Some("public.mine".to_owned()), Some("2".to_owned())]]);
    assert_eq!(database.query("select to_regnamespace('pgspate_lab')"), [[None]]);
}

#[test]
fn the_next_run_removes_the_objects_of_a_killed_run() {
    let mark = "scratch of pgspate lab, made and dropped by it";
    for rest in ["", "; so is the ledger", "; so are the tables of the ledger"] {
        let (database, folder) = (database(), tempfile::tempdir().unwrap());
        database.run("create table mine (id int)");
        let has_ledger = rest.is_empty();
        if has_ledger {
            load_into(&database, "mine", folder.path());
        } else if rest.contains("tables") {
            database.run("create schema pgspate");
        }
        let before = list_everything(&database);
        database.run(&format!(
            "create schema pgspate_lab; comment on schema pgspate_lab is '{mark}{rest}'; \
             create table pgspate_lab.t (id int)"
        ));
        load_into(&database, "pgspate_lab.t", folder.path());
        // The killed run has dropped an index and not created it again.
        database.run(
            "insert into pgspate.change (job, ordinal, table_oid, kind, object, steps, beside)
             select job, 1, table_oid, 'index', 'pgspate_lab.t_i',
                    array['create index t_i on pgspate_lab.t (id)'], false
             from pgspate.job where table_name = 'pgspate_lab.t'",
        );
        run(&options_on(&database, &folder.path().join("results")), None).0.unwrap();
        assert_eq!(list_everything(&database), before);
        if has_ledger {
            let jobs = database.query("select table_name from pgspate.job");
            assert_eq!(jobs, [[Some("public.mine".to_owned())]]);
            let left = database.query("select count(*) from pgspate.change");
            assert_eq!(left, [[Some("0".to_owned())]]);
        }
    }
}

#[test]
fn a_stopped_stream_can_be_measured_again() {
    let (database, folder) = (database(), tempfile::tempdir().unwrap());
    database.run("create table mine (id int)");
    load_into(&database, "mine", folder.path());
    let results = folder.path().join("results");
    let mut options = options_on(&database, &results);
    options.experiments = vec![experiments::find("changes").unwrap()];
    (options.scale, options.repeats) = (Some(0.5), 1);
    let only = [("contender", "pgspate apply"), ("batch", "1")];
    options.only = only.map(|(factor, level)| (factor.to_owned(), level.to_owned())).to_vec();
    // The run is stopped when some of the ten thousand transactions are committed.
    let applied = "select 1 from pgspate.stream where ordinal > 0";
    let has_begun = || {
        let has_streams = database.query("select to_regclass('pgspate.stream')")[0][0].is_some();
        has_streams && !database.query(applied).is_empty()
    };
    let is_over = AtomicBool::new(false);
    let ended = std::thread::scope(|scope| {
        let ended = run_with_events(&options, None, &|event, stop| {
            if matches!(event, LabEvent::TrialStarted { .. }) {
                let (stop, is_over) = (stop.clone(), &is_over);
                scope.spawn(move || {
                    // The loop must also end if the trial fails before its stream begins.
                    while !is_over.load(Ordering::Relaxed) && !has_begun() {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    stop.request();
                });
            }
        });
        is_over.store(true, Ordering::Relaxed);
        ended.0
    });
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Cancelled);
    let streams = || database.query("select count(*) from pgspate.stream");
    assert_eq!(streams(), [[Some("0".to_owned())]]);
    options.scale = Some(0.01);
    assert_eq!(run(&options, None).0.unwrap().measured, 1);
    assert_eq!(streams(), [[Some("0".to_owned())]]);
    let jobs = database.query("select table_name from pgspate.job");
    assert_eq!(jobs, [[Some("public.mine".to_owned())]]);
}

#[test]
fn a_ledger_that_could_not_be_dropped_is_dropped_by_the_next_run() {
    let (database, folder) = (database(), tempfile::tempdir().unwrap());
    let before = list_everything(&database);
    let mut options = options_on(&database, folder.path());
    options.experiments = vec![experiments::find("changes").unwrap()];
    (options.scale, options.repeats) = (Some(0.001), 1);
    let only = [("contender", "pgspate apply"), ("batch", "100")];
    options.only = only.map(|(factor, level)| (factor.to_owned(), level.to_owned())).to_vec();
    let warnings = Mutex::new(Vec::new());
    let keep = |event: &LabEvent<'_>| {
        if let LabEvent::Warning { text } = event {
            warnings.lock().unwrap().push((*text).to_owned());
        }
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let other = runtime.block_on(dsn(&database.dsn()).connect("pgspate doctor")).unwrap();
    let summary = run_with_events(&options, None, &|event, _| keep(event)).0.unwrap();
    assert_eq!(summary.measured, 1);
    let said = warnings.lock().unwrap().clone();
    assert!(matches!(&said[..], [one] if one.starts_with("Other sessions of pgspate")), "{said:?}");
    // The comment on the schema says that the lab created the ledger.
    let mark = "select obj_description('pgspate_lab'::regnamespace, 'pg_namespace') ~ 'the ledger'";
    assert_eq!(database.query(mark)[0][0].as_deref(), Some("t"));
    assert_eq!(database.query("select 1 from pgspate.job"), Vec::<Vec<Option<String>>>::new());
    runtime.block_on(other.close());
    assert_eq!(run(&options, None).0.unwrap().before, 1);
    assert_eq!(list_everything(&database), before);
}

#[test]
fn session_settings_of_the_user_do_not_affect_the_lab() {
    let (database, folder) = (database(), tempfile::tempdir().unwrap());
    let before = list_everything(&database);
    let variables = [("PGAPPNAME", "nightly"), ("PGOPTIONS", "-c statement_timeout=600000")];
    let mut options = options_on(&database, folder.path());
    options.to = Some(dsn_with(&database.dsn(), &variables));
    assert_eq!(run(&options, None).0.unwrap().measured, 4);
    assert_eq!(list_everything(&database), before);
}

/// A role of a database. Dropping the value drops the role.
struct DatabaseRole<'a>(&'a TestDb, String);

impl Drop for DatabaseRole<'_> {
    fn drop(&mut self) {
        let name = &self.1;
        self.0.run(&format!("drop owned by {name}; drop role {name}"));
    }
}

#[test]
fn results_note_that_the_role_may_not_checkpoint() {
    let (database, folder) = (database(), tempfile::tempdir().unwrap());
    let name = format!("{}_role", database.name());
    database.run(&format!(
        "create role {name}; grant create on database {} to {name}",
        database.name()
    ));
    let role = DatabaseRole(&database, name);
    let before = list_everything(&database);
    let mut options = options_on(&database, folder.path());
    let options_of_session = format!("-c role={}", role.1);
    options.to = Some(dsn_with(&database.dsn(), &[("PGOPTIONS", &options_of_session)]));
    assert_eq!(run(&options, None).0.unwrap().measured, 4);
    for line in read(folder.path()).unwrap().iter().filter(|line| line.skipped.is_none()) {
        let is_it =
            |note: &String| note.starts_with("The role may not run CHECKPOINT on this server");
        assert!(line.outcome.notes.iter().any(is_it), "{:?}", line.outcome.notes);
    }
    assert_eq!(list_everything(&database), before);
}

#[test]
fn the_times_of_an_unknown_disk_are_computed_from_the_servers_counters() {
    let (database, folder) = (database(), tempfile::tempdir().unwrap());
    let mut options = options_on(&database, folder.path());
    options.experiments = vec![experiments::find("storage").unwrap()];
    (options.scale, options.repeats) = (Some(0.000_1), 1);
    let summary = run(&options, None).0.unwrap();
    assert_eq!((summary.measured, summary.skipped.len()), (3, 13));
    let digests = report::digests(&experiments::ALL, folder.path()).unwrap();
    assert!(digests[0].answer.starts_with("At 750 IOPS (computed), "), "{}", digests[0].answer);
    let lines = read(folder.path()).unwrap();
    let page = report::page(&experiments::ALL, &lines, folder.path()).unwrap();
    for text in ["From what the server counted", "because the server is not the lab&#39;s own"] {
        assert!(page.contains(text), "{text}");
    }
    assert!(!page.contains(" 0 processors"));
}

#[test]
fn a_stopped_run_leaves_nothing() {
    let database = database();
    let before = list_everything(&database);
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options.to = Some(dsn(&database.dsn()));
    let error = run(&options, Some(1)).0.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert_eq!(list_everything(&database), before);
}

#[test]
fn a_schema_that_the_lab_did_not_create_is_left_alone() {
    let database = database();
    database.run("create schema pgspate_lab; create table pgspate_lab.mine (id int)");
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(folder.path());
    options.to = Some(dsn(&database.dsn()));
    let error = run(&options, None).0.unwrap_err();
    assert_eq!(error.to_string(), "schema \"pgspate_lab\" already exists, and is not the lab's");
    assert!(error.hint_text().unwrap().contains("alter schema pgspate_lab rename"));
    assert_eq!(database.query("select count(*) from pgspate_lab.mine")[0][0].as_deref(), Some("0"));
}

#[test]
fn a_ledger_is_restored_or_dropped() {
    let folder = tempfile::tempdir().unwrap();
    for (has_ledger, has_schema) in [(false, false), (false, true), (true, true)] {
        let database = database();
        if has_ledger {
            database.run("create table mine (id int)");
            load_into(&database, "mine", folder.path());
        } else if has_schema {
            // An administrator may create an empty schema for the role that loads.
            database.run("create schema pgspate");
        }
        let jobs = "select to_regclass('pgspate.job'), to_regclass('pgspate.ledger')";
        let all = "select job, table_name from pgspate.job";
        let look = || match has_ledger {
            true => database.query(all),
            false => database.query(jobs),
        };
        let (before, ledger) = (list_everything(&database), look());
        let results = tempfile::tempdir().unwrap();
        let mut options = options(results.path());
        options.experiments = vec![experiments::find("bulk").unwrap()];
        (options.scale, options.repeats) = (Some(0.000_01), 1);
        options.to = Some(dsn(&database.dsn()));
        options.only = vec![("strategy".to_owned(), "pgspate".to_owned())];
        let summary = run(&options, None).0.unwrap();
        assert_eq!((summary.measured, summary.skipped.len()), (2, 3));
        assert_eq!((list_everything(&database), look()), (before, ledger));
    }
}

#[test]
fn trials_with_the_users_files_leave_nothing() {
    let files = tempfile::tempdir().unwrap();
    // The user's server has another table with the name of this file.
    std::fs::write(files.path().join("mine.csv"), "id,order\n1,a\n2,\n").unwrap();
    let database = database();
    database.run("create table mine (id int); insert into mine values (1)");
    let before = list_everything(&database);
    let results = tempfile::tempdir().unwrap();
    let mut options = options(results.path());
    options.experiments = vec![experiments::find("bulk").unwrap()];
    options.data = vec![files.path().display().to_string()];
    (options.scale, options.repeats) = (None, 1);
    options.to = Some(dsn(&database.dsn()));
    let summary = run(&options, None).0.unwrap();
    assert_eq!((summary.measured, summary.skipped.len()), (3, 9));
    assert_eq!(list_everything(&database), before);
    assert_eq!(database.query("select count(*) from mine")[0][0].as_deref(), Some("1"));
    for line in read(results.path()).unwrap().iter().filter(|line| line.skipped.is_none()) {
        assert_eq!(line.value("rows"), Some(2.0), "{}", line.trial.label());
        assert_eq!(line.conditions.data.tables[0].name, "mine");
        let agreed: Vec<&str> = line.agreed.keys().map(String::as_str).collect();
        assert_eq!(agreed, ["the number of rows in mine"]);
    }
    std::fs::write(files.path().join("mine.csv"), "id,order\n1,a\n2,b,c\n").unwrap();
    options.fresh = true;
    let (ended, began) = run(&options, None);
    let error = ended.unwrap_err();
    assert_eq!(error.place().and_then(|place| place.line), Some(3), "{error}");
    // The error is about the file, and no trial begins.
    assert!(error.to_string().starts_with("could not load "), "{error}");
    assert_eq!(began, [""; 0]);
    assert_eq!(list_everything(&database), before);
}
