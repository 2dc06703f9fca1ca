//! Faults while a load drops and rebuilds indexes. In the end, each index must be as it was before.

use std::time::Duration;

use crate::plan::{Fault, FaultPlace, FaultPlan};
use crate::proxy::{Proxy, StallRelease};
use crate::run::{finish, spawn, wait_until};
use crate::scene::LoadFaultScene;
use crate::tally::run_all;
use crate::test_random::{TestRandom, long_run};
use crate::trial::{LoadSettings, LoadTrial};

const FAULTS: [Fault; 4] = [Fault::Cut, Fault::CutInside, Fault::CutAfter, Fault::SwallowCommit];

/// Returns how many messages and commits a load without faults has.
fn count_messages(settings: &LoadSettings) -> (u64, u64) {
    let scene = LoadFaultScene::new(settings.rows);
    let proxy = Proxy::start(&scene.dsn, None);
    let run = finish(scene.load(&proxy.dsn(), settings));
    assert_eq!((run.status, run.stderr.as_str()), (Some(0), ""), "{}", proxy.log());
    assert_eq!(scene.difference(), None);
    assert_eq!(scene.ask("select count(*) >= 4 from pgspate.change"), "t");
    proxy.counts()
}

#[test]
fn indexes_survive_faults_at_every_commit() {
    let settings = LoadSettings::indexed(2);
    let (_, commits) = count_messages(&settings);
    let mut random = TestRandom::new(11);
    // The total number of commits differs between runs, so the last commit may not occur.
    run_all(
        (1..commits)
            .map(|nth| LoadTrial::new(random.pick(&FAULTS), FaultPlace::Commit(nth), settings)),
    );
}

#[test]
fn indexes_survive_random_faults_before_and_after_the_rows() {
    let settings = LoadSettings::indexed(2);
    let (messages, _) = count_messages(&settings);
    let mut random = TestRandom::for_test_run(12);
    // A load sends 100 to 200 messages before the rows, and as many after them.
    run_all((0..long_run().unwrap_or(8)).map(|nth| {
        let at = match nth % 3 {
            0 => random.among(1..=150),
            _ => random.among(messages - 250..=messages),
        };
        LoadTrial::new(random.pick(&FAULTS[..3]), FaultPlace::Message(at), settings)
    }));
}

/// Why the load after a killed load ends early: a bad option, a session with unsuitable settings,
/// or a lost connection.
#[derive(Debug, Clone, Copy)]
enum EarlyEnd {
    Options(&'static [&'static str]),
    Session(&'static str),
    Cut(u64),
}

const EARLY_ENDS: [EarlyEnd; 8] = [
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
    let (messages, _) = count_messages(&settings);
    let mut random = TestRandom::for_test_run(13);
    let scene = LoadFaultScene::new(settings.rows);
    for nth in 0..long_run().unwrap_or(12) {
        scene.reset();
        let at = match nth % 2 {
            0 => random.among(60..=messages),
            _ => random.among(messages - 150..=messages),
        };
        let proxy =
            Proxy::start(&scene.dsn, Some(FaultPlan::new(Fault::Stall, FaultPlace::Message(at))));
        let mut child = spawn(&mut scene.default_load(&proxy.dsn()));
        while !proxy.wait_until_fired(Duration::from_millis(20)) {
            if child.try_wait().unwrap().is_some() {
                break;
            }
        }
        // The child may have ended meanwhile.
        let _ = child.kill();
        child.wait().unwrap();
        proxy.release(StallRelease::Cut);
        let sessions = "select count(*) from pg_stat_activity where datname = current_database() \
                        and application_name like 'pgspate%'";
        wait_until("its sessions are gone", || scene.ask(sessions) == "0");
        let early = match random.pick(&EARLY_ENDS) {
            EarlyEnd::Cut(_) => EarlyEnd::Cut(random.among(1..=120)),
            early => early,
        };
        println!("{nth}: killed at message {at} of {messages}, then {early:?}");
        let said = end_early(&scene, early);
        wait_until("its sessions are gone", || scene.ask(sessions) == "0");
        if random.among(0..=1) == 0 {
            let run = finish(spawn(&mut scene.restore()));
            assert_eq!(run.status, Some(0), "killed at {at}, {early:?}: {said}{}", run.stderr);
            assert!(scene.has_its_indexes(), "killed at {at}, {early:?}: {said}");
        }
        let run = finish(spawn(&mut scene.default_load(&scene.dsn)));
        assert_eq!(run.status, Some(0), "killed at {at}, {early:?}: {said}{}", run.stderr);
        assert_eq!(scene.difference(), None, "killed at {at}, {early:?}: {said}");
    }
}
