//! The unit of an axis: one for all its ticks, and for the values that are written in the plot.
//!
//! The greatest value decides the unit, so that its number is short.

use pgspate::numbers::{dollars, thousands};

use crate::experiment::Unit;

/// The unit of an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct AxisUnit {
    divisor: f64,
    suffix: &'static str,
    is_money: bool,
}

impl AxisUnit {
    /// Returns the unit for values up to `max`. A logarithmic axis has whole counts, because a
    /// small count is not a readable part of a million.
    pub(super) fn of(unit: Unit, max: f64, is_log: bool) -> AxisUnit {
        const BYTES: [&str; 5] = [" B", " kB", " MB", " GB", " TB"];
        const BYTES_PER_SECOND: [&str; 5] = [" B/s", " kB/s", " MB/s", " GB/s", " TB/s"];
        const COUNT: [&str; 5] = ["", "k", "M", "G", "T"];
        const PER_SECOND: [&str; 5] = ["/s", "k/s", "M/s", "G/s", "T/s"];
        let power = |suffixes: [&'static str; 5], least: f64| {
            let is_needed =
                |nth: &usize| max >= if *nth == 1 { least } else { 1000f64.powi(*nth as i32) };
            let nth = (1..5).take_while(is_needed).last().unwrap_or(0);
            (1000f64.powi(nth as i32), suffixes[nth])
        };
        let (divisor, suffix) = match unit {
            Unit::Seconds if max < 1.0 => (0.001, " ms"),
            Unit::Seconds if max < 300.0 => (1.0, " s"),
            Unit::Seconds if max < 10_800.0 => (60.0, " min"),
            Unit::Seconds => (3600.0, " h"),
            Unit::Milliseconds => (1.0, " ms"),
            Unit::Bytes => power(BYTES, 1000.0),
            Unit::BytesPerSecond => power(BYTES_PER_SECOND, 1000.0),
            Unit::Count if is_log => (1.0, ""),
            Unit::PerSecond if is_log => (1.0, "/s"),
            Unit::Count => power(COUNT, 10_000.0),
            Unit::PerSecond => power(PER_SECOND, 10_000.0),
            Unit::Percent => (1.0, " %"),
            Unit::Plain | Unit::Dollars => (1.0, ""),
        };
        AxisUnit { divisor, suffix, is_money: unit == Unit::Dollars }
    }

    /// Returns a value in this unit.
    pub(super) fn amount(&self, value: f64) -> f64 {
        value / self.divisor
    }

    /// Formats a tick, whose value is already in this unit: `0`, `0.5 GB`, `1,000 ms`.
    pub(super) fn tick(&self, amount: f64) -> String {
        let number = match amount.fract() == 0.0 {
            true => thousands(amount.max(0.0) as u64),
            false => format!("{amount:.6}").trim_end_matches('0').to_owned(),
        };
        match amount {
            0.0 => "0".to_owned(),
            _ if self.is_money => format!("${number}"),
            _ => format!("{number}{}", self.suffix),
        }
    }

    /// Formats a value in this unit, with three significant digits, or two below 1.
    pub(super) fn value(&self, value: f64) -> String {
        if self.is_money {
            return dollars(value);
        }
        let amount = self.amount(value);
        let number = match amount {
            it if it <= 0.0 => "0".to_owned(),
            it if it >= 999.5 => thousands(it.round() as u64),
            it if self.divisor == 1.0 && it.fract() == 0.0 && self.is_count() => format!("{it:.0}"),
            it if it >= 99.95 => format!("{it:.0}"),
            it if it >= 9.995 => format!("{it:.1}"),
            it if it >= 0.9995 => format!("{it:.2}"),
            it => format!("{it:.*}", ((1.0 - it.log10().floor()) as usize).min(4)),
        };
        format!("{number}{}", self.suffix)
    }

    fn is_count(&self) -> bool {
        matches!(self.suffix, "" | " B" | "/s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::scale::AxisScale;

    fn ticks(unit: Unit, max: f64) -> Vec<String> {
        let axis = AxisUnit::of(unit, max, false);
        let scale = AxisScale::to_greatest([axis.amount(max)].into_iter());
        scale.ticks(4).into_iter().map(|tick| axis.tick(tick)).collect()
    }

    #[test]
    fn all_ticks_of_an_axis_have_one_unit() {
        assert_eq!(ticks(Unit::Seconds, 0.42), ["0", "200 ms", "400 ms"]);
        assert_eq!(ticks(Unit::Seconds, 1.6), ["0", "0.5 s", "1 s", "1.5 s"]);
        assert_eq!(ticks(Unit::Seconds, 119.0), ["0", "50 s", "100 s"]);
        assert_eq!(ticks(Unit::Seconds, 1121.0), ["0", "5 min", "10 min", "15 min"]);
        assert_eq!(ticks(Unit::Bytes, 1.6e9), ["0", "0.5 GB", "1 GB", "1.5 GB"]);
        assert_eq!(ticks(Unit::Count, 4000.0), ["0", "1,000", "2,000", "3,000", "4,000"]);
        assert_eq!(ticks(Unit::Count, 3e6), ["0", "1M", "2M", "3M"]);
        assert_eq!(ticks(Unit::PerSecond, 41_000.0), ["0", "20k/s", "40k/s"]);
        let log = AxisUnit::of(Unit::PerSecond, 1e6, true);
        assert_eq!([10.0, 1e6].map(|tick| log.tick(tick)), ["10/s", "1,000,000/s"]);
    }

    #[test]
    fn values_in_a_plot_have_the_unit_of_its_axis() {
        let seconds = AxisUnit::of(Unit::Seconds, 119.0, false);
        let said = [0.13, 9.44, 32.1, 119.0].map(|value| seconds.value(value));
        assert_eq!(said, ["0.13 s", "9.44 s", "32.1 s", "119 s"]);
        let bytes = AxisUnit::of(Unit::Bytes, 6.9e9, false);
        assert_eq!(bytes.value(12e6), "0.012 GB");
        let count = AxisUnit::of(Unit::Count, 348.0, false);
        assert_eq!([0.0, 5.0, 348.0].map(|value| count.value(value)), ["0", "5", "348"]);
        let none = AxisUnit::of(Unit::Seconds, 0.0, false);
        assert_eq!(none.value(0.0), "0 ms");
    }
}
