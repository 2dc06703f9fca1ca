//! Bars and curves of results, as several experiments draw them.

use crate::report::figure::{Bar, Curve};
use crate::report::words;
use crate::{Results, Unit};

/// A number of the trials with these levels; `None` where there is no such trial.
pub(super) fn bar(
    results: &Results,
    name: &str,
    levels: &[(&str, &str)],
    number: &str,
) -> Option<Bar> {
    Some(Bar::measured(name, results.spread(levels, number)?))
}

/// A series of the trials with these levels; `None` where there is none.
pub(super) fn series(
    results: &Results,
    name: &str,
    levels: &[(&str, &str)],
    series: &str,
) -> Option<Curve> {
    let points = results.series(levels, series);
    (!points.is_empty()).then(|| Curve { name: name.to_owned(), points })
}

/// A number by the levels of a factor that are numbers themselves.
pub(super) fn by_factor(
    results: &Results,
    name: &str,
    levels: &[(&str, &str)],
    factor: &str,
    number: &str,
) -> Option<Curve> {
    let point = |level: &String| {
        let with: Vec<(&str, &str)> =
            levels.iter().copied().chain([(factor, level.as_str())]).collect();
        Some((level.parse::<f64>().ok()?, results.spread(&with, number)?))
    };
    let mut points: Vec<_> = results.levels(factor).iter().filter_map(point).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    (!points.is_empty()).then(|| Curve { name: name.to_owned(), points })
}

/// How a number of ours compares with another for which less is better: `3.2 times as fast as`,
/// `1.4 times as slow as`.
pub(super) fn faster(ours: f64, other: f64) -> String {
    match other >= ours {
        true => format!("{} as fast as", words::times(other / ours.max(1e-9))),
        false => format!("{} as slow as", words::times(ours / other.max(1e-9))),
    }
}

/// A median with its unit, or a dash.
pub(super) fn said(results: &Results, levels: &[(&str, &str)], number: &str, unit: Unit) -> String {
    let median = results.median(levels, number);
    median.map_or_else(|| "–".to_owned(), |median| words::value(median, unit))
}
