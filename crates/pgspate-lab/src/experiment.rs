//! The trait of all experiments: question, factors, starting state, and measured part.
//!
//! An experiment cannot drop results: the runner writes every trial's outcome, whichever contender
//! it favours.

use std::time::Instant;

use pgspate::Result;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::comparison::Comparison;
use crate::context::TrialContext;
use crate::dataset::DataKind;
use crate::report::figure::Figure;
use crate::results::Results;

/// An experiment. It has no state: everything that a trial needs is in its [`TrialContext`].
pub trait Experiment: Sync {
    /// Returns the name for the command line.
    fn name(&self) -> &'static str;

    /// Returns the heading on the report page.
    fn title(&self) -> &'static str;

    /// Returns the question that it answers, as a sentence.
    fn question(&self) -> &'static str;

    /// Returns results that others have published for this question, with their source.
    fn published(&self) -> Option<PublishedResults> {
        None
    }

    /// Returns whether it accepts `--data`; otherwise it generates its own data.
    fn takes_data(&self) -> bool {
        false
    }

    /// Returns the heading when it loads `data`.
    fn title_with(&self, _data: DataKind) -> &'static str {
        self.title()
    }

    /// Returns the question when it loads `data`.
    fn question_with(&self, _data: DataKind) -> &'static str {
        self.question()
    }

    /// Returns what is varied; the first level of each factor is the baseline.
    fn factors(&self, setup: &LabRunSetup) -> Vec<Factor>;

    /// Returns whether the combination of levels is worth a trial. An experiment may choose to vary
    /// only one factor at a time.
    fn makes_sense(&self, _trial: &LabTrial) -> bool {
        true
    }

    /// Returns the default scale: about a minute per repeat on two processors. Scale 1 is the
    /// published size.
    fn scale_default(&self) -> f64;

    /// Estimates the seconds of one trial at a scale, for `lab list`.
    fn trial_seconds(&self, scale: f64) -> f64;

    /// Returns the names of the numbers that the report's table shows.
    fn columns(&self) -> Vec<&'static str> {
        vec!["seconds"]
    }

    /// Returns server settings that the trial needs, as in `postgresql.conf`. On the user's server,
    /// a trial with such settings is skipped.
    fn settings(&self, _trial: &LabTrial, _context: &TrialContext) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Returns why this server cannot run the trial, such as an old version or a missing privilege.
    fn refusal(&self, _trial: &LabTrial, _context: &TrialContext) -> Option<String> {
        None
    }

    /// Makes the starting state: files in [`TrialContext::scratch`], and tables. The runner calls
    /// it once for the lab's own server, and starts each trial with a copy of the data folder. On
    /// the user's server the runner calls it before each trial, in an empty schema. Existing files
    /// are complete and can be used.
    ///
    /// # Errors
    /// When the starting state cannot be made.
    fn prepare(&self, context: &TrialContext) -> Result<()>;

    /// Runs the measured part.
    ///
    /// # Errors
    /// When the trial is invalid. A refusal that the experiment expects is a result, not an error.
    fn run(&self, trial: &LabTrial, context: &TrialContext) -> Result<TrialOutcome>;

    /// Checks what the trial has written; not measured.
    ///
    /// # Errors
    /// When the contender has not written the expected rows.
    fn verify(
        &self,
        _trial: &LabTrial,
        _context: &TrialContext,
        _outcome: &mut TrialOutcome,
    ) -> Result<()> {
        Ok(())
    }

    /// Returns the figures of the report.
    fn figures(&self, results: &Results) -> Vec<Figure>;

    /// Returns the comparisons for the summary on top of the report: one for each case, with the
    /// fastest other contender.
    fn comparisons(&self, _results: &Results) -> Vec<Comparison> {
        Vec::new()
    }

    /// Returns the answer in one sentence with its numbers, whether or not they favour pgspate.
    fn answer(&self, results: &Results) -> String;
}

/// What is known before a run begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LabRunSetup {
    /// 1 is the published size.
    pub scale: f64,
    /// Whether the lab starts its own server, whose settings can differ between trials.
    pub is_own: bool,
    /// The data to load, if the experiment accepts `--data`.
    pub data: DataKind,
}

/// Published results of others.
#[derive(Debug, Clone)]
pub struct PublishedResults {
    /// Where the results were published.
    pub source: Publication,
    /// A sentence about what was measured, and where.
    pub setting: &'static str,
    /// Names of measurements, and their results.
    pub figures: Vec<(&'static str, &'static str)>,
}

/// A text that others have published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publication {
    /// Its author and title.
    pub title: &'static str,
    /// Its address.
    pub url: &'static str,
}

/// A factor: something that trials vary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Factor {
    /// Its name.
    pub name: &'static str,
    /// Its levels, the baseline first.
    pub levels: Vec<String>,
}

impl Factor {
    /// Creates a factor with these levels.
    pub fn new(name: &'static str, levels: &[&str]) -> Factor {
        Factor { name, levels: levels.iter().map(|level| (*level).to_owned()).collect() }
    }
}

/// One combination of levels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Map<String, Value>", into = "Map<String, Value>")]
pub struct LabTrial(Vec<(String, String)>);

impl From<Map<String, Value>> for LabTrial {
    fn from(map: Map<String, Value>) -> LabTrial {
        let level = |value: Value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        LabTrial(map.into_iter().map(|(factor, value)| (factor, level(value))).collect())
    }
}

impl From<LabTrial> for Map<String, Value> {
    fn from(trial: LabTrial) -> Map<String, Value> {
        trial.0.into_iter().map(|(factor, level)| (factor, Value::String(level))).collect()
    }
}

impl LabTrial {
    /// Creates a trial from factors and levels.
    pub fn of(levels: &[(&str, &str)]) -> LabTrial {
        let owned = |(factor, level): &(&str, &str)| ((*factor).to_owned(), (*level).to_owned());
        LabTrial(levels.iter().map(owned).collect())
    }

    /// Returns the level of a factor, or an empty text if the trial has no such factor.
    pub fn level(&self, factor: &str) -> &str {
        let found = self.0.iter().find(|(name, _)| name == factor);
        found.map_or("", |(_, level)| level.as_str())
    }

    /// Returns whether `factor` has this level.
    pub fn is(&self, factor: &str, level: &str) -> bool {
        self.level(factor) == level
    }

    /// Returns factors and levels in the experiment's order.
    pub fn levels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(factor, level)| (factor.as_str(), level.as_str()))
    }

    /// Returns the levels, joined by commas.
    pub fn label(&self) -> String {
        let levels: Vec<&str> = self.0.iter().map(|(_, level)| level.as_str()).collect();
        levels.join(", ")
    }

    /// Returns the levels in words: `pgspate, 2 lanes, autovacuum on`. If a level means nothing by
    /// itself, the factor's name is added.
    pub fn description(&self) -> String {
        let say = |(factor, level): (&str, &str)| match level {
            "none" if !factor.contains(' ') => format!("no {factor}"),
            "on" | "off" | "none" => format!("{factor} {level}"),
            _ if !level.bytes().all(|byte| byte.is_ascii_digit()) => level.to_owned(),
            "1" if factor.ends_with('s') => format!("1 {}", factor.trim_end_matches('s')),
            _ if factor.ends_with('s') => format!("{level} {factor}"),
            _ => format!("{factor} {level}"),
        };
        self.levels().map(say).collect::<Vec<_>>().join(", ")
    }

    /// Counts the factors that are not at their baseline.
    pub fn changed(&self, factors: &[Factor]) -> usize {
        let is_changed = |factor: &&Factor| {
            factor.levels.first().map(String::as_str) != Some(self.level(factor.name))
        };
        factors.iter().filter(is_changed).count()
    }

    /// Returns every combination of levels; the first factor varies slowest.
    pub fn product(factors: &[Factor]) -> Vec<LabTrial> {
        let mut trials = vec![LabTrial::default()];
        for factor in factors {
            let with = |trial: &LabTrial, level: &String| {
                let mut levels = trial.0.clone();
                levels.push((factor.name.to_owned(), level.clone()));
                LabTrial(levels)
            };
            trials = trials
                .iter()
                .flat_map(|trial| factor.levels.iter().map(move |level| with(trial, level)))
                .collect();
        }
        trials
    }
}

/// The unit of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Bytes.
    Bytes,
    /// Bytes per second.
    BytesPerSecond,
    /// A number of things.
    Count,
    /// Things per second.
    PerSecond,
    /// Percent.
    Percent,
    /// A plain number, such as the length of a queue or a ratio.
    Plain,
    /// Dollars.
    Dollars,
}

/// A named number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NamedNumber {
    /// Its name, in words.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// The unit of the value.
    pub unit: Unit,
}

/// A part of a trial with its duration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialPhase {
    /// Its name.
    pub name: String,
    /// Seconds.
    pub seconds: f64,
}

/// A number that a trial recorded several times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialSeries {
    /// Its name, in words.
    pub name: String,
    /// The unit of the values.
    pub unit: Unit,
    /// Points (x, value), such as (night, dead rows).
    pub points: Vec<(f64, f64)>,
}

/// A drawing that a trial made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialPicture {
    /// Its name, of letters, digits and hyphens.
    pub name: String,
    /// An SVG document.
    pub svg: String,
}

/// The result of a trial. The runner adds the server's counters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialOutcome {
    /// The phases in order. Their sum is the trial's number `seconds`.
    pub phases: Vec<TrialPhase>,
    /// Its numbers.
    pub numbers: Vec<NamedNumber>,
    /// Numbers recorded several times during the trial.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<TrialSeries>,
    /// Remarks for the report, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Drawings, stored in files beside the results.
    #[serde(skip)]
    pub pictures: Vec<TrialPicture>,
}

impl TrialOutcome {
    /// Runs `work` and records its duration as a phase.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn phase<T>(&mut self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let began = Instant::now();
        let done = work()?;
        self.phases
            .push(TrialPhase { name: name.to_owned(), seconds: began.elapsed().as_secs_f64() });
        Ok(done)
    }

    /// Returns the sum of all phases in seconds.
    pub fn seconds(&self) -> f64 {
        self.phases.iter().map(|phase| phase.seconds).sum()
    }

    /// Sets a number; replaces a number of this name.
    pub fn number(&mut self, name: &str, value: f64, unit: Unit) {
        self.numbers.retain(|number| number.name != name);
        self.numbers.push(NamedNumber { name: name.to_owned(), value, unit });
    }

    /// Sets a number, if it is known.
    pub fn number_if(&mut self, name: &str, value: Option<f64>, unit: Unit) {
        if let Some(value) = value {
            self.number(name, value, unit);
        }
    }

    /// Adds a point to a series.
    pub fn point(&mut self, name: &str, unit: Unit, at: f64, value: f64) {
        match self.series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push((at, value)),
            None => {
                let points = vec![(at, value)];
                self.series.push(TrialSeries { name: name.to_owned(), unit, points });
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::report::figure::{Bar, BarGroup, Bars, Plot};

    /// An experiment for tests of the report. Its trials are not run.
    pub(crate) struct SampleExperiment;

    impl Experiment for SampleExperiment {
        fn name(&self) -> &'static str {
            "sample"
        }

        fn title(&self) -> &'static str {
            "A sample"
        }

        fn question(&self) -> &'static str {
            "How fast is it?"
        }

        fn published(&self) -> Option<PublishedResults> {
            Some(PublishedResults {
                source: Publication { title: "A paper", url: "https://example.org/?a=1&b" },
                setting: "Elsewhere.",
                figures: vec![("one way", "5 s")],
            })
        }

        fn factors(&self, _setup: &LabRunSetup) -> Vec<Factor> {
            vec![Factor::new("way", &["a", "b", "c"])]
        }

        fn scale_default(&self) -> f64 {
            1.0
        }

        fn trial_seconds(&self, scale: f64) -> f64 {
            scale
        }

        fn prepare(&self, _context: &TrialContext) -> Result<()> {
            Ok(())
        }

        fn run(&self, _trial: &LabTrial, _context: &TrialContext) -> Result<TrialOutcome> {
            Ok(TrialOutcome::default())
        }

        fn figures(&self, results: &Results) -> Vec<Figure> {
            let bar = |seconds| Bar::measured("all", seconds);
            let bars = results.spread(&[], "seconds").map(bar).into_iter().collect();
            let groups = vec![BarGroup { name: String::new(), bars }];
            vec![Figure::new("Times", "", Plot::Bars(Bars { unit: None, groups }))]
        }

        fn answer(&self, _results: &Results) -> String {
            "It is fast.".to_owned()
        }
    }

    #[test]
    fn a_product_has_every_combination_once() {
        let factors = [Factor::new("a", &["1", "2"]), Factor::new("b", &["x", "y", "z"])];
        let trials = LabTrial::product(&factors);
        assert_eq!(trials.len(), 6);
        assert_eq!(trials[0], LabTrial::of(&[("a", "1"), ("b", "x")]));
        assert_eq!(trials[1].label(), "1, y");
        assert_eq!(trials[0].changed(&factors), 0);
        assert_eq!(trials[5].changed(&factors), 2);
        assert!(trials[5].is("b", "z") && trials[5].is("c", ""));
    }

    #[test]
    fn a_description_names_the_factors_of_bare_levels() {
        let levels =
            [("strategy", "pgspate"), ("lanes", "2"), ("autovacuum", "on"), ("batch", "10")];
        let said = LabTrial::of(&levels).description();
        assert_eq!(said, "pgspate, 2 lanes, autovacuum on, batch 10");
        let levels = [("clients", "1"), ("indexes", "none"), ("without index", "none")];
        assert_eq!(LabTrial::of(&levels).description(), "1 client, no indexes, without index none");
    }

    #[test]
    fn a_trial_reads_as_it_was_written() {
        let trial = LabTrial::of(&[("b", "x\"y"), ("a", "1")]);
        let text = serde_json::to_string(&trial).unwrap();
        assert_eq!(text, r#"{"b":"x\"y","a":"1"}"#);
        assert_eq!(serde_json::from_str::<LabTrial>(&text).unwrap(), trial);
    }

    #[test]
    fn phases_add_up_and_numbers_are_replaced() {
        let mut outcome = TrialOutcome::default();
        outcome.phase("load", || Ok(())).unwrap();
        outcome.phases.push(TrialPhase { name: "index".to_owned(), seconds: 2.0 });
        assert!(outcome.seconds() >= 2.0);
        outcome.number("rows", 1.0, Unit::Count);
        outcome.number("rows", 2.0, Unit::Count);
        assert_eq!(outcome.numbers.len(), 1);
        outcome.point("dead", Unit::Count, 1.0, 5.0);
        outcome.point("dead", Unit::Count, 2.0, 6.0);
        assert_eq!(outcome.series[0].points, [(1.0, 5.0), (2.0, 6.0)]);
    }
}
