//! Runs experiments: every trial as often as requested, in random order.
//!
//! Each repeat runs every trial once, shuffled. So a change of the machine during a run does not
//! affect only one contender. A trial that has its line is not run again; the same command
//! continues an interrupted run. Results of different conditions are never mixed.

mod counters;
mod order;
mod place;
mod refusals;

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use pgspate::target::connect::{Connection, Dsn};
use pgspate::{Error, ErrorKind, Result};
use pgspate_doctor::tune;
use pgspate_embedded::{Installation, ServerStep};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::runtime::Handle;

use crate::context::{SCHEMA, SharedByTrials, TrialContext};
use crate::dataset::{DataKind, Dataset};
use crate::experiment::{Experiment, LabRunSetup, LabTrial, TrialOutcome, Unit};
use crate::facts::{self, Machine, TrialFacts};
use crate::lab_server::LabServer;
use crate::results::{self, ResultLine, ResultsWriter, RunConditions};
use crate::stop::RunStop;
use crate::user_server::UserServer;
use counters::{find_tables, take_measurement, wait_for_ended_sessions};
pub use order::run_time;
pub(crate) use order::trials;
use order::{keep_wanted, order};
use place::{ScratchFolder, TrialPlace, other_conditions_error};

/// The note of a trial whose role may not run CHECKPOINT.
const NOT_FLUSHED: &str = "The role may not run CHECKPOINT on this server (`grant pg_checkpoint \
                           to ...`, from PostgreSQL 15 on), so trials began with unwritten pages \
                           of earlier work.";

/// Options of a run.
pub struct LabOptions {
    /// The experiments, in this order.
    pub experiments: Vec<&'static dyn Experiment>,
    /// `imdb`, `tpch`, or paths, folders, patterns and URLs of the user's own files, for
    /// experiments that load whatever they are given; IMDb-shaped files by default.
    pub data: Vec<String>,
    /// 1 is the published size; each experiment's own by default. Own files are loaded whole.
    pub scale: Option<f64>,
    /// How often each trial is made.
    pub repeats: u32,
    /// The seed of the generated data and of the order of the trials.
    pub seed: u64,
    /// The folder of the results.
    pub folder: PathBuf,
    /// The user's server; by default the lab starts its own.
    pub to: Option<Dsn>,
    /// The PostgreSQL installation of the lab's server; found automatically by default.
    pub installation: Option<Installation>,
    /// Whether to delete earlier results of these experiments.
    pub fresh: bool,
    /// The program `pgspate`, for contenders that are a process. Without it, their trials are
    /// skipped.
    pub program: Option<PathBuf>,
    /// Pairs (factor, level) that restrict the trials: each named factor must have a named level.
    pub only: Vec<(String, String)>,
}

/// A progress event.
#[derive(Debug)]
pub enum LabEvent<'a> {
    /// A step of starting the lab's server.
    Server(&'a ServerStep),
    /// Some trials were measured by an earlier run.
    Resumed {
        /// The experiment.
        experiment: &'a str,
        /// Trials that are not run again.
        done: usize,
        /// All trials.
        of: usize,
    },
    /// The starting state is being made.
    Preparing {
        /// The experiment.
        experiment: &'a str,
    },
    /// A trial begins.
    TrialStarted {
        /// The experiment.
        experiment: &'a str,
        /// Its levels, for people.
        label: &'a str,
        /// Which one of all it is, from 1.
        nth: usize,
        /// All trials.
        of: usize,
        /// Estimated time left, from the mean so far.
        left: Option<Duration>,
    },
    /// A trial has ended.
    Measured {
        /// The line.
        line: &'a ResultLine,
    },
    /// A condition that distorts the results.
    Warning {
        /// Why, in a sentence.
        text: &'a str,
    },
}

/// The summary of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LabSummary {
    /// Trials measured by this run.
    pub measured: usize,
    /// Trials measured earlier.
    pub before: usize,
    /// Skipped trials, each with the reason.
    pub skipped: Vec<(String, String)>,
    /// The file of all results.
    pub results: PathBuf,
}

/// Runs experiments. Blocks; call it from a thread that is not one of `runtime`'s.
///
/// # Errors
/// [`ErrorKind::Cancelled`] when the run was stopped; measured trials are kept. Other errors when a
/// server cannot be started or reached, the folder has results of other conditions, or a trial
/// fails.
pub fn run(
    options: &LabOptions,
    runtime: &Handle,
    stop: &RunStop,
    show: &dyn Fn(&LabEvent<'_>),
) -> Result<LabSummary> {
    if options.repeats == 0 {
        return Err(Error::new(ErrorKind::Usage, "the number of repeats must be at least 1"));
    }
    let data = Arc::new(data(options, runtime)?);
    let mut writer = ResultsWriter::open(&options.folder)?;
    let done = run_with(options, &data, &mut writer, runtime, stop, show);
    if done.is_err() {
        writer.remove_if_empty();
    }
    done
}

/// Finds the requested data, and checks that all experiments accept it.
fn data(options: &LabOptions, runtime: &Handle) -> Result<Dataset> {
    let data = Dataset::find(&options.data, runtime)?;
    let has_its_own =
        |it: &&&dyn Experiment| !it.takes_data() && data.kind() != DataKind::default();
    if let Some(one) = options.experiments.iter().find(has_its_own) {
        let message = format!("{} has its own data, and does not accept --data", one.name());
        return Err(Error::new(ErrorKind::Usage, message)
            .hint("Omit `--data` for this experiment; only bulk and storage accept `--data`."));
    }
    if data.kind() == DataKind::Files && options.scale.is_some() {
        return Err(Error::new(ErrorKind::Usage, "--scale does not apply to your own files")
            .hint("They are loaded completely: omit `--scale`, or name fewer files."));
    }
    Ok(data)
}

fn run_with(
    options: &LabOptions,
    data: &Arc<Dataset>,
    writer: &mut ResultsWriter,
    runtime: &Handle,
    stop: &RunStop,
    show: &dyn Fn(&LabEvent<'_>),
) -> Result<LabSummary> {
    let lines = results::read(&options.folder)?;
    let place = TrialPlace::open(options, runtime, stop, show)?;
    let mut summary =
        LabSummary { results: options.folder.join(results::RESULTS), ..LabSummary::default() };
    let ended = (|| {
        // Plan all experiments first, so that a usage error is reported before anything is measured
        // or deleted.
        let plans = plans(options, data, &place, &lines, runtime)?;
        let lines: Vec<ResultLine> = match options.fresh {
            false => lines,
            true => {
                let is_asked = |line: &ResultLine| {
                    plans.iter().any(|it| it.experiment.name() == line.experiment)
                };
                let kept: Vec<ResultLine> =
                    lines.into_iter().filter(|line| !is_asked(line)).collect();
                writer.rewrite(&kept)?;
                kept
            }
        };
        plans.iter().try_for_each(|plan| {
            let summary = &mut summary;
            let mut course = ExperimentRun {
                plan,
                options,
                runtime,
                stop,
                show,
                place: &place,
                data,
                writer,
                summary,
            };
            course.run(&lines)
        })
    })();
    let closed = place.close(runtime).map(|left| {
        if let Some(text) = left {
            show(&LabEvent::Warning { text });
        }
    });
    let ended = ended.map_err(|error| match error.kind() {
        ErrorKind::Cancelled => Error::new(
            ErrorKind::Cancelled,
            format!("stopped; {} trials are measured", summary.measured + summary.before),
        )
        .hint("Run the same command again to continue, or add `--fresh` to start over."),
        _ => error,
    });
    ended.and(closed)?;
    Ok(summary)
}

/// The trials of one experiment.
struct ExperimentPlan {
    experiment: &'static dyn Experiment,
    conditions: RunConditions,
    /// All trials of all repeats, in their order.
    all: Vec<(u32, LabTrial)>,
}

/// Plans all experiments.
///
/// # Errors
/// When existing results have other conditions, `--only` names an unknown factor or level, the
/// user's server cannot be queried, or the lab's server has no temporary folder.
fn plans(
    options: &LabOptions,
    data: &Dataset,
    place: &TrialPlace,
    lines: &[ResultLine],
    runtime: &Handle,
) -> Result<Vec<ExperimentPlan>> {
    let fingerprint = place.fingerprint(runtime)?;
    let plan = |experiment: &&'static dyn Experiment| {
        let (experiment, name) = (*experiment, experiment.name());
        let scale = match data.kind() {
            DataKind::Files => 1.0,
            _ => options.scale.unwrap_or_else(|| experiment.scale_default()),
        };
        let conditions = place.conditions(scale, options.seed, data.facts.clone(), &fingerprint)?;
        let is_other =
            |line: &&ResultLine| line.experiment == name && !line.conditions.agrees(&conditions);
        if let (false, Some(other)) = (options.fresh, lines.iter().find(is_other)) {
            return Err(other_conditions_error(
                &other.conditions,
                &conditions,
                &options.folder,
                name,
            ));
        }
        let setup = LabRunSetup { scale, is_own: place.is_own(), data: data.kind() };
        let mut trials = trials(experiment, &setup);
        keep_wanted(&mut trials, &options.only, name)?;
        let all = order(&trials, options.repeats, options.seed, name);
        Ok(ExperimentPlan { experiment, conditions, all })
    };
    options.experiments.iter().map(plan).collect()
}

/// Returns the values that measured trials had in common, such as checksums.
fn agreed(known: &[&ResultLine]) -> BTreeMap<String, String> {
    known.iter().flat_map(|line| line.agreed.clone()).collect()
}

/// A run of one experiment.
struct ExperimentRun<'a> {
    plan: &'a ExperimentPlan,
    options: &'a LabOptions,
    runtime: &'a Handle,
    stop: &'a RunStop,
    show: &'a dyn Fn(&LabEvent<'_>),
    place: &'a TrialPlace,
    data: &'a Arc<Dataset>,
    writer: &'a mut ResultsWriter,
    summary: &'a mut LabSummary,
}

impl ExperimentRun<'_> {
    fn run(&mut self, lines: &[ResultLine]) -> Result<()> {
        let ExperimentPlan { experiment, all, .. } = self.plan;
        let name = experiment.name();
        let known: Vec<&ResultLine> = lines.iter().filter(|line| line.experiment == name).collect();
        // Skipped trials are tried again: they may work as root, or on another version.
        let is_made = |line: &&&ResultLine| line.skipped.is_none();
        let done: HashSet<(u32, &LabTrial)> =
            known.iter().filter(is_made).map(|line| (line.repeat, &line.trial)).collect();
        let mut left: Vec<&(u32, LabTrial)> =
            all.iter().filter(|(repeat, trial)| !done.contains(&(*repeat, trial))).collect();
        let mut before = all.len() - left.len();
        self.summary.before += before;
        if before > 0 {
            (self.show)(&LabEvent::Resumed { experiment: name, done: before, of: all.len() });
        }
        if left.is_empty() {
            return Ok(());
        }
        let scratch = ScratchFolder::make(&self.options.folder, name)?;
        let shared = Arc::new(SharedByTrials {
            scale: self.plan.conditions.scale,
            seed: self.options.seed,
            scratch: scratch.0.clone(),
            program: self.options.program.clone(),
            runtime: self.runtime.clone(),
            stop: self.stop.clone(),
            tuned: Mutex::default(),
            agreed: Mutex::new(agreed(&known)),
            data: Arc::clone(self.data),
            tables: OnceLock::new(),
        });
        left = self.skip_refused(&shared, left, &known, before)?;
        if left.is_empty() {
            return Ok(());
        }
        before = all.len() - left.len();
        let base = self.prepare(&shared)?;
        let began = Instant::now();
        for (nth, (repeat, trial)) in left.iter().enumerate() {
            let mean = began.elapsed().checked_div(nth as u32);
            (self.show)(&LabEvent::TrialStarted {
                experiment: name,
                label: &trial.description(),
                nth: before + nth + 1,
                of: all.len(),
                left: mean.map(|mean| mean * (left.len() - nth) as u32),
            });
            let line = self.trial(&shared, base.as_ref(), trial, *repeat);
            let line = line.map_err(|error| trial_error(error, name, trial))?;
            let old = known.iter().find(|old| old.repeat == *repeat && old.trial == *trial);
            self.add(&line, old.copied())?;
            (self.show)(&LabEvent::Measured { line: &line });
        }
        Ok(())
    }

    /// Writes a line; `old` is an earlier line of this trial, which was skipped then.
    fn add(&mut self, line: &ResultLine, old: Option<&ResultLine>) -> Result<()> {
        match &line.skipped {
            None => self.summary.measured += 1,
            Some(reason) => {
                let label = format!("{}: {}", line.experiment, line.trial.label());
                self.summary.skipped.push((label, reason.clone()));
            }
        }
        match old {
            None => self.writer.add(line),
            Some(old) if old.skipped == line.skipped => Ok(()),
            Some(_) => self.writer.replace(line),
        }
    }

    /// Makes the starting state and determines the tuned settings. On the user's server, each trial
    /// makes the starting state.
    fn prepare(&self, shared: &Arc<SharedByTrials>) -> Result<Option<LabServer>> {
        (self.show)(&LabEvent::Preparing { experiment: self.plan.experiment.name() });
        let installation = match self.place {
            TrialPlace::LabServer(installation) => installation,
            TrialPlace::UserServer(user_server) => {
                // Tuned settings are not applied there, but must be known: trials that need them
                // are skipped.
                self.runtime.block_on(tune(shared, user_server.connection()))?;
                return self.look_at_data(shared, user_server).map(|()| None);
            }
        };
        let show = |step: &ServerStep| (self.show)(&LabEvent::Server(step));
        let schema = format!("create schema {SCHEMA}");
        if self.data.kind() == DataKind::Files {
            // Load them on a second server, so that this load is not in the trials' WAL.
            let other = LabServer::start(installation, &show)?;
            let context = TrialContext::on_lab_server(shared, other.base())?;
            context.sql("make the lab's schema", &schema)?;
            context.tables()?;
        }
        let own = LabServer::start(installation, &show)?;
        if let Some(text) = own.in_memory() {
            (self.show)(&LabEvent::Warning { text });
        }
        let context = TrialContext::on_lab_server(shared, own.base())?;
        context.sql("make the lab's schema", &schema)?;
        let connection = context.connect()?;
        context.block_on(tune(shared, &connection))?;
        drop(connection);
        self.plan.experiment.prepare(&context)?;
        own.finish()?;
        Ok(Some(own))
    }

    /// Finds the tables before the first trial. So the first trial starts with a clean server, and
    /// an error in the data is not reported as a trial's error.
    fn look_at_data(&self, shared: &Arc<SharedByTrials>, user_server: &UserServer) -> Result<()> {
        if !self.plan.experiment.takes_data() {
            return Ok(());
        }
        self.runtime.block_on(user_server.reset())?;
        let context =
            TrialContext::on_user_server(shared, user_server.connection(), &user_server.dsn)?;
        let known = context.tables().map(drop);
        let tidied = self.runtime.block_on(user_server.reset());
        known.and(tidied)
    }

    fn trial(
        &self,
        shared: &Arc<SharedByTrials>,
        base: Option<&LabServer>,
        trial: &LabTrial,
        repeat: u32,
    ) -> Result<ResultLine> {
        let mut line = self.line(trial, repeat);
        match (base, self.place) {
            (Some(own), _) => {
                let settings = self.settings_on(shared, own, trial)?;
                let server = own.copy(&settings)?;
                let context = TrialContext::on_lab_server(shared, &server)?;
                self.measure(&context, trial, &mut line)?;
            }
            (None, TrialPlace::UserServer(user_server)) => {
                let keeper = user_server.connection();
                let context = TrialContext::on_user_server(shared, keeper, &user_server.dsn)?;
                if self.plan.experiment.settings(trial, &context).is_empty() {
                    self.runtime.block_on(user_server.reset())?;
                    let done = self.on_user_server(&context, trial, &mut line);
                    let tidied = self.runtime.block_on(user_server.reset());
                    done.and(tidied)?;
                } else {
                    describe(&context, keeper, &mut line)?;
                    line.skipped = Some(
                        "it needs server settings that the lab does not change \
                                         on your server"
                            .to_owned(),
                    );
                }
            }
            (None, TrialPlace::LabServer(_)) => {
                return Err(Error::new(ErrorKind::Bug, "the lab's own server was not prepared"));
            }
        }
        Ok(line)
    }

    /// Creates a line without results.
    fn line(&self, trial: &LabTrial, repeat: u32) -> ResultLine {
        ResultLine {
            experiment: self.plan.experiment.name().to_owned(),
            trial: trial.clone(),
            repeat,
            time: String::new(),
            conditions: self.plan.conditions.clone(),
            skipped: None,
            agreed: BTreeMap::new(),
            outcome: TrialOutcome::default(),
            measured: Value::Null,
            pictures: None,
            facts: TrialFacts::default(),
        }
    }

    fn settings_on(
        &self,
        shared: &Arc<SharedByTrials>,
        own: &LabServer,
        trial: &LabTrial,
    ) -> Result<Vec<(String, String)>> {
        let context = TrialContext::stopped(shared, own.base())?;
        Ok(self.plan.experiment.settings(trial, &context))
    }

    fn on_user_server(
        &self,
        context: &TrialContext,
        trial: &LabTrial,
        line: &mut ResultLine,
    ) -> Result<()> {
        let mut is_flushed = true;
        if self.plan.experiment.refusal(trial, context).is_none() {
            self.plan.experiment.prepare(context)?;
            // Without a checkpoint, pages of the last trial and of the preparation would be written
            // during this trial.
            is_flushed = context.checkpoint()?;
        }
        self.measure(context, trial, line)?;
        if !is_flushed {
            line.outcome.notes.push(NOT_FLUSHED.to_owned());
        }
        Ok(())
    }

    /// Runs the trial, with all counters read before and after.
    fn measure(
        &self,
        context: &TrialContext,
        trial: &LabTrial,
        line: &mut ResultLine,
    ) -> Result<()> {
        context.check()?;
        let connection = context.connect()?;
        describe(context, &connection, line)?;
        line.skipped = self.plan.experiment.refusal(trial, context);
        if line.skipped.is_some() {
            return Ok(());
        }
        let tables = context.block_on(find_tables(&connection))?;
        let before = context.block_on(take_measurement(&connection, &tables))?;
        let probe = context.probe();
        let (read, began) = (probe.read(), Instant::now());
        let mut outcome = self.plan.experiment.run(trial, context)?;
        let took = began.elapsed().as_secs_f64();
        probe.read().add_since(&read, took, &mut outcome);
        context.block_on(wait_for_ended_sessions(&connection))?;
        let after = context.block_on(take_measurement(&connection, &tables))?;
        let measured = after.since(&before);
        outcome.number("seconds", outcome.seconds(), Unit::Seconds);
        let bytes = measured.wal_bytes.map(|bytes| bytes as f64);
        outcome.number_if("WAL", bytes, Unit::Bytes);
        let checkpoints = &measured.checkpoints;
        let all = checkpoints.timed.zip(checkpoints.requested).map(|(a, b)| (a + b) as f64);
        outcome.number_if("checkpoints", all, Unit::Count);
        line.measured = known(serde_json::to_value(&measured))?;
        self.plan.experiment.verify(trial, context, &mut outcome)?;
        line.agreed = context.values_of_this_trial();
        line.time = context.block_on(facts::now(&connection))?;
        line.pictures = Some(outcome.pictures.iter().map(|it| it.name.clone()).collect());
        line.outcome = outcome;
        Ok(())
    }
}

/// Records machine, settings and time of a trial.
fn describe(context: &TrialContext, connection: &Connection, line: &mut ResultLine) -> Result<()> {
    line.facts = TrialFacts {
        machine: Machine::here(context.data_folder()),
        is_local: context.is_local(),
        settings: context.block_on(facts::settings(connection))?,
    };
    line.time = context.block_on(facts::now(connection))?;
    Ok(())
}

/// Stores the settings that `pgspate tune` proposes for this server.
async fn tune(shared: &SharedByTrials, connection: &Connection) -> Result<()> {
    let advice = tune::advise(connection, None, None).await?;
    let tuned = advice.proposals.into_iter().map(|it| (it.name.to_owned(), it.value));
    *shared.tuned.lock().expect("no panic while held") = tuned.collect();
    Ok(())
}

/// Removes empty fields: counters that this server version lacks.
fn known(value: serde_json::Result<Value>) -> Result<Value> {
    fn strip(value: &mut Value) {
        if let Value::Object(fields) = value {
            fields.values_mut().for_each(strip);
            let is_empty = |it: &Value| it.is_null() || it.as_object().is_some_and(Map::is_empty);
            fields.retain(|_, value| !is_empty(value));
        }
    }
    let failed = |error| Error::new(ErrorKind::Bug, "could not write a result").because(error);
    let mut value = value.map_err(failed)?;
    strip(&mut value);
    Ok(value)
}

fn trial_error(error: Error, name: &str, trial: &LabTrial) -> Error {
    match error.kind() {
        ErrorKind::Cancelled => error,
        kind => {
            let message = format!("could not run the trial \"{}\" of {name}", trial.label());
            Error::new(kind, message).because(error)
        }
    }
}
