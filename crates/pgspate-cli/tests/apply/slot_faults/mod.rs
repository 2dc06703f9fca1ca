//! Replication slots while something goes wrong, on either side: no event is lost, and none is
//! applied twice.
//!
//! With `PGSPATE_TEST_FAULTS=5` there are so many faults of each sort, and of each sort of run five
//! times as many that are spread over all of its messages; what fails is printed as it can be run
//! again, with `PGSPATE_TEST_FAULTS_REPLAY`.

mod scene;
mod trial;

use std::collections::BTreeMap;
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use self::scene::{ALL, End, Scene};
use self::trial::{Measure, Mode, Outcome, Then, Trial};
use crate::chance::{Chance, long_run};
use crate::plan::{At, Fault, Plan};
use crate::run::{PATIENCE, finish_within, wait_until};

/// Much of a trial is waiting.
const AT_ONCE: usize = 2;

/// So many times more faults are spread over all messages than there are of each sort.
const SPREAD: u64 = 5;

const CUTS: [Fault; 3] = [Fault::Cut, Fault::CutInside, Fault::CutAfter];
const MODES: [Mode; 3] = [Mode::Stream, Mode::Snapshot, Mode::Follow];
const ENDS: [End; 2] = [End::Source, End::Target];

/// Tells the command to stop.
fn interrupt(child: &Child) {
    Command::new("kill").arg(child.id().to_string()).status().unwrap();
}

/// What the runs of each mode are without a fault.
type Measures = BTreeMap<Mode, Measure>;

/// Runs the trials that are made of the measures, some at a time, counts how they ended, and fails
/// where a rule was broken.
fn run_all(trials: impl FnOnce(&Measures) -> Vec<Trial>) {
    let first = Scene::new();
    let measures: Measures = MODES.into_iter().map(|mode| (mode, mode.measure(&first))).collect();
    println!("{measures:?}");
    let trials = trials(&measures);
    let count = trials.len();
    let trials = Mutex::new(trials.into_iter().enumerate());
    let ends = Mutex::new((BTreeMap::<(String, Outcome), usize>::new(), Vec::new()));
    let work = |scene: Scene| loop {
        let next = trials.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some((nth, trial)) = next else { return };
        let outcome = trial.run(&scene, measures[&trial.mode]);
        println!("{} of {count}: {trial}: {:?}", nth + 1, outcome.as_ref().ok());
        let mut ends = ends.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Ok(outcome) => *ends.0.entry((trial.sort(), outcome)).or_default() += 1,
            Err(broken) => {
                eprintln!("BROKEN {broken}");
                ends.1.push(broken);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..AT_ONCE.min(count / 4) {
            scope.spawn(|| work(Scene::new()));
        }
        work(first);
    });
    let (ends, broken) = ends.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{count} trials, {} of them broke a rule", broken.len());
    for ((what, end), count) in &ends {
        println!("{count:>6}  {what}: {end:?}");
    }
    assert!(broken.is_empty(), "{} of {count}:\n{}", broken.len(), broken.join("\n"));
}

impl Measure {
    fn messages(&self, end: End) -> u64 {
        match end {
            End::Source => self.source,
            End::Target => self.target,
        }
    }
}

fn trial(mode: Mode, end: End, fault: Fault, at: At) -> Trial {
    Trial { mode, end, plan: Plan::new(fault, at), then: Then::Resume }
}

fn stall(mode: Mode, end: End, at: At, then: Then) -> Trial {
    Trial { then, ..trial(mode, end, Fault::Stall, at) }
}

/// A message of chance, of those that there are without a fault.
fn of_chance(chance: &mut Chance, measures: &Measures, mode: Mode, end: End) -> At {
    At::Message(chance.among(1..=measures[&mode].messages(end)))
}

/// Cuts at messages of chance, of each mode and side.
#[test]
fn connections_that_are_cut() {
    let mut chance = Chance::of_run(21);
    run_all(|measures| {
        let mut trials = Vec::new();
        for nth in 0..long_run().unwrap_or(2) {
            for (mode, end) in MODES.into_iter().flat_map(|mode| ENDS.map(|end| (mode, end))) {
                let at = of_chance(&mut chance, measures, mode, end);
                let mut trial = trial(mode, end, chance.pick(&CUTS), at);
                if nth % 3 == 1 {
                    let away = Duration::from_millis(chance.among(0..=1500));
                    trial.plan = trial.plan.away(away);
                }
                trials.push(trial);
            }
        }
        trials
    });
}

/// Connections that are lost on one side, that fall silent, or whose answer to a commit is lost.
#[test]
fn connections_that_stall() {
    let mut chance = Chance::of_run(22);
    run_all(|measures| {
        let mut trials = Vec::new();
        for _ in 0..long_run().unwrap_or(1) {
            for (mode, end) in MODES.into_iter().flat_map(|mode| ENDS.map(|end| (mode, end))) {
                let mut at = || of_chance(&mut chance, measures, mode, end);
                trials.push(trial(mode, end, Fault::Lose, at()));
                trials.push(stall(mode, end, at(), Then::Resume));
                trials.push(stall(mode, end, at(), Then::Cut));
            }
            for mode in MODES {
                let at = At::Commit(chance.among(1..=measures[&mode].commits));
                trials.push(trial(mode, End::Target, Fault::SwallowCommit, at));
            }
        }
        trials
    });
}

/// The command, its sessions and both servers come to an end.
#[test]
fn everybody_dies() {
    let mut chance = Chance::of_run(23);
    run_all(|measures| {
        let mut trials = Vec::new();
        for nth in 0..long_run().unwrap_or(1) {
            for mode in MODES {
                let other = if nth % 2 == 0 { End::Source } else { End::Target };
                for (end, then) in [
                    (other, Then::Kill),
                    (End::Source, Then::Terminate),
                    (End::Target, Then::Terminate),
                    (other, Then::KillSource),
                    (other, Then::KillTarget),
                ] {
                    trials.push(stall(
                        mode,
                        end,
                        of_chance(&mut chance, measures, mode, end),
                        then,
                    ));
                }
            }
        }
        trials
    });
}

/// Connections that are lost again while they are made anew, and networks in which that goes on.
#[test]
fn networks_that_are_bad() {
    let mut chance = Chance::of_run(24);
    run_all(|measures| {
        let mut trials = Vec::new();
        for _ in 0..long_run().unwrap_or(1) {
            for (mode, end) in MODES.into_iter().flat_map(|mode| ENDS.map(|end| (mode, end))) {
                let at = of_chance(&mut chance, measures, mode, end);
                let then = Then::CutAgain(chance.among(1..=120));
                trials.push(stall(mode, end, at, then));
                // A stream survives where there is time for what is done at once.
                let every = match (mode, end) {
                    (Mode::Follow, End::Source) => 300..=700,
                    (Mode::Follow, End::Target) => 700..=1500,
                    _ => 40..=400,
                };
                let every = At::Every(chance.among(every));
                trials.push(trial(mode, end, chance.pick(&CUTS), every));
            }
        }
        trials
    });
}

/// Connections over which nothing comes any more, and which nobody closes; but for those of the
/// loads that copy rows, which are the tests' of loads.
#[test]
fn connections_that_fall_silent() {
    let mut chance = Chance::of_run(26);
    run_all(|measures| {
        let mut trials = Vec::new();
        for _ in 0..long_run().unwrap_or(1) {
            for (mode, end) in MODES.into_iter().flat_map(|mode| ENDS.map(|end| (mode, end))) {
                let at = of_chance(&mut chance, measures, mode, end);
                if (mode, end) != (Mode::Snapshot, End::Target) {
                    trials.push(stall(mode, end, at, Then::Silence));
                }
            }
        }
        trials
    });
}

/// A slot that is dropped while its stream runs is the end of that, and the rows that come with
/// the next one are neither too few nor too many.
#[test]
fn a_slot_that_is_lost() {
    let scene = Scene::new();
    for part in 0..3 {
        scene.reset();
        scene.make_slot();
        scene.fill();
        scene.change(0..4 * part);
        let child = scene.start_plain("--follow");
        let is_there = "select count(*) > 0 from parent";
        wait_until("the stream runs", || scene.ask(End::Target, is_there) == "t");
        scene.drop_slot();
        scene.change(4 * part..ALL.end);
        let run = finish_within(child, PATIENCE).unwrap_or_else(|run| panic!("{}", run.stderr));
        assert_eq!(run.status, Some(2), "{}", run.stderr);
        assert!(run.stderr.contains("does not exist any more"), "{}", run.stderr);
        assert_eq!(scene.doubled(), None);
        // As the error says.
        scene.ask(End::Target, "truncate parent, child, news, whole");
        let run = finish_within(scene.start_plain("--stream new --snapshot"), PATIENCE);
        assert!(run.is_ok_and(|run| run.status == Some(0)));
        assert_eq!(scene.difference(), None);
    }
}

/// With `PGSPATE_TEST_FAULTS=N`: messages from the first to the last, with one of the faults in
/// turn, of which the first is of chance.
/// With `PGSPATE_TEST_FAULTS_REPLAY='stream source cut@137'`: that trial, ten times.
#[test]
fn faults_from_the_first_message_to_the_last() {
    if let Ok(trial) = std::env::var("PGSPATE_TEST_FAULTS_REPLAY") {
        let trial: Trial = trial.parse().unwrap();
        return run_all(|_| vec![trial; 10]);
    }
    let Some(count) = long_run() else {
        println!("not tested: this takes PGSPATE_TEST_FAULTS=N");
        return;
    };
    let turn = Chance::of_run(25).number() % 1000;
    run_all(|measures| {
        let mut trials = Vec::new();
        for (mode, end) in MODES.into_iter().flat_map(|mode| ENDS.map(|end| (mode, end))) {
            let all = measures[&mode].messages(end);
            let step = (all / (SPREAD * count)).max(1);
            for nth in (1 + turn % step..=all).step_by(step as usize) {
                let at = At::Message(nth);
                trials.push(match CUTS.get((nth / step + turn) as usize % (CUTS.len() + 1)) {
                    Some(cut) => trial(mode, end, *cut, at),
                    None => stall(mode, end, at, Then::Cut),
                });
            }
        }
        trials
    });
}
