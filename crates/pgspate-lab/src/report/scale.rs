//! Where values are on an axis, and which of them are named there.
//!
//! Named values are those that people count by: 1, 2 and 5 times powers of ten.

/// From values to places between 0 and 1.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AxisScale {
    from: f64,
    to: f64,
    is_log: bool,
}

impl AxisScale {
    /// From zero to the greatest value.
    pub(super) fn to_greatest(values: impl Iterator<Item = f64>) -> AxisScale {
        let max = values.filter(|it| it.is_finite()).fold(0.0, f64::max);
        AxisScale { from: 0.0, to: if max > 0.0 { max } else { 1.0 }, is_log: false }
    }

    /// From zero to a named value at or above the greatest one, or to that one if it is just above
    /// a named value.
    pub(super) fn from_zero(values: impl Iterator<Item = f64>, steps: usize) -> AxisScale {
        let to = AxisScale::to_greatest(values).to;
        let step = step(to, steps);
        let to = if to - (to / step).floor() * step < step * 0.15 { to } else { ceil(to, step) };
        AxisScale { from: 0.0, to, is_log: false }
    }

    /// From the least to the greatest value.
    pub(super) fn linear(values: impl Iterator<Item = f64>) -> AxisScale {
        let (from, to) = ends(values);
        let (from, to) = if from == to { (from - 0.5, to + 0.5) } else { (from, to) };
        AxisScale { from, to, is_log: false }
    }

    /// From the power of ten below the least positive value to that above the greatest, or to the
    /// values themselves with `is_tight`.
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

    /// Where a value is: 0 at the beginning of the axis, 1 at its end.
    pub(super) fn place(&self, value: f64) -> f64 {
        let share = match self.is_log {
            true => (value.max(self.from) / self.from).ln() / (self.to / self.from).ln(),
            false => (value - self.from) / (self.to - self.from),
        };
        share.clamp(0.0, 1.0)
    }

    /// About so many values to be named, from the least to the greatest.
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
        // Divided by a whole number where the step is below one, so that 0.3 is 0.3.
        let at = |nth: i64| {
            if step < 1.0 { nth as f64 / (1.0 / step).round() } else { nth as f64 * step }
        };
        (first..=last).map(at).collect()
    }

    fn log_ticks(&self, count: usize) -> Vec<f64> {
        let first = (self.from.log10() + 1e-9).floor() as i32;
        let last = (self.to.log10() + 1e-9).floor() as i32;
        let decades = (last - first + 1).max(1) as usize;
        let parts: &[f64] = if decades * 2 <= count { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let every = decades.div_ceil(count.max(1)).max(1);
        let powers = (first..=last).step_by(every).map(|power| 10f64.powi(power));
        let all = powers.flat_map(|power| parts.iter().map(move |part| part * power));
        let margin = 1.0 + 1e-9;
        all.filter(|it| *it * margin >= self.from && *it <= self.to * margin).collect()
    }
}

fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let values = values.filter(|it| it.is_finite());
    let (from, to) = values
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(from, to), it| (from.min(it), to.max(it)));
    if from.is_finite() { (from, to) } else { (0.0, 1.0) }
}

/// 1, 2 or 5 times a power of ten, so that there are at most about so many steps.
fn step(range: f64, steps: usize) -> f64 {
    let raw = range / steps.max(1) as f64;
    let power = 10f64.powf(raw.log10().floor());
    let part = raw / power;
    let nice = [1.0, 2.0, 5.0].into_iter().find(|it| part <= it * (1.0 + 1e-9)).unwrap_or(10.0);
    nice * power
}

fn ceil(value: f64, step: f64) -> f64 {
    (value / step - 1e-9).ceil() * step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_those_that_people_count_by() {
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
    fn values_are_between_the_ends() {
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
    fn decades_are_named() {
        let log = AxisScale::log([1.0, 100_000.0].into_iter(), false);
        assert_eq!(log.ticks(6), [1.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0]);
        assert_eq!(log.ticks(3), [1.0, 100.0, 10_000.0]);
        let short = AxisScale::log([1.0, 9.0].into_iter(), false);
        assert_eq!(short.ticks(6), [1.0, 2.0, 5.0, 10.0]);
        assert_eq!(AxisScale::log(std::iter::empty(), false).ticks(4), [1.0, 2.0, 5.0, 10.0]);
    }
}
