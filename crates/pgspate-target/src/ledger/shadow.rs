//! Shadow tables: the new rows of a job, until they replace the old table. Each shadow table is in
//! a schema of its own, which is named after the job.
//!
//! A job's ledger row exists at least as long as its shadow table. So `pgspate status` lists every
//! shadow table.

use tokio_postgres::Client;

use super::JobId;
use crate::{Result, TypedQuery, is_trusted_sql, server_error};

/// The start of the comment on such a schema. The comment shows that pgspate created the schema.
const MARK: &str = "pgspate: ";

/// Returns the name of the schema for a job's shadow table.
pub fn schema_name(job: JobId) -> String {
    format!("pgspate_job_{}", job.0)
}

/// Returns statements that create the schema. Its comment records `table_state`, a digest of the
/// table's properties.
pub fn create_schema_sql(job: JobId, table: &str, table_state: &str) -> String {
    let name = schema_name(job);
    let comment = format!("{MARK}new rows of {table}, state {table_state}").replace('\'', "''");
    format!("create schema {name}; comment on schema {name} is '{comment}'")
}

/// Returns the query for the schema's comment. The comment is NULL if the schema's owner is not
/// trusted.
fn comment_sql() -> String {
    format!(
        "select (select obj_description(oid, 'pg_namespace') from pg_namespace \
                 where nspname = $1 and {})",
        is_trusted_sql("nspowner")
    )
}

/// Reads the table state recorded for the job's shadow table. `None` if the job has no shadow
/// table.
pub async fn read_state(client: &Client, job: JobId) -> Result<Option<String>> {
    let row = client.fetch_one(&comment_sql(), &[&schema_name(job)]).await.map_err(failed())?;
    let comment: Option<String> = row.get(0);
    Ok(comment.filter(|comment| comment.starts_with(MARK)).map(|comment| {
        comment.rsplit_once(" state ").map(|(_, state)| state.to_owned()).unwrap_or_default()
    }))
}

/// Drops the job's shadow table, if it has one, and forgets the chunks that were written to it.
/// Otherwise a later run could take these chunks for rows of the table. Returns whether the job had
/// a shadow table.
pub async fn drop_shadow(client: &Client, job: JobId) -> Result<bool> {
    if read_state(client, job).await?.is_none() {
        return Ok(false);
    }
    // A disconnected lane may hold its locks until the server notices.
    let sql = format!("begin; set local lock_timeout = '20s'; {}; commit", drop_shadow_sql(job));
    let failed = server_error(format!("could not drop the shadow table of job {}", job.0));
    let dropped = client.batch_execute(&sql).await.map_err(failed);
    if dropped.is_err() {
        // The error of the statements is reported.
        let _ = client.batch_execute("rollback").await;
    }
    dropped.map(|()| true)
}

/// Returns statements that drop the job's shadow table, which must exist, and forget the chunks
/// that were written to it.
pub(super) fn drop_shadow_sql(job: JobId) -> String {
    let name = schema_name(job);
    format!(
        "drop schema {name} cascade; \
         with forgotten as (delete from pgspate.ledger where job = {job} returning job, chunk) \
         delete from pgspate.reject r using forgotten f \
         where (r.job, r.chunk) = (f.job, f.chunk)",
        job = job.0
    )
}

fn failed() -> impl FnOnce(tokio_postgres::Error) -> crate::Error {
    server_error("could not check for shadow tables".to_owned())
}
