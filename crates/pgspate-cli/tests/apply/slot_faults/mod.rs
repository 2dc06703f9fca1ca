//! Streams from replication slots, with faults of the source, the target and their connections. No
//! event is lost, and none is applied twice.
//!
//! `PGSPATE_TEST_FAULTS=5` runs five faults of each kind. For each run mode it spreads five times
//! as many faults over all messages. A failed trial is printed in the form that
//! `PGSPATE_TEST_FAULTS_REPLAY` takes to run it again.

mod scene;
mod trial;

use std::collections::BTreeMap;
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use self::scene::{SlotServers, SlotTrialServer, WHOLE_HISTORY};
use self::trial::{FaultlessRun, SlotOutcome, SlotRunMode, SlotTrial, StallEnd};
use crate::plan::{Fault, FaultPlace, FaultPlan};
use crate::run::{PATIENCE, finish_within, wait_until};
use crate::test_random::{TestRandom, long_run};

/// The number of trials that run in parallel. A trial spends most of its time waiting.
const PARALLEL_TRIALS: usize = 2;

/// How many times more faults are spread over all messages than there are faults of each kind.
const SPREAD_FACTOR: u64 = 5;

const CUTS: [Fault; 3] = [Fault::Cut, Fault::CutInside, Fault::CutAfter];
const MODES: [SlotRunMode; 3] = [SlotRunMode::Stream, SlotRunMode::Snapshot, SlotRunMode::Follow];
const SERVERS: [SlotTrialServer; 2] = [SlotTrialServer::Source, SlotTrialServer::Target];

/// Sends the command SIGTERM.
pub(crate) fn interrupt(child: &Child) {
    Command::new("kill").arg(child.id().to_string()).status().unwrap();
}

/// The measurements of a run without a fault, for each mode.
type FaultlessRuns = BTreeMap<SlotRunMode, FaultlessRun>;

/// Runs the trials that `trials` creates from the measurements, several in parallel. Prints the
/// number of trials for each kind and outcome. Fails if a trial broke a rule.
fn run_all(trials: impl FnOnce(&FaultlessRuns) -> Vec<SlotTrial>) {
    let first = SlotServers::new();
    let measures: FaultlessRuns =
        MODES.into_iter().map(|mode| (mode, mode.measure(&first))).collect();
    println!("{measures:?}");
    let trials = trials(&measures);
    let count = trials.len();
    let trials = Mutex::new(trials.into_iter().enumerate());
    let ends = Mutex::new((BTreeMap::<(String, SlotOutcome), usize>::new(), Vec::new()));
    let work = |scene: SlotServers| loop {
        let next = trials.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some((nth, trial)) = next else { return };
        let outcome = trial.run(&scene, measures[&trial.mode]);
        println!("{} of {count}: {trial}: {:?}", nth + 1, outcome.as_ref().ok());
        let mut ends = ends.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Ok(outcome) => *ends.0.entry((trial.kind(), outcome)).or_default() += 1,
            Err(broken) => {
                eprintln!("broken rule: {broken}");
                ends.1.push(broken);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..PARALLEL_TRIALS.min(count / 4) {
            scope.spawn(|| work(SlotServers::new()));
        }
        work(first);
    });
    let (ends, broken) = ends.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{count} trials, {} of them broke a rule", broken.len());
    for ((what, end), count) in &ends {
        println!("{count:>6}  {what}: {end:?}");
    }
    assert!(
        broken.is_empty(),
        "{} of {count} trials broke a rule:\n{}",
        broken.len(),
        broken.join("\n")
    );
}

impl FaultlessRun {
    fn messages(&self, end: SlotTrialServer) -> u64 {
        match end {
            SlotTrialServer::Source => self.source,
            SlotTrialServer::Target => self.target,
        }
    }
}

fn trial_of(mode: SlotRunMode, end: SlotTrialServer, fault: Fault, at: FaultPlace) -> SlotTrial {
    SlotTrial { mode, end, plan: FaultPlan::new(fault, at), then: StallEnd::Resume }
}

fn trial_with_stall(
    mode: SlotRunMode,
    end: SlotTrialServer,
    at: FaultPlace,
    then: StallEnd,
) -> SlotTrial {
    SlotTrial { then, ..trial_of(mode, end, Fault::Stall, at) }
}

/// Returns a random message among the messages of a run without a fault.
fn random_message(
    random: &mut TestRandom,
    measures: &FaultlessRuns,
    mode: SlotRunMode,
    end: SlotTrialServer,
) -> FaultPlace {
    FaultPlace::Message(random.among(1..=measures[&mode].messages(end)))
}

/// Cuts connections at random messages, for each mode and each server.
#[test]
fn cut_connections_lose_and_double_no_event() {
    let mut random = TestRandom::for_test_run(21);
    run_all(|measures| {
        let mut trials = Vec::new();
        for nth in 0..long_run().unwrap_or(2) {
            for (mode, end) in MODES.into_iter().flat_map(|mode| SERVERS.map(|end| (mode, end))) {
                let at = random_message(&mut random, measures, mode, end);
                let mut trial = trial_of(mode, end, random.pick(&CUTS), at);
                if nth % 3 == 1 {
                    let away = Duration::from_millis(random.among(0..=1500));
                    trial.plan = trial.plan.away(away);
                }
                trials.push(trial);
            }
        }
        trials
    });
}

/// Connections that are lost on one side, that stall, or that lose the reply to a commit.
#[test]
fn stalled_connections_lose_and_double_no_event() {
    let mut random = TestRandom::for_test_run(22);
    run_all(|measures| {
        let mut trials = Vec::new();
        for _ in 0..long_run().unwrap_or(1) {
            for (mode, end) in MODES.into_iter().flat_map(|mode| SERVERS.map(|end| (mode, end))) {
                let mut at = || random_message(&mut random, measures, mode, end);
                trials.push(trial_of(mode, end, Fault::Lose, at()));
                trials.push(trial_with_stall(mode, end, at(), StallEnd::Resume));
                trials.push(trial_with_stall(mode, end, at(), StallEnd::Cut));
            }
            for mode in MODES {
                let at = FaultPlace::Commit(random.among(1..=measures[&mode].commits));
                trials.push(trial_of(mode, SlotTrialServer::Target, Fault::SwallowCommit, at));
            }
        }
        trials
    });
}

/// Kills the command, its sessions and both servers.
#[test]
fn kills_and_terminations_lose_and_double_no_event() {
    let mut random = TestRandom::for_test_run(23);
    run_all(|measures| {
        let mut trials = Vec::new();
        for nth in 0..long_run().unwrap_or(1) {
            for mode in MODES {
                let other =
                    if nth % 2 == 0 { SlotTrialServer::Source } else { SlotTrialServer::Target };
                for (end, then) in [
                    (other, StallEnd::Kill),
                    (SlotTrialServer::Source, StallEnd::Terminate),
                    (SlotTrialServer::Target, StallEnd::Terminate),
                    (other, StallEnd::KillSource),
                    (other, StallEnd::KillTarget),
                ] {
                    trials.push(trial_with_stall(
                        mode,
                        end,
                        random_message(&mut random, measures, mode, end),
                        then,
                    ));
                }
            }
        }
        trials
    });
}

/// Connections that are lost again during reconnection, and networks that lose every connection.
#[test]
fn repeated_connection_losses_lose_and_double_no_event() {
    let mut random = TestRandom::for_test_run(24);
    run_all(|measures| {
        let mut trials = Vec::new();
        for _ in 0..long_run().unwrap_or(1) {
            for (mode, end) in MODES.into_iter().flat_map(|mode| SERVERS.map(|end| (mode, end))) {
                let at = random_message(&mut random, measures, mode, end);
                let then = StallEnd::CutAgain(random.among(1..=120));
                trials.push(trial_with_stall(mode, end, at, then));
                // A following stream survives only if one batch can be applied between two losses.
                let every = match (mode, end) {
                    (SlotRunMode::Follow, SlotTrialServer::Source) => 300..=700,
                    (SlotRunMode::Follow, SlotTrialServer::Target) => 700..=1500,
                    _ => 40..=400,
                };
                let every = FaultPlace::Every(random.among(every));
                trials.push(trial_of(mode, end, random.pick(&CUTS), every));
            }
        }
        trials
    });
}

/// Connections that stop transferring data and are never closed. The tests of `load` cover the
/// connections that copy rows of a snapshot into the target.
#[test]
fn silent_connections_lose_and_double_no_event() {
    let mut random = TestRandom::for_test_run(26);
    run_all(|measures| {
        let mut trials = Vec::new();
        for _ in 0..long_run().unwrap_or(1) {
            for (mode, end) in MODES.into_iter().flat_map(|mode| SERVERS.map(|end| (mode, end))) {
                let at = random_message(&mut random, measures, mode, end);
                if (mode, end) != (SlotRunMode::Snapshot, SlotTrialServer::Target) {
                    trials.push(trial_with_stall(mode, end, at, StallEnd::Silence));
                }
            }
        }
        trials
    });
}

/// A run ends when its slot is dropped. The next snapshot copies exactly the source's rows.
#[test]
fn a_dropped_slot_ends_the_run_and_a_new_snapshot_is_complete() {
    let scene = SlotServers::new();
    for part in 0..3 {
        scene.reset();
        scene.make_slot();
        scene.fill();
        scene.change(0..4 * part);
        let child = scene.start_plain("--follow");
        let is_there = "select count(*) > 0 from parent";
        wait_until("the stream runs", || scene.ask(SlotTrialServer::Target, is_there) == "t");
        scene.drop_slot();
        scene.change(4 * part..WHOLE_HISTORY.end);
        let run = finish_within(child, PATIENCE).unwrap_or_else(|run| panic!("{}", run.stderr));
        assert_eq!(run.status, Some(2), "{}", run.stderr);
        assert!(run.stderr.contains("does not exist any more"), "{}", run.stderr);
        assert_eq!(scene.repeated_writes(), None);
        // Follow the hint of the error.
        scene.ask(SlotTrialServer::Target, "truncate parent, child, news, whole");
        let run = finish_within(scene.start_plain("--stream new --snapshot"), PATIENCE);
        assert!(run.is_ok_and(|run| run.status == Some(0)));
        assert_eq!(scene.difference(), None);
    }
}

/// With `PGSPATE_TEST_FAULTS=N`, faults hit messages from the first to the last. The kinds of
/// faults alternate, beginning with a random one. With `PGSPATE_TEST_FAULTS_REPLAY='stream source
/// cut@137'`, that trial runs ten times.
#[test]
fn faults_from_the_first_message_to_the_last() {
    if let Ok(trial) = std::env::var("PGSPATE_TEST_FAULTS_REPLAY") {
        let trial: SlotTrial = trial.parse().unwrap();
        return run_all(|_| vec![trial; 10]);
    }
    let Some(count) = long_run() else {
        println!("not tested: set PGSPATE_TEST_FAULTS=N to run this test");
        return;
    };
    let turn = TestRandom::for_test_run(25).number() % 1000;
    run_all(|measures| {
        let mut trials = Vec::new();
        for (mode, end) in MODES.into_iter().flat_map(|mode| SERVERS.map(|end| (mode, end))) {
            let all = measures[&mode].messages(end);
            let step = (all / (SPREAD_FACTOR * count)).max(1);
            for nth in (1 + turn % step..=all).step_by(step as usize) {
                let at = FaultPlace::Message(nth);
                trials.push(match CUTS.get((nth / step + turn) as usize % (CUTS.len() + 1)) {
                    Some(cut) => trial_of(mode, end, *cut, at),
                    None => trial_with_stall(mode, end, at, StallEnd::Cut),
                });
            }
        }
        trials
    });
}
