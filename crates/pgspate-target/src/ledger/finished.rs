//! Jobs that are finished: whether one of them has loaded the sources as they are now.

use tokio_postgres::{Client, SimpleQueryMessage};

use super::bound::{self, Fate};
use super::identity::{Identity, Likeness};
use super::job::{Found, JobId, JobRecord, failed};
use super::trust::LedgerSchema;
use crate::{Ask, Result};
use pgspate_input::format::Contents;

/// Tells whether one of these jobs, which are finished, has loaded the sources.
///
/// # Errors
/// Of [`ErrorKind::Ledger`] when one has loaded a part of what they hold now, or the same
/// otherwise.
pub(super) async fn find_finished(
    client: &Client,
    identity: &Identity,
    records: Vec<JobRecord>,
) -> Result<Found> {
    let is_counted = |record: &JobRecord| record.table_oid == identity.table_oid;
    let records: Vec<_> = records.into_iter().filter(is_counted).collect();
    // Replacing once more is what was asked for.
    if records.is_empty() || identity.replaces() || is_void(client, identity).await? {
        return Ok(Found::Nothing);
    }
    let fingerprint = identity.fingerprint();
    for record in records {
        let is_same = record.fingerprint == fingerprint;
        let job = JobId(record.job);
        let fate = match record.rows_written {
            0 => Ok(Fate::Kept),
            _ => bound::fate(client, job, identity).await,
        };
        // A crash has taken its rows, so it counts no more.
        if let Ok(Fate::Emptied) = fate {
            continue;
        }
        match identity.likeness(&record.sources, &record.options) {
            Likeness::Same if is_same => return fate.map(|_| Found::Finished(record)),
            Likeness::Another => identity.check_new(&record)?,
            Likeness::Same | Likeness::Unsure => return fate.map(|_| Found::Alike(record)),
        }
    }
    Ok(Found::Nothing)
}

/// Whether nothing that an earlier run wrote can still be in the table, since it is empty.
pub(super) async fn is_void(client: &Client, identity: &Identity) -> Result<bool> {
    if !identity.keeps_rows {
        return Ok(false);
    }
    // Whoever has locked the table against readers has not emptied it for good yet.
    let sql = format!(
        "begin; set local lock_timeout = '1s'; \
         select not exists (select from {}) as is_empty; commit",
        identity.table
    );
    let answers = match client.simple_query(&sql).await {
        Ok(answers) => answers,
        Err(error) if error.as_db_error().is_some() => {
            // Nor can a role know that may write and not read.
            client.batch_execute("rollback").await.map_err(failed())?;
            return Ok(false);
        }
        Err(error) => return Err(failed()(error)),
    };
    Ok(answers.iter().any(|answer| match answer {
        SimpleQueryMessage::Row(row) => row.get(0) == Some("t"),
        _ => false,
    }))
}

impl JobRecord {
    /// Whether all that it has read of its sources is what is read of them now.
    pub fn has_read(&self, identity: &Identity, contents: &Contents) -> bool {
        identity.has_contents(&self.sources, contents)
    }
}

/// What makes the rows of other jobs count no more, to be run in the transaction that empties
/// their table; empty where there is no ledger, or none that this role may write.
pub async fn emptied_sql(client: &Client, table_oid: u32, except: Option<JobId>) -> Result<String> {
    if !LedgerSchema::read(client).await?.is_readable() {
        return Ok(String::new());
    }
    let look =
        "select coalesce(has_table_privilege(to_regclass('pgspate.emptied'), 'insert'), false)";
    if !client.ask_one(look, &[]).await.map_err(failed())?.get::<_, bool>(0) {
        return Ok(String::new());
    }
    let but = except.map_or(0, |job| job.0);
    Ok(format!(
        "delete from pgspate.emptied where table_oid = {table_oid}::oid; \
         insert into pgspate.emptied (table_oid, upto, but) \
         select t.oid, coalesce((select max(job) from pgspate.job), 0), {but} \
         from (select {table_oid}::oid as oid \
               union select relid::oid from pg_partition_tree({table_oid}::oid::regclass)) t \
         where pg_catalog.has_table_privilege(t.oid, 'truncate')"
    ))
}
