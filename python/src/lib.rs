//! pgspate for Python: the engine, and the command, as one extension module.
//!
//! The package in `pgspate/` is what people see; this is what it calls. Options arrive as the
//! command's own arguments, so that both take the same ones and mean the same by them.

#[allow(unsafe_code)]
mod capsule;
mod classes;
mod data;
mod desk;
mod errors;
mod infer;
mod rows;
mod server;
mod spell;
mod text;
mod work;

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::Arc;

use pgspate::format::memory::Batches;
use pgspate::{Error, Kind, Result, load, sync};
use pyo3::prelude::*;
use serde_json::json;

use desk::Desk;
use errors::raise;
use rows::Rows;
use work::{Caller, Stop, Work};

/// What is to be loaded, as the package has sorted it.
#[derive(FromPyObject)]
struct Given<'py>(
    /// `sources`, `held`, `stream` or `rows`.
    String,
    /// The data.
    Bound<'py, PyAny>,
    /// What messages call it.
    String,
);

/// How, and where to.
#[derive(FromPyObject)]
struct Asked<'py>(
    /// The command's arguments.
    Vec<String>,
    /// Those that are lists of names, which may have commas in them.
    HashMap<String, Vec<String>>,
    /// The server.
    Option<String>,
    /// Told how far it is.
    Option<Bound<'py, PyAny>>,
    Option<Py<Stop>>,
);

/// Sources or batches, and Python's rows if these are what it is.
struct Taken {
    sources: Vec<String>,
    batches: Option<Arc<dyn Batches>>,
    rows: Option<Rows>,
    desk: Desk,
}

impl<'py> Given<'py> {
    fn take(self, options: &mut load::Options) -> PyResult<Taken> {
        let desk = Desk::default();
        let mut taken = Taken { sources: Vec::new(), batches: None, rows: None, desk };
        let Given(kind, data, name) = self;
        match kind.as_str() {
            "sources" => taken.sources = data.extract()?,
            "rows" => {
                // Columns choose and name the values; the engine is given these alone.
                let columns = options.columns.take();
                let ignore = options.ignore_unknown;
                let (rows, batches) = Rows::look(&data, &name, columns, ignore, &taken.desk)?;
                taken.rows = Some(rows);
                taken.batches = Some(Arc::new(batches));
            }
            kind => {
                taken.batches = Some(data::arrow(&data, &name, kind == "held")?.into());
            }
        }
        Ok(taken)
    }
}

impl<'py> Asked<'py> {
    /// The lists among the options of either command.
    fn fill(&mut self, options: &mut load::Options) {
        options.columns = self.1.remove("columns");
        options.force_null = self.1.remove("force_null").unwrap_or_default();
        options.force_not_null = self.1.remove("force_not_null").unwrap_or_default();
        options.sources.clear();
    }

    fn caller(self, rows: Option<Rows>, desk: Desk) -> (Option<String>, Caller<'py>) {
        (self.2, Caller { rows, desk, progress: self.3, stop: self.4 })
    }
}

fn options_of_load<'py>(
    py: Python<'py>,
    given: Given<'py>,
    asked: &mut Asked<'py>,
) -> PyResult<(load::Options, Option<Rows>, Desk)> {
    let mut options = pgspate_cli::load_options(&asked.0).map_err(|error| raise(py, &error))?;
    asked.fill(&mut options);
    let taken = given.take(&mut options)?;
    (options.sources, options.batches) = (taken.sources, taken.batches);
    Ok((options, taken.rows, taken.desk))
}

/// Loads; gives the report as JSON.
#[pyfunction(name = "load")]
fn load_data<'py>(py: Python<'py>, given: Given<'py>, mut asked: Asked<'py>) -> PyResult<String> {
    let (options, rows, desk) = options_of_load(py, given, &mut asked)?;
    let (to, caller) = asked.caller(rows, desk);
    caller.run(py, move |work| {
        with_runtime(|runtime| {
            let dsn = pgspate_cli::server(to.as_deref(), true)?;
            let load = load::prepare(options, dsn, runtime)?;
            work.begin_to_write()?;
            as_json(&load.run(&work.watch)?)
        })
    })
}

/// What a load would do, as JSON: the report, and the words of the command.
#[pyfunction]
fn plan<'py>(py: Python<'py>, given: Given<'py>, mut asked: Asked<'py>) -> PyResult<String> {
    let (options, rows, desk) = options_of_load(py, given, &mut asked)?;
    let (to, caller) = asked.caller(rows, desk);
    caller.run(py, move |_: &Work| {
        with_runtime(|runtime| {
            let dsn = pgspate_cli::server(to.as_deref(), true)?;
            let load = load::prepare(options, dsn, runtime)?;
            let report = serde_json::to_value(load.plan_report()).map_err(unwritten)?;
            as_json(&json!({ "report": report, "text": load.plan().to_string() }))
        })
    })
}

fn options_of_sync<'py>(
    py: Python<'py>,
    given: Given<'py>,
    asked: &mut Asked<'py>,
) -> PyResult<(sync::Options, Option<Rows>, Desk)> {
    let mut options = pgspate_cli::sync_options(&asked.0).map_err(|error| raise(py, &error))?;
    asked.fill(&mut options.load);
    options.key = asked.1.remove("key").unwrap_or_default();
    options.ignored = asked.1.remove("ignore_columns").unwrap_or_default();
    if let (sync::Scope::By(names), Some(by)) = (&mut options.scope, asked.1.remove("scope_by")) {
        *names = by;
    }
    let taken = given.take(&mut options.load)?;
    (options.load.sources, options.load.batches) = (taken.sources, taken.batches);
    Ok((options, taken.rows, taken.desk))
}

/// Syncs; gives the report as JSON.
#[pyfunction(name = "sync")]
fn sync_data<'py>(py: Python<'py>, given: Given<'py>, mut asked: Asked<'py>) -> PyResult<String> {
    let (options, rows, desk) = options_of_sync(py, given, &mut asked)?;
    let (to, caller) = asked.caller(rows, desk);
    caller.run(py, move |work| {
        with_runtime(|runtime| {
            let dsn = pgspate_cli::server(to.as_deref(), true)?;
            let sync = sync::prepare(options, dsn, runtime)?;
            work.begin_to_write()?;
            as_json(&sync.run(&work.watch)?)
        })
    })
}

/// A sync as statements for a session of the caller's own, as JSON.
#[pyfunction]
fn sync_script<'py>(py: Python<'py>, given: Given<'py>, mut asked: Asked<'py>) -> PyResult<String> {
    let (options, rows, desk) = options_of_sync(py, given, &mut asked)?;
    let (to, caller) = asked.caller(rows, desk);
    caller.run(py, move |_: &Work| {
        with_runtime(|runtime| {
            let dsn = pgspate_cli::server(to.as_deref(), true)?;
            as_json(&sync::prepare(options, dsn, runtime)?.script())
        })
    })
}

/// Runs the command; gives its exit status.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| pgspate_cli::run(arguments))
}

/// Work on a runtime that ends with it.
fn with_runtime<T>(work: impl FnOnce(&tokio::runtime::Handle) -> Result<T>) -> Result<T> {
    let runtime = pgspate_cli::runtime()?;
    let done = work(runtime.handle());
    runtime.shutdown_background();
    done
}

fn as_json(report: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(report).map_err(unwritten)
}

fn unwritten(error: serde_json::Error) -> Error {
    Error::new(Kind::Bug, "could not write the report").because(error)
}

/// The engine.
#[pymodule]
fn _pgspate(module: &Bound<'_, PyModule>) -> PyResult<()> {
    pgspate::format::silence_contained_panics();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<Stop>()?;
    module.add_class::<server::Throwaway>()?;
    module.add_class::<text::CopyText>()?;
    module.add_function(wrap_pyfunction!(load_data, module)?)?;
    module.add_function(wrap_pyfunction!(sync_data, module)?)?;
    module.add_function(wrap_pyfunction!(sync_script, module)?)?;
    module.add_function(wrap_pyfunction!(plan, module)?)?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(server::start_server, module)?)?;
    module.add_function(wrap_pyfunction!(server::stop_server, module)?)
}
