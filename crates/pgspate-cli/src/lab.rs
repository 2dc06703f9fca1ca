//! The command `pgspate lab`: lists and runs experiments, and reports their results.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Args, Subcommand};
use pgspate::numbers::{clock, counted, seconds};
use pgspate::target::connect::{Dsn, Environment};
use pgspate::{Error, ErrorKind, Result, did_you_mean};
use pgspate_lab::report::{self, ExperimentDigest};
use pgspate_lab::{
    DataKind, Experiment, LabEvent, LabOptions, LabRunSetup, LabSummary, RunStop, experiments,
    run_time,
};
use serde::Serialize;

use crate::CommandAnswer;
use crate::errors::TerminalStyle;
use crate::flags::{ParsedFlags, StallArgs};
use crate::load::{InterruptActions, print_json, runtime, stop_on_interrupt};
use crate::output::{draw_line, write_stderr_line, write_stdout};
use crate::target::{self, show_step};
use crate::terminal::{LinePart, break_report_lines, cut_line, fit_line};

/// Arguments of `pgspate lab`.
#[derive(Args)]
pub(crate) struct LabArgs {
    /// What to do.
    #[command(subcommand)]
    action: LabAction,

    /// Print errors and results only
    #[arg(long, short, global = true, help_heading = "Output")]
    quiet: bool,
}

#[derive(Subcommand)]
enum LabAction {
    /// List the experiments, with their questions and durations
    List(ListArgs),
    /// Run experiments; skip trials that are already measured
    Run(RunArgs),
    /// Write one page with all results
    Report(ReportArgs),
}

#[derive(Args)]
struct ListArgs {
    /// Scale the data by this factor; 1 is the published size [default: one that takes minutes]
    #[arg(long, value_name = "X", value_parser = parse_scale)]
    scale: Option<f64>,

    /// Print the list as JSON on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct RunArgs {
    /// Names of experiments, or `all`
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    /// Load this data in `bulk` and `storage`: imdb, tpch, or your own files, folders and patterns
    #[arg(long, value_name = "DATA", num_args = 1.., default_value = "imdb")]
    data: Vec<String>,

    /// Scale the data by this factor; 1 is the published size [default: one that takes minutes]
    #[arg(long, value_name = "X", value_parser = parse_scale)]
    scale: Option<f64>,

    /// Run each trial this many times
    #[arg(
        long, default_value = "3", value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    repeats: u32,

    /// Generate data and the order of trials from this seed
    #[arg(long, default_value = "1", value_name = "N")]
    seed: u64,

    /// Keep results in this folder, and continue an interrupted run from it
    #[arg(long, default_value = "pgspate-lab", value_name = "DIR")]
    results: PathBuf,

    /// Measure this server, in a schema of the lab; by default the lab starts a server
    #[arg(long, value_name = "DSN")]
    to: Option<String>,

    /// The stall timeout.
    #[command(flatten)]
    stall: ParsedFlags<StallArgs>,

    /// Run only trials with this level, such as strategy=pgspate; repeat it for more levels
    #[arg(long, value_name = "FACTOR=LEVEL", value_parser = parse_pair)]
    only: Vec<(String, String)>,

    /// Start over: delete the results of these experiments
    #[arg(long)]
    fresh: bool,

    /// Print medians and answers as JSON on stdout
    #[arg(long, help_heading = "Output")]
    json: bool,
}

#[derive(Args)]
struct ReportArgs {
    /// Read the results of this folder
    #[arg(long, default_value = "pgspate-lab", value_name = "DIR")]
    results: PathBuf,

    /// Write the page to this file; by default report.html in the folder of --results
    #[arg(long, value_name = "FILE.html")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: LabArgs, style: TerminalStyle) -> Result<CommandAnswer> {
    let quiet = args.quiet;
    match args.action {
        LabAction::List(args) => list(&args),
        LabAction::Run(args) => measure(&args, quiet, style),
        LabAction::Report(args) => {
            let out = args.out.unwrap_or_else(|| args.results.join("report.html"));
            let trials = report::write(&experiments::ALL, &args.results, &out)?;
            if !quiet {
                let trials = counted(trials as u64, "trial");
                write_stderr_line(format!("wrote {trials} to {}", out.display()));
            }
            Ok(CommandAnswer::Yes)
        }
    }
}

/// An experiment as `lab list --json` prints it.
#[derive(Serialize)]
struct ListedExperiment {
    name: &'static str,
    title: &'static str,
    question: &'static str,
    data: Vec<&'static str>,
    factors: Vec<(&'static str, Vec<String>)>,
    scale: f64,
    trials: usize,
    seconds_each_repeat: f64,
}

fn list(args: &ListArgs) -> Result<CommandAnswer> {
    let listed = |experiment: &dyn Experiment| {
        let scale = args.scale.unwrap_or_else(|| experiment.scale_default());
        let setup = LabRunSetup { scale, is_own: true, data: DataKind::default() };
        let (trials, seconds_each_repeat) = run_time(experiment, &setup);
        let factors = experiment.factors(&setup).into_iter();
        ListedExperiment {
            name: experiment.name(),
            title: experiment.title(),
            question: experiment.question(),
            data: if experiment.takes_data() { vec!["imdb", "tpch", "PATH"] } else { Vec::new() },
            factors: factors.map(|factor| (factor.name, factor.levels)).collect(),
            scale,
            trials,
            seconds_each_repeat,
        }
    };
    let all: Vec<ListedExperiment> = experiments::ALL.into_iter().map(listed).collect();
    if args.json {
        print_json(&all)?;
        return Ok(CommandAnswer::Yes);
    }
    let mut text = String::new();
    let style = TerminalStyle::of_stdout();
    for it in &all {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{}\n{}",
            style.strong(it.name),
            break_report_lines(it.question, INDENT)
        );
        if !it.data.is_empty() {
            let line = "--data: imdb, tpch, or files of your own";
            let _ = writeln!(text, "{}", style.dim(&break_report_lines(line, INDENT)));
        }
        for (factor, levels) in &it.factors {
            let line = format!("{factor}: {}", levels.join(", "));
            let _ = writeln!(text, "{}", style.dim(&break_report_lines(&line, INDENT)));
        }
        let _ = writeln!(
            text,
            "{INDENT}{} trials, about {} for each repetition at scale {}\n",
            it.trials,
            seconds(it.seconds_each_repeat),
            it.scale
        );
    }
    write_stdout(text)?;
    Ok(CommandAnswer::Yes)
}

const INDENT: &str = "    ";

fn measure(args: &RunArgs, quiet: bool, style: TerminalStyle) -> Result<CommandAnswer> {
    let to = match &args.to {
        Some(to) => Dsn::resolve(Some(to), &Environment::capture()?)?
            .map(target::with_asked_password)
            .transpose()?
            .map(|dsn| dsn.with_stall_timeout(args.stall.0.0)),
        None => None,
    };
    let options = LabOptions {
        experiments: find_experiments(&args.names)?,
        data: args.data.clone(),
        scale: args.scale,
        repeats: args.repeats,
        seed: args.seed,
        folder: args.results.clone(),
        to,
        installation: None,
        fresh: args.fresh,
        program: std::env::current_exe().ok(),
        only: args.only.clone(),
    };
    let runtime = runtime()?;
    let (stop, running) = (RunStop::default(), Arc::new(AtomicBool::new(true)));
    let stopping = stop.clone();
    let interrupt = InterruptActions {
        first_message: "cleaning up",
        stop: move || stopping.request(),
        last_message: || "schemas and servers of the trials may be left behind".to_owned(),
    };
    stop_on_interrupt(interrupt, &running, runtime.handle());
    let line = LabProgress::new(quiet || args.json);
    let done = pgspate_lab::run(&options, runtime.handle(), &stop, &|event| {
        line.show(event, style);
    });
    line.clear();
    let summary = done?;
    let names: Vec<&str> = options.experiments.iter().map(|it| it.name()).collect();
    let mut digests = report::digests(&experiments::ALL, &args.results)?;
    digests.retain(|digest| names.contains(&digest.experiment));
    if args.json {
        print_json(&LabRunOutput { summary: &summary, experiments: &digests })?;
    } else if !quiet {
        for digest in &digests {
            write_stdout(format!("{}\n", break_report_lines(&render_digest(digest), "")))?;
            if let Some(caution) = &digest.caution {
                write_stderr_line(format!("{} {caution}", style.warning("warning:")));
            }
        }
    }
    if !quiet && !args.json {
        print_conclusion(&summary, args, style);
    }
    Ok(CommandAnswer::Yes)
}

/// Formats an answer with the scale that it holds for: `bulk, scale 0.01: …`.
fn render_digest(digest: &ExperimentDigest) -> String {
    let scale = digest.scale.map_or(String::new(), |scale| format!(", scale {scale}"));
    format!("{}{scale}: {}", digest.experiment, digest.answer)
}

/// The output of `lab run --json`.
#[derive(Serialize)]
struct LabRunOutput<'a> {
    summary: &'a LabSummary,
    experiments: &'a [ExperimentDigest],
}

/// Shows what was measured, what was skipped, and how to get a page of it.
fn print_conclusion(summary: &LabSummary, args: &RunArgs, style: TerminalStyle) {
    let before = match summary.before {
        0 => String::new(),
        before => format!(", {before} measured earlier"),
    };
    let file = summary.results.display();
    let measured = counted(summary.measured as u64, "trial");
    write_stderr_line(
        style.dim(&format!("{measured} measured{before}; all results are in {file}")),
    );
    if let Some((label, reason)) = summary.skipped.first() {
        let more = match summary.skipped.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        write_stderr_line(format!("{} \"{label}\"{more}: {reason}", style.warning("skipped:")));
    }
    let folder = match args.results.to_str() {
        Some("pgspate-lab") => String::new(),
        _ => format!(" --results {}", args.results.display()),
    };
    write_stderr_line(format!("write a page of the results with  pgspate lab report{folder}"));
}

/// Returns the experiments of these names; `all` stands for all of them.
///
/// # Errors
/// [`ErrorKind::Usage`] if one of the names is the name of no experiment.
fn find_experiments(names: &[String]) -> Result<Vec<&'static dyn Experiment>> {
    if names.iter().any(|name| name == "all") {
        return Ok(experiments::ALL.to_vec());
    }
    let mut chosen: Vec<&'static dyn Experiment> = Vec::new();
    for name in names {
        let known = experiments::ALL.map(Experiment::name);
        let found = experiments::find(name).ok_or_else(|| {
            Error::new(ErrorKind::Usage, format!("there is no experiment \"{name}\""))
                .hint_if(did_you_mean("", name, known))
                .hint_also(&format!(
                    "The experiments are {}. `all` runs them all.",
                    known.join(", ")
                ))
        })?;
        if !chosen.iter().any(|it| it.name() == found.name()) {
            chosen.push(found);
        }
    }
    Ok(chosen)
}

/// The progress of a run: on a terminal one line that is redrawn, elsewhere one line for each
/// finished trial.
struct LabProgress {
    is_quiet: bool,
    is_terminal: bool,
    is_drawn: Cell<bool>,
    /// The number of the running trial, and the number of trials.
    trial_of_all: Cell<(usize, usize)>,
}

impl LabProgress {
    fn new(quiet: bool) -> LabProgress {
        LabProgress {
            is_quiet: quiet,
            is_terminal: std::io::stderr().is_terminal(),
            is_drawn: Cell::new(false),
            trial_of_all: Cell::default(),
        }
    }

    fn show(&self, event: &LabEvent<'_>, style: TerminalStyle) {
        if let LabEvent::TrialStarted { nth, of, .. } = event {
            self.trial_of_all.set((*nth, *of));
        }
        match event {
            _ if self.is_quiet => {}
            LabEvent::Server(step) => {
                self.clear();
                show_step(step, false, style);
            }
            LabEvent::Warning { text } => {
                self.clear();
                write_stderr_line(format!("{} {text}", style.warning("warning:")));
            }
            LabEvent::Measured { .. } if self.is_terminal => {}
            other if self.is_terminal => {
                draw_line(&progress_parts(other));
                self.is_drawn.set(true);
            }
            LabEvent::Measured { line } => {
                write_stderr_line(render_finished(line, self.trial_of_all.get()))
            }
            LabEvent::TrialStarted { .. } => {}
            other => write_stderr_line(fit_line(&progress_parts(other), usize::MAX)),
        }
    }

    fn clear(&self) {
        if self.is_drawn.replace(false) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// The columns of a trial's levels on a narrow terminal.
const LEVELS_COLUMNS: usize = 40;

/// Returns the parts of the line that shows an event.
fn progress_parts(event: &LabEvent<'_>) -> Vec<LinePart> {
    let only = |text: String| vec![LinePart::new(0, text)];
    match event {
        LabEvent::Resumed { experiment, done, of } => {
            only(format!("{experiment}  {done} of {of} trials are already measured"))
        }
        LabEvent::Preparing { experiment } => only(format!("{experiment}  preparing")),
        LabEvent::TrialStarted { experiment, label, nth, of, left } => {
            let trial = format!("{experiment}  trial {nth} of {of}");
            let left = left.map(|left| LinePart::new(1, format!("{} left", clock(left))));
            let levels = LinePart::new(2, *label).or(cut_line(label, LEVELS_COLUMNS));
            [LinePart::new(0, trial), levels].into_iter().chain(left).collect()
        }
        LabEvent::Server(step) => only(step.to_string()),
        LabEvent::Measured { line } => only(line.trial.description()),
        LabEvent::Warning { text } => only((*text).to_owned()),
    }
}

/// Formats a finished trial with its result.
fn render_finished(line: &pgspate_lab::ResultLine, (nth, of): (usize, usize)) -> String {
    let what = match (&line.skipped, line.value("seconds")) {
        (Some(reason), _) => format!("skipped: {reason}"),
        (None, Some(value)) => seconds(value),
        (None, None) => String::new(),
    };
    format!("{}  trial {nth} of {of}  {}  {what}", line.experiment, line.trial.description())
}

/// Parses `KEY=VALUE`.
fn parse_pair(value: &str) -> Result<(String, String), String> {
    let (key, value) = value.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Parses a scale from 0.000001 to 1000.
fn parse_scale(value: &str) -> Result<f64, String> {
    match value.parse() {
        Ok(scale) if (0.000_001..=1000.0).contains(&scale) => Ok(scale),
        _ => Err("expected a number above 0, such as 0.1; 1 is the published size".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_line_shows_the_running_trial() {
        let event = LabEvent::TrialStarted {
            experiment: "bulk",
            label: "pgspate, as they come, autovacuum on, synchronous_commit off",
            nth: 3,
            of: 48,
            left: Some(Duration::from_secs(83)),
        };
        let line = |columns| fit_line(&progress_parts(&event), columns);
        insta::assert_snapshot!(
            line(120),
            @"bulk  trial 3 of 48  pgspate, as they come, autovacuum on, synchronous_commit off  01:23 left"
        );
        insta::assert_snapshot!(line(79), @"bulk  trial 3 of 48  pgspate, as they come, autovacuum on, s…  01:23 left");
    }

    #[test]
    fn scales_are_above_zero() {
        assert_eq!(parse_scale("0.1"), Ok(0.1));
        assert!(["0", "-1", "x"].iter().all(|wrong| parse_scale(wrong).is_err()));
    }
}
