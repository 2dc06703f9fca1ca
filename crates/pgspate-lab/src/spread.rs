//! The median of several measurements, with minimum and maximum.
//!
//! The median is one of the measurements, or the mean of the two middle ones.

use serde::Serialize;

/// A median with minimum and maximum.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
    /// The number of values.
    pub count: usize,
    /// The values in ascending order, for plots that show each of them.
    #[serde(skip)]
    pub values: Vec<f64>,
}

impl Spread {
    /// Computes the spread of some values; ignores NaN and infinity. Returns `None` without values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().filter(|it| it.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (first, last) = (values.first()?, values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            1 => values[middle],
            _ => (values[middle - 1] + values[middle]) / 2.0,
        };
        Some(Spread { median, min: *first, max: *last, count: values.len(), values })
    }

    /// Creates a spread of one value.
    pub fn exactly(value: f64) -> Spread {
        Spread { median: value, min: value, max: value, count: 1, values: vec![value] }
    }

    /// Returns whether the two ranges overlap.
    pub fn overlaps(&self, other: &Spread) -> bool {
        self.min <= other.max && other.min <= self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([f64::NAN]), None);
        let one = Spread::of([3.0]).unwrap();
        assert_eq!((one.median, one.min, one.max, one.count), (3.0, 3.0, 3.0, 1));
        let odd = Spread::of([9.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max, odd.count), (2.0, 1.0, 9.0, 3));
        assert_eq!(odd.values, [1.0, 2.0, 9.0]);
        assert_eq!(Spread::of([4.0, 1.0, 2.0, f64::INFINITY, 3.0]).unwrap().median, 2.5);
    }

    #[test]
    fn ranges_that_touch_overlap() {
        let of = |values: [f64; 2]| Spread::of(values).unwrap();
        assert!(of([1.0, 3.0]).overlaps(&of([3.0, 4.0])));
        assert!(of([1.0, 9.0]).overlaps(&Spread::exactly(5.0)));
        assert!(!of([1.0, 3.0]).overlaps(&of([3.1, 4.0])));
        assert!(!Spread::exactly(1.0).overlaps(&Spread::exactly(1.1)));
    }
}
