//! The figures and the summary sentence of the experiment `rewrite`.

use super::super::plots::{bar, series};
use super::methods::RewriteMethod;
use super::{AUTOVACUUM, CONTENDER, NIGHTS, heap};
use crate::report::figure::{Axis, BarGroup, Bars, Figure, Lines, Plot, Strip};
use crate::report::words;
use crate::{Comparison, LabTrial, Results, Unit};

pub(super) fn figures(results: &Results) -> Vec<Figure> {
    let mut all = costs(results);
    let lines = [
        ("dead rows", "Dead rows after each night", Unit::Count),
        ("table size", "Size of the table after each night", Unit::Bytes),
        ("index size", "Size of its index after each night", Unit::Bytes),
    ];
    for (name, title, unit) in lines {
        all.push(Figure::new(title, "Without autovacuum.", curves(results, name, unit)));
    }
    let trials = results.trials();
    let strips = trials.iter().map(|trial| strip(results, trial));
    all.push(Figure::new(
        "The table's pages, night by night",
        "A cell stands for the same number of pages in all pictures, and is filled from below: \
         live rows are blue, dead rows red, free space grey. A table that grows fills more of its \
         picture.",
        Plot::Strips(strips.collect()),
    ));
    let pictures =
        trials.iter().filter_map(|trial| Some((caption(trial), results.picture(trial, "heap")?)));
    all.push(Figure::new(
        "The table's pages after the last night",
        "A cell is one or more pages, filled from below: live rows, then dead rows, then free \
         space.",
        Plot::Pictures(pictures.collect()),
    ));
    all
}

/// Returns the figures of the nights' seconds, billed I/Os and written pages.
fn costs(results: &Results) -> Vec<Figure> {
    // On the user's server the lab makes no checkpoint between two nights.
    let has_checkpoints = results.lines().iter().all(|line| line.conditions.target == "own");
    let (between, written) = match has_checkpoints {
        true => (
            " There is a checkpoint between two nights, so the first change of each page logs the \
             whole page. Such a service does not bill whole pages, so only compare the bars.",
            "What the checkpoints between the nights had to write.",
        ),
        false => ("", "What checkpoints wrote while the nights ran; the server made them itself."),
    };
    vec![
        Figure::new(
            "Time of ten nights",
            "The other methods commit meter by meter and wait each time until the commit is \
             durable. They have their rows in memory, and an open session. pgspate reads its rows \
             from a file, connects each night, and writes all meters of a night in one \
             transaction. Row by row, the lab compares the rows; an ORM's own work is not \
             included.",
            bars(results, "seconds", Unit::Seconds),
        ),
        Figure::new(
            "What ten nights would be billed as",
            &format!(
                "Where I/Os are billed, each page that is read into the server's cache counts, \
                 and each 4 KiB of WAL.{between}"
            ),
            bars(results, "billed I/Os", Unit::Count),
        ),
        Figure::new(
            "Pages written by ten nights",
            written,
            bars(results, "pages written", Unit::Count),
        ),
    ]
}

fn caption(trial: &LabTrial) -> String {
    match trial.is(AUTOVACUUM, "on") {
        true => format!("{}, with autovacuum", trial.level(CONTENDER)),
        false => trial.level(CONTENDER).to_owned(),
    }
}

/// Returns the pictures of a trial's nights side by side.
fn strip(results: &Results, trial: &LabTrial) -> Strip {
    let night = |night: u32| Some((night.to_string(), results.picture(trial, &heap::name(night))?));
    let levels: Vec<(&str, &str)> = trial.levels().collect();
    let size = results.median(&levels, "table size");
    let size = size
        .map_or(String::new(), |size| format!(": {} in the end", words::value(size, Unit::Bytes)));
    let name = format!("{}{size}", caption(trial));
    Strip { name, pictures: (1..=NIGHTS).filter_map(night).collect() }
}

fn bars(results: &Results, number: &str, unit: Unit) -> Plot {
    let group = |(name, level): (&str, &str)| {
        let of = |way: &RewriteMethod| {
            let levels = [(CONTENDER, way.name()), (AUTOVACUUM, level)];
            bar(results, way.name(), &levels, number)
        };
        BarGroup { name: name.to_owned(), bars: RewriteMethod::ALL.iter().filter_map(of).collect() }
    };
    let groups = [("without autovacuum", "off"), ("with autovacuum between the nights", "on")];
    let groups = groups.map(group).into_iter().filter(|group| !group.bars.is_empty());
    Plot::Bars(Bars { unit: Some(unit), groups: groups.collect() })
}

fn curves(results: &Results, name: &str, unit: Unit) -> Plot {
    let of = |way: &RewriteMethod| {
        let levels = [(CONTENDER, way.name()), (AUTOVACUUM, "off")];
        series(results, way.name(), &levels, name)
    };
    Plot::Lines(Lines {
        x: Axis::linear("night", Unit::Plain),
        y: Axis::linear(name, unit),
        lines: RewriteMethod::ALL.iter().filter_map(of).collect(),
    })
}

/// A number of pgspate, compared with the numbers of the other measured methods.
struct AnswerPart {
    verb: &'static str,
    noun: &'static str,
    number: &'static str,
    unit: Unit,
}

const ANSWER_PARTS: [AnswerPart; 2] = [
    AnswerPart { verb: "wrote", noun: " of WAL", number: "WAL of the nights", unit: Unit::Bytes },
    AnswerPart { verb: "left", noun: " dead rows", number: "dead rows", unit: Unit::Count },
];
const COMPARED_METHODS: [RewriteMethod; 3] =
    [RewriteMethod::DeleteInsert, RewriteMethod::Orm, RewriteMethod::Merge];

fn at(way: RewriteMethod) -> [(&'static str, &'static str); 2] {
    [(CONTENDER, way.name()), (AUTOVACUUM, "off")]
}

fn sentence(results: &Results, sentence: &AnswerPart) -> Option<String> {
    let AnswerPart { verb, noun, number, unit } = sentence;
    let said = |way: RewriteMethod| Some(words::value(results.median(&at(way), number)?, *unit));
    let mut text = format!(" It {verb} {}{noun}", said(RewriteMethod::Sync)?);
    if let Some(with_room) = said(RewriteMethod::SyncWithRoom) {
        text += &format!(" ({with_room} with fillfactor 60)");
    }
    let others = COMPARED_METHODS.iter().filter_map(|way| Some((short(*way), said(*way)?)));
    // The sentence has the verb only once.
    let mut verb = format!("{verb} ");
    let others: Vec<String> =
        others.map(|(name, said)| format!("{name} {}{said}", std::mem::take(&mut verb))).collect();
    if !others.is_empty() {
        text += &format!(", where {}", words::listed(&others));
    }
    Some(text + ".")
}

/// Returns the name of a method within a sentence.
fn short(way: RewriteMethod) -> &'static str {
    if way == RewriteMethod::Orm { "row by row" } else { way.name() }
}

/// The methods that are not pgspate's.
const OTHERS: [RewriteMethod; 4] =
    [RewriteMethod::DeleteInsert, RewriteMethod::Upsert, RewriteMethod::Orm, RewriteMethod::Merge];

/// Compares `pgspate sync` with the fastest other method, and with the usual method.
pub(super) fn comparisons(results: &Results) -> Vec<Comparison> {
    let compared = |case: &str, others: &[RewriteMethod]| {
        let seconds = |way: RewriteMethod| Some((way.name(), results.spread(&at(way), "seconds")?));
        let others = others.iter().filter_map(|way| seconds(*way));
        Comparison::with_fastest(case, seconds(RewriteMethod::Sync)?, others, Unit::Seconds)
    };
    let fastest = compared("ten nights", &OTHERS);
    let usual = compared("ten nights, the usual way", &OTHERS[..1]);
    let usual = usual.filter(|usual| {
        fastest.as_ref().is_none_or(|fastest| fastest.theirs.name != usual.theirs.name)
    });
    fastest.into_iter().chain(usual).collect()
}

pub(super) fn answer(results: &Results) -> String {
    let seconds = |way: RewriteMethod| results.spread(&at(way), "seconds");
    let Some(ours) = seconds(RewriteMethod::Sync) else {
        return "pgspate sync has not been measured without autovacuum.".to_owned();
    };
    let compared: Vec<String> = OTHERS
        .into_iter()
        .filter_map(|way| Some(words::compared(&ours, &seconds(way)?, short(way))))
        .collect();
    let mut text =
        format!("{NIGHTS} nights took pgspate sync {}", words::measured(&ours, Unit::Seconds));
    if !compared.is_empty() {
        text += &format!(": {}", words::listed(&compared));
    }
    text += ".";
    text.extend(ANSWER_PARTS.iter().filter_map(|it| sentence(results, it)));
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::ResultLine;
    use crate::report::answers;
    use crate::results::tests::line;

    fn measured(way: RewriteMethod, vacuums: &str, seconds: f64) -> ResultLine {
        let mut line = line(&[(CONTENDER, way.name()), (AUTOVACUUM, vacuums)], 0, seconds);
        line.outcome.number("WAL of the nights", seconds * 1e8, Unit::Bytes);
        line.outcome.number("cost of I/Os", seconds / 100.0, Unit::Dollars);
        line.outcome.number("dead rows", seconds * 1000.0, Unit::Count);
        line
    }

    #[test]
    fn the_answer_compares_what_is_measured() {
        let ways = RewriteMethod::ALL.into_iter().zip([6.0, 5.0, 4.0, 3.0, 2.0, 2.5]);
        let all: Vec<ResultLine> =
            ways.map(|(way, seconds)| measured(way, "off", seconds)).collect();
        answers::check_answers_of_incomplete_results(&all, answer);
        let said = |lines: &[ResultLine]| answer(&Results::new(lines.to_vec(), Path::new(".")));
        assert_eq!(
            said(&all),
            "10 nights took pgspate sync 2.00 s (made once): 3 times as fast as delete + \
             insert, 2.50 times as fast as upsert, 2 times as fast as row by row and 50 % \
             faster than stage + MERGE. It wrote 200 MB of WAL (250 MB with fillfactor 60), \
             where delete + insert wrote 600 MB, row by row 400 MB and stage + MERGE 300 MB. It \
             left 2.00k dead rows (2.50k with fillfactor 60), where delete + insert left 6.00k, \
             row by row 4.00k and stage + MERGE 3.00k."
        );
        let compared = comparisons(&Results::new(all.clone(), Path::new(".")));
        let others: Vec<&str> = compared.iter().map(|it| it.theirs.name.as_str()).collect();
        assert_eq!(others, ["stage + MERGE", "delete + insert"]);
        assert_eq!(
            said(&all[4..5]),
            "10 nights took pgspate sync 2.00 s (made once). It wrote 200 MB of WAL. It left \
             2.00k dead rows."
        );
    }

    #[test]
    fn only_servers_of_the_labs_own_have_checkpoints_between_nights() {
        let notes = |target: &str| {
            let mut line = measured(RewriteMethod::Sync, "off", 1.0);
            line.conditions.target = target.to_owned();
            let figures = figures(&Results::new(vec![line], Path::new(".")));
            figures.iter().map(|figure| figure.note.clone()).collect::<String>()
        };
        assert_eq!(notes("own").matches("between two nights").count(), 1);
        assert_eq!(notes("elsewhere").matches("between").count(), 0);
    }
}
