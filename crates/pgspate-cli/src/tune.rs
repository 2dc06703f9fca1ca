//! The command `pgspate tune`: proposes, prints, applies or reverts settings.

use std::fmt::Write as _;

use pgspate::Result;
use pgspate::numbers::counted;
use pgspate::target::connect::Connection;
use pgspate_doctor::tune::{self, TuneAdvice, TuneOutcome};

use crate::CommandAnswer;
use crate::errors::TerminalStyle;
use crate::flags::{CommonArgs, TuneArgs};
use crate::load::{print_json, runtime};
use crate::output::{write_stderr_line, write_stdout};
use crate::target;
use crate::terminal::break_report_lines;

pub(crate) fn run(args: &TuneArgs, style: TerminalStyle) -> Result<CommandAnswer> {
    let CommonArgs { json, quiet, ref to, .. } = args.common;
    let is_silent = quiet || json || args.emit.is_some();
    let target = target::resolve_and_ask(to.as_deref(), is_silent, style)?;
    let runtime = runtime()?;
    let dsn = target.dsn.with_stall_timeout(args.stall);
    let connection = runtime.block_on(dsn.connect("pgspate tune"))?;
    let done = runtime.block_on(carry_out(args, &connection))?;
    match done {
        TuneResult::Emitted(text) if text.is_empty() && quiet => {}
        TuneResult::Emitted(text) if text.is_empty() => {
            write_stderr_line("there is nothing to change")
        }
        TuneResult::Emitted(text) => write_stdout(text)?,
        TuneResult::Reverted(reverted) => {
            if json {
                print_json(&reverted)?;
            }
            if !quiet {
                print_reverted(&reverted, json);
            }
        }
        done if json => print_json(&done)?,
        TuneResult::TuneOutcome(applied) => print_applied(&applied, quiet, style),
        TuneResult::Advised(advice) => write_stdout(render(&advice, TerminalStyle::of_stdout()))?,
    }
    Ok(CommandAnswer::Yes)
}

/// The result of the action that the arguments ask for.
#[derive(serde::Serialize)]
#[serde(untagged)]
pub(crate) enum TuneResult {
    Advised(TuneAdvice),
    Emitted(String),
    TuneOutcome(TuneOutcome),
    Reverted(TuneOutcome),
}

/// Carries out the action that the arguments ask for.
pub(crate) async fn carry_out(args: &TuneArgs, connection: &Connection) -> Result<TuneResult> {
    if args.revert {
        return Ok(TuneResult::Reverted(tune::revert(connection).await?));
    }
    let advice = tune::advise(connection, args.memory, args.cpus).await?;
    if let Some(form) = args.emit {
        return Ok(TuneResult::Emitted(tune::emit(&advice, form, &args.parameter_group)?));
    }
    match args.apply {
        true => Ok(TuneResult::TuneOutcome(tune::apply(connection, &advice).await?)),
        false => Ok(TuneResult::Advised(advice)),
    }
}

fn print_reverted(reverted: &TuneOutcome, is_json: bool) {
    if !is_json && reverted.changed.is_empty() && reverted.kept.is_empty() {
        write_stderr_line("there is nothing to put back");
    }
    for (name, value) in &reverted.changed {
        write_stderr_line(format!("{name} is back at {value}"));
    }
    for name in &reverted.kept {
        write_stderr_line(format!(
            "{name} was changed by another session since, and keeps its value"
        ));
    }
}

fn print_applied(applied: &TuneOutcome, quiet: bool, style: TerminalStyle) {
    let warning = style.warning("warning:");
    for (name, value) in applied.changed.iter().filter(|_| !quiet) {
        write_stderr_line(format!("{name} is {value}"));
    }
    for name in &applied.overruled {
        write_stderr_line(format!(
            "{warning} {name} was set, but has no effect on this session: the server's command \
             line, or this role or database, sets another value"
        ));
    }
    for name in &applied.left {
        write_stderr_line(format!("{name} needs a restart, and was not changed"));
    }
    if quiet {
        return;
    }
    if applied.changed.is_empty() && applied.overruled.is_empty() {
        write_stderr_line("there is nothing to change");
    } else {
        write_stderr_line("put the old values back with  pgspate tune --revert");
    }
}

/// Formats the proposals: a line on the machine, then each setting with its reason and its risk.
fn render(advice: &TuneAdvice, style: TerminalStyle) -> String {
    let machine = &advice.machine;
    let server = format!(
        "{} {} with {:.1} GiB of memory ({}) and {} ({})",
        advice.flavour.name(),
        advice.major,
        machine.memory_bytes as f64 / (1u64 << 30) as f64,
        machine.memory_from,
        counted(machine.cpus.into(), "CPU"),
        machine.cpus_from
    );
    // Writing to a String cannot fail.
    let mut text = break_report_lines(&server, "") + "\n";
    if !advice.outstanding.is_empty() {
        let names = advice.outstanding.join(", ");
        let line =
            format!("{names}: already tuned; `pgspate tune --revert` puts the old values back");
        let _ = writeln!(text, "{} {line}", style.warning("warning:"));
    }
    for name in &advice.unseen {
        let line = format!(
            "{name}: this role or database sets a value, and this role may not read the server's \
             own in pg_file_settings; nothing is proposed"
        );
        let _ = writeln!(text, "{} {line}", style.warning("warning:"));
    }
    for it in &advice.proposals {
        let restart = if it.needs_restart { "  (after a restart)" } else { "" };
        let _ = writeln!(
            text,
            "\n{}  {} instead of {}{restart}",
            style.strong(it.name),
            it.value,
            it.now
        );
        let _ = writeln!(text, "{}", break_report_lines(it.reason, "  "));
        let _ = writeln!(
            text,
            "{}",
            style.dim(&break_report_lines(&format!("risk: {}", it.risk), "  "))
        );
    }
    text.push_str(match advice.proposals.is_empty() {
        true => "nothing to change\n",
        false => "\nApply them with --apply, or print them with --emit sql, rds or terraform.\n",
    });
    text
}
