//! The command `pgspate doctor`: runs the checks and shows their findings.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use pgspate::file::write_whole;
use pgspate::numbers::counted;
use pgspate::target::connect::Connection;
use pgspate::{Error, ErrorKind, Result};
use pgspate_doctor::doctor::picture::TablePicture;
use pgspate_doctor::doctor::{self, Examination, Finding, Verdict};

use crate::CommandAnswer;
use crate::errors::TerminalStyle;
use crate::flags::DoctorArgs;
use crate::load::{print_json, runtime};
use crate::output::{write_stderr_line, write_stdout};
use crate::target;
use crate::terminal::break_report_lines;

pub(crate) fn run(args: DoctorArgs, style: TerminalStyle) -> Result<CommandAnswer> {
    let (json, sample) = (args.common.json, args.options.sample);
    let quiet = args.common.quiet || json;
    let target = target::resolve_and_ask(args.common.to.as_deref(), quiet, style)?;
    let runtime = runtime()?;
    if sample > Duration::from_secs(5) && !quiet {
        write_stderr_line(style.dim(&format!("sampling for {} s", sample.as_secs())));
    }
    let dsn = target.dsn.with_stall_timeout(args.stall);
    let connection = runtime.block_on(dsn.connect("pgspate doctor"))?;
    let (found, drawn) = runtime.block_on(examine(&args, &connection))?;
    if let Some(drawn) = drawn.filter(|_| !args.common.quiet) {
        write_stderr_line(drawn);
    }
    match json {
        true => print_json(&found)?,
        false if args.common.quiet && !found.has_problems() => {}
        false => write_stdout(render(&found, TerminalStyle::of_stdout()))?,
    }
    Ok(if found.has_problems() { CommandAnswer::No } else { CommandAnswer::Yes })
}

/// Runs the checks, and draws the picture if one is asked for. Returns the findings, and a sentence
/// on the picture.
pub(crate) async fn examine(
    args: &DoctorArgs,
    connection: &Connection,
) -> Result<(Examination, Option<String>)> {
    let found = doctor::examine(connection, &args.options).await?;
    let drawn = match (&args.picture, &args.options.table) {
        (Some(file), Some(table)) => Some(draw(connection, table, file).await?),
        _ => None,
    };
    Ok((found, drawn))
}

/// Draws the table's pages into a file, and describes the picture in a sentence.
async fn draw(connection: &Connection, table: &str, file: &Path) -> Result<String> {
    let table = doctor::find_table(connection, table).await?;
    let picture = TablePicture::take(&connection.client, &table).await?;
    let name = file.display();
    write_whole(file, picture.svg().as_bytes()).map_err(|error| {
        Error::new(ErrorKind::Usage, format!("could not write \"{name}\"")).because(error)
    })?;
    Ok(format!("{}, drawn in {name}", picture.sentence()))
}

/// Formats the result: a line on the server, then the findings, the worst first.
fn render(found: &Examination, style: TerminalStyle) -> String {
    let server = format!(
        "{} {}, database {}, role {}; sampled for {:.0} s",
        found.flavour.name(),
        found.server_version,
        found.database,
        found.role,
        found.sampled_seconds
    );
    // Writing to a String cannot fail.
    let mut text = break_report_lines(&server, "") + "\n";
    for line in found.peculiarities {
        let _ = writeln!(text, "{}", break_report_lines(line, "  "));
    }
    // If consecutive findings of a check have equal advice, only the first finding shows it.
    let mut advised = None;
    for finding in &found.findings {
        if finding.verdict != Verdict::Ok || finding.is_always_shown {
            text.push('\n');
            let advice = finding.advice.as_deref().filter(|it| advised != Some((finding.id, *it)));
            describe(finding, advice, style, &mut text);
            advised = finding.advice.as_deref().map(|it| (finding.id, it));
        }
    }
    let is_silent = |finding: &Finding| finding.verdict == Verdict::Ok && !finding.is_always_shown;
    let is_reported = |id: &str| found.findings.iter().any(|it| it.id == id && !is_silent(it));
    let silent = found.findings.iter().filter(|it| is_silent(it) && !is_reported(it.id));
    let mut silent: Vec<&str> = silent.map(|finding| finding.id).collect();
    silent.dedup();
    if !silent.is_empty() {
        let line = format!(
            "{} found nothing: {}",
            counted(silent.len() as u64, "check"),
            silent.join(", ")
        );
        let _ = writeln!(text, "\n{}", style.dim(&break_report_lines(&line, "")));
    }
    text
}

/// Formats a finding: its verdict, object, evidence, advice and remedies.
fn describe(finding: &Finding, advice: Option<&str>, style: TerminalStyle, text: &mut String) {
    let verdict = format!("{:<10}", finding.verdict.name());
    let verdict = match finding.verdict {
        Verdict::Warning => style.error(&verdict),
        Verdict::Note => style.warning(&verdict),
        Verdict::CannotSee | Verdict::Ok => style.dim(&verdict),
    };
    let object = finding.object.as_deref().map(|it| format!("  {it}")).unwrap_or_default();
    let _ = writeln!(text, "{verdict} {}{}", style.strong(finding.id), object);
    let _ = writeln!(text, "{}", break_report_lines(&finding.evidence, INDENT));
    if let Some(advice) = advice {
        let _ = writeln!(text, "{}", style.dim(&break_report_lines(advice, INDENT)));
    }
    for line in &finding.remedy {
        let _ = writeln!(text, "{INDENT}  {line}");
    }
}

const INDENT: &str = "           ";
