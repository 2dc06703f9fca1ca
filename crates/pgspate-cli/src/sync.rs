//! The command `pgspate sync`: makes rows of a table equal to a source.

use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;

use pgspate::Result;
use pgspate::numbers::{bytes, dollars, seconds, thousands};
use pgspate::sync::{self, SyncReport};

use crate::CommandAnswer;
use crate::errors::TerminalStyle;
use crate::flags::{CommonArgs, SyncArgs};
use crate::fleet::describe_member;
use crate::load::{RunSetup, print_json, set_up_run};
use crate::output::{write_stderr, write_stderr_line, write_stdout};
use crate::progress::{ProgressLine, ProgressVerb};
use crate::summary::{added_columns, names_warning, plural};

pub(crate) fn run(args: SyncArgs, style: TerminalStyle) -> Result<CommandAnswer> {
    let SyncArgs { common, options, advise_only } = args;
    let CommonArgs { plan, json, quiet, .. } = common;
    let RunSetup { target, runtime, watch, running, locks } = set_up_run(&common, style)?;
    let line = ProgressLine::start_preparation("preparing the sync".to_owned(), &locks);
    let sync = sync::prepare(options, target.dsn, runtime.handle());
    drop(line);
    let sync = sync?;
    if plan && json {
        let statements = sync.statements();
        print_json(&SyncPlan { table: sync.table(), input: sync.evidence(), statements })?;
        return Ok(CommandAnswer::Yes);
    }
    if plan {
        if !quiet {
            sync.evidence().iter().for_each(|found| write_stderr_line(style.dim(found)));
        }
        for statement in sync.statements() {
            write_stdout(format!("{statement};\n"))?;
        }
        return Ok(CommandAnswer::Yes);
    }
    if !quiet {
        for found in sync.evidence() {
            write_stderr_line(style.dim(found));
        }
    }
    running.store(true, Relaxed);
    let line = ProgressLine::start(ProgressVerb::Sync, sync.table(), &watch, &locks);
    let result = sync.run(&watch);
    drop(line);
    let report = result?;
    if json {
        print_json(&report)?;
    }
    let is_no = match advise_only {
        true => !report.advice.is_empty(),
        false if report.is_check => !report.is_same(),
        false => report.changes_kept_out > 0,
    };
    // With exit status 1, the report is shown in spite of --quiet.
    write_stderr(match (!quiet || (is_no && !json), advise_only) {
        (false, _) => names_warning(report.names_warning.as_deref(), style),
        (true, true) => render_advice(&report, style),
        (true, false) => render(&report, style),
    });
    Ok(if is_no { CommandAnswer::No } else { CommandAnswer::Yes })
}

/// The output of `sync --plan --json`.
#[derive(serde::Serialize)]
struct SyncPlan<'a> {
    table: &'a str,
    input: &'a [String],
    statements: Vec<String>,
}

/// Formats the report in a few lines.
fn render(report: &SyncReport, style: TerminalStyle) -> String {
    let mut text = format!("{}\n", change_counts(report, style));
    if report.is_check {
        return text + &differing_keys(report) + &warnings(report, style);
    }
    // Writing to a String cannot fail.
    if let Some(known) = report.rows_known {
        let _ = writeln!(
            text,
            "  {} of them were not staged, because the table was read first",
            thousands(known)
        );
    }
    let _ = writeln!(
        text,
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
    );
    text + &server_work(report) + &summary_end(report, style)
}

/// Formats how many rows were changed, or would be, in one line.
fn change_counts(report: &SyncReport, style: TerminalStyle) -> String {
    let SyncReport { inserted, updated, deleted, unchanged, .. } = *report;
    let created = if report.created { " (created)" } else { "" };
    let table = format!("{}{created}", style.strong(&report.table));
    let (inserted, updated) = (thousands(inserted), thousands(updated));
    let (deleted, unchanged) = (thousands(deleted), thousands(unchanged));
    let all = thousands(report.rows_in);
    if report.insert_only {
        let written = if report.is_check { "to insert" } else { "inserted" };
        return format!(
            "{table}: {inserted} {written}; {unchanged} of {all} have keys of the table, and were \
             not compared"
        );
    }
    match (report.is_check, report.is_same()) {
        (true, true) => format!("{table}: equal to the source, {}", plural(report.rows_in, "row")),
        (true, false) => format!(
            "{table}: {inserted} to insert, {updated} to update, {deleted} to delete; \
             {unchanged} of {all} unchanged"
        ),
        _ => format!(
            "{table}: {inserted} inserted, {updated} updated, {deleted} deleted; \
             {unchanged} of {all} unchanged"
        ),
    }
}

/// Formats the keys of some rows that differ, a line for each kind of change.
fn differing_keys(report: &SyncReport) -> String {
    let examples = &report.examples;
    let all =
        [("insert", &examples.insert), ("update", &examples.update), ("delete", &examples.delete)];
    let all = all.into_iter().filter(|(_, keys)| !keys.is_empty());
    all.map(|(change, keys)| format!("  {change}  {}\n", keys.join("; "))).collect()
}

/// Formats the server's WAL and I/O, and the sizes before and after the sync.
fn server_work(report: &SyncReport) -> String {
    let (Some(wal), Some(dirtied), Some(hot)) =
        (report.wal_bytes, report.blocks_dirtied, report.updated_hot)
    else {
        return "  other servers store the rows, so this server does not know the WAL and the I/O\n"
            .to_owned();
    };
    let pages = match report.blocks_read {
        Some(read) => format!("{} read, {} changed", plural(read, "block"), thousands(dirtied)),
        None => format!("{} changed", plural(dirtied, "block")),
    };
    let mut text = format!(
        "  {} of WAL, {pages}; {}, {}\n",
        bytes(wal),
        plural(report.dead_rows, "dead row"),
        plural(hot, "HOT update"),
    );
    // Writing to a String cannot fail.
    if let Some(bill) = &report.bill {
        let _ = writeln!(
            text,
            "  where I/Os are billed: {} read, {} written, {} at {} per million",
            thousands(bill.reads),
            thousands(bill.writes),
            dollars(bill.cost),
            dollars(bill.price_per_million),
        );
    }
    // The counters of a fleet's member would include the work of the other members.
    let [Some(table), Some(indexes), Some(dead)] =
        [report.table_bytes, report.index_bytes, report.table_dead_rows].map(both_known)
    else {
        return text;
    };
    let [table, indexes] = [table, indexes].map(|sizes| sizes.map(bytes));
    let _ = writeln!(
        text,
        "  table {} to {}, indexes {} to {}; {} to {} dead rows in the table",
        table[0],
        table[1],
        indexes[0],
        indexes[1],
        thousands(dead[0]),
        thousands(dead[1]),
    );
    text
}

/// Returns the values before and after, if both are known.
fn both_known([before, after]: [Option<u64>; 2]) -> Option<[u64; 2]> {
    Some([before?, after?])
}

/// Formats what follows the figures.
fn summary_end(report: &SyncReport, style: TerminalStyle) -> String {
    added_columns(&report.added_columns)
        + &member(report)
        + &warnings(report, style)
        + &advice(report, style)
}

/// Says which member of a fleet the sync was, if any.
fn member(report: &SyncReport) -> String {
    report.fleet.as_ref().map_or_else(String::new, describe_member)
}

fn warnings(report: &SyncReport, style: TerminalStyle) -> String {
    let word = style.warning("warning:");
    report.warnings.iter().map(|warning| format!("{word} {warning}\n")).collect()
}

/// Formats what would be written, in one line, and what would make such a sync cheaper.
fn render_advice(report: &SyncReport, style: TerminalStyle) -> String {
    let first = change_counts(report, style);
    match (report.advice.is_empty(), report.is_same()) {
        (true, true) => format!("{first}\nnothing is known that would make this sync cheaper\n"),
        (true, false) => format!(
            "{first}\nno advice: by the table's earlier updates, neither an unused index nor the \
             fillfactor slows such a sync down\n"
        ),
        (false, _) => format!("{first}\n{}", advice(report, style)),
    }
}

fn advice(report: &SyncReport, style: TerminalStyle) -> String {
    let word = style.warning("advice:");
    report.advice.iter().map(|advice| format!("{word} {advice}\n")).collect()
}
