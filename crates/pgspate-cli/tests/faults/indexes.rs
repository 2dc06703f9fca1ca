//! Faults while indexes are dropped and made again: in the end each is there as it was.

use std::time::Duration;

use crate::chance::{Chance, long_run};
use crate::plan::{At, Fault, Plan};
use crate::proxy::{Proxy, Release};
use crate::run::{finish, spawn, wait_until};
use crate::scene::Scene;
use crate::tally::run_all;
use crate::trial::{Settings, Trial};

const FAULTS: [Fault; 4] = [Fault::Cut, Fault::CutInside, Fault::CutAfter, Fault::SwallowCommit];

/// Messages of a load without faults, and commits.
fn count(settings: &Settings) -> (u64, u64) {
    let scene = Scene::new(settings.rows);
    let proxy = Proxy::start(&scene.dsn, None);
    let run = finish(scene.load(&proxy.dsn(), settings));
    assert_eq!((run.status, run.stderr.as_str()), (Some(0), ""), "{}", proxy.log());
    assert_eq!(scene.difference(), None);
    assert_eq!(scene.ask("select count(*) >= 4 from pgspate.change"), "t");
    proxy.counts()
}

#[test]
fn faults_at_the_commits_of_each_step() {
    let settings = Settings::indexed(2);
    let (_, commits) = count(&settings);
    let mut chance = Chance::new(11);
    // The last ones may not be there in every run.
    run_all((1..commits).map(|nth| Trial::new(chance.pick(&FAULTS), At::Commit(nth), settings)));
}

#[test]
fn faults_of_chance_around_the_rows() {
    let settings = Settings::indexed(2);
    let (messages, _) = count(&settings);
    let mut chance = Chance::of_run(12);
    // What comes before and after the rows takes a hundred messages or two.
    run_all((0..long_run().unwrap_or(8)).map(|nth| {
        let at = match nth % 3 {
            0 => chance.among(1..=150),
            _ => chance.among(messages - 250..=messages),
        };
        Trial::new(chance.pick(&FAULTS[..3]), At::Message(at), settings)
    }));
}

/// How a load after one that was killed ends early: a bad option, or none and a session that is
/// not good for it, or a connection that is lost.
#[derive(Debug, Clone, Copy)]
enum Early {
    Options(&'static [&'static str]),
    Session(&'static str),
    Cut(u64),
}

const EARLY: [Early; 8] = [
    Early::Options(&["--rejects", "t.csv"]),
    Early::Options(&["--rejects", "no/such/folder.csv"]),
    Early::Options(&["--columns", "id,nothing"]),
    Early::Options(&["--encoding", "nonsense"]),
    Early::Options(&["--replace=swap", "--rejects", "t.csv"]),
    Early::Session("-c default_transaction_read_only=on"),
    Early::Session("-c statement_timeout=1"),
    Early::Cut(0),
];

/// Runs such a load. However it ends, it may have put things back, and must not forget them.
fn end_early(scene: &Scene, early: Early) -> String {
    let run = match early {
        Early::Options(options) => finish(spawn(scene.default_load(&scene.dsn).args(options))),
        Early::Session(options) => {
            finish(spawn(scene.default_load(&scene.dsn).env("PGOPTIONS", options)))
        }
        Early::Cut(at) => {
            let proxy = Proxy::start(&scene.dsn, Some(Plan::new(Fault::Cut, At::Message(at))));
            finish(spawn(scene.default_load(&proxy.dsn()).args(["--retry-for", "0"])))
        }
    };
    run.stderr
}

#[test]
fn kills_of_chance_and_early_errors() {
    let settings = Settings::indexed(2);
    let (messages, _) = count(&settings);
    let mut chance = Chance::of_run(13);
    let scene = Scene::new(settings.rows);
    for nth in 0..long_run().unwrap_or(12) {
        scene.reset();
        let at = match nth % 2 {
            0 => chance.among(60..=messages),
            _ => chance.among(messages - 150..=messages),
        };
        let proxy = Proxy::start(&scene.dsn, Some(Plan::new(Fault::Stall, At::Message(at))));
        let mut child = spawn(&mut scene.default_load(&proxy.dsn()));
        while !proxy.wait_until_fired(Duration::from_millis(20)) {
            if child.try_wait().unwrap().is_some() {
                break;
            }
        }
        // It may have ended meanwhile.
        let _ = child.kill();
        child.wait().unwrap();
        proxy.release(Release::Cut);
        let sessions = "select count(*) from pg_stat_activity where datname = current_database() \
                        and application_name like 'pgspate%'";
        wait_until("its sessions are gone", || scene.ask(sessions) == "0");
        let early = match chance.pick(&EARLY) {
            Early::Cut(_) => Early::Cut(chance.among(1..=120)),
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
