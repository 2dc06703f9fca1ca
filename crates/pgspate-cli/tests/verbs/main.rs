//! Every command that talks to a server, disturbed at any message.
//!
//! However a command ends, it ends by itself and its exit status is true. The same command, run
//! again without a fault, then makes the tables what an undisturbed run makes of them, and leaves
//! no session, lock or table behind.
//!
//! `PGSPATE_TEST_FAULTS=N` tries N faults of each sort on each command, at messages of chance.
//! `PGSPATE_TEST_RECORD=FILE` adds a line of JSON for each trial to a file.
//! `PGSPATE_TEST_FAULTS_REPLAY='sync-staged silence@41'` runs one trial ten times.

#[allow(dead_code, reason = "the faults of load need more of it")]
#[path = "../faults/chance.rs"]
mod chance;
#[allow(dead_code, reason = "the faults of load need more of it")]
#[path = "../faults/plan.rs"]
mod plan;
#[allow(dead_code, reason = "the faults of load need more of it")]
#[path = "../faults/proxy.rs"]
mod proxy;
mod record;
#[allow(dead_code, reason = "other tests need more of it")]
#[path = "../support/run.rs"]
mod run;
mod scene;
mod trial;
#[allow(dead_code, reason = "the faults of load need more of it")]
#[path = "../faults/wire.rs"]
mod wire;
mod work;

use std::time::Duration;

use chance::{TestRandom, long_run};
use plan::{Fault, FaultPlace, FaultPlan};
use proxy::Proxy;
use record::run_all;
use run::finish;
use scene::{CommandScene, is_done};
use trial::{CommandFault, CommandTrial};
use wire::MessageSide;
use work::WORKS;

/// Returns `count` trials of each fault for each command, at random messages.
fn trials(seed: u64, sorts: &[CommandFault], count: u64) -> Vec<CommandTrial> {
    let mut chance = TestRandom::for_test_run(seed);
    let mut trials = Vec::new();
    for _ in 0..long_run().unwrap_or(count) {
        for work in 0..WORKS.len() {
            for &sort in sorts {
                trials.push(CommandTrial { work, sort, place: chance.number() });
            }
        }
    }
    trials
}

/// One connection is silent permanently: nothing passes on it any more, and neither side closes it.
#[test]
fn commands_end_when_a_connection_is_silent() {
    run_all(trials(41, &[CommandFault::Silence], 1));
}

/// Connections that are cut, or lost on one side, and answers to commits that are lost.
#[test]
fn commands_are_exact_when_connections_are_lost() {
    let sorts = [
        CommandFault::Cut,
        CommandFault::CutInside,
        CommandFault::CutAfter,
        CommandFault::Lose,
        CommandFault::SwallowCommit,
    ];
    match long_run() {
        Some(_) => run_all(trials(42, &sorts, 1)),
        None => {
            // A sort in turn for each command.
            let all = trials(42, &sorts, 1);
            let chosen = all.chunks(sorts.len()).enumerate();
            run_all(chosen.map(|(nth, of_work)| of_work[nth % sorts.len()]).collect());
        }
    }
}

/// The command is killed, or the server is.
#[test]
fn commands_can_be_run_again_after_a_kill() {
    run_all(trials(43, &[CommandFault::Kill, CommandFault::KillServer], 1));
}

/// The session is lost that makes the table, or that locks what is synced; the server does not
/// notice, and the locks would be waited for.
#[test]
fn sessions_that_hold_locks_are_lost() {
    let trials = ["load-create lose@443", "sync-ahead lose@416"];
    run_all(trials.map(|trial| trial.parse().unwrap()).to_vec());
}

/// All sessions are lost at once, while the rows that the table lacks are staged. The server can be
/// reached. So all rows are staged instead, and the sync continues to its end.
#[test]
fn a_sync_that_loses_all_its_sessions_goes_on() {
    let mut scene = CommandScene::new();
    let nth = WORKS.iter().position(|work| work.name == "sync-ahead").unwrap();
    let (work, wanted) = (&WORKS[nth], scene.baseline(nth).state);
    scene.reset(work);
    let rows = FaultPlace::Kind(MessageSide::Client, b'd', 1);
    let plan = FaultPlan::new(Fault::Cut, rows).away(Duration::ZERO);
    let proxy = Proxy::start(&scene.server.dsn(), Some(plan));
    let run = finish(scene.start(work, &proxy.dsn()));
    assert!(proxy.has_fired());
    assert!(is_done(work, &run), "{:?} {}\n{}", run.status, run.stderr, proxy.log());
    assert_eq!(scene.state(), wanted);
    assert_eq!(scene.left_over(), "");
}

/// `PGSPATE_TEST_FAULTS_REPLAY='WORK SORT@MESSAGE'`: that trial, ten times.
#[test]
fn one_trial_again() {
    match std::env::var("PGSPATE_TEST_FAULTS_REPLAY") {
        Ok(text) => run_all(vec![text.parse().unwrap(); 10]),
        Err(_) => println!("not tested: this takes PGSPATE_TEST_FAULTS_REPLAY"),
    }
}
