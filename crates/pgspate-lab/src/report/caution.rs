//! The warning that results are too small to judge.
//!
//! A load has costs that do not grow with its data: sessions, plans and the ledger. In a trial of
//! less than a second they decide who is faster, and for larger data they mean nothing.

use super::words;
use crate::dataset::DataKind;
use crate::experiment::{Experiment, Unit};
use crate::results::Results;
use crate::spread::Spread;

/// The least seconds of a typical trial whose result is worth a judgement: a tenth of a second of
/// fixed costs is then 3 percent.
pub(super) const SECONDS_LEAST: f64 = 3.0;
/// The seconds of a typical trial at the scale that the warning names.
const SECONDS_WANTED: f64 = 10.0;

/// Returns the warning in sentences if typical trials were too short to judge.
pub(super) fn too_small(experiment: &dyn Experiment, results: &Results) -> Option<String> {
    let seconds = |levels: Vec<(&str, &str)>| results.median(&levels, "seconds");
    let trials = results.trials().into_iter();
    let typical = Spread::of(trials.filter_map(|trial| seconds(trial.levels().collect())))?.median;
    if typical >= SECONDS_LEAST {
        return None;
    }
    let conditions = &results.lines().first()?.conditions;
    let advice = match conditions.data.kind {
        DataKind::Files => "Measure files that load for ten seconds or more.".to_owned(),
        kind => format!(
            "Measure at a larger scale: pgspate lab run {}{} --scale {} --results DIR",
            experiment.name(),
            if kind == DataKind::Tpch { " --data tpch" } else { "" },
            larger_scale(conditions.scale, typical)
        ),
    };
    Some(format!(
        "Too small to judge: a typical trial took {}, so the fixed costs of a start decide which \
         is faster. {advice}",
        words::value(typical, Unit::Seconds)
    ))
}

/// Returns the scale at which a trial takes about [`SECONDS_WANTED`], rounded up to one digit.
fn larger_scale(scale: f64, seconds: f64) -> String {
    let wanted = (scale * SECONDS_WANTED / seconds.max(1e-3)).min(1000.0);
    let power = wanted.log10().floor();
    let digit = (wanted / 10f64.powf(power) - 1e-9).ceil();
    let decimals = (-power).max(0.0) as usize;
    format!("{:.decimals$}", digit * 10f64.powf(power))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::experiment::tests::SampleExperiment;
    use crate::results::tests::line;

    #[test]
    fn short_trials_are_too_small_to_judge() {
        let said = |seconds: [f64; 3]| {
            let ways = ["a", "b", "c"].into_iter().zip(seconds);
            let lines = ways.map(|(way, seconds)| line(&[("way", way)], 0, seconds)).collect();
            too_small(&SampleExperiment, &Results::new(lines, Path::new(".")))
        };
        assert_eq!(
            said([0.1, 0.5, 9.0]).unwrap(),
            "Too small to judge: a typical trial took 0.50 s, so the fixed costs of a start decide \
             which is faster. Measure at a larger scale: pgspate lab run sample --scale 10 \
             --results DIR"
        );
        // One short trial beside longer ones is a fast contender.
        assert_eq!(said([0.1, 3.0, 9.0]), None);
        assert_eq!(too_small(&SampleExperiment, &Results::new(Vec::new(), Path::new("."))), None);
    }

    #[test]
    fn the_advice_for_the_users_files_names_no_scale() {
        let mut one = line(&[("way", "a")], 0, 0.2);
        one.conditions.data.kind = DataKind::Files;
        let said = too_small(&SampleExperiment, &Results::new(vec![one], Path::new(".")));
        let said = said.unwrap();
        assert!(said.ends_with("Measure files that load for ten seconds or more."), "{said}");
    }

    #[test]
    fn the_larger_scale_has_one_digit() {
        assert_eq!(larger_scale(0.01, 0.43), "0.3");
        assert_eq!(larger_scale(0.002, 1.0), "0.02");
        assert_eq!(larger_scale(0.1, 1.0), "1");
        assert_eq!(larger_scale(0.5, 1.0), "5");
        assert_eq!(larger_scale(1.0, 0.000_01), "1000");
    }
}
