//! Numbers with units, formatted for the report.
//!
//! Numbers have three significant digits and always a unit.

use pgspate::numbers;

use crate::comparison::Comparison;
use crate::experiment::Unit;
use crate::spread::Spread;

/// Formats a number with its unit.
pub fn value(value: f64, unit: Unit) -> String {
    let whole = value.max(0.0) as u64;
    match unit {
        Unit::Seconds if value < 0.0995 => format!("{} ms", digits(value * 1000.0)),
        Unit::Seconds if value < 59.95 => numbers::seconds(value),
        Unit::Seconds if value < 600.0 => format!("{value:.0} s"),
        Unit::Seconds if value < 7200.0 => format!("{:.1} min", value / 60.0),
        Unit::Seconds => format!("{:.1} h", value / 3600.0),
        Unit::Milliseconds => format!("{} ms", digits(value)),
        Unit::Bytes => numbers::bytes(whole),
        Unit::BytesPerSecond => numbers::rate(value),
        Unit::Count if value < 1000.0 => digits(value),
        Unit::Count => numbers::short(whole),
        Unit::PerSecond if value < 1000.0 => format!("{}/s", digits(value)),
        Unit::PerSecond => format!("{}/s", numbers::short(whole)),
        Unit::Percent => format!("{} %", digits(value)),
        Unit::Plain => digits(value),
        Unit::Dollars => numbers::dollars(value),
    }
}

/// Formats a median, with minimum and maximum if they differ.
pub fn spread(of: &Spread, unit: Unit) -> String {
    let median = value(of.median, unit);
    let (min, max) = (value(of.min, unit), value(of.max, unit));
    if of.count < 2 || (min == median && max == median) {
        return median;
    }
    format!("{median} ({min} – {max})")
}

/// Describes a ratio of speeds, with the word that comes before the other contender: `18 % slower`
/// and `than`, or `3 times as fast` and `as`. A difference below two percent counts as equal.
fn pace(ratio: f64) -> (String, &'static str) {
    let percent = |ratio: f64| format!("{:.0} %", (ratio - 1.0) * 100.0);
    match ratio {
        it if it >= 2.0 => (format!("{} as fast", times(it)), "as"),
        it if it > 1.02 => (format!("{} faster", percent(it)), "than"),
        it if it >= 0.98 => ("as fast".to_owned(), "as"),
        it if it > 0.5 => (format!("{} slower", percent(1.0 / it)), "than"),
        it => (format!("{} slower", times(1.0 / it)), "than"),
    }
}

/// Compares two times: `18 % faster than`, `3 times as fast as`, `as fast as`, `9 % slower than`.
pub fn faster(ours: f64, theirs: f64) -> String {
    let (text, preposition) = pace(theirs / ours.max(f64::MIN_POSITIVE));
    format!("{text} {preposition}")
}

/// Describes a ratio of counts, with the word that comes before the other contender: `18 % more`
/// and `than`, or `3 times as many` and `as`.
pub fn more(ratio: f64) -> (String, &'static str) {
    match ratio {
        it if it >= 2.0 => (format!("{} as many", times(it)), "as"),
        it if it > 1.02 => (format!("{:.0} % more", (it - 1.0) * 100.0), "than"),
        it if it >= 0.98 => ("as many".to_owned(), "as"),
        it => (format!("{:.0} % fewer", (1.0 - it) * 100.0), "than"),
    }
}

/// Describes how one contender's speed differs from another's, as a table says it. If the ranges
/// of their repeats overlap, they count as equal.
pub(super) fn verdict(compared: &Comparison) -> String {
    let (ours, theirs) = (&compared.ours.value, &compared.theirs.value);
    if is_equal_within_repeats(ours, theirs) {
        return "equal within repeats".to_owned();
    }
    match compared.speed_ratio() {
        ratio if (0.98..=1.02).contains(&ratio) => "equal".to_owned(),
        ratio => pace(ratio).0,
    }
}

fn is_equal_within_repeats(ours: &Spread, theirs: &Spread) -> bool {
    (ours.count > 1 || theirs.count > 1) && ours.overlaps(theirs)
}

/// Compares pgspate's time with another contender's. If the ranges of their repeats overlap, they
/// count as equal. The text notes if only the other contender was measured once.
pub fn compared(ours: &Spread, theirs: &Spread, name: &str) -> String {
    if is_equal_within_repeats(ours, theirs) {
        return format!("as fast as {name} within the range of repeats");
    }
    let once = if ours.count > 1 { once(theirs) } else { "" };
    format!("{} {name}{once}", faster(ours.median, theirs.median))
}

/// Formats a median with its unit, and notes if it was measured once.
pub fn measured(of: &Spread, unit: Unit) -> String {
    format!("{}{}", value(of.median, unit), once(of))
}

fn once(of: &Spread) -> &'static str {
    if of.count > 1 { "" } else { " (made once)" }
}

/// Joins words: `a`, `a and b`, `a, b and c`.
pub fn listed(all: &[String]) -> String {
    match all {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Formats a ratio: `3.2 times`.
pub fn times(ratio: f64) -> String {
    format!("{} times", digits(ratio))
}

fn digits(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        it if it < 0.01 => format!("{value:.4}"),
        it if it < 9.995 && value.fract() != 0.0 => format!("{value:.2}"),
        it if it < 99.95 && value.fract() != 0.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_said() {
        assert_eq!(value(0.0123, Unit::Seconds), "12.3 ms");
        assert_eq!(value(1.5, Unit::Seconds), "1.50 s");
        assert_eq!(value(119.2, Unit::Seconds), "119 s");
        assert_eq!(value(1121.0, Unit::Seconds), "18.7 min");
        assert_eq!(value(9000.0, Unit::Seconds), "2.5 h");
        assert_eq!(value(1.5e9, Unit::Bytes), "1.50 GB");
        assert_eq!(value(348.0, Unit::PerSecond), "348/s");
        assert_eq!(value(48_200.0, Unit::PerSecond), "48.2k/s");
        assert_eq!(value(0.25, Unit::Plain), "0.25");
        assert_eq!(value(99.0, Unit::Percent), "99 %");
        assert_eq!(times(3.21), "3.21 times");
    }

    #[test]
    fn small_differences_are_said_in_percent() {
        assert_eq!(faster(2.0, 3.0), "50 % faster than");
        assert_eq!(faster(2.0, 6.0), "3 times as fast as");
        assert_eq!(faster(1.18, 1.0), "18 % slower than");
        assert_eq!(faster(3.0, 1.0), "3 times slower than");
        assert_eq!(faster(2.0, 2.02), "as fast as");
        let said = |ratio| more(ratio).0;
        assert_eq!(
            [1.18, 90.0, 1.0, 0.85].map(said),
            ["18 % more", "90 times as many", "as many", "15 % fewer"]
        );
    }

    #[test]
    fn a_table_says_who_is_faster() {
        let of = |values: &[f64]| Spread::of(values.iter().copied()).unwrap();
        let said = |ours: &[f64], theirs: &[f64], unit| {
            verdict(&Comparison::new("", ("a", of(ours)), ("b", of(theirs)), unit))
        };
        assert_eq!(said(&[13.1], &[11.1], Unit::Seconds), "18 % slower");
        assert_eq!(said(&[13.1], &[11.1], Unit::PerSecond), "18 % faster");
        assert_eq!(said(&[1.0], &[3.0], Unit::Seconds), "3 times as fast");
        assert_eq!(said(&[1.0], &[1.0], Unit::Seconds), "equal");
        assert_eq!(said(&[1.0, 3.0], &[2.0], Unit::Seconds), "equal within repeats");
    }

    #[test]
    fn overlapping_ranges_of_repeats_count_as_equal_times() {
        let of = |values: &[f64]| Spread::of(values.iter().copied()).unwrap();
        let said = |ours: &[f64], theirs: &[f64]| compared(&of(ours), &of(theirs), "COPY");
        assert_eq!(said(&[2.0, 2.1], &[4.1, 4.2]), "2.02 times as fast as COPY");
        assert_eq!(said(&[4.0, 4.0], &[2.0, 2.0]), "2 times slower than COPY");
        let alike = "as fast as COPY within the range of repeats";
        assert_eq!(said(&[2.0, 3.0], &[2.9, 3.5]), alike);
        assert_eq!(said(&[2.0, 3.0], &[2.5]), alike);
        // With one trial each, the range is unknown.
        assert_eq!(said(&[2.0], &[2.0]), "as fast as COPY");
        assert_eq!(said(&[2.0], &[3.0]), "50 % faster than COPY");
        assert_eq!(said(&[2.0, 2.0], &[3.0]), "50 % faster than COPY (made once)");
        assert_eq!(measured(&of(&[2.0]), Unit::Seconds), "2.00 s (made once)");
        assert_eq!(measured(&of(&[2.0, 2.0]), Unit::Seconds), "2.00 s");
    }

    #[test]
    fn lists_are_said() {
        let of = |all: &[&str]| listed(&all.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&[]), "");
        assert_eq!(of(&["a"]), "a");
        assert_eq!(of(&["a", "b", "c"]), "a, b and c");
    }

    #[test]
    fn a_spread_is_shown_if_values_differ() {
        assert_eq!(spread(&Spread::exactly(2.0), Unit::Seconds), "2.00 s");
        let three = Spread::of([1.0, 2.0, 4.0]).unwrap();
        assert_eq!(spread(&three, Unit::Seconds), "2.00 s (1.00 s – 4.00 s)");
        assert_eq!(spread(&Spread::of([2.0, 2.0]).unwrap(), Unit::Count), "2");
    }
}
