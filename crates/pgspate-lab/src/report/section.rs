//! One experiment's part of the page.
//!
//! It has the question, the answer, published results, figures, a table of all trials, and the
//! command to repeat them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::figure::{Figure, Plot, PlotTable, Strip};
use super::svg::escape;
use super::{bars, described, lines, words};
use crate::data::tpch;
use crate::dataset::{DataKind, TableFacts};
use crate::experiment::{Experiment, LabRunSetup, LabTrial, PublishedResults, TrialPicture, Unit};
use crate::facts;
use crate::results::{ResultLine, Results, RunConditions};
use crate::runner;
use crate::spread::Spread;

/// Pixels of a figure on a wide and on a narrow page.
const WIDE: f64 = 780.0;
const NARROW: f64 = 348.0;

/// A factor with the levels that were tried.
struct TriedFactor<'a> {
    name: &'a str,
    levels: Vec<&'a str>,
}

/// Writes the section.
pub(super) fn write(experiment: &dyn Experiment, results: &Results, html: &mut String) {
    let data = results.data().kind;
    let _ = write!(
        html,
        "<section id=\"{}\">\n<h2>{}</h2>\n<p class=\"question\">{}</p>\n",
        escape(experiment.name()),
        escape(experiment.title_with(data)),
        escape(experiment.question_with(data))
    );
    if results.is_empty() {
        html.push_str("<p class=\"answer\">No trial could be measured on this server.</p>\n");
    } else {
        let _ = writeln!(html, "<p class=\"answer\">{}</p>", escape(&experiment.answer(results)));
        if data == DataKind::default() {
            published(&experiment.published(), html);
        }
        for figure in experiment.figures(results).iter().filter(|figure| !figure.is_empty()) {
            draw(figure, html);
        }
        trials(experiment, results, html);
    }
    reproduce(experiment, results, html);
    html.push_str("</section>\n");
}

fn published(published: &PublishedResults, html: &mut String) {
    if published.figures.is_empty() {
        return;
    }
    let setting = escape(published.setting);
    let _ = write!(
        html,
        "<div class=\"published\">\n<p><b>What others have published.</b> {setting}</p>\n<table>\n"
    );
    for (what, figure) in &published.figures {
        let _ = writeln!(html, "<tr><td>{}</td><td>{}</td></tr>", escape(what), escape(figure));
    }
    html.push_str("</table>\n</div>\n");
}

fn draw(figure: &Figure, html: &mut String) {
    let title = escape(&figure.title);
    let _ = writeln!(html, "<div class=\"figure\">\n<h3>{title}</h3>");
    if !figure.note.is_empty() {
        let _ = writeln!(html, "<p class=\"note\">{}</p>", escape(&figure.note));
    }
    let widths = [(WIDE, "wide"), (NARROW, "narrow")];
    match &figure.plot {
        Plot::Bars(plot) => widths.iter().for_each(|(pixels, class)| {
            html.push_str(&bars::draw(plot, *pixels, class, &figure.title));
        }),
        Plot::Lines(plot) => widths.iter().for_each(|(pixels, class)| {
            html.push_str(&lines::draw(plot, *pixels, class, &figure.title));
        }),
        Plot::Table(plot) => table(plot, html),
        Plot::Pictures(all) => pictures(all, html),
        Plot::Strips(all) => all.iter().for_each(|one| strip(one, html)),
    }
    html.push_str("\n</div>\n");
}

fn table(table: &PlotTable, html: &mut String) {
    html.push_str("<div class=\"scroll\"><table>\n<tr>");
    for column in &table.columns {
        let _ = write!(html, "<th>{}</th>", escape(column));
    }
    html.push_str("</tr>\n");
    for row in &table.rows {
        html.push_str("<tr>");
        for cell in row {
            let _ = write!(html, "<td>{}</td>", escape(cell));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</table></div>\n");
}

/// Embeds SVG documents as images, so that no script in them can run.
fn pictures(all: &[(String, TrialPicture)], html: &mut String) {
    html.push_str("<div class=\"pictures\">\n");
    for (caption, picture) in all {
        let image = image(picture, caption);
        let _ =
            writeln!(html, "<div><div class=\"caption\">{}</div>{image}</div>", escape(caption));
    }
    html.push_str("</div>\n");
}

fn strip(strip: &Strip, html: &mut String) {
    if strip.pictures.is_empty() {
        return;
    }
    let name = escape(&strip.name);
    let _ = writeln!(html, "<div class=\"strip\"><div class=\"caption\">{name}</div>");
    for (word, picture) in &strip.pictures {
        let image = image(picture, &format!("{}: {word}", strip.name));
        let _ = writeln!(html, "<div>{image}<span>{}</span></div>", escape(word));
    }
    html.push_str("</div>\n");
}

fn image(picture: &TrialPicture, said: &str) -> String {
    let data = base64(picture.svg.as_bytes());
    format!("<img alt=\"{}\" src=\"data:image/svg+xml;base64,{data}\">", escape(said))
}

/// Writes the table of all trials. Factors that most trials leave at their baseline share one
/// column, `changed`.
fn trials(experiment: &dyn Experiment, results: &Results, html: &mut String) {
    let trials = results.trials();
    let factors = factors(&trials);
    let is_rare = |factor: &&TriedFactor<'_>| {
        let base = factor.levels.first().copied().unwrap_or_default();
        let changed = trials.iter().filter(|trial| !trial.is(factor.name, base)).count();
        factor.levels.len() > 1 && changed * 4 <= trials.len()
    };
    let (rare, own): (Vec<&TriedFactor<'_>>, Vec<&TriedFactor<'_>>) =
        factors.iter().partition(is_rare);
    let has_any = |name: &&str| results.spread(&[], name).is_some();
    let numbers: Vec<&str> = experiment.columns().into_iter().filter(has_any).collect();
    html.push_str("<details open><summary>All trials: median, minimum and maximum</summary>\n");
    html.push_str("<div class=\"scroll\"><table class=\"trials\">\n<tr>");
    let headings =
        own.iter().map(|factor| factor.name).chain((!rare.is_empty()).then_some("changed"));
    for heading in headings {
        let _ = write!(html, "<th class=\"level\">{}</th>", escape(heading));
    }
    for name in &numbers {
        let _ = write!(html, "<th>{}</th>", escape(name.trim_start_matches("phase: ")));
    }
    html.push_str("</tr>\n");
    for trial in trials {
        html.push_str("<tr>");
        let mut levels: Vec<String> =
            own.iter().map(|factor| trial.level(factor.name).to_owned()).collect();
        if !rare.is_empty() {
            levels.push(changed(trial, &rare));
        }
        for level in levels {
            let _ = write!(html, "<td class=\"level\">{}</td>", escape(&level));
        }
        let levels: Vec<(&str, &str)> = trial.levels().collect();
        for name in &numbers {
            cell(results.spread(&levels, name), results, name, html);
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</table></div></details>\n");
}

/// Returns the factors of these trials with their levels, the baseline first.
fn factors<'a>(trials: &[&'a LabTrial]) -> Vec<TriedFactor<'a>> {
    let mut factors: Vec<TriedFactor<'a>> = Vec::new();
    for (name, level) in trials.iter().flat_map(|trial| trial.levels()) {
        match factors.iter_mut().find(|factor| factor.name == name) {
            Some(factor) if factor.levels.contains(&level) => {}
            Some(factor) => factor.levels.push(level),
            None => factors.push(TriedFactor { name, levels: vec![level] }),
        }
    }
    factors
}

/// Returns the changed levels, as in `settings tuned`, or a dash.
fn changed(trial: &LabTrial, rare: &[&TriedFactor<'_>]) -> String {
    let of = |factor: &&TriedFactor<'_>| {
        let level = trial.level(factor.name);
        let is_base = factor.levels.first().is_none_or(|base| *base == level);
        (!is_base).then(|| format!("{} {level}", factor.name))
    };
    let all: Vec<String> = rare.iter().filter_map(of).collect();
    if all.is_empty() { "–".to_owned() } else { all.join(", ") }
}

fn cell(spread: Option<Spread>, results: &Results, name: &str, html: &mut String) {
    let Some(spread) = spread else {
        html.push_str("<td>–</td>");
        return;
    };
    let unit = results.unit(name);
    let median = escape(&words::value(spread.median, unit));
    let (min, max) = (words::value(spread.min, unit), words::value(spread.max, unit));
    let range = match spread.count {
        0 | 1 => String::new(),
        _ if min == max => String::new(),
        _ => format!("<span class=\"range\">{} – {}</span>", escape(&min), escape(&max)),
    };
    let _ = write!(html, "<td>{median}{range}</td>");
}

fn reproduce(experiment: &dyn Experiment, results: &Results, html: &mut String) {
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

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |nth: usize| u32::from(three.get(nth).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for nth in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * nth)) as usize & 63] as char;
            text.push(if nth <= three.len() { letter } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::results::tests::line;

    #[test]
    fn trials_are_named_by_what_only_they_have() {
        let trial = |way, with| LabTrial::of(&[("way", way), ("indexes", with)]);
        let (a, b, c) = (trial("one", "none"), trial("two", "none"), trial("one", "present"));
        assert_eq!(in_short(&[&c], &[&a, &b, &c]), "indexes present");
        assert_eq!(in_short(&[&a, &b], &[&a, &b, &c]), "indexes none");
        assert_eq!(in_short(&[&a], &[&a, &b, &c]), "one, none");
    }

    #[test]
    fn data_in_memory_are_noted_once() {
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

    #[test]
    fn base64_is_padded() {
        assert_eq!(base64(b""), "");
        assert_eq!(base64(b"f"), "Zg==");
        assert_eq!(base64(b"fo"), "Zm8=");
        assert_eq!(base64(b"foobar"), "Zm9vYmFy");
    }
}
