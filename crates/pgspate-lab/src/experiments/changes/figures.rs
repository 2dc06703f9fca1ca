//! What the report shows of changes by batch size.

use pgspate::numbers::{short, thousands};

use super::super::plots::by_factor;
use super::ways::Way;
use super::{BATCH, CONTENDER};
use crate::report::figure::{Axis, Figure, Lines, Plot};
use crate::report::words;
use crate::{Results, Unit};

const RATE: &str = "events a second";

pub(super) fn figures(results: &Results) -> Vec<Figure> {
    let of = |way: &Way| by_factor(results, way.name(), &[(CONTENDER, way.name())], BATCH, RATE);
    vec![Figure::new(
        "Events a second by batch size",
        "Each batch is one transaction; a batch of one prepared statement is a commit for each \
         event. VALUES and UNNEST take the last event of each key, by a delete and an upsert, and \
         have the events in memory; pgspate reads JSON from a file, keeps its position with each \
         batch, and takes the last values column by column.",
        Plot::Lines(Lines {
            x: Axis::log("events in a batch", Unit::Count),
            y: Axis::log(RATE, Unit::PerSecond),
            lines: Way::ALL.iter().filter_map(of).collect(),
        }),
    )]
}

pub(super) fn answer(results: &Results) -> String {
    let rate =
        |way: Way, batch: &str| results.median(&[(CONTENDER, way.name()), (BATCH, batch)], RATE);
    let mut batches: Vec<(u64, String)> = results
        .levels(BATCH)
        .into_iter()
        .filter_map(|level| Some((level.parse().ok()?, level)))
        .collect();
    batches.sort();
    let Some((largest_count, largest)) = batches.last() else {
        return "Nothing has been measured.".to_owned();
    };
    let (Some(ours), Some(single)) = (rate(Way::Apply, largest), rate(Way::Statements, "1")) else {
        return "The ends of the scale have not been measured.".to_owned();
    };
    // Where another way is ahead of ours, it is said.
    let ahead: Vec<String> = batches
        .iter()
        .filter_map(|(count, batch)| {
            let ours = rate(Way::Apply, batch)?;
            let others = Way::ALL.into_iter().filter(|way| *way != Way::Apply);
            let others = others.filter_map(|way| Some((way, rate(way, batch)?)));
            let (way, best) = others.max_by(|a, b| a.1.total_cmp(&b.1))?;
            let ratio = words::times(best / ours);
            let batch = thousands(*count);
            (best > ours).then(|| format!("{} at {batch} ({ratio} as many)", way.name()))
        })
        .collect();
    let unfavourable = match ahead.is_empty() {
        true => "no other way was ahead of it at any batch size".to_owned(),
        false => format!("other ways were ahead of it with {}", ahead.join(", ")),
    };
    let a_second = |rate: f64| format!("{} events a second", short(rate as u64));
    format!(
        "In batches of {} pgspate applied {}, {} as many as one committed statement for each ({}); \
         {unfavourable}.",
        thousands(*largest_count),
        a_second(ours),
        words::times(ours / single.max(1e-9)),
        a_second(single),
    )
}
