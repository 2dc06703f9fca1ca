//! What the report shows of changes by batch size.

use pgspate::numbers::{short, thousands};

use super::super::plots::by_factor;
use super::ways::Way;
use super::{BATCH, CONTENDER};
use crate::report::figure::{Axis, Figure, Lines, Plot};
use crate::report::words;
use crate::spread::Spread;
use crate::{Results, Unit};

const RATE: &str = "events a second";

pub(super) fn figures(results: &Results) -> Vec<Figure> {
    let of = |way: &Way| by_factor(results, way.name(), &[(CONTENDER, way.name())], BATCH, RATE);
    vec![Figure::new(
        "Events a second by batch size",
        "Each batch is one transaction; a batch of one prepared statement is a commit for each \
         event. Pipelined statements are sent one behind the other, and their answers are waited \
         for together. VALUES, UNNEST and COPY take the last event of each key, by a delete and \
         an upsert. All these have the events in memory; pgspate reads JSON from a file, keeps its \
         position with each batch, and takes the last values column by column.",
        Plot::Lines(Lines {
            x: Axis::log("events in a batch", Unit::Count),
            y: Axis::log(RATE, Unit::PerSecond),
            lines: Way::ALL.iter().filter_map(of).collect(),
        }),
    )]
}

fn rate(results: &Results, way: Way, batch: &str) -> Option<Spread> {
    results.spread(&[(CONTENDER, way.name()), (BATCH, batch)], RATE)
}

/// The best way other than ours at a batch size.
fn best_other(results: &Results, batch: &str) -> Option<(Way, Spread)> {
    let others = Way::ALL.into_iter().filter(|way| *way != Way::Apply);
    let others = others.filter_map(|way| Some((way, rate(results, way, batch)?)));
    others.max_by(|a, b| a.1.median.total_cmp(&b.1.median))
}

/// Where other ways are ahead of ours, and where none is.
fn beside_others(results: &Results, batches: &[(u64, String)]) -> Option<String> {
    let (mut ahead, mut compared) = (Vec::new(), 0);
    for (count, batch) in batches {
        let ours = rate(results, Way::Apply, batch);
        let Some((ours, (way, best))) = ours.zip(best_other(results, batch)) else { continue };
        compared += 1;
        let is_told_apart = (ours.count < 2 && best.count < 2) || !ours.overlaps(&best);
        if best.median > ours.median && is_told_apart {
            let ratio = words::times(best.median / ours.median.max(1e-9));
            ahead.push(format!("{} at {} ({ratio} as many)", way.name(), thousands(*count)));
        }
    }
    match (compared, ahead.is_empty()) {
        (0, _) => None,
        (_, false) => Some(format!("other ways were ahead of it with {}", words::listed(&ahead))),
        _ if compared == batches.len() => {
            Some("no other way that was measured was ahead of it at any batch size".to_owned())
        }
        _ => Some(format!(
            "no other way was ahead of it at the {compared} of {} batch sizes at which others \
             were measured",
            batches.len()
        )),
    }
}

pub(super) fn answer(results: &Results) -> String {
    let mut batches: Vec<(u64, String)> = results
        .levels(BATCH)
        .into_iter()
        .filter_map(|level| Some((level.parse().ok()?, level)))
        .collect();
    batches.sort();
    let largest = batches
        .iter()
        .rev()
        .find_map(|(count, batch)| Some((*count, rate(results, Way::Apply, batch)?)));
    let Some((count, ours)) = largest else {
        return "pgspate apply has not been measured.".to_owned();
    };
    let a_second = |rate: &Spread| format!("{} events a second", short(rate.median as u64));
    let once = if ours.count > 1 { "" } else { " (made once)" };
    let mut text =
        format!("In batches of {} pgspate applied {}{once}", thousands(count), a_second(&ours));
    if let Some(single) = rate(results, Way::Statements, "1") {
        text += &format!(
            ", {} as many as one committed statement for each ({})",
            words::times(ours.median / single.median.max(1e-9)),
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
    use crate::Line;
    use crate::report::answers;
    use crate::results::tests::line;

    fn measured(way: Way, batch: &str, repeat: u32, rate: f64) -> Line {
        let mut line = line(&[(CONTENDER, way.name()), (BATCH, batch)], repeat, 1.0);
        line.outcome.number(RATE, rate, Unit::PerSecond);
        line
    }

    fn said(lines: &[Line]) -> String {
        answer(&Results::new(lines.to_vec(), Path::new(".")))
    }

    #[test]
    fn an_answer_is_of_what_is_there() {
        let all = [
            measured(Way::Statements, "1", 0, 1000.0),
            measured(Way::Apply, "1", 0, 500.0),
            measured(Way::Pipelined, "100", 0, 9000.0),
            measured(Way::Staged, "1000", 0, 40_000.0),
            measured(Way::Apply, "1000", 0, 90_000.0),
        ];
        answers::are_whole_whatever_is_missing(&all, answer);
        assert_eq!(
            said(&all),
            "In batches of 1,000 pgspate applied 90.0k events a second (made once), 90 times as \
             many as one committed statement for each (1.00k events a second); other ways were \
             ahead of it with prepared statements at 1 (2 times as many)."
        );
        let ends = "; no other way was ahead of it at the 1 of 2 batch sizes at which others were \
                    measured.";
        assert!(
            said(&all[3..])
                .ends_with("; no other way that was measured was ahead of it at any batch size.")
        );
        assert!(said(&all[2..]).ends_with(ends), "{}", said(&all[2..]));
    }

    #[test]
    fn who_is_ahead_is_told_apart() {
        let of = |ours: [f64; 2], theirs: [f64; 2]| {
            let mut lines = Vec::new();
            for repeat in [0, 1] {
                let nth = repeat as usize;
                lines.push(measured(Way::Apply, "10", repeat, ours[nth]));
                lines.push(measured(Way::Unnest, "10", repeat, theirs[nth]));
            }
            said(&lines)
        };
        assert!(of([100.0, 120.0], [115.0, 130.0]).contains("; no other way"));
        assert!(of([100.0, 120.0], [125.0, 130.0]).contains("UNNEST of arrays at 10 (1.16 times"));
    }
}
