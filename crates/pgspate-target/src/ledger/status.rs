//! Lists and forgets the ledger's jobs, for `pgspate status`.

use serde::Serialize;
use tokio_postgres::Client;

use super::change::{self, RecordedChange};
use super::identity::lock_key;
use super::{JobId, fleet_end, lock, schema, shadow, unlogged};
use crate::shards::{PreparedScope, resolve_prepared};
use crate::{Error, ErrorKind, Result, TypedQuery, server_error};

/// A job as `pgspate status` shows it.
#[derive(Debug, Clone, Serialize)]
pub struct JobStatus {
    /// The job's number.
    pub job: i64,
    /// The command: `load`.
    pub command: String,
    /// The table, quoted for SQL.
    pub table: String,
    /// The names of the first thousand sources.
    pub sources: Vec<String>,
    /// When the job started.
    pub started: String,
    /// Seconds since the job started, for an unfinished job.
    pub age_seconds: Option<i64>,
    /// When the job was finished; `None` for an unfinished job.
    pub finished: Option<String>,
    /// The session that works on the job, in words.
    pub worker: Option<String>,
    /// The schema of the job's shadow table, if the job has one.
    pub shadow: Option<String>,
    /// Chunks written.
    pub chunks: i64,
    /// Rows read, in these chunks.
    pub rows_in: i64,
    /// Rows written.
    pub rows_written: i64,
    /// Rows rejected.
    pub rows_rejected: i64,
    /// Changes to the table that are not put back: `index "a"`.
    pub changes: Vec<String>,
    /// Whether a later server crash has emptied the table or its unlogged partitions.
    pub emptied: bool,
    /// The name of a job of a distributed engine, if it has one.
    pub name: Option<String>,
    /// The parts that tasks of a distributed engine have written; `None` for other jobs.
    pub parts: Option<i64>,
}

const LIST: &str = "\
select j.job, j.command, j.table_name,
       array(select source ->> 'name' from pgspate.source_file f where f.job = j.job
             order by input limit 1000),
       j.started::timestamptz(0)::text, j.finished::timestamptz(0)::text, j.key,
       j.chunks + coalesce(l.chunks, 0), j.rows_in + coalesce(l.rows_in, 0),
       j.rows_written + coalesce(l.rows_written, 0), j.rows_rejected + coalesce(l.rows_rejected, 0),
       case when j.finished is null
            then extract(epoch from clock_timestamp() - j.started)::bigint end,
       f.name,
       case when f.job is not null
            then coalesce((f.report::jsonb ->> 'parts')::bigint,
                          (select count(distinct part) from pgspate.part p where p.job = j.job)) end
from pgspate.job j left join pgspate.fleet_job f on f.job = j.job left join lateral (
    select count(*) as chunks, sum(rows_in)::bigint as rows_in,
           sum(rows_written)::bigint as rows_written, sum(rows_rejected)::bigint as rows_rejected
    from pgspate.ledger l where l.job = j.job and j.finished is null) l on true
where $1::bigint is null or j.job = $1
order by j.job";

/// Reads all jobs in the order in which they started, or one job. Empty without a ledger.
///
/// # Errors
/// [`ErrorKind::Ledger`] if the job does not exist, [`ErrorKind::Server`] if the ledger cannot be
/// read.
pub async fn list_jobs(client: &Client, job: Option<i64>) -> Result<Vec<JobStatus>> {
    if !schema::check_exists(client).await? {
        return match job {
            None => Ok(Vec::new()),
            Some(job) => Err(unknown_job_error(job)),
        };
    }
    let failed = || server_error("could not read the ledger, schema \"pgspate\"".to_owned());
    let rows = client.fetch_all(LIST, &[&job]).await.map_err(failed())?;
    if let (true, Some(job)) = (rows.is_empty(), job) {
        return Err(unknown_job_error(job));
    }
    let outstanding = change::outstanding_changes(client, job).await?;
    let (emptied, _) = unlogged::emptied_writers(client).await?;
    let mut jobs = Vec::with_capacity(rows.len());
    for row in rows {
        let finished: Option<String> = row.get(5);
        let worker = match finished {
            None => lock::lock_holder(client, lock_key(row.get(6))).await?,
            Some(_) => None,
        };
        let job = JobId(row.get(0));
        let shadow = shadow::read_state(client, job).await?.map(|_| shadow::schema_name(job));
        let changes = outstanding.iter().filter(|change| change.job == job.0);
        jobs.push(JobStatus {
            job: job.0,
            command: row.get(1),
            table: row.get(2),
            sources: row.get(3),
            started: row.get(4),
            finished,
            worker,
            shadow,
            chunks: row.get(7),
            rows_in: row.get(8),
            rows_written: row.get(9),
            rows_rejected: row.get(10),
            age_seconds: row.get(11),
            changes: changes.map(RecordedChange::name).collect(),
            emptied: emptied.contains(&job.0),
            name: row.get(12),
            parts: row.get(13),
        });
    }
    Ok(jobs)
}

/// Forgets a job. Its rows stay in the table, and its sources can be loaded again. Rows in a shadow
/// table are dropped.
///
/// # Errors
/// [`ErrorKind::Ledger`] if the job does not exist, or if a session works on the job. Also if a
/// driver completes the job meanwhile, or if the job has changes that are not put back.
pub async fn forget_job(client: &Client, job: i64) -> Result<()> {
    let jobs = list_jobs(client, Some(job)).await?;
    if let Some(worker) = jobs.first().and_then(|status| status.worker.as_deref()) {
        let message = format!("job {job} is running in {worker}");
        return Err(Error::new(ErrorKind::Ledger, message).hint("Stop that session first."));
    }
    if let Some(change) = jobs.first().and_then(|status| status.changes.first()) {
        let message = format!("job {job} has not put back {change}");
        return Err(Error::new(ErrorKind::Ledger, message).hint(format!(
            "Put its changes back with `pgspate status --restore {job}`, or discard them with \
             `delete from pgspate.change where job = {job}`."
        )));
    }
    if jobs.first().is_some_and(|it| it.command == "fleet" && it.finished.is_none()) {
        fleet_end::fence_off_for_forgetting(client, job).await?;
    }
    // Only the ledger's rows say that prepared transactions are to be committed.
    resolve_prepared(client, PreparedScope::ForgottenJob(job)).await?;
    shadow::drop_shadow(client, JobId(job)).await?;
    let sql = format!(
        "begin; delete from pgspate.ledger where job = {job}; \
         delete from pgspate.reject where job = {job}; \
         delete from pgspate.change where job = {job} and done >= cardinality(steps); \
         delete from pgspate.job where job = {job} \
         and not exists (select from pgspate.change where change.job = {job}); commit"
    );
    let failed = server_error(format!("could not forget job {job}"));
    client.batch_execute(&sql).await.map_err(failed)
}

fn unknown_job_error(job: i64) -> Error {
    Error::new(ErrorKind::Ledger, format!("the ledger of this database has no job {job}"))
        .hint("`pgspate status` lists all jobs.")
}
