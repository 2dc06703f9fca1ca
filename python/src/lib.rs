//! pgspate for Python: the engine, and the command, as one extension module.
//!
//! The package in `pgspate/` is what people see; this is what it calls. Options arrive as the
//! command's own arguments, so that both take the same ones and mean the same by them.

#[allow(unsafe_code)]
mod capsule;
mod classes;
mod column;
mod data;
mod desk;
mod errors;
mod events;
mod infer;
mod options;
mod rows;
mod server;
mod shape;
mod spell;
mod text;
mod work;

use std::ffi::OsString;

use pgspate::source::Input;
use pgspate::sync::SyncRefusal;
use pgspate::target::connect::Dsn;
use pgspate::{Error, ErrorKind, Result, apply, ledger, load, sync};
use pyo3::prelude::*;
use serde_json::json;
use tokio::runtime::Handle;

use errors::raise;
use events::EventBytes;
use options::{Applying, Asked, Given, WithSource, streamed};
use work::{Stop, Unwatched, Work};

/// Loads; gives the report as JSON.
#[pyfunction(name = "load")]
fn load_data<'py>(py: Python<'py>, given: Given<'py>, asked: Asked<'py>) -> PyResult<String> {
    let (options, to, caller) = load::LoadOptions::of(py, given, asked)?;
    caller.run(py, move |work| {
        at_server(to, |dsn, runtime| {
            let load = load::prepare(options, dsn, runtime)?;
            work.begin_to_write()?;
            as_json(&load.run(&work.watch)?)
        })
    })
}

/// What a load would do, as JSON: the report, and the words of the command.
#[pyfunction]
fn plan<'py>(py: Python<'py>, given: Given<'py>, asked: Asked<'py>) -> PyResult<String> {
    let (options, to, caller) = load::LoadOptions::of(py, given, asked)?;
    caller.run(py, move |_: &Work<Unwatched>| {
        at_server(to, |dsn, runtime| {
            let load = load::prepare(options, dsn, runtime)?;
            let report = serde_json::to_value(load.plan_report()).map_err(unwritten)?;
            as_json(&json!({ "report": report, "text": load.plan().to_string() }))
        })
    })
}

/// Syncs; gives the report as JSON.
#[pyfunction(name = "sync")]
fn sync_data<'py>(py: Python<'py>, given: Given<'py>, asked: Asked<'py>) -> PyResult<String> {
    let (options, to, caller) = sync::SyncOptions::of(py, given, asked)?;
    caller.run(py, move |work| {
        at_server(to, |dsn, runtime| {
            let sync = sync::prepare(options, dsn, runtime)?;
            work.begin_to_write()?;
            as_json(&sync.run(&work.watch)?)
        })
    })
}

/// A sync as statements for a session of the caller's own, as JSON.
#[pyfunction]
fn sync_script<'py>(py: Python<'py>, given: Given<'py>, asked: Asked<'py>) -> PyResult<String> {
    let (options, to, caller) = sync::SyncOptions::of(py, given, asked)?;
    caller.run(py, move |_: &Work<Unwatched>| {
        at_server(to, |dsn, runtime| as_json(&sync::prepare(options, dsn, runtime)?.script()))
    })
}

/// Refuses what such a session has counted, if it cannot be meant: `strays`, `movers`, `duplicates`
/// and `table_duplicates` (with examples), `deletes` (with the share that may be) or `empty`.
#[pyfunction]
#[pyo3(signature = (what, counts, examples = vec![], may = 100.0))]
fn sync_doubt(
    py: Python<'_>,
    what: &str,
    counts: Vec<u64>,
    examples: Vec<(String, u64)>,
    may: f64,
) -> PyResult<()> {
    let doubt = match (what, counts.as_slice()) {
        ("strays", &[outside, taken]) => SyncRefusal::OutsideScope { outside, taken },
        ("movers", &[taken]) => SyncRefusal::KeysInOtherScopes(taken),
        ("duplicates", &[keys]) => SyncRefusal::DuplicateSourceKeys { keys, examples },
        ("table_duplicates", &[keys]) => SyncRefusal::DuplicateTableKeys { keys, examples },
        ("deletes", &[deleted, all]) => SyncRefusal::TooManyDeletes { deleted, all, may },
        _ => SyncRefusal::EmptySource,
    };
    doubt.refuse("").map_err(|error| raise(py, &error))
}

/// Applies a stream of changes; gives the report as JSON.
#[pyfunction(name = "apply")]
fn apply_events<'py>(py: Python<'py>, given: Given<'py>, asked: Asked<'py>) -> PyResult<String> {
    let (Applying { mut options, metrics, made }, to, caller) = streamed(py, given, asked)?;
    let desk = caller.desk.clone();
    caller.run(py, move |work: &Work<apply::ApplyWatch>| {
        at_server(to, |dsn, runtime| {
            let serve = |at| pgspate_cli::serve_metrics(at, &work.watch, runtime);
            let _metrics = metrics.map(serve).transpose()?;
            let Some(name) = made else {
                let apply = apply::prepare(options, dsn, runtime)?;
                work.begin_to_write()?;
                return as_json(&apply.run(&work.watch, runtime)?);
            };
            options.inputs = vec![Input::program(&name, Box::new(EventBytes::of(&desk)))];
            let passing = options.stream.is_none().then(|| passing_name(&name));
            options.stream = options.stream.or_else(|| passing.clone());
            let apply = apply::prepare(options, dsn.clone(), runtime)?;
            let done = work.begin_to_write().and_then(|()| apply.run(&work.watch, runtime));
            let Some(passing) = passing else { return as_json(&done?) };
            // One that is left behind is in nobody's way.
            let _ = runtime.block_on(forget(&dsn, &passing));
            as_json(&apply::ApplyReport { stream: name, ..done? })
        })
    })
}

/// A name for a stream whose position counts as long as it is applied.
fn passing_name(name: &str) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_nanos());
    format!("{name} of process {}, {now}", std::process::id())
}

async fn forget(dsn: &Dsn, stream: &str) -> Result<()> {
    let connection = dsn.connect("pgspate apply").await?;
    ledger::forget_stream(&connection.client, stream).await
}

/// Looks for what slows writes on a server; gives what was found as JSON.
#[pyfunction]
fn doctor<'py>(py: Python<'py>, asked: Asked<'py>) -> PyResult<String> {
    let (words, to, caller) = asked.alone();
    caller.run(py, move |work: &Work<Unwatched>| {
        at_server(to, |dsn, runtime| {
            let looking = work.unless_abandoned(pgspate_cli::doctor(&words, &dsn));
            as_json(&runtime.block_on(looking)?)
        })
    })
}

/// Proposes settings, or sets them; gives what was proposed or done as JSON.
#[pyfunction]
fn tune<'py>(py: Python<'py>, asked: Asked<'py>) -> PyResult<String> {
    let (words, to, caller) = asked.alone();
    caller.run(py, move |work: &Work<Unwatched>| {
        at_server(to, |dsn, runtime| {
            work.begin_to_write()?;
            as_json(&runtime.block_on(pgspate_cli::tune(&words, &dsn))?)
        })
    })
}

/// Runs the command; gives its exit status.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| pgspate_cli::run(arguments))
}

/// Work on a server, with a runtime that ends with it.
fn at_server<T>(to: Option<String>, work: impl FnOnce(Dsn, &Handle) -> Result<T>) -> Result<T> {
    let runtime = pgspate_cli::runtime()?;
    let done = pgspate_cli::server(to.as_deref(), true).and_then(|dsn| work(dsn, runtime.handle()));
    runtime.shutdown_background();
    done
}

fn as_json(report: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(report).map_err(unwritten)
}

fn unwritten(error: serde_json::Error) -> Error {
    Error::new(ErrorKind::Bug, "could not write the report").because(error)
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
    module.add_function(wrap_pyfunction!(sync_doubt, module)?)?;
    module.add_function(wrap_pyfunction!(plan, module)?)?;
    module.add_function(wrap_pyfunction!(apply_events, module)?)?;
    module.add_function(wrap_pyfunction!(doctor, module)?)?;
    module.add_function(wrap_pyfunction!(tune, module)?)?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(server::start_server, module)?)?;
    module.add_function(wrap_pyfunction!(server::stop_server, module)?)
}
