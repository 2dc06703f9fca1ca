//! Faults at any message of every command that connects to a server.
//!
//! Every command ends by itself, and its exit status is true. The same command, run again without a
//! fault, leaves the tables as an undisturbed run does, and leaves no session, lock or table.
//!
//! `PGSPATE_TEST_FAULTS=N` tries N faults of each kind on each command, at random messages.
//! `PGSPATE_TEST_RECORD=FILE` adds a line of JSON for each trial to a file.
//! `PGSPATE_TEST_FAULTS_REPLAY='sync-staged silence@41'` runs one trial ten times.

mod disturbed_commands;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../faults/plan.rs"]
mod plan;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../faults/protocol.rs"]
mod protocol;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../faults/proxy.rs"]
mod proxy;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../support/run.rs"]
mod run;
mod scene;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../faults/test_random.rs"]
mod test_random;
mod trial;
mod trial_runner;

use std::time::Duration;

use disturbed_commands::DISTURBED_COMMANDS;
use plan::{Fault, FaultPlace, FaultPlan};
use protocol::MessageSide;
use proxy::Proxy;
use run::finish;
use scene::{CommandScene, is_done};
use test_random::{TestRandom, long_run};
use trial::{CommandFault, CommandTrial};
use trial_runner::run_all;

/// Returns `count` trials of each fault for each command, at random messages.
fn random_trials(seed: u64, faults: &[CommandFault], count: u64) -> Vec<CommandTrial> {
    let mut random = TestRandom::for_test_run(seed);
    let mut trials = Vec::new();
    for _ in 0..long_run().unwrap_or(count) {
        for disturbed in 0..DISTURBED_COMMANDS.len() {
            for &fault_kind in faults {
                trials.push(CommandTrial { disturbed, fault_kind, place: random.number() });
            }
        }
    }
    trials
}

/// One connection becomes silent: the proxy passes no more messages on, and neither side closes the
/// connection.
#[test]
fn commands_end_when_a_connection_is_silent() {
    run_all(random_trials(41, &[CommandFault::Silence], 1));
}

/// Connections are cut or lost on one side, or the reply to a commit is lost.
#[test]
fn commands_are_exact_when_connections_are_lost() {
    let faults = [
        CommandFault::Cut,
        CommandFault::CutInside,
        CommandFault::CutAfter,
        CommandFault::Lose,
        CommandFault::SwallowCommit,
    ];
    match long_run() {
        Some(_) => run_all(random_trials(42, &faults, 1)),
        None => {
            // Each command gets one kind of fault, in turn.
            let all = random_trials(42, &faults, 1);
            let chosen = all.chunks(faults.len()).enumerate();
            run_all(chosen.map(|(nth, of_work)| of_work[nth % faults.len()]).collect());
        }
    }
}

/// The command or the server is killed.
#[test]
fn commands_can_be_run_again_after_a_kill() {
    run_all(random_trials(43, &[CommandFault::Kill, CommandFault::KillServer], 1));
}

/// The lost session creates the table, or locks the synced table. The server does not notice the
/// loss, so the next run would wait for its locks.
#[test]
fn commands_are_exact_when_sessions_with_locks_are_lost() {
    let trials = ["load-create lose@443", "sync-ahead lose@416"];
    run_all(trials.map(|trial| trial.parse().unwrap()).to_vec());
}

/// All sessions are lost at once, while a sync stages the rows that differ from the table. The
/// server is still reachable, so the sync stages all rows instead, and completes.
#[test]
fn a_sync_that_loses_all_its_sessions_completes() {
    let mut scene = CommandScene::new();
    let nth =
        DISTURBED_COMMANDS.iter().position(|disturbed| disturbed.name == "sync-ahead").unwrap();
    let (disturbed, wanted) = (&DISTURBED_COMMANDS[nth], scene.baseline(nth).state);
    scene.reset(disturbed);
    let rows = FaultPlace::Kind(MessageSide::Client, b'd', 1);
    let plan = FaultPlan::new(Fault::Cut, rows).away(Duration::ZERO);
    let proxy = Proxy::start(&scene.server.dsn(), Some(plan));
    let run = finish(scene.start(disturbed, &proxy.dsn()));
    assert!(proxy.has_fired());
    assert!(is_done(disturbed, &run), "{:?} {}\n{}", run.status, run.stderr, proxy.log());
    assert_eq!(scene.state(), wanted);
    assert_eq!(scene.left_over(), "");
}

/// With `PGSPATE_TEST_FAULTS_REPLAY='COMMAND FAULT@MESSAGE'`, that trial runs ten times.
#[test]
fn the_replayed_trial_keeps_all_rules() {
    match std::env::var("PGSPATE_TEST_FAULTS_REPLAY") {
        Ok(text) => run_all(vec![text.parse().unwrap(); 10]),
        Err(_) => println!("not tested: set PGSPATE_TEST_FAULTS_REPLAY to run this test"),
    }
}
