//! Measures how far the target is behind the source of a stream.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pgspate_events::Lsn;

/// A point in a source, as the lag counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourcePoint {
    /// A place in the write-ahead log of the slot's server.
    Log(Lsn),
    /// The sum of the offsets of all partitions.
    Messages(u64),
}

/// Measures the lag of a stream. The thread that reads the source and the thread that applies its
/// events share it.
#[derive(Debug, Default)]
pub struct LagMeter {
    /// The end of the source, in bytes of log or in messages.
    source_end: AtomicU64,
    /// The point up to which events are applied.
    applied: AtomicU64,
    /// Whether `source_end` and `applied` count messages, not bytes of log.
    counts_messages: AtomicBool,
    /// The ends of the source that were seen and are not applied yet, with times.
    source_ends: Mutex<SourceEnds>,
    /// The commit time of the last applied transaction, in microseconds since 1970.
    committed: AtomicU64,
    /// The number of connections that were lost.
    reconnects: AtomicU64,
    is_connected: AtomicBool,
}

/// The most ends of the source that are kept. When there are more, every other end is dropped.
const ENDS_MAX: usize = 1024;

/// Ends of the source, and when they were seen.
#[derive(Debug, Default)]
struct SourceEnds {
    seen: VecDeque<(u64, Instant)>,
    /// The end of the source when the run began.
    first: u64,
}

impl SourceEnds {
    fn record_end(&mut self, end: u64, now: Instant) {
        if self.first == 0 {
            self.first = end;
        }
        if self.seen.back().is_some_and(|(last, _)| *last >= end) {
            return;
        }
        if self.seen.len() >= ENDS_MAX {
            let mut end_number = 0;
            self.seen.retain(|_| {
                end_number += 1;
                end_number % 2 == 1
            });
        }
        self.seen.push_back((end, now));
    }

    /// Returns for how long the source has had events that are not applied. Also returns whether
    /// these events may be older than the run.
    fn lag(&mut self, applied: u64, now: Instant) -> (Duration, bool) {
        while self.seen.front().is_some_and(|(end, _)| *end <= applied) {
            self.seen.pop_front();
        }
        let first = self.seen.front();
        let lag = first.map_or(Duration::ZERO, |(_, at)| now.saturating_duration_since(*at));
        (lag, applied < self.first)
    }
}

/// The lag of a stream behind its source.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StreamLag {
    /// For a slot: bytes of the source's log that are not applied, including the log of other
    /// databases. Zero for topics.
    pub bytes: u64,
    /// For topics: messages that are not applied, including the markers of transactions.
    pub messages: Option<u64>,
    /// For how many seconds the source has had events that are not applied. Zero if all events are
    /// applied. For events that are older than the run, this is the time since the run began or
    /// since the last applied transaction was committed, whichever is longer. The source's clock
    /// gives the commit time, so a difference between the clocks changes the result.
    pub seconds: f64,
    /// The number of connections to the source that were lost.
    pub reconnects: u64,
    /// Whether there is a connection now.
    pub is_connected: bool,
}

impl LagMeter {
    /// Notes that there is a connection to the source.
    pub(crate) fn note_connection(&self) {
        self.is_connected.store(true, Relaxed);
    }

    /// Notes that there is no connection. Counts a lost connection if there was a connection until
    /// now (`was_open`).
    pub(crate) fn note_loss(&self, was_open: bool) {
        self.is_connected.store(false, Relaxed);
        self.reconnects.fetch_add(u64::from(was_open), Relaxed);
    }

    /// Notes the time at which the last applied transaction was committed on the source.
    pub fn note_committed(&self, at: SystemTime) {
        if let Ok(at) = at.duration_since(UNIX_EPOCH) {
            self.committed.store(at.as_micros() as u64, Relaxed);
        }
    }

    /// Notes the current end of the source.
    pub(crate) fn note_end(&self, end: SourcePoint) {
        let end = self.point_number(end).max(1);
        self.source_ends().record_end(end, Instant::now());
        self.source_end.fetch_max(end, Relaxed);
    }

    /// Notes that all events up to `applied` are applied or were skipped.
    pub fn note_applied(&self, applied: SourcePoint) {
        let applied = self.point_number(applied);
        self.applied.fetch_max(applied, Relaxed);
        self.source_end.fetch_max(applied, Relaxed);
    }

    /// Returns how many bytes of log the source has after `end`, by its last known end.
    pub(crate) fn bytes_behind(&self, end: Lsn) -> u64 {
        self.source_end.load(Relaxed).saturating_sub(end.0)
    }

    /// Returns a point as a number of bytes or messages.
    fn point_number(&self, point: SourcePoint) -> u64 {
        match point {
            SourcePoint::Log(lsn) => lsn.0,
            SourcePoint::Messages(count) => {
                self.counts_messages.store(true, Relaxed);
                count
            }
        }
    }

    fn source_ends(&self) -> MutexGuard<'_, SourceEnds> {
        self.source_ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the lag, or `None` while the source's end is unknown.
    pub fn lag(&self) -> Option<StreamLag> {
        let (end, applied) = (self.source_end.load(Relaxed), self.applied.load(Relaxed));
        if end == 0 {
            return None;
        }
        let behind = end.saturating_sub(applied);
        let counts_messages = self.counts_messages.load(Relaxed);
        let committed = Duration::from_micros(self.committed.load(Relaxed));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (mut lag, is_old) = self.source_ends().lag(applied, Instant::now());
        if is_old && !committed.is_zero() {
            lag = lag.max(now.saturating_sub(committed));
        }
        Some(StreamLag {
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
    fn lag_counts_from_the_first_end_that_is_not_applied() {
        let (mut source_ends, began) = (SourceEnds::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        source_ends.record_end(100, at(0));
        // Nothing is applied yet, and the age of the events is unknown.
        assert_eq!(source_ends.lag(50, at(3)), (Duration::from_secs(3), true));
        assert_eq!(source_ends.lag(100, at(4)), (Duration::ZERO, false));
        // Nothing is written for an hour.
        source_ends.record_end(100, at(3600));
        source_ends.record_end(200, at(3601));
        source_ends.record_end(300, at(3602));
        assert_eq!(source_ends.lag(100, at(3605)), (Duration::from_secs(4), false));
        assert_eq!(source_ends.lag(250, at(3605)), (Duration::from_secs(3), false));
        for nth in 0..5000 {
            source_ends.record_end(400 + nth, at(4000 + nth));
            assert_eq!(source_ends.lag(300, at(4000 + nth)).0.as_secs(), nth);
        }
        assert!(source_ends.seen.len() <= ENDS_MAX);
        assert_eq!(source_ends.lag(300, at(9000)), (Duration::from_secs(5000), false));
    }
}
