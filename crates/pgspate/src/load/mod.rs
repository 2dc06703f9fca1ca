//! Files to table.
//!
//! [`prepare`] looks at the inputs and the table and makes the plan; [`Load::run`] carries it out
//! through [`copy`]. A load that fails leaves the table as it was.

mod after;
mod care;
mod create;
mod indexes;
mod patient;
mod reading;
mod record;
mod rejects;
mod replace;
mod report;
mod restore;
mod sample;
mod shadow;
mod staging;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tokio::runtime::Handle;
use tokio_postgres::error::SqlState;

pub use create::{NewTable, Widened};
pub use report::{PlanReport, Report};
pub use restore::restore;
pub use watch::Watch;

use crate::copy::{
    self, Commit, Connect, End, Job, LaneSession, Lanes, Limits, Outcome, Patience, RejectsMax,
};
use crate::format::Mode;
use crate::format::memory::Batches;
use crate::format::sniff::Overrides;
use crate::ledger::{self, Change, Found, Identity, Opened};
use crate::measure::wal_position;
use crate::plan::{Plan, Replace, Request, When, Wish};
use crate::source::{self, Input};
use crate::stage::Stage;
use crate::target::connect::{Connection, Dsn};
use crate::target::{Session, Table, Upkeep, server_error};
use crate::{Error, Kind, Result};
use reading::Reading;

/// What to load, and how to read it.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Paths, globs, folders, `-`, or URLs.
    pub sources: Vec<String>,
    /// Rows of the program itself, instead of sources.
    pub batches: Option<Arc<dyn Batches>>,
    /// A stream that the program writes, instead of sources.
    pub stream: Option<Input>,
    /// How they are found and read.
    pub source: source::Options,
    /// The table, as SQL writes it; by default named after the first source.
    pub table: Option<String>,
    /// What is said about format, delimiter, quotes, header and NULL.
    pub read: Overrides,
    /// Lines that begin with this byte are passed over.
    pub comment: Option<u8>,
    /// Empty lines are passed over.
    pub skip_blank_lines: bool,
    /// The input's encoding, as PostgreSQL names it; UTF8 by default.
    pub encoding: Option<String>,
    /// The columns for the fields, in order.
    pub columns: Option<Vec<String>>,
    /// Fields and keys that no column is named after are passed over.
    pub ignore_unknown: bool,
    /// Columns in which a quoted NULL string is NULL.
    pub force_null: Vec<String>,
    /// Columns in which an unquoted NULL string is itself.
    pub force_not_null: Vec<String>,
    /// So many lanes; chosen by measuring otherwise.
    pub lanes: Option<usize>,
    /// Make the table when it is missing.
    pub create: bool,
    /// When to commit; by the size of the input otherwise.
    pub commit: Option<Commit>,
    /// Keep no ledger: in one piece, not resumable, and as often as it is asked for.
    pub no_ledger: bool,
    /// Begin anew, whatever the ledger says of earlier runs.
    pub restart: bool,
    /// The file for rows that are refused; the load stops at the first one otherwise.
    pub rejects: Option<PathBuf>,
    /// How many rows may be set aside; any number otherwise.
    pub rejects_max: Option<RejectsMax>,
    /// How long to wait for what may never come.
    pub limits: Limits,
    /// The input's rows instead of those that the table has.
    pub replace: Option<Replace>,
    /// All rows become visible at once.
    pub atomic: bool,
    /// Whether to drop indexes and make them again.
    pub rebuild_indexes: When,
    /// Whether to switch autovacuum off for the table meanwhile.
    pub pause_autovacuum: When,
    /// Whether to run ANALYZE afterwards.
    pub analyze: When,
    /// Run VACUUM (FREEZE, ANALYZE) afterwards.
    pub vacuum: bool,
}

/// A load that is ready to run.
pub struct Load {
    options: Options,
    dsn: Dsn,
    runtime: Handle,
    connection: Arc<Connection>,
    reading: Reading,
    session: Session,
    table: Table,
    new_table: Option<NewTable>,
    /// The oid of the new table, once it is made.
    made: Option<u32>,
    request: Request,
    plan: Plan,
    /// What the ledger knows it by, if there is to be one.
    identity: Option<Identity>,
    found: Found,
    opened: Option<Opened>,
    /// What rows are staged in, if they are not for the table itself.
    stage: Option<Stage>,
    /// The connection was left because nothing came over it any more.
    is_silent: bool,
    /// What the table needs before and after.
    upkeep: Upkeep,
    /// What earlier loads have changed on the table and not put back.
    left: Vec<Change>,
    /// The ledger's owner, where this role does not run statements from that ledger.
    doubtful_owner: Option<String>,
    standing: care::Standing,
}

/// Looks at inputs and table, and plans. Changes nothing: a table that is to be made is made here
/// only to look at, and rolled back. Blocks; call it from a thread that is not one of `runtime`'s.
///
/// # Errors
/// Inputs that cannot be read or understood, a server that cannot be reached, a missing table, or
/// inputs that do not fit it.
pub fn prepare(options: Options, dsn: Dsn, runtime: &Handle) -> Result<Load> {
    let inputs = match (&options.batches, &options.stream) {
        (Some(own), _) => vec![Input::memory(own.name(), own.bytes(), own.is_stream())],
        (None, Some(stream)) => vec![stream.clone()],
        (None, None) => source::resolve(&options.sources, &options.source, runtime.clone())?,
    };
    let connection = runtime.block_on(dsn.connect("pgspate load"))?;
    let session = runtime.block_on(Session::read(&connection.client))?;
    let name = table_name(&options, &inputs);
    let table = runtime.block_on(Table::read(&connection.client, &name));
    let table = table.map_err(create::not_a_name)?;
    let known: Option<Vec<String>> = table
        .as_ref()
        .map(|table| table.columns.iter().map(|column| column.name.clone()).collect());
    let encoding = options.encoding.as_deref().or(dsn.client_encoding());
    let decode = |name: &[u8]| runtime.block_on(decode(&connection, encoding, name));
    let reading = Reading::of(inputs, known.as_deref(), &options, &decode)?;
    let (table, new_table) = match table {
        Some(table) => (table, None),
        None => {
            let name = runtime.block_on(create::parse_name(&connection, &name))?;
            let sql = create::sql(&name, &reading.inferred, options.create)?;
            let (table, new) = runtime.block_on(create::try_out(&connection, &name, &sql))?;
            (table, Some(new))
        }
    };
    let mut request = request(&options, &dsn, &reading, &connection);
    let existing = new_table.is_none().then_some(&table);
    request.wish = runtime.block_on(replace::wish(&options, &connection, existing))?;
    let mut plan = Plan::make(&table, &session, &reading.facts(), &request)?;
    plan.lanes = runtime.block_on(limit_lanes(&connection, plan.lanes))?;
    let identity = record::identity(&reading, &plan, &session, &table)?;
    let found = match &identity {
        Some(identity) => {
            runtime.block_on(ledger::find(&connection.client, identity, options.restart))?
        }
        None => Found::Nothing,
    };
    let upkeep = match new_table {
        Some(_) => Upkeep { is_owner: true, may_create: true, ..Upkeep::default() },
        None => runtime.block_on(Upkeep::read(&connection.client, &table))?,
    };
    let doubtful_owner = runtime.block_on(ledger::doubtful_owner(&connection.client))?;
    let left = match plan.ledger {
        true => runtime.block_on(ledger::outstanding_on(&connection.client, table.oid))?,
        false => Vec::new(),
    };
    let (connection, runtime) = (Arc::new(connection), runtime.clone());
    let mut load = Load {
        options,
        dsn,
        runtime,
        connection,
        reading,
        session,
        table,
        new_table,
        made: None,
        request,
        plan,
        identity,
        found,
        opened: None,
        stage: None,
        is_silent: false,
        upkeep,
        left,
        doubtful_owner,
        standing: care::Standing::default(),
    };
    load.plan.take_care(load.plan_care()?);
    Ok(load)
}

/// Looks at inputs and table, and plans to stage rows for the table rather than to write them.
pub(crate) fn prepare_stage(options: Options, dsn: Dsn, runtime: &Handle) -> Result<Load> {
    let options = Options { lanes: Some(1), no_ledger: true, create: false, ..options };
    let mut load = prepare(options, dsn, runtime).map_err(|error| {
        let is_missing = error.sqlstate() == Some(&SqlState::UNDEFINED_TABLE);
        let hint = "Make the table first; `pgspate load --create` does, with the types that the \
                    source needs.";
        if is_missing { error.hint(hint) } else { error }
    })?;
    // What makes writing to the table slow or special does not count for the stage.
    let bare = Table {
        kind: 'r',
        triggers: Vec::new(),
        foreign_keys: Vec::new(),
        self_references: Vec::new(),
        indexes: Vec::new(),
        partitions: 0,
        row_security: false,
        ..load.table.clone()
    };
    load.plan = Plan::make(&bare, &load.session, &load.reading.facts(), &load.request)?;
    let columns = load.plan.columns.iter().map(|column| column.name.as_str());
    load.stage = Some(Stage::of(&load.table, columns));
    Ok(load)
}

impl Load {
    /// What it will do.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The same, to be written as JSON.
    pub fn plan_report(&self) -> PlanReport {
        PlanReport::new(self)
    }

    /// What was found out about the input, in words.
    pub fn evidence(&self) -> &[String] {
        &self.reading.sniffed.evidence
    }

    /// The table that it makes first, if there is none yet.
    pub fn new_table(&self) -> Option<&NewTable> {
        self.new_table.as_ref()
    }

    /// Loads. Blocks until everything is committed or rolled back.
    ///
    /// # Errors
    /// The first refusal in the order of the input, under a message that names input and table.
    pub fn run(mut self, watch: &Arc<Watch>) -> Result<Report> {
        let started = Instant::now();
        if let Found::Finished(_) = self.found {
            let outcome = Outcome::default();
            return Ok(Report::new(&self, outcome, watch, Vec::new(), 0.0, None));
        }
        let wal_before = self.runtime.block_on(wal_position(&self.connection.client));
        let mut widened = Vec::new();
        let outcome = match self.carry_out(watch, &mut widened) {
            Ok(outcome) => outcome,
            Err(error) => return Err(self.failed(error, watch)),
        };
        let seconds = started.elapsed().as_secs_f64();
        let wal_after = self.runtime.block_on(wal_position(&self.connection.client));
        let wal_bytes = wal_after.zip(wal_before).and_then(|(now, then)| now.checked_sub(then));
        Ok(Report::new(&self, outcome, watch, widened, seconds, wal_bytes))
    }

    fn carry_out(&mut self, watch: &Arc<Watch>, widened: &mut Vec<Widened>) -> Result<Outcome> {
        match &self.new_table {
            Some(new) => {
                self.made = Some(self.runtime.block_on(create::create(&self.connection, new))?);
            }
            None => self.try_out()?,
        }
        self.open_job(watch)?;
        if let (Some(path), Some(opened)) = (&self.options.rejects, &self.opened) {
            rejects::check(path, opened.job.0, &self.reading.names())?;
        }
        self.prepare_table(watch)?;
        self.prepare_shadow()?;
        let outcome = self.load_with_care(watch, widened)?;
        self.again(watch, |load| load.write_rejects())?;
        self.complete_shadow(outcome.chunks, watch)?;
        self.care_after(&outcome, watch)?;
        self.finish_job(outcome.chunks, watch)?;
        Ok(outcome)
    }

    /// Starts over while that promises to help.
    fn attempts(
        &mut self,
        watch: &Arc<Watch>,
        widened: &mut Vec<Widened>,
    ) -> Result<(Outcome, Vec<LaneSession>)> {
        let mut patience = Patience::new(self.options.limits.retry_for);
        loop {
            watch.start_over(self.reading.stored_bytes());
            let began = Instant::now();
            let attempt = self.attempt(watch);
            if began.elapsed() > self.options.limits.retry_for {
                // The server was there for long enough to be waited for anew.
                patience.renew();
            }
            match attempt {
                Ok(End::Done(outcome, sessions)) => return Ok((outcome, sessions)),
                Ok(End::LanesConflict) if self.reading.is_stream() => {
                    return Err(Error::new(Kind::Server, "two rows have the same unique key")
                        .hint("Load with `--lanes 1` to be told which."));
                }
                Ok(End::LanesConflict) => {
                    self.plan.lanes = Lanes::Fixed(1);
                    "two lanes met the same unique key".clone_into(&mut self.plan.lanes_reason);
                }
                Ok(End::Interrupted(error)) => self.wait(error, &mut patience, watch)?,
                Err(error) if self.add_key(&error)? => {}
                Err(error) => match self.widen(&error)? {
                    Some(step) => widened.push(step),
                    None => return Err(error),
                },
            }
        }
    }

    /// Waits until the server may be back, and reads what is written by then.
    fn wait(&mut self, interrupted: Error, patience: &mut Patience, watch: &Watch) -> Result<()> {
        while patience.wait(|| watch.copy.is_cancelled()) {
            match self.reopen_job() {
                Ok(()) => return Ok(()),
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(error),
            }
        }
        Err(interrupted)
    }

    fn attempt(&self, watch: &Arc<Watch>) -> Result<End> {
        let job = self.job()?;
        let cutter = self.reading.cutter(&self.plan, watch);
        copy::run(&job, cutter, &watch.copy, &self.runtime)
    }

    fn job(&self) -> Result<Job> {
        let dsn = Arc::new(self.dsn.clone());
        let name: Arc<str> = format!("pgspate load {}", self.table.name).into();
        let stage = self.stage.clone().map(Arc::new);
        let connect: Connect = Arc::new(move || {
            let (dsn, name, stage) = (Arc::clone(&dsn), Arc::clone(&name), stage.clone());
            Box::pin(async move {
                let connection = dsn.connect(&name).await?;
                if let Some(stage) = stage {
                    stage.make(&connection.client).await?;
                }
                Ok(connection)
            })
        });
        let server_version = self.session.server_version;
        let ignore_unknown = self.options.ignore_unknown;
        Ok(Job {
            connect,
            control: Arc::clone(&self.connection),
            encoder: self.winnowed(self.reading.encoder(
                &self.plan,
                &self.table,
                server_version,
                ignore_unknown,
            )?),
            binary_sql: self.plan.copy_sql(Mode::Binary, &self.destination()),
            text_sql: self.plan.copy_sql(Mode::Text, &self.destination()),
            mode: self.plan.mode,
            one_statement: self.plan.one_statement,
            lanes: self.plan.lanes,
            table_name: self.table.name.clone(),
            columns: self.plan.columns.iter().map(|column| column.name.clone()).collect(),
            input_names: self.reading.names(),
            may_drop_rows: self.plan.may_drop_rows,
            is_stream: self.reading.is_stream(),
            commit: self.plan.commit,
            ledger: self.opened.as_ref().map(|opened| opened.job),
            done: self.opened.as_ref().map(|opened| opened.done.clone()).unwrap_or_default(),
            rejects: self
                .options
                .rejects
                .as_ref()
                .map(|_| self.options.rejects_max.unwrap_or(RejectsMax::Any)),
            limits: self.options.limits,
            around: self.around()?.or_else(|| self.around_staging()),
            afterwards: self.after_staging(),
            shares: self.stage.as_ref().map(|stage| stage.shares.clone()).unwrap_or_default(),
        })
    }

    /// After a refusal in a table of our own making: a wider type for the column, if that would
    /// help and the input can be read again.
    fn widen(&mut self, error: &Error) -> Result<Option<Widened>> {
        let Some(new) = &self.new_table else { return Ok(None) };
        if self.reading.is_stream() {
            return Ok(None);
        }
        let widen = create::widen(&self.connection, new, &self.table, error);
        let Some(widened) = self.runtime.block_on(widen)? else { return Ok(None) };
        let table = Table::read(&self.connection.client, &self.table.sql_name);
        if let Some(table) = self.runtime.block_on(table)? {
            self.table = table;
        }
        self.plan_anew()?;
        Ok(Some(widened))
    }

    /// After a key of JSON that names a column but is not in the sample: plans with it, if the
    /// input can be read again.
    fn add_key(&mut self, error: &Error) -> Result<bool> {
        let key = error.place().and_then(|place| place.column.as_deref());
        let (Some(key), Kind::Plan, false) = (key, error.kind(), self.reading.is_stream()) else {
            return Ok(false);
        };
        if !self.reading.add_key(key) {
            return Ok(false);
        }
        let place = error.place().cloned().unwrap_or_default();
        self.plan_anew().map_err(|refused| refused.at(place))?;
        Ok(true)
    }

    fn plan_anew(&mut self) -> Result<()> {
        let lanes = (self.plan.lanes, self.plan.lanes_reason.clone());
        let care = std::mem::take(&mut self.plan.care);
        let facts = self.reading.facts();
        self.plan = Plan::make(&self.table, &self.session, &facts, &self.request)?;
        (self.plan.lanes, self.plan.lanes_reason) = lanes;
        self.plan.take_care(care);
        Ok(())
    }

    /// The load's error, after the table that was made for it is gone again.
    fn failed(&mut self, error: Error, watch: &Watch) -> Error {
        let names = self.reading.names();
        let from = match names.as_slice() {
            [only] => format!("\"{only}\""),
            [first, rest @ ..] => format!("\"{first}\" and {} more", rest.len()),
            [] => "nothing".to_owned(),
        };
        let message = match self.stage {
            None => format!("could not load {from} into {}", self.plan.table),
            Some(_) => format!("could not sync {} with {from}", self.plan.table),
        };
        let kind = error.kind();
        let mut error = error;
        if self.plan.encoding.is_none() {
            error = hint_encoding(error);
        }
        if self.new_table.is_some() && self.reading.is_stream() {
            error = create::hint_wider(error, &self.table);
        }
        let error = Error::new(kind, message).because(error);
        let (error, is_back) = self.put_back(error, watch);
        if self.standing.is_finishing {
            return error;
        }
        let kept = self.kept().unwrap_or_default();
        if kept.rows_written + kept.rows_rejected == 0 || !self.keeps_shadow(&error) {
            if is_back {
                self.forget_job();
            }
            return self.undo_create(error);
        }
        let set_aside = match self.write_rejects() {
            Ok(0) | Err(_) => String::new(),
            Ok(rows) => format!(", {rows} set aside"),
        };
        let rows = kept.rows_written;
        let are = if rows == 1 { "row is" } else { "rows are" };
        let how = match error.place() {
            _ if self.reading.is_stream() => "the rest cannot be read again",
            Some(_) if self.options.rejects.is_none() && !self.plan.one_statement => {
                "with `--rejects FILE` the load sets such rows aside and goes on from there"
            }
            Some(_) => "the load goes on from there once nothing stands in its way",
            None => "the same command, run again, loads the rest",
        };
        let go_on = format!("{rows} {are} in {}{set_aside}; {how}.", self.where_kept());
        match error.hint_text().map(|hint| format!("{hint} {go_on}")) {
            Some(hint) => error.hint(hint),
            None => error.hint(go_on),
        }
    }

    fn undo_create(&self, error: Error) -> Error {
        let (Some(new), Some(oid)) = (&self.new_table, self.made) else { return error };
        let Err(undo) = self.runtime.block_on(create::drop(&self.connection, new, oid)) else {
            return error;
        };
        let why = std::error::Error::source(&undo).map_or(undo.to_string(), ToString::to_string);
        let left = format!("Table {} was made for this load and is still there: {why}.", new.table);
        let hint = match error.hint_text() {
            Some(hint) => format!("{hint} {left}"),
            None => left,
        };
        error.hint(hint)
    }
}

/// What plans depend on besides facts. PGCLIENTENCODING tells of text that names no other encoding.
fn request(options: &Options, dsn: &Dsn, reading: &Reading, connection: &Connection) -> Request {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let of_session = dsn.client_encoding().filter(|_| reading.facts().is_delimited);
    Request {
        encoding: options.encoding.clone().or(of_session.map(str::to_owned)),
        columns: options.columns.clone(),
        ignore_unknown: options.ignore_unknown,
        lanes: options.lanes,
        commit: options.commit,
        ledger: !options.no_ledger,
        rejects: options.rejects.is_some(),
        wish: Wish::default(),
        shared_cores: connection.is_local().then(cores),
        force_null: options.force_null.clone(),
        force_not_null: options.force_not_null.clone(),
        rebuild_indexes: options.rebuild_indexes,
        pause_autovacuum: options.pause_autovacuum,
        analyze: options.analyze,
        vacuum: options.vacuum,
    }
}

/// A name in the input's encoding, as text.
async fn decode(connection: &Connection, encoding: Option<&str>, name: &[u8]) -> Result<String> {
    let Some(encoding) = encoding.filter(|_| !name.is_ascii()) else {
        return Ok(String::from_utf8_lossy(name).into_owned());
    };
    let sql = "select convert_from($1, $2)";
    let what = "could not read the names in the header";
    let row = connection.client.query_one(sql, &[&name, &encoding]).await;
    Ok(row.map_err(server_error(what.to_owned()))?.get(0))
}

/// For bytes that are no UTF-8: names the flag. No encoding has zero bytes.
fn hint_encoding(error: Error) -> Error {
    let is_encoding = error.sqlstate() == Some(&SqlState::CHARACTER_NOT_IN_REPERTOIRE);
    if !is_encoding || error.to_string().contains("0x00") {
        return error;
    }
    error.hint("Name the encoding of the input with `--encoding`, LATIN1 for example.")
}

fn table_name(options: &Options, inputs: &[Input]) -> String {
    let derived = || {
        let first = inputs.first().map_or("data", Input::name);
        crate::target::quote_ident(&crate::format::infer::table_name(first)).into_owned()
    };
    options.table.clone().unwrap_or_else(derived)
}

/// Connections that the server has left, of which some stay free for others.
const FREE: &str = "\
select current_setting('max_connections')::int8 - count(*)
       - current_setting('superuser_reserved_connections')::int8
from pg_stat_activity where backend_type = 'client backend'";

async fn limit_lanes(connection: &Connection, lanes: Lanes) -> Result<Lanes> {
    let failed = server_error("could not count the server's connections".to_owned());
    let row = connection.client.query_one(FREE, &[]).await.map_err(failed)?;
    let most = usize::try_from(row.get::<_, i64>(0) / 2).unwrap_or(0).max(1);
    Ok(match lanes {
        Lanes::Auto(first, last) => Lanes::Auto(first.min(most), last.min(most)),
        fixed => fixed,
    })
}
