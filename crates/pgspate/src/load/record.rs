//! A load's side of the ledger: what it is known by, and where it stands.

use std::sync::Arc;

use serde_json::Value;
use tokio_postgres::Client;

use super::contents::is_of_job;
use super::reading::Reading;
use super::{Load, Watch, create};
use crate::copy::Outcome;
use crate::ledger::{self, Begun, Found, Identity, SourcePrint};
use crate::plan::{Method, Plan};
use crate::session::Patience;
use crate::target::{Session, Table, Unlogged, server_error};
use crate::{Error, Kind, Result};

/// What the load is known by, if its plan keeps a ledger. Blocks.
pub(super) fn identity(
    reading: &Reading,
    plan: &Plan,
    session: &Session,
    table: &Table,
) -> Result<Option<Identity>> {
    if !plan.ledger {
        return Ok(None);
    }
    let mut sources = Vec::with_capacity(reading.inputs.len());
    for input in reading.inputs.iter() {
        match SourcePrint::of(input)? {
            Some(print) => sources.push(print),
            None => sources.push(SourcePrint::of_stream(input)),
        }
    }
    let mut options = reading.identity();
    let columns = plan.columns.iter().map(|column| {
        let forced = match (column.force_null, column.force_not_null) {
            (false, false) => "",
            (true, false) => " force-null",
            (false, true) => " force-not-null",
            (true, true) => " force-null force-not-null",
        };
        Value::from(format!("{} from {}{forced}", column.name, column.field + 1))
    });
    options.insert("columns".to_owned(), columns.collect());
    options.insert("encoding".to_owned(), plan.encoding.as_deref().unwrap_or("UTF8").into());
    options.insert("chunk bytes".to_owned(), plan.chunk_bytes.into());
    options.insert("DateStyle".to_owned(), session.date_style.as_str().into());
    options.insert("TimeZone".to_owned(), session.time_zone.as_str().into());
    options.insert("IntervalStyle".to_owned(), session.interval_style.as_str().into());
    let at_once = plan.at_once.as_ref();
    let command = match at_once.map(|at_once| at_once.replaces) {
        Some(true) => "load --replace",
        Some(false) => "load --atomic",
        None => "load",
    };
    let is_plain = matches!(table.kind, 'r' | 'p');
    let keeps_rows = is_plain && !table.triggers.iter().any(|trigger| trigger.for_each_row);
    Ok(Some(Identity {
        command,
        table: plan.table.clone(),
        table_oid: table.oid,
        keeps_rows,
        sources,
        options,
        in_shadow: at_once.is_some_and(|at_once| at_once.method == Method::Swap),
        // What triggers have put elsewhere stays.
        unlogged: match table.unlogged {
            Unlogged::Wholly if !keeps_rows => Unlogged::Partly,
            unlogged => unlogged,
        },
    }))
}

/// Where the job stands, in words; `None` for one that begins.
pub(super) fn standing(found: &Found) -> Option<String> {
    match found {
        Found::Nothing | Found::Alike(_) => None,
        Found::Unfinished(_, 0, _) => None,
        Found::Unfinished(record, chunks, rows) => Some(format!(
            "going on with job {} of {}: {rows} rows in {chunks} chunks are written",
            record.job, record.started
        )),
        Found::Finished(record) => {
            let set_aside = match record.rows_rejected {
                0 => String::new(),
                rows => format!(", {rows} set aside"),
            };
            Some(format!(
                "job {} has loaded this, {} rows{set_aside}, at {}; `--restart` loads it again",
                record.job,
                record.rows_written,
                record.finished.as_deref().unwrap_or_default()
            ))
        }
    }
}

impl Load {
    /// Where the load stands, in words, if an earlier run has written something of it.
    pub fn standing(&self) -> Option<String> {
        let left: Vec<_> = self.known.left.iter().map(ledger::Change::name).collect();
        let back = (!left.is_empty())
            .then(|| format!("an earlier load has left this to be put back: {}", left.join(", ")));
        let all = [standing(&self.known.found), back].into_iter().flatten().collect::<Vec<_>>();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Reads sources that cannot prove that they are what an earlier run has read of them.
    pub(super) fn recognise(&mut self) -> Result<()> {
        let Some(identity) = &self.identity else { return Ok(()) };
        match &self.known.found {
            Found::Alike(record) => {
                self.known.found = match is_of_job(&self.reading, &self.plan, identity, record)? {
                    true => Found::Finished(record.clone()),
                    false => {
                        identity.check_new(record)?;
                        self.known.others.push(record.job);
                        Found::Nothing
                    }
                };
            }
            Found::Unfinished(record, _, rows) => {
                let Some(done) = &record.in_doubt else { return Ok(()) };
                if !self.reading.holds(&self.plan, done)? {
                    return Err(identity.refuse_changed(record, *rows));
                }
            }
            Found::Nothing | Found::Finished(_) => {}
        }
        Ok(())
    }

    /// Whether the ledger says that all of it is loaded: then it does nothing.
    pub fn is_loaded(&self) -> bool {
        matches!(self.known.found, Found::Finished(_))
    }

    /// The job, and the rows that earlier runs of it have written.
    pub(super) fn before(&self) -> (Option<i64>, u64) {
        match (&self.known.found, &self.opened) {
            (Found::Finished(record), _) => (Some(record.job), record.rows_written.unsigned_abs()),
            // What was known before may have been another run's since.
            (_, Some(opened)) => (Some(opened.job.0), self.at_first.rows_written),
            (_, None) => (None, 0),
        }
    }

    /// Rows that were set aside by a job that is finished, and is not gone on with.
    pub(super) fn rejected_before(&self) -> u64 {
        match &self.known.found {
            Found::Finished(record) => record.rows_rejected.unsigned_abs(),
            _ => 0,
        }
    }

    /// Makes the new table and opens the load's job in one transaction: a run that is killed leaves
    /// both, so that the next one knows whose table it is, or none.
    pub(super) fn make_table(&mut self) -> Result<()> {
        self.reconnect()?;
        let (connection, runtime) = (Arc::clone(&self.connection), self.runtime.clone());
        let Some(new) = self.new_table.clone() else { return Ok(()) };
        let Some(mut identity) = self.identity.clone() else {
            self.made = Some(runtime.block_on(create::create(&connection, &new))?);
            return Ok(());
        };
        let (known, restart) = (self.known.clone(), self.options.restart);
        let failed = || server_error(format!("could not create table {}", new.table));
        let made = self.ask(async |client: &Client| {
            ledger::ensure(client).await?;
            let begin = "begin isolation level read committed";
            client.batch_execute(begin).await.map_err(failed())?;
            let oid = create::create(&connection, &new).await?;
            identity.table_oid = oid;
            let Begun::Opened(opened) =
                ledger::open(client, &identity, &known, restart, true).await?
            else {
                return Err(Error::new(Kind::Bug, "a new table cannot be loaded already"));
            };
            client.batch_execute("commit").await.map_err(failed())?;
            Ok((oid, opened))
        });
        match made {
            Ok((oid, opened)) => {
                if let Some(identity) = &mut self.identity {
                    identity.table_oid = oid;
                }
                self.at_first = opened.done.sums();
                (self.made, self.opened) = (Some(oid), Some(opened));
                Ok(())
            }
            Err(error) => {
                // The error that is told is the one before.
                let _ = self.ask(async |client: &Client| {
                    client.batch_execute("rollback").await.map_err(failed())
                });
                Err(error)
            }
        }
    }

    /// Takes the table for its own that an earlier run has made, which was stopped: its columns
    /// may become wider still, and it goes if the load fails and has left nothing in it.
    pub(super) fn adopt_table(&mut self) -> Result<()> {
        let table = self.table.sql_name.clone();
        let sql = create::sql(&table, &self.reading.inferred, true)?;
        self.new_table = Some(create::NewTable { table, sql });
        self.made = Some(self.table.oid);
        Ok(())
    }

    /// Finds out what the load is known by where that takes a key of the ledger, which is made for
    /// that if need be.
    pub(super) fn settle_identity(&mut self, watch: &Watch) -> Result<()> {
        if self.identity.as_ref().is_none_or(Identity::is_settled) {
            return Ok(());
        }
        let secret = self.again(watch, |load| {
            load.reconnect()?;
            load.ask(async |client: &Client| {
                ledger::ensure(client).await?;
                ledger::secret(client).await
            })
        })?;
        if let Some(identity) = &mut self.identity {
            identity.settle(&secret);
        }
        Ok(())
    }

    /// Opens the load's job, if it keeps a ledger. False when another run has done it meanwhile.
    pub(super) fn open_job(&mut self, watch: &Watch) -> Result<bool> {
        let Some(identity) = &mut self.identity else { return Ok(true) };
        identity.table_oid = self.made.unwrap_or(self.table.oid);
        let identity = identity.clone();
        let (made, restart) = (self.made.is_some(), self.options.restart);
        let known = self.known.clone();
        let begun = self.persist(watch, async |client: &Client| {
            ledger::open(client, &identity, &known, restart, made).await
        })?;
        match begun {
            Begun::Finished(record) => {
                self.known.found = Found::Finished(record);
                Ok(false)
            }
            Begun::Opened(opened) => {
                self.at_first = opened.done.sums();
                self.opened = Some(opened);
                Ok(true)
            }
        }
    }

    /// Connects anew where the connection was lost meanwhile, and reads what is written by now.
    pub(super) fn reopen_job(&mut self) -> Result<()> {
        self.reconnect()?;
        let (Some(opened), Some(identity)) = (&self.opened, &self.identity) else { return Ok(()) };
        let (job, is_bound, identity) = (opened.job, opened.is_bound, identity.clone());
        let (is_emptied, done) = self.ask(async |client: &Client| {
            let is_emptied = is_bound && ledger::begin_over(client, job, &identity).await?;
            Ok((is_emptied, ledger::reread_done(client, job).await?))
        })?;
        if is_emptied {
            self.at_first = ledger::Seal::default();
            let table = &self.plan.table;
            self.standing.done.warnings.push(format!(
                "the server crashed and emptied {table}, which is unlogged: its rows of this load \
                 were loaded again"
            ));
        }
        if let Some(opened) = &mut self.opened {
            opened.done = done;
        }
        Ok(())
    }

    pub(super) fn reconnect(&mut self) -> Result<()> {
        if !self.connection.is_closed() {
            return Ok(());
        }
        let connection = self.runtime.block_on(self.dsn.connect("pgspate load"))?;
        self.was_away = true;
        let before = self.connection.backend_pid();
        self.connection = connection.into();
        // It may hold the job, or a table that it has made and not committed.
        self.runtime.block_on(self.connection.end_lost_backend(before));
        let identity = self.identity.as_ref().filter(|identity| identity.is_settled());
        let Some(key) = identity.map(Identity::lock_key) else { return Ok(()) };
        self.ask(async |client: &Client| {
            ledger::hold(client, key).await?;
            ledger::outlast_lanes(client, key).await
        })
    }

    /// Asks the server over the load's own connection.
    pub(super) fn ask<T>(&mut self, question: impl AsyncFnOnce(&Client) -> Result<T>) -> Result<T> {
        self.runtime.block_on(question(&self.connection.client))
    }

    /// The same, and again while the server is away, as long as lanes would try.
    fn persist<T>(
        &mut self,
        watch: &Watch,
        question: impl AsyncFn(&Client) -> Result<T>,
    ) -> Result<T> {
        self.again(watch, |load| load.ask(&question))
    }

    /// Does something, again while the server is away, as long as lanes would try.
    pub(super) fn again<T>(
        &mut self,
        watch: &Watch,
        mut work: impl FnMut(&mut Load) -> Result<T>,
    ) -> Result<T> {
        let mut patience = Patience::new(self.options.limits.retry_for);
        loop {
            match work(self) {
                Err(error) if error.is_retryable() => self.wait(error, &mut patience, watch)?,
                result => return result,
            }
        }
    }

    /// Says in the ledger that everything is written. False when a crash of the server has taken
    /// some of it: then it is to be loaded again.
    pub(super) fn finish_job(&mut self, outcome: &mut Outcome, watch: &Watch) -> Result<bool> {
        let Some(opened) = &self.opened else { return self.check_alive().map(|()| true) };
        let (job, is_bound, chunks) = (opened.job, opened.is_bound, outcome.chunks);
        let Some(identity) = self.identity.clone() else { return Ok(true) };
        let sums = self.persist(watch, async |client: &Client| {
            ledger::finish(client, job, chunks, &identity, is_bound).await
        })?;
        if let Some(sums) = sums {
            self.reconcile(&sums)?;
            // Also what was written before the server was away.
            let before = &self.at_first;
            outcome.rows_in = sums.rows_in - before.rows_in.min(sums.rows_in);
            outcome.rows_written = sums.rows_written - before.rows_written.min(sums.rows_written);
            outcome.rows_rejected =
                sums.rows_rejected - before.rows_rejected.min(sums.rows_rejected);
            return Ok(true);
        }
        self.again(watch, Load::reopen_job)?;
        match self.lacks(chunks)? {
            true => Ok(false),
            false => Err(ledger::lacks_chunks(job, chunks)),
        }
    }

    /// Whether a crash of the server has taken some of the chunks, which can be loaded again.
    ///
    /// # Errors
    /// When they cannot: the input is gone, or where they were to go.
    pub(super) fn lacks(&self, chunks: u64) -> Result<bool> {
        let Some(opened) = &self.opened else { return Ok(false) };
        let kept = opened.done.chunks();
        if kept >= chunks || !self.was_away {
            return Ok(false);
        }
        let lost = chunks - kept;
        let s = if lost == 1 { "" } else { "s" };
        let message = format!("the server has lost {lost} of {chunks} chunk{s} in a crash");
        let lost = Error::new(Kind::Server, message);
        if self.reading.is_stream() {
            return Err(lost.hint(
                "Their commits had not reached the disk, or their table is unlogged. They cannot \
                 be read again: load them from a file.",
            ));
        }
        match self.is_swap() && self.standing.is_exchanged {
            true => Err(lost.hint("The same command, run again, loads all of it.")),
            false => Ok(true),
        }
    }

    /// Without a ledger: that no crash can have emptied an unlogged table since its rows were
    /// committed, as a session from before that is alive.
    fn check_alive(&self) -> Result<()> {
        if self.table.unlogged == Unlogged::No {
            return Ok(());
        }
        let asked = self.runtime.block_on(self.connection.client.simple_query("select 1"));
        match asked {
            Ok(_) if !self.was_away => Ok(()),
            _ => {
                let table = &self.plan.table;
                let message = format!(
                    "the server was away when the rows were committed, and a crash empties \
                     {table}, which is unlogged"
                );
                Err(Error::new(Kind::Connect, message).hint(format!(
                    "Look whether the rows are there: `select count(*) from {table}`."
                )))
            }
        }
    }

    pub(super) fn reconcile(&self, sums: &ledger::Seal) -> Result<()> {
        let (rows_in, out) = (sums.rows_in, sums.rows_written + sums.rows_rejected);
        if rows_in == out || (self.plan.may_drop_rows && out < rows_in) {
            return Ok(());
        }
        let message = format!(
            "read {rows_in} rows, but {} are written and {} set aside",
            sums.rows_written, sums.rows_rejected
        );
        Err(Error::new(Kind::Bug, message))
    }

    /// What of the job is in the table and the ledger now; `None` where nothing can tell. Then
    /// nothing may be forgotten either.
    pub(super) fn kept(&mut self) -> Option<ledger::Seal> {
        if self.reopen_job().is_err() {
            self.opened = None;
        }
        Some(self.opened.as_ref()?.done.sums())
    }

    /// Forgets a job that has left nothing behind. What an earlier run has changed on the table
    /// and this one has not put back, for the end of its error.
    pub(super) fn forget_job(&mut self) -> Option<String> {
        let job = self.opened.take()?.job;
        // It would be forgotten when the load is run again, too.
        let forgot = self.ask(async |client: &Client| ledger::forget_unused(client, job).await);
        let left = forgot.unwrap_or_default();
        let names: Vec<_> = left.iter().map(ledger::Change::name).collect();
        (!left.is_empty()).then(|| {
            format!(
                "An earlier load has dropped or changed this, and it is not back: {}. `pgspate \
                 status --restore {}` puts it back, and so does the next load into the table.",
                names.join(", "),
                job.0
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pgspate_embedded::testing;

    use crate::load::{Options, Watch, prepare};
    use crate::target::connect::{Dsn, Environment};

    #[test]
    fn what_another_run_has_written_since_it_was_looked_at_is_counted() {
        let db = testing::database();
        db.run("create table t (id int)");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("t.csv");
        std::fs::write(&file, "id\n1\n2\n").unwrap();
        let env = Environment { user: Some("tester".to_owned()), ..Environment::default() };
        let dsn = Dsn::resolve(Some(&db.dsn()), &env).unwrap().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let load = || {
            let sources = vec![file.display().to_string()];
            let options = Options { sources, table: Some("t".to_owned()), ..Options::default() };
            prepare(options, dsn.clone(), runtime.handle()).unwrap()
        };
        let first = load();
        load().run(&Arc::new(Watch::default())).unwrap();
        // It has died before it could say so.
        db.run("update pgspate.job set finished = null");
        let report = first.run(&Arc::new(Watch::default())).unwrap();
        assert_eq!((report.rows_written, report.rows_before), (0, 2));
    }
}
