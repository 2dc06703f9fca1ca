//! The stage of a job of a distributed engine: the table that attempts write to until the job is
//! complete. Each run of the driver has a stage of its own.

use tokio_postgres::Client;

use super::fleet_job::{BegunFleetJob, NewFleetJob, in_transaction, lock_fence};
use super::fleet_reject::mark_attempts;
use super::job::{JobId, ledger_error};
use super::shadow;
use crate::signalled_sessions::MAY_SIGNAL;
use crate::{Error, ErrorKind, Result, TypedQuery, quote_ident};

/// Returns the name of a run's stage in SQL.
pub fn stage_name(job: i64, fence: i64) -> String {
    format!("{}.stage_{fence}", shadow::schema_name(JobId(job)))
}

/// Creates the stage of a job whose stage is created after the job has begun. The job has no schema
/// yet.
///
/// # Errors
/// [`ErrorKind::Server`] if the stage cannot be created, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn create_job_stage(
    client: &Client,
    begun: &BegunFleetJob,
    table: (u32, &str),
) -> Result<()> {
    let created = async {
        if !lock_fence(client, begun).await? {
            let message = format!("job {} was begun again", begun.job);
            return Err(Error::new(ErrorKind::Ledger, message));
        }
        create_stage_schema(client, begun.job, table.1).await?;
        create_stage(client, begun.job, begun.fence, table).await
    };
    in_transaction(client, created).await
}

/// Creates the stage of this run of the driver.
pub(super) async fn create_run_stage(
    client: &Client,
    job: i64,
    fence: i64,
    new: NewFleetJob<'_>,
) -> Result<()> {
    // A run that was to create a shadow may have ended before. An abort may have been interrupted.
    if shadow::read_state(client, JobId(job)).await?.is_none() {
        create_stage_schema(client, job, new.table).await?;
    }
    create_stage(client, job, fence, (new.table_oid, new.table)).await?;
    mark_attempts(client, job, fence, new).await
}

/// Creates the stage of a job that is joined, if an abort has raised the fence and has then failed.
pub(super) async fn ensure_stage(
    client: &Client,
    begun: &BegunFleetJob,
    new: NewFleetJob<'_>,
) -> Result<()> {
    let sql = "select to_regclass($1) is not null";
    let stage = stage_name(begun.job, begun.fence);
    let row = client.fetch_one(sql, &[&stage.as_str()]).await.map_err(ledger_error())?;
    if row.get(0) {
        return Ok(());
    }
    // The parts of earlier fences were in another stage.
    let sql = "delete from pgspate.part where job = $1";
    client.run_statement(sql, &[&begun.job]).await.map_err(ledger_error())?;
    create_run_stage(client, begun.job, begun.fence, new).await
}

async fn create_stage_schema(client: &Client, job: i64, table: &str) -> Result<()> {
    let failed = crate::server_error("could not create the job's stage".to_owned());
    let create = shadow::create_schema_sql(JobId(job), table, "fleet");
    client.batch_execute(&create).await.map_err(failed)
}

/// Creates the stage: an unlogged table with the target's columns, without constraints. `table` is
/// the target's oid and its name in SQL.
async fn create_stage(client: &Client, job: i64, fence: i64, table: (u32, &str)) -> Result<()> {
    let (oid, table) = table;
    let columns = stage_columns(client, oid).await?;
    let columns: Vec<_> = columns.iter().map(|name| quote_ident(name)).collect();
    let create = format!(
        "create unlogged table {} as select {} from {} with no data",
        stage_name(job, fence),
        columns.join(", "),
        table
    );
    let failed = || crate::server_error("could not create the job's stage".to_owned());
    client.batch_execute(&create).await.map_err(failed())
}

/// Returns the columns of a table's stage: those that are not generated.
///
/// # Errors
/// [`ErrorKind::Server`] if the catalog cannot be read, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn stage_columns(client: &Client, table: u32) -> Result<Vec<String>> {
    let failed = || crate::server_error("could not read the table's columns".to_owned());
    let sql = "select attname from pg_attribute where attrelid = $1 and attnum > 0 \
               and not attisdropped and attgenerated = '' order by attnum";
    let rows = client.fetch_all(sql, &[&table]).await.map_err(failed())?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Returns whether these columns have the same types, with the same modifiers, in the stage or the
/// shadow as in another relation. A column that the other relation lacks is not compared. Both are
/// named as in SQL. The user's search path may be set, so operators are qualified.
///
/// # Errors
/// [`ErrorKind::Server`] if the catalog cannot be read, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn has_stage_types(
    client: &Client,
    stage: &str,
    columns: &[String],
    relation: &str,
) -> Result<bool> {
    let failed = crate::server_error("could not compare the stage with the table".to_owned());
    let sql = "select not exists ( \
                   select from pg_catalog.pg_attribute s join pg_catalog.pg_attribute t \
                   on t.attname operator(pg_catalog.=) s.attname \
                   where s.attrelid operator(pg_catalog.=) \
                           pg_catalog.to_regclass($1)::pg_catalog.oid \
                     and t.attrelid operator(pg_catalog.=) \
                           pg_catalog.to_regclass($3)::pg_catalog.oid \
                     and s.attname::pg_catalog.text operator(pg_catalog.=) any ($2) \
                     and (s.atttypid operator(pg_catalog.<>) t.atttypid \
                          or s.atttypmod operator(pg_catalog.<>) t.atttypmod))";
    let columns = columns.to_vec();
    let row = client.fetch_one(sql, &[&stage, &columns, &relation]).await.map_err(failed)?;
    Ok(row.get(0))
}

/// Ends sessions that still write into stages of earlier runs, and drops these stages. Errors are
/// ignored: the stages are dropped with the job's schema later.
pub(super) async fn drop_old_stages(client: &Client, begun: &BegunFleetJob) {
    for fence in begun.first_fence()..begun.fence {
        let stage = stage_name(begun.job, fence);
        end_writers(client, &stage).await;
        // One message is one transaction.
        let sql = format!("set local lock_timeout = '1s'; drop table if exists {stage}");
        let _ = client.batch_execute(&sql).await;
    }
}

/// Ends sessions that write into a stage or shadow, if this role may end them. Sessions that read
/// it, such as a backup, are left alone. Errors are ignored.
pub async fn end_writers(client: &Client, stage: &str) {
    let sql = format!(
        "select pg_terminate_backend(l.pid) \
         from pg_locks l join pg_stat_activity a on a.pid = l.pid \
         where l.relation = to_regclass($1) and l.pid <> pg_backend_pid() \
           and l.mode = 'RowExclusiveLock' and l.granted and {MAY_SIGNAL} \
           and l.database = (select oid from pg_database where datname = current_database())"
    );
    let _ = client.fetch_all(&sql, &[&stage]).await;
}
