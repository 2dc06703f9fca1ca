//! Runs a call: the engine on a separate thread, and the caller's Python code on the calling
//! thread.
//!
//! Every [`POLL`] the calling thread checks for signals, shows progress, and makes rows. While it
//! waits, other Python threads can run. Each call has its own runtime and threads, which end with
//! the call. So a process may fork between calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use pgspate::copy::Waiting;
use pgspate::format::memory::BatchTarget;
use pgspate::session::stopped_error;
use pgspate::target::connect::{Dsn, LockWatch};
use pgspate::{Error, ErrorKind, Result, apply, load};
use pyo3::prelude::*;
use tokio::runtime::Handle;

use crate::batch_queue::{Batch, BatchQueue, CallerTask};
use crate::data::ArrowData;
use crate::errors::to_exception;
use crate::rows::RowFault;

/// How often the calling thread checks for signals and requests.
const POLL: Duration = Duration::from_millis(20);
/// How often progress is shown.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

// The stages of a call.
/// The engine has not written yet.
const NOT_WRITING: u8 = 0;
/// The engine has begun to write.
const WRITING: u8 = 1;
/// The caller stopped the call before the engine began to write.
const ABANDONED: u8 = 2;

/// The progress of the engine in a call, and the way to stop the engine.
pub(crate) trait CallWatch: Default + Send + Sync + 'static {
    /// Asks the engine to stop.
    fn cancel(&self);

    /// Calls the Python function `progress` with the engine's progress. `lock_holders` are the
    /// sessions whose locks the engine waits for, in words.
    fn show(&self, progress: &Bound<'_, PyAny>, lock_holders: Option<String>) -> PyResult<()>;
}

/// Makes batches on the calling thread, for the engine.
pub(crate) trait MakeBatches {
    /// A batch of rows or events.
    type Batch: Batch;

    /// Starts at the first row. `targets` are the table's columns.
    fn begin(&mut self, py: Python<'_>, targets: &[Option<BatchTarget>]) -> PyResult<()>;

    /// Returns the next batch, or `None` after the last one.
    fn next(&mut self, py: Python<'_>) -> Result<Option<Self::Batch>, RowFault>;
}

/// The state of a call that the engine's thread and the calling thread share.
#[derive(Debug, Default)]
pub(crate) struct CallState<W> {
    /// The progress of the engine, and the way to stop the engine.
    pub(crate) watch: Arc<W>,
    /// The locks that the engine waits for, if the call shows its progress.
    locks: Option<Arc<LockWatch>>,
    stage: Arc<AtomicU8>,
}

impl<W> Clone for CallState<W> {
    fn clone(&self) -> CallState<W> {
        CallState {
            watch: Arc::clone(&self.watch),
            locks: self.locks.clone(),
            stage: Arc::clone(&self.stage),
        }
    }
}

impl<W: CallWatch> CallState<W> {
    /// Marks the start of writing. The engine calls this before its first write.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`] if the caller has abandoned the call.
    pub(crate) fn begin_to_write(&self) -> Result<()> {
        match self.stage.compare_exchange(NOT_WRITING, WRITING, SeqCst, SeqCst) {
            Ok(_) => Ok(()),
            Err(_) => Err(stopped_error()),
        }
    }

    /// Returns `dsn` for sessions whose locks the progress names, if the call shows its progress.
    pub(crate) fn watch_locks(&self, dsn: Dsn, runtime: &Handle) -> Dsn {
        match &self.locks {
            Some(locks) => locks.start(&dsn, runtime),
            None => dsn,
        }
    }

    /// Runs `future`. Fails if the caller abandons the call: then `future` ends between any two of
    /// its statements.
    pub(crate) async fn unless_abandoned<T>(
        &self,
        future: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut future = std::pin::pin!(future);
        loop {
            if let Ok(result) = tokio::time::timeout(POLL, future.as_mut()).await {
                return result;
            }
            if self.stage.load(SeqCst) == ABANDONED {
                return Err(stopped_error());
            }
        }
    }

    /// Asks the engine to stop. Returns true if the engine has not begun to write. Then it has
    /// nothing to roll back, and the caller need not wait for the engine.
    fn abandon(&self) -> bool {
        self.watch.cancel();
        self.stage.compare_exchange(NOT_WRITING, ABANDONED, SeqCst, SeqCst).is_ok()
    }
}

/// Flags that end a call, which the calling thread checks between two rows.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallEnd(Arc<CallEndFlags>);

#[derive(Debug, Default)]
struct CallEndFlags {
    /// Whether the call is asked to stop.
    is_asked: AtomicBool,
    /// Whether the engine has ended, so that the call needs no more rows or events.
    has_ended: AtomicBool,
}

impl CallEnd {
    /// Fails if the call is asked to stop, or if the engine has ended. Takes about a nanosecond.
    pub(crate) fn check(&self) -> Result<()> {
        match self.0.is_asked.load(Relaxed) || self.0.has_ended.load(Relaxed) {
            true => Err(stopped_error()),
            false => Ok(()),
        }
    }
}

/// A Python object with which another thread can stop a call.
#[pyclass(frozen, module = "pgspate._pgspate")]
#[derive(Debug, Default)]
pub(crate) struct Stop {
    pub(crate) end: CallEnd,
    /// The call's Arrow data, once the call has begun.
    arrow: OnceLock<ArrowData>,
}

impl Stop {
    /// Sets the call's Arrow data, which the call releases at its end.
    pub(crate) fn set_arrow(&self, arrow: Option<ArrowData>) {
        if let Some(arrow) = arrow {
            // Ignored: a call has data once.
            let _ = self.arrow.set(arrow);
        }
    }
}

#[pymethods]
impl Stop {
    #[new]
    fn new() -> Stop {
        Stop::default()
    }

    /// Asks the call to roll back and raise `Cancelled`.
    fn set(&self) {
        self.end.0.is_asked.store(true, SeqCst);
    }

    /// Returns whether the engine has ended, so that the call needs no more rows or events.
    #[getter]
    fn has_ended(&self) -> bool {
        self.end.0.has_ended.load(SeqCst)
    }

    /// Releases the call's Arrow data. Returns false if a thread of the engine is
    /// reading a batch now.
    fn release(&self, py: Python<'_>) -> bool {
        let Some(arrow) = self.arrow.get() else { return true };
        // The exporter of the data may need the interpreter's lock on another thread.
        py.detach(|| arrow.release())
    }
}

/// The calling thread's side of a call.
pub(crate) struct Caller<'py, M: MakeBatches> {
    pub(crate) maker: Option<M>,
    pub(crate) queue: BatchQueue<M::Batch>,
    pub(crate) progress: Option<Bound<'py, PyAny>>,
    pub(crate) stop: Py<Stop>,
}

impl<'py, M: MakeBatches> Caller<'py, M> {
    /// Runs `engine` on a separate thread and returns its result. If the caller's Python code
    /// raises an exception, stops the engine and returns this exception.
    ///
    /// When this returns, no thread of the engine reads the caller's Arrow stream. The exception is
    /// a second interrupt, after which the call does not wait for the current batch.
    pub(crate) fn run<T: Send + 'static, W: CallWatch>(
        mut self,
        py: Python<'py>,
        engine: impl FnOnce(&CallState<W>) -> Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let locks = self.progress.is_some().then(Arc::default);
        let state = CallState { locks, ..CallState::default() };
        let result: Arc<Mutex<Option<Result<T>>>> = Arc::default();
        let queue = self.queue.clone();
        let end = self.stop.get().end.clone();
        let (engine_state, engine_result) = (state.clone(), Arc::clone(&result));
        let thread = std::thread::Builder::new().name("pgspate".to_owned()).spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(|| engine(&engine_state)));
            let bug = |_| Err(Error::new(ErrorKind::Bug, "the engine panicked"));
            *engine_result.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(ended.unwrap_or_else(bug));
            end.0.has_ended.store(true, SeqCst);
            queue.wake();
        });
        thread.map_err(PyErr::from)?;
        let take_result = || result.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut shown = Instant::now();
        let mut failed: Option<PyErr> = None;
        let result = loop {
            if let Some(result) = take_result() {
                break result;
            }
            let step = self.run_step(py, &state, &mut shown, failed.is_some());
            let Err(exception) = step else { continue };
            self.queue.close();
            self.stop.get().release(py);
            if failed.is_some() {
                // After a second interrupt, the call does not wait for the rollback.
                return Err(exception);
            }
            failed = Some(exception);
            if state.abandon() {
                break Err(stopped_error());
            }
        };
        self.queue.close();
        self.await_release(py)?;
        match failed {
            Some(exception) => Err(exception),
            None => result.map_err(|error| to_exception(py, &error)),
        }
    }

    /// Waits until no thread of the engine reads the caller's Arrow stream.
    fn await_release(&self, py: Python<'py>) -> PyResult<()> {
        let queue = &self.queue;
        while !self.stop.get().release(py) {
            py.check_signals()?;
            py.detach(|| queue.wait(POLL));
        }
        Ok(())
    }

    /// Makes a batch, or waits for at most [`POLL`]. After a failure (`is_failed`), only waits for
    /// the engine to end.
    fn run_step<W: CallWatch>(
        &mut self,
        py: Python<'py>,
        state: &CallState<W>,
        shown: &mut Instant,
        is_failed: bool,
    ) -> PyResult<()> {
        py.check_signals()?;
        let task = if is_failed { CallerTask::Wait } else { self.queue.next_task() };
        match (&mut self.maker, task) {
            (Some(maker), CallerTask::Begin(targets)) => maker.begin(py, &targets)?,
            (Some(maker), CallerTask::Make) => match maker.next(py) {
                Ok(batch) => self.queue.put(batch.map(Ok)),
                Err(RowFault::Value(error)) => self.queue.put(Some(Err(error))),
                Err(RowFault::Python(error)) => return Err(error),
            },
            _ => py.detach(|| self.queue.wait(POLL)),
        }
        if is_failed {
            return Ok(());
        }
        if self.stop.get().end.0.is_asked.load(SeqCst) {
            return Err(to_exception(py, &stopped_error()));
        }
        if let Some(progress) =
            self.progress.as_ref().filter(|_| shown.elapsed() >= PROGRESS_INTERVAL)
        {
            *shown = Instant::now();
            let lock_holders = state.locks.as_ref().and_then(|locks| locks.holders());
            state.watch.show(progress, lock_holders)?;
        }
        Ok(())
    }
}

impl CallWatch for load::LoadWatch {
    fn cancel(&self) {
        self.copy.cancel();
    }

    fn show(&self, progress: &Bound<'_, PyAny>, lock_holders: Option<String>) -> PyResult<()> {
        let now = self.copy.snapshot();
        let waiting = match now.waiting {
            Waiting::Unknown => None,
            Waiting::Source => Some("source".to_owned()),
            Waiting::Encode => Some("encode".to_owned()),
            Waiting::Network => Some("network".to_owned()),
            Waiting::Server(event) => Some(format!("server ({event})")),
        };
        let waiting = lock_holders.map(describe_lock).or(waiting);
        let (stored, total) = self.stored_bytes();
        let arguments =
            (now.rows, now.bytes, now.rejected, now.lanes, waiting, now.phase, stored, total);
        progress.call1(arguments).map(drop)
    }
}

impl CallWatch for apply::ApplyWatch {
    fn cancel(&self) {
        self.cancel();
    }

    fn show(&self, progress: &Bound<'_, PyAny>, lock_holders: Option<String>) -> PyResult<()> {
        let now = self.progress();
        let (waiting, phase) = (lock_holders.map(describe_lock), None::<&str>);
        let (events, bytes, rejected) = (now.events, now.bytes, now.dead_letters);
        let arguments = (events, bytes, rejected, 1, waiting, phase, bytes, None::<u64>);
        progress.call1(arguments).map(drop)
    }
}

/// Calls the Python function `progress` while the first rows are read, before the engine starts.
pub(crate) fn show_reading(progress: &Bound<'_, PyAny>) -> PyResult<()> {
    progress.call1((0, 0, 0, 0, "source", None::<&str>, 0, None::<u64>)).map(drop)
}

/// Describes a lock that a call waits for.
fn describe_lock(holders: String) -> String {
    format!("a lock of {holders}")
}

/// The watch of a short call without progress.
#[derive(Debug, Default)]
pub(crate) struct NoProgress;

impl CallWatch for NoProgress {
    fn cancel(&self) {}

    fn show(&self, _: &Bound<'_, PyAny>, _: Option<String>) -> PyResult<()> {
        Ok(())
    }
}

/// The type of the maker for calls without rows or events. It has no values.
pub(crate) enum NoBatches {}

impl Batch for () {}

impl MakeBatches for NoBatches {
    type Batch = ();

    fn begin(&mut self, _: Python<'_>, _: &[Option<BatchTarget>]) -> PyResult<()> {
        match *self {}
    }

    fn next(&mut self, _: Python<'_>) -> Result<Option<()>, RowFault> {
        match *self {}
    }
}
