//! What `bulk` shows.

use super::strategies::{EACH, ONE, PGSPATE};
use super::{AS_IT_COMES, TUNED};
use crate::data::imdb::{TABLES, Table};
use crate::experiment::Unit;
use crate::report::figure::{Bar, Bars, Figure, Group, Plot};
use crate::report::words;
use crate::results::Results;

const STRATEGIES: [&str; 3] = [ONE, EACH, PGSPATE];
/// Everything as it comes, and no indexes.
const BASE: [(&str, &str); 4] = [
    ("settings", AS_IT_COMES),
    ("autovacuum", "on"),
    ("synchronous_commit", "on"),
    ("indexes", "none"),
];

pub(super) fn all(results: &Results) -> Vec<Figure> {
    let settings = [("settings as they come", AS_IT_COMES), ("tuned settings", TUNED)];
    let by_settings = settings.map(|(name, level)| (name, changed(&[("settings", level)])));
    let one_at_a_time = [
        ("everything as it comes", BASE),
        ("autovacuum off", changed(&[("autovacuum", "off")])),
        ("synchronous_commit off", changed(&[("synchronous_commit", "off")])),
        ("with indexes", changed(&[("indexes", "present")])),
    ];
    vec![
        Figure::new(
            "Time for all seven files",
            "From the first byte to the last commit. Tuned settings are those that pgspate tune \
             proposes for this machine.",
            bars(results, &by_settings, "seconds"),
        ),
        Figure::new(
            "Time for the largest file",
            "title.principals alone. A session per file has its processors to itself only when \
             the smaller files are done.",
            bars(results, &by_settings, "largest file"),
        ),
        Figure::new(
            "File by file",
            "Settings as they come. Small files show what a load costs before its first row: \
             pgspate looks at file and table, keeps a ledger and opens a session for each lane.",
            by_file(results),
        ),
        Figure::new(
            "One thing changed at a time",
            "Indexes are there before the load: the sessions keep them up row by row, pgspate \
             drops them and makes them again where that pays, and that is in its time.",
            bars(results, &one_at_a_time, "seconds"),
        ),
        Figure::new(
            "Processor time of the server",
            "Of all of PostgreSQL's processes.",
            bars(results, &by_settings, "server CPU"),
        ),
        Figure::new(
            "WAL",
            "With indexes, each row's entry is logged; an index that is built afterwards is logged \
             once.",
            bars(results, &[one_at_a_time[0], one_at_a_time[3]], "WAL"),
        ),
    ]
}

/// The base with some levels changed.
fn changed(to: &[(&'static str, &'static str)]) -> [(&'static str, &'static str); 4] {
    BASE.map(|(factor, level)| {
        let other = to.iter().find(|(name, _)| *name == factor);
        (factor, other.map_or(level, |(_, level)| *level))
    })
}

type Levels = [(&'static str, &'static str); 4];

fn bars(results: &Results, groups: &[(&str, Levels)], number: &str) -> Plot {
    let group = |(name, levels): &(&str, Levels)| {
        let bar = |strategy: &&str| {
            Some(Bar::measured(strategy, results.spread(&of(strategy, levels), number)?))
        };
        Group { name: (*name).to_owned(), bars: STRATEGIES.iter().filter_map(bar).collect() }
    };
    let groups = groups.iter().map(group).filter(|group| !group.bars.is_empty()).collect();
    let unit = match number {
        "WAL" => Unit::Bytes,
        _ => Unit::Seconds,
    };
    Plot::Bars(Bars { unit: Some(unit), groups })
}

/// Only where files are loaded one after the other.
fn by_file(results: &Results) -> Plot {
    let group = |table: &Table| {
        let number = format!("phase: {}", table.name);
        let bar = |strategy: &&str| {
            Some(Bar::measured(strategy, results.spread(&of(strategy, &BASE), &number)?))
        };
        let name = table.file.trim_end_matches(".tsv.gz").to_owned();
        Group { name, bars: [ONE, PGSPATE].iter().filter_map(bar).collect() }
    };
    Plot::Bars(Bars { unit: Some(Unit::Seconds), groups: TABLES.iter().map(group).collect() })
}

fn of<'a>(strategy: &'a str, levels: &Levels) -> Vec<(&'a str, &'a str)> {
    let mut all = vec![("strategy", strategy)];
    all.extend(levels);
    all
}

pub(super) fn answer(results: &Results) -> String {
    let seconds = |strategy, levels: &Levels| results.median(&of(strategy, levels), "seconds");
    let tuned = changed(&[("settings", TUNED)]);
    let indexed = changed(&[("indexes", "present")]);
    let (Some(ours), Some(one)) = (seconds(PGSPATE, &BASE), seconds(ONE, &BASE)) else {
        return "Too little is measured to compare.".to_owned();
    };
    let rows = results.median(&[("strategy", PGSPATE)], "rows").unwrap_or_default();
    let mut text = format!(
        "pgspate loads {} rows in {}, {} one session ({})",
        words::value(rows, Unit::Count),
        words::value(ours, Unit::Seconds),
        words::faster(ours, one),
        words::value(one, Unit::Seconds),
    );
    if let Some(each) = seconds(EACH, &BASE) {
        text += &format!(
            " and {} a session per file ({})",
            words::faster(ours, each),
            words::value(each, Unit::Seconds)
        );
    }
    if let Some((tuned, its)) = seconds(PGSPATE, &tuned).zip(seconds(ONE, &tuned)) {
        text += &format!(
            "; with tuned settings it takes {}, {} one session then",
            words::value(tuned, Unit::Seconds),
            words::faster(tuned, its)
        );
    }
    if let Some((indexed, its)) = seconds(PGSPATE, &indexed).zip(seconds(ONE, &indexed)) {
        text += &format!(
            ", and with indexes {}, {} one session that keeps them up",
            words::value(indexed, Unit::Seconds),
            words::faster(indexed, its)
        );
    }
    text + "."
}
