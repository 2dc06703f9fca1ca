//! Jobs of distributed engines such as Spark, in other ways than appending through a stage.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use pgspate::ErrorKind;
use pgspate::driven::{FleetCommit, FleetJobOptions, FleetMode, FleetTicket};
use pgspate::sync::{Scope, SyncOptions};
use pgspate::target::connect::{Dsn, Environment};

use crate::driven::DriverScene;
use crate::run::session;

pub(crate) fn replacing() -> FleetJobOptions {
    FleetJobOptions { mode: FleetMode::Replace, ..FleetJobOptions::default() }
}

fn syncing() -> FleetJobOptions {
    FleetJobOptions { mode: FleetMode::Sync, ..FleetJobOptions::default() }
}

pub(crate) fn by_task(stable_parts: bool) -> FleetJobOptions {
    FleetJobOptions { commit: FleetCommit::Task, stable_parts, ..FleetJobOptions::default() }
}

pub(crate) fn begin(scene: &DriverScene, options: FleetJobOptions) -> FleetTicket {
    scene.begin_with(Some("job"), options, None).unwrap()
}

#[test]
fn a_job_replaces_the_rows_and_keeps_them_if_it_fails() {
    let scene = DriverScene::new();
    let ticket = begin(&scene, replacing());
    let twice = [scene.write(&ticket, 0, 1, 3), scene.write(&ticket, 1, 3, 4)];
    let error = scene.complete(&ticket, &twice).unwrap_err();
    assert_eq!(error.sqlstate().unwrap().code(), "23505");
    assert_eq!(scene.ids(), "-1");
    let ([first, _], other) = (twice, scene.write(&ticket, 1, 4, 4));
    let report = scene.complete(&ticket, &[first, other]).unwrap();
    assert_eq!((report.inserted, report.losers), (4, 1));
    assert_eq!(scene.ids(), "1 2 3 4");
    scene.assert_clean();
}

/// Indexes that a killed load has dropped belong to the table. Another table in its place would
/// lack them permanently.
#[test]
fn a_table_whose_indexes_a_load_has_dropped_is_not_exchanged() {
    let scene = DriverScene::new();
    let db = &scene.case.db;
    db.run("create index t_other on t (id)");
    let ticket = begin(&scene, replacing());
    assert!(ticket.has_shadow);
    let receipt = scene.write(&ticket, 0, 1, 3);
    // As a load records it that is killed while it copies.
    db.run(
        "insert into pgspate.job \
             (key, fingerprint, command, table_oid, table_name, made_table, options) \
         values ('killed', 'x', 'load', 't'::regclass, 'public.t', false, '{}'); \
         drop index t_other; \
         insert into pgspate.change (job, ordinal, table_oid, kind, object, steps, beside) \
         select job, 0, 't'::regclass, 'index', 't_other', \
                array['as the load records it'], false \
         from pgspate.job where key = 'killed'",
    );
    let report = scene.complete(&ticket, &[receipt]).unwrap();
    assert!(
        report.warnings.iter().any(|it| it.contains("another load has not put back its indexes")),
        "{:?}",
        report.warnings
    );
    assert_eq!(scene.ids(), "1 2 3");
    let recorded = "select count(*) from pgspate.change \
                    where table_oid = 't'::regclass and done < cardinality(steps)";
    assert_eq!(scene.case.value(recorded), "1");
}

/// A driver that has lost its tasks, or found no files, has no rows. Only by a word of its own does
/// it empty the table.
#[test]
fn a_job_without_rows_empties_the_table_only_if_allowed() {
    let allowed = FleetJobOptions { allow_empty: true, ..replacing() };
    for has_stage in [false, true] {
        let scene = DriverScene::new();
        if has_stage {
            scene.case.db.run("create view seen as select id from t");
        }
        let ticket = begin(&scene, replacing());
        assert_ne!(ticket.has_shadow, has_stage);
        let nothing = scene.complete(&ticket, &[]).unwrap_err();
        let empty = scene.write_csv(&ticket, 0, "id\n").unwrap();
        let no_rows = scene.complete(&ticket, std::slice::from_ref(&empty)).unwrap_err();
        for error in [nothing, no_rows] {
            assert_eq!(error.kind(), ErrorKind::Plan);
            assert!(error.chain().contains("there are no rows to put in"), "{error:?}");
            assert!(error.hint_text().unwrap().contains("`--allow-empty`"), "{error:?}");
        }
        assert_eq!(scene.ids(), "-1");
        // The same job, begun again with another word.
        let ticket = begin(&scene, allowed.clone());
        assert_eq!(scene.complete(&ticket, &[]).unwrap().rows_written, 0);
        assert_eq!(scene.case.value("select count(*) from t"), "0");
        // A table without rows loses none.
        let ticket = scene.begin_with(None, replacing(), None).unwrap();
        let empty = scene.write_csv(&ticket, 0, "id\n").unwrap();
        assert_eq!(scene.complete(&ticket, &[empty]).unwrap().rows_written, 0);
    }
    let appending = FleetJobOptions { allow_empty: true, ..by_job() };
    let error = DriverScene::new().begin_with(None, appending, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
}

/// The new rows take the place of the old ones with everything that belongs to the table. Rows of
/// attempts that do not count are left out.
#[test]
fn a_job_exchanges_the_table_for_its_shadow() {
    for (options, rows) in [(replacing(), 1), (FleetJobOptions::default(), 0)] {
        let scene = DriverScene::new();
        scene.case.db.run(&format!(
            "create index by_name on t (name); grant select on t to public; \
             delete from t where id < {}",
            -rows
        ));
        let oid = "select 't'::regclass::oid";
        let before = scene.case.value(oid);
        let ticket = begin(&scene, options);
        assert!(ticket.has_shadow);
        let lost = scene.write(&ticket, 0, 1, 4);
        let receipts = [scene.write(&ticket, 0, 1, 3), scene.write(&ticket, 1, 5, 5)];
        assert_ne!(lost, receipts[0]);
        let report = scene.complete(&ticket, &receipts).unwrap();
        assert_eq!((report.rows_in, report.inserted, report.losers), (4, 4, 1));
        assert_eq!(report.warnings, Vec::<String>::new());
        assert_eq!(scene.ids(), "1 2 3 5");
        assert_ne!(scene.case.value(oid), before);
        let kept = "select count(*) || ' ' || has_table_privilege('public', 't', 'select') \
                    from pg_indexes where tablename = 't'";
        assert_eq!(scene.case.value(kept), "2 true");
        scene.assert_clean();
        assert_eq!(scene.complete(&ticket, &[]).unwrap(), report);
        // The job is still known by its table, although that is another one now.
        assert!(scene.begin_with(Some("job"), ticket.options, None).unwrap().is_complete);
    }
}

#[test]
fn rows_are_inserted_if_the_table_has_changed_meanwhile() {
    for (options, change, ids) in [
        (FleetJobOptions::default(), "insert into t (id) values (9)", "1 2 9"),
        (replacing(), "alter table t add column later int default 7", "1 2"),
        (replacing(), "create view seen as select id from t", "1 2"),
    ] {
        let scene = DriverScene::new();
        scene.case.db.run("delete from t");
        let ticket = begin(&scene, options);
        assert!(ticket.has_shadow);
        let receipt = scene.write(&ticket, 0, 1, 2);
        scene.case.db.run(change);
        let report = scene.complete(&ticket, &[receipt]).unwrap();
        assert!(report.warnings[0].starts_with("the rows were inserted"), "{report:?}");
        assert_eq!(scene.ids(), ids);
        scene.assert_clean();
    }
}

/// A table that others depend on gets a stage, and a driver that runs again gets a new shadow.
#[test]
fn a_table_that_cannot_be_exchanged_gets_a_stage() {
    let scene = DriverScene::new();
    let first = begin(&scene, replacing());
    let stale = scene.write(&first, 0, 1, 3);
    let again = begin(&scene, replacing());
    assert!(first.has_shadow && again.has_shadow);
    assert!(scene.complete(&again, &[stale]).is_err());
    scene.case.db.run("create view seen as select id from t");
    let third = begin(&scene, replacing());
    assert!(!third.has_shadow);
    let receipt = scene.write(&third, 0, 4, 5);
    assert_eq!(scene.complete(&third, &[receipt]).unwrap().inserted, 2);
    assert_eq!(scene.ids(), "4 5");
    scene.assert_clean();
}

#[test]
fn a_job_syncs_the_scopes_of_all_its_parts() {
    let scene = DriverScene::new();
    scene.case.db.run("insert into t (id, name) values (1, 'old'), (2, 'part 0'), (9, 'gone')");
    let all = SyncOptions { scope: Scope::All, max_delete: 90.0, ..SyncOptions::default() };
    let ticket = scene.begin_with(Some("job"), syncing(), Some(&all)).unwrap();
    let lost = scene.write(&ticket, 1, 7, 8);
    let receipts = [scene.write(&ticket, 0, 1, 3), scene.write(&ticket, 1, 4, 5)];
    assert_eq!(scene.ids(), "-1 1 2 9");
    let few = SyncOptions { max_delete: 10.0, ..all.clone() };
    let error = scene.complete_sync(&ticket, &receipts, &few).unwrap_err();
    assert!(error.messages().join("; ").contains("would be deleted"), "{error:?}");
    assert!(!error.hint_text().unwrap().contains("--check"), "{error:?}");
    assert_eq!(scene.ids(), "-1 1 2 9");
    let report = scene.complete_sync(&ticket, &receipts, &all).unwrap();
    assert_eq!((report.rows_in, report.inserted, report.updated, report.deleted), (5, 3, 1, 2));
    assert_eq!((report.rows_written, report.parts, report.losers), (4, 2, 1));
    assert_eq!(scene.ids(), "1 2 3 4 5");
    assert_eq!(scene.case.value("select name from t where id = 1"), "part 0");
    scene.assert_clean();
    // Completing again gives the same report. The receipt of a lost attempt no longer matters.
    assert_eq!(scene.complete_sync(&ticket, &[lost], &all).unwrap(), report);
    assert_eq!(scene.ids(), "1 2 3 4 5");
}

#[test]
fn a_job_upserts_and_refuses_a_key_that_two_parts_have() {
    let scene = DriverScene::new();
    let upsert = SyncOptions { scope: Scope::NoDelete, ..SyncOptions::default() };
    let ticket = scene.begin_with(None, syncing(), Some(&upsert)).unwrap();
    let first = scene.write(&ticket, 0, -1, 1);
    let other = scene.write(&ticket, 1, 1, 2);
    let receipts = [first.clone(), other];
    let error = scene.complete_sync(&ticket, &receipts, &upsert).unwrap_err();
    assert!(error.messages().join("; ").contains("key"), "{error:?}");
    assert!(!error.hint_text().unwrap().contains("--keep"), "{error:?}");
    assert_eq!(scene.ids(), "-1");
    let narrow = scene.write_csv(&ticket, 1, "id\n2\n").unwrap();
    let error = scene.complete_sync(&ticket, &[first.clone(), narrow], &upsert).unwrap_err();
    assert!(error.to_string().contains("has other columns"), "{error}");
    let second = scene.write(&ticket, 1, 2, 2);
    let report = scene.complete_sync(&ticket, &[first, second], &upsert).unwrap();
    assert_eq!((report.inserted, report.updated, report.deleted), (3, 1, 0));
    assert_eq!(scene.ids(), "-1 0 1 2");
    // Without parts, nothing is written.
    let ticket = scene.begin_with(None, syncing(), Some(&upsert)).unwrap();
    assert_eq!(scene.complete_sync(&ticket, &[], &upsert).unwrap().rows_written, 0);
    scene.assert_clean();
}

#[test]
fn options_of_a_sync_that_a_job_cannot_have_are_refused() {
    let scene = DriverScene::new();
    let base = SyncOptions { scope: Scope::NoDelete, ..SyncOptions::default() };
    for (refused, word) in [
        (SyncOptions { lanes: 2, ..base.clone() }, "lanes"),
        (SyncOptions { is_check: true, ..base.clone() }, "check"),
        (SyncOptions { keeps_last: true, ..base.clone() }, "keep"),
    ] {
        let error = scene.begin_with(None, syncing(), Some(&refused)).unwrap_err();
        assert!(error.to_string().contains(&format!("\"{word}\"")), "{error}");
    }
    for refused in [
        FleetJobOptions { mode: FleetMode::Replace, ..by_task(false) },
        FleetJobOptions { stable_parts: true, ..FleetJobOptions::default() },
        FleetJobOptions { connections: Some(0), ..FleetJobOptions::default() },
    ] {
        let error = scene.begin_with(None, refused, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    }
}

/// The first attempt of a part that commits is the only one, whatever rows the others have.
#[test]
fn tasks_that_commit_write_each_part_once() {
    let scene = DriverScene::new();
    let ticket = begin(&scene, by_task(false));
    let first = scene.write(&ticket, 0, 1, 3);
    assert_eq!(scene.ids(), "-1 1 2 3");
    // The same rows, and other rows: both get the receipt of the first attempt.
    assert_eq!(scene.write(&ticket, 0, 1, 3), first);
    assert_eq!(scene.write(&ticket, 0, 7, 9), first);
    let second = scene.write(&ticket, 1, 4, 5);
    let error = scene.complete(&ticket, std::slice::from_ref(&first)).unwrap_err();
    assert!(error.to_string().starts_with("part 1 of job"), "{error}");
    let report = scene.complete(&ticket, &[first, second]).unwrap();
    assert_eq!((report.rows_in, report.parts, report.losers), (5, 2, 0));
    assert_eq!(scene.ids(), "-1 1 2 3 4 5");
    assert!(scene.write_csv(&ticket, 2, "id\n8\n").is_err());
    scene.assert_clean();
}

/// Two attempts of a part at once: one waits for the other's keys or for its seal.
#[test]
fn of_two_tasks_that_commit_at_once_one_counts() {
    let scene = DriverScene::new();
    let ticket = begin(&scene, by_task(false));
    for part in 0..4 {
        let (first, last) = (10 * part + 1, 10 * part + 5);
        let rows: String = (first..=last).map(|id| format!("{id}\n")).collect();
        scene.case.put("part.csv", format!("id\n{rows}"));
        let receipts: Vec<_> = std::thread::scope(|scope| {
            let attempt = || scene.write_file(&ticket, part.into(), "part.csv").unwrap();
            let attempts: Vec<_> = (0..3).map(|_| scope.spawn(attempt)).collect();
            attempts.into_iter().map(|it| it.join().unwrap()).collect()
        });
        assert!(receipts.iter().all(|it| *it == receipts[0]), "{receipts:?}");
    }
    let count = "select count(*) || ' ' || (select count(*) from pgspate.part) from t";
    assert_eq!(scene.case.value(count), "21 4");
}

#[test]
fn a_rerun_of_tasks_that_commit_needs_stable_parts() {
    let scene = DriverScene::new();
    let zombie = begin(&scene, by_task(false));
    scene.write(&zombie, 0, 1, 2);
    let error = scene.begin_with(Some("job"), by_task(false), None).unwrap_err();
    assert!(error.to_string().contains("has written 1 part to the table"), "{error}");
    let error = scene.begin_with(Some("job"), replacing(), None).unwrap_err();
    assert!(error.to_string().contains("begun with other options"), "{error}");
    scene.case.db.run("delete from t where id > 0; delete from pgspate.job");

    let zombie = begin(&scene, by_task(true));
    let kept = scene.write(&zombie, 0, 1, 2);
    let again = begin(&scene, by_task(true));
    assert!(scene.write_csv(&zombie, 1, "id\n9\n").is_err());
    assert_eq!(scene.write(&again, 0, 1, 2), kept);
    let more = scene.write(&again, 1, 3, 3);
    assert_eq!(scene.complete(&again, &[kept, more]).unwrap().rows_in, 3);
    assert_eq!(scene.ids(), "-1 1 2 3");
}

/// Triggers see one statement for each part, and a trigger that skips rows is no error.
#[test]
fn triggers_run_as_they_do_for_a_load() {
    let scene = DriverScene::new();
    scene.case.db.run(
        "create table log (what text); create schema app; \
         create function app.note() returns trigger language plpgsql \
             as $$ begin insert into log values (tg_op); return null; end $$; \
         create function app.skip() returns trigger language plpgsql \
             as $$ begin return case when new.id % 2 = 0 then null else new end; end $$; \
         create trigger a after insert on t for each statement execute function app.note(); \
         create trigger b before insert on t for each row execute function app.skip()",
    );
    let ticket = begin(&scene, by_task(false));
    let receipt = scene.write(&ticket, 0, 1, 4);
    assert_eq!(receipt.rows, 2);
    assert_eq!(scene.complete(&ticket, &[receipt]).unwrap().rows_written, 2);
    assert_eq!(scene.ids(), "-1 1 3");
    assert_eq!(scene.case.value("select string_agg(what, ' ') from log"), "INSERT");
}

/// Sixteen tasks share two connections: no task fails, and never more than two work at once.
#[test]
fn tasks_share_a_number_of_connections() {
    let scene = DriverScene::new();
    let options = FleetJobOptions { connections: Some(2), ..FleetJobOptions::default() };
    let ticket = begin(&scene, options);
    for part in 0..16 {
        scene.case.put(&format!("{part}.csv"), format!("id\n{}\n", part + 1));
    }
    let (left, most) = (AtomicUsize::new(16), AtomicUsize::new(0));
    let receipts: Vec<_> = std::thread::scope(|scope| {
        let tasks: Vec<_> = (0..16)
            .map(|part| {
                let (scene, ticket, left) = (&scene, &ticket, &left);
                scope.spawn(move || {
                    let written = scene.write_file(ticket, part, &format!("{part}.csv"));
                    left.fetch_sub(1, Relaxed);
                    written.unwrap()
                })
            })
            .collect();
        let holders = "select count(distinct pid) from pg_locks where locktype = 'advisory' \
                       and database = (select oid from pg_database \
                                       where datname = current_database())";
        while left.load(Relaxed) > 0 {
            most.fetch_max(scene.case.value(holders).parse().unwrap(), Relaxed);
        }
        tasks.into_iter().map(|task| task.join().unwrap()).collect()
    });
    assert!((1..=2).contains(&most.load(Relaxed)), "{most:?}");
    assert_eq!(scene.complete(&ticket, &receipts).unwrap().rows_written, 16);
}

/// A role that may open few connections: tasks wait until it may open one more.
#[test]
fn tasks_wait_while_the_role_has_too_many_connections() {
    let mut scene = DriverScene::new();
    let role = format!("driven_{}", scene.case.value("select current_database()"));
    let database = scene.case.value("select current_database()");
    scene.case.db.run(&format!(
        "create role \"{role}\" login connection limit 2; \
         grant select, insert on t to \"{role}\"; \
         grant create on database \"{database}\" to \"{role}\"; \
         create schema pgspate authorization \"{role}\""
    ));
    let dsn = format!("{} user='{role}'", scene.case.db.dsn());
    scene.dsn = Dsn::resolve(Some(&dsn), &Environment::default()).unwrap().unwrap();
    let ticket = begin(&scene, by_job());
    for part in 0..6 {
        scene.case.put(&format!("{part}.csv"), format!("id\n{part}\n"));
    }
    let receipts: Vec<_> = std::thread::scope(|scope| {
        let write = |part| scene.write_file(&ticket, part, &format!("{part}.csv")).unwrap();
        let tasks: Vec<_> = (0..6).map(|part| scope.spawn(move || write(part))).collect();
        tasks.into_iter().map(|task| task.join().unwrap()).collect()
    });
    assert_eq!(scene.complete(&ticket, &receipts).unwrap().rows_written, 6);
    scene.case.db.run(&format!("drop owned by \"{role}\" cascade; drop role \"{role}\""));
}

/// A policy hides the table's rows, so the table seems to be empty. It must not be exchanged.
#[test]
fn hidden_rows_are_kept() {
    let mut scene = DriverScene::new();
    let database = scene.case.value("select current_database()");
    let role = format!("hidden_{database}");
    scene.case.db.run(&format!(
        "create role \"{role}\" login; alter table t owner to \"{role}\"; \
         grant create on database \"{database}\" to \"{role}\"; \
         grant create on schema public to \"{role}\"; \
         create schema pgspate authorization \"{role}\"; \
         alter table t enable row level security; alter table t force row level security; \
         create policy positive on t using (id > 0) with check (true)"
    ));
    let dsn = format!("{} user='{role}'", scene.case.db.dsn());
    scene.dsn = Dsn::resolve(Some(&dsn), &Environment::default()).unwrap().unwrap();
    let ticket = begin(&scene, by_job());
    assert!(!ticket.has_shadow);
    let receipt = scene.write(&ticket, 0, 1, 2);
    assert_eq!(scene.complete(&ticket, &[receipt]).unwrap().inserted, 2);
    // The policy hides the rows only after the job has begun.
    scene.case.db.run("delete from t; alter table t no force row level security");
    let ticket = scene.begin_with(None, by_job(), None).unwrap();
    assert!(ticket.has_shadow);
    let receipt = scene.write(&ticket, 0, 3, 4);
    scene.case.db.run("insert into t (id) values (-7); alter table t force row level security");
    let report = scene.complete(&ticket, &[receipt]).unwrap();
    assert_eq!((report.inserted, report.warnings.len()), (2, 1));
    scene.case.db.run("alter table t no force row level security");
    assert_eq!(scene.ids(), "-7 3 4");
    scene.case.db.run(&format!(
        "alter table t owner to current_user; drop owned by \"{role}\" cascade; \
         drop role \"{role}\""
    ));
}

/// An attempt of the earlier run commits its rows while the driver begins again and waits for it.
#[test]
fn a_part_that_is_committed_while_the_driver_begins_again_is_seen() {
    let scene = DriverScene::new();
    let first = begin(&scene, by_task(false));
    let (runtime, client) = session(&scene.case.db.dsn());
    let attempt = format!(
        "begin; insert into t (id) values (5); \
         insert into pgspate.part (job, part, xid, columns, rows) \
         select job, 0, txid_current(), '{{id}}', 1 from pgspate.fleet_job where job = {} \
         for key share",
        first.job
    );
    runtime.block_on(client.batch_execute(&attempt)).unwrap();
    let again = std::thread::scope(|scope| {
        let begun = scope.spawn(|| scene.begin_with(Some("job"), by_task(false), None));
        let waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' \
                     and datname = current_database()";
        while scene.case.value(waits) == "0" {}
        runtime.block_on(client.batch_execute("commit")).unwrap();
        begun.join().unwrap()
    });
    let error = again.unwrap_err();
    assert!(error.to_string().contains("has written 1 part to the table"), "{error}");
    assert_eq!(scene.ids(), "-1 5");
}

const FOREIGN_PARTITION: &str = "\
drop table t; create table t (id bigint, n int) partition by range (id);
create foreign data wrapper w; create server s foreign data wrapper w;
create foreign table t1 partition of t default server s";

#[test]
fn tables_that_cannot_be_written_in_this_way_are_refused() {
    for (change, options, word) in [
        ("create table child () inherits (t)", replacing(), "other tables inherit from"),
        ("create table child (t int references t)", replacing(), "refers to public.t"),
        ("alter table t set unlogged", by_task(false), "is unlogged"),
        (FOREIGN_PARTITION, by_job(), "a partition is on another server"),
    ] {
        let scene = DriverScene::new();
        scene.case.db.run(change);
        let error = scene.begin_with(None, options, None).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
    let scene = DriverScene::new();
    scene.case.db.run("create view seen as select id from t");
    let ticket = begin(&scene, replacing());
    let receipt = scene.write(&ticket, 0, 1, 2);
    let error = scene.complete(&ticket, &[]).unwrap_err();
    assert!(error.to_string().contains("but there is no receipt for it"), "{error}");
    scene
        .case
        .db
        .run("create table child () inherits (t); insert into child (id, n) values (7, 1)");
    let error = scene.complete(&ticket, &[receipt]).unwrap_err();
    assert!(error.to_string().contains("would be emptied, too"), "{error}");
    assert_eq!(scene.ids(), "-1 7");
}

/// Two jobs begin while the table is empty. The second one finds another table in its place.
#[test]
fn two_jobs_may_begin_on_an_empty_table() {
    let scene = DriverScene::new();
    scene.case.db.run("delete from t");
    let jobs = ["a", "b"].map(|name| scene.begin_with(Some(name), by_job(), None).unwrap());
    let early = scene.write(&jobs[1], 0, 10, 11);
    let first = scene.write(&jobs[0], 0, 1, 2);
    assert_eq!(scene.complete(&jobs[0], &[first]).unwrap().warnings, Vec::<String>::new());
    let late = scene.write(&jobs[1], 1, 12, 12);
    let report = scene.complete(&jobs[1], &[early, late]).unwrap();
    assert_eq!((report.inserted, report.warnings.len()), (3, 1));
    assert_eq!(scene.ids(), "1 2 10 11 12");
    scene.assert_clean();
    // A table that was renamed keeps its job.
    let ticket = scene.begin_with(Some("c"), replacing(), None).unwrap();
    let receipt = scene.write(&ticket, 0, 5, 5);
    scene.case.db.run("alter table t rename to other; create table t (id int)");
    let report = scene.complete(&ticket, &[receipt]).unwrap();
    assert_eq!(report.table, "public.other");
    assert_eq!(scene.case.value("select id from other"), "5");
    assert_eq!(scene.case.value("select count(*) from t"), "0");
}

/// Who reads the stage, such as a backup, is not disturbed. Who still writes into the shadow when
/// the job is completed cannot count any more, and is ended.
#[test]
fn readers_of_a_stage_go_on_and_late_writers_are_ended() {
    let scene = DriverScene::new();
    let ticket = begin(&scene, replacing());
    let receipt = scene.write(&ticket, 0, 1, 2);
    let (other, writer) = session(&scene.case.db.dsn());
    let write = format!("begin; insert into {} (id) values (9)", ticket.destination);
    other.block_on(writer.batch_execute(&write)).unwrap();
    // Different numbers of connections do not make other options.
    let options = FleetJobOptions { connections: Some(3), buffer: 9, ..replacing() };
    assert!(scene.begin_with(Some("job"), options, None).unwrap().fence == ticket.fence + 1);
    assert!(other.block_on(writer.batch_execute("commit")).is_err());
    assert!(scene.complete(&ticket, &[receipt]).is_err());

    let ticket = scene.begin_with(Some("job"), replacing(), None).unwrap();
    let receipt = scene.write(&ticket, 0, 1, 2);
    let (other, writer) = session(&scene.case.db.dsn());
    other.block_on(writer.batch_execute(&write)).unwrap();
    assert_eq!(scene.complete(&ticket, &[receipt]).unwrap().inserted, 2);
    assert!(other.block_on(writer.batch_execute("commit")).is_err());
    assert_eq!(scene.ids(), "1 2");

    let ticket = begin_stage(&scene);
    let receipt = scene.write(&ticket, 0, 3, 3);
    let (runtime, reader) = session(&scene.case.db.dsn());
    let read = format!("begin; select count(*) from {}", ticket.destination);
    runtime.block_on(reader.batch_execute(&read)).unwrap();
    std::thread::scope(|scope| {
        let completed = scope.spawn(|| scene.complete(&ticket, &[receipt]).unwrap());
        let waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' \
                     and datname = current_database()";
        while scene.case.value(waits) == "0" {}
        runtime.block_on(reader.batch_execute("commit")).unwrap();
        completed.join().unwrap();
    });
    scene.assert_clean();
}

fn by_job() -> FleetJobOptions {
    FleetJobOptions::default()
}

/// Begins a job of a table that has rows, so that the job has a stage.
fn begin_stage(scene: &DriverScene) -> FleetTicket {
    let ticket = scene.begin_with(None, by_job(), None).unwrap();
    assert!(!ticket.has_shadow);
    ticket
}

/// A task that sleeps while its job ends finds neither stage nor shadow, and learns why.
#[test]
fn a_task_that_wakes_after_its_job_is_told_so() {
    for options in [by_job(), replacing(), by_task(false)] {
        let scene = DriverScene::new();
        let ticket = begin(&scene, options);
        let error = scene.write_csv(&ticket, 0, "id\n1\nx\n").unwrap_err();
        let place = error.place().unwrap();
        assert_eq!((place.line, place.column.as_deref()), (Some(3), Some("id")));
        let receipt = scene.write(&ticket, 0, 1, 2);
        scene.complete(&ticket, &[receipt]).unwrap();
        let error = scene.write_csv(&ticket, 1, "id\n9\n").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Ledger, "{error:?}");
        assert!(error.to_string().contains("begun again, completed or aborted"), "{error:?}");
    }
}
