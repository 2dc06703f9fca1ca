//! How many lanes write, and how large sets are: decided by what was measured.
//!
//! More lanes hide the time of round trips and of flushes to the disk. Once the server's processors
//! are busy, more lanes only make sets smaller, and each record dearer. So the governor tries a few
//! more lanes and a few less in turn, each right after a trial of the number that it keeps. It
//! compares such neighbours alone, as the load changes with time. A comparison counts with those
//! before it, as one is often disturbed by other work of the server.

use std::time::{Duration, Instant};

/// How long a number of lanes is tried.
const TRIAL: Duration = Duration::from_millis(100);
/// The fewest records of a trial that say something about the rate.
const RECORDS_MIN: u64 = 50;
/// How long a server that accepts no further connection is not asked for more.
const LIMITED_FOR: Duration = Duration::from_secs(60);
/// The numbers of lanes that are tried.
const STEPS: [usize; 12] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];
/// The step before anything was measured: 4 lanes.
const FIRST_STEP: usize = 3;
/// The gain from which more lanes are kept. Without a gain fewer lanes are better: they cost the
/// server less.
const GAIN_TO_GROW: f64 = 1.04;
/// The gain below which fewer lanes are kept.
const GAIN_TO_SHRINK: f64 = 1.01;
/// The part of the newest comparison in a gain.
const NEWEST_SHARE: f64 = 0.4;

/// What a trial is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GovernorTrial {
    Kept,
    More,
    Fewer,
}

/// The trials in their order. Most of the time goes to the kept number of lanes.
const SCHEDULE: [GovernorTrial; 6] = [
    GovernorTrial::Kept,
    GovernorTrial::Kept,
    GovernorTrial::More,
    GovernorTrial::Kept,
    GovernorTrial::Kept,
    GovernorTrial::Fewer,
];

/// Decides on the number of lanes.
#[derive(Debug)]
pub(super) struct LaneGovernor {
    /// The kept number of lanes, as an index of `STEPS`.
    step: usize,
    lanes_max: usize,
    /// The limit that the server's refusals do not lower, and when they have lowered the other.
    lanes_wanted: usize,
    limited: Option<Instant>,
    /// The trial under way, as an index of `SCHEDULE`.
    turn: usize,
    /// Records per second in the latest trial of the kept number.
    kept_rate: Option<f64>,
    /// For each step, the rate of the next step divided by its own.
    gains: [Option<f64>; STEPS.len()],
    begin: Instant,
    records: u64,
    batches: u64,
    /// The batches after which units still waited, or of more than one unit.
    crowded_batches: u64,
}

impl LaneGovernor {
    /// Returns a governor of at most `lanes_max` lanes.
    pub(super) fn new(lanes_max: usize, now: Instant) -> LaneGovernor {
        let mut governor = LaneGovernor {
            step: FIRST_STEP,
            lanes_max: lanes_max.clamp(1, STEPS[STEPS.len() - 1]),
            lanes_wanted: lanes_max.clamp(1, STEPS[STEPS.len() - 1]),
            limited: None,
            turn: 0,
            kept_rate: None,
            gains: [None; STEPS.len()],
            begin: now,
            records: 0,
            batches: 0,
            crowded_batches: 0,
        };
        governor.step = governor.step.min(governor.last_step());
        governor
    }

    /// Returns the step with the most lanes.
    fn last_step(&self) -> usize {
        STEPS.partition_point(|lanes| *lanes < self.lanes_max)
    }

    /// Returns the step of the trial under way.
    fn step_on_trial(&self) -> usize {
        match SCHEDULE[self.turn] {
            GovernorTrial::Kept => self.step,
            GovernorTrial::More => (self.step + 1).min(self.last_step()),
            GovernorTrial::Fewer => self.step.saturating_sub(1),
        }
    }

    /// Returns how many lanes may write.
    pub(super) fn lanes(&self) -> usize {
        STEPS[self.step_on_trial()].min(self.lanes_max)
    }

    /// Lowers the limit for a while, because the server accepts no further connection.
    pub(super) fn limit_lanes(&mut self, lanes_max: usize, now: Instant) {
        self.limited = Some(now);
        self.lanes_max = lanes_max.clamp(1, self.lanes_wanted);
        self.step = self.step.min(self.last_step());
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
            false => (self.turn, self.kept_rate) = (0, None),
        }
        (self.begin, self.records, self.batches, self.crowded_batches) = (now, 0, 0, 0);
    }

    /// Compares the rate with the rate of the kept number, and begins the next trial.
    fn judge(&mut self, rate: f64) {
        let tried = self.step_on_trial();
        self.turn = (self.turn + 1) % SCHEDULE.len();
        let Some(kept_rate) = self.kept_rate.filter(|_| tried != self.step) else {
            self.kept_rate = Some(rate);
            return;
        };
        let (lower, gain) = match tried > self.step {
            true => (self.step, rate / kept_rate.max(1.0)),
            false => (tried, kept_rate / rate.max(1.0)),
        };
        let before = self.gains[lower].unwrap_or(gain);
        let gain = before + (gain - before) * NEWEST_SHARE;
        self.gains[lower] = Some(gain);
        let is_better = match tried > self.step {
            true => gain > GAIN_TO_GROW,
            false => gain < GAIN_TO_SHRINK,
        };
        if is_better {
            (self.step, self.turn, self.kept_rate) = (tried, 0, Some(rate));
        }
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

    /// Feeds trials whose rate depends on the number of lanes and on chance, which changes it by up
    /// to `noise` in both directions. Returns the lanes that were kept in the last trials.
    fn lanes_after(rate: impl Fn(usize) -> f64, lanes_max: usize, noise: f64) -> Vec<usize> {
        let mut now = Instant::now();
        let mut governor = LaneGovernor::new(lanes_max, now);
        let mut lanes = Vec::new();
        let mut random: u32 = 1;
        for _ in 0..400 {
            now += TRIAL;
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let chance = f64::from(random) / f64::from(u32::MAX) * 2.0 - 1.0;
            let rate = rate(governor.lanes()) * (1.0 + noise * chance);
            governor.count_batch((rate * TRIAL.as_secs_f64()) as u64, true, now);
            lanes.push(STEPS[governor.step].min(lanes_max));
        }
        lanes.split_off(200)
    }

    #[test]
    fn lanes_are_added_while_they_help() {
        let lanes = lanes_after(|lanes| 1000.0 * lanes as f64, 24, 0.0);
        assert!(lanes.iter().all(|lanes| *lanes == 24), "{lanes:?}");
    }

    #[test]
    fn lanes_that_cost_more_than_they_gain_are_taken_away() {
        let lanes = lanes_after(|lanes| 40_000.0 - 3000.0 * lanes.abs_diff(4) as f64, 24, 0.0);
        assert!(lanes.iter().all(|lanes| (3..=6).contains(lanes)), "{lanes:?}");
    }

    #[test]
    fn disturbed_trials_change_little() {
        // 64 callers; a round trip with its flush takes 4 ms, and the server 0.1 ms for each set.
        let rate = |lanes: usize| 64.0 / (0.004 + 0.002 / lanes as f64 + 0.0001 * lanes as f64);
        let best = STEPS[..9].iter().map(|lanes| rate(*lanes)).fold(0.0, f64::max);
        let lanes = lanes_after(rate, 24, 0.15);
        let reached = lanes.iter().map(|lanes| rate(*lanes)).sum::<f64>() / lanes.len() as f64;
        assert!(reached > 0.93 * best, "{reached} of {best}: {lanes:?}");
    }

    #[test]
    fn without_waiting_records_the_lanes_stay() {
        let mut now = Instant::now();
        let mut governor = LaneGovernor::new(24, now);
        for _ in 0..100 {
            now += TRIAL;
            governor.count_batch(1000, false, now);
        }
        assert_eq!(governor.lanes(), STEPS[FIRST_STEP]);
    }

    #[test]
    fn a_server_without_connections_is_asked_for_fewer() {
        let mut now = Instant::now();
        let mut governor = LaneGovernor::new(5, now);
        governor.limit_lanes(2, now);
        assert_eq!(governor.lanes(), 2);
        for _ in 0..20 {
            now += TRIAL;
            governor.count_batch(1000 * governor.lanes() as u64, true, now);
            assert!(governor.lanes() <= 2);
        }
        now += LIMITED_FOR;
        for _ in 0..40 {
            now += TRIAL;
            governor.count_batch(1000 * governor.lanes() as u64, true, now);
        }
        assert_eq!(STEPS[governor.step].min(5), 5);
        assert!(governor.lanes() <= 5);
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
