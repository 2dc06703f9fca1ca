//! Predictions for meters: the results of a job that replaces them every night.
//!
//! The mix follows published numbers of four hundred such jobs. Each night deletes 15 % of a
//! meter's rows, changes 43 %, keeps 42 %, and adds as many rows as it deletes.

use pgspate::encode::arrow::calendar::write_timestamp;

use super::{GeneratedRows, NumberedRows, SeededRandom, put};

/// Rows per meter by default.
pub const ROWS: u32 = 3000;

/// The table's name.
pub const TABLE: &str = "use_prediction";

/// The table's columns; the first two are the key.
pub const COLUMNS: &str = "meter, occurred, prediction";

/// The statement that creates the table.
pub const CREATE: &str = "create table use_prediction (meter int, occurred timestamp, \
                          prediction numeric(12, 3), primary key (meter, occurred))";

/// Seconds from 1970 to the beginning of 2026.
const BEGIN_SECONDS: i64 = 20_454 * 86_400;

const DROPPED_PERCENT: usize = 15;
const CHANGED_PERCENT: usize = 43;

/// One prediction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prediction {
    /// The quarter of an hour, counted from the beginning of 2026.
    pub quarter: u32,
    /// The predicted value, in thousandths.
    pub thousandths: u32,
}

impl Prediction {
    /// Returns the predicted time, as PostgreSQL writes it.
    pub fn occurred(&self) -> String {
        let mut text = Vec::new();
        let seconds = BEGIN_SECONDS + 900 * i64::from(self.quarter);
        write_timestamp(seconds, 0, ' ', "", &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Returns the predicted value, with three decimal places.
    pub fn prediction(&self) -> String {
        format!("{}.{:03}", self.thousandths / 1000, self.thousandths % 1000)
    }
}

/// The predictions of all meters that the table must have after a night.
#[derive(Debug, Clone)]
pub struct NightlyPredictions {
    random: SeededRandom,
    /// The predictions of each meter, sorted by time.
    meters: Vec<Vec<Prediction>>,
}

impl NightlyPredictions {
    /// Creates the state before the first night: `meters` meters with `rows` rows each.
    pub fn new(meters: u32, rows: u32, seed: u64) -> NightlyPredictions {
        let mut random = SeededRandom::at(seed, 20, 0);
        let mut meter =
            || (0..rows).map(|quarter| Prediction { quarter, ..value(&mut random) }).collect();
        let meters = (0..meters).map(|_| meter()).collect();
        NightlyPredictions { random, meters }
    }

    /// Advances to the next night.
    pub fn advance(&mut self) {
        for meter in &mut self.meters {
            let rows = meter.len();
            let (dropped, changed) = (rows * DROPPED_PERCENT / 100, rows * CHANGED_PERCENT / 100);
            let next = meter.last().map_or(0, |last| last.quarter + 1);
            self.random.shuffle(meter);
            meter.drain(..dropped);
            for prediction in &mut meter[..changed] {
                let quarter = prediction.quarter;
                *prediction = Prediction { quarter, ..value(&mut self.random) };
            }
            meter.sort_unstable_by_key(|prediction| prediction.quarter);
            let added = (0..dropped as u32).map(|nth| next + nth);
            meter.extend(added.map(|quarter| Prediction { quarter, ..value(&mut self.random) }));
        }
    }

    /// Returns each meter's number, from 1 on, and its predictions.
    pub fn meters(&self) -> impl Iterator<Item = (u32, &[Prediction])> {
        (1..).zip(self.meters.iter().map(Vec::as_slice))
    }

    /// Returns the number of rows of all meters together.
    pub fn rows(&self) -> u64 {
        self.meters.iter().map(|meter| meter.len() as u64).sum()
    }

    /// Returns the rows as COPY text, one meter after the other.
    pub fn text(&self) -> impl GeneratedRows + '_ {
        NumberedRows::new(0..self.meters.len() as u64, |nth, out| {
            meter_text(nth as u32 + 1, &self.meters[nth as usize], out);
        })
    }
}

/// Appends one meter's rows as COPY text.
pub fn meter_text(meter: u32, predictions: &[Prediction], out: &mut Vec<u8>) {
    for of in predictions {
        put(out, format_args!("{meter}\t{}\t{}\n", of.occurred(), of.prediction()));
    }
}

/// Returns a prediction with a random value. The caller sets the quarter of an hour.
fn value(random: &mut SeededRandom) -> Prediction {
    Prediction { quarter: 0, thousandths: random.below(10_000_000) as u32 }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn quarters_of_an_hour_become_calendar_times() {
        let at = |quarter| Prediction { quarter, thousandths: 12_034 }.occurred();
        assert_eq!(at(0), "2026-01-01 00:00:00");
        assert_eq!(at(95), "2026-01-01 23:45:00");
        assert_eq!(at(96 * 59), "2026-03-01 00:00:00");
        // 2028 is a leap year.
        assert_eq!(at(96 * (365 + 365 + 59)), "2028-02-29 00:00:00");
        assert_eq!(at(96 * (365 + 365 + 366)), "2029-01-01 00:00:00");
        assert_eq!(Prediction { quarter: 0, thousandths: 12_034 }.prediction(), "12.034");
    }

    #[test]
    fn a_night_has_the_published_mix() {
        let mut nights = NightlyPredictions::new(4, 1000, 9);
        for _ in 0..3 {
            let before = nights.clone();
            nights.advance();
            assert_eq!(nights.rows(), 4000);
            for ((_, old), (_, new)) in before.meters().zip(nights.meters()) {
                let old: HashMap<u32, u32> =
                    old.iter().map(|of| (of.quarter, of.thousandths)).collect();
                let kept = new.iter().filter(|of| old.contains_key(&of.quarter)).count();
                let same = new.iter().filter(|of| old.get(&of.quarter) == Some(&of.thousandths));
                assert_eq!((new.len(), kept), (1000, 850));
                // A new value may equal the old one.
                assert!((420..425).contains(&same.count()));
                assert!(new.is_sorted_by_key(|of| of.quarter));
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_nights() {
        let text = |seed| {
            let mut nights = NightlyPredictions::new(2, 50, seed);
            nights.advance();
            let mut out = Vec::new();
            let mut rows = nights.text();
            while rows.append(&mut out) {}
            String::from_utf8(out).unwrap()
        };
        assert_eq!(text(1), text(1));
        assert_ne!(text(1), text(2));
        assert_eq!(text(1).lines().count(), 100);
        assert!(text(1).lines().all(|line| line.split('\t').count() == 3));
    }
}
