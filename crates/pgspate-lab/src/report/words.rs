//! Numbers with units, formatted for the report.
//!
//! Numbers have three significant digits and always a unit.

use pgspate::numbers;

use crate::experiment::Unit;
use crate::spread::Spread;

/// Formats a number with its unit.
pub fn value(value: f64, unit: Unit) -> String {
    let whole = value.max(0.0) as u64;
    match unit {
        Unit::Seconds if value < 0.0995 => format!("{} ms", digits(value * 1000.0)),
        Unit::Seconds => numbers::seconds(value),
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

/// Formats a number shortly for an axis, without trailing zeros.
pub(super) fn tick(at: f64, unit: Unit) -> String {
    if at == 0.0 {
        return "0".to_owned();
    }
    match unit {
        Unit::Seconds if at >= 60.0 => value(at, unit),
        Unit::Seconds if at < 1.0 => format!("{} ms", shortest(at * 1000.0)),
        Unit::Seconds => format!("{} s", shortest(at)),
        _ => strip(&value(at, unit)),
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

/// Compares two times: `1.62 times as fast as`, `as fast as`, or `1.20 times as slow as`. A
/// difference below two percent counts as equal.
pub fn faster(ours: f64, theirs: f64) -> String {
    let ratio = theirs / ours.max(f64::MIN_POSITIVE);
    match ratio {
        it if it > 1.02 => format!("{} as fast as", times(it)),
        it if it < 0.98 => format!("{} as slow as", times(1.0 / it)),
        _ => "as fast as".to_owned(),
    }
}

/// Compares pgspate's time with another contender's. If the ranges of their repeats overlap, they
/// count as equal. The text notes if only the other contender was measured once.
pub fn compared(ours: &Spread, theirs: &Spread, name: &str) -> String {
    let is_repeated = ours.count > 1 || theirs.count > 1;
    if is_repeated && ours.overlaps(theirs) {
        return format!("as fast as {name} within what repeats differ by");
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

/// `a`, `a and b`, `a, b and c`.
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

fn shortest(value: f64) -> String {
    strip(&digits(value))
}

/// `1.50 GB` is `1.5 GB`, `2.00k` is `2k`.
fn strip(text: &str) -> String {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    match number.contains('.') {
        true => format!("{}{rest}", number.trim_end_matches('0').trim_end_matches('.')),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_said() {
        assert_eq!(value(0.0123, Unit::Seconds), "12.3 ms");
        assert_eq!(value(1.5, Unit::Seconds), "1.50 s");
        assert_eq!(value(1.5e9, Unit::Bytes), "1.50 GB");
        assert_eq!(value(348.0, Unit::PerSecond), "348/s");
        assert_eq!(value(48_200.0, Unit::PerSecond), "48.2k/s");
        assert_eq!(value(0.25, Unit::Plain), "0.25");
        assert_eq!(value(99.0, Unit::Percent), "99 %");
        assert_eq!(times(3.21), "3.21 times");
        assert_eq!(faster(2.0, 3.0), "1.50 times as fast as");
        assert_eq!(faster(3.0, 2.0), "1.50 times as slow as");
        assert_eq!(faster(2.0, 2.02), "as fast as");
    }

    #[test]
    fn times_differ_only_if_the_ranges_of_repeats_do() {
        let of = |values: &[f64]| Spread::of(values.iter().copied()).unwrap();
        let said = |ours: &[f64], theirs: &[f64]| compared(&of(ours), &of(theirs), "COPY");
        assert_eq!(said(&[2.0, 2.1], &[4.1, 4.2]), "2.02 times as fast as COPY");
        assert_eq!(said(&[4.0, 4.0], &[2.0, 2.0]), "2 times as slow as COPY");
        let alike = "as fast as COPY within what repeats differ by";
        assert_eq!(said(&[2.0, 3.0], &[2.9, 3.5]), alike);
        assert_eq!(said(&[2.0, 3.0], &[2.5]), alike);
        // With one trial each, the range is unknown.
        assert_eq!(said(&[2.0], &[2.0]), "as fast as COPY");
        assert_eq!(said(&[2.0], &[3.0]), "1.50 times as fast as COPY");
        assert_eq!(said(&[2.0, 2.0], &[3.0]), "1.50 times as fast as COPY (made once)");
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
    fn ticks_are_short() {
        assert_eq!(tick(0.0, Unit::Seconds), "0");
        assert_eq!(tick(0.5, Unit::Seconds), "500 ms");
        assert_eq!(tick(2.0, Unit::Seconds), "2 s");
        assert_eq!(tick(2000.0, Unit::Count), "2k");
        assert_eq!(tick(1.5e9, Unit::Bytes), "1.5 GB");
        assert_eq!(tick(100.0, Unit::Plain), "100");
    }

    #[test]
    fn a_spread_is_said_where_there_is_one() {
        assert_eq!(spread(&Spread::exactly(2.0), Unit::Seconds), "2.00 s");
        let three = Spread::of([1.0, 2.0, 4.0]).unwrap();
        assert_eq!(spread(&three, Unit::Seconds), "2.00 s (1.00 s – 4.00 s)");
        assert_eq!(spread(&Spread::of([2.0, 2.0]).unwrap(), Unit::Count), "2");
    }
}
