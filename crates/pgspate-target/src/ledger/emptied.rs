//! Emptied tables: whether a table is empty, and the record that it was emptied. Rows of earlier
//! jobs no longer count then.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::identity::{EmptyTable, JobIdentity, RowsIn, lock_key};
use super::job::{JobId, ledger_error};
use super::trust::LedgerSchema;
use super::{lock, schema};
use crate::shards::{PreparedScope, resolve_prepared};
use crate::{Result, TypedQuery, server_error};

/// The jobs of table `$1` that have written rows: finished jobs whose files are known, and
/// unfinished jobs with committed chunks. Columns: job, key, whether the job is finished.
const JOBS_WITH_ROWS: &str = "\
select j.job, j.key, j.finished is not null from pgspate.job j
where j.table_oid = $1 and not {is_emptied}
  and case when j.finished is null
      then j.command = 'load' and exists (select from pgspate.ledger l
                                          where l.job = j.job and l.rows_written > 0)
      else j.rows_written > 0 and exists (select from pgspate.source_file f
                                          where f.job = j.job and f.key <> '') end";

/// How a query runs that may be refused. The commands begin and end it. The end also releases the
/// lock of the table.
struct EmptyCheck([&'static str; 2]);

/// The statements of one message are a transaction of their own.
const ALONE: EmptyCheck = EmptyCheck(["", ""]);
const IN_TRANSACTION: EmptyCheck =
    EmptyCheck(["savepoint pgspate_empty; ", "rollback to pgspate_empty; release pgspate_empty"]);

/// Returns whether the table is empty.
///
/// # Errors
/// [`ErrorKind::Server`](crate::ErrorKind::Server) if another session locks the table for longer
/// than the lock timeout.
pub(super) async fn is_table_empty(client: &Client, identity: &JobIdentity) -> Result<bool> {
    ALONE.is_table_empty(client, identity).await
}

impl EmptyCheck {
    async fn is_table_empty(&self, client: &Client, identity: &JobIdentity) -> Result<bool> {
        let JobIdentity { table, table_oid, rows_in, lock_timeout_millis, .. } = identity;
        if identity.on_empty == EmptyTable::SaysNothing {
            return Ok(false);
        }
        // A trigger may store rows in tables that inherit from the table.
        let is_alone = *rows_in == RowsIn::Table && identity.on_empty == EmptyTable::LostRows;
        let only = if is_alone { "only " } else { "" };
        let EmptyCheck([begin, end]) = self;
        let sql = format!(
            "{begin}set local lock_timeout = {lock_timeout_millis}; \
             select not row_security_active({table_oid}) \
                    and not exists (select 1 from {only}{table}); {end}"
        );
        let refusal = match client.simple_query(&sql).await {
            Ok(answers) => return Ok(is_true(&answers)),
            Err(error) if error.as_db_error().is_some() => error,
            Err(error) => return Err(ledger_error()(error)),
        };
        client.batch_execute(end).await.map_err(ledger_error())?;
        match refusal.code() {
            // The load creates the table.
            Some(&SqlState::UNDEFINED_TABLE) => return Ok(true),
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) if *rows_in == RowsIn::OtherTables => {
                return Ok(false);
            }
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {}
            _ => {
                let failed = server_error(format!("could not check whether {table} is empty"));
                return Err(failed(refusal));
            }
        }
        // This role may not read the table. The size is 0 after a TRUNCATE.
        let sql = format!(
            "select coalesce(sum(pg_relation_size(oid)), 0) = 0 \
             from (select {table_oid}::oid union \
                   select relid from pg_partition_tree({table_oid}::oid::regclass)) part(oid)"
        );
        Ok(is_true(&client.simple_query(&sql).await.map_err(ledger_error())?))
    }
}

/// Returns whether a row of the answers is `true`.
fn is_true(answers: &[SimpleQueryMessage]) -> bool {
    answers.iter().any(|answer| match answer {
        SimpleQueryMessage::Row(row) => row.get(0) == Some("t"),
        _ => false,
    })
}

/// Returns whether jobs have written rows to the table.
pub(super) async fn has_jobs_with_rows(client: &Client, table_oid: u32) -> Result<bool> {
    let sql = format!("select exists ({})", jobs_with_rows_sql());
    Ok(client.fetch_one(&sql, &[&table_oid]).await.map_err(ledger_error())?.get(0))
}

fn jobs_with_rows_sql() -> String {
    JOBS_WITH_ROWS.replace("{is_emptied}", &is_emptied_sql("j.table_oid", "j.job"))
}

/// Forgets what jobs have loaded into the table, if the table is empty: the files of finished jobs,
/// and the chunks of unfinished jobs that do not run. Otherwise these jobs would count again as
/// soon as the table has rows of another job. The caller's transaction has the lock under which the
/// table's jobs are opened. Jobs of roles that this role is not a member of stay as they are.
///
/// # Errors
/// Those of [`is_table_empty`]. [`ErrorKind::Server`](crate::ErrorKind::Server) if the ledger
/// cannot be written.
pub(super) async fn forget_lost_rows(client: &Client, identity: &JobIdentity) -> Result<()> {
    let found = client.fetch_all(&jobs_with_rows_sql(), &[&identity.table_oid]).await;
    let found = found.map_err(ledger_error())?;
    let (mut finished, mut unfinished) = (Vec::<i64>::new(), Vec::<(i64, i64)>::new());
    for row in &found {
        match row.get(2) {
            true => finished.push(row.get(0)),
            false => unfinished.push((row.get(0), lock_key(row.get(1)))),
        }
    }
    let keys: Vec<i64> = unfinished.iter().map(|(_, key)| *key).collect();
    let held = lock::held_keys(client, &keys).await?;
    let stopped = unfinished.iter().filter(|(_, key)| !held.contains(key));
    let stopped: Vec<i64> = stopped.map(|(job, _)| *job).collect();
    // Without the chunks, nothing says how prepared transactions are to end.
    for job in &stopped {
        resolve_prepared(client, PreparedScope::ForgottenJob(*job)).await?;
    }
    // The jobs were read before: rows that a job commits from here on are seen in the table.
    if !IN_TRANSACTION.is_table_empty(client, identity).await? {
        return Ok(());
    }
    let sql = "with files as (update pgspate.source_file set key = '' where job = any($1)), \
                    rejects as (delete from pgspate.reject where job = any($2)) \
               delete from pgspate.ledger where job = any($2)";
    let forgotten = client.run_statement(sql, &[&finished, &stopped]).await;
    forgotten.map(drop).map_err(|error| schema::with_grant_hint(ledger_error()(error)))
}

/// Returns a condition: the table was emptied after the job started, so that rows of the job do not
/// count. `table_oid` and `job` are SQL. A transaction that writes the table's rows must hold a
/// lock on the table that TRUNCATE waits for. The user's search path may be set, so operators are
/// qualified.
pub(super) fn is_emptied_sql(table_oid: &str, job: &str) -> String {
    format!(
        "exists (select from pgspate.emptied e \
                 where e.table_oid operator(pg_catalog.=) {table_oid} \
                   and e.upto operator(pg_catalog.>=) {job} \
                   and e.but operator(pg_catalog.<>) {job})"
    )
}

/// Returns statements that record that the table is emptied, so that the rows of all jobs except
/// `except` no longer count. Parts that tasks have committed are forgotten. The statements must run
/// in the transaction that empties the table. Returns an empty string without a ledger, or if this
/// role may not write the ledger.
pub async fn record_emptied_sql(
    client: &Client,
    table_oid: u32,
    except: Option<JobId>,
) -> Result<String> {
    if !LedgerSchema::read(client).await?.is_readable() {
        return Ok(String::new());
    }
    // A list of privileges would mean any of them.
    let sql = "select \
        (has_table_privilege(emptied, 'select') and has_table_privilege(emptied, 'insert') \
         and has_table_privilege(emptied, 'delete') \
         and has_table_privilege(job, 'select')) is true, \
        (has_table_privilege(part, 'select') and has_table_privilege(part, 'delete')) is true \
        from (select to_regclass('pgspate.emptied') as emptied, to_regclass('pgspate.job') as job, \
                     to_regclass('pgspate.part') as part) t";
    let may = client.fetch_one(sql, &[]).await.map_err(ledger_error())?;
    if !may.get::<_, bool>(0) {
        return Ok(String::new());
    }
    let except = except.map_or(0, |job| job.0);
    let tables = format!(
        "(select {table_oid}::oid as oid \
          union select relid::oid from pg_partition_tree({table_oid}::oid::regclass)) t"
    );
    let parts = match may.get(1) {
        true => format!(
            "; delete from pgspate.part p using pgspate.job j, {tables} \
             where j.job = p.job and j.table_oid = t.oid and j.command = 'fleet' \
               and j.options->>'commit' = 'task' and j.job <> {except}"
        ),
        false => String::new(),
    };
    Ok(format!(
        "delete from pgspate.emptied where table_oid = {table_oid}::oid; \
         insert into pgspate.emptied (table_oid, upto, but) \
         select t.oid, coalesce((select max(job) from pgspate.job), 0), {except} \
         from {tables} where pg_catalog.has_table_privilege(t.oid, 'truncate'){parts}"
    ))
}
