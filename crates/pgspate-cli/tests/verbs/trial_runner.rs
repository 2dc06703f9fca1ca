//! Runs trials, several in parallel, and counts their outcomes.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde_json::json;

use crate::scene::{CommandScene, STALL_TIMEOUT};
use crate::test_random::long_run;
use crate::trial::{CommandOutcome, CommandTrial};

/// The number of trials that run in parallel. A trial spends most of its time waiting.
const PARALLEL_TRIALS: usize = 2;
const PARALLEL_TRIALS_IN_LONG_RUN: usize = 4;

/// Runs all trials, and fails if a rule was broken.
#[track_caller]
pub(crate) fn run_all(trials: Vec<CommandTrial>) {
    let count = trials.len();
    let trials = Mutex::new(trials.into_iter().enumerate());
    let ended = Mutex::new(Vec::new());
    let run_trials = || {
        let mut scene = CommandScene::new();
        loop {
            let next = trials.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((nth, trial)) = next else { return };
            let outcome = trial.run(&mut scene);
            match &outcome {
                Ok(outcome) => println!("{} of {count}: {outcome:?}", nth + 1),
                Err(broken) => {
                    println!("{} of {count}: broken rule: {broken}", nth + 1);
                    // The broken trial may have left objects that would disturb the next trial.
                    scene = CommandScene::new();
                }
            }
            record(trial, &outcome);
            ended.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
        }
    };
    thread::scope(|scope| {
        let most = if long_run().is_some() { PARALLEL_TRIALS_IN_LONG_RUN } else { PARALLEL_TRIALS };
        for _ in 0..count.clamp(1, most) {
            scope.spawn(run_trials);
        }
    });
    print_and_check(ended.into_inner().unwrap_or_else(PoisonError::into_inner));
}

/// Appends a line to the file of `PGSPATE_TEST_RECORD`, if that is set.
fn record(trial: CommandTrial, outcome: &Result<CommandOutcome, String>) {
    let Ok(path) = std::env::var("PGSPATE_TEST_RECORD") else { return };
    let line = match outcome {
        Ok(it) => json!({
            "trial": it.trial, "fired": it.fired, "seconds": it.seconds,
            "usual_seconds": it.usual_seconds, "status": it.status, "again": it.again,
            "stall_timeout": STALL_TIMEOUT,
        }),
        Err(broken) => json!({"trial": trial.to_string(), "broken": broken}),
    };
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    writeln!(file, "{line}").unwrap();
}

/// Prints the counts, and fails if a rule was broken.
#[track_caller]
fn print_and_check(ended: Vec<Result<CommandOutcome, String>>) {
    let mut counts: BTreeMap<String, [usize; 4]> = BTreeMap::new();
    let mut broken = Vec::new();
    for outcome in ended {
        match outcome {
            Ok(it) => {
                let count = counts.entry(it.fault_kind).or_default();
                count[0] += 1;
                count[1] += usize::from(it.fired);
                count[2] += usize::from(it.again == 0);
                let limit = it.usual_seconds + 2.0 * STALL_TIMEOUT as f64;
                count[3] += usize::from(it.seconds > limit);
            }
            Err(what) => broken.push(what),
        }
    }
    println!(
        "columns: trials; trials whose fault happened; trials without a repeated run; trials that \
         took longer than the usual time plus twice the stall timeout"
    );
    for (fault_kind, [all, fired, done, late]) in &counts {
        println!("{all:>6} {fired:>6} {done:>6} {late:>6}  {fault_kind}");
    }
    assert!(broken.is_empty(), "{} trials broke a rule:\n{}", broken.len(), broken.join("\n"));
}
