//! A load's side of the ledger: what it is known by, and where it stands.

use serde_json::Value;
use tokio_postgres::Client;

use super::{Load, LoadWatch, create};
use crate::copy::CopyOutcome;
use crate::job::{JobSession, RetryWhileAway};
use crate::plan::{AtomicMethod, LoadPlan};
use crate::reading::SniffedInputs;
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::{self, Begun, Found, Identity, SourcePrint};
use pgspate_target::{Session, Table, Unlogged, server_error};

/// What the load is known by, if its plan keeps a ledger. Blocks.
pub(super) fn identity(
    reading: &SniffedInputs,
    plan: &LoadPlan,
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
    let columns = plan.rows.columns.iter().map(|column| {
        let forced = match (column.force_null, column.force_not_null) {
            (false, false) => "",
            (true, false) => " force-null",
            (false, true) => " force-not-null",
            (true, true) => " force-null force-not-null",
        };
        Value::from(format!("{} from {}{forced}", column.name, column.field + 1))
    });
    options.insert("columns".to_owned(), columns.collect());
    options.insert("encoding".to_owned(), plan.rows.encoding.as_deref().unwrap_or("UTF8").into());
    options.insert("chunk bytes".to_owned(), plan.rows.chunk_bytes.into());
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
        in_shadow: at_once.is_some_and(|at_once| at_once.method == AtomicMethod::Swap),
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
        let left: Vec<_> = self.job.known.left.iter().map(ledger::Change::name).collect();
        let back = (!left.is_empty())
            .then(|| format!("an earlier load has left this to be put back: {}", left.join(", ")));
        let all = [standing(&self.job.known.found), back].into_iter().flatten().collect::<Vec<_>>();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Reads sources that cannot prove that they are what an earlier run has read of them.
    pub(super) fn recognise(&mut self) -> Result<()> {
        let Some(identity) = &self.job.identity else { return Ok(()) };
        match &self.job.known.found {
            Found::Alike(record) => {
                self.job.known.found = match record
                    .has_read(identity, &self.reading.read_contents(&self.plan.rows)?)
                {
                    true => Found::Finished(record.clone()),
                    false => {
                        identity.check_new(record)?;
                        self.job.known.others.push(record.job);
                        Found::Nothing
                    }
                };
            }
            Found::Unfinished(record, _, rows) => {
                let Some(done) = &record.in_doubt else { return Ok(()) };
                if !self.reading.holds(&self.plan.rows, done)? {
                    return Err(identity.refuse_changed(record, *rows));
                }
            }
            Found::Nothing | Found::Finished(_) => {}
        }
        Ok(())
    }

    /// Whether the ledger says that all of it is loaded: then it does nothing.
    pub fn is_loaded(&self) -> bool {
        matches!(self.job.known.found, Found::Finished(_))
    }

    /// Makes the new table and opens the load's job in one transaction: a run that is killed leaves
    /// both, so that the next one knows whose table it is, or none.
    pub(super) fn make_table(&mut self) -> Result<()> {
        self.job.reconnect()?;
        let connection = self.job.connection();
        let Some(new) = &self.new_table else { return Ok(()) };
        let Some(mut identity) = self.job.identity.clone() else {
            self.made = Some(self.job.own.runtime.block_on(create::create(connection, new))?);
            return Ok(());
        };
        let (known, restart) = (&self.job.known, self.options.restart);
        let failed = || server_error(format!("could not create table {}", new.table));
        let made = self.job.ask(async |client: &Client| {
            ledger::ensure(client).await?;
            let begin = "begin isolation level read committed";
            client.batch_execute(begin).await.map_err(failed())?;
            let oid = create::create(connection, new).await?;
            identity.table_oid = oid;
            let Begun::Opened(opened) =
                ledger::open(client, &identity, known, restart, true).await?
            else {
                return Err(Error::new(ErrorKind::Bug, "a new table cannot be loaded already"));
            };
            client.batch_execute("commit").await.map_err(failed())?;
            Ok((oid, opened))
        });
        match made {
            Ok((oid, opened)) => {
                self.job.identity = Some(identity);
                self.job.begin(opened);
                self.made = Some(oid);
                Ok(())
            }
            Err(error) => {
                // The error that is told is the one before.
                let _ = self.job.ask(async |client: &Client| {
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

    /// Says in the ledger that everything is written. False when a crash of the server has taken
    /// some of it: then it is to be loaded again.
    pub(super) fn finish_job(&mut self, outcome: &mut CopyOutcome, watch: &LoadWatch) -> Result<bool> {
        let Some(opened) = &self.job.opened else { return self.check_alive().map(|()| true) };
        let (job, is_bound, chunks) = (opened.job, opened.is_bound, outcome.chunks);
        let Some(identity) = self.job.identity.clone() else { return Ok(true) };
        let sums = self.job.persist(&watch.copy, async |client: &Client| {
            ledger::finish(client, job, chunks, &identity, is_bound).await
        })?;
        if let Some(sums) = sums {
            self.caring(watch).reconcile(&sums)?;
            // Also what was written before the server was away.
            let before = &self.job.at_first;
            outcome.rows_in = sums.rows_in - before.rows_in.min(sums.rows_in);
            outcome.rows_written = sums.rows_written - before.rows_written.min(sums.rows_written);
            outcome.rows_rejected =
                sums.rows_rejected - before.rows_rejected.min(sums.rows_rejected);
            return Ok(true);
        }
        self.job.again(&watch.copy, JobSession::reopen)?;
        match self.caring(watch).lacks(chunks)? {
            true => Ok(false),
            false => Err(ledger::lacks_chunks(job, chunks)),
        }
    }

    /// Without a ledger: that no crash can have emptied an unlogged table since its rows were
    /// committed, as a session from before that is alive.
    fn check_alive(&self) -> Result<()> {
        if self.table.unlogged == Unlogged::No {
            return Ok(());
        }
        let asked = self.job.own.runtime.block_on(self.job.client().simple_query("select 1"));
        match asked {
            Ok(_) if !self.job.own.was_away => Ok(()),
            _ => {
                let table = &self.plan.table;
                let message = format!(
                    "the server was away when the rows were committed, and a crash empties \
                     {table}, which is unlogged"
                );
                Err(Error::new(ErrorKind::Connect, message).hint(format!(
                    "Look whether the rows are there: `select count(*) from {table}`."
                )))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pgspate_embedded::testing;

    use crate::load::{LoadOptions, LoadWatch, prepare};
    use crate::reading;
    use pgspate_target::connect::{Dsn, Environment};

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
            let reading = reading::ReadingOptions::of_sources(sources);
            let options = LoadOptions { reading, table: Some("t".to_owned()), ..LoadOptions::default() };
            prepare(options, dsn.clone(), runtime.handle()).unwrap()
        };
        let first = load();
        load().run(&Arc::new(LoadWatch::default())).unwrap();
        // It has died before it could say so.
        db.run("update pgspate.job set finished = null");
        let report = first.run(&Arc::new(LoadWatch::default())).unwrap();
        assert_eq!((report.rows_written, report.rows_before), (0, 2));
    }
}
