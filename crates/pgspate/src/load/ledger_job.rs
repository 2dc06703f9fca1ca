//! A load's job in the ledger: the identity by which a repeated load is recognised, the earlier
//! runs of the job, and its end.

use serde_json::Value;
use tokio_postgres::Client;

use super::{Load, LoadWatch, NewTable, create};
use crate::copy::CopyOutcome;
use crate::job::{JobSession, RetryAfterConnectionLoss};
use crate::numbers::counted;
use crate::plan::{AtomicMethod, written_sequences};
use crate::reading::SniffedInputs;
use crate::source::Input;
use crate::{Error, ErrorKind, Result};
use pgspate_target::ledger::{
    self, EmptyTable, FinishedJobs, JobIdentity, JobLookup, OpenOptions, OpenOutcome, RowsIn,
    SourceFingerprint,
};
use pgspate_target::{Sequence, TableStorage, UnloggedExtent, server_error};

/// Reads the state of each input. Blocks.
pub(super) fn read_fingerprints(reading: &SniffedInputs) -> Result<Vec<SourceFingerprint>> {
    let read = |input: &Input| match SourceFingerprint::of(input)? {
        Some(fingerprint) => Ok(fingerprint),
        None => Ok(SourceFingerprint::of_stream(input)),
    };
    reading.inputs.iter().map(read).collect()
}

impl Load {
    /// Returns the load's identity with these sources.
    pub(super) fn make_identity(&self, mut sources: Vec<SourceFingerprint>) -> JobIdentity {
        let Load { reading, plan, session, table, .. } = self;
        let fleet = self.fleet().map(|entry| entry.member.clone());
        if let Some(member) = &fleet {
            sources.iter_mut().for_each(|source| source.set_member(member));
        }
        if self.options.reading.rows.file_name_column.is_some() {
            for (source, name) in sources.iter_mut().zip(reading.names()) {
                source.file_name = name;
            }
        }
        let mut options = reading.identity();
        let columns = plan.rows.field_columns().map(|column| {
            let forced = match (column.force_null, column.force_not_null) {
                (false, false) => "",
                (true, false) => " force-null",
                (false, true) => " force-not-null",
                (true, true) => " force-null force-not-null",
            };
            Value::from(format!("{} from {}{forced}", column.name, column.field + 1))
        });
        options.insert("columns".to_owned(), columns.collect());
        options.extend(self.options.reading.constants_identity());
        options
            .insert("encoding".to_owned(), plan.rows.encoding.as_deref().unwrap_or("UTF8").into());
        options.insert("chunk bytes".to_owned(), plan.rows.chunk_bytes.into());
        options.insert("DateStyle".to_owned(), session.date_style.as_str().into());
        options.insert("TimeZone".to_owned(), session.time_zone.as_str().into());
        options.insert("IntervalStyle".to_owned(), session.interval_style.as_str().into());
        let atomic_plan = plan.atomic_plan.as_ref();
        let command = match atomic_plan.map(|atomic_plan| atomic_plan.replaces) {
            Some(true) => "load --replace",
            Some(false) => "load --atomic",
            None => "load",
        };
        let has_row_triggers = table.triggers.iter().any(|trigger| trigger.for_each_row);
        let rows_in = match (table.kind, table.storage) {
            ('r', TableStorage::Plain) => RowsIn::Table,
            ('p', TableStorage::Plain) if !table.has_foreign_parts => RowsIn::Partitions,
            _ => RowsIn::OtherTables,
        };
        let on_empty = match table.kind {
            'r' | 'p' | 'f' if has_row_triggers || table.has_foreign_parts => EmptyTable::Unsure,
            'r' | 'p' => EmptyTable::LostRows,
            'f' => EmptyTable::Unsure,
            _ => EmptyTable::SaysNothing,
        };
        JobIdentity {
            command,
            table: plan.table.clone(),
            table_oid: table.oid,
            rows_in,
            on_empty,
            lock_timeout_millis: self.options.limits.lock_timeout_millis(),
            sources,
            options,
            guessed: self.options.reading.guessed_options(),
            continued_key: None,
            in_shadow: atomic_plan
                .is_some_and(|atomic_plan| atomic_plan.method == AtomicMethod::Swap),
            // Rows that triggers redirected to other tables survive a crash.
            unlogged: match table.unlogged {
                UnloggedExtent::Everything if has_row_triggers => UnloggedExtent::SomePartitions,
                unlogged => unlogged,
            },
            fleet,
        }
    }
}

/// Describes what earlier runs of the job have done; `None` for a new job. `is_member`: the load is
/// a member of a fleet.
fn describe_earlier_runs(found: &JobLookup, is_member: bool) -> Option<String> {
    match found {
        JobLookup::Nothing => None,
        JobLookup::Unfinished(_, 0, _) => None,
        JobLookup::Unfinished(record, chunks, rows) => Some(format!(
            "resuming job {} of {}: {} in {} are written",
            record.job,
            record.started,
            counted(*rows, "row"),
            counted(*chunks, "chunk")
        )),
        JobLookup::Finished(finished) => Some(describe_finished(finished, is_member)),
    }
}

fn describe_finished(
    FinishedJobs { jobs, rows_written }: &FinishedJobs,
    is_member: bool,
) -> String {
    let rejected = match jobs.iter().map(|job| job.rows_rejected).sum() {
        0 => String::new(),
        rows => format!(", {rows} rejected"),
    };
    let last = jobs.last();
    let finished = last.and_then(|job| job.finished.as_deref()).unwrap_or_default();
    let who = match &jobs[..] {
        [only] => format!("job {} has loaded this", only.job),
        jobs => format!("{} have loaded this", counted(jobs.len() as u64, "job")),
    };
    let rows = counted(*rows_written, "row");
    let again = if is_member { "a new `--generation`" } else { "`--restart`" };
    format!("{who}, {rows}{rejected}, at {finished}; {again} loads it again")
}

impl Load {
    /// Describes what earlier runs have written, and which changes to the table they have not
    /// restored; `None` if there is nothing to describe.
    pub fn earlier_runs(&self) -> Option<String> {
        let left: Vec<_> =
            self.job.ledger_state.left.iter().map(ledger::RecordedChange::name).collect();
        let back = (!left.is_empty()).then(|| {
            format!("not restored by an earlier load, or one that is running: {}", left.join(", "))
        });
        let files = self.files.describe();
        let is_member = self.job.control_session.fleet.is_some();
        let earlier = describe_earlier_runs(&self.job.ledger_state.found, is_member);
        let all = [files, earlier, back].into_iter().flatten().collect::<Vec<_>>();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Warns if the ledger knows the files from an earlier table of the same name. The table may be
    /// a copy of that one.
    pub(super) fn warn_of_earlier_table(&mut self) {
        let Some(job) = self.job.ledger_state.known.loaded_elsewhere else { return };
        self.plan.warnings.push(format!(
            "job {job} has loaded files of this load into an earlier table {}, which no longer \
             exists; if this table is a copy of that one, their rows are in it twice now",
            self.plan.table
        ));
    }

    /// Returns whether the ledger says that all rows are loaded. The load does nothing then.
    pub fn is_loaded(&self) -> bool {
        matches!(self.job.ledger_state.found, JobLookup::Finished(_))
    }

    /// Creates the new table and opens the load's job in one transaction. If the run is killed, the
    /// table and the job both exist or both do not exist. So the next run knows whether a load
    /// created the table.
    pub(super) fn create_table(&mut self) -> Result<()> {
        self.job.reconnect()?;
        let connection = self.job.connection();
        let Some(new) = &self.new_table else { return Ok(()) };
        let Some(mut identity) = self.job.identity.clone() else {
            let created = create::create(connection, new);
            let oid = self.job.control_session.runtime.block_on(created)?;
            (self.created_oid, self.table.oid) = (Some(oid), oid);
            return Ok(());
        };
        let known = &self.job.ledger_state;
        let options = OpenOptions {
            restart: self.options.restart,
            has_created_table: true,
            in_transaction: true,
        };
        let failed = || server_error(format!("could not create table {}", new.table));
        let created = self.job.with_client(async |client: &Client| {
            ledger::ensure_ledger(client).await?;
            let begin = "begin isolation level read committed";
            client.batch_execute(begin).await.map_err(failed())?;
            let oid = create::create(connection, new).await?;
            identity.table_oid = oid;
            let OpenOutcome::Opened(opened) =
                ledger::open_job(client, &identity, known, options).await?
            else {
                return Err(Error::new(ErrorKind::Bug, "a new table cannot be loaded already"));
            };
            client.batch_execute("commit").await.map_err(failed())?;
            Ok((oid, opened))
        });
        match created {
            Ok((oid, opened)) => {
                self.job.identity = Some(identity);
                self.job.begin(opened);
                // The facts of the table are from a trial that was rolled back.
                (self.created_oid, self.table.oid) = (Some(oid), oid);
                Ok(())
            }
            Err(error) => {
                // The caller reports the earlier error.
                let _ = self.job.with_client(async |client: &Client| {
                    client.batch_execute("rollback").await.map_err(failed())
                });
                Err(error)
            }
        }
    }

    /// Looks up the sequences of the table that this load has created.
    pub(super) fn read_new_sequences(&mut self) -> Result<()> {
        let table = self.table.sql_name.clone();
        let read = async |client: &Client| Sequence::read_of(client, &table).await;
        let sequences = self.job.with_client(read)?;
        self.plan.maintenance.sequences = written_sequences(&sequences, &self.plan.rows.columns);
        self.table_changes.maintenance_facts.sequences = sequences;
        Ok(())
    }

    /// Takes over the table that an interrupted earlier run created. This load may widen the
    /// table's columns. If the load fails and leaves no rows, it drops the table.
    pub(super) fn adopt_table(&mut self) -> Result<()> {
        let table = self.table.sql_name.clone();
        let (columns, options) = (&self.reading.inferred, &self.options.new_table);
        let new = NewTable::of_columns(&table, columns, options)?;
        let guessed = new.guessed_columns().to_vec();
        self.plan.rows.set_guessed_columns(&guessed);
        self.request.rows.guessed_columns = guessed;
        self.new_table = Some(new);
        self.created_oid = Some(self.table.oid);
        Ok(())
    }

    /// Marks the job as finished. Returns false if a server crash has removed chunks, which must be
    /// loaded again, or objects that were put back.
    pub(super) fn finish_job(
        &mut self,
        outcome: &mut CopyOutcome,
        watch: &LoadWatch,
    ) -> Result<bool> {
        let Some(opened) = &self.job.opened else { return self.check_not_emptied().map(|()| true) };
        let (job, crash_removes_rows, chunks) =
            (opened.job, opened.crash_removes_rows, outcome.chunks);
        let Some(identity) = self.job.identity.clone() else { return Ok(true) };
        let sums = self.job.with_client_and_retry(&watch.copy, async |client: &Client| {
            ledger::finish_job(client, job, chunks, &identity, crash_removes_rows).await
        })?;
        if let Some(sums) = sums {
            self.table_care(watch).reconcile(&sums)?;
            // These sums include rows that this run wrote before it lost the connection.
            let before = &self.job.totals_before;
            outcome.rows_in = sums.rows_in - before.rows_in.min(sums.rows_in);
            outcome.rows_written = sums.rows_written - before.rows_written.min(sums.rows_written);
            outcome.rows_rejected =
                sums.rows_rejected - before.rows_rejected.min(sums.rows_rejected);
            return Ok(true);
        }
        self.job.retry_after_connection_loss(&watch.copy, JobSession::reopen)?;
        let mut care = self.table_care(watch);
        let (lacks_objects, lacks_chunks) =
            (care.has_lost_restored_objects()?, care.has_lost_chunks(chunks)?);
        match lacks_objects || lacks_chunks {
            true => Ok(false),
            false => Err(ledger::missing_chunks_error(job, chunks)),
        }
    }

    /// Without a ledger: checks that no crash has emptied an unlogged table since the rows were
    /// committed. No crash has happened if a session from before the commit is still connected.
    fn check_not_emptied(&self) -> Result<()> {
        if self.table.unlogged == UnloggedExtent::Nothing {
            return Ok(());
        }
        let answer =
            self.job.control_session.runtime.block_on(self.job.client().simple_query("select 1"));
        match answer {
            Ok(_) if !self.job.control_session.connection_was_lost => Ok(()),
            _ => {
                let table = &self.plan.table;
                let message = format!(
                    "the connection was lost when the rows were committed; if the server crashed, \
                     unlogged table {table} is empty now"
                );
                Err(Error::new(ErrorKind::Connect, message)
                    .hint(format!("Check the number of rows: `select count(*) from {table}`.")))
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
    fn rows_that_another_run_writes_after_prepare_are_counted() {
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
            let options =
                LoadOptions { reading, table: Some("t".to_owned()), ..LoadOptions::default() };
            prepare(options, dsn.clone(), runtime.handle()).unwrap()
        };
        let first = load();
        load().run(&Arc::new(LoadWatch::default())).unwrap();
        // The first run died before it marked its job as finished.
        db.run("update pgspate.job set finished = null");
        let report = first.run(&Arc::new(LoadWatch::default())).unwrap();
        assert_eq!((report.rows_written, report.rows_before), (0, 2));
    }
}
