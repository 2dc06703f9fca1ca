//! What the report shows of single records.

use super::super::plots::{bar, said, series};
use super::reads::QUERIES;
use super::writing::Writing;
use super::{NO_INDEX, PARTITIONED, PLAIN, SHAPE, TABLE, WITHOUT, WRITING};
use crate::data::accounts::{TABLES, Table};
use crate::report::figure::{Axis, Bars, Curve, Figure, Group, Lines, Plot};
use crate::report::words;
use crate::{Results, Unit};

const LARGE: &str = "large, rows a second";

type Levels<'a> = [(&'a str, &'a str); 4];

fn levels<'a>(table: Table, writing: Writing, without: &'a str, shape: &'a str) -> Levels<'a> {
    [(TABLE, table.name()), (WRITING, writing.name()), (WITHOUT, without), (SHAPE, shape)]
}

fn usual(table: Table, writing: Writing) -> Levels<'static> {
    levels(table, writing, NO_INDEX, PLAIN)
}

pub(super) fn figures(results: &Results) -> Vec<Figure> {
    let rates = TABLES.into_iter().flat_map(|table| {
        Writing::ALL.into_iter().filter_map(move |writing| {
            let name = format!("{}: {}", table.name(), writing.name());
            series(results, &name, &usual(table, writing), "rows a second")
        })
    });
    let mut all = vec![
        Figure::new(
            "Rows a second as tables grow",
            "One session. Each record or batch is a transaction that waits until it is durable.",
            lines("rows a second", Unit::PerSecond, rates.collect()),
        ),
        Figure::new(
            "Single inserts into the large table",
            "With one index left out, and in eight partitions.",
            Plot::Bars(Bars { unit: Some(Unit::PerSecond), groups: groups(results, LARGE) }),
        ),
        Figure::new(
            "WAL for each row of the large table",
            "Whole pages that are logged after a checkpoint are in it.",
            Plot::Bars(Bars { unit: Some(Unit::Bytes), groups: groups(results, "WAL per row") }),
        ),
    ];
    for table in TABLES {
        let times = QUERIES
            .iter()
            .filter_map(|query| series(results, query, &usual(table, Writing::Single), query));
        all.push(Figure::new(
            &format!("Reading from {} as it grows", table.name()),
            "Mean of five queries with all indexes: the next 30 rows of a key, rows of a day, all \
             counted, sums by group.",
            lines("time of a query", Unit::Milliseconds, times.collect()),
        ));
    }
    all
}

fn lines(name: &str, unit: Unit, lines: Vec<Curve>) -> Plot {
    let (x, y) = (Axis::log("rows in the table", Unit::Count), Axis::log(name, unit));
    Plot::Lines(Lines { x, y, lines })
}

/// Single inserts, by what the tables have.
fn groups(results: &Results, number: &str) -> Vec<Group> {
    let group = |table: Table| {
        let single = Writing::Single;
        let of = |name: &str, without: &str, shape: &str| {
            bar(results, name, &levels(table, single, without, shape), number)
        };
        let without = |columns: &&str| {
            let name = Table::index_name(columns);
            of(&format!("without {name}"), &name, PLAIN)
        };
        let bars = [of("all indexes", NO_INDEX, PLAIN)].into_iter().flatten();
        let bars = bars.chain(table.indexes().iter().filter_map(without));
        let bars = bars.chain(of("partitioned", NO_INDEX, PARTITIONED));
        Group { name: table.name().to_owned(), bars: bars.collect() }
    };
    TABLES.map(group).into()
}

pub(super) fn answer(results: &Results) -> String {
    let rate = |table, writing| results.median(&usual(table, writing), LARGE);
    let transaction = Table::Transaction;
    let Some(single) = rate(transaction, Writing::Single) else {
        return "Single inserts have not been measured.".to_owned();
    };
    let small = said(
        results,
        &usual(transaction, Writing::Single),
        "small, rows a second",
        Unit::PerSecond,
    );
    let without = transaction.indexes().iter().filter_map(|columns| {
        let name = Table::index_name(columns);
        let levels = levels(transaction, Writing::Single, &name, PLAIN);
        let rate = results.median(&levels, LARGE)?;
        Some((name, rate))
    });
    let best = without.max_by(|a, b| a.1.total_cmp(&b.1));
    let best = best.map_or(String::new(), |(name, rate)| {
        let rate = words::value(rate, Unit::PerSecond);
        format!("; the most that leaving an index out came to was {rate}, without {name}")
    });
    let batched = [Writing::Values, Writing::Copy].into_iter().filter_map(|writing| {
        let rate = rate(transaction, writing)?;
        Some(format!("{} as many by {}", words::times(rate / single.max(1e-9)), writing.name()))
    });
    let batched: Vec<String> = batched.collect();
    let batched = match batched.is_empty() {
        true => String::new(),
        false => format!("; {}", batched.join(" and ")),
    };
    format!(
        "Single inserts into the table transaction came to {} when it was large and {small} when \
         it was small, into account to {}{best}{batched}.",
        words::value(single, Unit::PerSecond),
        said(results, &usual(Table::Account, Writing::Single), LARGE, Unit::PerSecond),
    )
}
