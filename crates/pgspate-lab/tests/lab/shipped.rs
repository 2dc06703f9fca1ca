//! Every experiment that is shipped, from its beginning to the page.

use pgspate_lab::{Setup, experiments};

#[test]
fn every_experiment_says_what_it_is() {
    let mut names: Vec<&str> = Vec::new();
    for experiment in experiments::ALL {
        assert!(!names.contains(&experiment.name()), "{}", experiment.name());
        names.push(experiment.name());
        assert!(experiment.question().ends_with('?'), "{}", experiment.question());
        assert!(!experiment.published().figures.is_empty());
        let setup = Setup { scale: experiment.scale_default(), is_own: true };
        for factor in experiment.factors(&setup) {
            assert!(!factor.levels.is_empty(), "{}", factor.name);
        }
    }
}
