//! `pgspate tune`.

use std::fmt::Write as _;

use pgspate::Result;
use pgspate::target::connect::Connection;
use pgspate_doctor::tune::{self, Advice, Applied};

use crate::Answer;
use crate::doctor::wrapped;
use crate::errors::Style;
use crate::flags::TuneArgs;
use crate::load::{print_json, runtime};
use crate::output::{data, say_line};
use crate::target;

pub(crate) fn run(args: &TuneArgs, style: Style) -> Result<Answer> {
    let json = args.common.json;
    let target = target::resolve(args.common.to.as_deref(), json || args.emit.is_some(), style)?;
    let runtime = runtime()?;
    let dsn = target.dsn.with_stall_timeout(args.stall);
    let connection = runtime.block_on(dsn.connect("pgspate tune"))?;
    let done = runtime.block_on(carry_out(args, &connection))?;
    match done {
        Done::Emitted(text) if text.is_empty() => say_line("there is nothing to change"),
        Done::Emitted(text) => data(text)?,
        Done::Reverted(reverted) => {
            if json {
                print_json(&reverted)?;
            }
            say_reverted(&reverted, json);
        }
        done if json => print_json(&done)?,
        Done::Applied(applied) => say_applied(&applied, style),
        Done::Advised(advice) => data(render(&advice, Style::of_stdout()))?,
    }
    Ok(Answer::Yes)
}

/// What was asked for.
#[derive(serde::Serialize)]
#[serde(untagged)]
pub(crate) enum Done {
    Advised(Advice),
    Emitted(String),
    Applied(Applied),
    Reverted(Applied),
}

/// Does what is asked for.
pub(crate) async fn carry_out(args: &TuneArgs, connection: &Connection) -> Result<Done> {
    if args.revert {
        return Ok(Done::Reverted(tune::revert(connection).await?));
    }
    let advice = tune::advise(connection, args.memory, args.cpus).await?;
    if let Some(form) = args.emit {
        return Ok(Done::Emitted(tune::emit(&advice, form, &args.parameter_group)?));
    }
    match args.apply {
        true => Ok(Done::Applied(tune::apply(connection, &advice).await?)),
        false => Ok(Done::Advised(advice)),
    }
}

fn say_reverted(reverted: &Applied, is_json: bool) {
    if !is_json && reverted.changed.is_empty() && reverted.kept.is_empty() {
        say_line("there is nothing to put back");
    }
    for (name, value) in &reverted.changed {
        say_line(format!("{name} is back at {value}"));
    }
    for name in &reverted.kept {
        say_line(format!("{name} was changed by somebody else since, and stays as it is"));
    }
}

fn say_applied(applied: &Applied, style: Style) {
    let warning = style.warning("warning:");
    for (name, value) in &applied.changed {
        say_line(format!("{name} is {value}"));
    }
    for name in &applied.overruled {
        say_line(format!(
            "{warning} {name} was set, but does not count: the command line, or this role or \
             database, says otherwise"
        ));
    }
    for name in &applied.left {
        say_line(format!("{name} would need a restart, and was left alone"));
    }
    if applied.changed.is_empty() && applied.overruled.is_empty() {
        say_line("there is nothing to change");
    } else {
        say_line("put it back with  pgspate tune --revert");
    }
}

/// The machine in a line, then each setting with its reason and its risk.
fn render(advice: &Advice, style: Style) -> String {
    let machine = &advice.machine;
    // Writing to a String cannot fail.
    let mut text = format!(
        "{} {} with {:.1} GiB of memory ({}) and {} processors ({})\n",
        advice.flavour.name(),
        advice.major,
        machine.memory_bytes as f64 / (1u64 << 30) as f64,
        machine.memory_from,
        machine.cpus,
        machine.cpus_from
    );
    if !advice.outstanding.is_empty() {
        let names = advice.outstanding.join(", ");
        let line = format!("{names}: tuned before; `pgspate tune --revert` puts it back");
        let _ = writeln!(text, "{} {line}", style.warning("warning:"));
    }
    for it in &advice.proposals {
        let restart = if it.needs_restart { "  after a restart" } else { "" };
        let _ = writeln!(
            text,
            "\n{}  {} instead of {}{restart}",
            style.strong(it.name),
            it.value,
            it.now
        );
        let _ = writeln!(text, "{}", wrapped(it.reason, "  "));
        let _ = writeln!(text, "{}", style.dim(&wrapped(&format!("risk: {}", it.risk), "  ")));
    }
    text.push_str(match advice.proposals.is_empty() {
        true => "nothing to change\n",
        false => "\nApply it with --apply, or print it with --emit sql, rds or terraform.\n",
    });
    text
}
