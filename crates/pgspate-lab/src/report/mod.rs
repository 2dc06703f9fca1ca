//! One page of everything that was measured: self-contained, and read without scripts.
//!
//! The page depends only on the lines of results, so anyone can make it again from them. All text
//! of the lines is escaped. A table shows every measured trial, also those without a figure,
//! whether or not they favour pgspate.

#[cfg(test)]
pub(crate) mod answers;
mod axis_unit;
mod bars;
mod caution;
pub mod figure;
mod lines;
mod reproduce;
mod scale;
mod section;
mod summary;
mod svg;
pub mod words;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use pgspate::file::write_whole;
use pgspate::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::dataset::DataKind;
use crate::experiment::{Experiment, LabRunSetup, LabTrial};
use crate::facts::Machine;
use crate::results::{ResultLine, Results, file_error, read};
use crate::runner;
use crate::spread::Spread;
use svg::escape;

const STYLE: &str = include_str!("page.css");
/// The number of colours in the style.
const COLOURS: usize = 8;

/// Writes the page for a folder with results of these experiments. Returns the number of trials.
///
/// # Errors
/// Fails if there are no results, if they cannot be read, or if the page cannot be written.
pub fn write(experiments: &[&dyn Experiment], folder: &Path, out: &Path) -> Result<usize> {
    let lines = read(folder)?;
    let page = page(experiments, &lines, folder)?;
    write_whole(out, page.as_bytes()).map_err(|error| file_error("write", out, error))?;
    Ok(lines.len())
}

/// An experiment's answer and medians, for `--json`.
#[derive(Debug, Clone, Serialize)]
pub struct ExperimentDigest {
    /// The experiment.
    pub experiment: &'static str,
    /// The question.
    pub question: &'static str,
    /// The scale of the data, where 1 is the published size; `None` for the user's own files.
    pub scale: Option<f64>,
    /// The answer in one sentence.
    pub answer: String,
    /// The warning that the results are too small to judge.
    pub caution: Option<String>,
    /// Its trials.
    pub trials: Vec<TrialDigest>,
}

/// A trial's numbers.
#[derive(Debug, Clone, Serialize)]
pub struct TrialDigest {
    /// The trial's levels.
    pub trial: LabTrial,
    /// The spreads of its numbers, by name.
    pub numbers: BTreeMap<String, Spread>,
}

/// Returns answers and medians from a folder with results of these experiments.
///
/// # Errors
/// Fails if the results cannot be read.
pub fn digests(experiments: &[&dyn Experiment], folder: &Path) -> Result<Vec<ExperimentDigest>> {
    let lines = read(folder)?;
    let all = experiments.iter().map(|it| (*it, results(*it, &lines, folder)));
    let measured = all.filter(|(_, results)| !results.is_empty());
    let digest = |(experiment, results): (&dyn Experiment, Results)| ExperimentDigest {
        experiment: experiment.name(),
        question: experiment.question_with(results.data().kind),
        scale: scale_of(&results),
        answer: experiment.answer(&results),
        caution: caution::too_small(experiment, &results),
        trials: results.trials().into_iter().map(|trial| trial_digest(trial, &results)).collect(),
    };
    Ok(measured.map(digest).collect())
}

fn scale_of(results: &Results) -> Option<f64> {
    let conditions = &results.lines().first()?.conditions;
    (conditions.data.kind != DataKind::Files).then_some(conditions.scale)
}

fn trial_digest(trial: &LabTrial, results: &Results) -> TrialDigest {
    let levels: Vec<(&str, &str)> = trial.levels().collect();
    let own = results.measured().filter(|line| line.trial == *trial);
    let names = own.flat_map(|line| &line.outcome.numbers).map(|number| number.name.as_str());
    let spread = |name: &str| Some((name.to_owned(), results.spread(&levels, name)?));
    TrialDigest { trial: trial.clone(), numbers: names.filter_map(spread).collect() }
}

/// Returns the page of these experiments as HTML.
///
/// # Errors
/// Fails if no experiment has a result.
pub fn page(
    experiments: &[&dyn Experiment],
    lines: &[ResultLine],
    folder: &Path,
) -> Result<String> {
    let all = experiments.iter().map(|it| (*it, results(*it, lines, folder)));
    let all: Vec<_> = all.filter(|(_, results)| !results.lines().is_empty()).collect();
    if all.is_empty() {
        let message = format!("there are no results in \"{}\"", folder.display());
        return Err(Error::new(ErrorKind::Usage, message).hint(
            "Measure first with `pgspate lab run bulk`, or name the folder with `--results`.",
        ));
    }
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Writing into PostgreSQL, measured</title>\n<style>\n{STYLE}{}</style>\n</head>\n\
         <body>\n",
        colours()
    );
    head(&all, &mut html);
    for (experiment, results) in &all {
        section::write(*experiment, results, &mut html);
    }
    html.push_str("</body>\n</html>\n");
    Ok(html)
}

/// Returns an experiment's lines in the order of its trials.
fn results(experiment: &dyn Experiment, lines: &[ResultLine], folder: &Path) -> Results {
    let own = lines.iter().filter(|line| line.experiment == experiment.name());
    let mut own: Vec<ResultLine> = own.cloned().collect();
    let scale = own.first().map_or(1.0, |line| line.conditions.scale);
    let data = own.first().map_or(DataKind::default(), |line| line.conditions.data.kind);
    let trials = runner::trials(experiment, &LabRunSetup { scale, is_own: true, data });
    own.sort_by_key(|line| {
        let nth = trials.iter().position(|trial| *trial == line.trial).unwrap_or(usize::MAX);
        (nth, line.repeat)
    });
    Results::new(own, folder)
}

/// Returns a CSS rule for each colour of bars, lines, marks and names.
fn colours() -> String {
    let mut rules = String::new();
    for nth in 0..COLOURS {
        let _ = write!(
            rules,
            ".bar.c{nth}, .mark.c{nth}, .t{nth}.name {{ fill: var(--c{nth}); }}\n\
             .curve.c{nth}, .spread.c{nth}, .point.c{nth} {{ stroke: var(--c{nth}); }}\n\
             .hollow.c{nth} {{ fill: var(--c{nth}); fill-opacity: .12; stroke: var(--c{nth}); \
             stroke-dasharray: 4 2; }}\n"
        );
    }
    rules
}

fn head(all: &[(&dyn Experiment, Results)], html: &mut String) {
    let lines = || all.iter().flat_map(|(_, results)| results.lines());
    let dates = lines().map(|line| line.time.get(..10).unwrap_or_default());
    let (first, last) = (dates.clone().min().unwrap_or_default(), dates.max().unwrap_or_default());
    let when = if first == last { first.to_owned() } else { format!("{first} to {last}") };
    let places = places(lines().filter(|line| line.skipped.is_none()));
    let mut servers: Vec<&str> = lines().map(|line| line.conditions.postgres.as_str()).collect();
    servers.sort_unstable();
    servers.dedup();
    let _ = write!(
        html,
        "<header>\n<h1>Writing into PostgreSQL, measured</h1>\n<p class=\"about\">{} trials of \
         <code>pgspate lab</code>, {}. PostgreSQL {}{}. Every trial began from the same state, \
         and the order of the trials was random. A small point is one repeat; bars and larger \
         marks are medians.</p>\n",
        lines().filter(|line| line.skipped.is_none()).count(),
        escape(&when),
        escape(&servers.join(", ")),
        escape(&places)
    );
    summary::write(all, html);
    html.push_str("</header>\n");
}

/// Names the machines that these lines ran on: ` on 2 processors, ...`. If the server was not on
/// the machine, says that only the client ran there.
fn places<'a>(lines: impl Iterator<Item = &'a ResultLine>) -> String {
    let place = |line: &ResultLine| (!line.facts.is_local, described(&line.facts.machine));
    let mut places: Vec<(bool, String)> = lines.map(place).collect();
    places.sort();
    places.dedup();
    let mut text = String::new();
    for (nth, (is_client, machine)) in places.iter().enumerate() {
        text += match (nth, is_client) {
            (0, true) => ", from a client on ",
            (0, false) => " on ",
            (_, true) => "; from a client on ",
            (_, false) => "; on ",
        };
        text += machine;
    }
    text
}

/// Describes a machine in one line.
fn described(machine: &Machine) -> String {
    let memory = machine.memory_bytes as f64 / (1u64 << 30) as f64;
    let cores = if machine.cores == 1 { "processor" } else { "processors" };
    let mut parts = vec![format!("{} {cores}", machine.cores), format!("{memory:.0} GiB memory")];
    let named = [&machine.cpu, &machine.kernel, &machine.storage];
    parts.extend(named.into_iter().filter(|it| !it.is_empty()).cloned());
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::line;

    #[test]
    fn the_head_names_the_machines_that_measured() {
        let with = |is_local, cores| {
            let mut line = line(&[], 0, 1.0);
            line.facts.is_local = is_local;
            line.facts.machine = Machine { cores, memory_bytes: 8 << 30, ..Machine::default() };
            line
        };
        let (here, there) = (with(true, 2), with(false, 4));
        assert_eq!(places([&here, &here].into_iter()), " on 2 processors, 8 GiB memory");
        let client = ", from a client on 4 processors, 8 GiB memory";
        assert_eq!(places([&there].into_iter()), client);
        let both = places([&there, &here].into_iter());
        assert!(both.ends_with("; from a client on 4 processors, 8 GiB memory"), "{both}");
    }
}
