//! Finished jobs: whether one of them has loaded the sources in their current state.

use tokio_postgres::{Client, SimpleQueryMessage};

use super::identity::{JobIdentity, SourceMatch};
use super::job::{JobId, JobLookup, JobRecord, ledger_error};
use super::trust::LedgerSchema;
use super::unlogged::{self, RowSurvival};
use crate::{Result, TypedQuery};
use pgspate_input::format::ContentDigests;

/// Checks whether one of these finished jobs has loaded the sources.
///
/// # Errors
/// [`ErrorKind::Ledger`] if a job has loaded a part of the current sources, or the same sources
/// with other options.
pub(super) async fn find_finished(
    client: &Client,
    identity: &JobIdentity,
    records: Vec<JobRecord>,
) -> Result<JobLookup> {
    let is_counted = |record: &JobRecord| record.table_oid == identity.table_oid;
    let records: Vec<_> = records.into_iter().filter(is_counted).collect();
    // With `--replace`, the user wants to load again.
    if records.is_empty() || identity.is_replace() || is_table_empty(client, identity).await? {
        return Ok(JobLookup::Nothing);
    }
    let fingerprint = identity.fingerprint();
    for record in records {
        let is_same = record.fingerprint == fingerprint;
        let job = JobId(record.job);
        let row_survival = match record.rows_written {
            0 => Ok(RowSurvival::Kept),
            _ => unlogged::row_survival(client, job, identity).await,
        };
        // A crash has emptied the table, so the job no longer counts.
        if let Ok(RowSurvival::Emptied) = row_survival {
            continue;
        }
        match identity.compare_with(&record.sources, &record.options) {
            SourceMatch::Same if is_same => {
                return row_survival.map(|_| JobLookup::Finished(record));
            }
            SourceMatch::Different => identity.check_not_loaded(&record)?,
            SourceMatch::Same | SourceMatch::Unsure => {
                return row_survival.map(|_| JobLookup::PossiblyFinished(record));
            }
        }
    }
    Ok(JobLookup::Nothing)
}

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

impl JobRecord {
    /// Returns whether the job has read the same content from its sources as `contents`.
    pub fn has_read(&self, identity: &JobIdentity, contents: &ContentDigests) -> bool {
        identity.has_contents(&self.sources, contents)
    }
}

/// Returns statements that record that the table is emptied, so that the rows of all jobs except
/// `except` no longer count. The statements must run in the transaction that empties the table.
/// Returns an empty string without a ledger, or if this role may not write the ledger.
pub async fn record_emptied_sql(
    client: &Client,
    table_oid: u32,
    except: Option<JobId>,
) -> Result<String> {
    if !LedgerSchema::read(client).await?.is_readable() {
        return Ok(String::new());
    }
    let sql =
        "select coalesce(has_table_privilege(to_regclass('pgspate.emptied'), 'insert'), false)";
    if !client.fetch_one(sql, &[]).await.map_err(ledger_error())?.get::<_, bool>(0) {
        return Ok(String::new());
    }
    let except = except.map_or(0, |job| job.0);
    Ok(format!(
        "delete from pgspate.emptied where table_oid = {table_oid}::oid; \
         insert into pgspate.emptied (table_oid, upto, but) \
         select t.oid, coalesce((select max(job) from pgspate.job), 0), {except} \
         from (select {table_oid}::oid as oid \
               union select relid::oid from pg_partition_tree({table_oid}::oid::regclass)) t \
         where pg_catalog.has_table_privilege(t.oid, 'truncate')"
    ))
}
