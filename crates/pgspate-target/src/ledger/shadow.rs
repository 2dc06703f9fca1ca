//! Shadow tables: each in a schema of its own, which is named after the job that fills it.
//!
//! The job's row outlives its shadow and never the other way round, so that no shadow is left
//! that `pgspate status` does not name.

use tokio_postgres::Client;

use super::JobId;
use crate::{Ask, Result, is_trusted_sql, server_error};

/// How the comment begins that tells such a schema from somebody else's.
const MARK: &str = "pgspate: ";

/// The schema of a job's shadow table.
pub fn schema_name(job: JobId) -> String {
    format!("pgspate_job_{}", job.0)
}

/// Makes the schema; `likeness` tells in which state the table was then.
pub fn make_sql(job: JobId, table: &str, likeness: &str) -> String {
    let name = schema_name(job);
    let comment = format!("{MARK}rows to come of {table}, state {likeness}").replace('\'', "''");
    format!("create schema {name}; comment on schema {name} is '{comment}'")
}

/// NULL of a schema that somebody else has made under the name.
fn comment_sql() -> String {
    format!(
        "select (select obj_description(oid, 'pg_namespace') from pg_namespace \
                 where nspname = $1 and {})",
        is_trusted_sql("nspowner")
    )
}

/// Whether the job has a shadow, and of a table in which state.
pub async fn state(client: &Client, job: JobId) -> Result<Option<String>> {
    let row = client.ask_one(&comment_sql(), &[&schema_name(job)]).await.map_err(failed())?;
    let comment: Option<String> = row.get(0);
    Ok(comment.filter(|comment| comment.starts_with(MARK)).map(|comment| {
        comment.rsplit_once(" state ").map(|(_, state)| state.to_owned()).unwrap_or_default()
    }))
}

/// Drops the shadow, if the job has one. Whether it had.
pub async fn drop(client: &Client, job: JobId) -> Result<bool> {
    if state(client, job).await?.is_none() {
        return Ok(false);
    }
    // A lane whose connection was cut off may take a while to notice.
    let name = schema_name(job);
    let sql = format!("begin; set local lock_timeout = '20s'; drop schema {name} cascade; commit");
    let failed = server_error(format!("could not drop the shadow table of job {}", job.0));
    let dropped = client.batch_execute(&sql).await.map_err(failed);
    if dropped.is_err() {
        // The error that is told is the one before.
        let _ = client.batch_execute("rollback").await;
    }
    dropped.map(|()| true)
}

fn failed() -> impl FnOnce(tokio_postgres::Error) -> crate::Error {
    server_error("could not look for shadow tables".to_owned())
}
