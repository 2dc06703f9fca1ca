//! Emptied tables: whether a table is empty, and the record that it was emptied. Rows of earlier
//! jobs no longer count then.

use tokio_postgres::{Client, SimpleQueryMessage};

use super::identity::JobIdentity;
use super::job::{JobId, ledger_error};
use super::trust::LedgerSchema;
use crate::{Result, TypedQuery};

/// Returns whether the table is empty, so that no rows of an earlier run are left.
pub(super) async fn is_table_empty(client: &Client, identity: &JobIdentity) -> Result<bool> {
    if !identity.keeps_rows {
        return Ok(false);
    }
    // If another session locks out readers, the table does not count as empty: that session has not
    // committed.
    let sql = format!(
        "begin; set local lock_timeout = '1s'; \
         select not exists (select 1 from {}) as is_empty; commit",
        identity.table
    );
    let answers = match client.simple_query(&sql).await {
        Ok(answers) => answers,
        Err(error) if error.as_db_error().is_some() => {
            // For a role that may not read the table, the table does not count as empty.
            client.batch_execute("rollback").await.map_err(ledger_error())?;
            return Ok(false);
        }
        Err(error) => return Err(ledger_error()(error)),
    };
    Ok(answers.iter().any(|answer| match answer {
        SimpleQueryMessage::Row(row) => row.get(0) == Some("t"),
        _ => false,
    }))
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
