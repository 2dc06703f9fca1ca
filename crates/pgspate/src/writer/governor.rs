//! How many lanes write, and how large sets are: decided by what was measured.
//!
//! More lanes hide the time of round trips and of flushes to the disk. Once the server's processors
//! are busy, more lanes only make sets smaller, and each record dearer. So the governor changes the
//! number of lanes by trial: it keeps a change that raises the rate of records, and takes back a
//! change that does not.

use std::time::{Duration, Instant};

/// How long a number of lanes is tried.
const TRIAL: Duration = Duration::from_millis(200);
/// The least change of the rate that counts.
const GAIN_MIN: f64 = 1.04;
/// The fewest records of a trial that say something about the rate.
const RECORDS_MIN: u64 = 50;
/// How long a server that accepts no further connection is not asked for more.
const LIMITED_FOR: Duration = Duration::from_secs(60);
/// How many lanes write before anything was measured.
const LANES_AT_FIRST: usize = 2;

/// Decides on the number of lanes.
#[derive(Debug)]
pub(super) struct LaneGovernor {
    lanes: usize,
    lanes_max: usize,
    /// The limit that the server's refusals do not lower, and when they have lowered the other.
    lanes_wanted: usize,
    limited: Option<Instant>,
    /// Whether the trial under way has more lanes than the one before.
    is_growing: bool,
    /// Records per second under the number of lanes before the last change.
    rate_before: Option<f64>,
    begin: Instant,
    records: u64,
    batches: u64,
    /// The batches after which units still waited, or of more than one unit.
    crowded_batches: u64,
}

impl LaneGovernor {
    /// Returns a governor of at most `lanes_max` lanes.
    pub(super) fn new(lanes_max: usize, now: Instant) -> LaneGovernor {
        LaneGovernor {
            lanes: LANES_AT_FIRST.min(lanes_max),
            lanes_max,
            lanes_wanted: lanes_max,
            limited: None,
            is_growing: true,
            rate_before: None,
            begin: now,
            records: 0,
            batches: 0,
            crowded_batches: 0,
        }
    }

    /// Returns how many lanes may write.
    pub(super) fn lanes(&self) -> usize {
        self.lanes
    }

    /// Lowers the limit for a while, because the server accepts no further connection.
    pub(super) fn limit_lanes(&mut self, lanes_max: usize, now: Instant) {
        self.limited = Some(now);
        self.lanes_max = lanes_max.max(1);
        self.lanes = self.lanes.min(self.lanes_max);
    }

    /// Counts a batch that a lane has written. `is_crowded` says whether records waited for a lane.
    pub(super) fn count_batch(&mut self, records: u64, is_crowded: bool, now: Instant) {
        if self.limited.is_some_and(|at| now.duration_since(at) > LIMITED_FOR) {
            (self.limited, self.lanes_max) = (None, self.lanes_wanted);
        }
        self.records += records;
        self.batches += 1;
        self.crowded_batches += u64::from(is_crowded);
        let elapsed = now.duration_since(self.begin);
        if elapsed < TRIAL {
            return;
        }
        let is_crowded = self.crowded_batches * 2 > self.batches;
        let rate = self.records as f64 / elapsed.as_secs_f64();
        match is_crowded && self.records >= RECORDS_MIN {
            true => self.judge(rate),
            // There are lanes enough, so the trial does not show what more of them would gain.
            false => self.rate_before = None,
        }
        (self.begin, self.records, self.batches, self.crowded_batches) = (now, 0, 0, 0);
    }

    /// Compares the rate with the rate of the trial before, and begins the next trial.
    fn judge(&mut self, rate: f64) {
        let grows = match self.rate_before {
            None => true,
            Some(before) if rate > before * GAIN_MIN => self.is_growing,
            Some(before) if rate * GAIN_MIN < before => !self.is_growing,
            // Without a difference fewer lanes are better: they cost the server less.
            Some(_) => false,
        };
        self.is_growing = grows;
        self.rate_before = Some(rate);
        let step = (self.lanes / 3).max(1);
        self.lanes = match grows {
            true => (self.lanes + step).min(self.lanes_max),
            false => self.lanes.saturating_sub(step).max(1),
        };
    }
}

/// How many records a set may have. A set that is refused is written again in parts, so sets are
/// small while records are refused often.
#[derive(Debug)]
pub(super) struct SetSize {
    rows: usize,
    rows_max: usize,
    written: usize,
}

/// How many sets must be written before the next ones may be larger.
const SETS_BEFORE_GROWTH: usize = 8;

impl SetSize {
    pub(super) fn new(rows_max: usize) -> SetSize {
        SetSize { rows: rows_max, rows_max, written: 0 }
    }

    /// Returns how many records the next set may have.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Takes notice of a set that was written as a whole.
    pub(super) fn note_written(&mut self) {
        self.written += 1;
        if self.written >= SETS_BEFORE_GROWTH {
            self.written = 0;
            self.rows = (self.rows * 2).min(self.rows_max);
        }
    }

    /// Takes notice of a set of `rows` records that was refused.
    pub(super) fn note_refused(&mut self, rows: usize) {
        self.written = 0;
        self.rows = (rows.min(self.rows) / 2).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds trials whose rate depends on the number of lanes. Returns the lanes of the last
    /// trials.
    fn lanes_after(rate: impl Fn(usize) -> f64, lanes_max: usize) -> Vec<usize> {
        let mut now = Instant::now();
        let mut governor = LaneGovernor::new(lanes_max, now);
        let mut lanes = Vec::new();
        for _ in 0..200 {
            now += TRIAL;
            let records = rate(governor.lanes()) * TRIAL.as_secs_f64();
            governor.count_batch(records as u64, true, now);
            lanes.push(governor.lanes());
        }
        lanes.split_off(100)
    }

    #[test]
    fn lanes_are_added_while_they_help() {
        let lanes = lanes_after(|lanes| 1000.0 * lanes as f64, 16);
        assert!(lanes.iter().all(|lanes| *lanes >= 8), "{lanes:?}");
    }

    #[test]
    fn lanes_that_cost_more_than_they_gain_are_taken_away() {
        let lanes = lanes_after(|lanes| 40_000.0 - 3000.0 * lanes.abs_diff(4) as f64, 16);
        assert!(lanes.iter().all(|lanes| (2..=7).contains(lanes)), "{lanes:?}");
    }

    #[test]
    fn without_waiting_records_the_lanes_stay() {
        let mut now = Instant::now();
        let mut governor = LaneGovernor::new(16, now);
        for _ in 0..100 {
            now += TRIAL;
            governor.count_batch(1000, false, now);
        }
        assert_eq!(governor.lanes(), LANES_AT_FIRST);
    }

    #[test]
    fn refused_sets_make_the_next_ones_smaller() {
        let mut size = SetSize::new(1000);
        size.note_refused(64);
        assert_eq!(size.rows(), 32);
        size.note_refused(1);
        assert_eq!(size.rows(), 1);
        for _ in 0..SETS_BEFORE_GROWTH {
            size.note_written();
        }
        assert_eq!(size.rows(), 2);
    }
}
