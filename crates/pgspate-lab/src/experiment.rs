//! What an experiment is: its question, its factors, its starting state, and what is measured.
//!
//! An experiment never decides what is kept: every trial's outcome becomes a line, whichever
//! contender it favours.

use std::time::Instant;

use pgspate::Result;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::dataset::Data;
use crate::ground::Ground;
use crate::report::figure::Figure;
use crate::results::Results;

/// One thing to find out. It has no state of its own: what a trial needs is on its [`Ground`].
pub trait Experiment: Sync {
    /// The word by which it is run.
    fn name(&self) -> &'static str;

    /// Its name for people, in a few words.
    fn title(&self) -> &'static str;

    /// What it asks, as a sentence.
    fn question(&self) -> &'static str;

    /// What others have published of the same question.
    fn published(&self) -> Published;

    /// Whether it loads whatever data it is given, instead of data that belong to its question.
    fn takes_data(&self) -> bool {
        false
    }

    /// Its name with these data.
    fn title_with(&self, _data: Data) -> &'static str {
        self.title()
    }

    /// What it asks with these data.
    fn question_with(&self, _data: Data) -> &'static str {
        self.question()
    }

    /// What is varied; the first level of each is the baseline.
    fn factors(&self, setup: &Setup) -> Vec<Factor>;

    /// Whether a combination of levels is to be tried. Levels that differ from the baseline in one
    /// factor only are a design, too.
    fn makes_sense(&self, _trial: &Trial) -> bool {
        true
    }

    /// The scale that needs about a minute for each repeat on two processors; 1 is the published
    /// size.
    fn scale_default(&self) -> f64;

    /// About how many seconds a trial takes at a scale, for `list`.
    fn trial_seconds(&self, scale: f64) -> f64;

    /// What of a trial is shown in the report's table, by the numbers' names.
    fn columns(&self) -> Vec<&'static str> {
        vec!["seconds"]
    }

    /// Settings of the server that a trial needs, as in `postgresql.conf`. Trials with any are
    /// left out on a server that is not the lab's own.
    fn settings(&self, _trial: &Trial, _ground: &Ground) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Why this server cannot do a trial, if it cannot: a version too old, a right that is missing.
    fn refusal(&self, _trial: &Trial, _ground: &Ground) -> Option<String> {
        None
    }

    /// Makes the starting state: files in [`Ground::scratch`] and tables. On the lab's own server
    /// it is called once, and each trial begins with a copy of its data folder; on another it is
    /// called before each trial, in an empty schema. Files that are there already are right.
    ///
    /// # Errors
    /// Whatever keeps the trials from being run.
    fn prepare(&self, ground: &Ground) -> Result<()>;

    /// The measured part.
    ///
    /// # Errors
    /// Whatever makes the trial void. An outcome that is to be reported, such as a refusal that
    /// the experiment asks for, is none.
    fn run(&self, trial: &Trial, ground: &Ground) -> Result<Outcome>;

    /// Looks at what the trial left, outside of what is measured.
    ///
    /// # Errors
    /// The contender has not done what it was to do.
    fn verify(&self, _trial: &Trial, _ground: &Ground, _outcome: &mut Outcome) -> Result<()> {
        Ok(())
    }

    /// What the report draws.
    fn figures(&self, results: &Results) -> Vec<Figure>;

    /// The answer in one sentence, with its numbers, also where it is not in favour of pgspate.
    fn answer(&self, results: &Results) -> String;
}

/// What is known of a run before it begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setup {
    /// 1 is the published size.
    pub scale: f64,
    /// Whether the server is the lab's own, whose settings can be others for each trial.
    pub is_own: bool,
    /// Whose data are loaded, by an experiment that takes any.
    pub data: Data,
}

/// What others have published.
#[derive(Debug, Clone, Default)]
pub struct Published {
    /// On what, in a sentence.
    pub setting: &'static str,
    /// What was measured, and what came out.
    pub figures: Vec<(&'static str, &'static str)>,
}

/// What is varied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Factor {
    /// Its name.
    pub name: &'static str,
    /// Its levels, the baseline first.
    pub levels: Vec<String>,
}

impl Factor {
    /// A factor with these levels.
    pub fn new(name: &'static str, levels: &[&str]) -> Factor {
        Factor { name, levels: levels.iter().map(|level| (*level).to_owned()).collect() }
    }
}

/// One combination of levels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Map<String, Value>", into = "Map<String, Value>")]
pub struct Trial(Vec<(String, String)>);

impl From<Map<String, Value>> for Trial {
    fn from(map: Map<String, Value>) -> Trial {
        let level = |value: Value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        Trial(map.into_iter().map(|(factor, value)| (factor, level(value))).collect())
    }
}

impl From<Trial> for Map<String, Value> {
    fn from(trial: Trial) -> Map<String, Value> {
        trial.0.into_iter().map(|(factor, level)| (factor, Value::String(level))).collect()
    }
}

impl Trial {
    /// A trial from its factors and levels.
    pub fn of(levels: &[(&str, &str)]) -> Trial {
        let owned = |(factor, level): &(&str, &str)| ((*factor).to_owned(), (*level).to_owned());
        Trial(levels.iter().map(owned).collect())
    }

    /// The level of a factor; empty for a factor that it does not have.
    pub fn level(&self, factor: &str) -> &str {
        let found = self.0.iter().find(|(name, _)| name == factor);
        found.map_or("", |(_, level)| level.as_str())
    }

    /// Whether a factor has a level.
    pub fn is(&self, factor: &str, level: &str) -> bool {
        self.level(factor) == level
    }

    /// The factors and their levels, in the order of the experiment.
    pub fn levels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(factor, level)| (factor.as_str(), level.as_str()))
    }

    /// The levels, for people.
    pub fn label(&self) -> String {
        let levels: Vec<&str> = self.0.iter().map(|(_, level)| level.as_str()).collect();
        levels.join(", ")
    }

    /// How many factors are not at their baseline.
    pub fn changed(&self, factors: &[Factor]) -> usize {
        let is_changed = |factor: &&Factor| {
            factor.levels.first().map(String::as_str) != Some(self.level(factor.name))
        };
        factors.iter().filter(is_changed).count()
    }

    /// Every combination of levels; the first factor varies slowest.
    pub fn product(factors: &[Factor]) -> Vec<Trial> {
        let mut trials = vec![Trial::default()];
        for factor in factors {
            let with = |trial: &Trial, level: &String| {
                let mut levels = trial.0.clone();
                levels.push((factor.name.to_owned(), level.clone()));
                Trial(levels)
            };
            trials = trials
                .iter()
                .flat_map(|trial| factor.levels.iter().map(move |level| with(trial, level)))
                .collect();
        }
        trials
    }
}

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Bytes.
    Bytes,
    /// Bytes a second.
    BytesPerSecond,
    /// Things.
    Count,
    /// Things a second.
    PerSecond,
    /// A share of a hundred.
    Percent,
    /// A plain number, such as the length of a queue or a ratio.
    Plain,
    /// Dollars.
    Dollars,
}

/// A named number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Number {
    /// Its name, in words.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// What it counts.
    pub unit: Unit,
}

/// A part of a trial, and how long it took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// Seconds.
    pub seconds: f64,
}

/// A number that was looked at several times in the course of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Its name, in words.
    pub name: String,
    /// What its values count.
    pub unit: Unit,
    /// Where it was looked at, and its value there.
    pub points: Vec<(f64, f64)>,
}

/// A drawing that a trial made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Its name, of letters, digits and hyphens.
    pub name: String,
    /// An SVG document.
    pub svg: String,
}

/// What a trial came to. What the server counted meanwhile is added by the runner.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Its parts in their order. Their sum is the trial's number `seconds`.
    pub phases: Vec<Phase>,
    /// Its numbers.
    pub numbers: Vec<Number>,
    /// Numbers in the course of the trial.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Series>,
    /// What else is to be known, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Drawings; kept in files beside the results.
    #[serde(skip)]
    pub pictures: Vec<Picture>,
}

impl Outcome {
    /// Does something and keeps how long it took.
    ///
    /// # Errors
    /// Those of what is done.
    pub fn phase<T>(&mut self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let began = Instant::now();
        let done = work()?;
        self.phases.push(Phase { name: name.to_owned(), seconds: began.elapsed().as_secs_f64() });
        Ok(done)
    }

    /// Seconds of all phases.
    pub fn seconds(&self) -> f64 {
        self.phases.iter().map(|phase| phase.seconds).sum()
    }

    /// Adds a number; one of the same name is replaced.
    pub fn number(&mut self, name: &str, value: f64, unit: Unit) {
        self.numbers.retain(|number| number.name != name);
        self.numbers.push(Number { name: name.to_owned(), value, unit });
    }

    /// Adds a number, if it is known.
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
                self.series.push(Series { name: name.to_owned(), unit, points });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_has_every_combination_once() {
        let factors = [Factor::new("a", &["1", "2"]), Factor::new("b", &["x", "y", "z"])];
        let trials = Trial::product(&factors);
        assert_eq!(trials.len(), 6);
        assert_eq!(trials[0], Trial::of(&[("a", "1"), ("b", "x")]));
        assert_eq!(trials[1].label(), "1, y");
        assert_eq!(trials[0].changed(&factors), 0);
        assert_eq!(trials[5].changed(&factors), 2);
        assert!(trials[5].is("b", "z") && trials[5].is("c", ""));
    }

    #[test]
    fn a_trial_reads_as_it_was_written() {
        let trial = Trial::of(&[("b", "x\"y"), ("a", "1")]);
        let text = serde_json::to_string(&trial).unwrap();
        assert_eq!(text, r#"{"b":"x\"y","a":"1"}"#);
        assert_eq!(serde_json::from_str::<Trial>(&text).unwrap(), trial);
    }

    #[test]
    fn phases_add_up_and_numbers_are_replaced() {
        let mut outcome = Outcome::default();
        outcome.phase("load", || Ok(())).unwrap();
        outcome.phases.push(Phase { name: "index".to_owned(), seconds: 2.0 });
        assert!(outcome.seconds() >= 2.0);
        outcome.number("rows", 1.0, Unit::Count);
        outcome.number("rows", 2.0, Unit::Count);
        assert_eq!(outcome.numbers.len(), 1);
        outcome.point("dead", Unit::Count, 1.0, 5.0);
        outcome.point("dead", Unit::Count, 2.0, 6.0);
        assert_eq!(outcome.series[0].points, [(1.0, 5.0), (2.0, 6.0)]);
    }
}
