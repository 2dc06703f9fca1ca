//! `pgspate apply`.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use pgspate::apply::{self, Format, Options, Report, UnknownColumns, Watch};
use pgspate::copy::Limits;
use pgspate::{Result, source};

use crate::args::{ApplyArgs, UnknownColumnsArg};
use crate::errors::Style;
use crate::load::{print_json, runtime, stop_on_interrupt};
use crate::numbers::{bytes, seconds, short, thousands};
use crate::output::{say, say_line};
use crate::progress::ProgressLine;
use crate::{Answer, target};

pub(crate) fn run(args: ApplyArgs, style: Style) -> Result<Answer> {
    let (quiet, json) = (args.quiet, args.json);
    let target = target::resolve(args.to.as_deref(), quiet, style)?;
    let runtime = runtime()?;
    let watch = Arc::new(Watch::default());
    let running = Arc::new(AtomicBool::new(false));
    let stopping = Arc::clone(&watch);
    let said = "stopping after this batch";
    stop_on_interrupt(said, move || stopping.cancel(), &running, runtime.handle());
    let apply = apply::prepare(options(args)?, target.dsn, runtime.handle())?;
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
    if !quiet {
        say(render(&report, style));
    }
    let all = report.counts.dead_letters + report.counts.missing == 0;
    Ok(if all { Answer::Yes } else { Answer::No })
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
    let mut rows = vec![
        format!("{} inserted", thousands(counts.inserted)),
        format!("{} updated", thousands(counts.updated)),
        format!("{} deleted", thousands(counts.deleted)),
    ];
    if counts.truncated > 0 {
        rows.push(format!("{} tables emptied", thousands(counts.truncated)));
    }
    let commits = if counts.batches == 1 { "commit" } else { "commits" };
    let _ = writeln!(
        text,
        "  {} in {} {commits}: {}",
        rows.join(", "),
        thousands(counts.batches),
        report.tables.join(", "),
    );
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

pub(crate) fn options(args: ApplyArgs) -> Result<Options> {
    Ok(Options {
        sources: args.sources,
        inputs: Vec::new(),
        source: source::Options { store: args.source_option, ..source::Options::default() },
        format: args.format.as_deref().map(Format::by_name).transpose()?,
        maps: args.map,
        tables: args.tables,
        unknown_columns: match args.unknown_columns {
            UnknownColumnsArg::Fail => UnknownColumns::Fail,
            UnknownColumnsArg::Ignore => UnknownColumns::Ignore,
            UnknownColumnsArg::Add => UnknownColumns::Add,
        },
        stream: args.stream,
        dead_letters_max: args.max_dead_letters,
        batch_rows: args.batch_rows,
        batch_bytes: args.batch_bytes << 20,
        batch_delay: Duration::from_millis(args.batch_delay),
        follows: args.follow,
        limits: Limits {
            retry_for: Duration::from_secs(args.retry_for.into()),
            lock_timeout: Duration::from_secs(args.lock_timeout.into()),
            ..Limits::default()
        },
    })
}
