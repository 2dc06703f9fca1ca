//! Jobs and their chunks in the ledger: opening a job, recording chunks, finishing the job.

use std::collections::HashMap;
use std::fmt::Write as _;

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row};

use super::finished_jobs::{find_finished, is_table_empty};
use super::identity::{JobIdentity, SourceMatch};
use super::member::FleetMember;
use super::new_job::{self, NewJobRow, begin_new_job};
use super::unlogged::{self, surviving_chunks};
use super::{RecordedChange, change, dropped_keys, lock, policies, schema, shadow};
use crate::{Error, ErrorKind, Result, TypedParameter, TypedQuery, UnloggedExtent, server_error};

/// A job's number in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobId(pub i64);

/// The ledger row of a chunk, or sums over several chunks.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChunkRecord {
    /// The chunk's number.
    pub chunk: u64,
    /// The number of the input that the chunk is from.
    pub input: usize,
    /// The byte where the chunk begins in its input; the row, for columnar files.
    pub position: u64,
    /// The digest of the chunk's content, if it has one.
    pub digest: Option<u128>,
    /// Rows read.
    pub rows_in: u64,
    /// Rows written.
    pub rows_written: u64,
    /// Rows rejected.
    pub rows_rejected: u64,
}

impl JobId {
    /// Returns statements that record chunks. The statements must run in the transaction that
    /// writes the chunks. The transaction fails if another job has dropped the table's keys. If
    /// `crash_removes_rows`, the transaction also fails if a crash has emptied the table.
    pub fn insert_chunks_sql(self, records: &[ChunkRecord], crash_removes_rows: bool) -> String {
        let job = if crash_removes_rows { unlogged::job_sql(self) } else { self.0.to_string() };
        let mut sql = format!(
            "{}; insert into pgspate.ledger \
             (job, chunk, input, position, digest, rows_in, rows_written, rows_rejected) values",
            dropped_keys::refuse_without_keys_sql(self.0)
        );
        for (index, record) in records.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let ChunkRecord {
                chunk,
                input,
                position,
                digest,
                rows_in,
                rows_written,
                rows_rejected,
            } = record;
            let digest = digest.map_or("null".to_owned(), |digest| format!("'{digest:032x}'"));
            // Writing to a String cannot fail.
            let _ = write!(
                sql,
                "{comma} ({job}, {chunk}, {input}, {position}, {digest}, {rows_in}, \
                 {rows_written}, {rows_rejected})"
            );
        }
        sql
    }
}

/// Returns whether the server refused a chunk because the ledger already has it.
pub fn is_chunk_recorded(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|refusal| {
        *refusal.code() == SqlState::UNIQUE_VIOLATION
            && refusal.schema() == Some("pgspate")
            && matches!(refusal.table(), Some("ledger" | "reject"))
    })
}

/// The chunks of a job that are written.
#[derive(Debug, Clone, Default)]
pub struct WrittenChunks {
    records: HashMap<u64, ChunkRecord>,
}

impl WrittenChunks {
    /// Returns the record of a chunk, if the chunk is written.
    pub fn get(&self, chunk: u64) -> Option<&ChunkRecord> {
        self.records.get(&chunk)
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> u64 {
        self.records.len() as u64
    }

    /// Returns the number of rows in these chunks.
    pub fn rows_written(&self) -> u64 {
        self.records.values().map(|record| record.rows_written).sum()
    }

    /// Returns the sums of rows read, written and rejected.
    pub fn totals(&self) -> ChunkRecord {
        let mut totals =
            ChunkRecord { rows_written: self.rows_written(), ..ChunkRecord::default() };
        for record in self.records.values() {
            totals.rows_in += record.rows_in;
            totals.rows_rejected += record.rows_rejected;
        }
        totals
    }
}

/// A job as the ledger has it.
#[derive(Debug, Clone)]
pub struct JobRecord {
    /// The job's number.
    pub job: i64,
    /// When the job started, in the session's time zone.
    pub started: String,
    /// When the job was finished.
    pub finished: Option<String>,
    /// Rows written, once the job is finished.
    pub rows_written: i64,
    /// Rows rejected, once the job is finished.
    pub rows_rejected: i64,
    pub(super) fingerprint: String,
    pub(super) sources: String,
    pub(super) options: String,
    pub(super) table_oid: u32,
    /// Whether the job created its table.
    pub has_created_table: bool,
    /// The job's chunks, if only reading the sources can show that these still contain them.
    pub unverified_chunks: Option<WrittenChunks>,
}

/// What the ledger knows about a job before it is opened.
#[derive(Debug, Clone, Default)]
pub enum JobLookup {
    /// No job, or no job that still counts.
    #[default]
    Nothing,
    /// The job is unfinished. The numbers are the job's chunks and rows in the table.
    Unfinished(JobRecord, u64, u64),
    /// A job has loaded the same sources with the same options.
    Finished(JobRecord),
    /// A job may have loaded the same sources. Only reading the sources can decide.
    PossiblyFinished(JobRecord),
}

/// The result of opening a job.
#[derive(Debug, Clone)]
pub enum OpenOutcome {
    /// The job can continue.
    Opened(OpenJob),
    /// Another run has finished the job meanwhile.
    Finished(JobRecord),
}

/// A job that is ready to continue.
#[derive(Debug, Clone)]
pub struct OpenJob {
    /// The job's number.
    pub job: JobId,
    /// The chunks that earlier runs have written.
    pub done: WrittenChunks,
    /// Whether all changes that earlier loads made to the table are put back.
    pub is_clean: bool,
    /// Whether a server crash would remove the job's rows.
    pub crash_removes_rows: bool,
}

const COLUMNS: &str = "job, started::timestamptz(0)::text, finished::timestamptz(0)::text, \
                       rows_written, fingerprint, sources::text, options::text, table_oid, \
                       made_table, rows_rejected";

/// A condition: the job's table was not emptied after the job.
const COUNTS: &str = "\
not exists (select from pgspate.emptied e where e.table_oid = job.table_oid and e.upto >= job.job \
              and e.but <> job.job)";

/// Looks the job up. Changes nothing.
///
/// # Errors
/// [`ErrorKind::Ledger`] if an unfinished job's sources or options have changed, unless
/// `restart`.
pub(super) async fn find_job(
    client: &Client,
    identity: &JobIdentity,
    restart: bool,
) -> Result<JobLookup> {
    match restart || !schema::check_exists(client).await? {
        true => Ok(JobLookup::Nothing),
        false => find_job_in_ledger(client, identity).await,
    }
}

/// Looks the job up in an existing ledger.
async fn find_job_in_ledger(client: &Client, identity: &JobIdentity) -> Result<JobLookup> {
    let (key, fingerprint) = (identity.key(), identity.fingerprint());
    let sql = format!(
        "select {COLUMNS} from pgspate.job where key = $1 and {COUNTS} \
         order by finished is not null, fingerprint <> $2, job desc limit {JOBS_MAX}"
    );
    let rows = client.fetch_all(&sql, &[&key, &fingerprint]).await.map_err(ledger_error())?;
    let mut records: Vec<JobRecord> = rows.iter().map(read_job_record).collect();
    if records.first().is_none_or(|first| first.finished.is_some()) {
        return find_finished(client, identity, records).await;
    }
    let mut record = records.swap_remove(0);
    let job = JobId(record.job);
    let has_shadow = shadow::read_state(client, job).await?.is_some();
    if identity.in_shadow || has_shadow {
        // Nothing of the job is in the table, so it can start again.
        let is_same = record.fingerprint == fingerprint
            && record.table_oid == identity.table_oid
            && identity.compare_with(&record.sources, &record.options) == SourceMatch::Same;
        if !(identity.in_shadow && has_shadow && is_same) {
            return Ok(JobLookup::Nothing);
        }
        let done = surviving_chunks(client, job, identity).await?;
        return Ok(JobLookup::Unfinished(record, done.chunks(), done.rows_written()));
    }
    if identity.is_replace() {
        // The old job was one transaction, which either failed or finished.
        return Ok(JobLookup::Nothing);
    }
    let done = read_written_chunks(client, job).await?;
    let is_other_table = record.table_oid != identity.table_oid;
    if done.rows_written() > 0 && (is_other_table || is_table_empty(client, identity).await?) {
        return Ok(JobLookup::Nothing);
    }
    let done = match is_other_table || done.chunks() == 0 {
        true => done,
        false => surviving_chunks(client, job, identity).await?,
    };
    let is_same = record.fingerprint == fingerprint;
    if !is_same && done.chunks() == 0 {
        return Ok(JobLookup::Nothing);
    }
    let (chunks, rows) = (done.chunks(), done.rows_written());
    match identity.compare_with(&record.sources, &record.options) {
        _ if chunks == 0 => {}
        SourceMatch::Same if is_same => {}
        SourceMatch::Different => return Err(identity.changed_error(&record, rows)),
        SourceMatch::Same | SourceMatch::Unsure => record.unverified_chunks = Some(done),
    }
    Ok(JobLookup::Unfinished(record, chunks, rows))
}

/// How many jobs with the same key are checked.
const JOBS_MAX: u32 = 20;

/// What the ledger knows before a load begins.
#[derive(Debug, Clone, Default)]
pub struct LedgerState {
    /// Whether a ledger exists.
    pub exists: bool,
    /// What the ledger knows about these sources.
    pub found: JobLookup,
    /// Changes to the table that earlier loads have not put back.
    pub left: Vec<RecordedChange>,
    /// Finished jobs that have loaded other content from sources with the same names.
    pub others: Vec<i64>,
    /// Whether an earlier, unfinished run created the table.
    pub has_created_table: bool,
}

impl LedgerState {
    /// Queries the ledger, if it `exists`. Takes one round trip if the ledger does not know the
    /// sources.
    ///
    /// # Errors
    /// [`ErrorKind::Ledger`] if an unfinished job's sources or options have changed, unless
    /// `restart`.
    pub async fn read(
        client: &Client,
        exists: bool,
        identity: &JobIdentity,
        restart: bool,
    ) -> Result<LedgerState> {
        if !exists {
            return Ok(LedgerState::default());
        }
        let find_job = async {
            match restart {
                true => Ok(JobLookup::Nothing),
                false => find_job_in_ledger(client, identity).await,
            }
        };
        let has_created_table = async {
            let sql = "select exists (select from pgspate.job where key = $1 and table_oid = $2 \
                       and made_table and finished is null)";
            let row = client.fetch_one(sql, &[&identity.key(), &identity.table_oid]).await;
            row.map(|row| row.get(0))
                .map_err(|error| schema::with_grant_hint(ledger_error()(error)))
        };
        let (version, found, has_outstanding, has_created_table) = tokio::join!(
            biased;
            schema::check_version(client),
            find_job,
            change::has_outstanding_on(client, identity.table_oid),
            has_created_table
        );
        version?;
        let found = match found {
            // The version check has just upgraded the ledger, which lacked a column.
            Err(error) if error.sqlstate() == Some(&SqlState::UNDEFINED_COLUMN) => {
                find_job_in_ledger(client, identity).await
            }
            found => found,
        };
        let (found, has_outstanding) = (found?, has_outstanding?);
        let left = match has_outstanding {
            true => change::outstanding_changes_on(client, identity.table_oid).await?,
            false => Vec::new(),
        };
        Ok(LedgerState {
            exists,
            found,
            left,
            others: Vec::new(),
            has_created_table: has_created_table?,
        })
    }
}

/// Creates the ledger if needed, takes the job's lock, and returns the job: the unfinished job with
/// its chunks, or a new job. `known` is the state that was read before the load.
///
/// # Errors
/// [`ErrorKind::Ledger`] if another session works on the job, or if an unfinished job's sources or
/// options have changed, unless `restart`. [`ErrorKind::Server`] if the role may not write the
/// ledger.
pub async fn open_job(
    client: &Client,
    identity: &JobIdentity,
    known: &LedgerState,
    restart: bool,
    has_created_table: bool,
) -> Result<OpenOutcome> {
    if known.exists
        && matches!(known.found, JobLookup::Nothing)
        && let Some(opened) = begin_new_job(client, identity, has_created_table).await?
    {
        return bind(client, identity, opened).await.map(OpenOutcome::Opened);
    }
    schema::ensure_ledger(client).await?;
    lock::hold_job_lock(client, identity.lock_key()).await?;
    lock::end_earlier_lanes(client, identity.lock_key()).await?;
    check_role(client, identity).await?;
    match find_job(client, identity, restart).await? {
        JobLookup::Nothing => {}
        // Reading the sources has shown that the content differs.
        JobLookup::PossiblyFinished(record) if known.others.contains(&record.job) => {}
        JobLookup::Unfinished(record, ..) => {
            let job = JobId(record.job);
            let crash_removes_rows = unlogged::bind_job(client, job, identity).await?;
            if crash_removes_rows {
                // Forget chunks whose rows a crash has removed.
                unlogged::restart_emptied_job(client, job, identity).await?;
            }
            let done = read_written_chunks(client, job).await?;
            return Ok(OpenOutcome::Opened(OpenJob {
                job,
                done,
                is_clean: false,
                crash_removes_rows,
            }));
        }
        JobLookup::Finished(record) | JobLookup::PossiblyFinished(record) => {
            return Ok(OpenOutcome::Finished(record));
        }
    }
    drop_shadow(client, identity).await?;
    prune_old_jobs(client).await?;
    let job = match has_outstanding_changes(client, identity).await? {
        false => insert_job(client, identity, has_created_table).await?,
        true => replace_unfinished_job(client, identity, has_created_table).await?,
    };
    let opened =
        OpenJob { job, done: WrittenChunks::default(), is_clean: false, crash_removes_rows: false };
    bind(client, identity, opened).await.map(OpenOutcome::Opened)
}

/// Refuses an unfinished job of a role that the current role is not a member of.
async fn check_role(client: &Client, identity: &JobIdentity) -> Result<()> {
    let sql = format!(
        "select job, role::text from pgspate.job \
         where key = $1 and finished is null and not {}",
        policies::IS_OURS
    );
    let Some(row) = client.fetch_opt(&sql, &[&identity.key()]).await.map_err(ledger_error())?
    else {
        return Ok(());
    };
    let (job, role): (i64, &str) = (row.get(0), row.get(1));
    let message = format!("this load is unfinished job {job} of role \"{role}\"");
    Err(Error::new(ErrorKind::Ledger, message).hint(format!(
        "Run the load as \"{role}\" or a member of that role. Or have that role run \
         `pgspate status --forget {job}`."
    )))
}

/// Binds a new job (`unlogged.rs`) if a server crash would remove its rows.
async fn bind(client: &Client, identity: &JobIdentity, opened: OpenJob) -> Result<OpenJob> {
    let crash_removes_rows = identity.unlogged != UnloggedExtent::Nothing
        && unlogged::bind_job(client, opened.job, identity).await?;
    Ok(OpenJob { crash_removes_rows, ..opened })
}

/// Drops the shadow table of an unfinished job that no longer counts.
async fn drop_shadow(client: &Client, identity: &JobIdentity) -> Result<()> {
    let sql = "select job from pgspate.job where key = $1 and finished is null";
    for row in client.fetch_all(sql, &[&identity.key()]).await.map_err(ledger_error())? {
        shadow::drop_shadow(client, JobId(row.get(0))).await?;
    }
    Ok(())
}

/// Returns whether an unfinished job that no longer counts has changes that are not put back.
async fn has_outstanding_changes(client: &Client, identity: &JobIdentity) -> Result<bool> {
    let sql = "select exists (select from pgspate.job join pgspate.change using (job) \
               where key = $1 and finished is null and done < cardinality(steps))";
    Ok(client.fetch_one(sql, &[&identity.key()]).await.map_err(ledger_error())?.get(0))
}

/// Starts a job in place of an unfinished job that has changes. Both happen in one transaction, so
/// that the changes belong to one of the jobs at every time.
async fn replace_unfinished_job(
    client: &Client,
    identity: &JobIdentity,
    has_created_table: bool,
) -> Result<JobId> {
    client.batch_execute("begin").await.map_err(ledger_error())?;
    let begun = insert_job(client, identity, has_created_table).await;
    let end = if begun.is_ok() { "commit" } else { "rollback" };
    let ended = client.batch_execute(end).await.map_err(ledger_error());
    let job = begun?;
    ended.map(|()| job)
}

/// Starts a job. Forgets an unfinished job of the same key that no longer counts, but assigns its
/// changes to the new job.
async fn insert_job(
    client: &Client,
    identity: &JobIdentity,
    has_created_table: bool,
) -> Result<JobId> {
    let refused = |error| schema::with_grant_hint(ledger_error()(error));
    let sql = "with old as (delete from pgspate.job where key = $1 and finished is null \
                            returning job), \
                    rejects as (delete from pgspate.reject using old where reject.job = old.job), \
                    chunks as (delete from pgspate.ledger using old where ledger.job = old.job) \
               select job from old";
    let old_jobs = client.fetch_all(sql, &[&identity.key()]).await.map_err(refused)?;
    let old_jobs: Vec<i64> = old_jobs.iter().map(|row| row.get(0)).collect();
    let row = NewJobRow::of(identity, has_created_table);
    let row = client.fetch_one(&new_job::insert_job_sql(), &row.values()).await;
    let row = row.map_err(refused)?;
    let job: i64 = row.get(0);
    if !old_jobs.is_empty() {
        let sql = "update pgspate.change set job = $1 where job = any($2)";
        client.run_statement(sql, &[&job, &old_jobs]).await.map_err(refused)?;
    }
    Ok(JobId(job))
}

/// Deletes chunks, rejects and changes of jobs that finished more than 7 days ago. The jobs stay.
/// Changes that are not put back also stay.
pub(super) async fn prune_old_jobs(client: &Client) -> Result<()> {
    let sql = "with old as (select job from pgspate.job \
                            where finished < now() - interval '7 days'), \
                    chunks as (delete from pgspate.ledger using old where ledger.job = old.job), \
                    rejects as (delete from pgspate.reject using old where reject.job = old.job) \
               delete from pgspate.change using old \
               where change.job = old.job and change.done >= cardinality(change.steps)";
    let pruned = client.run_statement(sql, &[]).await;
    pruned.map(drop).map_err(|error| schema::with_grant_hint(ledger_error()(error)))
}

/// Reads the chunks of an open job that are written by now.
///
/// # Errors
/// [`ErrorKind::Ledger`] if another session has forgotten the job. The ledger then does not say
/// which of the job's rows are in the table.
pub async fn reread_written_chunks(client: &Client, job: JobId) -> Result<WrittenChunks> {
    let sql = "select exists (select from pgspate.job where job = $1)";
    // Read the chunks first: chunks are forgotten before or together with their job.
    let done = read_written_chunks(client, job).await?;
    if client.fetch_one(sql, &[&job.0]).await.map_err(ledger_error())?.get(0) {
        return Ok(done);
    }
    let message = format!("job {} is no longer in the ledger", job.0);
    Err(Error::new(ErrorKind::Ledger, message).hint(
        "Another session has forgotten the job while this load had lost its connection. Check \
         which of the job's rows are in the table. The same command loads from the beginning.",
    ))
}

/// Reads the chunks of a job that are written.
pub async fn read_written_chunks(client: &Client, job: JobId) -> Result<WrittenChunks> {
    let sql = "select chunk, input, position, rows_in, rows_written, rows_rejected, digest \
               from pgspate.ledger where job = $1";
    let rows = client.fetch_all(sql, &[&job.0]).await.map_err(ledger_error())?;
    let records = rows.iter().map(read_chunk_record).map(|record| (record.chunk, record));
    Ok(WrittenChunks { records: records.collect() })
}

/// Marks the job as finished, durably. The job's chunk records stay for a while: a disconnected
/// session may still try to write a chunk, and must find that the chunk is written.
///
/// Returns `None` and marks nothing if the ledger lacks chunks, or if a crash has removed the rows
/// although `crash_removes_rows` is set.
///
/// # Errors
/// [`ErrorKind::Server`] if the ledger cannot be written.
pub async fn finish_job(
    client: &Client,
    job: JobId,
    chunks: u64,
    identity: &JobIdentity,
    crash_removes_rows: bool,
) -> Result<Option<ChunkRecord>> {
    let member = identity.fleet.as_ref().map(FleetMember::finish_sql).unwrap_or_default();
    let bound_job = if crash_removes_rows { unlogged::job_sql(job) } else { "0".to_owned() };
    let sql = format!(
        "with sums as ( \
                   select count(*) as chunks, coalesce(sum(rows_in), 0)::bigint as rows_in, \
                          coalesce(sum(rows_written), 0)::bigint as rows_written, \
                          coalesce(sum(rows_rejected), 0)::bigint as rows_rejected \
                   from pgspate.ledger where job = $1), \
               done as (update pgspate.job set finished = coalesce(finished, clock_timestamp()), \
                      fingerprint = $3, sources = $4::jsonb, \
                      (chunks, rows_in, rows_written, rows_rejected) = \
                      (sums.chunks, sums.rows_in, sums.rows_written, sums.rows_rejected) \
               from sums where job = $1 and sums.chunks = $2 and {bound_job} is not null \
               returning sums.*) {member} select rows_in, rows_written, rows_rejected from done"
    );
    let expected = chunks.cast_signed();
    let (fingerprint, sources) = (identity.fingerprint(), identity.sources_json());
    let values: [&dyn TypedParameter; 4] = [&job.0, &expected, &fingerprint, &sources];
    let row = client.fetch_opt(&sql, &values).await.map_err(ledger_error())?;
    let Some(row) = row else { return Ok(None) };
    let number = |column: usize| row.get::<_, i64>(column).cast_unsigned();
    let (rows_in, rows_written, rows_rejected) = (number(0), number(1), number(2));
    Ok(Some(ChunkRecord { rows_in, rows_written, rows_rejected, ..ChunkRecord::default() }))
}

/// Returns whether the job is finished.
pub async fn is_job_finished(client: &Client, job: JobId) -> Result<bool> {
    let sql = "select exists (select from pgspate.job where job = $1 and finished is not null)";
    Ok(client.fetch_one(sql, &[&job.0]).await.map_err(ledger_error())?.get(0))
}

/// Records that the job's rows are now in the table with oid `table_oid`. Must run in the
/// transaction that renames that table.
pub async fn move_job_to(client: &Client, job: JobId, table_oid: u32) -> Result<()> {
    let sql = "update pgspate.job set table_oid = $2 where job = $1";
    client.run_statement(sql, &[&job.0, &table_oid]).await.map(drop).map_err(ledger_error())
}

/// Returns a function that wraps an error of a statement on the ledger.
pub(super) fn ledger_error() -> impl FnOnce(tokio_postgres::Error) -> Error {
    server_error("could not use the ledger, schema \"pgspate\"".to_owned())
}

fn read_job_record(row: &Row) -> JobRecord {
    JobRecord {
        job: row.get(0),
        started: row.get(1),
        finished: row.get(2),
        rows_written: row.get(3),
        fingerprint: row.get(4),
        sources: row.get(5),
        options: row.get(6),
        table_oid: row.get(7),
        has_created_table: row.get(8),
        rows_rejected: row.get(9),
        unverified_chunks: None,
    }
}

fn read_chunk_record(row: &Row) -> ChunkRecord {
    let number = |column: usize| row.get::<_, i64>(column).cast_unsigned();
    ChunkRecord {
        chunk: number(0),
        input: usize::try_from(row.get::<_, i32>(1)).unwrap_or_default(),
        position: number(2),
        rows_in: number(3),
        rows_written: number(4),
        rows_rejected: number(5),
        digest: row
            .get::<_, Option<&str>>(6)
            .and_then(|digits| u128::from_str_radix(digits, 16).ok()),
    }
}
