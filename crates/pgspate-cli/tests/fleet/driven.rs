//! Jobs of distributed engines such as Spark: begin, parts, complete, abort.

use std::sync::Arc;

use pgspate::ErrorKind;
use pgspate::Result;
use pgspate::driven::{
    self, AbortOutcome, FleetCommit, FleetJobOptions, FleetJobReport, FleetMode, FleetReceipt,
    FleetTicket,
};
use pgspate::load::LoadWatch;
use pgspate::reading::{InputOrigin, ReadingOptions};
use pgspate::session::WaitLimits;
use pgspate::sync::{Scope, SyncOptions};
use pgspate::target::connect::{Dsn, Environment};
use pgspate_embedded::testing;
use tokio::runtime::Runtime;

use crate::plan::{Fault, FaultPlace, FaultPlan};
use crate::proxy::Proxy;
use crate::run::{Run, finish, spawn};
use crate::support::LoadCase;
use crate::test_random::{TestRandom, long_run};

/// A table with rows, and a driver that writes into it.
pub(crate) struct DriverScene {
    pub(crate) case: LoadCase,
    pub(crate) dsn: Dsn,
    pub(crate) runtime: Runtime,
}

impl DriverScene {
    pub(crate) fn new() -> DriverScene {
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
        self.begin_with(name, FleetJobOptions::default(), None)
    }

    pub(crate) fn begin_with(
        &self,
        name: Option<&str>,
        options: FleetJobOptions,
        sync: Option<&SyncOptions>,
    ) -> Result<FleetTicket> {
        let limits = WaitLimits::default();
        driven::begin("t", name, options, sync, &self.dsn, limits, self.runtime.handle())
    }

    /// Writes a part: the rows of a csv file with this header.
    pub(crate) fn write_csv(
        &self,
        ticket: &FleetTicket,
        part: i64,
        csv: &str,
    ) -> Result<FleetReceipt> {
        self.case.put("part.csv", csv);
        self.write_file(ticket, part, "part.csv")
    }

    /// Writes a part: the rows of a file.
    pub(crate) fn write_file(
        &self,
        ticket: &FleetTicket,
        part: i64,
        file: &str,
    ) -> Result<FleetReceipt> {
        let path = self.case.path(file).to_str().unwrap().to_owned();
        let origin = InputOrigin::Sources(vec![path]);
        let options = ReadingOptions { origin, ..ReadingOptions::default() };
        let watch = Arc::new(LoadWatch::default());
        let (limits, handle) = (WaitLimits::default(), self.runtime.handle());
        driven::write_part(ticket, part, &options, limits, self.dsn.clone(), handle, &watch)
    }

    /// Writes a part of these ids over another connection.
    fn write_over(
        &self,
        dsn: &Dsn,
        limits: WaitLimits,
        ticket: &FleetTicket,
        part: i32,
        ids: &str,
    ) -> Result<FleetReceipt> {
        self.case.put("over.csv", format!("id\n{ids}"));
        let path = self.case.path("over.csv").to_str().unwrap().to_owned();
        let origin = InputOrigin::Sources(vec![path]);
        let options = ReadingOptions { origin, ..ReadingOptions::default() };
        let (watch, handle) = (Arc::new(LoadWatch::default()), self.runtime.handle());
        driven::write_part(ticket, part.into(), &options, limits, dsn.clone(), handle, &watch)
    }

    /// Writes a part of the ids from `first` to `last`.
    pub(crate) fn write(
        &self,
        ticket: &FleetTicket,
        part: i64,
        first: i32,
        last: i32,
    ) -> FleetReceipt {
        let rows: String = (first..=last).map(|id| format!("{id},part {part}\n")).collect();
        self.write_csv(ticket, part, &format!("id,name\n{rows}")).unwrap()
    }

    pub(crate) fn complete(
        &self,
        ticket: &FleetTicket,
        receipts: &[FleetReceipt],
    ) -> Result<FleetJobReport> {
        let handle = self.runtime.handle();
        driven::complete(ticket, receipts, None, &self.dsn, WaitLimits::default(), handle)
    }

    /// Completes a job whose rows are compared with the table's rows.
    pub(crate) fn complete_sync(
        &self,
        ticket: &FleetTicket,
        receipts: &[FleetReceipt],
        sync: &SyncOptions,
    ) -> Result<FleetJobReport> {
        let (sync, handle) = (Some(sync.clone()), self.runtime.handle());
        driven::complete(ticket, receipts, sync, &self.dsn, WaitLimits::default(), handle)
    }

    pub(crate) fn abort(&self, ticket: &FleetTicket) -> AbortOutcome {
        driven::abort(ticket, &self.dsn, WaitLimits::default(), self.runtime.handle()).unwrap()
    }

    /// Runs `pgspate status` with more arguments.
    pub(crate) fn status(&self, more: &str) -> Run {
        let dsn = self.case.db.dsn();
        let mut command = self.case.command(&["status", "--to", &dsn]);
        command.args(more.split_whitespace());
        finish(spawn(&mut command))
    }

    pub(crate) fn ids(&self) -> String {
        self.case.value("select string_agg(id::text, ' ' order by id) from t")
    }

    /// Checks that no stage and no sealed part is left.
    #[track_caller]
    pub(crate) fn assert_clean(&self) {
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

/// Only a part of which another attempt has a receipt has losers. A part that no receipt names was
/// written, and its receipt was lost on its way.
#[test]
fn a_part_whose_receipt_is_lost_is_not_left_out() {
    let scene = DriverScene::new();
    let ticket = scene.begin(Some("job")).unwrap();
    let receipts: Vec<_> = (0..15).map(|part| scene.write(&ticket, part, 1, 1)).collect();
    let error = scene.complete(&ticket, &receipts[..14]).unwrap_err();
    let of = format!("part 14 of job {} \"job\" is written, but there is no receipt", ticket.job);
    assert!(error.to_string().starts_with(&of), "{error}");
    assert!(error.hint_text().unwrap().starts_with("Hand over a receipt of each part."));
    let error = scene.complete(&ticket, &receipts[1..2]).unwrap_err().to_string();
    assert!(error.starts_with("parts 0, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 4 more of job"), "{error}");
    assert!(scene.complete(&ticket, &[]).is_err());
    assert_eq!(scene.ids(), "-1");
    // A driver that means to leave it out begins again.
    let ticket = scene.begin(Some("job")).unwrap();
    let receipt = scene.write(&ticket, 0, 1, 1);
    assert_eq!(scene.complete(&ticket, &[receipt]).unwrap().rows_in, 1);
}

#[test]
fn a_refused_part_or_a_refused_row_leaves_the_table_unchanged() {
    let scene = DriverScene::new();
    let ticket = scene.begin(None).unwrap();
    let error = scene.write_csv(&ticket, 5, "id\n1\nx\n").unwrap_err();
    assert_eq!(error.sqlstate().unwrap().code(), "22P02");
    assert!(error.to_string().starts_with("could not write part 5 of job"), "{error}");
    let place = error.place().unwrap();
    assert_eq!((place.line, place.column.as_deref()), (Some(3), Some("id")));
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
    let woken = scene.write_csv(&zombie, 1, "id\n9\n").unwrap_err();
    assert!(woken.to_string().ends_with("was begun again, completed or aborted"), "{woken}");
    for refused in [
        woken,
        scene.complete(&zombie, std::slice::from_ref(&stale)).unwrap_err(),
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
    let (options, limits) = (FleetJobOptions::default(), WaitLimits::default());
    let (name, handle) = (Some("nightly"), scene.runtime.handle());
    let begun = driven::begin("other", name, options, None, &scene.dsn, limits, handle);
    let error = begun.unwrap_err();
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
    let status = |more: &str| scene.status(more);
    let said = status("");
    let line = format!("job {}  fleet into public.t\n", first.job);
    assert!(said.stdout.contains(&line), "{}", said.stdout);
    assert!(
        said.stdout.contains("unfinished; run its driver again\n  1 part written"),
        "{}",
        said.stdout
    );
    let line = format!("job {}  fleet \"b\" into public.t\n", second.job);
    assert!(said.stdout.contains(&line), "{}", said.stdout);
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

/// A ledger of the version before has no tables for these jobs.
#[test]
fn a_ledger_of_version_4_is_upgraded() {
    let scene = DriverScene::new();
    assert_eq!(scene.abort(&scene.begin(None).unwrap()), AbortOutcome::Aborted);
    scene.case.db.run(
        "drop table pgspate.part, pgspate.fleet_job, pgspate.request, pgspate.stream_file; \
         update pgspate.version set version = 4",
    );
    let ticket = scene.begin(None).unwrap();
    let receipt = scene.write(&ticket, 0, 1, 2);
    assert_eq!(scene.complete(&ticket, &[receipt]).unwrap().rows_written, 2);
    assert_eq!(scene.case.value("select version from pgspate.version"), "9");
}

/// Returns whether an error is that of a lost connection, after which the call is repeated.
fn is_cut(error: &pgspate::Error) -> bool {
    error.is_retryable() || matches!(error.kind(), ErrorKind::Connect | ErrorKind::Ledger)
}

/// Each call of the driver and of the tasks meets a fault at a random message or commit. The driver
/// begins again, as a driver that was killed does. The rows are written exactly once, in each way.
#[test]
fn random_faults_neither_lose_nor_double_rows() {
    let scene = DriverScene::new();
    let mut random = TestRandom::for_test_run(22);
    let mut fired = 0;
    let mut expected = 1;
    for round in 0..long_run().unwrap_or(12) as i32 {
        let way = JobWay::ALL[round as usize % JobWay::ALL.len()];
        let name = format!("round {round}");
        let ids = (10 * round + 1, 10 * round + 4);
        if way == JobWay::AppendToEmpty {
            scene.case.db.run("truncate t");
            expected = 0;
        }
        let mut undisturbed = 0;
        let report = loop {
            let fault = [Fault::Cut, Fault::CutInside, Fault::CutAfter, Fault::SwallowCommit]
                [random.among(0..=3) as usize];
            let place = match fault {
                Fault::SwallowCommit => FaultPlace::Commit(random.among(1..=3) as _),
                _ => FaultPlace::Message(random.among(1..=250) as _),
            };
            let plan =
                (undisturbed < 1 && random.among(0..=3) > 0).then(|| FaultPlan::new(fault, place));
            let proxy = Proxy::start(&scene.case.db.dsn(), plan);
            let dsn = Dsn::resolve(Some(&proxy.dsn()), &Environment::default()).unwrap().unwrap();
            let run = DriverRun { scene: &scene, dsn, limits: short_limits(), way };
            let done = run.drive(&name, ids);
            fired += u32::from(proxy.has_fired());
            match done {
                Ok(report) => break report,
                Err(error) => assert!(is_cut(&error), "{way:?}, {plan:?}: {error:?}"),
            }
            undisturbed = i32::from(random.among(0..=5) == 0);
        };
        assert_eq!((report.rows_in, report.parts), (4, 2), "{name}");
        let twice = scene.begin_with(Some(&name), way.options(), None).unwrap();
        assert!(twice.is_complete);
        expected = if way == JobWay::Replace { 4 } else { expected + 4 };
        assert_eq!(scene.case.value("select count(*) from t"), expected.to_string(), "{way:?}");
        let found = scene
            .case
            .value(&format!("select count(*) from t where id between {} and {}", ids.0, ids.1));
        assert_eq!(found, "4", "{way:?}");
    }
    println!("{fired} faults");
    assert!(fired > 3, "{fired} faults");
}

/// A way to write a job's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobWay {
    Append,
    AppendToEmpty,
    ByTask,
    Upsert,
    Replace,
}

impl JobWay {
    pub(crate) const ALL: [JobWay; 5] =
        [JobWay::Append, JobWay::Upsert, JobWay::ByTask, JobWay::AppendToEmpty, JobWay::Replace];

    fn options(self) -> FleetJobOptions {
        let options = FleetJobOptions::default();
        match self {
            JobWay::Append | JobWay::AppendToEmpty => options,
            JobWay::ByTask => {
                FleetJobOptions { commit: FleetCommit::Task, stable_parts: true, ..options }
            }
            JobWay::Upsert => FleetJobOptions { mode: FleetMode::Sync, ..options },
            JobWay::Replace => FleetJobOptions { mode: FleetMode::Replace, ..options },
        }
    }
}

fn short_limits() -> WaitLimits {
    WaitLimits { retry_for: std::time::Duration::from_secs(5), ..WaitLimits::default() }
}

/// A driver and its tasks, over a connection with a fault.
pub(crate) struct DriverRun<'a> {
    pub(crate) scene: &'a DriverScene,
    pub(crate) dsn: Dsn,
    pub(crate) limits: WaitLimits,
    pub(crate) way: JobWay,
}

impl DriverRun<'_> {
    /// Writes two parts of two rows. An attempt of the first part may be repeated.
    pub(crate) fn drive(&self, name: &str, (first, last): (i32, i32)) -> Result<FleetJobReport> {
        let handle = self.scene.runtime.handle();
        let (dsn, limits) = (&self.dsn, self.limits);
        let upsert = SyncOptions { scope: Scope::NoDelete, ..SyncOptions::default() };
        let sync = (self.way == JobWay::Upsert).then_some(upsert);
        let (name, options) = (Some(name), self.way.options());
        let ticket = driven::begin("t", name, options, sync.as_ref(), dsn, limits, handle)?;
        if ticket.is_complete {
            return driven::complete(&ticket, &[], sync, dsn, limits, handle);
        }
        let mut receipts = Vec::new();
        for part in 0..2 {
            let rows: String =
                (first..=last).filter(|id| id % 2 == part).map(|id| format!("{id}\n")).collect();
            let write = |dsn: &Dsn| self.scene.write_over(dsn, self.limits, &ticket, part, &rows);
            let attempt = match write(&self.dsn) {
                Err(error) if error.is_retryable() => write(&self.dsn)?,
                attempt => attempt?,
            };
            receipts.push(attempt);
        }
        driven::complete(&ticket, &receipts, sync, dsn, limits, handle)
    }
}

/// A crash empties the stage, and may keep the sealed parts. A shadow survives it.
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
    assert_eq!(scene.complete(&ticket, &[receipt]).unwrap().rows_written, 3);
    let ticket = scene.begin(Some("another crash")).unwrap();
    assert!(!ticket.has_shadow);
    let receipt = scene.write(&ticket, 0, 4, 6);
    run("checkpoint");
    server.kill().unwrap();
    server.restart().unwrap();
    let error = scene.complete(&ticket, &[receipt]).unwrap_err();
    assert!(error.to_string().ends_with("has 0 of 3 rows"), "{error}");
    let ticket = scene.begin(Some("another crash")).unwrap();
    let receipt = scene.write(&ticket, 0, 4, 6);
    assert_eq!(scene.complete(&ticket, &[receipt]).unwrap().rows_written, 3);
}
