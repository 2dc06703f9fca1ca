//! The writer for Python: single records of many threads, or of many tasks of one event loop.
//!
//! A writer's runtime has its own threads. A forked process has none of them, so it must open a
//! writer of its own. No thread of the runtime runs Python code.
//!
//! Waking a thread costs more than encoding a record. So an event loop encodes the calls of all
//! tasks that run in one turn, and then sends them to the runtime together. Answers are kept until
//! the loop takes them. A byte in a socket wakes the loop when the first one is kept.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use pgspate::session::WaitLimits;
use pgspate::writer::{EncodedRows, InsertOutcome, InsertShape, Writer, WriterOptions};
use pgspate::{Error, ErrorKind, Result};
use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;
use pyo3::types::PyList;
use tokio::runtime::Runtime;

use crate::as_json;
use crate::errors::to_exception;
use crate::record_rows::{CallParts, EncodedCall, InsertPlan, RecordTools};
use crate::value_text::ValueTextWriter;

/// How often a thread that waits for an answer checks for signals.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// A writer's settings, as Python passes them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct RecordWriterSettings {
    connections: usize,
    queue_bytes: usize,
    refuses_when_full: bool,
    shares_triggers: bool,
    retry_for: f64,
    stall_timeout: f64,
    lock_timeout: f64,
    keep_keys: f64,
}

/// A writer.
#[pyclass(frozen, module = "pgspate._pgspate")]
pub(crate) struct RecordWriter {
    /// Exists until the writer is dropped.
    engine: Option<WriterEngine>,
    /// The process that opened the writer.
    pid: u32,
}

struct WriterEngine {
    writer: Arc<Writer>,
    runtime: Runtime,
    answers: Arc<AnswerQueue>,
    unsent: Mutex<Vec<UnsentCall>>,
    /// The Python function that returns the reader for returned columns.
    make_reader: Py<PyAny>,
    /// Value writers that no call uses now.
    text_writers: Mutex<Vec<ValueTextWriter>>,
}

/// A call that an event loop has encoded and not sent yet.
struct UnsentCall {
    number: u64,
    shape: Arc<InsertShape>,
    records: Vec<EncodedRows>,
}

/// The outcomes of a call: one for each independent part.
type Outcomes = Vec<Result<InsertOutcome>>;

/// An answer for Python: number, error if the whole call failed, and outcomes.
type TakenAnswer<'py> = (u64, Option<Py<PyBaseException>>, Bound<'py, PyList>);

#[pymethods]
impl RecordWriter {
    /// Connects to the server. Without `to`, the server is the default server.
    #[new]
    fn new(
        py: Python<'_>,
        to: Option<String>,
        settings: RecordWriterSettings,
        make_reader: Py<PyAny>,
    ) -> PyResult<RecordWriter> {
        let opened = py.detach(|| {
            let options = settings.into_options()?;
            let runtime = start_runtime()?;
            let dsn = pgspate_cli::server(to.as_deref(), true)?;
            let writer = runtime.block_on(Writer::open(dsn, options, runtime.handle()))?;
            Ok((Arc::new(writer), runtime, Arc::new(AnswerQueue::new()?)))
        });
        let (writer, runtime, answers) = opened.map_err(|error| to_exception(py, &error))?;
        let text_writers = Mutex::default();
        let unsent = Mutex::default();
        let engine = WriterEngine { writer, runtime, answers, unsent, make_reader, text_writers };
        Ok(RecordWriter { engine: Some(engine), pid: std::process::id() })
    }

    /// Writes records, and waits for the answer. Returns the reader of returned rows, and the
    /// outcomes.
    fn write<'py>(
        &self,
        plan: &Bound<'py, InsertPlan>,
        rows: &Bound<'py, PyList>,
        parts: CallParts,
    ) -> PyResult<(Py<PyAny>, Bound<'py, PyList>)> {
        let py = plan.py();
        let engine = self.engine(py)?;
        loop {
            match engine.encode(plan.get(), rows, parts.clone())? {
                EncodedCall::Ready(known, records) => {
                    let inserted = engine.insert(known.shape.clone(), records);
                    let outcomes = engine.wait(py, inserted)?;
                    return Ok((known.reader.clone_ref(py), outcome_list(py, outcomes)?));
                }
                EncodedCall::NeedsShape(request) => {
                    let writer = engine.writer.clone();
                    engine.wait(py, async move { writer.shape(&request).await })?;
                }
            }
        }
    }

    /// Encodes records for the next `send`. Returns the reader of returned rows; `take` returns the
    /// outcomes with this number. Without a result, nothing will be written: `take` returns the
    /// number when the table is known, and then this must be called again.
    fn start(
        &self,
        plan: &Bound<'_, InsertPlan>,
        rows: &Bound<'_, PyList>,
        parts: CallParts,
        number: u64,
    ) -> PyResult<Option<Py<PyAny>>> {
        let py = plan.py();
        let engine = self.engine(py)?;
        Ok(match engine.encode(plan.get(), rows, parts)? {
            EncodedCall::Ready(known, records) => {
                let shape = known.shape.clone();
                lock(&engine.unsent).push(UnsentCall { number, shape, records });
                Some(known.reader.clone_ref(py))
            }
            EncodedCall::NeedsShape(request) => {
                let (writer, answers) = (engine.writer.clone(), engine.answers.clone());
                engine.runtime.spawn(async move {
                    let known = writer.shape(&request).await;
                    answers.put(number, known.map(|_| Vec::new()));
                });
                None
            }
        })
    }

    /// Sends the encoded calls, in their order.
    fn send(&self, py: Python<'_>) -> PyResult<()> {
        let engine = self.engine(py)?;
        let calls = std::mem::take(&mut *lock(&engine.unsent));
        let answers = engine.answers.clone();
        let insert = |call: UnsentCall| {
            let inserted = engine.insert(call.shape, call.records);
            async move { (call.number, inserted.await) }
        };
        let mut inserting: FuturesUnordered<_> = calls.into_iter().map(insert).collect();
        engine.runtime.spawn(async move {
            while let Some((number, outcomes)) = inserting.next().await {
                answers.put(number, outcomes);
            }
        });
        Ok(())
    }

    /// Returns the answers that have arrived: number, error if the whole call failed, and outcomes.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Vec<TakenAnswer<'py>>> {
        let answers = self.engine(py)?.answers.take();
        let convert = |(number, outcomes): (u64, Result<Outcomes>)| match outcomes {
            Ok(outcomes) => Ok((number, None, outcome_list(py, outcomes)?)),
            Err(error) => Ok((number, Some(exception(py, &error)), PyList::empty(py))),
        };
        answers.into_iter().map(convert).collect()
    }

    /// Returns the file descriptor that is readable when an answer has arrived.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.engine(py)?.answers.woken.as_raw_fd())
    }

    /// Returns the report as JSON.
    fn report(&self, py: Python<'_>) -> PyResult<String> {
        let report = self.engine(py)?.writer.report();
        as_json(&report).map_err(|error| to_exception(py, &error))
    }

    /// Writes what is queued, and ends the sessions.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let engine = self.engine(py)?;
        let writer = engine.writer.clone();
        engine.wait(py, async move {
            writer.close().await;
            Ok(())
        })
    }

    /// Begins to close. `take` returns the number when the writer is closed.
    fn start_close(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        let engine = self.engine(py)?;
        let (writer, answers) = (engine.writer.clone(), engine.answers.clone());
        engine.runtime.spawn(async move {
            writer.close().await;
            answers.put(number, Ok(Vec::new()));
        });
        Ok(())
    }
}

impl RecordWriter {
    fn engine(&self, py: Python<'_>) -> PyResult<&WriterEngine> {
        if let Some(engine) = self.engine.as_ref().filter(|_| self.pid == std::process::id()) {
            return Ok(engine);
        }
        let message = "the writer belongs to another process, from which this one was forked";
        let error = Error::new(ErrorKind::Usage, message);
        Err(to_exception(py, &error.hint("Open a writer in each process, after the fork.")))
    }
}

impl Drop for RecordWriter {
    fn drop(&mut self) {
        let engine = self.engine.take();
        if self.pid != std::process::id() {
            // A forked process has none of the threads, and must not touch the connections.
            return std::mem::forget(engine);
        }
        if let Some(engine) = engine {
            engine.runtime.shutdown_background();
        }
    }
}

impl WriterEngine {
    fn encode(
        &self,
        plan: &InsertPlan,
        rows: &Bound<'_, PyList>,
        parts: CallParts,
    ) -> PyResult<EncodedCall> {
        // Conversions call Python's methods, so that other threads may run meanwhile. Each call has
        // a value writer of its own.
        let idle = lock(&self.text_writers).pop();
        let mut text_writer = idle.map_or_else(|| ValueTextWriter::new(rows.py()), Ok)?;
        let mut tools = RecordTools {
            writer: &self.writer,
            text_writer: &mut text_writer,
            make_reader: &self.make_reader,
        };
        let encoded = plan.encode(rows, parts, &mut tools);
        lock(&self.text_writers).push(text_writer);
        encoded
    }

    /// Returns a future that writes records, each element independently of the others.
    fn insert(
        &self,
        shape: Arc<InsertShape>,
        records: Vec<EncodedRows>,
    ) -> impl Future<Output = Result<Outcomes>> + Send + 'static {
        let writer = self.writer.clone();
        async move { writer.insert_each(&shape, records).await }
    }

    /// Waits for a future. Python's other threads run meanwhile. If a signal's handler raises an
    /// exception, the future runs on in the background.
    fn wait<T: Send + 'static>(
        &self,
        py: Python<'_>,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> PyResult<T> {
        let mut task = self.runtime.spawn(future);
        loop {
            let ended = py.detach(|| {
                self.runtime
                    .block_on(async { tokio::time::timeout(SIGNAL_INTERVAL, &mut task).await })
            });
            if let Ok(ended) = ended {
                let bug = |_| Error::new(ErrorKind::Bug, "a task of the writer has panicked");
                let result = ended.map_err(bug).flatten();
                return result.map_err(|error| to_exception(py, &error));
            }
            py.check_signals()?;
        }
    }
}

impl RecordWriterSettings {
    fn into_options(self) -> Result<WriterOptions> {
        let seconds = |name: &str, value: f64| {
            Duration::try_from_secs_f64(value).map_err(|error| {
                let message = format!("{value} is not a value of `{name}=`");
                Error::new(ErrorKind::Usage, message).because(error)
            })
        };
        Ok(WriterOptions {
            connections: self.connections,
            queue_bytes: self.queue_bytes,
            refuses_when_full: self.refuses_when_full,
            shares_triggers: self.shares_triggers,
            keep_keys: seconds("keep_keys", self.keep_keys)?,
            limits: WaitLimits {
                retry_for: seconds("retry_for", self.retry_for)?,
                stall_timeout: seconds("stall_timeout", self.stall_timeout)?,
                lock_timeout: seconds("lock_timeout", self.lock_timeout)?,
            },
            ..WriterOptions::default()
        })
    }
}

/// Starts the runtime of a writer, with one thread. It does little for each record, and passing
/// work from one thread to another costs more.
fn start_runtime() -> Result<Runtime> {
    let builder = &mut tokio::runtime::Builder::new_multi_thread();
    let started = builder.worker_threads(1).enable_all().build();
    started.map_err(|error| Error::new(ErrorKind::Bug, "could not start a thread").because(error))
}

/// Answers that an event loop has not taken yet.
struct AnswerQueue {
    arrived: Mutex<Vec<(u64, Result<Outcomes>)>>,
    waker: UnixStream,
    /// The event loop's end.
    woken: UnixStream,
}

impl AnswerQueue {
    fn new() -> Result<AnswerQueue> {
        let failed = |error| Error::new(ErrorKind::Bug, "could not open a socket").because(error);
        let (waker, woken) = UnixStream::pair().map_err(failed)?;
        for end in [&waker, &woken] {
            end.set_nonblocking(true).map_err(failed)?;
        }
        Ok(AnswerQueue { arrived: Mutex::default(), waker, woken })
    }

    /// Keeps an answer. Wakes the event loop, unless an earlier answer has.
    fn put(&self, number: u64, answer: Result<Outcomes>) {
        let mut arrived = lock(&self.arrived);
        arrived.push((number, answer));
        if arrived.len() == 1 {
            // Ignored: a full socket wakes the event loop, too.
            let _ = (&self.waker).write(&[1]);
        }
    }

    /// Takes the answers.
    fn take(&self) -> Vec<(u64, Result<Outcomes>)> {
        // First the bytes: an answer that arrives after this line writes another one.
        let _ = (&self.woken).read(&mut [0; 64]);
        std::mem::take(&mut lock(&self.arrived))
    }
}

/// Returns outcomes for Python: the number of rows, or the returned columns of each row as JSON, or
/// the error.
fn outcome_list(py: Python<'_>, outcomes: Outcomes) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for outcome in outcomes {
        match outcome {
            Ok(written) if written.returned.is_empty() => list.append(written.rows)?,
            Ok(written) => list.append(written.returned)?,
            Err(error) => list.append(exception(py, &error))?,
        }
    }
    Ok(list)
}

fn exception(py: Python<'_>, error: &Error) -> Py<PyBaseException> {
    to_exception(py, error).into_value(py)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
