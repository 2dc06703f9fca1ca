//! `pgspate apply`.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pgspate::Result;
use pgspate::apply::{self, Plan, Report, Watch};
use pgspate::numbers::{bytes, seconds, short, thousands};

use crate::errors::Style;
use crate::flags::{ApplyArgs, CommonArgs};
use crate::load::{Interrupt, print_json, runtime, stop_on_interrupt};
use crate::output::{say, say_line};
use crate::progress::ProgressLine;
use crate::{Answer, metrics, target};

pub(crate) fn run(args: ApplyArgs, style: Style) -> Result<Answer> {
    let ApplyArgs { common, options, metrics: address } = args;
    let CommonArgs { to, plan, json, quiet } = common;
    let target = target::resolve(to.as_deref(), quiet, style)?;
    let runtime = runtime()?;
    let watch = Arc::new(Watch::default());
    let running = Arc::new(AtomicBool::new(false));
    let stopping = Arc::clone(&watch);
    let stopped = Arc::clone(&watch);
    let interrupt = Interrupt {
        said: "stopping after this batch",
        stop: move || stopping.cancel(),
        last_words: move || {
            let events = thousands(stopped.events());
            format!("{events} events of this run are applied; run again, the command goes on there")
        },
    };
    stop_on_interrupt(interrupt, &running, runtime.handle());
    if plan {
        let plan = apply::plan(&options, target.dsn, runtime.handle())?;
        match json {
            true => print_json(&plan)?,
            false => say(render_plan(&plan, style)),
        }
        return Ok(Answer::Yes);
    }
    let _metrics = address.map(|at| metrics::serve(at, &watch, runtime.handle())).transpose()?;
    let apply = apply::prepare(options, target.dsn, runtime.handle())?;
    if !quiet && apply.events_before() > 0 {
        let events = thousands(apply.events_before());
        say_line(format!("{events} events of stream {} are applied already", apply.stream()));
    }
    running.store(true, Relaxed);
    let line = ProgressLine::start_stream(apply.stream(), &watch, quiet);
    let result = apply.run(&watch, runtime.handle());
    drop(line);
    let report = result?;
    if json {
        print_json(&report)?;
    }
    let all = report.counts.dead_letters + report.counts.missing + report.uncounted == 0;
    // The exit status is 1 then, and is never so without a word.
    if !quiet || (!all && !json) {
        say(render(&report, style));
    }
    Ok(if all { Answer::Yes } else { Answer::No })
}

/// The plan in a few lines.
fn render_plan(plan: &Plan, style: Style) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "stream {}", style.strong(&plan.stream));
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
            (None, Some(_)) => "goes nowhere".to_owned(),
        };
        let by = match (&table.to, table.key.is_empty()) {
            (None, _) => String::new(),
            (Some(_), true) => ", whose rows are compared as a whole".to_owned(),
            (Some(_), false) => format!(", whose rows are found by {}", table.key.join(", ")),
        };
        let _ = writeln!(text, "  {} {to}{by}", table.from);
        if let Some(problem) = &table.problem {
            let _ = writeln!(text, "    {} {problem}", style.warning("warning:"));
        }
    }
    text
}

/// The report in a few lines.
fn render(report: &Report, style: Style) -> String {
    let mut text = String::new();
    let counts = &report.counts;
    let rate = counts.events as f64 / report.seconds.max(1e-9);
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{}: {} events, {} in {}, {}/s",
        style.strong(&report.stream),
        thousands(counts.events),
        bytes(counts.bytes),
        seconds(report.seconds),
        short(rate as u64),
    );
    for copied in &report.copied {
        let _ = writeln!(text, "  {} rows copied to {}", thousands(copied.rows), copied.table);
    }
    let mut rows = vec![
        format!("{} inserted", thousands(counts.inserted)),
        format!("{} updated", thousands(counts.updated)),
        format!("{} deleted", thousands(counts.deleted)),
    ];
    if counts.truncated > 0 {
        rows.push(format!("{} tables emptied", thousands(counts.truncated)));
    }
    if counts.batches > 0 || report.copied.is_empty() {
        let commits = if counts.batches == 1 { "commit" } else { "commits" };
        let _ = writeln!(
            text,
            "  {} in {} {commits}: {}",
            rows.join(", "),
            thousands(counts.batches),
            report.tables.join(", "),
        );
    }
    if counts.left_out > 0 {
        let _ = writeln!(text, "  {} events of other tables left out", thousands(counts.left_out));
    }
    if counts.dead_letters > 0 {
        let number = thousands(counts.dead_letters);
        let _ = writeln!(text, "  {number} events set aside in pgspate.dead_letter");
    }
    for warning in &report.warnings {
        let _ = writeln!(text, "{} {warning}", style.warning("warning:"));
    }
    text
}
