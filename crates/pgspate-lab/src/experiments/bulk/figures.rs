//! The figures and the summary sentence of the experiment `bulk`.

use super::strategies::{AT_ONCE, EACH, ONE, PGSPATE};
use super::{DEFAULT_SETTINGS, TUNED};
use crate::comparison::Comparison;
use crate::data::{imdb, tpch};
use crate::dataset::DataKind;
use crate::experiment::Unit;
use crate::report::figure::{Bar, BarGroup, Bars, Figure, Plot};
use crate::report::words;
use crate::results::{ResultLine, Results};
use crate::spread::Spread;

const STRATEGIES: [&str; 3] = [ONE, EACH, PGSPATE];
/// The baseline levels: default settings, and no indexes.
const BASE: [(&str, &str); 4] = [
    ("settings", DEFAULT_SETTINGS),
    ("autovacuum", "on"),
    ("synchronous_commit", "on"),
    ("indexes", "none"),
];

pub(super) fn all(results: &Results) -> Vec<Figure> {
    let settings = [("default settings", DEFAULT_SETTINGS), ("tuned settings", TUNED)];
    let by_settings = settings.map(|(name, level)| (name, changed(&[("settings", level)])));
    let one_at_a_time = [
        ("all defaults", BASE),
        ("autovacuum off", changed(&[("autovacuum", "off")])),
        ("synchronous_commit off", changed(&[("synchronous_commit", "off")])),
        ("with indexes", changed(&[("indexes", "present")])),
    ];
    let words = FigureTexts::of(results);
    vec![
        Figure::new(
            words.all,
            "Time from the first byte to the last commit. Tuned settings are the proposals of \
             pgspate tune for this machine.",
            bars(results, &by_settings, "seconds"),
        ),
        Figure::new(
            words.largest,
            &format!(
                "{} alone. With a session per file, the largest file competes for the processors \
                 until the smaller files are done.",
                words.its_name
            ),
            bars(results, &by_settings, largest_number(results.data().kind)),
        ),
        Figure::new(
            words.each,
            "Default settings. Small files show the fixed cost of a load: pgspate inspects file \
             and table, keeps a ledger and opens a session for each lane.",
            by_table(results),
        ),
        Figure::new(
            "One thing changed at a time",
            &format!("{}{}", words.changes, visits(results)),
            bars(results, &one_at_a_time, "seconds"),
        ),
        Figure::new(
            "Processor time of the server",
            "CPU time of all PostgreSQL processes.",
            bars(results, &by_settings, "server CPU"),
        ),
        Figure::new("WAL", words.wal, bars(results, &[one_at_a_time[0], one_at_a_time[3]], "WAL")),
    ]
}

/// Describes how often autovacuum ran. A short trial can end before autovacuum looks at it.
fn visits(results: &Results) -> String {
    let on = results.measured().filter(|line| line.trial.is("autovacuum", "on"));
    let vacuums = on.filter_map(|line| line.measured["tables"]["counted"]["vacuums"].as_u64());
    let vacuums: Vec<u64> = vacuums.collect();
    if vacuums.is_empty() {
        return String::new();
    }
    let visited = vacuums.iter().filter(|count| **count > 0).count();
    let text = format!(
        " Autovacuum checks once a minute by default: it vacuumed a table in {visited} of {} \
         trials with autovacuum on",
        vacuums.len()
    );
    match visited {
        0 => text + ", so its cost is not included.",
        _ => text + ".",
    }
}

/// The titles and notes of the figures for each kind of data.
struct FigureTexts {
    all: &'static str,
    largest: &'static str,
    its_name: String,
    each: &'static str,
    changes: &'static str,
    wal: &'static str,
}

/// Returns the name of the number that holds the seconds of the largest table.
pub(super) fn largest_number(data: DataKind) -> &'static str {
    match data {
        DataKind::Imdb => "largest file",
        DataKind::Tpch | DataKind::Files => "largest table",
    }
}

impl FigureTexts {
    fn of(results: &Results) -> FigureTexts {
        let data = results.data();
        let (all, its_name) = match data.kind {
            DataKind::Imdb => ("Time for all seven files", imdb::TABLES[0].name),
            DataKind::Tpch => ("Time for all eight tables", tpch::TABLES[0].name),
            DataKind::Files => ("Time for all files", largest_name(results)),
        };
        let (largest, each) = match data.kind {
            DataKind::Imdb => ("Time for the largest file", "File by file"),
            DataKind::Tpch | DataKind::Files => ("Time for the largest table", "Table by table"),
        };
        let (changes, wal) = match data.kind {
            DataKind::Imdb | DataKind::Tpch => (
                "The tables have indexes before the load. Plain sessions update them row by row; \
                 pgspate drops and rebuilds them where that is faster, and its time includes \
                 this.",
                "With indexes, each row's index entry is logged; an index that is built \
                 afterwards is logged as whole pages.",
            ),
            DataKind::Files => (
                "Files have no information about keys, so nothing is measured with indexes.",
                "WAL written for the same rows.",
            ),
        };
        FigureTexts { all, largest, its_name: its_name.to_owned(), each, changes, wal }
    }
}

/// Returns the name of the largest of the user's own tables.
///
/// A strategy that loads tables one after the other begins with the largest table.
fn largest_name(results: &Results) -> &str {
    let firsts = results.measured().filter_map(|line| line.outcome.phases.first());
    let mut names = firsts.map(|phase| phase.name.as_str()).filter(|name| *name != AT_ONCE);
    names.next().unwrap_or("The largest table")
}

/// Returns the baseline levels with some levels changed.
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
        BarGroup { name: (*name).to_owned(), bars: STRATEGIES.iter().filter_map(bar).collect() }
    };
    let groups = groups.iter().map(group).filter(|group| !group.bars.is_empty()).collect();
    let unit = match number {
        "WAL" => Unit::Bytes,
        _ => Unit::Seconds,
    };
    Plot::Bars(Bars { unit: Some(unit), groups })
}

/// The number of tables in the figure: only the largest tables are drawn.
const TABLES_MAX: usize = 12;

/// Returns bars for each table, of the strategies that load tables one after the other.
fn by_table(results: &Results) -> Plot {
    let mut names: Vec<&str> = Vec::new();
    for phase in results.measured().flat_map(|line| &line.outcome.phases) {
        if phase.name != AT_ONCE && !names.contains(&phase.name.as_str()) {
            names.push(&phase.name);
        }
    }
    let group = |name: &&str| {
        let number = format!("phase: {name}");
        let bar = |strategy: &&str| {
            Some(Bar::measured(strategy, results.spread(&of(strategy, &BASE), &number)?))
        };
        BarGroup { name: (*name).to_owned(), bars: [ONE, PGSPATE].iter().filter_map(bar).collect() }
    };
    let groups = names.iter().take(TABLES_MAX).map(group).collect();
    Plot::Bars(Bars { unit: Some(Unit::Seconds), groups })
}

fn of<'a>(strategy: &'a str, levels: &Levels) -> Vec<(&'a str, &'a str)> {
    let mut all = vec![("strategy", strategy)];
    all.extend(levels);
    all
}

/// Returns why the trials of one COPY session with these levels were skipped, if they were.
///
/// Trials with other levels may have been skipped for another reason.
pub(crate) fn left_out(results: &Results, levels: &[(&str, &str)]) -> Option<String> {
    let is_one = |line: &&ResultLine| {
        let has = |(factor, level): &(&str, &str)| line.trial.is(factor, level);
        line.trial.is("strategy", ONE) && levels.iter().all(has)
    };
    results.lines().iter().filter(is_one).find_map(|line| line.skipped.clone())
}

/// Compares pgspate with the faster of the two others: with default settings, with tuned settings,
/// and with indexes on the tables.
pub(super) fn comparisons(results: &Results) -> Vec<Comparison> {
    let cases = [
        ("default settings", BASE),
        ("tuned settings", changed(&[("settings", TUNED)])),
        ("tables with indexes", changed(&[("indexes", "present")])),
    ];
    let compared = |(case, levels): (&str, Levels)| {
        let seconds = |strategy| results.spread(&of(strategy, &levels), "seconds");
        let others = [ONE, EACH].into_iter().filter_map(|it| Some((it, seconds(it)?)));
        let ours = (PGSPATE, seconds(PGSPATE)?);
        Comparison::with_fastest(case, ours, others, Unit::Seconds)
    };
    cases.into_iter().filter_map(compared).collect()
}

pub(super) fn answer(results: &Results) -> String {
    let seconds = |strategy, levels: &Levels| results.spread(&of(strategy, levels), "seconds");
    let (ours, one) = (seconds(PGSPATE, &BASE), seconds(ONE, &BASE));
    let rows = results.median(&[("strategy", PGSPATE)], "rows").unwrap_or_default();
    let rows = words::value(rows, Unit::Count);
    if let (Some(ours), None, Some(why)) = (&ours, &one, left_out(results, &BASE)) {
        return format!(
            "pgspate loads {rows} rows in {}; COPY was not measured, because {why}.",
            words::measured(ours, Unit::Seconds)
        );
    }
    let (Some(ours), Some(_)) = (ours, one) else {
        return "Too little is measured to compare.".to_owned();
    };
    // All contenders are compared with the same settings.
    let others = |ours: &Spread, levels: &Levels| {
        let others = [(ONE, "one session"), (EACH, "a session per file")];
        let all = others.into_iter().filter_map(|(strategy, name)| {
            let theirs = seconds(strategy, levels)?;
            let time = words::value(theirs.median, Unit::Seconds);
            Some(words::compared(ours, &theirs, &format!("{name} ({time})")))
        });
        all.collect::<Vec<_>>().join(" and ")
    };
    let time = |ours: &Spread| words::measured(ours, Unit::Seconds);
    let mut text =
        format!("pgspate loads {rows} rows in {}, {}", time(&ours), others(&ours, &BASE));
    for (words, changed) in [
        ("with tuned settings", changed(&[("settings", TUNED)])),
        ("into tables with indexes", changed(&[("indexes", "present")])),
    ] {
        let Some(ours) = seconds(PGSPATE, &changed) else { continue };
        let others = others(&ours, &changed);
        if !others.is_empty() {
            text += &format!("; {words} it takes {}, {others}", time(&ours));
        }
    }
    text + "."
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::report::answers;
    use crate::results::tests::line;

    fn with(strategy: &str, levels: &Levels) -> ResultLine {
        line(&of(strategy, levels), 0, 1.0)
    }

    #[test]
    fn answer_uses_only_measured_trials() {
        let tuned = changed(&[("settings", TUNED)]);
        let indexed = changed(&[("indexes", "present")]);
        let mut all = Vec::new();
        for (levels, nth) in [(BASE, 1.0), (tuned, 0.5), (indexed, 3.0)] {
            for (strategy, seconds) in [(ONE, 4.0), (EACH, 3.0), (PGSPATE, 2.0)] {
                all.push(line(&of(strategy, &levels), 0, seconds * nth));
            }
        }
        all[2].outcome.number("rows", 1e6, Unit::Count);
        answers::check_answers_of_incomplete_results(&all, answer);
        assert_eq!(
            answer(&Results::new(all.clone(), Path::new("."))),
            "pgspate loads 1.00M rows in 2.00 s (made once), 2 times as fast as one session \
             (4.00 s) and 50 % faster than a session per file (3.00 s); with tuned settings it \
             takes 1.00 s (made once), 2 times as fast as one session (2.00 s) and 50 % faster \
             than a session per file (1.50 s); into tables with indexes it takes 6.00 s (made \
             once), 2 times as fast as one session (12.0 s) and 50 % faster than a session per \
             file (9.00 s)."
        );
        let compared = comparisons(&Results::new(all, Path::new(".")));
        let cases: Vec<(&str, &str)> =
            compared.iter().map(|it| (it.case.as_str(), it.theirs.name.as_str())).collect();
        let expected = ["default settings", "tuned settings", "tables with indexes"];
        assert_eq!(cases, expected.map(|case| (case, EACH)));
    }

    #[test]
    fn figure_says_how_often_autovacuum_ran() {
        let with = |vacuums: u64| {
            let measured = serde_json::json!({"tables": {"counted": {"vacuums": vacuums}}});
            ResultLine { measured, ..with(ONE, &BASE) }
        };
        let said = |lines: Vec<ResultLine>| visits(&Results::new(lines, Path::new(".")));
        assert!(said(vec![with(0), with(0)]).contains("in 0 of 2 trials with autovacuum on, so"));
        assert!(said(vec![with(3), with(0)]).ends_with("in 1 of 2 trials with autovacuum on."));
        assert_eq!(said(Vec::new()), "");
    }

    #[test]
    fn reason_for_skipping_comes_from_trials_with_the_given_levels() {
        let mut tuned = with(ONE, &changed(&[("settings", TUNED)]));
        tuned.skipped =
            Some("it needs server settings that the lab does not change on your server".to_owned());
        let mut base = with(ONE, &BASE);
        base.skipped = Some("COPY does not read a.json: it is json".to_owned());
        let results = Results::new(vec![tuned, with(PGSPATE, &BASE), base], Path::new("."));
        let answer = answer(&results);
        assert!(answer.ends_with("because COPY does not read a.json: it is json."), "{answer}");
    }

    #[test]
    fn the_largest_table_is_the_one_that_was_loaded_first() {
        let mut all = [with(EACH, &BASE), with(PGSPATE, &BASE)];
        all[0].outcome.phase(AT_ONCE, || Ok(())).unwrap();
        let results = |lines: &[ResultLine]| Results::new(lines.to_vec(), Path::new("."));
        assert_eq!(largest_name(&results(&all)), "The largest table");
        for name in ["second", "first"] {
            all[1].outcome.phase(name, || Ok(())).unwrap();
        }
        assert_eq!(largest_name(&results(&all)), "second");
    }
}
