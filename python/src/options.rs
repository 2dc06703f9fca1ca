//! Parses the arguments of a call: the options, which are the command's arguments, and the data.

use std::net::SocketAddr;
use std::sync::Arc;

use arrow_array::RecordBatch;
use pgspate::format::memory::ProgramBatches;
use pgspate::reading::{self, InputOrigin};
use pgspate::{Result, apply, load, sync};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::batch_queue::BatchQueue;
use crate::call::{Caller, MakeBatches, NoBatches, Stop};
use crate::constant::set_constants;
use crate::data;
use crate::errors::to_exception;
use crate::events::PythonEvents;
use crate::frame::FrameRows;
use crate::rows::PythonRows;
use crate::shape::{NamedColumns, OtherKeys};

/// The most batches of rows in the queue. With fewer batches, the thread that makes rows would wait
/// while all lanes write. A batch has about 4 MiB, or one larger value.
const ROW_BATCHES: usize = 8;
/// The most batches of events in the queue.
const EVENT_BATCHES: usize = 2;

/// The data of a call, as Python passes it.
#[derive(FromPyObject)]
pub(crate) struct CallData<'py>(
    /// The kind of the data: `sources` (paths and URLs), `in_memory` or `stream` (Arrow data),
    /// `rows`, `memory_rows` (which can be iterated several times), `frame` or `events`. A `frame`
    /// has columns of Arrow and of Python's objects.
    String,
    /// The data.
    Bound<'py, PyAny>,
    /// The name of the data for messages.
    String,
);

/// The options of a call, as Python passes them.
#[derive(FromPyObject)]
pub(crate) struct CallOptions<'py>(
    /// The command's arguments.
    Vec<String>,
    /// The server's connection string.
    Option<String>,
    /// The function that gets the progress.
    Option<Bound<'py, PyAny>>,
    /// The object with which another thread can stop the call.
    Py<Stop>,
    /// The values of `set=`, by column.
    Option<Bound<'py, PyDict>>,
);

/// A call that is ready to run: its options, the server's connection string, and the calling
/// thread's side.
type PreparedCall<'py, O, M> = (O, Option<String>, Caller<'py, M>);

/// Options of a command that reads rows from a source.
pub(crate) trait RowCommandOptions: Sized {
    /// Parses the command's arguments.
    fn parse(arguments: &[String]) -> Result<Self>;

    /// Returns the options for reading the source.
    fn reading(&mut self) -> &mut reading::ReadingOptions;

    /// Parses the options of a call and prepares its data.
    fn prepare_call<'py>(
        py: Python<'py>,
        data: CallData<'py>,
        call: CallOptions<'py>,
    ) -> PyResult<PreparedCall<'py, Self, FrameRows>> {
        let mut options = Self::parse(&call.0).map_err(|error| to_exception(py, &error))?;
        if let Some(constants) = &call.4 {
            set_constants(constants, &mut options.reading().rows)?;
        }
        let queue = BatchQueue::with_capacity(ROW_BATCHES);
        let rows = set_data(data, options.reading(), &queue, call.3.get(), call.2.as_ref())?;
        let (to, caller) = call.into_caller(rows, queue);
        Ok((options, to, caller))
    }
}

impl RowCommandOptions for load::LoadOptions {
    fn parse(arguments: &[String]) -> Result<load::LoadOptions> {
        pgspate_cli::load_options(arguments)
    }

    fn reading(&mut self) -> &mut reading::ReadingOptions {
        &mut self.reading
    }
}

impl RowCommandOptions for sync::SyncOptions {
    fn parse(arguments: &[String]) -> Result<sync::SyncOptions> {
        pgspate_cli::sync_options(arguments)
    }

    fn reading(&mut self) -> &mut reading::ReadingOptions {
        &mut self.reading
    }
}

/// Returns whether the data can be iterated several times.
fn is_list(data: &Bound<'_, PyAny>) -> bool {
    data.is_instance_of::<PyList>() || data.is_instance_of::<PyTuple>()
}

/// The hint for a key of a row that `columns=` does not name.
const OTHER_KEYS_HINT: &str =
    "Name the key in `columns=`. To ignore such keys, pass `ignore_unknown=True`.";

/// Sets the data in the engine's options. For rows of Python, returns the rows.
fn set_data<'py>(
    data: CallData<'py>,
    options: &mut reading::ReadingOptions,
    queue: &BatchQueue<RecordBatch>,
    stop: &Stop,
    progress: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<FrameRows>> {
    let CallData(kind, data, name) = data;
    let (rows, batches): (_, Arc<dyn ProgramBatches>) = match kind.as_str() {
        "sources" => {
            options.origin = InputOrigin::Sources(data.extract()?);
            return Ok(None);
        }
        "rows" | "memory_rows" => {
            // The option `columns` is applied here: it selects and names the values. The engine
            // gets only these values.
            let columns = options.rows.columns.take();
            let others = match options.rows.ignore_unknown {
                true => OtherKeys::Ignored,
                false => OtherKeys::NotNamed(OTHER_KEYS_HINT),
            };
            // Each of these names must be a column.
            options.rows.ignore_unknown &= columns.is_none();
            let columns = columns.map(|names| NamedColumns { names, others });
            let is_stream = kind == "rows" && !is_list(&data);
            let (rows, batches) = PythonRows::read_ahead(
                &data, &name, is_stream, columns, queue, &stop.end, progress,
            )?;
            (Some(FrameRows::of_rows(rows)), Arc::new(batches))
        }
        "frame" => {
            let columns = options.rows.columns.take().unwrap_or_default();
            let (rows, batches) =
                FrameRows::read_ahead(&data.extract()?, &name, columns, queue, &stop.end)?;
            stop.set_arrow(rows.arrow_data());
            (Some(rows), batches)
        }
        kind => {
            let batches = data::arrow_batches(&data, &name, kind == "in_memory")?;
            stop.set_arrow(Some(batches.data.clone()));
            (None, Arc::new(batches))
        }
    };
    options.origin = InputOrigin::Batches(batches);
    Ok(rows)
}

/// The options of a call of `apply`.
pub(crate) struct ApplyCall {
    pub(crate) options: apply::ApplyOptions,
    /// The address at which metrics are served.
    pub(crate) metrics: Option<SocketAddr>,
    /// The name of Python's iterable, if it makes the events.
    pub(crate) iterable_name: Option<String>,
}

/// Parses the options of a call of `apply` and prepares its events.
pub(crate) fn prepare_apply<'py>(
    py: Python<'py>,
    data: CallData<'py>,
    call: CallOptions<'py>,
) -> PyResult<PreparedCall<'py, ApplyCall, PythonEvents>> {
    let parsed = pgspate_cli::apply_options(&call.0);
    let (mut options, metrics) = parsed.map_err(|error| to_exception(py, &error))?;
    let queue = BatchQueue::with_capacity(EVENT_BATCHES);
    let CallData(kind, data, name) = data;
    let (mut events, mut iterable_name) = (None, None);
    if kind == "sources" {
        options.sources = data.extract()?;
    } else {
        options.sources.clear();
        events = Some(PythonEvents::new(&data, &name)?);
        iterable_name = Some(name);
    }
    let (to, caller) = call.into_caller(events, queue);
    Ok((ApplyCall { options, metrics, iterable_name }, to, caller))
}

impl<'py> CallOptions<'py> {
    /// Returns the server's connection string, and the calling thread's side of the call.
    fn into_caller<M: MakeBatches>(
        self,
        maker: Option<M>,
        queue: BatchQueue<M::Batch>,
    ) -> (Option<String>, Caller<'py, M>) {
        (self.1, Caller { maker, queue, progress: self.2, stop: self.3 })
    }

    /// Returns the call of a command without data.
    pub(crate) fn without_data(mut self) -> PreparedCall<'py, Vec<String>, NoBatches> {
        let arguments = std::mem::take(&mut self.0);
        let (to, caller) = self.into_caller(None, BatchQueue::with_capacity(0));
        (arguments, to, caller)
    }
}
