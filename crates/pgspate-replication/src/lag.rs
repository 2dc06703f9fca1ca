//! How far what is applied is behind its source.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pgspate_events::Lsn;

/// A point of a source that lag is counted from or to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourcePoint {
    /// A place in the log of the slot's server.
    Log(Lsn),
    /// The sum of all offsets of topics, which grows with each.
    Messages(u64),
}

/// Measures how far what is applied is behind its source. Shared between whoever reads the source
/// and whoever applies its events.
#[derive(Debug, Default)]
pub struct LagMeter {
    /// Where the source ends, and up to where it is applied.
    source_end: AtomicU64,
    applied: AtomicU64,
    /// Both are counted in messages.
    counts_messages: AtomicBool,
    /// When the source was seen to end where, from what is not applied on.
    ends: Mutex<Ends>,
    /// When the last transaction that is applied was committed, in microseconds.
    committed: AtomicU64,
    reconnects: AtomicU64,
    is_connected: AtomicBool,
}

/// So many ends of the log are kept; then every other one is forgotten.
const ENDS_MAX: usize = 1024;

/// Ends of the source's log, and when they were seen.
#[derive(Debug, Default)]
struct Ends {
    seen: VecDeque<(u64, Instant)>,
    /// Where the log ended when the run began.
    first: u64,
}

impl Ends {
    fn note(&mut self, end: u64, now: Instant) {
        if self.first == 0 {
            self.first = end;
        }
        if self.seen.back().is_some_and(|(last, _)| *last >= end) {
            return;
        }
        if self.seen.len() >= ENDS_MAX {
            let mut nth = 0;
            self.seen.retain(|_| {
                nth += 1;
                nth % 2 == 1
            });
        }
        self.seen.push_back((end, now));
    }

    /// For how long there has been what is not applied; and whether it may be older than the run.
    fn lag(&mut self, applied: u64, now: Instant) -> (Duration, bool) {
        while self.seen.front().is_some_and(|(end, _)| *end <= applied) {
            self.seen.pop_front();
        }
        let first = self.seen.front();
        let lag = first.map_or(Duration::ZERO, |(_, at)| now.saturating_duration_since(*at));
        (lag, applied < self.first)
    }
}

/// How far a stream is behind its source.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Lag {
    /// Bytes of the source's log that are not applied, those of other databases too; none of
    /// topics.
    pub bytes: u64,
    /// Of topics: messages that are not applied, with marks of transactions among them.
    pub messages: Option<u64>,
    /// Seconds for which the source's log has gone on beyond what is applied; none when all that
    /// there is is applied. Of what there was when the run began: since the run began, or the
    /// last transaction that is applied was committed there, by its clock and ours.
    pub seconds: f64,
    /// Connections to the source that were lost.
    pub reconnects: u64,
    /// Whether there is one.
    pub is_connected: bool,
}

impl LagMeter {
    /// Notes that there is a connection to the source.
    pub(crate) fn note_connection(&self) {
        self.is_connected.store(true, Relaxed);
    }

    /// Notes that there is no connection. Counts a reconnect if it `was_open`.
    pub(crate) fn note_loss(&self, was_open: bool) {
        self.is_connected.store(false, Relaxed);
        self.reconnects.fetch_add(u64::from(was_open), Relaxed);
    }

    /// Notes when the last transaction that is applied was committed at its source.
    pub fn note_committed(&self, at: SystemTime) {
        if let Ok(at) = at.duration_since(UNIX_EPOCH) {
            self.committed.store(at.as_micros() as u64, Relaxed);
        }
    }

    /// Notes where the source ends now.
    pub(crate) fn note_end(&self, end: SourcePoint) {
        let end = self.number(end).max(1);
        self.ends().note(end, Instant::now());
        self.source_end.fetch_max(end, Relaxed);
    }

    /// Notes that all up to here is applied, or was left out.
    pub fn note_applied(&self, applied: SourcePoint) {
        let applied = self.number(applied);
        self.applied.fetch_max(applied, Relaxed);
        self.source_end.fetch_max(applied, Relaxed);
    }

    /// Returns how many bytes the source's log has after `end`, as of the last look.
    pub(crate) fn bytes_behind(&self, end: Lsn) -> u64 {
        self.source_end.load(Relaxed).saturating_sub(end.0)
    }

    fn number(&self, point: SourcePoint) -> u64 {
        match point {
            SourcePoint::Log(lsn) => lsn.0,
            SourcePoint::Messages(count) => {
                self.counts_messages.store(true, Relaxed);
                count
            }
        }
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how far it is behind; `None` where that cannot be told.
    pub fn lag(&self) -> Option<Lag> {
        let (end, applied) = (self.source_end.load(Relaxed), self.applied.load(Relaxed));
        if end == 0 {
            return None;
        }
        let behind = end.saturating_sub(applied);
        let counts_messages = self.counts_messages.load(Relaxed);
        let committed = Duration::from_micros(self.committed.load(Relaxed));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (mut lag, is_old) = self.ends().lag(applied, Instant::now());
        if is_old && !committed.is_zero() {
            lag = lag.max(now.saturating_sub(committed));
        }
        Some(Lag {
            bytes: if counts_messages { 0 } else { behind },
            messages: counts_messages.then_some(behind),
            seconds: if behind == 0 { 0.0 } else { lag.as_secs_f64() },
            reconnects: self.reconnects.load(Relaxed),
            is_connected: self.is_connected.load(Relaxed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_lags_since_the_log_went_beyond_it() {
        let (mut ends, began) = (Ends::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        ends.note(100, at(0));
        // Nothing is applied yet, and nobody knows how old it is.
        assert_eq!(ends.lag(50, at(3)), (Duration::from_secs(3), true));
        assert_eq!(ends.lag(100, at(4)), (Duration::ZERO, false));
        // After an hour in which nothing was written.
        ends.note(100, at(3600));
        ends.note(200, at(3601));
        ends.note(300, at(3602));
        assert_eq!(ends.lag(100, at(3605)), (Duration::from_secs(4), false));
        assert_eq!(ends.lag(250, at(3605)), (Duration::from_secs(3), false));
        for nth in 0..5000 {
            ends.note(400 + nth, at(4000 + nth));
            assert_eq!(ends.lag(300, at(4000 + nth)).0.as_secs(), nth);
        }
        assert!(ends.seen.len() <= ENDS_MAX);
        assert_eq!(ends.lag(300, at(9000)), (Duration::from_secs(5000), false));
    }
}
