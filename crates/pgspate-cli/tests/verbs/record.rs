//! Runs trials, some at the same time, and counts how they ended.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde_json::json;

use crate::chance::long_run;
use crate::scene::{CommandScene, STALL_TIMEOUT};
use crate::trial::{CommandOutcome, CommandTrial};

/// Trials at the same time: much of one is waiting.
const AT_ONCE: usize = 2;
const AT_ONCE_IN_LONG_RUN: usize = 4;

/// Runs all of them, and fails where a rule was broken.
#[track_caller]
pub(crate) fn run_all(trials: Vec<CommandTrial>) {
    let count = trials.len();
    let trials = Mutex::new(trials.into_iter().enumerate());
    let ended = Mutex::new(Vec::new());
    let work = || {
        let mut scene = CommandScene::new();
        loop {
            let next = trials.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((nth, trial)) = next else { return };
            let outcome = trial.run(&mut scene);
            match &outcome {
                Ok(outcome) => println!("{} of {count}: {outcome:?}", nth + 1),
                Err(broken) => {
                    println!("{} of {count}: BROKEN {broken}", nth + 1);
                    // What is left of it would spoil the next.
                    scene = CommandScene::new();
                }
            }
            record(trial, &outcome);
            ended.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
        }
    };
    thread::scope(|scope| {
        let most = if long_run().is_some() { AT_ONCE_IN_LONG_RUN } else { AT_ONCE };
        for _ in 0..count.clamp(1, most) {
            scope.spawn(work);
        }
    });
    close(ended.into_inner().unwrap_or_else(PoisonError::into_inner));
}

/// Adds a line to the record, where one is kept.
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

/// Prints the count, and fails where a rule was broken.
#[track_caller]
fn close(ended: Vec<Result<CommandOutcome, String>>) {
    let mut counts: BTreeMap<String, [usize; 4]> = BTreeMap::new();
    let mut broken = Vec::new();
    for outcome in ended {
        match outcome {
            Ok(it) => {
                let count = counts.entry(it.sort).or_default();
                count[0] += 1;
                count[1] += usize::from(it.fired);
                count[2] += usize::from(it.again == 0);
                let limit = it.usual_seconds + 2.0 * STALL_TIMEOUT as f64;
                count[3] += usize::from(it.seconds > limit);
            }
            Err(what) => broken.push(what),
        }
    }
    println!("trials, of which disturbed, done without another run, later than twice the limit:");
    for (sort, [all, fired, done, late]) in &counts {
        println!("{all:>6} {fired:>6} {done:>6} {late:>6}  {sort}");
    }
    assert!(broken.is_empty(), "{} broken:\n{}", broken.len(), broken.join("\n"));
}
