//! The figures and the summary sentence of the experiment `callers`.

use super::super::plots::{bar, by_factor};
use super::senders::CallerMethod;
use super::{
    CALLERS, FAST, FLUSH, P99, RATE, ROUND_TRIP, ROUND_TRIPS, SENDING, SERVER_CPU, SLOW, TABLE,
};
use crate::data::accounts::{BankTable, TABLES};
use crate::report::figure::{Axis, BarGroup, Bars, Curve, Figure, Lines, Plot};
use crate::report::words;
use crate::{Comparison, Results, Spread, Unit};

/// The cases with another way to the server or another disk.
const VARIED: [(&str, &str, &str); 4] = [
    ("no delay", ROUND_TRIPS[1].0, FAST),
    ("1 ms round trip", ROUND_TRIPS[0].0, FAST),
    ("5 ms round trip", ROUND_TRIPS[2].0, FAST),
    ("1 ms round trip, slow flush", ROUND_TRIPS[0].0, SLOW),
];

type Levels<'a> = [(&'a str, &'a str); 4];

fn levels<'a>(table: BankTable, method: CallerMethod, place: (&'a str, &'a str)) -> Levels<'a> {
    let (round_trip, flush) = place;
    [(TABLE, table.name()), (SENDING, method.name()), (ROUND_TRIP, round_trip), (FLUSH, flush)]
}

fn usual(table: BankTable, method: CallerMethod) -> Levels<'static> {
    levels(table, method, (ROUND_TRIPS[0].0, FAST))
}

/// Returns a number of the trials with these levels and this number of callers.
fn spread(results: &Results, levels: &Levels<'_>, callers: &str, number: &str) -> Option<Spread> {
    let all: Vec<_> = levels.iter().copied().chain([(CALLERS, callers)]).collect();
    results.spread(&all, number)
}

fn curves(results: &Results, table: BankTable, number: &str) -> Vec<Curve> {
    let curve = |method: CallerMethod| {
        by_factor(results, method.name(), &usual(table, method), CALLERS, number)
    };
    CallerMethod::ALL.into_iter().filter_map(curve).collect()
}

pub(super) fn figures(results: &Results) -> Vec<Figure> {
    let lines = |table, number: &str, unit| {
        let (x, y) = (Axis::log("callers", Unit::Count), Axis::log(number, unit));
        Plot::Lines(Lines { x, y, lines: curves(results, table, number) })
    };
    let mut all = Vec::new();
    for table in TABLES {
        let name = table.name();
        all.push(Figure::new(
            &format!("Records a second into {name}"),
            "Each caller waits until its record is durable. The round trip takes 1 ms longer than \
             on this machine.",
            lines(table, RATE, Unit::PerSecond),
        ));
        all.push(Figure::new(
            &format!("Waits of callers that write into {name}"),
            "99 of 100 calls were answered within this time.",
            lines(table, P99, Unit::Milliseconds),
        ));
    }
    let cpu = BankTable::Account;
    all.push(Figure::new(
        "The server's CPU time for each record into account",
        "All processes of the server, in milliseconds.",
        lines(cpu, SERVER_CPU, Unit::Milliseconds),
    ));
    all.push(Figure::new(
        "Records a second into account, by the way to the server and its disk",
        "A slow flush sleeps 2 ms before it writes (commit_delay).",
        Plot::Bars(Bars { unit: Some(Unit::PerSecond), groups: groups(results) }),
    ));
    all
}

fn groups(results: &Results) -> Vec<BarGroup> {
    let group = |(name, round_trip, flush): (&str, &str, &str)| {
        let mut bars = Vec::new();
        for method in CallerMethod::ALL {
            let levels = levels(BankTable::Account, method, (round_trip, flush));
            for callers in ["1", "64", "256"] {
                let all: Vec<_> = levels.iter().copied().chain([(CALLERS, callers)]).collect();
                let name = format!("{}, {callers}", method.name());
                bars.extend(bar(results, &name, &all, RATE));
            }
        }
        BarGroup { name: name.to_owned(), bars }
    };
    VARIED.map(group).into()
}

/// Compares the writer with a session for each caller, or with one session where a server would
/// need too many.
pub(super) fn comparisons(results: &Results) -> Vec<Comparison> {
    let compared = |table: BankTable, callers: &str, others: &str| {
        let rate = |method, callers: &str| spread(results, &usual(table, method), callers, RATE);
        let ours = rate(CallerMethod::Writer, callers)?;
        let theirs = rate(CallerMethod::Sessions, others)?;
        let counted = |count: &str, noun: &str| match count {
            "1" => format!("1 {noun}"),
            _ => format!("{count} {noun}s"),
        };
        let case = format!("{} into {}", counted(callers, "caller"), table.name());
        let name = counted(others, "session");
        let (ours, theirs) = ((CallerMethod::Writer.name(), ours), (name.as_str(), theirs));
        Some(Comparison::new(&case, ours, theirs, Unit::PerSecond))
    };
    let of_table = |table| {
        let pairs = [("1", "1"), ("64", "64"), ("256", "64"), ("1000", "64")];
        pairs.into_iter().filter_map(move |(callers, others)| compared(table, callers, others))
    };
    TABLES.into_iter().flat_map(of_table).collect()
}

pub(super) fn answer(results: &Results) -> String {
    let rate = |method, callers: &str| {
        let levels = usual(BankTable::Account, method);
        Some(spread(results, &levels, callers, RATE)?.median)
    };
    let said = |rate: f64| words::value(rate, Unit::Count);
    let Some(one) = rate(CallerMethod::Sessions, "1") else {
        return "One caller with a session has not been measured.".to_owned();
    };
    let mut text = format!("One caller with a session wrote {} records a second", said(one));
    let mut parts = Vec::new();
    for (method, callers) in [
        (CallerMethod::Sessions, "64"),
        (CallerMethod::Batcher, "64"),
        (CallerMethod::Writer, "1"),
        (CallerMethod::Writer, "64"),
        (CallerMethod::Writer, "256"),
        (CallerMethod::Writer, "1000"),
        (CallerMethod::Serve, "64"),
        (CallerMethod::ServeHundred, "64"),
    ] {
        if let Some(rate) = rate(method, callers) {
            let way = match method {
                CallerMethod::Sessions => "with a session each".to_owned(),
                _ => format!("by {}", method.name()),
            };
            let who =
                if callers == "1" { "1 caller".to_owned() } else { format!("{callers} callers") };
            parts.push(format!("{who} {way} wrote {}", said(rate)));
        }
    }
    if !parts.is_empty() {
        text += &format!("; {}", words::listed(&parts));
    }
    text + "."
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::ResultLine;
    use crate::report::answers;
    use crate::results::tests::line;

    fn measured(method: CallerMethod, callers: &str, rate: f64) -> ResultLine {
        let levels = usual(BankTable::Account, method);
        let all: Vec<_> = levels.iter().copied().chain([(CALLERS, callers)]).collect();
        let mut line = line(&all, 0, 1.0);
        line.outcome.number(RATE, rate, Unit::PerSecond);
        line
    }

    fn all() -> Vec<ResultLine> {
        vec![
            measured(CallerMethod::Sessions, "1", 800.0),
            measured(CallerMethod::Sessions, "64", 16_000.0),
            measured(CallerMethod::Writer, "1", 780.0),
            measured(CallerMethod::Writer, "64", 32_000.0),
        ]
    }

    #[test]
    fn answer_shows_one_caller_beside_many() {
        answers::check_answers_of_incomplete_results(&all(), answer);
        assert_eq!(
            answer(&Results::new(all(), Path::new("."))),
            "One caller with a session wrote 800 records a second; 64 callers with a session each \
             wrote 16.0k, 1 caller by pgspate's writer wrote 780 and 64 callers by pgspate's \
             writer wrote 32.0k."
        );
    }

    #[test]
    fn equal_numbers_of_callers_are_compared() {
        let compared = comparisons(&Results::new(all(), Path::new(".")));
        let cases: Vec<_> =
            compared.iter().map(|it| (it.case.as_str(), it.speed_ratio())).collect();
        assert_eq!(cases, [("1 caller into account", 0.975), ("64 callers into account", 2.0)]);
    }
}
