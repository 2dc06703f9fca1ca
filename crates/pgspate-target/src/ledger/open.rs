//! Opens a load's job: continues an unfinished job, or starts a new job.
//!
//! Jobs of one table are opened one after the other, under a lock of the table that lasts only for
//! this moment. So no two jobs can both find that a file is new.

use tokio_postgres::Client;

use super::identity::{JobIdentity, lock_key};
use super::job::{
    JobId, OpenJob, WrittenChunks, ledger_error, prune_old_jobs, read_written_chunks,
};
use super::known_files::{ContinuedJob, KnownFiles};
use super::lookup::{JobLookup, LedgerState};
use super::new_job::{self, NewJobRow, begin_new_job};
use super::unlogged::{bind_job, restart_emptied_job};
use super::{change, emptied, lock, policies, schema, shadow};
use crate::shards::{PreparedScope, resolve_prepared};
use crate::{Error, ErrorKind, Result, TypedQuery, UnloggedExtent};

/// The result of opening a job.
#[derive(Debug, Clone)]
pub enum OpenOutcome {
    /// The job can continue.
    Opened(OpenJob),
    /// Another run has changed what the ledger knows about the files. The load must be prepared
    /// again.
    Outdated,
}

/// How a job is opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenOptions {
    /// Start a new job even if the ledger knows the files.
    pub restart: bool,
    /// Whether this job created its table.
    pub has_created_table: bool,
    /// Whether the caller has begun a transaction, in which the job is opened.
    pub in_transaction: bool,
}

/// Creates the ledger if needed, takes the job's lock, and returns the job: the unfinished job with
/// its chunks, or a new job. `state` is what the ledger knew before the load.
///
/// # Errors
/// [`ErrorKind::Ledger`] if another session works on a job with these files. [`ErrorKind::Server`]
/// if the role may not write the ledger.
pub async fn open_job(
    client: &Client,
    identity: &JobIdentity,
    state: &LedgerState,
    options: OpenOptions,
) -> Result<OpenOutcome> {
    if state.exists
        && matches!(state.found, JobLookup::Nothing)
        && state.known.replaced.is_empty()
        && !state.known.has_lost_rows
        && let Some(opened) = begin_new_job(client, identity, &state.known.seen, options).await?
    {
        return bind(client, identity, opened).await.map(OpenOutcome::Opened);
    }
    schema::ensure_ledger(client).await?;
    let unfinished = state.known.unfinished().map(|job| lock_key(&job.key));
    let mut locks: Vec<i64> = unfinished.chain([identity.lock_key()]).collect();
    locks.sort_unstable();
    locks.dedup();
    for key in locks {
        lock::hold_job_lock(client, key).await?;
        lock::end_earlier_lanes(client, key).await?;
    }
    // The rows of a chunk that the ledger has must be visible before the table counts as empty.
    resolve_prepared(client, PreparedScope::AnyJob).await?;
    let known = KnownFiles::read(client, identity, options.restart).await?;
    if !known.agrees_with(&state.known) {
        return Ok(OpenOutcome::Outdated);
    }
    check_role(client, &known).await?;
    if let JobLookup::Unfinished(record, ..) = &state.found {
        let job = JobId(record.job);
        let crash_removes_rows = bind_job(client, job, identity).await?;
        if crash_removes_rows {
            // Forget chunks whose rows a crash has removed.
            restart_emptied_job(client, job, identity).await?;
        }
        if !continue_job(client, identity, &known, job, options).await? {
            return Ok(OpenOutcome::Outdated);
        }
        let done = read_written_chunks(client, job).await?;
        let opened = OpenJob { job, done, is_clean: false, crash_removes_rows };
        return Ok(OpenOutcome::Opened(opened));
    }
    for replaced in &known.replaced {
        shadow::drop_shadow(client, JobId(replaced.record.job)).await?;
    }
    prune_old_jobs(client).await?;
    let Some(job) = start_job(client, identity, &known, options).await? else {
        return Ok(OpenOutcome::Outdated);
    };
    let opened =
        OpenJob { job, done: WrittenChunks::default(), is_clean: false, crash_removes_rows: false };
    bind(client, identity, opened).await.map(OpenOutcome::Opened)
}

/// Refuses an unfinished job of a role that the current role is not a member of.
async fn check_role(client: &Client, known: &KnownFiles) -> Result<()> {
    let jobs: Vec<i64> = known.unfinished().map(|job| job.job).collect();
    let sql = format!(
        "select job, role::text from pgspate.job where job = any($1) and not {} limit 1",
        policies::IS_OURS
    );
    let Some(row) = client.fetch_opt(&sql, &[&jobs]).await.map_err(ledger_error())? else {
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
        && bind_job(client, opened.job, identity).await?;
    Ok(OpenJob { crash_removes_rows, ..opened })
}

/// Starts a job in place of the replaced jobs. Returns `None` if the load is outdated.
async fn start_job(
    client: &Client,
    identity: &JobIdentity,
    known: &KnownFiles,
    options: OpenOptions,
) -> Result<Option<JobId>> {
    change_jobs(client, identity, known, options.in_transaction, async || {
        let replaced = forget_replaced(client, known, None).await?;
        if known.has_lost_rows {
            emptied::forget_lost_rows(client, identity).await?;
        }
        let row = NewJobRow::of(identity, options.has_created_table);
        let row = client.fetch_one(&new_job::insert_job_sql(), &row.values()).await;
        let job = JobId(row.map_err(refused)?.get(0));
        insert_files(client, identity, job, 0).await?;
        change::reassign_changes(client, job, &replaced, None).await?;
        Ok(job)
    })
    .await
}

/// Gives an unfinished job the files of this load: those after the files of its written chunks may
/// be others than before. Returns false if the load is outdated.
async fn continue_job(
    client: &Client,
    identity: &JobIdentity,
    known: &KnownFiles,
    job: JobId,
    options: OpenOptions,
) -> Result<bool> {
    let kept = known.continued.as_ref().map_or(0, ContinuedJob::first_files);
    let changed = change_jobs(client, identity, known, options.in_transaction, async || {
        let replaced = forget_replaced(client, known, Some(job)).await?;
        if known.has_lost_rows {
            emptied::forget_lost_rows(client, identity).await?;
        }
        let sql = "with files as (delete from pgspate.source_file where job = $1 and input >= $2) \
                   update pgspate.job set lists_all_files = true where job = $1";
        let from = i32::try_from(kept).unwrap_or(i32::MAX);
        client.run_statement(sql, &[&job.0, &from]).await.map_err(refused)?;
        insert_files(client, identity, job, kept).await?;
        change::reassign_changes(client, job, &replaced, None).await
    })
    .await?;
    Ok(changed.is_some())
}

/// Runs `work` in a transaction, under the lock that serialises the opening of the table's jobs.
/// Returns `None` and changes nothing if another session has started a job with one of the files.
async fn change_jobs<T>(
    client: &Client,
    identity: &JobIdentity,
    known: &KnownFiles,
    in_transaction: bool,
    work: impl AsyncFnOnce() -> Result<T>,
) -> Result<Option<T>> {
    if !in_transaction {
        // With read committed, a statement sees what was committed before the lock was free.
        let begin = "begin isolation level read committed";
        client.batch_execute(begin).await.map_err(ledger_error())?;
    }
    let changed = async {
        let lock = "select pg_advisory_xact_lock($1)";
        let key = new_job::opening_lock_key(identity.table_oid);
        client.fetch_one(lock, &[&key]).await.map_err(ledger_error())?;
        let sql = format!("select {}", new_job::has_other_job_sql("$1", "$2", "$3"));
        let (keys, oid) = (identity.file_keys(), identity.table_oid);
        let row = client.fetch_one(&sql, &[&keys, &oid, &known.seen]).await;
        match row.map_err(ledger_error())?.get(0) {
            true => Ok(None),
            false => work().await.map(Some),
        }
    }
    .await;
    if in_transaction {
        return changed;
    }
    let end = if matches!(changed, Ok(Some(_))) { "commit" } else { "rollback" };
    let ended = client.batch_execute(end).await.map_err(ledger_error());
    let changed = changed?;
    ended.map(|()| changed)
}

/// Forgets the replaced jobs, except `kept`, but not the changes to the table that they have not
/// put back. Returns the forgotten jobs.
async fn forget_replaced(
    client: &Client,
    known: &KnownFiles,
    kept: Option<JobId>,
) -> Result<Vec<i64>> {
    let jobs = known.replaced.iter().map(|job| job.record.job);
    let jobs: Vec<i64> = jobs.filter(|job| kept != Some(JobId(*job))).collect();
    if jobs.is_empty() {
        return Ok(jobs);
    }
    // Without the rows of the ledger, nothing says how prepared transactions are to end.
    for job in &jobs {
        resolve_prepared(client, PreparedScope::ForgottenJob(*job)).await?;
    }
    let sql = "with rejects as (delete from pgspate.reject where job = any($1)), \
                    chunks as (delete from pgspate.ledger where job = any($1)), \
                    changes as (delete from pgspate.change where job = any($1) \
                                  and done >= cardinality(steps)) \
               delete from pgspate.job where job = any($1) and finished is null";
    client.run_statement(sql, &[&jobs]).await.map_err(refused)?;
    Ok(jobs)
}

/// Records the job's sources from the position `from` on.
async fn insert_files(
    client: &Client,
    identity: &JobIdentity,
    job: JobId,
    from: usize,
) -> Result<()> {
    let sql = format!("{} where n.nth > $3", new_job::insert_files_sql("$1", "$2"));
    let (files, from) = (identity.files_json(), i64::try_from(from).unwrap_or(i64::MAX));
    client.run_statement(&sql, &[&job.0, &files, &from]).await.map(drop).map_err(refused)
}

fn refused(error: tokio_postgres::Error) -> Error {
    schema::with_grant_hint(ledger_error()(error))
}
