//! Runs trials, several in parallel, and counts their outcomes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::input::RowKinds;
use crate::load_checks::LoadOutcome;
use crate::scene::LoadFaultScene;
use crate::trial::LoadTrial;

/// The number of trials that run in parallel. A trial spends most of its time waiting.
const PARALLEL_TRIALS: usize = 2;
/// The fewest trials for which another thread with its own databases is started.
const TRIALS_PER_SCENE_MIN: usize = 4;

/// The number of trials for each group and outcome.
#[derive(Default)]
pub(crate) struct TrialTally {
    ends: BTreeMap<(String, LoadOutcome), usize>,
    broken: Vec<String>,
}

/// Runs all trials, and fails if a rule was broken.
#[track_caller]
pub(crate) fn run_all(trials: impl IntoIterator<Item = LoadTrial>) {
    let trials = trials.into_iter().collect::<Vec<_>>();
    let count = trials.len();
    let trials = Mutex::new(trials.into_iter().enumerate());
    let tally = Mutex::new(TrialTally::default());
    let work = || {
        let mut scenes: HashMap<(RowKinds, bool), LoadFaultScene> = HashMap::new();
        loop {
            let next = trials.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((nth, trial)) = next else { return };
            println!("{} of {count}: {trial}", nth + 1);
            let (rows, needs_server) = (trial.settings.rows, trial.then.needs_server());
            let scene = scenes.entry((rows, needs_server)).or_insert_with(|| match needs_server {
                true => LoadFaultScene::with_server(rows, ""),
                false => LoadFaultScene::new(rows),
            });
            let end = trial.run(scene);
            println!(
                "{} of {count}: {}",
                nth + 1,
                match &end {
                    Ok(end) => format!("{end:?}"),
                    Err(_) => "broken".to_owned(),
                }
            );
            tally.lock().unwrap_or_else(PoisonError::into_inner).add(&trial.group(), end);
        }
    };
    thread::scope(|scope| {
        for _ in 0..(count / TRIALS_PER_SCENE_MIN).clamp(1, PARALLEL_TRIALS) {
            scope.spawn(work);
        }
    });
    tally.into_inner().unwrap_or_else(PoisonError::into_inner).close();
}

impl TrialTally {
    pub(crate) fn add(&mut self, what: &str, result: Result<LoadOutcome, String>) {
        match result {
            Ok(end) => *self.ends.entry((what.to_owned(), end)).or_default() += 1,
            Err(broken) => {
                eprintln!("broken rule: {broken}");
                self.broken.push(broken);
            }
        }
    }

    /// Prints the counts, and fails if a rule was broken.
    #[track_caller]
    pub(crate) fn close(self) {
        let trials = self.ends.values().sum::<usize>() + self.broken.len();
        println!("{trials} trials, {} of them broke a rule", self.broken.len());
        for ((what, end), count) in &self.ends {
            println!("{count:>6}  {what}: {end:?}");
        }
        assert!(self.broken.is_empty(), "{}", self.broken.join("\n"));
    }
}
