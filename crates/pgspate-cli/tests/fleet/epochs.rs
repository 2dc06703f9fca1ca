//! Epochs of streams as jobs of an engine.

use std::thread;

use pgspate::ErrorKind;
use pgspate::Result;
use pgspate::driven::{
    self, AbortOutcome, FleetCommit, FleetJobOptions, FleetMode, FleetTicket, StreamEpoch,
};
use pgspate::session::WaitLimits;

use crate::driven::DriverScene;
use crate::run::{finish, spawn};

fn epoch(number: i64, query: Option<&str>) -> FleetJobOptions {
    let query = query.map(str::to_owned);
    let epoch = StreamEpoch { stream: "orders".to_owned(), number, query, is_gapless: false };
    FleetJobOptions { epoch: Some(epoch), ..FleetJobOptions::default() }
}

fn begin(scene: &DriverScene, number: i64) -> Result<FleetTicket> {
    scene.begin_with(None, epoch(number, Some("a")), None)
}

/// Returns the message of a refusal of the ledger.
fn refusal<T: std::fmt::Debug>(refused: Result<T>) -> String {
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ledger);
    error.to_string()
}

#[test]
fn an_epoch_is_written_once_by_tasks_that_join_its_job() {
    let scene = DriverScene::new();
    let tickets: Vec<_> = thread::scope(|scope| {
        let begin = || scope.spawn(|| begin(&scene, 0).unwrap());
        let threads: Vec<_> = (0..4).map(|_| begin()).collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    });
    assert!(tickets.iter().all(|it| (it.job, it.fence) == (tickets[0].job, tickets[0].fence)));
    let first = scene.write(&tickets[0], 0, 1, 2);
    let second = scene.write(&tickets[1], 1, 3, 4);
    let report = scene.complete(&begin(&scene, 0).unwrap(), &[first, second]).unwrap();
    assert_eq!((report.inserted, report.parts), (4, 2));
    scene.assert_clean();
    let again = begin(&scene, 0).unwrap();
    assert!(again.is_complete);
    assert_eq!(scene.complete(&again, &[]).unwrap(), report);
    assert_eq!(scene.abort(&again), AbortOutcome::IsComplete);
    assert_eq!(scene.ids(), "-1 1 2 3 4");
}

/// The engine has cut the repeated epoch into fewer parts.
#[test]
fn attempts_of_an_earlier_run_of_an_epoch_are_left_out() {
    let scene = DriverScene::new();
    let lost = begin(&scene, 0).unwrap();
    for part in 0..3 {
        scene.write(&lost, part, 10, 12);
    }
    let again = begin(&scene, 0).unwrap();
    let receipt = scene.write(&again, 0, 10, 12);
    let report = scene.complete(&again, &[receipt]).unwrap();
    assert_eq!((report.inserted, report.losers), (3, 3));
    assert_eq!(scene.ids(), "-1 10 11 12");
    scene.assert_clean();
}

#[test]
fn the_ledger_keeps_the_latest_epoch_and_refuses_to_go_back() {
    let scene = DriverScene::new();
    for number in [0, 1, 5] {
        let ticket = begin(&scene, number).unwrap();
        let first = i32::try_from(number).unwrap();
        let receipt = scene.write(&ticket, 0, first, first);
        scene.complete(&ticket, &[receipt]).unwrap();
    }
    let jobs = "select string_agg(options->'epoch'->>'number', ' ') from pgspate.job";
    assert_eq!(scene.case.value(jobs), "5");
    assert!(begin(&scene, 5).unwrap().is_complete);
    let expected = "epoch 4 of stream orders cannot begin: epoch 5 is complete";
    assert_eq!(refusal(begin(&scene, 4)), expected);
    assert_eq!(scene.ids(), "-1 0 1 5");
    // Another query counts from 0 again. A query of an unknown id is taken for the same.
    let other = scene.begin_with(None, epoch(0, Some("b")), None);
    assert_eq!(refusal(other), "stream orders is written by the query a");
    assert!(scene.begin_with(None, epoch(5, None), None).unwrap().is_complete);
}

/// The database has lost epoch 1, or the query skips epochs without rows.
#[test]
fn a_missing_epoch_is_refused_if_the_query_completes_all() {
    let scene = DriverScene::new();
    let gapless = |number| {
        let options = epoch(number, Some("a"));
        let epoch = options.epoch.map(|it| StreamEpoch { is_gapless: true, ..it });
        scene.begin_with(None, FleetJobOptions { epoch, ..FleetJobOptions::default() }, None)
    };
    scene.complete(&gapless(4).unwrap(), &[]).unwrap();
    let expected = "epoch 6 of stream orders does not follow epoch 4, the latest in the ledger";
    assert_eq!(refusal(gapless(6)), expected);
    let begun = begin(&scene, 6).unwrap();
    assert_eq!(begun.warnings, [expected]);
    assert!(begin(&scene, 6).unwrap().warnings.is_empty());
    scene.complete(&begun, &[]).unwrap();
    let next = gapless(7).unwrap();
    assert!(next.warnings.is_empty());
    scene.complete(&next, &[]).unwrap();
}

#[test]
fn an_epoch_waits_for_the_epoch_before() {
    let scene = DriverScene::new();
    let ticket = begin(&scene, 3).unwrap();
    let expected = "epoch 4 of stream orders cannot begin: epoch 3 is not complete";
    assert_eq!(refusal(begin(&scene, 4)), expected);
    let other = FleetJobOptions { mode: FleetMode::Replace, ..epoch(3, Some("a")) };
    assert!(refusal(scene.begin_with(None, other, None)).contains("with other options"));
    assert_eq!(scene.abort(&ticket), AbortOutcome::Aborted);
    assert!(!begin(&scene, 4).unwrap().is_complete);
}

/// An abort raises the fence before it drops the stage. It may be interrupted in between, or may
/// not get the lock on the stage.
#[test]
fn an_epoch_goes_on_after_an_abort_that_failed() {
    let scene = DriverScene::new();
    let aborted = begin(&scene, 0).unwrap();
    let stale = scene.write(&aborted, 0, 1, 1);
    for dropped in [String::new(), format!("; drop schema pgspate_job_{} cascade", aborted.job)] {
        scene.case.db.run(&format!("update pgspate.fleet_job set fence = fence + 1{dropped}"));
        let again = begin(&scene, 0).unwrap();
        assert_eq!(begin(&scene, 0).unwrap(), again);
        assert!(scene.write_csv(&aborted, 1, "id\n9\n").is_err());
        scene.write(&again, 0, 1, 1);
    }
    let again = begin(&scene, 0).unwrap();
    let receipt = scene.write(&again, 0, 1, 1);
    assert!(refusal(scene.complete(&again, &[stale])).contains("is not of job"));
    assert_eq!(scene.complete(&again, &[receipt]).unwrap().losers, 1);
    assert_eq!(scene.ids(), "-1 1");
    scene.assert_clean();
}

/// A stream writes into its table also after other rows have taken the place of the old ones.
#[test]
fn a_stream_outlives_an_exchange_of_its_table() {
    let scene = DriverScene::new();
    let ticket = begin(&scene, 0).unwrap();
    scene.complete(&ticket, &[scene.write(&ticket, 0, 1, 1)]).unwrap();
    let replacing = FleetJobOptions { mode: FleetMode::Replace, ..FleetJobOptions::default() };
    let ticket = scene.begin_with(None, replacing, None).unwrap();
    scene.complete(&ticket, &[scene.write(&ticket, 0, 7, 7)]).unwrap();
    let ticket = begin(&scene, 1).unwrap();
    scene.complete(&ticket, &[scene.write(&ticket, 0, 2, 2)]).unwrap();
    assert_eq!(scene.ids(), "2 7");
}

/// The query continues under the table's new name, and repeats its latest epoch.
/// Begins an epoch of a query's stream into a table.
fn begin_epoch_into(scene: &DriverScene, table: &str, number: i64) -> FleetTicket {
    let (options, limits) = (epoch(number, Some("a")), WaitLimits::default());
    let handle = scene.runtime.handle();
    driven::begin(table, None, options, None, &scene.dsn, limits, handle).unwrap()
}

#[test]
fn a_stream_outlives_a_new_name_of_its_table() {
    let scene = DriverScene::new();
    let begin_into = |table: &str, number| begin_epoch_into(&scene, table, number);
    let write = |ticket: &FleetTicket, id| {
        scene.complete(ticket, &[scene.write(ticket, 0, id, id)]).unwrap();
    };
    write(&begin_into("t", 0), 1);
    scene.case.db.run("create schema s; alter table t set schema s; alter table s.t rename to u");
    assert!(begin_into("s.u", 0).is_complete);
    write(&begin_into("s.u", 1), 2);
    scene.case.db.run("alter table s.u rename to t; alter table s.t set schema public");
    assert!(begin_into("t", 1).is_complete);
    write(&begin_into("t", 2), 3);
    assert_eq!(scene.ids(), "-1 1 2 3");
    assert_eq!(scene.case.value("select count(*) from pgspate.job"), "1");
}

#[test]
fn a_stream_of_a_renamed_table_is_not_that_of_its_successor() {
    let scene = DriverScene::new();
    let begin_into = |table: &str, number| begin_epoch_into(&scene, table, number);
    let write = |ticket: &FleetTicket, id| {
        assert!(!ticket.is_complete);
        scene.complete(ticket, &[scene.write(ticket, 0, id, id)]).unwrap();
    };
    write(&begin_into("t", 0), 1);
    scene.case.db.run("alter table t rename to old; create table t (like old including all)");
    for (number, id) in [(1, 2), (2, 4)] {
        write(&begin_into("old", number), id);
        write(&begin_into("t", number), id + 1);
    }
    // Each stream has its latest epoch, although both have the same name.
    assert!(begin_into("old", 2).is_complete && begin_into("t", 2).is_complete);
    assert_eq!(scene.ids(), "3 5");
    let old = "select string_agg(id::text, ' ' order by id) from old";
    assert_eq!(scene.case.value(old), "-1 1 2 4");
}

/// The job of the latest epoch follows the table, also under a new name.
#[test]
fn a_repeated_epoch_is_complete_after_a_new_name_and_an_exchange() {
    let scene = DriverScene::new();
    let begin_into = |table: &str, name: Option<&str>, options| {
        let (limits, handle) = (WaitLimits::default(), scene.runtime.handle());
        driven::begin(table, name, options, None, &scene.dsn, limits, handle).unwrap()
    };
    let append = FleetJobOptions::default;
    let ticket = begin_into("t", None, epoch(0, Some("a")));
    scene.complete(&ticket, &[scene.write(&ticket, 0, 1, 1)]).unwrap();
    let ticket = begin_into("t", Some("nightly"), append());
    scene.complete(&ticket, &[scene.write(&ticket, 0, 2, 2)]).unwrap();
    scene.case.db.run("alter table t rename to u");
    let replacing = FleetJobOptions { mode: FleetMode::Replace, ..append() };
    let ticket = begin_into("u", None, replacing);
    scene.complete(&ticket, &[scene.write(&ticket, 0, 1, 2)]).unwrap();
    assert!(begin_into("u", None, epoch(0, Some("a"))).is_complete);
    assert!(begin_into("u", Some("nightly"), append()).is_complete);

    scene.case.put("new.csv", "id,name\n1,a\n2,b\n");
    let open = begin_into("u", Some("open"), append());
    let receipt = scene.write(&open, 0, 3, 3);
    let dsn = scene.case.db.dsn();
    let args = ["load", "new.csv", "--table", "u", "--replace=swap", "--to", &dsn];
    let run = finish(spawn(&mut scene.case.command(&args)));
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert!(begin_into("u", None, epoch(0, Some("a"))).is_complete);
    assert!(begin_into("u", Some("nightly"), append()).is_complete);
    scene.complete(&open, &[receipt]).unwrap();
    let ids = "select string_agg(id::text, ' ' order by id) from u";
    assert_eq!(scene.case.value(ids), "1 2 3");
}

#[test]
fn options_that_an_epoch_cannot_have_are_refused() {
    let scene = DriverScene::new();
    let by_task = FleetJobOptions { commit: FleetCommit::Task, ..epoch(0, None) };
    for refused in
        [scene.begin_with(None, by_task, None), scene.begin_with(Some("job"), epoch(0, None), None)]
    {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Usage);
    }
}
