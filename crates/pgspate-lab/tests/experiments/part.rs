//! An experiment of which only some trials are made, so that a test does not take a minute.

use pgspate::Result;
use pgspate_lab::report::figure::Figure;
use pgspate_lab::{Experiment, Factor, Ground, Outcome, Published, Results, Setup, Trial};

/// The trials of an experiment for which this is true.
pub(crate) struct Part(pub(crate) &'static dyn Experiment, pub(crate) fn(&Trial) -> bool);

impl Experiment for Part {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn title(&self) -> &'static str {
        self.0.title()
    }

    fn question(&self) -> &'static str {
        self.0.question()
    }

    fn published(&self) -> Published {
        self.0.published()
    }

    fn factors(&self, setup: &Setup) -> Vec<Factor> {
        self.0.factors(setup)
    }

    fn makes_sense(&self, trial: &Trial) -> bool {
        self.0.makes_sense(trial) && self.1(trial)
    }

    fn scale_default(&self) -> f64 {
        self.0.scale_default()
    }

    fn trial_seconds(&self, scale: f64) -> f64 {
        self.0.trial_seconds(scale)
    }

    fn settings(&self, trial: &Trial, ground: &Ground) -> Vec<(String, String)> {
        self.0.settings(trial, ground)
    }

    fn refusal(&self, trial: &Trial, ground: &Ground) -> Option<String> {
        self.0.refusal(trial, ground)
    }

    fn prepare(&self, ground: &Ground) -> Result<()> {
        self.0.prepare(ground)
    }

    fn run(&self, trial: &Trial, ground: &Ground) -> Result<Outcome> {
        self.0.run(trial, ground)
    }

    fn verify(&self, trial: &Trial, ground: &Ground, outcome: &mut Outcome) -> Result<()> {
        self.0.verify(trial, ground, outcome)
    }

    fn figures(&self, results: &Results) -> Vec<Figure> {
        self.0.figures(results)
    }

    fn answer(&self, results: &Results) -> String {
        self.0.answer(results)
    }
}
