//! Runs experiments: every trial as often as is asked, in an order that nobody chose.
//!
//! Each round has every trial once, shuffled, so that whatever changes on the machine in the course
//! of a run does not fall on one contender. What has a line is not run again; a run that was
//! stopped, or killed, is continued by the same command. Results of other conditions are never
//! mixed with these.

mod again;
mod order;
mod place;

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use pgspate::measure::Measurement;
use pgspate::target::connect::{Connection, Dsn};
use pgspate::{Error, Kind, Result};
use pgspate_doctor::tune;
use pgspate_embedded::{Installation, Step};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::runtime::Handle;

use crate::dataset::{Data, Dataset};
use crate::experiment::{Experiment, Outcome, Setup, Trial, Unit};
use crate::facts::{self, Facts, Machine};
use crate::foreign::Foreign;
use crate::ground::{Ground, SCHEMA, Shared};
use crate::own::Own;
use crate::results::{self, Conditions, Line, Writer};
use crate::stop::Stop;
pub use order::run_time;
pub(crate) use order::trials;
use order::{only, order};
use place::{Place, Scratch, differ};

/// How often sessions are waited for that may be somebody else's: a second in all.
const SETTLED_LOOKS_MAX: u32 = 100;
const SETTLED_PAUSE: Duration = Duration::from_millis(10);

/// Of trials on a server that would not make a checkpoint for us.
const NOT_FLUSHED: &str = "The role may not make a checkpoint there (`grant pg_checkpoint to ...`, \
    from PostgreSQL 15 on), so trials began with whatever was left to be written.";

/// What is to be run.
pub struct Options {
    /// The experiments, in this order.
    pub experiments: Vec<&'static dyn Experiment>,
    /// `imdb`, `tpch`, or paths, folders, patterns and URLs of the user's own files, for
    /// experiments that load whatever they are given; IMDb-shaped files by default.
    pub data: Vec<String>,
    /// 1 is the published size; each experiment's own by default. Own files are loaded whole.
    pub scale: Option<f64>,
    /// How often each trial is made.
    pub repeats: u32,
    /// What the data and the order of the trials follow from.
    pub seed: u64,
    /// The folder that the results are kept in.
    pub folder: PathBuf,
    /// The server; one of the lab's own by default.
    pub to: Option<Dsn>,
    /// The PostgreSQL that the lab's own servers run; the one that is found by default.
    pub installation: Option<Installation>,
    /// Begin anew: lines of these experiments are dropped.
    pub fresh: bool,
    /// Only trials that have one of the levels that are named of a factor; all without any.
    pub only: Vec<(String, String)>,
}

/// What happens, as it begins.
#[derive(Debug)]
pub enum Event<'a> {
    /// The lab's own server is being made.
    Server(&'a Step),
    /// Some trials have their lines from an earlier run.
    Resumed {
        /// The experiment.
        experiment: &'a str,
        /// Trials that are not run again.
        done: usize,
        /// All of them.
        of: usize,
    },
    /// The starting state is being made.
    Preparing {
        /// The experiment.
        experiment: &'a str,
    },
    /// A trial begins.
    Trial {
        /// The experiment.
        experiment: &'a str,
        /// Its levels, for people.
        label: &'a str,
        /// Which one of all it is, from 1.
        nth: usize,
        /// How many there are.
        of: usize,
        /// How long the rest takes, by the mean so far.
        left: Option<Duration>,
    },
    /// A trial has its line.
    Measured {
        /// The line.
        line: &'a Line,
    },
    /// The results will not be what they look like.
    Warning {
        /// Why, in a sentence.
        text: &'a str,
    },
}

/// What was done.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Summary {
    /// Trials that were made.
    pub measured: usize,
    /// Trials that had their lines already.
    pub before: usize,
    /// Trials that cannot be made on this server, each with the reason.
    pub skipped: Vec<(String, String)>,
    /// The file that has all lines.
    pub results: PathBuf,
}

/// Runs experiments. Blocks; call it from a thread that is not one of `runtime`'s.
///
/// # Errors
/// Kind `Cancelled` when it was stopped; what is measured by then is kept. A server that cannot be
/// started or reached, results of other conditions in the folder, a trial that fails.
pub fn run(
    options: &Options,
    runtime: &Handle,
    stop: &Stop,
    show: &dyn Fn(&Event<'_>),
) -> Result<Summary> {
    if options.repeats == 0 {
        return Err(Error::new(Kind::Usage, "the number of repeats must be at least 1"));
    }
    let data = Arc::new(data(options, runtime)?);
    let mut writer = Writer::open(&options.folder)?;
    let done = run_with(options, &data, &mut writer, runtime, stop, show);
    if done.is_err() {
        writer.tidy();
    }
    done
}

/// The data that were asked for, if all experiments can do with them.
fn data(options: &Options, runtime: &Handle) -> Result<Dataset> {
    let data = Dataset::find(&options.data, runtime)?;
    let has_its_own = |it: &&&dyn Experiment| !it.takes_data() && data.kind() != Data::default();
    if let Some(one) = options.experiments.iter().find(has_its_own) {
        let message = format!("{} has data of its own, and takes no others", one.name());
        return Err(Error::new(Kind::Usage, message)
            .hint("Leave `--data` out for it; bulk and storage load any data."));
    }
    if data.kind() == Data::Files && options.scale.is_some() {
        return Err(Error::new(Kind::Usage, "files of one's own have no scale")
            .hint("They are loaded whole: leave `--scale` out, or name fewer files."));
    }
    Ok(data)
}

fn run_with(
    options: &Options,
    data: &Arc<Dataset>,
    writer: &mut Writer,
    runtime: &Handle,
    stop: &Stop,
    show: &dyn Fn(&Event<'_>),
) -> Result<Summary> {
    let lines = results::read(&options.folder)?;
    let place = Place::open(options, runtime, stop, show)?;
    let mut summary =
        Summary { results: options.folder.join(results::RESULTS), ..Summary::default() };
    let ended = (|| {
        // All of them first: what is wrong with the last one is said before the first is measured,
        // and before anything is dropped.
        let plans = plans(options, data, &place, &lines, runtime)?;
        let lines: Vec<Line> = match options.fresh {
            false => lines,
            true => {
                let is_asked =
                    |line: &Line| plans.iter().any(|it| it.experiment.name() == line.experiment);
                let kept: Vec<Line> = lines.into_iter().filter(|line| !is_asked(line)).collect();
                writer.keep(&kept)?;
                kept
            }
        };
        plans.iter().try_for_each(|plan| {
            let summary = &mut summary;
            let mut course =
                Course { plan, options, runtime, stop, show, place: &place, data, writer, summary };
            course.run(&lines)
        })
    })();
    let closed = place.close(runtime).map(|left| {
        if let Some(text) = left {
            show(&Event::Warning { text });
        }
    });
    let ended = ended.map_err(|error| match error.kind() {
        Kind::Cancelled => Error::new(
            Kind::Cancelled,
            format!("stopped; {} trials are measured", summary.measured + summary.before),
        )
        .hint("Run the same command again to go on from here, or add `--fresh` to begin anew."),
        _ => error,
    });
    ended.and(closed)?;
    Ok(summary)
}

/// What is to be done of an experiment.
struct Plan {
    experiment: &'static dyn Experiment,
    conditions: Conditions,
    /// All trials of all repeats, in their order.
    all: Vec<(u32, Trial)>,
}

/// What is to be done, if it can be, beside the lines that are there.
fn plans(
    options: &Options,
    data: &Dataset,
    place: &Place,
    lines: &[Line],
    runtime: &Handle,
) -> Result<Vec<Plan>> {
    let fingerprint = place.fingerprint(runtime)?;
    let plan = |experiment: &&'static dyn Experiment| {
        let (experiment, name) = (*experiment, experiment.name());
        let scale = match data.kind() {
            Data::Files => 1.0,
            _ => options.scale.unwrap_or_else(|| experiment.scale_default()),
        };
        let conditions = place.conditions(scale, options.seed, data.facts.clone(), &fingerprint)?;
        let is_other =
            |line: &&Line| line.experiment == name && !line.conditions.agrees(&conditions);
        if let (false, Some(other)) = (options.fresh, lines.iter().find(is_other)) {
            return Err(differ(&other.conditions, &conditions, &options.folder, name));
        }
        let setup = Setup { scale, is_own: place.is_own(), data: data.kind() };
        let mut trials = trials(experiment, &setup);
        only(&mut trials, &options.only, name)?;
        let all = order(&trials, options.repeats, options.seed, name);
        Ok(Plan { experiment, conditions, all })
    };
    options.experiments.iter().map(plan).collect()
}

/// What contenders have left in trials that are measured already.
fn agreed(known: &[&Line]) -> BTreeMap<String, String> {
    known.iter().flat_map(|line| line.agreed.clone()).collect()
}

/// One experiment's trials.
struct Course<'a> {
    plan: &'a Plan,
    options: &'a Options,
    runtime: &'a Handle,
    stop: &'a Stop,
    show: &'a dyn Fn(&Event<'_>),
    place: &'a Place,
    data: &'a Arc<Dataset>,
    writer: &'a mut Writer,
    summary: &'a mut Summary,
}

impl Course<'_> {
    fn run(&mut self, lines: &[Line]) -> Result<()> {
        let Plan { experiment, all, .. } = self.plan;
        let name = experiment.name();
        let known: Vec<&Line> = lines.iter().filter(|line| line.experiment == name).collect();
        // Those that were left out are tried again: as root, or on another version, they may do.
        let is_made = |line: &&&Line| line.skipped.is_none();
        let done: HashSet<(u32, &Trial)> =
            known.iter().filter(is_made).map(|line| (line.repeat, &line.trial)).collect();
        let mut left: Vec<&(u32, Trial)> =
            all.iter().filter(|(repeat, trial)| !done.contains(&(*repeat, trial))).collect();
        let mut before = all.len() - left.len();
        self.summary.before += before;
        if before > 0 {
            (self.show)(&Event::Resumed { experiment: name, done: before, of: all.len() });
        }
        if left.is_empty() {
            return Ok(());
        }
        let scratch = Scratch::make(&self.options.folder, name)?;
        let shared = Arc::new(Shared {
            scale: self.plan.conditions.scale,
            seed: self.options.seed,
            scratch: scratch.0.clone(),
            runtime: self.runtime.clone(),
            stop: self.stop.clone(),
            tuned: Mutex::default(),
            agreed: Mutex::new(agreed(&known)),
            data: Arc::clone(self.data),
            tables: OnceLock::new(),
        });
        left = self.not_refused(&shared, left, &known, before)?;
        if left.is_empty() {
            return Ok(());
        }
        before = all.len() - left.len();
        let base = self.prepare(&shared)?;
        let began = Instant::now();
        for (nth, (repeat, trial)) in left.iter().enumerate() {
            let mean = began.elapsed().checked_div(nth as u32);
            (self.show)(&Event::Trial {
                experiment: name,
                label: &trial.label(),
                nth: before + nth + 1,
                of: all.len(),
                left: mean.map(|mean| mean * (left.len() - nth) as u32),
            });
            let line = self.trial(&shared, base.as_ref(), trial, *repeat);
            let line = line.map_err(|error| explained(error, name, trial))?;
            let old = known.iter().find(|old| old.repeat == *repeat && old.trial == *trial);
            self.add(&line, old.copied())?;
            (self.show)(&Event::Measured { line: &line });
        }
        Ok(())
    }

    /// Keeps a line; `old` is that of the same trial when it was left out.
    fn add(&mut self, line: &Line, old: Option<&Line>) -> Result<()> {
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

    /// The starting state, and what tuning would set; on another server it is made for each trial.
    fn prepare(&self, shared: &Arc<Shared>) -> Result<Option<Own>> {
        (self.show)(&Event::Preparing { experiment: self.plan.experiment.name() });
        let installation = match self.place {
            Place::Own(installation) => installation,
            Place::Foreign(foreign) => {
                // Nothing is set there, but what would be has to be known: it is left out.
                self.runtime.block_on(tune(shared, foreign.connection()))?;
                return self.look_at_data(shared, foreign).map(|()| None);
            }
        };
        let show = |step: &Step| (self.show)(&Event::Server(step));
        let schema = format!("create schema {SCHEMA}");
        if self.data.kind() == Data::Files {
            // Elsewhere, so that trials do not begin with what that leaves in the WAL.
            let other = Own::start(installation, &show)?;
            let ground = Ground::on_own(shared, other.base())?;
            ground.sql("make the lab's schema", &schema)?;
            ground.tables()?;
        }
        let own = Own::start(installation, &show)?;
        if let Some(text) = own.in_memory() {
            (self.show)(&Event::Warning { text });
        }
        let ground = Ground::on_own(shared, own.base())?;
        ground.sql("make the lab's schema", &schema)?;
        let connection = ground.connect()?;
        ground.block_on(tune(shared, &connection))?;
        drop(connection);
        self.plan.experiment.prepare(&ground)?;
        own.finish()?;
        Ok(Some(own))
    }

    /// Makes or loads what experiments with any data need to know, so that the first trial does
    /// not begin with what that leaves on the server, and faults of the data are no trial's.
    fn look_at_data(&self, shared: &Arc<Shared>, foreign: &Foreign) -> Result<()> {
        if !self.plan.experiment.takes_data() {
            return Ok(());
        }
        self.runtime.block_on(foreign.reset())?;
        let ground = Ground::on_foreign(shared, foreign.connection(), &foreign.dsn)?;
        let known = ground.tables().map(drop);
        let tidied = self.runtime.block_on(foreign.reset());
        known.and(tidied)
    }

    fn trial(
        &self,
        shared: &Arc<Shared>,
        base: Option<&Own>,
        trial: &Trial,
        repeat: u32,
    ) -> Result<Line> {
        let mut line = self.line(trial, repeat);
        match (base, self.place) {
            (Some(own), _) => {
                let settings = self.settings_on(shared, own, trial)?;
                let server = own.copy(&settings)?;
                let ground = Ground::on_own(shared, &server)?;
                self.measure(&ground, trial, &mut line)?;
            }
            (None, Place::Foreign(foreign)) => {
                let keeper = foreign.connection();
                let ground = Ground::on_foreign(shared, keeper, &foreign.dsn)?;
                if self.plan.experiment.settings(trial, &ground).is_empty() {
                    self.runtime.block_on(foreign.reset())?;
                    let done = self.on_foreign(&ground, trial, &mut line);
                    let tidied = self.runtime.block_on(foreign.reset());
                    done.and(tidied)?;
                } else {
                    describe(&ground, keeper, &mut line)?;
                    line.skipped = Some("it needs settings of the whole server".to_owned());
                }
            }
            (None, Place::Own(_)) => {
                return Err(Error::new(Kind::Bug, "the lab's own server was not prepared"));
            }
        }
        Ok(line)
    }

    /// A line of which nothing is known yet.
    fn line(&self, trial: &Trial, repeat: u32) -> Line {
        Line {
            experiment: self.plan.experiment.name().to_owned(),
            trial: trial.clone(),
            repeat,
            time: String::new(),
            conditions: self.plan.conditions.clone(),
            skipped: None,
            agreed: BTreeMap::new(),
            outcome: Outcome::default(),
            measured: Value::Null,
            pictures: None,
            facts: Facts::default(),
        }
    }

    fn settings_on(
        &self,
        shared: &Arc<Shared>,
        own: &Own,
        trial: &Trial,
    ) -> Result<Vec<(String, String)>> {
        let ground = Ground::stopped(shared, own.base())?;
        Ok(self.plan.experiment.settings(trial, &ground))
    }

    fn on_foreign(&self, ground: &Ground, trial: &Trial, line: &mut Line) -> Result<()> {
        let mut is_flushed = true;
        if self.plan.experiment.refusal(trial, ground).is_none() {
            self.plan.experiment.prepare(ground)?;
            // What was left to be written by the last trial, and by preparing this one, would be
            // written in the course of it.
            is_flushed = ground.checkpoint()?;
        }
        self.measure(ground, trial, line)?;
        if !is_flushed {
            line.outcome.notes.push(NOT_FLUSHED.to_owned());
        }
        Ok(())
    }

    /// Looks at everything, runs the trial, and looks again.
    fn measure(&self, ground: &Ground, trial: &Trial, line: &mut Line) -> Result<()> {
        ground.check()?;
        let connection = ground.connect()?;
        describe(ground, &connection, line)?;
        line.skipped = self.plan.experiment.refusal(trial, ground);
        if line.skipped.is_some() {
            return Ok(());
        }
        let tables = ground.block_on(tables(&connection))?;
        let before = ground.block_on(take(&connection, &tables))?;
        let probe = ground.probe();
        let (read, began) = (probe.read(), Instant::now());
        let mut outcome = self.plan.experiment.run(trial, ground)?;
        let took = began.elapsed().as_secs_f64();
        probe.read().add_since(&read, took, &mut outcome);
        ground.block_on(settled(&connection))?;
        let after = ground.block_on(take(&connection, &tables))?;
        let measured = after.since(&before);
        outcome.number("seconds", outcome.seconds(), Unit::Seconds);
        let bytes = measured.wal_bytes.map(|bytes| bytes as f64);
        outcome.number_if("WAL", bytes, Unit::Bytes);
        let checkpoints = &measured.checkpoints;
        let all = checkpoints.timed.zip(checkpoints.requested).map(|(a, b)| (a + b) as f64);
        outcome.number_if("checkpoints", all, Unit::Count);
        line.measured = known(serde_json::to_value(&measured))?;
        self.plan.experiment.verify(trial, ground, &mut outcome)?;
        line.agreed = ground.agreed_here();
        line.time = ground.block_on(facts::now(&connection))?;
        line.pictures = Some(outcome.pictures.iter().map(|it| it.name.clone()).collect());
        line.outcome = outcome;
        Ok(())
    }
}

/// Where a trial is made, and when.
fn describe(ground: &Ground, connection: &Connection, line: &mut Line) -> Result<()> {
    line.facts = Facts {
        machine: Machine::here(ground.data_folder()),
        is_local: ground.is_local(),
        settings: ground.block_on(facts::settings(connection))?,
    };
    line.time = ground.block_on(facts::now(connection))?;
    Ok(())
}

/// Remembers what tuning for a bulk load would set on this server.
async fn tune(shared: &Shared, connection: &Connection) -> Result<()> {
    let advice = tune::advise(connection, None, None).await?;
    let tuned = advice.proposals.into_iter().map(|it| (it.name.to_owned(), it.value));
    *shared.tuned.lock().expect("no panic while held") = tuned.collect();
    Ok(())
}

/// What the server told, without what its version does not count.
fn known(value: serde_json::Result<Value>) -> Result<Value> {
    fn strip(value: &mut Value) {
        if let Value::Object(fields) = value {
            fields.values_mut().for_each(strip);
            let is_empty = |it: &Value| it.is_null() || it.as_object().is_some_and(Map::is_empty);
            fields.retain(|_, value| !is_empty(value));
        }
    }
    let failed = |error| Error::new(Kind::Bug, "could not write a result").because(error);
    let mut value = value.map_err(failed)?;
    strip(&mut value);
    Ok(value)
}

/// Sessions hand over what they have counted when they end, which is a moment after we have left
/// them. Once they are gone from the list it is counted.
async fn settled(connection: &Connection) -> Result<()> {
    let sql = "select exists (select from pg_stat_activity where usename = current_user \
               and datname = current_database() and application_name like 'pgspate%' \
               and application_name <> 'pgspate lab keeper' and pid <> pg_backend_pid())";
    for _ in 0..SETTLED_LOOKS_MAX {
        let row = connection.client.query_one(sql, &[]).await;
        let row = row.map_err(|error| connection.explain("could not list sessions", error))?;
        if !row.get::<_, bool>(0) {
            break;
        }
        tokio::time::sleep(SETTLED_PAUSE).await;
    }
    Ok(())
}

async fn take(connection: &Connection, tables: &[u32]) -> Result<Measurement> {
    Ok(Measurement::take(&connection.client, tables).await)
}

async fn tables(connection: &Connection) -> Result<Vec<u32>> {
    let sql = "select c.oid from pg_class c join pg_namespace n on n.oid = relnamespace \
               where nspname = $1 and relkind in ('r', 'p', 'm')";
    let rows = connection.client.query(sql, &[&SCHEMA]).await;
    let rows = rows.map_err(|error| connection.explain("could not list the tables", error))?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

fn explained(error: Error, name: &str, trial: &Trial) -> Error {
    match error.kind() {
        Kind::Cancelled => error,
        kind => {
            let message = format!("could not make the trial \"{}\" of {name}", trial.label());
            Error::new(kind, message).because(error)
        }
    }
}
