//! The summary of a load: totals, a table of stages, and rows that were not written.

use std::fmt::Write as _;

use pgspate::load::{AddedColumn, LoadReport};
use pgspate::numbers::{bytes, rate, seconds, thousands};

use crate::errors::TerminalStyle;
use crate::fleet::describe_member;

/// The least number of written rows at which the time of ANALYZE or VACUUM is shown. With this many
/// rows, it is about a tenth of a second.
const COUNTED_ROWS_MIN: u64 = 500_000;

/// Formats the summary of a load.
pub(crate) fn render(report: &LoadReport, style: TerminalStyle) -> String {
    let mut text = String::new();
    let rows = plural(report.rows_written, "row");
    let replaced = report.at_once.as_ref().is_some_and(|at_once| at_once.replaces);
    let change_note = match (report.created, replaced) {
        (true, _) => " (created)",
        (false, true) => " (replaced)",
        (false, false) => "",
    };
    // A resumed load reads the whole input, but this run has not written all of it.
    let written = report.bytes.saturating_sub(report.bytes_before);
    let speed = rate(written as f64 / report.seconds.max(1e-9));
    let _ = writeln!(
        text,
        "{}{change_note}: {rows}, {} in {}, {speed}",
        style.strong(&report.table),
        bytes(written),
        seconds(report.seconds),
    );
    text += &all_runs(report);
    stages(&mut text, report);
    let _ = write!(
        text,
        "  {}, {}, {} of {} COPY",
        plural(report.lanes as u64, "lane"),
        plural(report.chunks, "chunk"),
        bytes(report.bytes_sent),
        report.path,
    );
    if let Some(wal) = report.wal_bytes {
        let _ = write!(text, ", {} of WAL", bytes(wal));
    }
    text.push('\n');
    if report.rows_as_text > 0 && report.path == "binary" {
        let left = plural(report.rows_as_text, "row");
        let _ = writeln!(text, "  {left} left to the server as text");
    }
    if let Some(files) = report.files.describe() {
        let _ = writeln!(text, "  {files}");
    }
    text += &not_written(report);
    for moved in &report.sequences {
        let _ = writeln!(text, "  sequence {} moved to {}", moved.name, moved.value);
    }
    for widened in &report.widened {
        let place = widened.place.as_deref().unwrap_or("a later row");
        let _ = writeln!(
            text,
            "  column \"{}\" became {} instead of {}, because of {place}",
            widened.column, widened.to, widened.from
        );
    }
    text += &added_columns(&report.added_columns);
    if let Some(member) = &report.fleet {
        text += &describe_member(member);
    }
    for warning in &report.warnings {
        let _ = writeln!(text, "{} {warning}", style.warning("warning:"));
    }
    text
}

/// Describes the columns that were added to the table.
pub(crate) fn added_columns(columns: &[AddedColumn]) -> String {
    let line =
        |column: &AddedColumn| format!("  column \"{}\" added as {}\n", column.name, column.ty);
    columns.iter().map(line).collect()
}

/// Describes the rows that were not written, and where they are; empty if all rows were written.
pub(crate) fn not_written(report: &LoadReport) -> String {
    let mut text = String::new();
    let rows = plural(report.rows_rejected, "row");
    match (report.rows_rejected, &report.rejects, report.job) {
        (1.., Some(file), _) => {
            let how = report.rejects_read_as.as_deref().unwrap_or_default();
            let _ = writeln!(text, "  {rows} set aside in {file}, the reasons in {file}.json");
            let _ = writeln!(text, "  once corrected, they can be loaded with");
            let _ = writeln!(text, "    {how}");
        }
        (1.., None, Some(job)) => {
            let jobs = match &report.rejecting_jobs[..] {
                [] => format!("job {job}"),
                [only] => format!("job {only}"),
                some => {
                    let numbers: Vec<String> = some.iter().map(i64::to_string).collect();
                    format!("jobs {}", numbers.join(", "))
                }
            };
            let _ = writeln!(text, "  {rows} set aside by {jobs}, kept in the ledger");
            let _ = writeln!(text, "  the same command with --rejects FILE writes them to a file");
        }
        _ => {}
    }
    if report.rows_kept_out > 0 {
        let _ = writeln!(text, "  {} kept out by triggers", plural(report.rows_kept_out, "row"));
    }
    text
}

/// Returns the warning about names in the input, which is shown even if quiet.
pub(crate) fn names_warning(warning: Option<&str>, style: TerminalStyle) -> String {
    warning.map_or_else(String::new, |it| format!("{} {it}\n", style.warning("warning:")))
}

/// Describes what all runs of a resumed job have written; empty if this run was the only one.
fn all_runs(report: &LoadReport) -> String {
    if report.bytes_before + report.rows_before + report.rows_rejected_before == 0 {
        return String::new();
    }
    format!(
        "  with earlier runs: {}, {}, {} set aside\n",
        plural(report.rows_before + report.rows_written, "row"),
        bytes(report.bytes),
        thousands(report.rows_rejected),
    )
}

/// Formats a count with its noun: `1 row`, `1,234 rows`.
pub(crate) fn plural(count: u64, word: &str) -> String {
    format!("{} {word}{}", thousands(count), if count == 1 { "" } else { "s" })
}

/// Adds a line for each stage, with its busy time.
fn stages(text: &mut String, report: &LoadReport) {
    let stages = &report.stages;
    let lanes = report.lanes.max(1) as f64;
    let _ = writeln!(text, "  {:<8} {:>9} {:>9}", "stage", "busy", "per lane");
    let rows = [("source", stages.source), ("encode", stages.encode), ("server", stages.server)];
    for (name, busy) in rows {
        let (busy, per_lane) = (seconds(busy), seconds(busy / lanes));
        let _ = writeln!(text, "  {name:<8} {busy:>9} {per_lane:>9}");
    }
    let _ = writeln!(text, "  {:<8} {:>9}", "commit", seconds(stages.commit));
    if !report.rebuilt.is_empty() {
        let _ = writeln!(text, "  {:<8} {:>9}", "indexes", seconds(report.rebuild_seconds));
    }
    // After a few rows, ANALYZE or VACUUM takes no time worth a line.
    if let Some(counted) = report.counted.filter(|_| report.rows_written >= COUNTED_ROWS_MIN) {
        let word = counted.split(' ').next().unwrap_or(counted);
        let _ = writeln!(text, "  {word:<8} {:>9}", seconds(report.counted_seconds));
    }
}
