//! Pairs of contenders for the summary on top of the report.
//!
//! A pair has the results of one case. An experiment compares pgspate with the fastest other
//! contender of a case, also where pgspate is slower.

use crate::experiment::Unit;
use crate::spread::Spread;

/// The results of two contenders in one case.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The case, in a few words.
    pub case: String,
    /// The contender that the row is about.
    pub ours: ComparedContender,
    /// The contender that it is compared with.
    pub theirs: ComparedContender,
    /// The unit of both results: of a time, or of a rate.
    pub unit: Unit,
}

/// A contender and its result.
#[derive(Debug, Clone, PartialEq)]
pub struct ComparedContender {
    /// Its name.
    pub name: String,
    /// Its result.
    pub value: Spread,
}

impl Comparison {
    /// Creates a comparison of two contenders with their results.
    pub fn new(case: &str, ours: (&str, Spread), theirs: (&str, Spread), unit: Unit) -> Comparison {
        let contender =
            |(name, value): (&str, Spread)| ComparedContender { name: name.to_owned(), value };
        Comparison { case: case.to_owned(), ours: contender(ours), theirs: contender(theirs), unit }
    }

    /// Creates a comparison with the fastest of the others; `None` without others.
    pub fn with_fastest<'a>(
        case: &str,
        ours: (&str, Spread),
        others: impl Iterator<Item = (&'a str, Spread)>,
        unit: Unit,
    ) -> Option<Comparison> {
        let pairs = others.map(|theirs| Comparison::new(case, ours.clone(), theirs, unit));
        pairs.min_by(|a, b| a.speed_ratio().total_cmp(&b.speed_ratio()))
    }

    /// Returns the speed of `ours` divided by the speed of `theirs`.
    pub fn speed_ratio(&self) -> f64 {
        let (ours, theirs) = (self.ours.value.median, self.theirs.value.median);
        match self.unit {
            Unit::PerSecond | Unit::BytesPerSecond => ours / theirs.max(f64::MIN_POSITIVE),
            _ => theirs / ours.max(f64::MIN_POSITIVE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_other_is_compared() {
        let of = |others: [f64; 2], unit| {
            let others = ["b", "c"].into_iter().zip(others.map(Spread::exactly));
            let found = Comparison::with_fastest("", ("a", Spread::exactly(2.0)), others, unit);
            let found = found.unwrap();
            (found.theirs.name.clone(), found.speed_ratio())
        };
        assert_eq!(of([4.0, 3.0], Unit::Seconds), ("c".to_owned(), 1.5));
        assert_eq!(of([4.0, 3.0], Unit::PerSecond), ("b".to_owned(), 0.5));
        let ours = ("a", Spread::exactly(2.0));
        assert_eq!(Comparison::with_fastest("", ours, std::iter::empty(), Unit::Seconds), None);
    }
}
