//! Finds the jobs that have recorded the files of a load, by one query for all files.

use serde::Deserialize;
use tokio_postgres::{Client, Row};

use super::emptied::is_emptied_sql;
use super::identity::JobIdentity;
use super::job::{JobRecord, ledger_error};
use super::schema;
use super::source_file::SourceFingerprint;
use super::unlogged::WriterBinding;
use crate::{Result, TypedQuery};

/// A file as a job has recorded it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct FileRecord {
    /// The number of the input in the job.
    pub(super) input: usize,
    /// [`SourceFingerprint::key`].
    pub(super) key: String,
    pub(super) source: SourceFingerprint,
    /// The rows of the file that the job has written, once the job is finished. `None` if an
    /// earlier version of the ledger recorded the job.
    pub(super) rows: Option<i64>,
}

/// A job that has recorded at least one file of a load.
pub(super) struct FoundJob {
    pub(super) record: JobRecord,
    /// For an unfinished job all of its files, for a finished job those of the load.
    pub(super) files: Vec<FileRecord>,
    /// Whether the job's table was not emptied after the job.
    pub(super) counts: bool,
    /// The job's binding to a life of the server, for unlogged tables.
    pub(super) binding: Option<WriterBinding>,
}

/// Reads the jobs with any of the files whose keys are `$1`. The jobs belong to the table with oid
/// `$2`, or are unfinished and have the key `$3`: these were about another table of that name.
const FIND_JOBS: &str = "\
with wanted as (select distinct unnest($1::text[]) as key),
matched as (
    select distinct f.job from pgspate.source_file f join wanted on wanted.key = f.key),
picked as (
    select j.*, not IS_EMPTIED as counts
    from pgspate.job j where j.job in (select matched.job from matched)
         and (table_oid = $2 or (finished is null and key = $3))),
files as (
    select f.job, jsonb_agg(jsonb_build_object('input', f.input, 'key', f.key, 'source', f.source,
                                               'rows', f.rows) order by f.input)::text as files
    from pgspate.source_file f join picked p on p.job = f.job
    where p.finished is null or f.key in (select wanted.key from wanted)
    group by f.job)
select p.job, p.started::timestamptz(0)::text, p.finished::timestamptz(0)::text, p.rows_written,
       p.rows_rejected, p.command, p.key, p.fingerprint, p.options::text, p.table_oid, p.made_table,
       p.lists_all_files, p.counts, files.files, b.job is not null, coalesce(b.whole, false),
       exists (select from pgspate.life l where l.life = b.life)
from picked p join files on files.job = p.job left join pgspate.bound b on b.job = p.job
order by p.job";

/// The last job that has loaded any of the files with the keys `$1` into an earlier table that had
/// the name `$2`, and not the oid `$3`. That table was dropped since, or left in another database.
const FIND_JOB_OF_DROPPED_TABLE: &str = "\
select j.job from pgspate.source_file f join pgspate.job j on j.job = f.job
where f.key = any($1) and j.table_name = $2 and j.table_oid <> $3 and j.rows_written > 0
      and j.finished is not null and not exists (select from pg_class c where c.oid = j.table_oid)
order by j.job desc limit 1";

/// Finds the last job that has loaded files of the load into an earlier table of the same name,
/// which no longer exists.
///
/// # Errors
/// [`ErrorKind::Server`](crate::ErrorKind::Server) if the ledger cannot be read.
pub(super) async fn find_job_of_dropped_table(
    client: &Client,
    identity: &JobIdentity,
) -> Result<Option<i64>> {
    let keys = identity.file_keys();
    let values: [&dyn crate::TypedParameter; 3] = [&keys, &identity.table, &identity.table_oid];
    let found = client.fetch_opt(FIND_JOB_OF_DROPPED_TABLE, &values).await;
    Ok(found.map_err(ledger_error())?.map(|row| row.get(0)))
}

/// Finds the jobs with files of the load, in the order in which they started.
///
/// # Errors
/// [`ErrorKind::Server`](crate::ErrorKind::Server) if the ledger cannot be read.
pub(super) async fn find_jobs(client: &Client, identity: &JobIdentity) -> Result<Vec<FoundJob>> {
    let keys = identity.file_keys();
    let values: [&dyn crate::TypedParameter; 3] = [&keys, &identity.table_oid, &identity.key()];
    let sql = FIND_JOBS.replace("IS_EMPTIED", &is_emptied_sql("j.table_oid", "j.job"));
    let rows = client.fetch_all(&sql, &values).await;
    let rows = rows.map_err(|error| schema::with_grant_hint(ledger_error()(error)))?;
    Ok(rows.iter().map(read_found_job).collect())
}

fn read_found_job(row: &Row) -> FoundJob {
    let record = JobRecord {
        job: row.get(0),
        started: row.get(1),
        finished: row.get(2),
        rows_written: row.get(3),
        rows_rejected: row.get(4),
        command: row.get(5),
        key: row.get(6),
        fingerprint: row.get(7),
        options: row.get(8),
        table_oid: row.get(9),
        has_created_table: row.get(10),
        lists_all_files: row.get(11),
    };
    let is_bound: bool = row.get(14);
    let binding = WriterBinding { is_whole: row.get(15), is_alive: row.get(16) };
    FoundJob {
        record,
        files: serde_json::from_str(row.get(13)).unwrap_or_default(),
        counts: row.get(12),
        binding: is_bound.then_some(binding),
    }
}
