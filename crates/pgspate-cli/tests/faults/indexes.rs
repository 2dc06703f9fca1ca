//! Faults while indexes are dropped and rebuilt: in the end each index is as it was.

use std::time::Duration;

use crate::chance::{TestRandom, long_run};
use crate::plan::{Fault, FaultPlace, FaultPlan};
use crate::proxy::{Proxy, StallRelease};
use crate::run::{finish, spawn, wait_until};
use crate::scene::LoadFaultScene;
use crate::tally::run_all;
use crate::trial::{LoadSettings, LoadTrial};

const FAULTS: [Fault; 4] = [Fault::Cut, Fault::CutInside, Fault::CutAfter, Fault::SwallowCommit];

/// Messages of a load without faults, and commits.
fn count(settings: &LoadSettings) -> (u64, u64) {
    let scene = LoadFaultScene::new(settings.rows);
    let proxy = Proxy::start(&scene.dsn, None);
    let run = finish(scene.load(&proxy.dsn(), settings));
    assert_eq!((run.status, run.stderr.as_str()), (Some(0), ""), "{}", proxy.log());
    assert_eq!(scene.difference(), None);
    assert_eq!(scene.ask("select count(*) >= 4 from pgspate.change"), "t");
    proxy.counts()
}

#[test]
fn faults_at_the_commits_of_each_step() {
    let settings = LoadSettings::indexed(2);
    let (_, commits) = count(&settings);
    let mut chance = TestRandom::new(11);
    // The number of the last commits differs between runs.
    run_all(
        (1..commits)
            .map(|nth| LoadTrial::new(chance.pick(&FAULTS), FaultPlace::Commit(nth), settings)),
    );
}

#[test]
fn random_faults_before_and_after_the_rows() {
    let settings = LoadSettings::indexed(2);
    let (messages, _) = count(&settings);
    let mut chance = TestRandom::for_test_run(12);
    // What comes before and after the rows takes a hundred messages or two.
    run_all((0..long_run().unwrap_or(8)).map(|nth| {
        let at = match nth % 3 {
            0 => chance.among(1..=150),
            _ => chance.among(messages - 250..=messages),
        };
        LoadTrial::new(chance.pick(&FAULTS[..3]), FaultPlace::Message(at), settings)
    }));
}

/// How a load after one that was killed ends early: a bad option, or none and a session that is
/// not good for it, or a connection that is lost.
#[derive(Debug, Clone, Copy)]
enum EarlyEnd {
    Options(&'static [&'static str]),
    Session(&'static str),
    Cut(u64),
}

const EARLY: [EarlyEnd; 8] = [
    EarlyEnd::Options(&["--rejects", "t.csv"]),
    EarlyEnd::Options(&["--rejects", "no/such/folder.csv"]),
    EarlyEnd::Options(&["--columns", "id,nothing"]),
    EarlyEnd::Options(&["--encoding", "nonsense"]),
    EarlyEnd::Options(&["--replace=swap", "--rejects", "t.csv"]),
    EarlyEnd::Session("-c default_transaction_read_only=on"),
    EarlyEnd::Session("-c statement_timeout=1"),
    EarlyEnd::Cut(0),
];

/// Runs a load that ends early, and returns its stderr. The load must not forget indexes that are
/// still to be rebuilt.
fn end_early(scene: &LoadFaultScene, early: EarlyEnd) -> String {
    let run = match early {
        EarlyEnd::Options(options) => finish(spawn(scene.default_load(&scene.dsn).args(options))),
        EarlyEnd::Session(options) => {
            finish(spawn(scene.default_load(&scene.dsn).env("PGOPTIONS", options)))
        }
        EarlyEnd::Cut(at) => {
            let proxy =
                Proxy::start(&scene.dsn, Some(FaultPlan::new(Fault::Cut, FaultPlace::Message(at))));
            finish(spawn(scene.default_load(&proxy.dsn()).args(["--retry-for", "0"])))
        }
    };
    run.stderr
}

#[test]
fn indexes_survive_random_kills_and_early_errors() {
    let settings = LoadSettings::indexed(2);
    let (messages, _) = count(&settings);
    let mut chance = TestRandom::for_test_run(13);
    let scene = LoadFaultScene::new(settings.rows);
    for nth in 0..long_run().unwrap_or(12) {
        scene.reset();
        let at = match nth % 2 {
            0 => chance.among(60..=messages),
            _ => chance.among(messages - 150..=messages),
        };
        let proxy =
            Proxy::start(&scene.dsn, Some(FaultPlan::new(Fault::Stall, FaultPlace::Message(at))));
        let mut child = spawn(&mut scene.default_load(&proxy.dsn()));
        while !proxy.wait_until_fired(Duration::from_millis(20)) {
            if child.try_wait().unwrap().is_some() {
                break;
            }
        }
        // It may have ended meanwhile.
        let _ = child.kill();
        child.wait().unwrap();
        proxy.release(StallRelease::Cut);
        let sessions = "select count(*) from pg_stat_activity where datname = current_database() \
                        and application_name like 'pgspate%'";
        wait_until("its sessions are gone", || scene.ask(sessions) == "0");
        let early = match chance.pick(&EARLY) {
            EarlyEnd::Cut(_) => EarlyEnd::Cut(chance.among(1..=120)),
            early => early,
        };
        println!("{nth}: killed at {at} of {messages}, then {early:?}");
        let said = end_early(&scene, early);
        wait_until("its sessions are gone", || scene.ask(sessions) == "0");
        if chance.among(0..=1) == 0 {
            let run = finish(spawn(&mut scene.restore()));
            assert_eq!(run.status, Some(0), "killed at {at}, {early:?}: {said}{}", run.stderr);
            assert!(scene.has_its_indexes(), "killed at {at}, {early:?}: {said}");
        }
        let run = finish(spawn(&mut scene.default_load(&scene.dsn)));
        assert_eq!(run.status, Some(0), "killed at {at}, {early:?}: {said}{}", run.stderr);
        assert_eq!(scene.difference(), None, "killed at {at}, {early:?}: {said}");
    }
}
