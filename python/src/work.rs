//! The engine at work on a thread of its own, while the thread that called stays Python's.
//!
//! The interpreter is free meanwhile. Every [`MOMENT`] the calling thread looks for signals, shows
//! progress and makes rows, if rows are made in Python. Nothing outlives a call: each has a runtime
//! and threads of its own, so that a process may fork between calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pgspate::copy::Waiting;
use pgspate::load::Watch;
use pgspate::{Error, Kind, Result};
use pyo3::prelude::*;

use crate::desk::{Desk, Turn};
use crate::errors::raise;
use crate::rows::{Fault, Rows};

/// How often the calling thread looks up.
const MOMENT: Duration = Duration::from_millis(20);
/// How often progress is shown.
const SHOWN: Duration = Duration::from_millis(100);

const BEGINS: u8 = 0;
const WRITES: u8 = 1;
const ABANDONED: u8 = 2;

/// What the engine's side of a call shares with Python's.
#[derive(Debug, Clone, Default)]
pub(crate) struct Work {
    /// What the engine does, and how it is stopped.
    pub(crate) watch: Arc<Watch>,
    stage: Arc<AtomicU8>,
}

impl Work {
    /// To be called before anything is written.
    ///
    /// # Errors
    /// Nobody waits for it any more.
    pub(crate) fn begin_to_write(&self) -> Result<()> {
        match self.stage.compare_exchange(BEGINS, WRITES, SeqCst, SeqCst) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::new(Kind::Cancelled, "stopped by the user")),
        }
    }

    /// Whether there is nothing to wait for.
    fn abandon(&self) -> bool {
        self.watch.copy.cancel();
        self.stage.compare_exchange(BEGINS, ABANDONED, SeqCst, SeqCst).is_ok()
    }
}

/// Stops a call from another thread.
#[pyclass(frozen, module = "pgspate._pgspate")]
#[derive(Debug, Default)]
pub(crate) struct Stop(AtomicBool);

#[pymethods]
impl Stop {
    #[new]
    fn new() -> Stop {
        Stop::default()
    }

    /// Has the call roll back and raise `Cancelled`.
    fn set(&self) {
        self.0.store(true, SeqCst);
    }
}

/// Python's side of a call.
pub(crate) struct Caller<'py> {
    pub(crate) rows: Option<Rows>,
    pub(crate) desk: Desk,
    pub(crate) progress: Option<Bound<'py, PyAny>>,
    pub(crate) stop: Option<Py<Stop>>,
}

impl<'py> Caller<'py> {
    /// Has `job` done, and gives what it gave.
    pub(crate) fn run<T: Send + 'static>(
        mut self,
        py: Python<'py>,
        job: impl FnOnce(&Work) -> Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let work = Work::default();
        let done: Arc<Mutex<Option<Result<T>>>> = Arc::default();
        let desk = self.desk.clone();
        let (theirs, result) = (work.clone(), Arc::clone(&done));
        let thread = std::thread::Builder::new().name("pgspate".to_owned()).spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(|| job(&theirs)));
            let bug = |_| Err(Error::new(Kind::Bug, "the engine panicked"));
            *result.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(ended.unwrap_or_else(bug));
            desk.wake();
        });
        thread.map_err(PyErr::from)?;
        let take = || done.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut shown = Instant::now();
        let mut failed: Option<PyErr> = None;
        let result = loop {
            if let Some(result) = take() {
                break result;
            }
            let step = self.step(py, &work, &mut shown, failed.is_some());
            let Err(why) = step else { continue };
            // The second interrupt does not wait for the rollback.
            let is_second = failed.is_some();
            let why = failed.insert(why).clone_ref(py);
            self.desk.close();
            if work.abandon() || is_second {
                return Err(why);
            }
        };
        self.desk.close();
        match failed {
            Some(why) => Err(why),
            None => result.map_err(|error| raise(py, &error)),
        }
    }

    /// Makes rows, or waits for a moment.
    fn step(
        &mut self,
        py: Python<'py>,
        work: &Work,
        shown: &mut Instant,
        is_failed: bool,
    ) -> PyResult<()> {
        py.check_signals()?;
        let turn = if is_failed { Turn::Wait } else { self.desk.turn() };
        match (&mut self.rows, turn) {
            (Some(rows), Turn::Begin(types)) => rows.begin(py, &types)?,
            (Some(rows), Turn::Make) => match rows.next(py) {
                Ok(batch) => self.desk.put(batch.map(Ok)),
                Err(Fault::Value(error)) => self.desk.put(Some(Err(error))),
                Err(Fault::Python(error)) => return Err(error),
            },
            _ => py.detach(|| self.desk.wait(MOMENT)),
        }
        if is_failed {
            return Ok(());
        }
        if self.stop.as_ref().is_some_and(|stop| stop.get().0.load(SeqCst)) {
            return Err(raise(py, &Error::new(Kind::Cancelled, "stopped by the user")));
        }
        if let Some(progress) = self.progress.as_ref().filter(|_| shown.elapsed() >= SHOWN) {
            *shown = Instant::now();
            show(progress, &work.watch)?;
        }
        Ok(())
    }
}

/// Tells how far it is.
fn show(progress: &Bound<'_, PyAny>, watch: &Watch) -> PyResult<()> {
    let now = watch.copy.snapshot();
    let waiting = match now.waiting {
        Waiting::Unknown => None,
        Waiting::Source => Some("source".to_owned()),
        Waiting::Encode => Some("encode".to_owned()),
        Waiting::Network => Some("network".to_owned()),
        Waiting::Server(event) => Some(format!("server ({event})")),
    };
    let (stored, total) = watch.stored_bytes();
    let facts = (now.rows, now.bytes, now.rejected, now.lanes, waiting, now.phase, stored, total);
    progress.call1(facts).map(drop)
}
