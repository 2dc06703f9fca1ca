//! Jobs that end in other ways than by their driver, or by two sessions at once.

use std::thread;

use pgspate::driven::{AbortOutcome, FleetCommit, FleetJobOptions, FleetMode, StreamEpoch};
use pgspate::sync::{Scope, SyncOptions};

use crate::driven::DriverScene;
use crate::run::session;

/// A driver completes a job while a user forgets it: then the job is complete, and stays known.
#[test]
fn a_job_that_is_completed_meanwhile_is_not_forgotten() {
    let scene = DriverScene::new();
    let begin = || scene.begin_with(Some("job"), Default::default(), None).unwrap();
    let ticket = begin();
    let receipt = scene.write(&ticket, 0, 1, 1);
    let (runtime, client) = session(&scene.case.db.dsn());
    runtime.block_on(client.batch_execute("begin; lock table t in share mode")).unwrap();
    let wait_for = |sessions: &str| {
        let waiting = "select count(*) from pg_stat_activity \
                       where datname = current_database() and wait_event_type = 'Lock'";
        while scene.case.value(waiting) != sessions {}
    };
    let (completed, forgotten) = thread::scope(|scope| {
        let complete = scope.spawn(|| scene.complete(&ticket, &[receipt]));
        wait_for("1");
        let forget = scope.spawn(|| scene.status(&format!("--forget {}", ticket.job)));
        wait_for("2");
        runtime.block_on(client.batch_execute("rollback")).unwrap();
        (complete.join().unwrap(), forget.join().unwrap())
    });
    assert_eq!(completed.unwrap().rows_written, 1);
    assert_ne!(forgotten.status, Some(0));
    assert!(
        forgotten.stderr.contains("was completed or aborted meanwhile"),
        "{}",
        forgotten.stderr
    );
    assert!(begin().is_complete);
    assert_eq!(scene.ids(), "-1 1");
}

/// A driver begins a job again while a user forgets it, or while its last run aborts it.
#[test]
fn a_job_that_is_begun_again_meanwhile_is_not_forgotten() {
    let scene = DriverScene::new();
    let ticket = scene.begin_with(Some("job"), Default::default(), None).unwrap();
    let (runtime, client) = session(&scene.case.db.dsn());
    let wait_for_one = || {
        let waiting = "select count(*) from pg_stat_activity \
                       where datname = current_database() and wait_event_type = 'Lock'";
        while scene.case.value(waiting) != "1" {}
    };
    // As a driver does that begins the job again.
    let begin = "begin; update pgspate.fleet_job set fence = fence + 1";
    let end_while = |work: &dyn Fn()| {
        runtime.block_on(client.batch_execute(begin)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                wait_for_one();
                runtime.block_on(client.batch_execute("commit")).unwrap();
            });
            work();
        });
    };
    end_while(&|| {
        let forgotten = scene.status(&format!("--forget {}", ticket.job));
        let words = format!("job {} was begun again meanwhile", ticket.job);
        assert!(forgotten.stderr.contains(&words), "{}", forgotten.stderr);
    });
    let now = scene.begin_with(Some("job"), Default::default(), None).unwrap();
    end_while(&|| assert_eq!(scene.abort(&now), AbortOutcome::IsAnother));
    assert_eq!(scene.case.value("select count(*) from pgspate.fleet_job"), "1");
}

/// A crash empties an unlogged table. So the ledger remembers no job that writes one.
#[test]
fn a_job_of_an_unlogged_table_has_no_name() {
    let scene = DriverScene::new();
    scene.case.db.run("alter table t set unlogged");
    let epoch = StreamEpoch { stream: "s".to_owned(), number: 0, query: None, is_gapless: false };
    let epoch = FleetJobOptions { epoch: Some(epoch), ..FleetJobOptions::default() };
    for (name, options) in [(Some("job"), FleetJobOptions::default()), (None, epoch)] {
        let error = scene.begin_with(name, options, None).unwrap_err();
        assert!(error.to_string().contains("is unlogged"), "{error}");
    }
    let ticket = scene.begin_with(None, FleetJobOptions::default(), None).unwrap();
    let receipt = scene.write(&ticket, 0, 1, 1);
    assert_eq!(scene.complete(&ticket, &[receipt]).unwrap().rows_written, 1);
}

/// Whoever forgets such a job and keeps its rows gets them twice from the next run.
#[test]
fn the_warning_of_an_abandoned_job_names_the_parts_in_the_table() {
    let scene = DriverScene::new();
    let by_task = FleetJobOptions { commit: FleetCommit::Task, ..FleetJobOptions::default() };
    let first = scene.begin_with(None, by_task, None).unwrap();
    scene.write(&first, 0, 1, 5);
    let second = scene.begin_with(None, FleetJobOptions::default(), None).unwrap();
    scene.write(&second, 0, 6, 7);
    let third = scene.begin_with(None, FleetJobOptions::default(), None).unwrap();
    let advice = [
        "delete the rows of the 1 part that its tasks have committed, and run",
        "if no driver works on it, run",
    ];
    for ((warning, advice), job) in third.warnings.iter().zip(advice).zip([&first, &second]) {
        let forget = format!("{advice} `pgspate status --forget {}`", job.job);
        assert!(warning.ends_with(&forget), "{warning}");
    }
    assert_eq!(third.warnings.len(), 2);
}

/// A ledger that is created again, or restored from a backup, gives out its numbers again.
#[test]
fn a_task_of_an_older_ledger_does_not_write_into_a_job_of_the_same_number() {
    let scene = DriverScene::new();
    let by_task = FleetJobOptions { commit: FleetCommit::Task, ..FleetJobOptions::default() };
    for options in [by_task, FleetJobOptions::default()] {
        let zombie = scene.begin_with(None, options.clone(), None).unwrap();
        scene
            .case
            .db
            .run("drop schema pgspate cascade; drop schema if exists pgspate_job_1 cascade");
        let ticket = scene.begin_with(Some("new"), options, None).unwrap();
        assert_eq!(ticket.job, zombie.job);
        assert!(scene.write_csv(&zombie, 0, "id\n9\n").is_err());
        let receipt = scene.write(&ticket, 0, 1, 1);
        assert!(scene.write_csv(&zombie, 0, "id\n9\n").is_err());
        assert!(scene.complete(&zombie, std::slice::from_ref(&receipt)).is_err());
        assert_eq!(scene.abort(&zombie), AbortOutcome::IsAnother);
        scene.complete(&ticket, &[receipt]).unwrap();
        assert!(scene.complete(&zombie, &[]).is_err());
        assert_eq!(scene.ids(), "-1 1");
        scene.case.db.run("delete from t where id > 0; drop schema pgspate cascade");
    }
}

#[test]
fn a_job_that_syncs_reports_its_warnings() {
    let scene = DriverScene::new();
    scene.case.db.run(
        "create function skip() returns trigger language plpgsql as 'begin return null; end'; \
         create trigger skip before insert on t for each row when (new.id = 2) \
         execute function skip()",
    );
    let upsert = SyncOptions { scope: Scope::NoDelete, ..SyncOptions::default() };
    let options = FleetJobOptions { mode: FleetMode::Sync, ..FleetJobOptions::default() };
    let ticket = scene.begin_with(Some("job"), options, Some(&upsert)).unwrap();
    let receipts = [scene.write(&ticket, 0, 1, 3)];
    let report = scene.complete_sync(&ticket, &receipts, &upsert).unwrap();
    assert_eq!(report.warnings, ["triggers of public.t kept out 1 change"]);
    assert_eq!(scene.complete_sync(&ticket, &receipts, &upsert).unwrap(), report);
}
