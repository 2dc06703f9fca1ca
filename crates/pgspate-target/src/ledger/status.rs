//! Lists and forgets the ledger's jobs, for `pgspate status`.

use serde::Serialize;
use tokio_postgres::Client;

use super::change::{self, RecordedChange};
use super::fleet_job::{self, BegunFleetJob};
use super::identity::lock_key;
use super::{JobId, fleet_end, lock, policies, schema, shadow, unlogged};
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
    /// The role that runs the job.
    pub role: String,
    /// Chunks written. `None`, as for the next four numbers: only the job's role may see the chunks
    /// and parts of an unfinished job.
    pub chunks: Option<i64>,
    /// Rows read, in these chunks.
    pub rows_in: Option<i64>,
    /// Rows written.
    pub rows_written: Option<i64>,
    /// Rows rejected.
    pub rows_rejected: Option<i64>,
    /// Changes to the table that are not put back: `index "a"`.
    pub changes: Vec<String>,
    /// Whether a later server crash has emptied the table or its unlogged partitions.
    pub emptied: bool,
    /// The name of a job of a distributed engine, if it has one.
    pub name: Option<String>,
    /// The parts that tasks of a distributed engine have written; `None` for other jobs, too.
    pub parts: Option<i64>,
    /// The number of the latest run of the driver of a distributed engine.
    #[serde(skip)]
    pub fence: Option<i64>,
}

/// Returns the query for jobs. Row-level security hides chunks and parts of other roles.
fn list_sql() -> String {
    format!(
        "select j.job, j.command, j.table_name, \
                array(select source ->> 'name' from pgspate.source_file f where f.job = j.job \
                      order by input limit 1000), \
                j.started::timestamptz(0)::text, j.finished::timestamptz(0)::text, j.key, \
                case when v.is_visible then j.chunks + coalesce(l.chunks, 0) end, \
                case when v.is_visible then j.rows_in + coalesce(l.rows_in, 0) end, \
                case when v.is_visible then j.rows_written + coalesce(l.rows_written, 0) end, \
                case when v.is_visible then j.rows_rejected + coalesce(l.rows_rejected, 0) end, \
                case when j.finished is null \
                     then extract(epoch from clock_timestamp() - j.started)::bigint end, \
                f.name, \
                case when v.is_visible and f.job is not null \
                     then coalesce((f.report::jsonb ->> 'parts')::bigint, \
                         (select count(distinct part) from pgspate.part p where p.job = j.job)) \
                     end, \
                f.fence, j.role::text \
         from pgspate.job j left join pgspate.fleet_job f on f.job = j.job \
         cross join lateral ( \
             select j.finished is not null or {} \
                    or not row_security_active('pgspate.ledger'::regclass) as is_visible) v \
         left join lateral ( \
             select count(*) as chunks, sum(rows_in)::bigint as rows_in, \
                    sum(rows_written)::bigint as rows_written, \
                    sum(rows_rejected)::bigint as rows_rejected \
             from pgspate.ledger l where l.job = j.job and j.finished is null) l on true \
         where $1::bigint is null or j.job = $1 \
         order by j.job",
        policies::IS_OURS
    )
}

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
    let rows = client.fetch_all(&list_sql(), &[&job]).await.map_err(failed())?;
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
            fence: row.get(14),
            role: row.get(15),
        });
    }
    Ok(jobs)
}

/// Forgets a job. Its rows stay in the table, and its sources can be loaded again. Rows in a shadow
/// table are dropped.
///
/// # Errors
/// [`ErrorKind::Ledger`] if the job does not exist, belongs to another role, or if a session works
/// on the job. Also if a driver completes the job or begins it again meanwhile, or if the job has
/// changes that are not put back.
pub async fn forget_job(client: &Client, job: i64) -> Result<()> {
    let found = list_jobs(client, Some(job)).await?.pop();
    let Some(status) = found else { return Err(unknown_job_error(job)) };
    check_role(client, job).await?;
    if let Some(worker) = status.worker {
        let message = format!("job {job} is running in {worker}");
        return Err(Error::new(ErrorKind::Ledger, message).hint("Stop that session first."));
    }
    if let Some(change) = status.changes.first() {
        return Err(kept_change_error(job, change));
    }
    let fence = match status.fence {
        Some(fence) if status.finished.is_none() => {
            fleet_end::fence_off_for_forgetting(client, job, fence).await?;
            Some(fence + 1)
        }
        fence => fence,
    };
    match delete_job(client, job, fence).await? {
        true => Ok(()),
        false => Err(fleet_end::begun_again_error(job)),
    }
}

/// Forgets a job of a distributed engine after [`fence_off`](super::fence_off). Returns false if
/// the driver has begun the job again since, or if it was forgotten.
///
/// # Errors
/// [`ErrorKind::Ledger`] if the job has changes that are not put back. [`ErrorKind::Server`] if the
/// ledger cannot be written, or if an attempt needs long.
pub async fn forget_aborted_job(client: &Client, aborted: &BegunFleetJob) -> Result<bool> {
    delete_job(client, aborted.job, Some(aborted.fence + 1)).await
}

/// Refuses a job of a role that the current role is not a member of. Row-level security would hide
/// the job's rows from the statements that delete them.
async fn check_role(client: &Client, job: i64) -> Result<()> {
    let sql = format!(
        "select role::text from pgspate.job where job = $1 \
         and row_security_active('pgspate.job'::regclass) and not {}",
        policies::IS_OURS
    );
    let failed = server_error("could not read the ledger, schema \"pgspate\"".to_owned());
    let Some(row) = client.fetch_opt(&sql, &[&job]).await.map_err(failed)? else {
        return Ok(());
    };
    let role: &str = row.get(0);
    let message = format!("job {job} belongs to role \"{role}\"");
    Err(Error::new(ErrorKind::Ledger, message)
        .hint(format!("Forget the job as \"{role}\" or a member of that role.")))
}

/// Deletes a job and its shadow table. Returns false and changes nothing if the fence of the job is
/// no longer `fence`. The lock on the job's row lasts until the end, so that no driver begins the
/// job again meanwhile.
async fn delete_job(client: &Client, job: i64, fence: Option<i64>) -> Result<bool> {
    // Only the ledger's rows say that prepared transactions are to be committed.
    resolve_prepared(client, PreparedScope::ForgottenJob(job)).await?;
    let failed = || server_error(format!("could not forget job {job}"));
    let delete = async {
        // A disconnected session may hold its locks until the server notices.
        let set = "set local lock_timeout = '20s'";
        client.batch_execute(set).await.map_err(failed())?;
        if let Some(fence) = fence {
            let lock = "select from pgspate.fleet_job where job = $1 and fence = $2 for update";
            let row = client.fetch_opt(lock, &[&job, &fence]).await.map_err(failed())?;
            if row.is_none() {
                return Ok(false);
            }
        }
        if shadow::read_state(client, JobId(job)).await?.is_some() {
            let drop = shadow::drop_shadow_sql(JobId(job));
            client.batch_execute(&drop).await.map_err(failed())?;
        }
        let rows = format!(
            "delete from pgspate.ledger where job = {job}; \
             delete from pgspate.reject where job = {job}; \
             delete from pgspate.change where job = {job} and done >= cardinality(steps)"
        );
        client.batch_execute(&rows).await.map_err(failed())?;
        let sql = "delete from pgspate.job where job = $1 \
                   and not exists (select from pgspate.change where change.job = $1)";
        if client.run_statement(sql, &[&job]).await.map_err(failed())? == 1 {
            return Ok(true);
        }
        let sql = "select exists (select from pgspate.change where job = $1)";
        Err(match client.fetch_one(sql, &[&job]).await.map_err(failed())?.get(0) {
            true => kept_change_error(job, "a change of the table"),
            false => unknown_job_error(job),
        })
    };
    fleet_job::in_transaction(client, delete).await
}

fn kept_change_error(job: i64, change: &str) -> Error {
    let message = format!("job {job} has not put back {change}");
    Error::new(ErrorKind::Ledger, message).hint(format!(
        "Put its changes back with `pgspate status --restore {job}`, or discard them with \
         `delete from pgspate.change where job = {job}`."
    ))
}

fn unknown_job_error(job: i64) -> Error {
    Error::new(ErrorKind::Ledger, format!("the ledger of this database has no job {job}"))
        .hint("`pgspate status` lists all jobs.")
}
