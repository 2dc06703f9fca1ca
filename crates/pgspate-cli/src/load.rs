//! `pgspate load`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pgspate::load::{self, Watch};
use pgspate::{Error, Kind, Result};
use tokio::runtime::{Handle, Runtime};

use crate::errors::Style;
use crate::flags::{CommonArgs, LoadArgs};
use crate::output::{data, say, say_line};
use crate::progress::ProgressLine;
use crate::target::Target;
use crate::{Answer, summary, target};

pub(crate) fn run(args: LoadArgs, style: Style) -> Result<Answer> {
    let CommonArgs { plan, json, quiet, .. } = args.common;
    let Start { target, runtime, watch, running } = start(&args.common, style)?;
    let load = load::prepare(args.options, target.dsn, runtime.handle())?;
    if plan && json {
        print_json(&load.plan_report())?;
        return Ok(Answer::Yes);
    }
    if plan {
        for found in load.evidence() {
            data(format!("input    {found}\n"))?;
        }
        if let Some(new) = load.new_table() {
            data(format!("{};\n", new.sql))?;
        }
        data(load.plan().to_string())?;
        if let Some(standing) = load.standing() {
            data(format!("ledger   {standing}\n"))?;
        }
        return Ok(Answer::Yes);
    }
    if !quiet {
        for found in load.evidence() {
            say_line(style.dim(found));
        }
        if let Some(new) = load.new_table() {
            say_line(style.dim(&new.sql));
        }
        if let Some(standing) = load.standing() {
            say_line(standing);
        }
    }
    let is_loaded = load.is_loaded();
    running.store(true, Relaxed);
    let line = ProgressLine::start(&load.plan().table, &watch, quiet);
    let result = load.run(&watch);
    drop(line);
    let report = result?;
    if json {
        print_json(&report)?;
    }
    let answer =
        if report.rows_kept_out + report.rows_rejected == 0 { Answer::Yes } else { Answer::No };
    let loaded_meanwhile = report.loaded_already.as_ref().filter(|_| !is_loaded && !quiet);
    if let Some(already) = loaded_meanwhile {
        say_line(already);
    }
    if quiet || report.loaded_already.is_some() {
        // The exit status is not 0, and is never so without a word.
        say(summary::not_written(&report));
        return Ok(answer);
    }
    say(summary::render(&report, style));
    let table = report.table.replace('\'', "'\\''");
    say_line(format!("open it with  {} -c 'table {table} limit 10'", target.psql));
    Ok(answer)
}

/// What every command begins with that moves rows.
pub(crate) struct Start {
    pub(crate) target: Target,
    pub(crate) runtime: Runtime,
    pub(crate) watch: Arc<Watch>,
    /// Set as soon as there is something to roll back.
    pub(crate) running: Arc<AtomicBool>,
}

/// Finds the server, and has Ctrl-C heard.
pub(crate) fn start(args: &CommonArgs, style: Style) -> Result<Start> {
    let target = target::resolve(args.to.as_deref(), args.quiet, style)?;
    let runtime = runtime()?;
    let watch = Arc::new(Watch::default());
    let running = Arc::new(AtomicBool::new(false));
    let stopping = Arc::clone(&watch);
    let stopped = Arc::clone(&watch);
    let interrupt = Interrupt {
        said: "rolling back",
        stop: move || stopping.copy.cancel(),
        last_words: move || stopped.copy.last_words(),
    };
    stop_on_interrupt(interrupt, &running, runtime.handle());
    Ok(Start { target, runtime, watch, running })
}

/// Writes it to stdout.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value);
    let failed = |error| Error::new(Kind::Bug, "could not write the report").because(error);
    data(text.map_err(failed)? + "\n")
}

/// A runtime for connections and object stores; encoding has threads of its own.
///
/// # Errors
/// The system gives no threads.
pub fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(2, |cores| cores.get().min(8)))
        .enable_all()
        .build()
        .map_err(|error| Error::new(Kind::Bug, "could not start the runtime").because(error))
}

/// What Ctrl-C does.
pub(crate) struct Interrupt<Stop, Words> {
    /// What comes of the first one.
    pub(crate) said: &'static str,
    pub(crate) stop: Stop,
    /// What the second one leaves.
    pub(crate) last_words: Words,
}

/// The first Ctrl-C (or SIGTERM) stops what is under way; the second ends at once. Before anything
/// is `running`, so does the first.
pub(crate) fn stop_on_interrupt(
    interrupt: Interrupt<impl FnOnce() + Send + 'static, impl FnOnce() -> String + Send + 'static>,
    running: &Arc<AtomicBool>,
    runtime: &Handle,
) {
    let Interrupt { said, stop, last_words } = interrupt;
    let running = Arc::clone(running);
    runtime.spawn(async move {
        interrupted().await;
        if !running.load(Relaxed) {
            std::process::exit(130);
        }
        stop();
        say_line(format!("\n{said}; press Ctrl-C again to stop at once"));
        interrupted().await;
        say_line(format!("stopped at once; {}", last_words()));
        std::process::exit(130);
    });
}

async fn interrupted() {
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
