//! The command `pgspate fleet`: shows what the members of a fleet have done, and which are missing.

use std::fmt::Write as _;

use pgspate::Result;
use pgspate::fleet::MemberReport;
use pgspate::ledger::{self, FleetReport};
use pgspate::numbers::{bytes, counted, seconds, thousands};

use crate::CommandAnswer;
use crate::errors::TerminalStyle;
use crate::flags::FleetArgs;
use crate::load::{print_json, runtime};
use crate::output::{write_stderr_line, write_stdout};
use crate::summary::plural;
use crate::target;

/// How many ranges of members, or failed members, are listed.
const LISTED_MAX: usize = 10;

/// The output of `fleet NAME --forget --json`.
#[derive(serde::Serialize)]
struct ForgottenFleet<'a> {
    fleet: &'a str,
    /// `None` if all generations are forgotten.
    generation: Option<&'a str>,
    forgotten: bool,
}

pub(crate) fn run(args: &FleetArgs, style: TerminalStyle) -> Result<CommandAnswer> {
    let target = target::resolve(args.common.to.as_deref(), true, style)?;
    let runtime = runtime()?;
    let dsn = target.dsn.with_stall_timeout(args.stall);
    let connection = runtime.block_on(dsn.connect("pgspate status"))?;
    let (client, generation) = (&connection.client, args.generation.as_deref());
    if args.forgets {
        runtime.block_on(ledger::forget_fleet(client, &args.fleet, generation))?;
        if args.common.json {
            print_json(&ForgottenFleet { fleet: &args.fleet, generation, forgotten: true })?;
        }
        if !args.common.quiet {
            let part = generation.map_or(String::new(), |name| format!("generation {name} of "));
            let name = &args.fleet;
            write_stderr_line(format!("{part}fleet {name} is forgotten; its rows stay"));
        }
        return Ok(CommandAnswer::Yes);
    }
    let report = runtime.block_on(ledger::read_fleet(client, &args.fleet, generation))?;
    match args.common.json {
        true => print_json(&report)?,
        false => write_stdout(render(&report))?,
    }
    Ok(if report.is_complete() { CommandAnswer::Yes } else { CommandAnswer::No })
}

/// Formats the first line of a report: how many members are done.
pub(crate) fn render_progress(report: &FleetReport) -> String {
    let others = [
        (report.running.len(), "running"),
        (report.failed.len(), "failed"),
        (report.missing.len(), "missing"),
    ];
    let mut text = format!(
        "fleet {}  generation {}  {} of {}\n  {} of {} done",
        report.fleet,
        report.generation,
        report.command,
        report.table,
        thousands(report.done as u64),
        counted(report.members as u64, "member"),
    );
    for (count, state) in others.iter().filter(|(count, _)| *count > 0) {
        // Writing to a String cannot fail.
        let _ = write!(text, ", {} {state}", thousands(*count as u64));
    }
    text.push('\n');
    text
}

/// Formats a line about a member of a fleet, for the report of its load or sync.
pub(crate) fn describe_member(report: &MemberReport) -> String {
    let MemberReport { fleet, generation, member, members, attempt, .. } = report;
    let mut text = format!("  member {member} of {members} of fleet {fleet}, {generation}");
    if *attempt > 1 {
        // Writing to a String cannot fail.
        let _ = write!(text, ", attempt {attempt}");
    }
    if report.waited_seconds > 0.0 {
        let waited = seconds(report.waited_seconds);
        let _ = write!(text, ", after waiting {waited} for a connection");
    }
    if report.completed {
        text.push_str("; all members are done");
    }
    text.push('\n');
    text
}

/// Formats the report.
fn render(report: &FleetReport) -> String {
    let mut text = render_progress(report);
    let mut line = |words: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {words}");
    };
    for (state, members) in [("running", &report.running), ("missing", &report.missing)] {
        if !members.is_empty() {
            line(format!("{state}: {}", list_ranges(members)));
        }
    }
    for it in report.failed.iter().take(LISTED_MAX) {
        let attempts = counted(it.attempts.unsigned_abs().into(), "attempt");
        line(format!("failed: member {} after {attempts}: {}", it.member, it.failure));
    }
    if report.failed.len() > LISTED_MAX {
        line(format!("failed: {} more", report.failed.len() - LISTED_MAX));
    }
    let rejected = match report.rejected {
        0 => String::new(),
        rows => format!(", {} rejected", thousands(rows)),
    };
    let number = thousands;
    match report.command.as_str() {
        "load" => line(format!(
            "{} read, {} loaded{rejected}",
            plural(report.rows_in, "row"),
            number(report.inserted)
        )),
        _ => line(format!(
            "{} read: {} inserted, {} updated, {} deleted, {} unchanged; {} of WAL",
            plural(report.rows_in, "row"),
            number(report.inserted),
            number(report.updated),
            number(report.deleted),
            number(report.unchanged),
            bytes(report.wal_bytes)
        )),
    }
    line(match &report.ended {
        None => format!("first begin {}", report.begun),
        Some(ended) => {
            format!("first begin {}, last end {ended}: {}", report.begun, seconds(report.seconds))
        }
    });
    if let Some(slowest) = &report.slowest {
        let at_once = report.busy_seconds / report.seconds.max(0.001);
        line(format!(
            "{} of work, {at_once:.1} members at once; slowest: member {}, {}",
            seconds(report.busy_seconds),
            slowest.member,
            seconds(slowest.seconds)
        ));
    }
    let retries = report
        .attempts
        .saturating_sub((report.members - report.missing.len().min(report.members)) as u64);
    line(format!(
        "{}; {} of waiting for connections",
        counted(retries, "repeated attempt"),
        seconds(report.waited_seconds)
    ));
    text
}

/// Lists members in ascending order, with ranges: `3, 5-9`.
fn list_ranges(members: &[i32]) -> String {
    let mut ranges: Vec<(i32, i32)> = Vec::new();
    for member in members {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *member => *last = *member,
            _ => ranges.push((*member, *member)),
        }
    }
    let words = ranges.iter().take(LISTED_MAX).map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    let words = words.collect::<Vec<_>>().join(", ");
    let listed: usize =
        ranges.iter().take(LISTED_MAX).map(|(first, last)| (last - first + 1) as usize).sum();
    match members.len() - listed {
        0 => words,
        more => format!("{words} and {} more", thousands(more as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::list_ranges;

    #[test]
    fn members_are_listed_as_ranges() {
        assert_eq!(list_ranges(&[3]), "3");
        assert_eq!(list_ranges(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
        let odd: Vec<i32> = (0..50).map(|nth| 2 * nth).collect();
        assert_eq!(list_ranges(&odd), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18 and 40 more");
    }
}
