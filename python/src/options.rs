//! The arguments of a call: options as the command's arguments, and data.

use std::net::SocketAddr;
use std::sync::Arc;

use arrow_array::RecordBatch;
use pgspate::format::memory::ProgramBatches;
use pgspate::reading::{self, InputOrigin};
use pgspate::{Result, apply, load, sync};
use pyo3::prelude::*;

use crate::data;
use crate::errors::raise;
use crate::events::PythonEvents;
use crate::handover::RowHandover;
use crate::rows::PythonRows;
use crate::work::{Caller, MakeBatches, NoBatches, Stop};

/// The most batches of rows in the queue. With fewer, the thread that makes rows would wait while
/// all lanes write. A batch has about 4 MiB, or one larger value.
const ROW_BATCHES: usize = 8;
/// The most batches of events in the queue.
const EVENT_BATCHES: usize = 2;

/// The data of a call, as the package describes it.
#[derive(FromPyObject)]
pub(crate) struct CallData<'py>(
    /// `sources`, `held`, `stream`, `rows` or `events`.
    String,
    /// The data.
    Bound<'py, PyAny>,
    /// The name of the data in messages.
    String,
);

/// The options of a call.
#[derive(FromPyObject)]
pub(crate) struct CallOptions<'py>(
    /// The command's arguments.
    Vec<String>,
    /// The server's connection string.
    Option<String>,
    /// The function that gets the progress.
    Option<Bound<'py, PyAny>>,
    Option<Py<Stop>>,
);

/// A call that is ready to run: its options, the server, and the calling thread's side.
type PreparedCall<'py, O, M> = (O, Option<String>, Caller<'py, M>);

/// Options of a command that reads rows from a source.
pub(crate) trait RowCommandOptions: Sized {
    /// Parses the command's arguments.
    fn parse(words: &[String]) -> Result<Self>;

    /// Returns the options of reading.
    fn reading(&mut self) -> &mut reading::ReadingOptions;

    /// Parses the options of a call and prepares its data.
    fn prepare_call<'py>(
        py: Python<'py>,
        given: CallData<'py>,
        asked: CallOptions<'py>,
    ) -> PyResult<PreparedCall<'py, Self, PythonRows>> {
        let mut options = Self::parse(&asked.0).map_err(|error| raise(py, &error))?;
        let handover = RowHandover::with_capacity(ROW_BATCHES);
        let rows = set_data(given, options.reading(), &handover)?;
        let (to, caller) = asked.caller(rows, handover);
        Ok((options, to, caller))
    }
}

impl RowCommandOptions for load::LoadOptions {
    fn parse(words: &[String]) -> Result<load::LoadOptions> {
        pgspate_cli::load_options(words)
    }

    fn reading(&mut self) -> &mut reading::ReadingOptions {
        &mut self.reading
    }
}

impl RowCommandOptions for sync::SyncOptions {
    fn parse(words: &[String]) -> Result<sync::SyncOptions> {
        pgspate_cli::sync_options(words)
    }

    fn reading(&mut self) -> &mut reading::ReadingOptions {
        &mut self.reading
    }
}

/// Gives the data to the engine's options. Returns Python's rows, if the data is rows.
fn set_data(
    given: CallData<'_>,
    options: &mut reading::ReadingOptions,
    handover: &RowHandover<RecordBatch>,
) -> PyResult<Option<PythonRows>> {
    let CallData(kind, data, name) = given;
    let batches: Arc<dyn ProgramBatches> = match kind.as_str() {
        "sources" => {
            options.origin = InputOrigin::Sources(data.extract()?);
            return Ok(None);
        }
        "rows" => {
            // `columns` chooses and names the values here. The engine gets only these values.
            let columns = options.rows.columns.take();
            let (rows, batches) = PythonRows::read_ahead(
                &data,
                &name,
                columns,
                options.rows.ignore_unknown,
                handover,
            )?;
            options.origin = InputOrigin::Batches(Arc::new(batches));
            return Ok(Some(rows));
        }
        kind => data::arrow_batches(&data, &name, kind == "held")?.into(),
    };
    options.origin = InputOrigin::Batches(batches);
    Ok(None)
}

/// The options of a call of `apply`.
pub(crate) struct ApplyCall {
    pub(crate) options: apply::ApplyOptions,
    /// The address that serves metrics.
    pub(crate) metrics: Option<SocketAddr>,
    /// The name of the events, if Python makes them.
    pub(crate) made: Option<String>,
}

/// Parses the options of a call of `apply` and prepares its events.
pub(crate) fn prepare_apply<'py>(
    py: Python<'py>,
    given: CallData<'py>,
    asked: CallOptions<'py>,
) -> PyResult<PreparedCall<'py, ApplyCall, PythonEvents>> {
    let parsed = pgspate_cli::apply_options(&asked.0);
    let (mut options, metrics) = parsed.map_err(|error| raise(py, &error))?;
    let handover = RowHandover::with_capacity(EVENT_BATCHES);
    let CallData(kind, data, name) = given;
    let (mut events, mut made) = (None, None);
    if kind == "sources" {
        options.sources = data.extract()?;
    } else {
        options.sources.clear();
        events = Some(PythonEvents::new(&data, &name, &handover)?);
        made = Some(name);
    }
    let (to, caller) = asked.caller(events, handover);
    Ok((ApplyCall { options, metrics, made }, to, caller))
}

impl<'py> CallOptions<'py> {
    fn caller<M: MakeBatches>(
        self,
        maker: Option<M>,
        handover: RowHandover<M::Batch>,
    ) -> (Option<String>, Caller<'py, M>) {
        (self.1, Caller { maker, handover, progress: self.2, stop: self.3 })
    }

    /// Returns the call of a command without data.
    pub(crate) fn without_data(mut self) -> PreparedCall<'py, Vec<String>, NoBatches> {
        let words = std::mem::take(&mut self.0);
        let (to, caller) = self.caller(None, RowHandover::with_capacity(0));
        (words, to, caller)
    }
}
