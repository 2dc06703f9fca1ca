//! A bounded queue of batches from Python's thread to the engine's threads.
//!
//! Python makes the rows on the calling thread, because generators, cursors and database sessions
//! often work on one thread only. Each side learns within the `POLL` of [`crate::work`] when the
//! other ends.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pgspate::target::PgType;
use pgspate::{Error, ErrorKind, Result};

/// What the calling thread has to do next.
pub(crate) enum Turn {
    /// Begin with the first row, for columns of these types.
    Begin(Vec<Option<PgType>>),
    /// Make the next batch.
    Make,
    /// Wait: the queue is full, or the engine has not asked for rows.
    Wait,
}

/// A handle of the queue. Clones share one queue.
#[derive(Debug)]
pub(crate) struct RowHandover<T>(Arc<HandoverShared<T>>);

impl<T> RowHandover<T> {
    /// Returns a queue of at most `batches_max` batches.
    pub(crate) fn with_capacity(batches_max: usize) -> RowHandover<T> {
        let state = HandoverState {
            asked: None,
            round: 0,
            batches: VecDeque::new(),
            is_open: false,
            is_closed: false,
        };
        RowHandover(Arc::new(HandoverShared {
            batches_max,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }))
    }
}

impl<T> Clone for RowHandover<T> {
    fn clone(&self) -> RowHandover<T> {
        RowHandover(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
struct HandoverShared<T> {
    batches_max: usize,
    state: Mutex<HandoverState<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct HandoverState<T> {
    /// The column types of a request that the calling thread has not seen yet.
    asked: Option<Vec<Option<PgType>>>,
    /// Number of requests. Iterators of earlier requests end with an error.
    round: u64,
    batches: VecDeque<Result<T>>,
    /// Whether the calling thread makes rows.
    is_open: bool,
    /// Whether one side has ended the call.
    is_closed: bool,
}

impl<T: Send + 'static> RowHandover<T> {
    /// Requests all rows, from the first one, and returns an iterator over their batches.
    pub(crate) fn request(
        &self,
        types: &[Option<PgType>],
    ) -> Box<dyn Iterator<Item = Result<T>> + Send> {
        let mut state = self.lock();
        state.asked = Some(types.to_vec());
        state.round += 1;
        state.batches.clear();
        state.is_open = false;
        let round = state.round;
        drop(state);
        self.0.changed.notify_all();
        let queue = self.clone();
        Box::new(std::iter::from_fn(move || queue.take(round)))
    }

    fn take(&self, round: u64) -> Option<Result<T>> {
        let mut state = self.lock();
        loop {
            if state.is_closed || state.round != round {
                return Some(Err(Error::new(
                    ErrorKind::Cancelled,
                    "the program stopped making rows",
                )));
            }
            if let Some(batch) = state.batches.pop_front() {
                drop(state);
                self.0.changed.notify_all();
                return Some(batch);
            }
            if !state.is_open && state.asked.is_none() {
                return None;
            }
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns what the calling thread has to do next.
    pub(crate) fn next_turn(&self) -> Turn {
        let mut state = self.lock();
        if let Some(types) = state.asked.take() {
            state.is_open = true;
            return Turn::Begin(types);
        }
        match state.is_open && state.batches.len() < self.0.batches_max {
            true => Turn::Make,
            false => Turn::Wait,
        }
    }

    /// Returns whether the queue is empty, so that the engine may wait for a batch.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().batches.is_empty()
    }

    /// Adds a batch or an error to the queue. `None` marks the end of the rows.
    pub(crate) fn put(&self, batch: Option<Result<T>>) {
        let mut state = self.lock();
        state.is_open = state.is_open && matches!(batch, Some(Ok(_)));
        state.batches.extend(batch);
        drop(state);
        self.0.changed.notify_all();
    }

    /// Waits until the queue changes, at most for `limit`.
    pub(crate) fn wait(&self, limit: Duration) {
        let state = self.lock();
        drop(self.0.changed.wait_timeout(state, limit));
    }

    /// Wakes all threads that wait for the queue.
    pub(crate) fn wake(&self) {
        drop(self.lock());
        self.0.changed.notify_all();
    }

    /// Ends the queue for both sides.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.0.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, HandoverState<T>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
