//! How to repeat an experiment: the command, the conditions, settings, remarks and skipped trials.
//!
//! The command selects exactly the trials of the results, if flags can select them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::described;
use super::section::factors;
use super::svg::escape;
use super::words;
use crate::data::tpch;
use crate::dataset::{DataKind, TableFacts};
use crate::experiment::{Experiment, LabRunSetup, LabTrial, Unit};
use crate::facts;
use crate::results::{ResultLine, Results, RunConditions};
use crate::runner;

/// Writes the command and the conditions.
pub(super) fn write(experiment: &dyn Experiment, results: &Results, html: &mut String) {
    let Some(first) = results.lines().first() else { return };
    let conditions = &first.conditions;
    let repeats = results.lines().iter().map(|line| line.repeat + 1).max().unwrap_or(1);
    let to = if conditions.target == "own" { "" } else { " --to ..." };
    let data = match conditions.data.kind {
        DataKind::Imdb => format!("--scale {}", conditions.scale),
        DataKind::Tpch => format!("--data tpch --scale {}", conditions.scale),
        DataKind::Files => "--data ...".to_owned(),
    };
    let command = format!(
        "pgspate lab run {} {data} --repeats {repeats} --seed {}{}{to}",
        experiment.name(),
        conditions.seed,
        only(experiment, results)
    );
    let build = match conditions.build.as_str() {
        "" => String::new(),
        build => format!(" ({build})"),
    };
    let machine = results.measured().next().unwrap_or(first);
    let client = if machine.facts.is_local { "" } else { "the client: " };
    let server = match conditions.target.as_str() {
        "own" => "a server that the lab started, with a copy of its data folder for each trial"
            .to_owned(),
        other => format!("the server {other}, a new schema for each trial"),
    };
    let _ = write!(
        html,
        "<details class=\"reproduce\"><summary>How to repeat it</summary>\n<pre>{}</pre>\n<ul>\n\
         <li>PostgreSQL {}, pgspate {}{}, {}</li>\n<li>{client}{}</li>\n",
        escape(&command),
        escape(&conditions.postgres),
        escape(&conditions.pgspate),
        escape(&build),
        escape(&server),
        escape(&described(&machine.facts.machine))
    );
    for line in loaded(conditions).into_iter().chain(settings(results)) {
        let _ = writeln!(html, "<li>{}</li>", escape(&line));
    }
    for note in notes(results) {
        let _ = writeln!(html, "<li>{}</li>", escape(&note));
    }
    for (reason, labels) in skipped(results) {
        let text = format!("skipped, because {reason}: {}", labels.join("; "));
        let _ = writeln!(html, "<li>{}</li>", escape(&text));
    }
    html.push_str("</ul>\n</details>\n");
}

/// Returns the remarks, each once.
fn notes(results: &Results) -> BTreeSet<String> {
    let where_its_data_were = |line: &ResultLine| {
        facts::in_memory_warning(&line.facts.machine.storage).map(str::to_owned)
    };
    let of =
        |line: &ResultLine| line.outcome.notes.clone().into_iter().chain(where_its_data_were(line));
    results.lines().iter().flat_map(of).collect()
}

/// Returns the `--only` flags that select exactly these trials. Returns nothing if no trial
/// is missing, or if no flags select them, as after an interrupted run.
fn only(experiment: &dyn Experiment, results: &Results) -> String {
    let Some(first) = results.lines().first() else { return String::new() };
    let conditions = &first.conditions;
    let is_own = conditions.target == "own";
    let setup = LabRunSetup { scale: conditions.scale, is_own, data: conditions.data.kind };
    let all = runner::trials(experiment, &setup);
    let is_there = |trial: &LabTrial| results.lines().iter().any(|line| line.trial == *trial);
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    for factor in factors(&all.iter().collect::<Vec<_>>()) {
        let has =
            |level: &&str| all.iter().any(|trial| trial.is(factor.name, level) && is_there(trial));
        let levels: Vec<&str> = factor.levels.iter().copied().filter(has).collect();
        if levels.len() < factor.levels.len() {
            wanted.extend(levels.into_iter().map(|level| (factor.name, level)));
        }
    }
    let is_wanted = |trial: &LabTrial| {
        trial.levels().all(|(factor, level)| {
            wanted.contains(&(factor, level)) || wanted.iter().all(|(other, _)| *other != factor)
        })
    };
    if all.iter().any(|trial| is_wanted(trial) != is_there(trial)) {
        return String::new();
    }
    let one = |(factor, level): &(&str, &str)| {
        format!(" --only {}", quoted(&format!("{factor}={level}")))
    };
    wanted.iter().map(one).collect()
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "=-_.,/".contains(c);
    match word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Describes the loaded data, if not the default.
fn loaded(conditions: &RunConditions) -> Vec<String> {
    let table = |table: &TableFacts| {
        let files = if table.files == 1 { "file" } else { "files" };
        let bytes = words::value(table.bytes as f64, Unit::Bytes);
        format!("{}: {} {files} of {}, {bytes}", table.name, table.files, table.format)
    };
    match conditions.data.kind {
        DataKind::Imdb => Vec::new(),
        DataKind::Tpch => vec![format!(
            "TPC-H's eight tables at scale factor {}, with comments from a shorter text; these \
             are not TPC-H results",
            tpch::factor(conditions.scale)
        )],
        DataKind::Files => conditions.data.tables.iter().map(table).collect(),
    }
}

/// Describes the settings of all trials, then those of only some.
fn settings(results: &Results) -> Vec<String> {
    let lines: Vec<&ResultLine> = results.measured().collect();
    let Some(first) = lines.first() else { return Vec::new() };
    let has = |line: &&ResultLine, name: &String, value: &String| {
        line.facts.settings.get(name) == Some(value)
    };
    let in_all = |(name, value): &(&String, &String)| lines.iter().all(|it| has(it, name, value));
    let said = |settings: &BTreeMap<&String, &String>| {
        let each = settings.iter().map(|(name, value)| format!("{name} = {value}"));
        each.collect::<Vec<_>>().join(", ")
    };
    let common: BTreeMap<&String, &String> = first.facts.settings.iter().filter(in_all).collect();
    let mut text = vec![match common.is_empty() {
        true => "default settings".to_owned(),
        false => format!("settings that differ from the defaults: {}", said(&common)),
    }];
    let mut rest: Vec<(String, Vec<&LabTrial>)> = Vec::new();
    for line in &lines {
        let own = line.facts.settings.iter();
        let own: BTreeMap<_, _> = own.filter(|(name, _)| !common.contains_key(name)).collect();
        let own = said(&own);
        match rest.iter_mut().find(|(known, _)| *known == own) {
            _ if own.is_empty() => {}
            Some((_, trials)) if trials.contains(&&line.trial) => {}
            Some((_, trials)) => trials.push(&line.trial),
            None => rest.push((own, vec![&line.trial])),
        }
    }
    let all = results.trials();
    let of =
        |(own, trials): (String, Vec<&LabTrial>)| format!("{}: {own}", in_short(&trials, &all));
    text.extend(rest.into_iter().map(of));
    text
}

/// Returns the levels that exactly these trials share, or else their labels.
fn in_short(these: &[&LabTrial], all: &[&LabTrial]) -> String {
    let Some(first) = these.first() else { return String::new() };
    let is_theirs = |(factor, level): &(&str, &str)| {
        all.iter().all(|trial| trial.is(factor, level) == these.contains(trial))
    };
    let levels: Vec<String> = first
        .levels()
        .filter(is_theirs)
        .map(|(factor, level)| format!("{factor} {level}"))
        .collect();
    match levels.is_empty() {
        true => these.iter().map(|trial| trial.label()).collect::<Vec<_>>().join("; "),
        false => levels.join(", "),
    }
}

fn skipped(results: &Results) -> BTreeMap<String, Vec<String>> {
    let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in results.lines() {
        let Some(reason) = &line.skipped else { continue };
        let labels = reasons.entry(reason.clone()).or_default();
        let label = line.trial.label();
        if !labels.contains(&label) {
            labels.push(label);
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::results::tests::line;

    #[test]
    fn trials_are_described_by_the_levels_that_only_they_have() {
        let trial = |way, with| LabTrial::of(&[("way", way), ("indexes", with)]);
        let (a, b, c) = (trial("one", "none"), trial("two", "none"), trial("one", "present"));
        assert_eq!(in_short(&[&c], &[&a, &b, &c]), "indexes present");
        assert_eq!(in_short(&[&a, &b], &[&a, &b, &c]), "indexes none");
        assert_eq!(in_short(&[&a], &[&a, &b, &c]), "one, none");
    }

    #[test]
    fn a_note_says_once_that_the_data_was_in_memory() {
        let mut lines = vec![line(&[("way", "a")], 0, 1.0), line(&[("way", "a")], 1, 1.0)];
        lines[0].outcome.notes.push("a note".to_owned());
        lines.iter_mut().for_each(|line| line.facts.machine.storage = "tmpfs".to_owned());
        let notes = notes(&Results::new(lines, Path::new(".")));
        let notes: Vec<&str> = notes.iter().map(String::as_str).collect();
        assert!(matches!(notes[..], [text, "a note"] if text.contains("TMPDIR")), "{notes:?}");
    }

    #[test]
    fn words_with_spaces_are_quoted() {
        assert_eq!(quoted("strategy=pgspate"), "strategy=pgspate");
        assert_eq!(quoted("a=it's"), r"'a=it'\''s'");
    }
}
