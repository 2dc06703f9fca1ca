//! The extension module `_pgspate` of the Python package: the engine and the command.
//!
//! Users call the Python code in `pgspate/`, which calls this module. Options arrive as arguments
//! of the command. So the package and the command have the same options with the same meaning.

mod batch_queue;
mod call;
#[allow(unsafe_code)]
mod capsule;
mod classes;
mod column;
mod constant;
mod copy_text;
mod data;
mod errors;
mod events;
mod frame;
mod infer;
mod kept;
mod numpy_values;
#[allow(unsafe_code)]
mod object_memory;
mod options;
mod range_text;
mod record_rows;
mod rows;
mod server;
mod shape;
mod time_text;
mod value_text;
mod writer;

use std::ffi::OsString;
use std::time::Duration;

use pgspate::session::WaitLimits;
use pgspate::source::Input;
use pgspate::sync::SyncRefusal;
use pgspate::target::connect::Dsn;
use pgspate::{Error, ErrorKind, Result, apply, driven, ledger, load, sync};
use pyo3::prelude::*;
use serde_json::json;
use tokio::runtime::Handle;

use call::{CallState, NoProgress, Stop};
use errors::to_exception;
use events::EventBytes;
use options::{ApplyCall, CallData, CallOptions, RowCommandOptions, prepare_apply};

/// How long a driver tries to complete a job after a lost connection. The rows of all tasks are at
/// stake: a driver that gives up aborts the job.
const COMPLETION_RETRY: Duration = Duration::from_secs(600);

/// Runs a load and returns its report as JSON.
#[pyfunction(name = "load")]
fn load_data<'py>(
    py: Python<'py>,
    data: CallData<'py>,
    options: CallOptions<'py>,
) -> PyResult<String> {
    let (mut options, to, caller) = load::LoadOptions::prepare_call(py, data, options)?;
    caller.run(py, move |call: &CallState<load::LoadWatch>| {
        options.fleet.stop = call.watch.copy.stop_flag();
        with_server(to, |dsn, runtime| {
            let load = load::prepare(options, call.watch_locks(dsn, runtime), runtime)?;
            call.begin_to_write()?;
            as_json(&load.run(&call.watch)?)
        })
    })
}

/// Returns a load's plan as JSON: the plan itself, and its text as the command prints it.
#[pyfunction]
fn plan<'py>(py: Python<'py>, data: CallData<'py>, options: CallOptions<'py>) -> PyResult<String> {
    let (options, to, caller) = load::LoadOptions::prepare_call(py, data, options)?;
    caller.run(py, move |_: &CallState<NoProgress>| {
        with_server(to, |dsn, runtime| {
            let load = load::prepare(options, dsn, runtime)?;
            let report = serde_json::to_value(load.plan_report()).map_err(report_bug)?;
            as_json(&json!({ "report": report, "text": load.describe_plan() }))
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
    let (mut options, to, caller) = sync::SyncOptions::prepare_call(py, data, options)?;
    caller.run(py, move |call: &CallState<load::LoadWatch>| {
        options.fleet.stop = call.watch.copy.stop_flag();
        with_server(to, |dsn, runtime| {
            let sync = sync::prepare(options, call.watch_locks(dsn, runtime), runtime)?;
            call.begin_to_write()?;
            as_json(&sync.run(&call.watch)?)
        })
    })
}

/// Returns the statements of a sync as JSON. The caller runs them in a session of its own.
#[pyfunction]
fn sync_script<'py>(
    py: Python<'py>,
    data: CallData<'py>,
    options: CallOptions<'py>,
) -> PyResult<String> {
    let (options, to, caller) = sync::SyncOptions::prepare_call(py, data, options)?;
    caller.run(py, move |_: &CallState<NoProgress>| {
        with_server(to, |dsn, runtime| as_json(&sync::prepare(options, dsn, runtime)?.script()))
    })
}

/// Raises an error if a sync of the caller's session must be refused for a reason, given the counts
/// that belong to the reason.
///
/// The reasons are `rows_outside_scope`, `keys_in_other_scopes`, `duplicates`, `table_duplicates`,
/// `deletes`, `cascades` and `empty`. Those about keys have examples: keys of rows; `cascades` has
/// names of foreign keys. `max_delete_percent` is for `deletes`.
#[pyfunction]
#[pyo3(signature = (reason, counts, examples = vec![], max_delete_percent = 100.0))]
fn refuse_sync(
    py: Python<'_>,
    reason: &str,
    counts: Vec<u64>,
    examples: Vec<(String, u64)>,
    max_delete_percent: f64,
) -> PyResult<()> {
    let refusal = match (reason, counts.as_slice()) {
        ("rows_outside_scope", &[outside, taken]) => SyncRefusal::OutsideScope { outside, taken },
        ("keys_in_other_scopes", &[keys]) => {
            let example = examples.into_iter().next().map(|(key, _)| key).unwrap_or_default();
            SyncRefusal::KeysInOtherScopes { keys, example }
        }
        ("duplicates", &[keys]) => SyncRefusal::DuplicateSourceKeys { keys, examples },
        ("table_duplicates", &[keys]) => SyncRefusal::DuplicateTableKeys { keys, examples },
        ("deletes", &[deleted, all]) => {
            SyncRefusal::TooManyDeletes { deleted, all, max_percent: max_delete_percent }
        }
        ("cascades", _) => {
            SyncRefusal::Cascades(examples.into_iter().map(|(name, _)| name).collect())
        }
        _ => SyncRefusal::EmptySource,
    };
    refusal.refuse("").map_err(|error| to_exception(py, &error))
}

/// Applies a stream of changes and returns the report as JSON.
#[pyfunction(name = "apply")]
fn apply_events<'py>(
    py: Python<'py>,
    data: CallData<'py>,
    options: CallOptions<'py>,
) -> PyResult<String> {
    let (call, to, caller) = prepare_apply(py, data, options)?;
    let ApplyCall { mut options, metrics, iterable_name } = call;
    let queue = caller.queue.clone();
    caller.run(py, move |call: &CallState<apply::ApplyWatch>| {
        with_server(to, |dsn, runtime| {
            let dsn = call.watch_locks(dsn, runtime);
            let serve = |at| pgspate_cli::serve_metrics(at, &call.watch, runtime);
            let _metrics = metrics.map(serve).transpose()?;
            let Some(name) = iterable_name else {
                let apply = apply::prepare(options, dsn, runtime)?;
                call.begin_to_write()?;
                return as_json(&apply.run(&call.watch, runtime)?);
            };
            options.inputs =
                vec![Input::from_program(&name, Box::new(EventBytes::request(&queue)))];
            let temporary = options.stream.is_none().then(|| temporary_stream_name(&name));
            options.stream = options.stream.or_else(|| temporary.clone());
            let apply = apply::prepare(options, dsn.clone(), runtime)?;
            let done = call.begin_to_write().and_then(|()| apply.run(&call.watch, runtime));
            let Some(temporary) = temporary else { return as_json(&done?) };
            // Ignored: a position that stays in the ledger does no harm, because no later call uses
            // its name.
            let _ = runtime.block_on(forget_stream(&dsn, &temporary));
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

/// Deletes the position of a stream from the ledger.
async fn forget_stream(dsn: &Dsn, stream: &str) -> Result<()> {
    let connection = dsn.connect("pgspate apply").await?;
    ledger::forget_stream(&connection.client, stream).await
}

/// Reads what the members of a fleet have done, and returns the report as JSON.
#[pyfunction(name = "fleet")]
fn fleet_report<'py>(py: Python<'py>, name: String, options: CallOptions<'py>) -> PyResult<String> {
    let (mut arguments, to, caller) = options.without_data();
    arguments.extend(["--".to_owned(), name]);
    caller.run(py, move |call: &CallState<NoProgress>| {
        with_server(to, |dsn, runtime| {
            let report = call.unless_abandoned(pgspate_cli::fleet(&arguments, &dsn));
            as_json(&runtime.block_on(report)?)
        })
    })
}

/// Begins a job of a distributed engine such as Spark, and returns its ticket as JSON.
#[pyfunction]
fn fleet_begin<'py>(
    py: Python<'py>,
    options: CallOptions<'py>,
    table: String,
    job: Option<String>,
    how: String,
) -> PyResult<String> {
    run_fleet(py, options, move |dsn, runtime| {
        let how: driven::FleetJobOptions = parse_json(&how)?;
        let sync = sync_of_job(&how)?;
        let (job, limits) = (job.as_deref(), WaitLimits::default());
        as_json(&driven::begin(&table, job, how, sync.as_ref(), &dsn, limits, runtime)?)
    })
}

/// Returns the options of the sync that completes a job, if a sync does.
fn sync_of_job(how: &driven::FleetJobOptions) -> Result<Option<pgspate::sync::SyncOptions>> {
    let is_sync = how.mode == driven::FleetMode::Sync;
    is_sync.then(|| pgspate_cli::sync_options(&how.sync)).transpose()
}

/// Writes a part of a job, and returns its receipt as JSON.
#[pyfunction]
fn fleet_write<'py>(
    py: Python<'py>,
    data: CallData<'py>,
    options: CallOptions<'py>,
    ticket: String,
    part: i64,
) -> PyResult<String> {
    let (options, to, caller) = load::LoadOptions::prepare_call(py, data, options)?;
    caller.run(py, move |call: &CallState<load::LoadWatch>| {
        with_server(to, |dsn, runtime| {
            let ticket: driven::FleetTicket = parse_json(&ticket)?;
            call.begin_to_write()?;
            let (reading, limits) = (&options.reading, options.limits);
            let receipt =
                driven::write_part(&ticket, part, reading, limits, dsn, runtime, &call.watch)?;
            as_json(&receipt)
        })
    })
}

/// Completes a job with these receipts, and returns the report as JSON.
#[pyfunction]
fn fleet_complete<'py>(
    py: Python<'py>,
    options: CallOptions<'py>,
    ticket: String,
    receipts: String,
) -> PyResult<String> {
    run_fleet(py, options, move |dsn, runtime| {
        let receipts: Vec<driven::FleetReceipt> = parse_json(&receipts)?;
        let ticket: driven::FleetTicket = parse_json(&ticket)?;
        let limits = WaitLimits { retry_for: COMPLETION_RETRY, ..WaitLimits::default() };
        let sync = sync_of_job(&ticket.options)?;
        as_json(&driven::complete(&ticket, &receipts, sync, &dsn, limits, runtime)?)
    })
}

/// Aborts a job, and returns what was done as JSON.
#[pyfunction]
fn fleet_abort<'py>(
    py: Python<'py>,
    options: CallOptions<'py>,
    ticket: String,
) -> PyResult<String> {
    run_fleet(py, options, move |dsn, runtime| {
        as_json(&driven::abort(&parse_json(&ticket)?, &dsn, WaitLimits::default(), runtime)?)
    })
}

/// Runs a driver's call, which is not interrupted between two of its statements.
fn run_fleet<'py>(
    py: Python<'py>,
    options: CallOptions<'py>,
    work: impl FnOnce(Dsn, &Handle) -> Result<String> + Send + 'static,
) -> PyResult<String> {
    let (_, to, caller) = options.without_data();
    caller.run(py, move |call: &CallState<NoProgress>| {
        with_server(to, |dsn, runtime| {
            call.begin_to_write()?;
            work(dsn, runtime)
        })
    })
}

/// Runs the checks of doctor and returns its findings as JSON.
#[pyfunction]
fn doctor<'py>(py: Python<'py>, options: CallOptions<'py>) -> PyResult<String> {
    let (arguments, to, caller) = options.without_data();
    caller.run(py, move |call: &CallState<NoProgress>| {
        with_server(to, |dsn, runtime| {
            let checks = call.unless_abandoned(pgspate_cli::doctor(&arguments, &dsn));
            as_json(&runtime.block_on(checks)?)
        })
    })
}

/// Proposes, applies or reverts settings, and returns the result as JSON.
#[pyfunction]
fn tune<'py>(py: Python<'py>, options: CallOptions<'py>) -> PyResult<String> {
    let (arguments, to, caller) = options.without_data();
    caller.run(py, move |call: &CallState<NoProgress>| {
        with_server(to, |dsn, runtime| {
            // The ledger has the old values before the first change. So a call that is interrupted
            // between two changes can be reverted.
            let tuning = call.unless_abandoned(pgspate_cli::tune(&arguments, &dsn));
            as_json(&runtime.block_on(tuning)?)
        })
    })
}

/// Runs the command and returns its exit status.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| pgspate_cli::run(arguments))
}

/// Returns whether the variables of the environment name a server.
#[pyfunction]
fn is_server_named(py: Python<'_>) -> PyResult<bool> {
    pgspate_cli::is_server_named().map_err(|error| to_exception(py, &error))
}

/// Runs `work` with the connection string of a server, and with a runtime. The runtime ends when
/// `work` ends. Without `to`, the server is the default server.
fn with_server<T>(to: Option<String>, work: impl FnOnce(Dsn, &Handle) -> Result<T>) -> Result<T> {
    let runtime = pgspate_cli::runtime()?;
    let done = pgspate_cli::server(to.as_deref(), true).and_then(|dsn| work(dsn, runtime.handle()));
    runtime.shutdown_background();
    done
}

fn as_json(report: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(report).map_err(report_bug)
}

fn parse_json<T: serde::de::DeserializeOwned>(text: &str) -> Result<T> {
    let broken = "a ticket or receipt is not one of this version of pgspate";
    serde_json::from_str(text).map_err(|error| Error::new(ErrorKind::Usage, broken).because(error))
}

fn report_bug(error: serde_json::Error) -> Error {
    Error::new(ErrorKind::Bug, "could not write the report").because(error)
}

/// The compiled engine.
#[pymodule]
fn _pgspate(module: &Bound<'_, PyModule>) -> PyResult<()> {
    pgspate::format::silence_contained_panics();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<Stop>()?;
    module.add_class::<server::TemporaryServer>()?;
    module.add_class::<copy_text::CopyText>()?;
    module.add_class::<record_rows::InsertPlan>()?;
    module.add_class::<writer::RecordWriter>()?;
    module.add_function(wrap_pyfunction!(load_data, module)?)?;
    module.add_function(wrap_pyfunction!(sync_data, module)?)?;
    module.add_function(wrap_pyfunction!(sync_script, module)?)?;
    module.add_function(wrap_pyfunction!(refuse_sync, module)?)?;
    module.add_function(wrap_pyfunction!(plan, module)?)?;
    module.add_function(wrap_pyfunction!(is_server_named, module)?)?;
    module.add_function(wrap_pyfunction!(shape::copy_row, module)?)?;
    module.add_function(wrap_pyfunction!(apply_events, module)?)?;
    module.add_function(wrap_pyfunction!(fleet_report, module)?)?;
    module.add_function(wrap_pyfunction!(fleet_begin, module)?)?;
    module.add_function(wrap_pyfunction!(fleet_write, module)?)?;
    module.add_function(wrap_pyfunction!(fleet_complete, module)?)?;
    module.add_function(wrap_pyfunction!(fleet_abort, module)?)?;
    module.add_function(wrap_pyfunction!(doctor, module)?)?;
    module.add_function(wrap_pyfunction!(tune, module)?)?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(server::start_server, module)?)?;
    module.add_function(wrap_pyfunction!(server::stop_server, module)?)
}
