//! The extension module of the Python package: the engine and the command.
//!
//! Users call the package in `pgspate/`, which calls this module. Options arrive as arguments of
//! the command, so that both have the same options with the same meaning.

#[allow(unsafe_code)]
mod capsule;
mod classes;
mod column;
mod data;
mod errors;
mod events;
mod handover;
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
use options::{ApplyCall, CallData, CallOptions, RowCommandOptions, prepare_apply};
use work::{CallState, NoProgress, Stop};

/// Runs a load and returns its report as JSON.
#[pyfunction(name = "load")]
fn load_data<'py>(
    py: Python<'py>,
    data: CallData<'py>,
    options: CallOptions<'py>,
) -> PyResult<String> {
    let (options, to, caller) = load::LoadOptions::prepare_call(py, data, options)?;
    caller.run(py, move |work| {
        at_server(to, |dsn, runtime| {
            let load = load::prepare(options, dsn, runtime)?;
            work.begin_to_write()?;
            as_json(&load.run(&work.watch)?)
        })
    })
}

/// Returns a load's plan as JSON: the plan itself, and its text as the command prints it.
#[pyfunction]
fn plan<'py>(py: Python<'py>, data: CallData<'py>, options: CallOptions<'py>) -> PyResult<String> {
    let (options, to, caller) = load::LoadOptions::prepare_call(py, data, options)?;
    caller.run(py, move |_: &CallState<NoProgress>| {
        at_server(to, |dsn, runtime| {
            let load = load::prepare(options, dsn, runtime)?;
            let report = serde_json::to_value(load.plan_report()).map_err(report_error)?;
            as_json(&json!({ "report": report, "text": load.plan().to_string() }))
        })
    })
}

/// Runs a sync and returns its report as JSON.
#[pyfunction(name = "sync")]
fn sync_data<'py>(
    py: Python<'py>,
    data: CallData<'py>,
    options: CallOptions<'py>,
) -> PyResult<String> {
    let (options, to, caller) = sync::SyncOptions::prepare_call(py, data, options)?;
    caller.run(py, move |work| {
        at_server(to, |dsn, runtime| {
            let sync = sync::prepare(options, dsn, runtime)?;
            work.begin_to_write()?;
            as_json(&sync.run(&work.watch)?)
        })
    })
}

/// Returns the statements of a sync as JSON, for a session of the caller.
#[pyfunction]
fn sync_script<'py>(
    py: Python<'py>,
    data: CallData<'py>,
    options: CallOptions<'py>,
) -> PyResult<String> {
    let (options, to, caller) = sync::SyncOptions::prepare_call(py, data, options)?;
    caller.run(py, move |_: &CallState<NoProgress>| {
        at_server(to, |dsn, runtime| as_json(&sync::prepare(options, dsn, runtime)?.script()))
    })
}

/// Raises an error for counts that make a sync doubtful. `what` is `strays`, `movers`, `duplicates`
/// or `table_duplicates` (both with examples), `deletes` (`may` is the allowed share) or `empty`.
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
        ("deletes", &[deleted, all]) => {
            SyncRefusal::TooManyDeletes { deleted, all, max_percent: may }
        }
        _ => SyncRefusal::EmptySource,
    };
    doubt.refuse("").map_err(|error| raise(py, &error))
}

/// Applies a stream of changes and returns the report as JSON.
#[pyfunction(name = "apply")]
fn apply_events<'py>(
    py: Python<'py>,
    data: CallData<'py>,
    options: CallOptions<'py>,
) -> PyResult<String> {
    let (ApplyCall { mut options, metrics, made }, to, caller) = prepare_apply(py, data, options)?;
    let handover = caller.handover.clone();
    caller.run(py, move |work: &CallState<apply::ApplyWatch>| {
        at_server(to, |dsn, runtime| {
            let serve = |at| pgspate_cli::serve_metrics(at, &work.watch, runtime);
            let _metrics = metrics.map(serve).transpose()?;
            let Some(name) = made else {
                let apply = apply::prepare(options, dsn, runtime)?;
                work.begin_to_write()?;
                return as_json(&apply.run(&work.watch, runtime)?);
            };
            options.inputs = vec![Input::from_program(&name, Box::new(EventBytes::of(&handover)))];
            let temporary = options.stream.is_none().then(|| temporary_stream_name(&name));
            options.stream = options.stream.or_else(|| temporary.clone());
            let apply = apply::prepare(options, dsn.clone(), runtime)?;
            let done = work.begin_to_write().and_then(|()| apply.run(&work.watch, runtime));
            let Some(temporary) = temporary else { return as_json(&done?) };
            // A position that is left behind does no harm: its name is not used again.
            let _ = runtime.block_on(forget(&dsn, &temporary));
            as_json(&apply::ApplyReport { stream: name, ..done? })
        })
    })
}

/// Returns a name for a stream whose position is needed only during this call.
fn temporary_stream_name(name: &str) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_nanos());
    format!("{name} of process {}, {now}", std::process::id())
}

async fn forget(dsn: &Dsn, stream: &str) -> Result<()> {
    let connection = dsn.connect("pgspate apply").await?;
    ledger::forget_stream(&connection.client, stream).await
}

/// Runs the checks of doctor and returns its findings as JSON.
#[pyfunction]
fn doctor<'py>(py: Python<'py>, options: CallOptions<'py>) -> PyResult<String> {
    let (words, to, caller) = options.without_data();
    caller.run(py, move |work: &CallState<NoProgress>| {
        at_server(to, |dsn, runtime| {
            let looking = work.unless_abandoned(pgspate_cli::doctor(&words, &dsn));
            as_json(&runtime.block_on(looking)?)
        })
    })
}

/// Proposes, applies or reverts settings, and returns the result as JSON.
#[pyfunction]
fn tune<'py>(py: Python<'py>, options: CallOptions<'py>) -> PyResult<String> {
    let (words, to, caller) = options.without_data();
    caller.run(py, move |work: &CallState<NoProgress>| {
        at_server(to, |dsn, runtime| {
            work.begin_to_write()?;
            as_json(&runtime.block_on(pgspate_cli::tune(&words, &dsn))?)
        })
    })
}

/// Runs the command and returns its exit status.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| pgspate_cli::run(arguments))
}

/// Runs `work` on a server, with a runtime that ends with it.
fn at_server<T>(to: Option<String>, work: impl FnOnce(Dsn, &Handle) -> Result<T>) -> Result<T> {
    let runtime = pgspate_cli::runtime()?;
    let done = pgspate_cli::server(to.as_deref(), true).and_then(|dsn| work(dsn, runtime.handle()));
    runtime.shutdown_background();
    done
}

fn as_json(report: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(report).map_err(report_error)
}

fn report_error(error: serde_json::Error) -> Error {
    Error::new(ErrorKind::Bug, "could not write the report").because(error)
}

/// The compiled engine.
#[pymodule]
fn _pgspate(module: &Bound<'_, PyModule>) -> PyResult<()> {
    pgspate::format::silence_contained_panics();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<Stop>()?;
    module.add_class::<server::TemporaryServer>()?;
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
