//! The command `pgspate load`, and what all commands that write rows share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pgspate::load::{self, LoadWatch};
use pgspate::{Error, ErrorKind, Result};
use tokio::runtime::{Handle, Runtime};

use crate::errors::TerminalStyle;
use crate::flags::{CommonArgs, LoadArgs};
use crate::output::{
    write_command_line, write_stderr, write_stderr_line, write_stdout, write_stdout_lines,
};
use crate::progress::{ProgressLine, ProgressVerb, TerminalLocks};
use crate::target::TargetServer;
use crate::{CommandAnswer, summary, target};

/// The width of the labels of a plan's lines, with the space behind.
const PLAN_LABEL_COLUMNS: usize = 9;

pub(crate) fn run(args: LoadArgs, style: TerminalStyle) -> Result<CommandAnswer> {
    let CommonArgs { plan, json, quiet, .. } = args.common;
    let RunSetup { target, runtime, watch, running, locks } = set_up_run(&args.common, style)?;
    let line = ProgressLine::start_preparation("preparing the load".to_owned(), &locks);
    let load = load::prepare(args.options, target.dsn, runtime.handle());
    drop(line);
    let load = load?;
    if plan && json {
        print_json(&load.plan_report())?;
        return Ok(CommandAnswer::Yes);
    }
    if plan {
        write_stdout_lines(&load.describe_plan(), PLAN_LABEL_COLUMNS)?;
        return Ok(CommandAnswer::Yes);
    }
    if !quiet {
        for found in load.evidence() {
            write_stderr_line(style.dim(found));
        }
        if let Some(new) = load.new_table() {
            write_stderr_line(style.dim(&new.sql));
        }
        if let Some(sql) = load.add_columns_sql() {
            write_stderr_line(style.dim(&sql));
        }
        if let Some(earlier) = load.earlier_runs() {
            write_stderr_line(earlier);
        }
    }
    let said = load.evidence().to_vec();
    let is_loaded = load.is_loaded();
    running.store(true, Relaxed);
    let line = ProgressLine::start(ProgressVerb::Load, &load.plan().table, &watch, &locks);
    let result = load.run(&watch);
    drop(line);
    let mut report = result?;
    if json {
        print_json(&report)?;
    }
    let answer = match report.has_written_all_rows() {
        true => CommandAnswer::Yes,
        false => CommandAnswer::No,
    };
    let loaded_meanwhile = report.loaded_already.as_ref().filter(|_| !is_loaded && !quiet);
    if let Some(already) = loaded_meanwhile {
        write_stderr_line(already);
    }
    if quiet || report.loaded_already.is_some() {
        // With an exit status other than 0, rows that were not written are shown even if quiet.
        write_stderr(summary::not_written(&report));
        write_stderr(summary::names_warning(report.names_warning.as_deref(), style));
        return Ok(answer);
    }
    report.warnings.retain(|warning| !said.contains(warning));
    write_stderr(summary::render(&report, style));
    let table = report.table.replace('\'', "'\\''");
    write_command_line(&format!("open it with  {} -c 'table {table} limit 10'", target.psql));
    Ok(answer)
}

/// The server, the runtime and the handles with which every command that writes rows begins.
pub(crate) struct RunSetup {
    pub(crate) target: TargetServer,
    pub(crate) runtime: Runtime,
    pub(crate) watch: Arc<LoadWatch>,
    /// Whether there is something to roll back.
    pub(crate) running: Arc<AtomicBool>,
    pub(crate) locks: TerminalLocks,
}

/// Finds the server, and handles Ctrl-C.
pub(crate) fn set_up_run(args: &CommonArgs, style: TerminalStyle) -> Result<RunSetup> {
    let mut target = target::resolve_and_ask(args.to.as_deref(), args.quiet, style)?;
    let runtime = runtime()?;
    let locks = TerminalLocks::watch(&mut target.dsn, args.quiet, runtime.handle());
    let watch = Arc::new(LoadWatch::default());
    let running = Arc::new(AtomicBool::new(false));
    let stopping = Arc::clone(&watch);
    let stopped = Arc::clone(&watch);
    let interrupt = InterruptActions {
        first_message: "rolling back",
        stop: move || stopping.copy.cancel(),
        last_message: move || stopped.copy.describe_kept_rows(),
    };
    stop_on_interrupt(interrupt, &running, runtime.handle());
    Ok(RunSetup { target, runtime, watch, running, locks })
}

/// Prints a value as JSON on stdout.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value);
    let failed = |error| Error::new(ErrorKind::Bug, "could not write the report").because(error);
    write_stdout(text.map_err(failed)? + "\n")
}

/// Starts the async runtime for connections and object stores. Encoders have their own threads.
///
/// # Errors
/// [`ErrorKind::Bug`] if the system cannot start threads.
pub fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(2, |cores| cores.get().min(8)))
        .enable_all()
        .build()
        .map_err(|error| Error::new(ErrorKind::Bug, "could not start the runtime").because(error))
}

/// The actions and messages of the first and the second Ctrl-C.
pub(crate) struct InterruptActions<Stop, Words> {
    /// The message after the first Ctrl-C.
    pub(crate) first_message: &'static str,
    /// Stops the run after the first Ctrl-C.
    pub(crate) stop: Stop,
    /// Returns the message after the second Ctrl-C: what is left and how to continue.
    pub(crate) last_message: Words,
}

/// Handles Ctrl-C and SIGTERM: the first signal stops the run, the second signal exits at once.
/// Before `running` is set, the first signal exits at once, too.
pub(crate) fn stop_on_interrupt(
    interrupt: InterruptActions<
        impl FnOnce() + Send + 'static,
        impl FnOnce() -> String + Send + 'static,
    >,
    running: &Arc<AtomicBool>,
    runtime: &Handle,
) {
    let InterruptActions { first_message, stop, last_message } = interrupt;
    let running = Arc::clone(running);
    runtime.spawn(async move {
        wait_for_interrupt().await;
        if !running.load(Relaxed) {
            std::process::exit(130);
        }
        stop();
        write_stderr_line(format!("\n{first_message}; press Ctrl-C again to stop at once"));
        wait_for_interrupt().await;
        write_stderr_line(format!("stopped at once; {}", last_message()));
        std::process::exit(130);
    });
}

/// Waits until Ctrl-C or SIGTERM arrives.
async fn wait_for_interrupt() {
    let mut terminate =
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(terminate) => terminate,
            Err(_) => return std::future::pending().await,
        };
    tokio::select! {
        result = tokio::signal::ctrl_c() => {
            if result.is_err() {
                std::future::pending::<()>().await;
            }
        }
        _ = terminate.recv() => {}
    }
}
