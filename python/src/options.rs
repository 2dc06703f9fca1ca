//! What a call asks for: the command's own arguments, and the data beside them.

use std::net::SocketAddr;
use std::sync::Arc;

use arrow_array::RecordBatch;
use pgspate::format::memory::Batches;
use pgspate::reading::{self, InputOrigin};
use pgspate::{Result, apply, load, sync};
use pyo3::prelude::*;

use crate::data;
use crate::desk::Desk;
use crate::errors::raise;
use crate::events::Events;
use crate::rows::Rows;
use crate::work::{Caller, Make, Nothing, Stop};

/// Batches of rows that wait, at most: with fewer the thread that makes them stands still while
/// all lanes write. A batch has 4 MiB at most, or one value.
const ROW_BATCHES: usize = 8;
/// Batches of events that wait, at most.
const EVENT_BATCHES: usize = 2;

/// What is to be loaded or applied, as the package has sorted it.
#[derive(FromPyObject)]
pub(crate) struct Given<'py>(
    /// `sources`, `held`, `stream`, `rows` or `events`.
    String,
    /// The data.
    Bound<'py, PyAny>,
    /// What messages call it.
    String,
);

/// How, and where to.
#[derive(FromPyObject)]
pub(crate) struct Asked<'py>(
    /// The command's arguments.
    Vec<String>,
    /// The server.
    Option<String>,
    /// Told how far it is.
    Option<Bound<'py, PyAny>>,
    Option<Py<Stop>>,
);

/// Options, the server, and Python's side of the call.
type Ready<'py, O, M> = (O, Option<String>, Caller<'py, M>);

/// The options of a command that reads rows from a source.
pub(crate) trait WithSource: Sized {
    /// What the command takes these arguments for.
    fn parse(words: &[String]) -> Result<Self>;

    /// How rows are read.
    fn reading(&mut self) -> &mut reading::ReadingOptions;

    /// The options of a call, with its data.
    fn of<'py>(
        py: Python<'py>,
        given: Given<'py>,
        asked: Asked<'py>,
    ) -> PyResult<Ready<'py, Self, Rows>> {
        let mut options = Self::parse(&asked.0).map_err(|error| raise(py, &error))?;
        let desk = Desk::with_room(ROW_BATCHES);
        let rows = take(given, options.reading(), &desk)?;
        let (to, caller) = asked.caller(rows, desk);
        Ok((options, to, caller))
    }
}

impl WithSource for load::LoadOptions {
    fn parse(words: &[String]) -> Result<load::LoadOptions> {
        pgspate_cli::load_options(words)
    }

    fn reading(&mut self) -> &mut reading::ReadingOptions {
        &mut self.reading
    }
}

impl WithSource for sync::SyncOptions {
    fn parse(words: &[String]) -> Result<sync::SyncOptions> {
        pgspate_cli::sync_options(words)
    }

    fn reading(&mut self) -> &mut reading::ReadingOptions {
        &mut self.reading
    }
}

/// Sources or batches for the engine; Python's rows, if these are what it is.
fn take(
    given: Given<'_>,
    options: &mut reading::ReadingOptions,
    desk: &Desk<RecordBatch>,
) -> PyResult<Option<Rows>> {
    let Given(kind, data, name) = given;
    let batches: Arc<dyn Batches> = match kind.as_str() {
        "sources" => {
            options.origin = InputOrigin::Sources(data.extract()?);
            return Ok(None);
        }
        "rows" => {
            // Columns choose and name the values; the engine is given these alone.
            let columns = options.rows.columns.take();
            let (rows, batches) =
                Rows::look(&data, &name, columns, options.rows.ignore_unknown, desk)?;
            options.origin = InputOrigin::Batches(Arc::new(batches));
            return Ok(Some(rows));
        }
        kind => data::arrow(&data, &name, kind == "held")?.into(),
    };
    options.origin = InputOrigin::Batches(batches);
    Ok(None)
}

/// What `apply` is asked for.
pub(crate) struct Applying {
    pub(crate) options: apply::ApplyOptions,
    /// Where metrics are served.
    pub(crate) metrics: Option<SocketAddr>,
    /// What events are called that Python makes, if any are.
    pub(crate) made: Option<String>,
}

/// What a call of `apply` asks for, with its events.
pub(crate) fn streamed<'py>(
    py: Python<'py>,
    given: Given<'py>,
    asked: Asked<'py>,
) -> PyResult<Ready<'py, Applying, Events>> {
    let asked_for = pgspate_cli::apply_options(&asked.0);
    let (mut options, metrics) = asked_for.map_err(|error| raise(py, &error))?;
    let desk = Desk::with_room(EVENT_BATCHES);
    let Given(kind, data, name) = given;
    let (mut events, mut made) = (None, None);
    if kind == "sources" {
        options.sources = data.extract()?;
    } else {
        options.sources.clear();
        events = Some(Events::new(&data, &name, &desk)?);
        made = Some(name);
    }
    let (to, caller) = asked.caller(events, desk);
    Ok((Applying { options, metrics, made }, to, caller))
}

impl<'py> Asked<'py> {
    fn caller<M: Make>(
        self,
        maker: Option<M>,
        desk: Desk<M::Batch>,
    ) -> (Option<String>, Caller<'py, M>) {
        (self.1, Caller { maker, desk, progress: self.2, stop: self.3 })
    }

    /// Of a command without data: its arguments, the server, and Python's side of the call.
    pub(crate) fn alone(mut self) -> Ready<'py, Vec<String>, Nothing> {
        let words = std::mem::take(&mut self.0);
        let (to, caller) = self.caller(None, Desk::with_room(0));
        (words, to, caller)
    }
}
