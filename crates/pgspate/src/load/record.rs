//! A load's side of the ledger: what it is known by, and where it stands.

use serde_json::Value;
use tokio_postgres::error::SqlState;

use super::Load;
use super::reading::Reading;
use crate::ledger::{self, Found, Identity, SourcePrint};
use crate::plan::Plan;
use crate::target::{Session, Table};
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
    let is_plain = matches!(table.kind, 'r' | 'p');
    Ok(Some(Identity {
        command: "load",
        table: plan.table.clone(),
        table_oid: table.oid,
        keeps_rows: is_plain && !table.triggers.iter().any(|trigger| trigger.for_each_row),
        sources,
        options,
    }))
}

/// Where the job stands, in words; `None` for one that begins.
pub(super) fn standing(found: &Found) -> Option<String> {
    match found {
        Found::Nothing => None,
        Found::Unfinished(_, 0, _) => None,
        Found::Unfinished(record, chunks, rows) => Some(format!(
            "going on with job {} of {}: {rows} rows in {chunks} chunks are written",
            record.job, record.started
        )),
        Found::Finished(record) => Some(format!(
            "job {} has loaded this, {} rows, at {}; `--restart` loads it again",
            record.job,
            record.rows_written,
            record.finished.as_deref().unwrap_or_default()
        )),
    }
}

impl Load {
    /// Where the load stands, in words, if an earlier run has written something of it.
    pub fn standing(&self) -> Option<String> {
        standing(&self.found)
    }

    /// Whether the ledger says that all of it is loaded: then it does nothing.
    pub fn is_loaded(&self) -> bool {
        matches!(self.found, Found::Finished(_))
    }

    /// The job, and the rows that earlier runs of it have written.
    pub(super) fn before(&self) -> (Option<i64>, u64) {
        match (&self.found, &self.opened) {
            (Found::Finished(record), _) => (Some(record.job), record.rows_written.unsigned_abs()),
            (Found::Unfinished(_, _, rows), Some(opened)) => (Some(opened.job.0), *rows),
            (Found::Nothing, opened) => (opened.as_ref().map(|opened| opened.job.0), 0),
            (_, None) => (None, 0),
        }
    }

    /// Has the server say no before anything is changed: copies no rows, and rolls back. Not
    /// where that would run triggers; and a lock is for the lanes to wait for. Over a connection
    /// of its own, as one is of no use after a refused COPY.
    pub(super) fn try_out(&self) -> Result<()> {
        if self.plan.one_statement {
            return Ok(());
        }
        let sql = self.plan.text_sql();
        self.runtime.block_on(async {
            let connection = self.dsn.connect("pgspate load").await?;
            let client = &connection.client;
            let tried = async {
                client.batch_execute("begin; set local lock_timeout = '500ms'").await?;
                let sink = client.copy_in::<_, bytes::Bytes>(&sql).await?;
                let mut sink = std::pin::pin!(sink);
                sink.as_mut().finish().await
            };
            let result = match tried.await {
                Err(error) if error.code() != Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                    Err(crate::copy::refused_copy(&connection, error))
                }
                _ => Ok(()),
            };
            connection.close().await;
            result
        })
    }

    /// Opens the load's job, if it keeps a ledger. `made_table`: by this run.
    pub(super) fn open_job(&mut self) -> Result<()> {
        let Some(identity) = &mut self.identity else { return Ok(()) };
        identity.table_oid = self.made.unwrap_or(self.table.oid);
        let made = self.made.is_some();
        let client = &self.connection.client;
        let opening = ledger::open(client, identity, self.options.restart, made);
        self.opened = Some(self.runtime.block_on(opening)?);
        Ok(())
    }

    /// Connects anew where the connection was lost meanwhile, and reads what is written by now.
    pub(super) fn reopen_job(&mut self) -> Result<()> {
        self.reconnect()?;
        let Some(opened) = &mut self.opened else { return Ok(()) };
        let reading = ledger::read_done(&self.connection.client, opened.job);
        opened.done = self.runtime.block_on(reading)?;
        Ok(())
    }

    fn reconnect(&mut self) -> Result<()> {
        if !self.connection.is_closed() {
            return Ok(());
        }
        let connection = self.runtime.block_on(self.dsn.connect("pgspate load"))?;
        if let Some(identity) = &self.identity {
            let key = identity.lock_key();
            let (client, before) = (&connection.client, self.connection.backend_pid());
            self.runtime.block_on(async {
                ledger::release(client, key, before).await;
                ledger::hold(client, key).await
            })?;
        }
        self.connection = connection.into();
        Ok(())
    }

    /// Writes the rejects, and says in the ledger that everything is written; tries again as long
    /// as lanes do.
    pub(super) fn finish_job(&mut self, chunks: u64) -> Result<()> {
        let Some(opened) = &self.opened else { return Ok(()) };
        let job = opened.job;
        let mut patience = crate::copy::Patience::new(self.options.retry_for);
        loop {
            let finished = self.reconnect().and_then(|()| self.write_rejects()).and_then(|_| {
                self.runtime.block_on(ledger::finish(&self.connection.client, job, chunks))
            });
            let error = match finished {
                Ok(sums) => return self.reconcile(&sums),
                Err(error) => error,
            };
            match patience.next_pause().filter(|_| error.is_retryable()) {
                Some(pause) => std::thread::sleep(pause),
                None => return Err(error),
            }
        }
    }

    fn reconcile(&self, sums: &ledger::Seal) -> Result<()> {
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

    /// Forgets a job that has left nothing behind.
    pub(super) fn forget_job(&mut self) {
        let Some(opened) = self.opened.take() else { return };
        // It would be forgotten when the load is run again, too.
        let _ = self.runtime.block_on(ledger::clear(&self.connection.client, opened.job, true));
    }
}
