//! What the report shows of temporary space.

use super::super::plots::{bar, by_factor, faster};
use super::{
    CLIENTS, CREATE_AS, DATA_FOLDER, DISTINCT, FITS, LIMIT, NO_LIMIT, ORDER_BY, QUERY, SMALL_LIMIT,
    SPACE, SPILLS, TABLESPACE, WORK_MEM,
};
use crate::report::figure::{Axis, Bars, Figure, Group, Lines, Plot};
use crate::report::words;
use crate::{Results, Unit};

const QUERIES: [&str; 3] = [CREATE_AS, DISTINCT, ORDER_BY];
/// How many clients there are where something else is varied.
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
            Group { name: (*query).to_owned(), bars: all.into_iter().filter_map(of).collect() }
        };
        let groups = QUERIES.iter().map(group).collect();
        Plot::Bars(Bars { unit: Some(Unit::Seconds), groups })
    };
    let place = places(results);
    vec![
        Figure::new(
            "Throughput by clients",
            "Bytes of temporary tables and files over the time from the first query's begin to the \
             last one's end. work_mem is a sixteenth of the table.",
            by_clients("throughput", Unit::BytesPerSecond),
        ),
        Figure::new("Mean time of a query by clients", "", by_clients("mean time", Unit::Seconds)),
        Figure::new(
            "Mean time of a query at 8 clients: another place, or more memory",
            &format!(
                "{place} More work_mem is twice the table. Where the system's cache has room for \
                 all temporary files, as at small scales, neither gains much: what spills stays in \
                 memory anyway."
            ),
            others(USUAL),
        ),
        Figure::new("The same at 20 clients: another place", &place, others(MOST)),
    ]
}

/// Where the tablespaces were, as the trials have noted it.
fn places(results: &Results) -> String {
    let on = results.measured().filter(|line| line.trial.is(SPACE, TABLESPACE));
    let mut notes: Vec<&str> =
        on.flat_map(|line| line.outcome.notes.iter().map(String::as_str)).collect();
    notes.sort_unstable();
    notes.dedup();
    notes.join(" ")
}

pub(super) fn answer(results: &Results) -> String {
    let median = |levels: &Levels<'_>, name: &str| results.median(levels, name);
    let mut parts = Vec::new();
    let table = |space| median(&levels(CREATE_AS, MOST, SPILLS, space), "throughput");
    if let Some(here) = table(DATA_FOLDER) {
        let said = |rate: f64| words::value(rate, Unit::BytesPerSecond);
        let there = table(TABLESPACE).map_or(String::new(), |there| {
            format!(" in the data folder and {} in a tablespace elsewhere", said(there))
        });
        parts.push(format!("20 clients filled temporary tables at {}{there}", said(here)));
    }
    for query in [DISTINCT, ORDER_BY] {
        let time = |work_mem| median(&levels(query, USUAL, work_mem, DATA_FOLDER), "mean time");
        if let Some((spills, fits)) = time(SPILLS).zip(time(FITS)) {
            let ratio = faster(fits, spills);
            parts.push(format!("{query} within work_mem was {ratio} spilling"));
        }
    }
    let ended: f64 = results
        .measured()
        .filter(|line| line.trial.is(LIMIT, SMALL_LIMIT))
        .filter_map(|line| line.value("failed"))
        .sum();
    if ended > 0.0 {
        parts.push(format!(
            "{} queries that met temp_file_limit were refused with SQLSTATE 53400 and harmed \
             nobody else",
            words::value(ended, Unit::Count)
        ));
    }
    match parts.is_empty() {
        true => "Nothing has been measured.".to_owned(),
        false => format!("{}.", parts.join("; ")),
    }
}
