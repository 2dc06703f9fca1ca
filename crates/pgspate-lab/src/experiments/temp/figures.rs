//! The figures and the summary sentence of the experiment `temp`.

use super::super::plots::{bar, by_factor};
use super::{
    CLIENTS, CREATE_AS, DATA_FOLDER, DISTINCT, FITS, LIMIT, NO_LIMIT, ORDER_BY, QUERY, SMALL_LIMIT,
    SPACE, SPILLS, TABLESPACE, WORK_MEM,
};
use crate::report::figure::{Axis, BarGroup, Bars, Figure, Lines, Plot, PlotTable};
use crate::report::words;
use crate::{Comparison, Results, Unit};

const QUERIES: [&str; 3] = [CREATE_AS, DISTINCT, ORDER_BY];
/// The number of clients in trials that vary another factor.
const USUAL: &str = "8";
const MOST: &str = "20";

type Levels<'a> = [(&'a str, &'a str); 5];

fn levels<'a>(query: &'a str, clients: &'a str, work_mem: &'a str, space: &'a str) -> Levels<'a> {
    [(QUERY, query), (CLIENTS, clients), (WORK_MEM, work_mem), (SPACE, space), (LIMIT, NO_LIMIT)]
}

pub(super) fn figures(results: &Results) -> Vec<Figure> {
    let by_clients = |name: &'static str, unit: Unit| {
        let of = |query: &&str| {
            let [query, _, rest @ ..] = levels(query, MOST, SPILLS, DATA_FOLDER);
            let rest: Vec<_> = [query].into_iter().chain(rest).collect();
            by_factor(results, query.1, &rest, CLIENTS, name)
        };
        Plot::Lines(Lines {
            x: Axis::linear(CLIENTS, Unit::Count),
            y: Axis::linear(name, unit),
            lines: QUERIES.iter().filter_map(of).collect(),
        })
    };
    let others = |clients: &'static str| {
        let group = |query: &&str| {
            let of = |(name, work_mem, space): (&str, &'static str, &'static str)| {
                bar(results, name, &levels(query, clients, work_mem, space), "mean time")
            };
            let all = [
                ("data folder", SPILLS, DATA_FOLDER),
                ("tablespace", SPILLS, TABLESPACE),
                ("more work_mem", FITS, DATA_FOLDER),
            ];
            BarGroup { name: (*query).to_owned(), bars: all.into_iter().filter_map(of).collect() }
        };
        let groups = QUERIES.iter().map(group).collect();
        Plot::Bars(Bars { unit: Some(Unit::Seconds), groups })
    };
    let place = tablespace_notes(results);
    vec![
        Figure::new(
            "Throughput by clients",
            "Bytes of temporary tables and files, divided by the time from the first query's \
             start to the last query's end. work_mem is a sixteenth of the table.",
            by_clients("throughput", Unit::BytesPerSecond),
        ),
        Figure::new("Mean time of a query by clients", "", by_clients("mean time", Unit::Seconds)),
        Figure::new(
            "Mean time of a query at 8 clients: with a tablespace, or with more work_mem",
            &format!(
                "{place} In the trials with more work_mem, work_mem is twice as large as the \
                 table. Where the system's cache has room for all temporary files, as at small \
                 scales, neither gains much: what spills stays in memory anyway."
            ),
            others(USUAL),
        ),
        Figure::new("Mean time of a query at 20 clients: with a tablespace", &place, others(MOST)),
        Figure::new(
            "When temporary space runs out",
            "Errors at temp_file_limit, which counts the files of sorts and hashes, not \
             temporary tables.",
            Plot::Table(limit_errors(results)),
        ),
    ]
}

/// Returns the table of errors in the trials whose temporary space was limited.
fn limit_errors(results: &Results) -> PlotTable {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for line in results.measured().filter(|line| line.trial.is(LIMIT, SMALL_LIMIT)) {
        for note in &line.outcome.notes {
            let row = vec![line.trial.level(QUERY).to_owned(), note.clone()];
            if !rows.contains(&row) {
                rows.push(row);
            }
        }
    }
    PlotTable { columns: vec!["query".to_owned(), "result".to_owned()], rows }
}

/// Returns the trials' notes about where their tablespaces were.
fn tablespace_notes(results: &Results) -> String {
    let on = results.measured().filter(|line| line.trial.is(SPACE, TABLESPACE));
    let mut notes: Vec<&str> =
        on.flat_map(|line| line.outcome.notes.iter().map(String::as_str)).collect();
    notes.sort_unstable();
    notes.dedup();
    notes.join(" ")
}

/// Returns where the tablespaces were, as words of the answer. A trial notes if there was no second
/// device for its tablespace.
fn tablespace(results: &Results) -> &'static str {
    let notes = tablespace_notes(results);
    match (notes.contains("in memory"), notes.contains("no second device")) {
        (true, false) => "in a tablespace in memory",
        (false, true) => "in a tablespace on the same disk",
        _ => "in a tablespace",
    }
}

/// Compares the tablespace with the data folder, and enough memory with spilling.
pub(super) fn comparisons(results: &Results) -> Vec<Comparison> {
    let mean = |query, clients, mem, space| {
        results.spread(&levels(query, clients, mem, space), "mean time")
    };
    let of_table = |space| mean(CREATE_AS, MOST, SPILLS, space);
    let case = format!("{CREATE_AS}, {MOST} clients");
    let table = of_table(TABLESPACE).zip(of_table(DATA_FOLDER)).map(|(ours, theirs)| {
        Comparison::new(&case, (TABLESPACE, ours), (DATA_FOLDER, theirs), Unit::Seconds)
    });
    let memory = [DISTINCT, ORDER_BY].into_iter().filter_map(|query| {
        let fits = ("within work_mem", mean(query, USUAL, FITS, DATA_FOLDER)?);
        let spills = ("spilling to disk", mean(query, USUAL, SPILLS, DATA_FOLDER)?);
        let case = format!("{query}, {USUAL} clients");
        Some(Comparison::new(&case, fits, spills, Unit::Seconds))
    });
    table.into_iter().chain(memory).collect()
}

pub(super) fn answer(results: &Results) -> String {
    let mut parts = Vec::new();
    let table = |space| {
        let rate = results.median(&levels(CREATE_AS, MOST, SPILLS, space), "throughput")?;
        Some(words::value(rate, Unit::BytesPerSecond))
    };
    let rates = [("in the data folder", DATA_FOLDER), (tablespace(results), TABLESPACE)];
    let rates =
        rates.into_iter().filter_map(|(name, space)| Some(format!("{} {name}", table(space)?)));
    let rates: Vec<String> = rates.collect();
    if !rates.is_empty() {
        parts.push(format!("20 clients filled temporary tables at {}", words::listed(&rates)));
    }
    for query in [DISTINCT, ORDER_BY] {
        let time = |mem| results.spread(&levels(query, USUAL, mem, DATA_FOLDER), "mean time");
        if let Some((spills, fits)) = time(SPILLS).zip(time(FITS)) {
            let compared = words::compared(&fits, &spills, "spilling");
            let once = if fits.count > 1 { "" } else { " (made once)" };
            parts.push(format!("{query} within work_mem was {compared}{once}"));
        }
    }
    let ended: f64 = results
        .measured()
        .filter(|line| line.trial.is(LIMIT, SMALL_LIMIT))
        .filter_map(|line| line.value("failed"))
        .sum();
    if ended > 0.0 {
        let queries = if ended == 1.0 { "query" } else { "queries" };
        parts.push(format!(
            "{} {queries} that exceeded temp_file_limit failed with SQLSTATE 53400, without \
             effect on other sessions",
            words::value(ended, Unit::Count)
        ));
    }
    match parts.is_empty() {
        true => "Too little is measured to compare.".to_owned(),
        false => format!("{}.", parts.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::ResultLine;
    use crate::report::answers;
    use crate::results::tests::line;

    fn measured(levels: &Levels<'_>, number: &str, value: f64, unit: Unit) -> ResultLine {
        let mut line = line(levels, 0, 1.0);
        line.outcome.number(number, value, unit);
        line
    }

    fn all() -> Vec<ResultLine> {
        let rate = |space, value| {
            let levels = levels(CREATE_AS, MOST, SPILLS, space);
            measured(&levels, "throughput", value, Unit::BytesPerSecond)
        };
        let time = |query, mem, value| {
            let levels = levels(query, USUAL, mem, DATA_FOLDER);
            measured(&levels, "mean time", value, Unit::Seconds)
        };
        let mut ended = levels(DISTINCT, USUAL, SPILLS, DATA_FOLDER);
        ended[4].1 = SMALL_LIMIT;
        vec![
            rate(DATA_FOLDER, 2e8),
            rate(TABLESPACE, 3e8),
            time(DISTINCT, SPILLS, 3.0),
            time(DISTINCT, FITS, 2.0),
            time(ORDER_BY, SPILLS, 2.0),
            time(ORDER_BY, FITS, 3.0),
            measured(&ended, "failed", 8.0, Unit::Count),
        ]
    }

    #[test]
    fn the_answer_compares_what_is_measured() {
        answers::check_answers_of_incomplete_results(&all(), answer);
        let answer = answer(&Results::new(all(), Path::new(".")));
        assert_eq!(
            answer,
            "20 clients filled temporary tables at 200 MB/s in the data folder and 300 MB/s in a \
             tablespace; select distinct within work_mem was 50 % faster than spilling (made \
             once); order by within work_mem was 50 % slower than spilling (made once); 8 \
             queries that exceeded temp_file_limit failed with SQLSTATE 53400, without effect on \
             other sessions."
        );
    }

    #[test]
    fn the_answer_says_where_the_tablespace_was() {
        let said = |note: &str| {
            let mut lines = all();
            lines[1].outcome.notes.push(note.to_owned());
            answer(&Results::new(lines, Path::new(".")))
        };
        // The text is the note that trials record.
        let here = "There is no second device here: the tablespace is on the disk of the data.";
        assert!(said(here).contains(" in a tablespace on the same disk;"), "{}", said(here));
        let there = "The tablespace is in memory, as a stand-in for a fast local disk.";
        assert!(said(there).contains(" in a tablespace in memory;"), "{}", said(there));
    }
}
