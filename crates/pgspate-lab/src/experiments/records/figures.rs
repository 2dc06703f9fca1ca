//! The figures and the summary sentence of the experiment `records`.

use super::super::plots::{bar, series};
use super::reads::{self, QUERIES};
use super::writing::RecordMethod;
use super::{NO_INDEX, PARTITIONED, PLAIN, SHAPE, TABLE, WITHOUT, WRITING};
use crate::data::accounts::{BankTable, TABLES};
use crate::report::figure::{Axis, BarGroup, Bars, Curve, Figure, Lines, Plot, PlotTable};
use crate::report::words;
use crate::{Comparison, ResultLine, Results, Unit};

const LARGE: &str = "large, rows a second";
/// The ratio of query times from which the report calls a query slower. Smaller ratios can be due
/// to other work of the machine.
const SLOWER: f64 = 1.5;

type Levels<'a> = [(&'a str, &'a str); 4];

fn levels<'a>(
    table: BankTable,
    writing: RecordMethod,
    without: &'a str,
    shape: &'a str,
) -> Levels<'a> {
    [(TABLE, table.name()), (WRITING, writing.name()), (WITHOUT, without), (SHAPE, shape)]
}

fn usual(table: BankTable, writing: RecordMethod) -> Levels<'static> {
    levels(table, writing, NO_INDEX, PLAIN)
}

pub(super) fn figures(results: &Results) -> Vec<Figure> {
    let rates = TABLES.into_iter().flat_map(|table| {
        RecordMethod::ALL.into_iter().filter_map(move |writing| {
            let name = format!("{}: {}", table.name(), writing.name());
            series(results, &name, &usual(table, writing), "rows a second")
        })
    });
    let alike = alike(results);
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
            "Includes the full-page images that the server logs after a checkpoint.",
            Plot::Bars(Bars { unit: Some(Unit::Bytes), groups: groups(results, "WAL per row") }),
        ),
    ];
    for table in TABLES {
        let times = QUERIES
            .iter()
            .filter_map(|query| series(&alike, query, &usual(table, RecordMethod::Single), query));
        all.push(Figure::new(
            &format!("Reading from {} as it grows", table.name()),
            "Mean of five queries with all indexes: the next 30 rows of a key, rows of a day, all \
             counted, sums by group.",
            lines("time of a query", Unit::Milliseconds, times.collect()),
        ));
    }
    all.push(Figure::new(
        "Reading from the large tables, by what is changed",
        "The same queries where an index is left out, or the table has eight partitions: what \
         writing gains, reading may pay.",
        Plot::Table(reading(&alike)),
    ));
    all
}

fn lines(name: &str, unit: Unit, lines: Vec<Curve>) -> Plot {
    let (x, y) = (Axis::log("rows in the table", Unit::Count), Axis::log(name, unit));
    Plot::Lines(Lines { x, y, lines })
}

/// Returns the variants of a table that differ from "all indexes": the label and the levels.
fn changes(table: BankTable) -> Vec<(String, String, &'static str)> {
    let without = table.indexes().iter().map(|columns| {
        let name = BankTable::index_name(columns);
        (format!("without {name}"), name, PLAIN)
    });
    let first = ("all indexes".to_owned(), NO_INDEX.to_owned(), PLAIN);
    let last = ("partitioned".to_owned(), NO_INDEX.to_owned(), PARTITIONED);
    [first].into_iter().chain(without).chain([last]).collect()
}

/// Returns results in which all queries were timed in the same way.
///
/// If some trials ran each query once before timing, the other trials are left out.
fn alike(results: &Results) -> Results {
    let is_new = |line: &ResultLine| line.outcome.notes.iter().any(|note| note == reads::NOTE);
    let has_new = results.measured().any(is_new);
    results.only(|line| !has_new || is_new(line))
}

/// Returns the milliseconds of a query on the table at its largest size.
fn reading_takes(results: &Results, levels: &Levels<'_>, query: &str) -> Option<f64> {
    Some(results.series(levels, query).last()?.1.median)
}

fn reading(results: &Results) -> PlotTable {
    let mut rows = Vec::new();
    for table in TABLES {
        for (name, without, shape) in changes(table) {
            let levels = levels(table, RecordMethod::Single, &without, shape);
            let times = QUERIES.map(|query| reading_takes(results, &levels, query));
            if times.iter().any(Option::is_some) {
                let said = |time: &Option<f64>| {
                    time.map_or(String::new(), |time| words::value(time, Unit::Milliseconds))
                };
                let first = format!("{}: {name}", table.name());
                rows.push([first].into_iter().chain(times.iter().map(said)).collect());
            }
        }
    }
    let columns = [String::new()].into_iter().chain(QUERIES.map(str::to_owned)).collect();
    PlotTable { columns, rows }
}

/// Returns bars of single inserts, by the indexes and partitions of the tables.
fn groups(results: &Results, number: &str) -> Vec<BarGroup> {
    let group = |table: BankTable| {
        let of = |(name, without, shape): (String, String, &str)| {
            bar(results, &name, &levels(table, RecordMethod::Single, &without, shape), number)
        };
        let bars = changes(table).into_iter().filter_map(of);
        BarGroup { name: table.name().to_owned(), bars: bars.collect() }
    };
    TABLES.map(group).into()
}

fn rows_a_second(rate: f64) -> String {
    format!("{} rows a second", words::value(rate, Unit::Count))
}

/// Describes the index whose absence makes writing fastest, and how much slower queries are.
fn best_without(results: &Results) -> Option<String> {
    let table = BankTable::Transaction;
    let without = table.indexes().iter().filter_map(|columns| {
        let name = BankTable::index_name(columns);
        let rate = results.median(&levels(table, RecordMethod::Single, &name, PLAIN), LARGE)?;
        Some((name, rate))
    });
    let (name, rate) = without.max_by(|a, b| a.1.total_cmp(&b.1))?;
    let mut text = format!(
        "With one index left out, transaction reached at most {}, without the index {name}",
        rows_a_second(rate)
    );
    let (its, alike) = (levels(table, RecordMethod::Single, &name, PLAIN), alike(results));
    let slower = QUERIES.iter().filter_map(|query| {
        let before = reading_takes(&alike, &usual(table, RecordMethod::Single), query)?;
        Some((*query, before, reading_takes(&alike, &its, query)?))
    });
    let worst = slower.max_by(|a, b| (a.2 / a.1).total_cmp(&(b.2 / b.1)));
    if let Some((query, before, then)) = worst.filter(|(_, before, then)| *then > before * SLOWER) {
        let said = |millis| words::value(millis, Unit::Milliseconds);
        text += &format!(
            "; then {} took {} instead of {}",
            reads::said(query),
            said(then),
            said(before)
        );
    }
    Some(text)
}

/// Compares batches with single inserts into each large table.
pub(super) fn comparisons(results: &Results) -> Vec<Comparison> {
    let compared = |table: BankTable, writing: RecordMethod| {
        let rate = |writing: RecordMethod| {
            Some((writing.name(), results.spread(&usual(table, writing), LARGE)?))
        };
        let case = format!("large table {}", table.name());
        let (ours, theirs) = (rate(writing)?, rate(RecordMethod::Single)?);
        Some(Comparison::new(&case, ours, theirs, Unit::PerSecond))
    };
    let of_table = |table| {
        let batched = [RecordMethod::Values, RecordMethod::Copy];
        batched.into_iter().filter_map(move |writing| compared(table, writing))
    };
    TABLES.into_iter().flat_map(of_table).collect()
}

pub(super) fn answer(results: &Results) -> String {
    let rate = |table, writing, number| {
        Some(rows_a_second(results.median(&usual(table, writing), number)?))
    };
    let transaction = BankTable::Transaction;
    let Some(single) = results.median(&usual(transaction, RecordMethod::Single), LARGE) else {
        return "Single inserts have not been measured.".to_owned();
    };
    let large = rows_a_second(single);
    let mut text = format!("Single inserts reached {large} in the large table transaction");
    if let Some(small) = rate(transaction, RecordMethod::Single, "small, rows a second") {
        text += &format!(" and {small} when it was small");
    }
    if let Some(account) = rate(BankTable::Account, RecordMethod::Single, LARGE) {
        text += &format!(". In the large table account they reached {account}");
    }
    if let Some(best) = best_without(results) {
        text += &format!(". {best}");
    }
    let batched = [RecordMethod::Values, RecordMethod::Copy].into_iter().filter_map(|writing| {
        let rate = results.median(&usual(transaction, writing), LARGE)?;
        Some(format!("{} by {}", words::more(rate / single.max(1e-9)).0, writing.name()))
    });
    let batched: Vec<String> = batched.collect();
    if !batched.is_empty() {
        text += &format!(
            ". Compared with single inserts, rows a second into transaction were {}",
            words::listed(&batched)
        );
    }
    text + "."
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::report::answers;
    use crate::results::tests::line;

    fn measured(levels: &Levels<'_>, rate: f64, filtered: f64) -> ResultLine {
        let mut line = line(levels, 0, 1.0);
        line.outcome.number(LARGE, rate, Unit::PerSecond);
        line.outcome.number("small, rows a second", rate * 2.0, Unit::PerSecond);
        if levels[1].1 == RecordMethod::Single.name() {
            for at in [10.0, 20.0] {
                line.outcome.point("filtered", Unit::Milliseconds, at, filtered * at);
                line.outcome.point("count", Unit::Milliseconds, at, at);
            }
        }
        line
    }

    fn all() -> Vec<ResultLine> {
        let single = |table, without, shape| levels(table, RecordMethod::Single, without, shape);
        let transaction = BankTable::Transaction;
        vec![
            measured(&single(transaction, NO_INDEX, PLAIN), 100.0, 0.5),
            measured(&single(transaction, "reference", PLAIN), 120.0, 5.0),
            measured(&single(transaction, "account + booked", PLAIN), 110.0, 0.5),
            measured(&single(transaction, NO_INDEX, PARTITIONED), 90.0, 0.6),
            measured(&usual(transaction, RecordMethod::Values), 400.0, 0.0),
            measured(&usual(transaction, RecordMethod::Copy), 900.0, 0.0),
            measured(&usual(BankTable::Account, RecordMethod::Single), 300.0, 0.5),
        ]
    }

    #[test]
    fn answer_uses_measured_trials_and_says_how_much_slower_queries_are() {
        answers::check_answers_of_incomplete_results(&all(), answer);
        let answer = answer(&Results::new(all(), Path::new(".")));
        assert_eq!(
            answer,
            "Single inserts reached 100 rows a second in the large table transaction and 200 rows \
             a second when it was small. In the large table account they reached 300 rows a \
             second. With one index left out, transaction reached at most 120 rows a second, \
             without the index reference; then the rows of a day took 100 ms instead of 10 ms. \
             Compared with single inserts, rows a second into transaction were 4 times as many by \
             multi-row inserts and 9 times as many by COPY of batches."
        );
    }

    #[test]
    fn query_times_with_and_without_a_first_run_are_not_mixed() {
        let levels = usual(BankTable::Account, RecordMethod::Single);
        let (old, mut new) = (measured(&levels, 300.0, 5.0), measured(&levels, 310.0, 0.5));
        new.outcome.notes.push(reads::NOTE.to_owned());
        let cells = |lines: &[ResultLine]| {
            let results = Results::new(lines.to_vec(), Path::new("."));
            reading(&alike(&results)).rows.concat().join("|")
        };
        assert_eq!(cells(std::slice::from_ref(&old)), "account: all indexes||100 ms|20 ms|");
        assert_eq!(cells(&[old, new]), "account: all indexes||10 ms|20 ms|");
    }

    #[test]
    fn query_times_are_shown_for_every_variant_of_a_table() {
        let table = reading(&Results::new(all(), Path::new(".")));
        assert_eq!(table.columns, ["", "30 rows", "filtered", "count", "group by"]);
        let cells: Vec<String> = table.rows.iter().map(|row| row.join("|")).collect();
        assert_eq!(
            cells,
            [
                "account: all indexes||10 ms|20 ms|",
                "transaction: all indexes||10 ms|20 ms|",
                "transaction: without account + booked||10 ms|20 ms|",
                "transaction: without reference||100 ms|20 ms|",
                "transaction: partitioned||12 ms|20 ms|",
            ]
        );
    }
}
