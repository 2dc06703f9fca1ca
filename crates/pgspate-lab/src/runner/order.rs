//! The trials of a run, and their order.
//!
//! Both depend only on the experiment, the options and the seed. So a continued run has the same
//! trials in the same order.

use pgspate::{Error, ErrorKind, Result};

use crate::experiment::{Experiment, LabRunSetup, LabTrial};
use crate::random::SeededRandom;

/// Returns the combinations of levels that make sense, in the experiment's order.
pub(crate) fn trials(experiment: &dyn Experiment, setup: &LabRunSetup) -> Vec<LabTrial> {
    let mut trials = LabTrial::product(&experiment.factors(setup));
    trials.retain(|trial| experiment.makes_sense(trial));
    trials
}

/// Keeps the trials that match `--only`: for each named factor, one of its named levels.
pub(super) fn keep_wanted(
    trials: &mut Vec<LabTrial>,
    wanted: &[(String, String)],
    name: &str,
) -> Result<()> {
    for (factor, level) in wanted {
        if trials.iter().any(|trial| trial.is(factor, level)) {
            continue;
        }
        let mut known: Vec<&str> = trials.iter().map(|trial| trial.level(factor)).collect();
        known.sort_unstable();
        known.dedup();
        let (message, hint) = if known.iter().all(|level| level.is_empty()) {
            let first = trials.first().map(LabTrial::levels).into_iter().flatten();
            let factors: Vec<&str> = first.map(|(factor, _)| factor).collect();
            let message = format!("{name} has no factor \"{factor}\"");
            (message, format!("Its factors are {}.", factors.join(", ")))
        } else {
            let message = format!("{name} has no level \"{level}\" of its factor \"{factor}\"");
            (message, format!("Its levels are {}.", known.join("; ")))
        };
        return Err(Error::new(ErrorKind::Usage, message).hint(hint));
    }
    trials.retain(|trial| {
        wanted.iter().all(|(factor, _)| {
            let of_it = wanted.iter().filter(|(other, _)| other == factor);
            of_it.into_iter().any(|(factor, level)| trial.is(factor, level))
        })
    });
    Ok(())
}

/// Returns the number of trials of one repeat, and their estimated seconds.
pub fn run_time(experiment: &dyn Experiment, setup: &LabRunSetup) -> (usize, f64) {
    let trials = trials(experiment, setup).len();
    (trials, experiment.trial_seconds(setup.scale) * trials as f64)
}

/// Returns all trials of all repeats, each repeat in its own random order.
pub(super) fn order(
    trials: &[LabTrial],
    repeats: u32,
    seed: u64,
    name: &str,
) -> Vec<(u32, LabTrial)> {
    let mut all = Vec::new();
    for repeat in 0..repeats {
        let mut round = trials.to_vec();
        SeededRandom::new(seed, &format!("{name} {repeat}")).shuffle(&mut round);
        all.extend(round.into_iter().map(|trial| (repeat, trial)));
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_round_has_all_trials_in_an_order_of_its_own() {
        let trials: Vec<LabTrial> =
            (0..8).map(|nth| LabTrial::of(&[("n", &nth.to_string())])).collect();
        let all = order(&trials, 3, 1, "bulk");
        assert_eq!(all.len(), 24);
        let round = |repeat: u32| -> Vec<&LabTrial> {
            all.iter().filter(|it| it.0 == repeat).map(|it| &it.1).collect()
        };
        for repeat in 0..3 {
            let distinct: HashSet<&LabTrial> = round(repeat).into_iter().collect();
            assert_eq!(distinct.len(), 8);
        }
        assert_ne!(round(0), round(1));
        assert_eq!(all, order(&trials, 3, 1, "bulk"));
        assert_eq!(all[..8], order(&trials, 1, 1, "bulk"));
        assert_ne!(all, order(&trials, 3, 2, "bulk"));
    }

    #[test]
    fn only_keeps_the_trials_with_the_named_levels() {
        let factors = [("a", ["1", "2"]), ("b", ["x", "y"])];
        let all: Vec<LabTrial> = factors[0]
            .1
            .iter()
            .flat_map(|a| factors[1].1.iter().map(|b| LabTrial::of(&[("a", *a), ("b", *b)])))
            .collect();
        let left = |wanted: &[(&str, &str)]| {
            let mut trials = all.clone();
            let wanted: Vec<(String, String)> =
                wanted.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
            keep_wanted(&mut trials, &wanted, "toy").map(|()| trials.len())
        };
        assert_eq!(left(&[]).unwrap(), 4);
        assert_eq!(left(&[("a", "1")]).unwrap(), 2);
        assert_eq!(left(&[("a", "1"), ("a", "2"), ("b", "y")]).unwrap(), 2);
        let error = left(&[("a", "3")]).unwrap_err();
        assert_eq!(error.to_string(), "toy has no level \"3\" of its factor \"a\"");
        assert_eq!(error.hint_text(), Some("Its levels are 1; 2."));
        assert_eq!(left(&[("c", "3")]).unwrap_err().hint_text(), Some("Its factors are a, b."));
    }
}
