//! The command `pgspate apply`: applies a stream of changes to tables.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pgspate::Result;
use pgspate::apply::{self, ApplyPlan, ApplyReport, ApplyWatch};
use pgspate::numbers::{bytes, seconds, short, thousands};

use crate::errors::TerminalStyle;
use crate::flags::{ApplyArgs, CommonArgs};
use crate::load::{InterruptActions, print_json, runtime, stop_on_interrupt};
use crate::output::{write_stderr, write_stderr_line, write_stdout_lines};
use crate::progress::{ProgressLine, TerminalLocks};
use crate::summary::plural;
use crate::{CommandAnswer, allocator, metrics, target};

pub(crate) fn run(args: ApplyArgs, style: TerminalStyle) -> Result<CommandAnswer> {
    let ApplyArgs { common, options, metrics: address } = args;
    let CommonArgs { to, plan, json, quiet } = common;
    allocator::return_large_blocks();
    let mut target = target::resolve_and_ask(to.as_deref(), quiet, style)?;
    let runtime = runtime()?;
    let locks = TerminalLocks::watch(&mut target.dsn, quiet, runtime.handle());
    let watch = Arc::new(ApplyWatch::default());
    let running = Arc::new(AtomicBool::new(false));
    let stopping = Arc::clone(&watch);
    let stopped = Arc::clone(&watch);
    let interrupt = InterruptActions {
        first_message: "stopping after this batch",
        stop: move || stopping.cancel(),
        last_message: move || {
            let events = plural(stopped.events(), "event");
            format!("{events} applied by this run; run the same command to continue")
        },
    };
    stop_on_interrupt(interrupt, &running, runtime.handle());
    if plan {
        let plan = apply::plan(&options, target.dsn, runtime.handle())?;
        match json {
            true => print_json(&plan)?,
            false => write_stdout_lines(&render_plan(&plan, TerminalStyle::of_stdout()), 2)?,
        }
        return Ok(CommandAnswer::Yes);
    }
    let _metrics = address.map(|at| metrics::serve(at, &watch, runtime.handle())).transpose()?;
    let line = ProgressLine::start_preparation("preparing the stream".to_owned(), &locks);
    let apply = apply::prepare(options, target.dsn, runtime.handle());
    drop(line);
    let apply = apply?;
    if !quiet && apply.events_before() > 0 {
        let events = plural(apply.events_before(), "event");
        write_stderr_line(format!("already applied: {events} of stream {}", shown(apply.stream())));
    }
    running.store(true, Relaxed);
    let line = ProgressLine::start_stream(&shown(apply.stream()), &watch, &locks);
    let result = apply.run(&watch, runtime.handle());
    drop(line);
    let report = result?;
    if json {
        print_json(&report)?;
    }
    let counts = &report.counts;
    let all =
        counts.dead_letters + counts.missing + counts.changes_kept_out + report.uncounted == 0;
    // With exit status 1, the report is shown in spite of --quiet.
    if !quiet || (!all && !json) {
        write_stderr(render(&report, style));
    }
    Ok(if all { CommandAnswer::Yes } else { CommandAnswer::No })
}

/// Shortens the name of a stream that is the path of a file below the current folder.
fn shown(stream: &str) -> String {
    let here = std::env::current_dir().and_then(|folder| folder.canonicalize());
    let below = here.ok().and_then(|here| Path::new(stream).strip_prefix(here).ok());
    below.map_or(Cow::Borrowed(stream), Path::to_string_lossy).into_owned()
}

/// Formats the plan in a few lines.
fn render_plan(plan: &ApplyPlan, style: TerminalStyle) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "stream {}", style.strong(&shown(&plan.stream)));
    for source in &plan.sources {
        let _ = writeln!(text, "  reads   {source}");
    }
    for (nth, begin) in plan.begins.iter().enumerate() {
        let _ = writeln!(text, "  {}  {begin}", if nth == 0 { "begins" } else { "      " });
    }
    let _ = writeln!(text, "  ends    {}", plan.ends);
    for table in &plan.tables {
        let to = match (&table.to, &table.problem) {
            (Some(to), _) => format!("-> {to}"),
            (None, None) => "is left out".to_owned(),
            (None, Some(_)) => "has no target table".to_owned(),
        };
        let by = match (&table.to, table.key.is_empty()) {
            (None, _) => String::new(),
            (Some(_), true) => ", rows found by all columns".to_owned(),
            (Some(_), false) => format!(", rows found by {}", table.key.join(", ")),
        };
        let _ = writeln!(text, "  {} {to}{by}", table.from);
        if let Some(problem) = &table.problem {
            let _ = writeln!(text, "    {} {problem}", style.warning("warning:"));
        }
    }
    text
}

/// Formats the report in a few lines.
fn render(report: &ApplyReport, style: TerminalStyle) -> String {
    let mut text = String::new();
    let counts = &report.counts;
    let rate = counts.events as f64 / report.seconds.max(1e-9);
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{}: {}, {} in {}, {}/s",
        style.strong(&shown(&report.stream)),
        plural(counts.events, "event"),
        bytes(counts.bytes),
        seconds(report.seconds),
        short(rate as u64),
    );
    for copied in &report.copied {
        let _ = writeln!(text, "  {} copied to {}", plural(copied.rows, "row"), copied.table);
    }
    let mut rows = vec![
        format!("{} inserted", thousands(counts.inserted)),
        format!("{} updated", thousands(counts.updated)),
        format!("{} deleted", thousands(counts.deleted)),
    ];
    if counts.truncated > 0 {
        rows.push(format!("{} truncated", plural(counts.truncated, "table")));
    }
    if counts.batches > 0 || report.copied.is_empty() {
        let tables = match report.tables.as_slice() {
            [] => String::new(),
            tables => format!(": {}", tables.join(", ")),
        };
        let commits = plural(counts.batches, "commit");
        let _ = writeln!(text, "  {} in {commits}{tables}", rows.join(", "));
    }
    if counts.left_out > 0 {
        let events = plural(counts.left_out, "event");
        let _ = writeln!(text, "  {events} of other tables left out");
    }
    if counts.dead_letters > 0 {
        let events = plural(counts.dead_letters, "event");
        let _ = writeln!(text, "  {events} set aside in pgspate.dead_letter");
    }
    for warning in &report.warnings {
        let _ = writeln!(text, "{} {warning}", style.warning("warning:"));
    }
    text
}
