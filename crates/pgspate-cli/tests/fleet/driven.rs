//! Jobs of engines with a driver: begin, parts, complete, abort.

use std::sync::Arc;

use pgspate::ErrorKind;
use pgspate::Result;
use pgspate::fleet::{self, AbortOutcome, FleetJobReport, FleetReceipt, FleetTicket};
use pgspate::load::LoadWatch;
use pgspate::reading::{InputOrigin, ReadingOptions};
use pgspate::session::WaitLimits;
use pgspate::target::connect::{Dsn, Environment};
use pgspate_embedded::testing;
use tokio::runtime::Runtime;

use crate::run::{finish, spawn};
use crate::support::LoadCase;

/// A table with rows, and a driver that writes into it.
struct DriverScene {
    case: LoadCase,
    dsn: Dsn,
    runtime: Runtime,
}

impl DriverScene {
    fn new() -> DriverScene {
        let case = LoadCase::new(
            "create table t (id int primary key, name text default 'none', \
                             n int generated always as identity, twice int generated always as \
                             (id * 2) stored); \
             insert into t (id) values (-1)",
        );
        let dsn = Dsn::resolve(Some(&case.db.dsn()), &Environment::default()).unwrap().unwrap();
        DriverScene { case, dsn, runtime: pgspate_cli::runtime().unwrap() }
    }

    fn begin(&self, name: Option<&str>) -> Result<FleetTicket> {
        fleet::begin("t", name, &self.dsn, WaitLimits::default(), self.runtime.handle())
    }

    /// Writes a part: the rows of a csv file with this header.
    fn write_csv(&self, ticket: &FleetTicket, part: i64, csv: &str) -> Result<FleetReceipt> {
        self.case.put("part.csv", csv);
        let path = self.case.path("part.csv").to_str().unwrap().to_owned();
        let origin = InputOrigin::Sources(vec![path]);
        let options = ReadingOptions { origin, ..ReadingOptions::default() };
        let watch = Arc::new(LoadWatch::default());
        let (limits, handle) = (WaitLimits::default(), self.runtime.handle());
        fleet::write_part(ticket, part, &options, limits, self.dsn.clone(), handle, &watch)
    }

    /// Writes a part of the ids from `first` to `last`.
    fn write(&self, ticket: &FleetTicket, part: i64, first: i32, last: i32) -> FleetReceipt {
        let rows: String = (first..=last).map(|id| format!("{id},part {part}\n")).collect();
        self.write_csv(ticket, part, &format!("id,name\n{rows}")).unwrap()
    }

    fn complete(&self, ticket: &FleetTicket, receipts: &[FleetReceipt]) -> Result<FleetJobReport> {
        let handle = self.runtime.handle();
        fleet::complete(ticket, receipts, &self.dsn, WaitLimits::default(), handle)
    }

    fn abort(&self, ticket: &FleetTicket) -> AbortOutcome {
        fleet::abort(ticket, &self.dsn, WaitLimits::default(), self.runtime.handle()).unwrap()
    }

    fn ids(&self) -> String {
        self.case.value("select string_agg(id::text, ' ' order by id) from t")
    }

    /// Checks that no stage and no sealed part is left.
    #[track_caller]
    fn assert_clean(&self) {
        let left = "select (select count(*) from pg_namespace where nspname like 'pgspate\\_job%') \
                    || ' ' || (select count(*) from pgspate.part)";
        assert_eq!(self.case.value(left), "0 0");
    }
}

#[test]
fn parts_become_visible_at_once() {
    let scene = DriverScene::new();
    let ticket = scene.begin(None).unwrap();
    let first = scene.write(&ticket, 0, 1, 3);
    // A part without the column `name` gets the default. Another gives the identity column.
    let second = scene.write_csv(&ticket, 1, "id\n4\n5\n").unwrap();
    let third = scene.write_csv(&ticket, 2, "id,n\n6,77\n").unwrap();
    let empty = scene.write_csv(&ticket, 3, "id\n").unwrap();
    assert_eq!((first.rows, empty.rows), (3, 0));
    assert_eq!(scene.ids(), "-1");
    let report = scene.complete(&ticket, &[third, empty, first.clone(), second, first]).unwrap();
    assert_eq!((report.rows_in, report.rows_written, report.parts, report.losers), (6, 6, 4, 0));
    assert_eq!(scene.ids(), "-1 1 2 3 4 5 6");
    let names = "select concat_ws(' ', (select name from t where id = 4), \
                 (select n from t where id = 6), (select twice from t where id = 5))";
    assert_eq!(scene.case.value(names), "none 77 10");
    scene.assert_clean();
    // Completing again gives the same report, and aborting does nothing.
    assert_eq!(scene.complete(&ticket, &[]).unwrap(), report);
    assert_eq!(scene.abort(&ticket), AbortOutcome::IsComplete);
    assert_eq!(scene.ids(), "-1 1 2 3 4 5 6");
}

/// Which attempt counts is the driver's choice, also if the attempts have other rows.
#[test]
fn of_two_attempts_the_one_with_the_receipt_counts() {
    for chosen in [0, 1] {
        let scene = DriverScene::new();
        let ticket = scene.begin(None).unwrap();
        let attempts = [scene.write(&ticket, 7, 1, 2), scene.write(&ticket, 7, 2, 4)];
        let error = scene.complete(&ticket, &attempts).unwrap_err();
        assert!(error.to_string().contains("receipts of two attempts of part 7"), "{error}");
        assert_eq!(scene.ids(), "-1");
        let report = scene.complete(&ticket, &attempts[chosen..=chosen]).unwrap();
        assert_eq!((report.rows_written, report.losers), ([2, 3][chosen], 1));
        assert_eq!(scene.ids(), ["-1 1 2", "-1 2 3 4"][chosen]);
        scene.assert_clean();
    }
}

#[test]
fn a_refused_part_or_a_refused_row_leaves_the_table_unchanged() {
    let scene = DriverScene::new();
    let ticket = scene.begin(None).unwrap();
    let error = scene.write_csv(&ticket, 0, "id\n1\nx\n").unwrap_err();
    assert_eq!(error.sqlstate().unwrap().code(), "22P02");
    // The key is in the table already.
    let taken = scene.write(&ticket, 0, -1, 3);
    let error = scene.complete(&ticket, std::slice::from_ref(&taken)).unwrap_err();
    assert_eq!(error.sqlstate().unwrap().code(), "23505");
    assert_eq!(scene.ids(), "-1");
    // Another attempt of the part has other rows.
    let other = scene.write(&ticket, 0, 1, 3);
    assert_eq!(scene.complete(&ticket, &[other]).unwrap().losers, 1);
    assert_eq!(scene.ids(), "-1 1 2 3");
    scene.assert_clean();
}

#[test]
fn a_driver_that_runs_again_writes_a_named_job_once() {
    let scene = DriverScene::new();
    let zombie = scene.begin(Some("nightly")).unwrap();
    let stale = scene.write(&zombie, 0, 1, 5);
    // The driver was killed, and is run again.
    let ticket = scene.begin(Some("nightly")).unwrap();
    assert_eq!((ticket.job, ticket.fence), (zombie.job, zombie.fence + 1));
    let fresh = scene.write(&ticket, 0, 1, 3);
    for refused in [
        scene.write_csv(&zombie, 1, "id\n9\n").unwrap_err(),
        scene.complete(&zombie, &[stale.clone()]).unwrap_err(),
        scene.complete(&ticket, &[stale]).unwrap_err(),
    ] {
        assert!(matches!(refused.kind(), ErrorKind::Ledger | ErrorKind::Server), "{refused:?}");
    }
    assert_eq!(scene.abort(&zombie), AbortOutcome::IsAnother);
    let report = scene.complete(&ticket, &[fresh]).unwrap();
    assert_eq!(scene.ids(), "-1 1 2 3");
    let third = scene.begin(Some("nightly")).unwrap();
    assert!(third.is_complete);
    let error = scene.write_csv(&third, 0, "id\n9\n").unwrap_err();
    assert!(error.to_string().ends_with("\"nightly\" is complete"), "{error}");
    assert_eq!(scene.complete(&third, &[]).unwrap(), report);
    scene.assert_clean();
    scene.case.db.run("create table other (id int)");
    let limits = WaitLimits::default();
    let handle = scene.runtime.handle();
    let error = fleet::begin("other", Some("nightly"), &scene.dsn, limits, handle).unwrap_err();
    assert!(error.to_string().contains("which writes public.t"), "{error}");
}

#[test]
fn abandoned_jobs_are_shown_and_forgotten() {
    let scene = DriverScene::new();
    let first = scene.begin(None).unwrap();
    scene.write(&first, 0, 1, 5);
    let second = scene.begin(Some("b")).unwrap();
    let warning = second.warnings.join("");
    assert!(warning.contains(&format!("`pgspate status --forget {}`", first.job)), "{warning}");
    let status = |more: &str| {
        let dsn = scene.case.db.dsn();
        let mut command = scene.case.command(&["status", "--to", &dsn]);
        command.args(more.split_whitespace());
        finish(spawn(&mut command))
    };
    let said = status("");
    assert!(said.stdout.contains("fleet") && said.stdout.contains("public.t"), "{}", said.stdout);
    assert_eq!(status(&format!("--forget {}", first.job)).status, Some(0));
    assert_eq!(scene.abort(&second), AbortOutcome::Aborted);
    assert_eq!(scene.abort(&second), AbortOutcome::IsAnother);
    scene.assert_clean();
    assert_eq!(scene.ids(), "-1");
    assert!(scene.write_csv(&first, 0, "id\n9\n").is_err());
}

/// An attempt that was killed before its seal leaves nothing, and one that was ended while it waits
/// for the lock of its seal neither.
#[test]
fn an_attempt_that_loses_its_session_before_the_seal_does_not_count() {
    let scene = DriverScene::new();
    let ticket = scene.begin(None).unwrap();
    let (runtime, client) = crate::run::session(&scene.case.db.dsn());
    runtime
        .block_on(client.batch_execute(&format!(
            "begin; select from pgspate.fleet_job where job = {} for update",
            ticket.job
        )))
        .unwrap();
    let receipt = std::thread::scope(|scope| {
        let attempt = scope.spawn(|| scene.write_csv(&ticket, 0, "id\n1\n"));
        let kill = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                    where datname = current_database() and wait_event_type = 'Lock' \
                      and query like 'insert into pgspate.part%'";
        while scene.case.value(kill) == "0" {}
        attempt.join().unwrap()
    });
    assert!(receipt.unwrap_err().is_retryable());
    runtime.block_on(client.batch_execute("rollback")).unwrap();
    let again = scene.write(&ticket, 0, 2, 2);
    assert_eq!(scene.complete(&ticket, &[again]).unwrap().losers, 0);
    assert_eq!(scene.ids(), "-1 2");
}

/// A crash empties the stage, and may keep the sealed parts.
#[test]
fn a_server_crash_before_the_completion_is_noticed() {
    let server = testing::server("");
    let dsn = Dsn::resolve(Some(&server.dsn()), &Environment::default()).unwrap().unwrap();
    let (case, runtime) = (LoadCase::new(""), pgspate_cli::runtime().unwrap());
    let run = |sql: &str| {
        let (runtime, client) = crate::run::session(&server.dsn());
        runtime.block_on(client.query(sql, &[])).unwrap()
    };
    run("create table t (id int primary key, name text)");
    let scene = DriverScene { case, dsn, runtime };
    let ticket = scene.begin(Some("crash")).unwrap();
    let receipt = scene.write(&ticket, 0, 1, 3);
    run("checkpoint");
    server.kill().unwrap();
    server.restart().unwrap();
    let error = scene.complete(&ticket, &[receipt]).unwrap_err();
    assert!(error.to_string().ends_with("has 0 of 3 rows"), "{error}");
    let ticket = scene.begin(Some("crash")).unwrap();
    let receipt = scene.write(&ticket, 0, 1, 3);
    assert_eq!(scene.complete(&ticket, &[receipt]).unwrap().rows_written, 3);
}
