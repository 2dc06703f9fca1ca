//! Bars and curves of results, as several experiments draw them.

use crate::Results;
use crate::report::figure::{Bar, Curve};

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
