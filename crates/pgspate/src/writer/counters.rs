//! What a writer has done so far, as numbers.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// The upper limits of the classes of set sizes, in records. The last class has no limit.
pub const SET_SIZES: [usize; 8] = [1, 2, 5, 10, 50, 100, 500, 1000];

/// The numbers of a writer. Each counts from the writer's begin.
#[derive(Debug, Default)]
pub(super) struct WriterCounters {
    rows: AtomicU64,
    refused: AtomicU64,
    unknown: AtomicU64,
    sets: [AtomicU64; SET_SIZES.len() + 1],
    set_rows: AtomicU64,
    statements: AtomicU64,
    refused_sets: AtomicU64,
    lock_waits: AtomicU64,
}

/// What a writer has done so far, and what it does now.
#[derive(Debug, Clone, Default, Serialize)]
pub struct WriterReport {
    /// Rows written, or updated on conflict. A repeated call with an idempotency key adds none.
    pub rows: u64,
    /// Calls that the server refused.
    pub refused: u64,
    /// Calls whose outcome is unknown, because the connection was lost.
    pub unknown: u64,
    /// Statements that wrote the records of several calls, by the number of records: at most 1, 2,
    /// 5, 10, 50, 100, 500, 1000, and more.
    pub sets: Vec<u64>,
    /// Records written by those statements.
    pub set_rows: u64,
    /// Statements that wrote the records of one call.
    pub statements: u64,
    /// Sets that were refused and written again in parts.
    pub refused_sets: u64,
    /// Calls that waited for a lock of another session.
    pub lock_waits: u64,
    /// Lanes that write now.
    pub lanes: u64,
    /// Lanes that may write at once.
    pub lanes_allowed: u64,
    /// Records that wait for a lane.
    pub waiting: u64,
}

impl WriterCounters {
    /// Counts a set of `rows` records that was written.
    pub(super) fn count_set(&self, rows: usize) {
        let class = SET_SIZES.partition_point(|limit| *limit < rows);
        add(&self.sets[class], 1);
        add(&self.set_rows, rows as u64);
    }

    /// Counts a statement, or a transaction of several, for one call.
    pub(super) fn count_statement(&self) {
        add(&self.statements, 1);
    }

    pub(super) fn count_rows(&self, rows: u64) {
        add(&self.rows, rows);
    }

    pub(super) fn count_refused(&self) {
        add(&self.refused, 1);
    }

    pub(super) fn count_unknown(&self) {
        add(&self.unknown, 1);
    }

    pub(super) fn count_refused_set(&self) {
        add(&self.refused_sets, 1);
    }

    pub(super) fn count_lock_wait(&self) {
        add(&self.lock_waits, 1);
    }

    /// Returns the numbers so far.
    pub(super) fn report(&self) -> WriterReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WriterReport {
            rows: read(&self.rows),
            refused: read(&self.refused),
            unknown: read(&self.unknown),
            sets: self.sets.iter().map(read).collect(),
            set_rows: read(&self.set_rows),
            statements: read(&self.statements),
            refused_sets: read(&self.refused_sets),
            lock_waits: read(&self.lock_waits),
            ..WriterReport::default()
        }
    }
}

fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}
