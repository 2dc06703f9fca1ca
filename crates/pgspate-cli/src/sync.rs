//! `pgspate sync`.

use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use clap::ValueEnum;
use pgspate::Result;
use pgspate::load;
use pgspate::session::Limits;
use pgspate::sync::{self, Options, Report, Scope};

use crate::Answer;
use crate::args::{EndsArgs, ReadArgs, StallArgs, WhenArg};
use crate::errors::Style;
use crate::load::{Start, print_json, reading, start, when};
use crate::numbers::{bytes, dollars, seconds, thousands};
use crate::output::{data, say, say_line};
use crate::progress::ProgressLine;

/// Arguments of `pgspate sync`.
#[derive(clap::Args)]
pub(crate) struct SyncArgs {
    /// From where, and to where.
    #[command(flatten)]
    pub(crate) ends: EndsArgs,

    /// The columns that identify a row; the primary key's by default
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    pub(crate) key: Vec<String>,

    /// What becomes like the source.
    #[command(flatten)]
    pub(crate) scope: ScopeArgs,

    /// Columns that are not compared, and written only when something else differs
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    pub(crate) ignore_columns: Vec<String>,

    /// Which of rows with the same key counts; they are refused otherwise
    #[arg(long, value_enum, value_name = "WHICH")]
    pub(crate) keep: Option<KeepArg>,

    /// Change nothing: count what differs, with examples; exit 1 if anything does
    #[arg(long)]
    pub(crate) check: bool,

    /// Change nothing: say what would make syncs like this one cheaper; exit 1 if anything would
    #[arg(long, conflicts_with = "check")]
    pub(crate) advise_only: bool,

    /// Show the statements, and stop
    #[arg(long)]
    pub(crate) plan: bool,

    /// Sessions that share the scopes of --scope-by, each with a transaction of its own
    #[arg(
        long, default_value = "1", value_name = "N",
        value_parser = clap::value_parser!(u8).range(1..=64)
    )]
    pub(crate) lanes: u8,

    /// Read the table first and stage only rows that it does not have: auto where most are there
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN")]
    pub(crate) read_ahead: WhenArg,

    /// Refuse to delete more of the scope than this
    #[arg(
        long, default_value = "50%", value_name = "P%", value_parser = share,
        help_heading = "Safety"
    )]
    pub(crate) max_delete: f64,

    /// Vacuum the table afterwards, so that the next sync writes where rows died
    #[arg(long)]
    pub(crate) vacuum: bool,

    /// Write the scopes of --scope-by in so many transactions, one after the other: with --vacuum
    /// each one writes where rows of the one before died
    #[arg(
        long, default_value = "1", value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=1000)
    )]
    pub(crate) transactions: u16,

    /// Let a source without rows empty the scope
    #[arg(long, help_heading = "Safety")]
    pub(crate) allow_empty: bool,

    /// How long to go on trying when another session is in the way
    #[arg(long, default_value = "60", value_name = "SECONDS", help_heading = "Safety")]
    pub(crate) retry_for: u32,

    /// When a connection is given up.
    #[command(flatten)]
    pub(crate) stall: StallArgs,

    /// How long to wait for a lock that another session holds; 0 for ever
    #[arg(long, default_value = "300", value_name = "SECONDS", help_heading = "Safety")]
    pub(crate) lock_timeout: u32,

    /// How the sources are read.
    #[command(flatten)]
    pub(crate) read: ReadArgs,

    /// What a million I/Os cost, for an estimate of what this costs where they are billed
    #[arg(
        long, default_value = "0.20", value_name = "DOLLARS", value_parser = price,
        help_heading = "Output"
    )]
    pub(crate) price_per_million_io: f64,

    /// Print the report as JSON on stdout
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,

    /// Print errors only
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,
}

/// What a sync makes like its source.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ScopeArgs {
    /// Rows whose values in these columns occur in the source
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    pub(crate) scope_by: Vec<String>,

    /// `all` for the whole table, or an SQL predicate over its columns
    #[arg(long, value_name = "PREDICATE")]
    pub(crate) scope: Option<String>,

    /// Update and insert, and delete nothing
    #[arg(long)]
    pub(crate) no_delete: bool,

    /// Insert only
    #[arg(long)]
    pub(crate) insert_only: bool,
}

/// `--keep`.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum KeepArg {
    /// The last one in the source
    Last,
}

pub(crate) fn run(args: SyncArgs, style: Style) -> Result<Answer> {
    let (quiet, json, plan_only) = (args.quiet, args.json, args.plan);
    let advise_only = args.advise_only;
    let Start { target, runtime, watch, running } = start(&args.ends, quiet, style)?;
    let sync = sync::prepare(options(args), target.dsn, runtime.handle())?;
    if plan_only {
        for statement in sync.statements() {
            data(format!("{statement};\n"))?;
        }
        return Ok(Answer::Yes);
    }
    if !quiet {
        for found in sync.evidence() {
            say_line(style.dim(found));
        }
    }
    running.store(true, Relaxed);
    let line = ProgressLine::start(sync.table(), &watch, quiet);
    let result = sync.run(&watch);
    drop(line);
    let report = result?;
    if json {
        print_json(&report)?;
    }
    let is_no = match advise_only {
        true => !report.advice.is_empty(),
        false => report.is_check && !report.is_same(),
    };
    // An exit status of 1 is never without a word.
    if !quiet || (is_no && !json) {
        say(match advise_only {
            true => render_advice(&report, style),
            false => render(&report, style),
        });
    }
    Ok(if is_no { Answer::No } else { Answer::Yes })
}

/// The report in a few lines.
fn render(report: &Report, style: Style) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let Report { inserted, updated, deleted, unchanged, .. } = *report;
    let mut line = |text_of: &str| {
        let _ = writeln!(text, "{text_of}");
    };
    let table = style.strong(&report.table);
    let (inserted, updated) = (thousands(inserted), thousands(updated));
    let (deleted, unchanged) = (thousands(deleted), thousands(unchanged));
    let all = thousands(report.rows_in);
    line(&match (report.is_check, report.is_same()) {
        (true, true) => format!("{table}: like the source, {all} rows"),
        (true, false) => format!(
            "{table}: {inserted} to insert, {updated} to update, {deleted} to delete; \
             {unchanged} of {all} unchanged"
        ),
        _ => format!(
            "{table}: {inserted} inserted, {updated} updated, {deleted} deleted; \
             {unchanged} of {all} unchanged"
        ),
    });
    if report.is_check {
        let examples = &report.examples;
        let all = [
            ("insert", &examples.insert),
            ("update", &examples.update),
            ("delete", &examples.delete),
        ];
        for (what, keys) in all {
            if !keys.is_empty() {
                line(&format!("  {what}  {}", keys.join("; ")));
            }
        }
        return text;
    }
    if let Some(known) = report.rows_known {
        line(&format!(
            "  {} of them were not staged, as the table was read first",
            thousands(known)
        ));
    }
    line(&format!(
        "  staged in {}, compared and written in {}{}{}",
        seconds(report.stage_seconds),
        seconds(report.write_seconds),
        match (report.sessions, report.transactions) {
            (2.., _) => format!(" by {} sessions", report.sessions),
            (_, 2..) => format!(" in {} transactions", report.transactions),
            _ => String::new(),
        },
        match report.vacuum_seconds {
            Some(took) => format!(", vacuumed in {}", seconds(took)),
            None => String::new(),
        },
    ));
    let known = |value: Option<u64>| value.map_or("unknown".to_owned(), thousands);
    line(&format!(
        "  {} of WAL, {} blocks read, {} changed; {} dead rows, {} updates within their page",
        bytes(report.wal_bytes),
        known(report.blocks_read),
        thousands(report.blocks_dirtied),
        thousands(report.dead_rows),
        thousands(report.updated_hot),
    ));
    if let Some(bill) = &report.bill {
        line(&format!(
            "  where I/Os are billed: {} read, {} written, {} at {} per million",
            thousands(bill.reads),
            thousands(bill.writes),
            dollars(bill.cost),
            dollars(bill.price_per_million),
        ));
    }
    let size = |value: Option<u64>| value.map_or("unknown".to_owned(), bytes);
    let [table, indexes] = [report.table_bytes, report.index_bytes].map(|both| both.map(size));
    line(&format!(
        "  table {} to {}, indexes {} to {}; {} to {} dead rows in it",
        table[0],
        table[1],
        indexes[0],
        indexes[1],
        known(report.table_dead_rows[0]),
        known(report.table_dead_rows[1]),
    ));
    for warning in &report.warnings {
        let _ = writeln!(text, "{} {warning}", style.warning("warning:"));
    }
    text + &advice(report, style)
}

/// What would be written, in one line, and what would make that cheaper.
fn render_advice(report: &Report, style: Style) -> String {
    let whole = render(report, style);
    let first = whole.lines().next().unwrap_or_default();
    match report.advice.is_empty() {
        true => format!("{first}\nnothing that is known of the table would make this cheaper\n"),
        false => format!("{first}\n{}", advice(report, style)),
    }
}

fn advice(report: &Report, style: Style) -> String {
    let word = style.warning("advice:");
    report.advice.iter().map(|advice| format!("{word} {advice}\n")).collect()
}

pub(crate) fn options(args: SyncArgs) -> Options {
    let mut load: load::Options = reading(args.ends, args.read);
    load.lanes = Some(args.lanes.into());
    load.limits = Limits {
        retry_for: Duration::from_secs(args.retry_for.into()),
        stall_timeout: args.stall.limit(),
        lock_timeout: Duration::from_secs(args.lock_timeout.into()),
    };
    Options {
        load,
        key: args.key,
        scope: scope(args.scope),
        ignored: args.ignore_columns,
        max_delete: args.max_delete,
        may_empty: args.allow_empty,
        keeps_last: args.keep.is_some(),
        read_ahead: when(args.read_ahead),
        is_check: args.check || args.advise_only,
        vacuums: args.vacuum,
        transactions: args.transactions.into(),
        price_per_million: args.price_per_million_io,
    }
}

fn scope(args: ScopeArgs) -> Scope {
    match args.scope {
        Some(all) if all.trim() == "all" => Scope::All,
        Some(predicate) => Scope::Where(predicate),
        None if !args.scope_by.is_empty() => Scope::By(args.scope_by),
        None if args.insert_only => Scope::InsertOnly,
        None => Scope::NoDelete,
    }
}

fn share(value: &str) -> Result<f64, String> {
    match value.trim().trim_end_matches('%').trim_end().parse() {
        Ok(share) if (0.0..=100.0).contains(&share) => Ok(share),
        _ => Err("expected a share from 0% to 100%".to_owned()),
    }
}

fn price(value: &str) -> Result<f64, String> {
    match value.trim().trim_start_matches('$').parse() {
        Ok(price) if (0.0..1e9).contains(&price) => Ok(price),
        _ => Err("expected a price such as 0.20".to_owned()),
    }
}
