//! Which trials are made, and in which order.
//!
//! Both follow from the experiment, what was asked for and the seed, so that a run that goes on
//! after a stop has the same trials in the same order.

use pgspate::{Error, Kind, Result};

use crate::experiment::{Experiment, Setup, Trial};
use crate::random::Random;

/// The combinations of levels that make sense, in the experiment's order.
pub(crate) fn trials(experiment: &dyn Experiment, setup: &Setup) -> Vec<Trial> {
    let mut trials = Trial::product(&experiment.factors(setup));
    trials.retain(|trial| experiment.makes_sense(trial));
    trials
}

/// Leaves the trials that have, of each factor that is named, one of the levels named of it.
pub(super) fn only(trials: &mut Vec<Trial>, wanted: &[(String, String)], name: &str) -> Result<()> {
    for (factor, level) in wanted {
        if trials.iter().any(|trial| trial.is(factor, level)) {
            continue;
        }
        let mut known: Vec<&str> = trials.iter().map(|trial| trial.level(factor)).collect();
        known.sort_unstable();
        known.dedup();
        let (message, hint) = if known.iter().all(|level| level.is_empty()) {
            let first = trials.first().map(Trial::levels).into_iter().flatten();
            let factors: Vec<&str> = first.map(|(factor, _)| factor).collect();
            let message = format!("{name} has no factor \"{factor}\"");
            (message, format!("Its factors are {}.", factors.join(", ")))
        } else {
            let message = format!("{name} has no \"{level}\" for its factor \"{factor}\"");
            (message, format!("There are {}.", known.join("; ")))
        };
        return Err(Error::new(Kind::Usage, message).hint(hint));
    }
    trials.retain(|trial| {
        wanted.iter().all(|(factor, _)| {
            let of_it = wanted.iter().filter(|(other, _)| other == factor);
            of_it.into_iter().any(|(factor, level)| trial.is(factor, level))
        })
    });
    Ok(())
}

/// How many trials a repeat of an experiment has, and about how many seconds they take.
pub fn run_time(experiment: &dyn Experiment, setup: &Setup) -> (usize, f64) {
    let trials = trials(experiment, setup).len();
    (trials, experiment.trial_seconds(setup.scale) * trials as f64)
}

/// All trials of all repeats, each round in an order of its own.
pub(super) fn order(trials: &[Trial], repeats: u32, seed: u64, name: &str) -> Vec<(u32, Trial)> {
    let mut all = Vec::new();
    for repeat in 0..repeats {
        let mut round = trials.to_vec();
        Random::new(seed, &format!("{name} {repeat}")).shuffle(&mut round);
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
        let trials: Vec<Trial> = (0..8).map(|nth| Trial::of(&[("n", &nth.to_string())])).collect();
        let all = order(&trials, 3, 1, "bulk");
        assert_eq!(all.len(), 24);
        let round = |repeat: u32| -> Vec<&Trial> {
            all.iter().filter(|it| it.0 == repeat).map(|it| &it.1).collect()
        };
        for repeat in 0..3 {
            let distinct: HashSet<&Trial> = round(repeat).into_iter().collect();
            assert_eq!(distinct.len(), 8);
        }
        assert_ne!(round(0), round(1));
        assert_eq!(all, order(&trials, 3, 1, "bulk"));
        assert_eq!(all[..8], order(&trials, 1, 1, "bulk"));
        assert_ne!(all, order(&trials, 3, 2, "bulk"));
    }

    #[test]
    fn some_trials_are_enough() {
        let factors = [("a", ["1", "2"]), ("b", ["x", "y"])];
        let all: Vec<Trial> = factors[0]
            .1
            .iter()
            .flat_map(|a| factors[1].1.iter().map(|b| Trial::of(&[("a", *a), ("b", *b)])))
            .collect();
        let left = |wanted: &[(&str, &str)]| {
            let mut trials = all.clone();
            let wanted: Vec<(String, String)> =
                wanted.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
            only(&mut trials, &wanted, "toy").map(|()| trials.len())
        };
        assert_eq!(left(&[]).unwrap(), 4);
        assert_eq!(left(&[("a", "1")]).unwrap(), 2);
        assert_eq!(left(&[("a", "1"), ("a", "2"), ("b", "y")]).unwrap(), 2);
        let error = left(&[("a", "3")]).unwrap_err();
        assert_eq!(error.to_string(), "toy has no \"3\" for its factor \"a\"");
        assert_eq!(error.hint_text(), Some("There are 1; 2."));
        assert_eq!(left(&[("c", "3")]).unwrap_err().hint_text(), Some("Its factors are a, b."));
    }
}
