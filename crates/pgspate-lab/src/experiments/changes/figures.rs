//! The figures and the summary sentence of the experiment `changes`.

use pgspate::numbers::{short, thousands};

use super::super::plots::by_factor;
use super::methods::ChangeMethod;
use super::{BATCH, CONTENDER};
use crate::report::figure::{Axis, Figure, Lines, Plot};
use crate::report::words;
use crate::spread::Spread;
use crate::{Comparison, Results, Unit};

const RATE: &str = "events a second";

pub(super) fn figures(results: &Results) -> Vec<Figure> {
    let of = |way: &ChangeMethod| {
        by_factor(results, way.name(), &[(CONTENDER, way.name())], BATCH, RATE)
    };
    vec![Figure::new(
        "Events a second by batch size",
        "Each batch is one transaction. Pipelined statements are sent one after the other, and \
         the client waits for their answers together. VALUES, UNNEST and COPY apply the last \
         event of each key, by a delete and an upsert. All these have the events in memory. \
         pgspate reads JSON from a file, stores its position with each batch, and merges the \
         events of a key column by column.",
        Plot::Lines(Lines {
            x: Axis::log("events in a batch", Unit::Count),
            y: Axis::log(RATE, Unit::PerSecond),
            lines: ChangeMethod::ALL.iter().filter_map(of).collect(),
        }),
    )]
}

fn rate(results: &Results, way: ChangeMethod, batch: &str) -> Option<Spread> {
    results.spread(&[(CONTENDER, way.name()), (BATCH, batch)], RATE)
}

/// Returns the other contenders at a batch size, the slowest first.
fn others(results: &Results, batch: &str) -> Vec<(ChangeMethod, Spread)> {
    let others = ChangeMethod::ALL.into_iter().filter(|way| *way != ChangeMethod::Apply);
    let mut others: Vec<(ChangeMethod, Spread)> =
        others.filter_map(|way| Some((way, rate(results, way, batch)?))).collect();
    others.sort_by(|a, b| a.1.median.total_cmp(&b.1.median));
    others
}

/// Describes where others are faster than pgspate: clearly, or only within the range of repeats.
fn beside_others(results: &Results, batches: &[(u64, String)]) -> Option<String> {
    let (mut ahead, mut perhaps, mut compared) = (Vec::new(), Vec::new(), 0);
    for (count, batch) in batches {
        let others = others(results, batch);
        let Some(ours) = rate(results, ChangeMethod::Apply, batch) else { continue };
        compared += usize::from(!others.is_empty());
        let is_ahead = |(_, other): &&(ChangeMethod, Spread)| other.median > ours.median;
        let is_distinguished = |(_, other): &&(ChangeMethod, Spread)| {
            (ours.count < 2 && other.count < 2) || !ours.overlaps(other)
        };
        let said = |(way, other): &(ChangeMethod, Spread)| {
            let (ratio, _) = words::more(other.median / ours.median.max(1e-9));
            format!("{} in batches of {} ({ratio})", way.name(), thousands(*count))
        };
        let leading = || others.iter().rev().filter(is_ahead);
        match leading().find(is_distinguished) {
            Some(best) => ahead.push(said(best)),
            None => perhaps.extend(leading().next().map(said)),
        }
    }
    if compared == 0 {
        return None;
    }
    let of_all = match compared == batches.len() {
        true => "no other measured way was faster at any batch size".to_owned(),
        false => format!(
            "no other way was faster at the {compared} of {} batch sizes at which others were \
             measured",
            batches.len()
        ),
    };
    let text = match ahead.is_empty() {
        true if perhaps.is_empty() => of_all,
        true => format!("{of_all} beyond the range of repeats"),
        false => format!("other ways were faster: {}", words::listed(&ahead)),
    };
    Some(match perhaps.is_empty() {
        true => text,
        false => format!("{text}; faster within the range of repeats: {}", words::listed(&perhaps)),
    })
}

/// Returns the measured batch sizes in ascending order, as numbers and as levels.
fn batches(results: &Results) -> Vec<(u64, String)> {
    let levels = results.levels(BATCH).into_iter();
    let mut batches: Vec<(u64, String)> =
        levels.filter_map(|level| Some((level.parse().ok()?, level))).collect();
    batches.sort();
    batches
}

/// Compares `pgspate apply` with the fastest other method at each batch size.
pub(super) fn comparisons(results: &Results) -> Vec<Comparison> {
    let compared = |(count, batch): &(u64, String)| {
        let case = format!("batches of {}", thousands(*count));
        let ours = (ChangeMethod::Apply.name(), rate(results, ChangeMethod::Apply, batch)?);
        let others = others(results, batch).into_iter().map(|(way, rate)| (way.name(), rate));
        Comparison::with_fastest(&case, ours, others, Unit::PerSecond)
    };
    batches(results).iter().filter_map(compared).collect()
}

pub(super) fn answer(results: &Results) -> String {
    let batches = batches(results);
    let largest = batches
        .iter()
        .rev()
        .find_map(|(count, batch)| Some((*count, rate(results, ChangeMethod::Apply, batch)?)));
    let Some((count, ours)) = largest else {
        return "pgspate apply has not been measured.".to_owned();
    };
    let a_second = |rate: &Spread| format!("{} events a second", short(rate.median as u64));
    let once = if ours.count > 1 { "" } else { " (made once)" };
    let mut text =
        format!("In batches of {} pgspate applied {}{once}", thousands(count), a_second(&ours));
    if let Some(single) = rate(results, ChangeMethod::Statements, "1") {
        let (ratio, preposition) = words::more(ours.median / single.median.max(1e-9));
        text += &format!(
            ", {ratio} {preposition} one committed statement for each ({})",
            a_second(&single)
        );
    }
    if let Some(others) = beside_others(results, &batches) {
        text += &format!("; {others}");
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

    fn measured(way: ChangeMethod, batch: &str, repeat: u32, rate: f64) -> ResultLine {
        let mut line = line(&[(CONTENDER, way.name()), (BATCH, batch)], repeat, 1.0);
        line.outcome.number(RATE, rate, Unit::PerSecond);
        line
    }

    fn said(lines: &[ResultLine]) -> String {
        answer(&Results::new(lines.to_vec(), Path::new(".")))
    }

    #[test]
    fn answer_uses_only_measured_trials() {
        let all = [
            measured(ChangeMethod::Statements, "1", 0, 1000.0),
            measured(ChangeMethod::Apply, "1", 0, 500.0),
            measured(ChangeMethod::Pipelined, "100", 0, 9000.0),
            measured(ChangeMethod::Staged, "1000", 0, 40_000.0),
            measured(ChangeMethod::Apply, "1000", 0, 90_000.0),
        ];
        answers::check_answers_of_incomplete_results(&all, answer);
        assert_eq!(
            said(&all),
            "In batches of 1,000 pgspate applied 90.0k events a second (made once), 90 times as \
             many as one committed statement for each (1.00k events a second); other ways were \
             faster: prepared statements in batches of 1 (2 times as many)."
        );
        let ends =
            "; no other way was faster at the 1 of 2 batch sizes at which others were measured.";
        assert!(said(&all[3..]).ends_with("; no other measured way was faster at any batch size."));
        assert!(said(&all[2..]).ends_with(ends), "{}", said(&all[2..]));
    }

    #[test]
    fn a_lead_counts_only_beyond_the_range_of_repeats() {
        let of = |rates: &[(ChangeMethod, &str, [f64; 2])]| {
            let repeats = rates.iter().flat_map(|(way, batch, rates)| {
                [0, 1].map(|repeat| measured(*way, batch, repeat, rates[repeat as usize]))
            });
            let said = said(&repeats.collect::<Vec<_>>());
            said.split_once("; ").unwrap().1.to_owned()
        };
        let ours = (ChangeMethod::Apply, "10", [100.0, 120.0]);
        assert_eq!(
            of(&[ours, (ChangeMethod::Unnest, "10", [90.0, 110.0])]),
            "no other measured way was faster at any batch size."
        );
        // The answer names a lead within the range of repeats, because the figures show it.
        let perhaps = (ChangeMethod::Unnest, "10", [115.0, 145.0]);
        let within = "UNNEST of arrays in batches of 10 (18 % more).";
        assert_eq!(
            of(&[ours, perhaps]),
            format!(
                "no other measured way was faster at any batch size beyond the range of repeats; \
                 faster within the range of repeats: {within}"
            )
        );
        // The contender with the highest median may overlap with pgspate while another does not.
        let other = (ChangeMethod::Values, "10", [126.0, 130.0]);
        let clear = "other ways were faster: multi-row VALUES in batches of 10 (16 % more)";
        assert_eq!(of(&[ours, perhaps, other]), format!("{clear}."));
        let later =
            [(ChangeMethod::Apply, "100", [1.0, 4.0]), (ChangeMethod::Unnest, "100", [3.0, 5.0])];
        assert_eq!(
            of(&[ours, other, later[0], later[1]]),
            format!(
                "{clear}; faster within the range of repeats: UNNEST of arrays in batches of 100 \
                 (60 % more)."
            )
        );
    }
}
