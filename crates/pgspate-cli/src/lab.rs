//! `pgspate lab`.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Args, Subcommand};
use pgspate::numbers::{clock, seconds};
use pgspate::target::connect::{Dsn, Environment};
use pgspate::{Error, Kind, Result};
use pgspate_lab::report::{self, Digest};
use pgspate_lab::{Data, Event, Experiment, Options, Setup, Stop, Summary, experiments, run_time};
use serde::Serialize;

use crate::Answer;
use crate::doctor::wrapped;
use crate::errors::Style;
use crate::flags::{FromFlags, StallArgs};
use crate::load::{Interrupt, print_json, runtime, stop_on_interrupt};
use crate::output::{data, draw_line, say_line};
use crate::target::show;

/// Arguments of `pgspate lab`.
#[derive(Args)]
pub(crate) struct LabArgs {
    /// What to do.
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Say which experiments there are, what each asks, and how long it takes
    List(ListArgs),
    /// Run experiments; what is measured already is not run again
    Run(RunArgs),
    /// Make one page of everything that was measured
    Report(ReportArgs),
}

#[derive(Args)]
struct ListArgs {
    /// How large: 1 is the published size; by default what takes some minutes
    #[arg(long, value_name = "X", value_parser = scale)]
    scale: Option<f64>,

    /// Print it as JSON on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct RunArgs {
    /// Names of experiments, or all
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    /// What bulk and storage load: imdb, tpch, or files, folders and patterns of your own
    #[arg(long, value_name = "DATA", num_args = 1.., default_value = "imdb")]
    data: Vec<String>,

    /// How large: 1 is the published size; by default what takes some minutes
    #[arg(long, value_name = "X", value_parser = scale)]
    scale: Option<f64>,

    /// How often each trial is made
    #[arg(
        long, default_value = "3", value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    repeats: u32,

    /// What generated data and the order of the trials follow from
    #[arg(long, default_value = "1", value_name = "N")]
    seed: u64,

    /// The folder that results are kept in, and that a stopped run is continued from
    #[arg(long, default_value = "pgspate-lab", value_name = "DIR")]
    results: PathBuf,

    /// A server to measure, in a schema of the lab's; by default one of the lab's own is started
    #[arg(long, value_name = "DSN")]
    to: Option<String>,

    /// When a connection is given up.
    #[command(flatten)]
    stall: FromFlags<StallArgs>,

    /// Only trials with this level, as strategy=pgspate; several of one factor are all meant
    #[arg(long, value_name = "FACTOR=LEVEL", value_parser = pair)]
    only: Vec<(String, String)>,

    /// Begin anew: drop what is measured of these experiments
    #[arg(long)]
    fresh: bool,

    /// Print medians and answers as JSON on stdout
    #[arg(long, help_heading = "Output")]
    json: bool,

    /// Print errors only
    #[arg(long, short, help_heading = "Output")]
    quiet: bool,
}

#[derive(Args)]
struct ReportArgs {
    /// The folder that results are kept in
    #[arg(long, default_value = "pgspate-lab", value_name = "DIR")]
    results: PathBuf,

    /// The page; report.html in that folder by default
    #[arg(long, value_name = "FILE.html")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: LabArgs, style: Style) -> Result<Answer> {
    match args.action {
        Action::List(args) => list(&args),
        Action::Run(args) => measure(&args, style),
        Action::Report(args) => {
            let out = args.out.unwrap_or_else(|| args.results.join("report.html"));
            let trials = report::write(&experiments::ALL, &args.results, &out)?;
            say_line(format!("{trials} trials are in {}", out.display()));
            Ok(Answer::Yes)
        }
    }
}

/// An experiment, before it is run.
#[derive(Serialize)]
struct Listed {
    name: &'static str,
    title: &'static str,
    question: &'static str,
    data: Vec<&'static str>,
    factors: Vec<(&'static str, Vec<String>)>,
    scale: f64,
    trials: usize,
    seconds_each_repeat: f64,
}

fn list(args: &ListArgs) -> Result<Answer> {
    let listed = |experiment: &dyn Experiment| {
        let scale = args.scale.unwrap_or_else(|| experiment.scale_default());
        let setup = Setup { scale, is_own: true, data: Data::default() };
        let (trials, seconds_each_repeat) = run_time(experiment, &setup);
        let factors = experiment.factors(&setup).into_iter();
        Listed {
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
    let all: Vec<Listed> = experiments::ALL.into_iter().map(listed).collect();
    if args.json {
        print_json(&all)?;
        return Ok(Answer::Yes);
    }
    let mut text = String::new();
    let style = Style::of_stdout();
    for it in &all {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}\n{}", style.strong(it.name), wrapped(it.question, INDENT));
        if !it.data.is_empty() {
            let line = "--data: imdb, tpch, or files of your own";
            let _ = writeln!(text, "{}", style.dim(&wrapped(line, INDENT)));
        }
        for (factor, levels) in &it.factors {
            let line = format!("{factor}: {}", levels.join(", "));
            let _ = writeln!(text, "{}", style.dim(&wrapped(&line, INDENT)));
        }
        let _ = writeln!(
            text,
            "{INDENT}{} trials, about {} for each repeat at scale {}\n",
            it.trials,
            seconds(it.seconds_each_repeat),
            it.scale
        );
    }
    data(text)?;
    Ok(Answer::Yes)
}

const INDENT: &str = "    ";

fn measure(args: &RunArgs, style: Style) -> Result<Answer> {
    let to = match &args.to {
        Some(to) => Dsn::resolve(Some(to), &Environment::capture()?)?
            .map(|dsn| dsn.with_stall_timeout(args.stall.0.0)),
        None => None,
    };
    let options = Options {
        experiments: chosen(&args.names)?,
        data: args.data.clone(),
        scale: args.scale,
        repeats: args.repeats,
        seed: args.seed,
        folder: args.results.clone(),
        to,
        installation: None,
        fresh: args.fresh,
        only: args.only.clone(),
    };
    let runtime = runtime()?;
    let (stop, running) = (Stop::default(), Arc::new(AtomicBool::new(true)));
    let stopping = stop.clone();
    let interrupt = Interrupt {
        said: "cleaning up",
        stop: move || stopping.ask(),
        last_words: || "what was made for the trials may be left".to_owned(),
    };
    stop_on_interrupt(interrupt, &running, runtime.handle());
    let line = Line::new(args.quiet || args.json);
    let done = pgspate_lab::run(&options, runtime.handle(), &stop, &|event| {
        line.show(event, style);
    });
    line.clear();
    let summary = done?;
    let names: Vec<&str> = options.experiments.iter().map(|it| it.name()).collect();
    let mut digests = report::digests(&experiments::ALL, &args.results)?;
    digests.retain(|digest| names.contains(&digest.experiment));
    if args.json {
        print_json(&Ran { summary: &summary, experiments: &digests })?;
    } else if !args.quiet {
        for digest in &digests {
            data(format!(
                "{}\n",
                wrapped(&format!("{}: {}", digest.experiment, digest.answer), "")
            ))?;
        }
    }
    if !args.quiet && !args.json {
        conclude(&summary, args, style);
    }
    Ok(Answer::Yes)
}

/// What `lab run --json` prints.
#[derive(Serialize)]
struct Ran<'a> {
    summary: &'a Summary,
    experiments: &'a [Digest],
}

fn conclude(summary: &Summary, args: &RunArgs, style: Style) {
    let before = match summary.before {
        0 => String::new(),
        before => format!(", {before} were there already"),
    };
    let file = summary.results.display();
    say_line(
        style.dim(&format!("{} trials measured{before}; all are in {file}", summary.measured)),
    );
    if let Some((label, reason)) = summary.skipped.first() {
        let more = match summary.skipped.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        say_line(format!("{} \"{label}\"{more}: {reason}", style.warning("left out:")));
    }
    let folder = match args.results.to_str() {
        Some("pgspate-lab") => String::new(),
        _ => format!(" --results {}", args.results.display()),
    };
    say_line(format!("make a page of it with  pgspate lab report{folder}"));
}

fn chosen(names: &[String]) -> Result<Vec<&'static dyn Experiment>> {
    if names.iter().any(|name| name == "all") {
        return Ok(experiments::ALL.to_vec());
    }
    let mut chosen: Vec<&'static dyn Experiment> = Vec::new();
    for name in names {
        let known = || experiments::ALL.map(Experiment::name).join(", ");
        let found = experiments::find(name).ok_or_else(|| {
            Error::new(Kind::Usage, format!("there is no experiment \"{name}\""))
                .hint(format!("There are {}, and all of them as `all`.", known()))
        })?;
        if !chosen.iter().any(|it| it.name() == found.name()) {
            chosen.push(found);
        }
    }
    Ok(chosen)
}

/// What is going on: on a terminal a line that is drawn over again, elsewhere a line for each trial
/// that is through.
struct Line {
    is_quiet: bool,
    is_terminal: bool,
    is_drawn: Cell<bool>,
    /// Which trial of how many is under way.
    nth: Cell<(usize, usize)>,
}

impl Line {
    fn new(quiet: bool) -> Line {
        Line {
            is_quiet: quiet,
            is_terminal: std::io::stderr().is_terminal(),
            is_drawn: Cell::new(false),
            nth: Cell::default(),
        }
    }

    fn show(&self, event: &Event<'_>, style: Style) {
        if let Event::Trial { nth, of, .. } = event {
            self.nth.set((*nth, *of));
        }
        match event {
            _ if self.is_quiet => {}
            Event::Server(step) => {
                self.clear();
                show(step, false, style);
            }
            Event::Warning { text } => {
                self.clear();
                say_line(format!("{} {text}", style.warning("warning:")));
            }
            Event::Measured { .. } if self.is_terminal => {}
            other if self.is_terminal => {
                draw_line(&rendered(other));
                self.is_drawn.set(true);
            }
            Event::Measured { line } => say_line(through(line, self.nth.get())),
            Event::Trial { .. } => {}
            other => say_line(rendered(other)),
        }
    }

    fn clear(&self) {
        if self.is_drawn.replace(false) {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn rendered(event: &Event<'_>) -> String {
    match event {
        Event::Resumed { experiment, done, of } => {
            format!("{experiment}  {done} of {of} trials are there already")
        }
        Event::Preparing { experiment } => format!("{experiment}  preparing"),
        Event::Trial { experiment, label, nth, of, left } => {
            let left = left.map(|left| format!("  {} left", clock(left))).unwrap_or_default();
            format!("{experiment}  trial {nth} of {of}  {label}{left}")
        }
        Event::Server(step) => step.to_string(),
        Event::Measured { line } => line.trial.label(),
        Event::Warning { text } => (*text).to_owned(),
    }
}

/// A trial that has its line, and what came of it.
fn through(line: &pgspate_lab::Line, (nth, of): (usize, usize)) -> String {
    let what = match (&line.skipped, line.value("seconds")) {
        (Some(reason), _) => format!("left out: {reason}"),
        (None, Some(value)) => seconds(value),
        (None, None) => String::new(),
    };
    format!("{}  trial {nth} of {of}  {}  {what}", line.experiment, line.trial.label())
}

fn pair(value: &str) -> Result<(String, String), String> {
    let (key, value) = value.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn scale(value: &str) -> Result<f64, String> {
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
    fn the_line_says_where_it_is() {
        let event = Event::Trial {
            experiment: "bulk",
            label: "one session, default",
            nth: 7,
            of: 24,
            left: Some(Duration::from_secs(83)),
        };
        insta::assert_snapshot!(
            rendered(&event),
            @"bulk  trial 7 of 24  one session, default  01:23 left"
        );
    }

    #[test]
    fn scales_are_above_zero() {
        assert_eq!(scale("0.1"), Ok(0.1));
        assert!(scale("0").is_err() && scale("-1").is_err() && scale("x").is_err());
    }
}
