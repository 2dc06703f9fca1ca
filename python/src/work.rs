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
use pgspate::session::stopped;
use pgspate::target::PgType;
use pgspate::{Error, ErrorKind, Result, apply, load};
use pyo3::prelude::*;

use crate::desk::{Desk, Turn};
use crate::errors::raise;
use crate::rows::Fault;

/// How often the calling thread looks up.
const MOMENT: Duration = Duration::from_millis(20);
/// How often progress is shown.
const SHOWN: Duration = Duration::from_millis(100);

const BEGINS: u8 = 0;
const WRITES: u8 = 1;
const ABANDONED: u8 = 2;

/// How far the engine's side of a call is, and how it is stopped.
pub(crate) trait Watch: Default + Send + Sync + 'static {
    /// Has it end soon.
    fn cancel(&self);

    /// Tells how far it is.
    fn show(&self, progress: &Bound<'_, PyAny>) -> PyResult<()>;
}

/// What the calling thread makes for the engine.
pub(crate) trait Make {
    /// A batch of it.
    type Batch: Send + 'static;

    /// Begins with the first row, for a table's columns of these types.
    fn begin(&mut self, py: Python<'_>, types: &[Option<PgType>]) -> PyResult<()>;

    /// The next batch; `None` after the last one.
    fn next(&mut self, py: Python<'_>) -> Result<Option<Self::Batch>, Fault>;
}

/// What the engine's side of a call shares with Python's.
#[derive(Debug, Default)]
pub(crate) struct Work<W> {
    /// What the engine does, and how it is stopped.
    pub(crate) watch: Arc<W>,
    stage: Arc<AtomicU8>,
}

impl<W> Clone for Work<W> {
    fn clone(&self) -> Work<W> {
        Work { watch: Arc::clone(&self.watch), stage: Arc::clone(&self.stage) }
    }
}

impl<W: Watch> Work<W> {
    /// To be called before anything is written.
    ///
    /// # Errors
    /// Nobody waits for it any more.
    pub(crate) fn begin_to_write(&self) -> Result<()> {
        match self.stage.compare_exchange(BEGINS, WRITES, SeqCst, SeqCst) {
            Ok(_) => Ok(()),
            Err(_) => Err(stopped()),
        }
    }

    /// What `doing` gives, unless nobody waits for it any more. For what writes nothing.
    pub(crate) async fn unless_abandoned<T>(
        &self,
        doing: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut doing = std::pin::pin!(doing);
        loop {
            if let Ok(done) = tokio::time::timeout(MOMENT, doing.as_mut()).await {
                return done;
            }
            if self.stage.load(SeqCst) == ABANDONED {
                return Err(stopped());
            }
        }
    }

    /// Whether there is nothing to wait for.
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

    /// Has the call roll back and raise `Cancelled`.
    fn set(&self) {
        self.0.store(true, SeqCst);
    }
}

/// Python's side of a call.
pub(crate) struct Caller<'py, M: Make> {
    pub(crate) maker: Option<M>,
    pub(crate) desk: Desk<M::Batch>,
    pub(crate) progress: Option<Bound<'py, PyAny>>,
    pub(crate) stop: Option<Py<Stop>>,
}

impl<'py, M: Make> Caller<'py, M> {
    /// Has `job` done, and gives what it gave.
    pub(crate) fn run<T: Send + 'static, W: Watch>(
        mut self,
        py: Python<'py>,
        job: impl FnOnce(&Work<W>) -> Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let work = Work::default();
        let done: Arc<Mutex<Option<Result<T>>>> = Arc::default();
        let desk = self.desk.clone();
        let (theirs, result) = (work.clone(), Arc::clone(&done));
        let thread = std::thread::Builder::new().name("pgspate".to_owned()).spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(|| job(&theirs)));
            let bug = |_| Err(Error::new(ErrorKind::Bug, "the engine panicked"));
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
    fn step<W: Watch>(
        &mut self,
        py: Python<'py>,
        work: &Work<W>,
        shown: &mut Instant,
        is_failed: bool,
    ) -> PyResult<()> {
        py.check_signals()?;
        let turn = if is_failed { Turn::Wait } else { self.desk.turn() };
        match (&mut self.maker, turn) {
            (Some(maker), Turn::Begin(types)) => maker.begin(py, &types)?,
            (Some(maker), Turn::Make) => match maker.next(py) {
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
            return Err(raise(py, &stopped()));
        }
        if let Some(progress) = self.progress.as_ref().filter(|_| shown.elapsed() >= SHOWN) {
            *shown = Instant::now();
            work.watch.show(progress)?;
        }
        Ok(())
    }
}

impl Watch for load::LoadWatch {
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

impl Watch for apply::ApplyWatch {
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

/// Of what is over soon, and tells nothing meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Unwatched;

impl Watch for Unwatched {
    fn cancel(&self) {}

    fn show(&self, _: &Bound<'_, PyAny>) -> PyResult<()> {
        Ok(())
    }
}

/// Of calls for which nothing is made.
pub(crate) enum Nothing {}

impl Make for Nothing {
    type Batch = ();

    fn begin(&mut self, _: Python<'_>, _: &[Option<PgType>]) -> PyResult<()> {
        match *self {}
    }

    fn next(&mut self, _: Python<'_>) -> Result<Option<()>, Fault> {
        match *self {}
    }
}
