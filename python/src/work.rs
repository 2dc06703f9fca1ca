//! Runs the engine on a separate thread, while the calling thread stays Python's.
//!
//! The interpreter is released during the call. Every [`POLL`] the calling thread checks for
//! signals, shows progress, and makes rows. Nothing outlives a call: each call has its own runtime
//! and threads, so that a process may fork between calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pgspate::copy::Waiting;
use pgspate::session::stopped_error;
use pgspate::target::PgType;
use pgspate::{Error, ErrorKind, Result, apply, load};
use pyo3::prelude::*;

use crate::errors::raise;
use crate::handover::{RowHandover, Turn};
use crate::rows::RowFault;

/// How often the calling thread checks for signals and requests.
const POLL: Duration = Duration::from_millis(20);
/// How often progress is shown.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

// The stages of a call: before the first write, after it, and given up before it.
const BEGINS: u8 = 0;
const WRITES: u8 = 1;
const ABANDONED: u8 = 2;

/// The progress of the engine's side of a call, and the way to stop it.
pub(crate) trait CallWatch: Default + Send + Sync + 'static {
    /// Asks the engine to end soon.
    fn cancel(&self);

    /// Calls the program's function with the progress.
    fn show(&self, progress: &Bound<'_, PyAny>) -> PyResult<()>;
}

/// Makes batches on the calling thread, for the engine.
pub(crate) trait MakeBatches {
    /// A batch of rows or events.
    type Batch: Send + 'static;

    /// Starts at the first row. `types` are the types of the table's columns.
    fn begin(&mut self, py: Python<'_>, types: &[Option<PgType>]) -> PyResult<()>;

    /// Returns the next batch, or `None` after the last one.
    fn next(&mut self, py: Python<'_>) -> Result<Option<Self::Batch>, RowFault>;
}

/// The state that the engine's side of a call shares with Python's side.
#[derive(Debug, Default)]
pub(crate) struct CallState<W> {
    /// Progress of the engine, and the way to stop it.
    pub(crate) watch: Arc<W>,
    stage: Arc<AtomicU8>,
}

impl<W> Clone for CallState<W> {
    fn clone(&self) -> CallState<W> {
        CallState { watch: Arc::clone(&self.watch), stage: Arc::clone(&self.stage) }
    }
}

impl<W: CallWatch> CallState<W> {
    /// Marks the start of writing. The engine calls this before its first write.
    ///
    /// # Errors
    /// The caller has given up the call.
    pub(crate) fn begin_to_write(&self) -> Result<()> {
        match self.stage.compare_exchange(BEGINS, WRITES, SeqCst, SeqCst) {
            Ok(_) => Ok(()),
            Err(_) => Err(stopped_error()),
        }
    }

    /// Runs `doing`, which must not write. Fails if the caller gives up the call.
    pub(crate) async fn unless_abandoned<T>(
        &self,
        doing: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut doing = std::pin::pin!(doing);
        loop {
            if let Ok(done) = tokio::time::timeout(POLL, doing.as_mut()).await {
                return done;
            }
            if self.stage.load(SeqCst) == ABANDONED {
                return Err(stopped_error());
            }
        }
    }

    /// Stops the call. Returns true if the engine has written nothing, so that no rollback is due.
    fn abandon(&self) -> bool {
        self.watch.cancel();
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

    /// Asks the call to roll back and raise `Cancelled`.
    fn set(&self) {
        self.0.store(true, SeqCst);
    }
}

/// The calling thread's side of a call.
pub(crate) struct Caller<'py, M: MakeBatches> {
    pub(crate) maker: Option<M>,
    pub(crate) handover: RowHandover<M::Batch>,
    pub(crate) progress: Option<Bound<'py, PyAny>>,
    pub(crate) stop: Option<Py<Stop>>,
}

impl<'py, M: MakeBatches> Caller<'py, M> {
    /// Runs `job` on a separate thread and returns its result.
    pub(crate) fn run<T: Send + 'static, W: CallWatch>(
        mut self,
        py: Python<'py>,
        job: impl FnOnce(&CallState<W>) -> Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let work = CallState::default();
        let done: Arc<Mutex<Option<Result<T>>>> = Arc::default();
        let handover = self.handover.clone();
        let (theirs, result) = (work.clone(), Arc::clone(&done));
        let thread = std::thread::Builder::new().name("pgspate".to_owned()).spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(|| job(&theirs)));
            let bug = |_| Err(Error::new(ErrorKind::Bug, "the engine panicked"));
            *result.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(ended.unwrap_or_else(bug));
            handover.wake();
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
            // A second interrupt does not wait for the rollback.
            let is_second = failed.is_some();
            let why = failed.insert(why).clone_ref(py);
            self.handover.close();
            if work.abandon() || is_second {
                return Err(why);
            }
        };
        self.handover.close();
        match failed {
            Some(why) => Err(why),
            None => result.map_err(|error| raise(py, &error)),
        }
    }

    /// Makes a batch, or waits for at most [`POLL`].
    fn step<W: CallWatch>(
        &mut self,
        py: Python<'py>,
        work: &CallState<W>,
        shown: &mut Instant,
        is_failed: bool,
    ) -> PyResult<()> {
        py.check_signals()?;
        let turn = if is_failed { Turn::Wait } else { self.handover.next_turn() };
        match (&mut self.maker, turn) {
            (Some(maker), Turn::Begin(types)) => maker.begin(py, &types)?,
            (Some(maker), Turn::Make) => match maker.next(py) {
                Ok(batch) => self.handover.put(batch.map(Ok)),
                Err(RowFault::Value(error)) => self.handover.put(Some(Err(error))),
                Err(RowFault::Python(error)) => return Err(error),
            },
            _ => py.detach(|| self.handover.wait(POLL)),
        }
        if is_failed {
            return Ok(());
        }
        if self.stop.as_ref().is_some_and(|stop| stop.get().0.load(SeqCst)) {
            return Err(raise(py, &stopped_error()));
        }
        if let Some(progress) =
            self.progress.as_ref().filter(|_| shown.elapsed() >= PROGRESS_INTERVAL)
        {
            *shown = Instant::now();
            work.watch.show(progress)?;
        }
        Ok(())
    }
}

impl CallWatch for load::LoadWatch {
    fn cancel(&self) {
        self.copy.cancel();
    }

    fn show(&self, progress: &Bound<'_, PyAny>) -> PyResult<()> {
        let now = self.copy.snapshot();
        let waiting = match now.waiting {
            Waiting::Unknown => None,
            Waiting::Source => Some("source".to_owned()),
            Waiting::Encode => Some("encode".to_owned()),
            Waiting::Network => Some("network".to_owned()),
            Waiting::Server(event) => Some(format!("server ({event})")),
        };
        let (stored, total) = self.stored_bytes();
        let facts =
            (now.rows, now.bytes, now.rejected, now.lanes, waiting, now.phase, stored, total);
        progress.call1(facts).map(drop)
    }
}

impl CallWatch for apply::ApplyWatch {
    fn cancel(&self) {
        self.cancel();
    }

    fn show(&self, progress: &Bound<'_, PyAny>) -> PyResult<()> {
        let now = self.progress();
        let nothing: Option<&str> = None;
        let (events, bytes, rejected) = (now.events, now.bytes, now.dead_letters);
        let facts = (events, bytes, rejected, 1, nothing, nothing, bytes, None::<u64>);
        progress.call1(facts).map(drop)
    }
}

/// The watch of a short call without progress.
#[derive(Debug, Default)]
pub(crate) struct NoProgress;

impl CallWatch for NoProgress {
    fn cancel(&self) {}

    fn show(&self, _: &Bound<'_, PyAny>) -> PyResult<()> {
        Ok(())
    }
}

/// The maker of calls without rows or events.
pub(crate) enum NoBatches {}

impl MakeBatches for NoBatches {
    type Batch = ();

    fn begin(&mut self, _: Python<'_>, _: &[Option<PgType>]) -> PyResult<()> {
        match *self {}
    }

    fn next(&mut self, _: Python<'_>) -> Result<Option<()>, RowFault> {
        match *self {}
    }
}
