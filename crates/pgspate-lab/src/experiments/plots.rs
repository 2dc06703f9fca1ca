//! Builders of bars and curves from trial results. Several experiments use them.

use crate::Results;
use crate::report::figure::{Bar, Curve};

/// Returns a bar for the measured `number` of the trials with these levels.
///
/// Returns `None` if no trial has these levels.
pub(super) fn bar(
    results: &Results,
    name: &str,
    levels: &[(&str, &str)],
    number: &str,
) -> Option<Bar> {
    Some(Bar::measured(name, results.spread(levels, number)?))
}

/// Returns a curve of the measured `series` of the trials with these levels.
///
/// Returns `None` if these trials recorded no such series.
pub(super) fn series(
    results: &Results,
    name: &str,
    levels: &[(&str, &str)],
    series: &str,
) -> Option<Curve> {
    let points = results.series(levels, series);
    (!points.is_empty()).then(|| Curve { name: name.to_owned(), points })
}

/// Returns a curve of the measured `number` over the levels of `factor`.
///
/// Levels that are not numbers are left out. Returns `None` if no point is left.
pub(super) fn by_factor(
    results: &Results,
    name: &str,
    levels: &[(&str, &str)],
    factor: &str,
    number: &str,
) -> Option<Curve> {
    let point = |level: &String| {
        let levels: Vec<(&str, &str)> =
            levels.iter().copied().chain([(factor, level.as_str())]).collect();
        Some((level.parse::<f64>().ok()?, results.spread(&levels, number)?))
    };
    let mut points: Vec<_> = results.levels(factor).iter().filter_map(point).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    (!points.is_empty()).then(|| Curve { name: name.to_owned(), points })
}
