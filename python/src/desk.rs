//! Where rows and events that Python makes are handed to the engine.
//!
//! They are made on the thread that called, as generators, cursors and sessions of databases are
//! often of use on one thread only; the engine takes them on its own. At most so many batches lie
//! in between as the desk has room for. Each side notices within a moment when the other is gone.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pgspate::target::PgType;
use pgspate::{Error, ErrorKind, Result};

/// What either side may do next.
pub(crate) enum Turn {
    /// Begin with the first row, for columns of these types.
    Begin(Vec<Option<PgType>>),
    /// Make the next batch.
    Make,
    /// Wait: there are batches enough, or nobody asks for any.
    Wait,
}

/// The desk, for batches of some sort. Clones are the same one.
#[derive(Debug)]
pub(crate) struct Desk<T>(Arc<Inner<T>>);

impl<T> Desk<T> {
    /// A desk with room for so many batches.
    pub(crate) fn with_room(room: usize) -> Desk<T> {
        let state = State {
            asked: None,
            round: 0,
            batches: VecDeque::new(),
            is_open: false,
            is_closed: false,
        };
        Desk(Arc::new(Inner { room, state: Mutex::new(state), changed: Condvar::new() }))
    }
}

impl<T> Clone for Desk<T> {
    fn clone(&self) -> Desk<T> {
        Desk(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
struct Inner<T> {
    room: usize,
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    /// Asked for, and not begun.
    asked: Option<Vec<Option<PgType>>>,
    /// How often it was asked for; whoever asked before gets nothing more.
    round: u64,
    batches: VecDeque<Result<T>>,
    /// Rows are being made.
    is_open: bool,
    /// Nobody will make or take any more.
    is_closed: bool,
}

impl<T: Send + 'static> Desk<T> {
    /// Asks for all rows from the first one on.
    pub(crate) fn ask(
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
        let desk = self.clone();
        Box::new(std::iter::from_fn(move || desk.take(round)))
    }

    fn take(&self, round: u64) -> Option<Result<T>> {
        let mut state = self.lock();
        loop {
            if state.is_closed || state.round != round {
                return Some(Err(Error::new(ErrorKind::Cancelled, "nobody makes rows any more")));
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

    /// What the maker of rows is to do.
    pub(crate) fn turn(&self) -> Turn {
        let mut state = self.lock();
        if let Some(types) = state.asked.take() {
            state.is_open = true;
            return Turn::Begin(types);
        }
        match state.is_open && state.batches.len() < self.0.room {
            true => Turn::Make,
            false => Turn::Wait,
        }
    }

    /// Whether somebody waits for a batch.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().batches.is_empty()
    }

    /// Puts a batch, or why there is none; `None` after the last one.
    pub(crate) fn put(&self, batch: Option<Result<T>>) {
        let mut state = self.lock();
        state.is_open = state.is_open && matches!(batch, Some(Ok(_)));
        state.batches.extend(batch);
        drop(state);
        self.0.changed.notify_all();
    }

    /// Waits until something changes, for a moment at most.
    pub(crate) fn wait(&self, moment: Duration) {
        let state = self.lock();
        drop(self.0.changed.wait_timeout(state, moment));
    }

    /// Wakes whoever waits.
    pub(crate) fn wake(&self) {
        drop(self.lock());
        self.0.changed.notify_all();
    }

    /// Ends both sides.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.0.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
