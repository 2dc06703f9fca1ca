//! A bounded queue of batches from the calling thread to the engine's threads.
//!
//! Python makes the rows or events on the calling thread, because generators, cursors and database
//! sessions often work on one thread only. If one side ends the call, the other side notices it
//! within the time `POLL` of [`crate::call`].

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pgspate::format::memory::BatchTarget;
use pgspate::{Error, ErrorKind, Result};

/// A batch of rows or events.
pub(crate) trait Batch: Send + Sized + 'static {
    /// Appends the next batch to this one. Returns it if it stays a batch of its own, as batches of
    /// rows do.
    fn append(&mut self, next: Self) -> Option<Self> {
        Some(next)
    }
}

/// The next task of the calling thread.
pub(crate) enum CallerTask {
    /// Start at the first row, for these columns.
    Begin(Vec<Option<BatchTarget>>),
    /// Make the next batch.
    Make,
    /// Wait: the queue is full, or the engine has not requested rows.
    Wait,
}

/// A handle of the queue. All clones of a handle share one queue.
#[derive(Debug)]
pub(crate) struct BatchQueue<T>(Arc<BatchQueueShared<T>>);

impl<T> BatchQueue<T> {
    /// Returns a queue of at most `batches_max` batches.
    pub(crate) fn with_capacity(batches_max: usize) -> BatchQueue<T> {
        let state = BatchQueueState {
            requested_targets: None,
            request_count: 0,
            batches: VecDeque::new(),
            is_open: false,
            is_closed: false,
        };
        BatchQueue(Arc::new(BatchQueueShared {
            batches_max,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }))
    }
}

impl<T> Clone for BatchQueue<T> {
    fn clone(&self) -> BatchQueue<T> {
        BatchQueue(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
struct BatchQueueShared<T> {
    batches_max: usize,
    state: Mutex<BatchQueueState<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct BatchQueueState<T> {
    /// The columns of a request that the calling thread has not begun yet.
    requested_targets: Option<Vec<Option<BatchTarget>>>,
    /// Number of requests so far. A new request ends the iterators of earlier requests with an
    /// error.
    request_count: u64,
    batches: VecDeque<Result<T>>,
    /// Whether the calling thread makes rows.
    is_open: bool,
    /// Whether one side has ended the call.
    is_closed: bool,
}

impl<T: Batch> BatchQueue<T> {
    /// Requests all rows, from the first one, and returns an iterator over their batches.
    pub(crate) fn request(
        &self,
        targets: &[Option<BatchTarget>],
    ) -> Box<dyn Iterator<Item = Result<T>> + Send> {
        let mut state = self.lock();
        state.requested_targets = Some(targets.to_vec());
        state.request_count += 1;
        state.batches.clear();
        state.is_open = false;
        let request = state.request_count;
        drop(state);
        self.0.changed.notify_all();
        let queue = self.clone();
        Box::new(std::iter::from_fn(move || queue.take(request)))
    }

    /// Waits for the next batch of a request. Returns `None` after the last batch.
    fn take(&self, request: u64) -> Option<Result<T>> {
        let mut state = self.lock();
        loop {
            if state.is_closed || state.request_count != request {
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
            if !state.is_open && state.requested_targets.is_none() {
                return None;
            }
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the next task of the calling thread.
    pub(crate) fn next_task(&self) -> CallerTask {
        let mut state = self.lock();
        if let Some(targets) = state.requested_targets.take() {
            state.is_open = true;
            return CallerTask::Begin(targets);
        }
        match state.is_open && state.batches.len() < self.0.batches_max {
            true => CallerTask::Make,
            false => CallerTask::Wait,
        }
    }

    /// Adds a batch or an error to the queue. `None` marks the end of the rows.
    ///
    /// Drops what was made for an earlier request. The engine may have requested the rows again
    /// while the calling thread made this batch.
    pub(crate) fn put(&self, batch: Option<Result<T>>) {
        let mut state = self.lock();
        if state.requested_targets.is_some() {
            return;
        }
        state.is_open = state.is_open && matches!(batch, Some(Ok(_)));
        let batch = match (state.batches.back_mut(), batch) {
            (Some(Ok(last)), Some(Ok(next))) => last.append(next).map(Ok),
            (_, batch) => batch,
        };
        state.batches.extend(batch);
        drop(state);
        self.0.changed.notify_all();
    }

    /// Waits until the queue changes, but at most for `limit`.
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

    fn lock(&self) -> MutexGuard<'_, BatchQueueState<T>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
