//! Positions of values on an axis, and the ticks of an axis.
//!
//! Ticks are round numbers: 1, 2 and 5 times powers of ten.

/// A mapping from values to positions between 0 and 1.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AxisScale {
    from: f64,
    to: f64,
    is_log: bool,
}

impl AxisScale {
    /// Returns a linear scale from zero to the greatest value.
    pub(super) fn to_greatest(values: impl Iterator<Item = f64>) -> AxisScale {
        let max = values.filter(|it| it.is_finite()).fold(0.0, f64::max);
        AxisScale { from: 0.0, to: if max > 0.0 { max } else { 1.0 }, is_log: false }
    }

    /// Returns a linear scale from zero to the first tick at or above the greatest value.
    ///
    /// If the greatest value is just above a tick, the scale ends at the greatest value instead.
    pub(super) fn from_zero(values: impl Iterator<Item = f64>, steps: usize) -> AxisScale {
        let to = AxisScale::to_greatest(values).to;
        let step = step(to, steps);
        let to = if to - (to / step).floor() * step < step * 0.15 { to } else { ceil(to, step) };
        AxisScale { from: 0.0, to, is_log: false }
    }

    /// Returns a linear scale from the least to the greatest value.
    pub(super) fn linear(values: impl Iterator<Item = f64>) -> AxisScale {
        let (from, to) = ends(values);
        let (from, to) = if from == to { (from - 0.5, to + 0.5) } else { (from, to) };
        AxisScale { from, to, is_log: false }
    }

    /// Returns a logarithmic scale for the positive values.
    ///
    /// The scale begins at the least value and ends at the greatest value if `is_tight` is true.
    /// Otherwise both ends are extended to the next power of ten.
    pub(super) fn log(values: impl Iterator<Item = f64>, is_tight: bool) -> AxisScale {
        let (min, max) = ends(values.filter(|it| *it > 0.0));
        let (min, max) = if min > 0.0 { (min, max) } else { (1.0, 10.0) };
        let (from, to) = match is_tight {
            true => (min, max),
            false => (10f64.powf(min.log10().floor()), 10f64.powf(max.log10().ceil())),
        };
        let to = if to <= from { from * 10.0 } else { to };
        AxisScale { from, to, is_log: true }
    }

    /// Returns the position of a value: 0 at the beginning of the axis, 1 at its end.
    pub(super) fn place(&self, value: f64) -> f64 {
        let position = match self.is_log {
            true => (value.max(self.from) / self.from).ln() / (self.to / self.from).ln(),
            false => (value - self.from) / (self.to - self.from),
        };
        position.clamp(0.0, 1.0)
    }

    /// Returns about `count` round values for ticks, in ascending order.
    pub(super) fn ticks(&self, count: usize) -> Vec<f64> {
        match self.is_log {
            true => self.log_ticks(count),
            false => self.linear_ticks(count),
        }
    }

    fn linear_ticks(&self, count: usize) -> Vec<f64> {
        let step = step(self.to - self.from, count);
        let first = (self.from / step - 1e-9).ceil() as i64;
        let last = (self.to / step + 1e-9).floor() as i64;
        // A step below one divides by a whole number. Thus a tick is exactly 0.3.
        let tick = |index: i64| {
            if step < 1.0 { index as f64 / (1.0 / step).round() } else { index as f64 * step }
        };
        (first..=last).map(tick).collect()
    }

    fn log_ticks(&self, count: usize) -> Vec<f64> {
        let first = (self.from.log10() + 1e-9).floor() as i32;
        let last = (self.to.log10() + 1e-9).floor() as i32;
        let decades = (last - first + 1).max(1) as usize;
        let parts: &[f64] = if decades * 2 <= count { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let decades_per_tick = decades.div_ceil(count.max(1)).max(1);
        let powers = (first..=last).step_by(decades_per_tick).map(|power| 10f64.powi(power));
        let ticks = powers.flat_map(|power| parts.iter().map(move |part| part * power));
        let margin = 1.0 + 1e-9;
        ticks.filter(|it| *it * margin >= self.from && *it <= self.to * margin).collect()
    }
}

/// Returns the least and the greatest finite value, or 0 and 1 if there is no finite value.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let values = values.filter(|it| it.is_finite());
    let (from, to) = values
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(from, to), it| (from.min(it), to.max(it)));
    if from.is_finite() { (from, to) } else { (0.0, 1.0) }
}

/// Returns a step of 1, 2 or 5 times a power of ten that divides `range` into about `steps` parts.
fn step(range: f64, steps: usize) -> f64 {
    let exact_step = range / steps.max(1) as f64;
    let power = 10f64.powf(exact_step.log10().floor());
    let digit = exact_step / power;
    let round = [1.0, 2.0, 5.0].into_iter().find(|it| digit <= it * (1.0 + 1e-9)).unwrap_or(10.0);
    round * power
}

/// Rounds a value up to a multiple of `step`.
fn ceil(value: f64, step: f64) -> f64 {
    (value / step - 1e-9).ceil() * step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers() {
        let ticks = |max: f64| AxisScale::from_zero([max].into_iter(), 5).ticks(5);
        assert_eq!(ticks(10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(0.3), [0.0, 0.1, 0.2, 0.3]);
        assert_eq!(ticks(7.3), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(ticks(6.1), [0.0, 2.0, 4.0, 6.0]);
        assert_eq!(ticks(1234.0), [0.0, 500.0, 1000.0, 1500.0]);
        assert_eq!(ticks(0.0).first(), Some(&0.0));
        assert!(ticks(1e-9).len() > 2 && ticks(1e15).len() > 2);
    }

    #[test]
    fn positions_are_between_zero_and_one() {
        let scale = AxisScale::from_zero([10.0, f64::NAN].into_iter(), 5);
        assert_eq!((scale.place(0.0), scale.place(5.0), scale.place(99.0)), (0.0, 0.5, 1.0));
        let log = AxisScale::log([3.0, 900.0].into_iter(), false);
        assert_eq!(log.place(1.0), 0.0);
        assert!((log.place(10.0) - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(log.place(0.0), 0.0);
        let one = AxisScale::linear([4.0].into_iter());
        assert_eq!(one.place(4.0), 0.5);
    }

    #[test]
    fn logarithmic_ticks_are_powers_of_ten() {
        let log = AxisScale::log([1.0, 100_000.0].into_iter(), false);
        assert_eq!(log.ticks(6), [1.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0]);
        assert_eq!(log.ticks(3), [1.0, 100.0, 10_000.0]);
        let short = AxisScale::log([1.0, 9.0].into_iter(), false);
        assert_eq!(short.ticks(6), [1.0, 2.0, 5.0, 10.0]);
        assert_eq!(AxisScale::log(std::iter::empty(), false).ticks(4), [1.0, 2.0, 5.0, 10.0]);
    }
}
