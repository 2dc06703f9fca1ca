//! Inserts the ledger's row for a new job, in one round trip.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::identity::JobIdentity;
use super::job::{JobId, OpenJob, WrittenChunks, ledger_error, prune_old_jobs};
use super::{change, lock, schema};
use crate::{Error, ErrorKind, Result, TypedParameter};

/// The start of the statement that inserts a job's row. A query for the values must follow.
const INSERT_JOB: &str = "\
insert into pgspate.job (key, fingerprint, command, table_oid, table_name, made_table, sources, \
                         options)";

/// Returns the statement that inserts the values of [`NewJobRow`] and returns the job's number.
pub(super) fn insert_job_sql() -> String {
    format!("{INSERT_JOB} select $1, $2, $3, $4, $5, $6, $7::jsonb, $8::jsonb returning job")
}

/// The values of a new job's row.
pub(super) struct NewJobRow {
    /// [`JobIdentity::key`].
    key: String,
    /// [`JobIdentity::fingerprint`].
    fingerprint: String,
    command: &'static str,
    table_oid: u32,
    table: String,
    has_created_table: bool,
    sources: String,
    options: String,
}

impl NewJobRow {
    pub(super) fn of(identity: &JobIdentity, has_created_table: bool) -> NewJobRow {
        NewJobRow {
            key: identity.key(),
            fingerprint: identity.fingerprint(),
            command: identity.command,
            table_oid: identity.table_oid,
            table: identity.table.clone(),
            has_created_table,
            sources: identity.sources_json(),
            options: identity.options_json(),
        }
    }

    /// Returns the values in the order of the statement's columns.
    pub(super) fn values(&self) -> [&dyn TypedParameter; 8] {
        [
            &self.key,
            &self.fingerprint,
            &self.command,
            &self.table_oid,
            &self.table,
            &self.has_created_table,
            &self.sources,
            &self.options,
        ]
    }

    /// Returns statements that start the job, if the job's lock is free and the ledger does not
    /// know the job. The session then holds the lock. The statements are sent as one message.
    /// Therefore they run in one transaction, and no session keeps the lock if its job was not
    /// started, even behind a pooler that pools transactions.
    fn begin_sql(&self, lock: i64) -> String {
        let NewJobRow { command, table_oid, has_created_table, .. } = self;
        let [key, fingerprint, table, sources, options] =
            [&self.key, &self.fingerprint, &self.table, &self.sources, &self.options]
                .map(|text| quoted(text));
        let is_held = lock::is_held_sql(lock);
        // The ledger is read under the lock.
        format!(
            "select pg_try_advisory_xact_lock({lock}); \
             with held as materialized ( \
                 select from pg_locks l where l.pid = pg_backend_pid() and {is_held}) \
             {INSERT_JOB} \
             select {key}, {fingerprint}, '{command}', {table_oid}, {table}, {has_created_table}, \
                    {sources}::jsonb, {options}::jsonb \
             from held where not exists (select from pgspate.job where key = {key} \
                                         and (finished is null or fingerprint = {fingerprint})) \
             returning job; \
             select pg_try_advisory_lock({lock}) from pgspate.job \
             where key = {key} and finished is null \
               and xmin::text::bigint = txid_current() % 4294967296"
        )
    }
}

/// Starts a job that the ledger does not know, in one round trip. Returns `None` if the ledger
/// knows the job after all, or if another session works on the job. Then no job is started and no
/// lock is held.
pub(super) async fn begin_new_job(
    client: &Client,
    identity: &JobIdentity,
    has_created_table: bool,
) -> Result<Option<OpenJob>> {
    let sql = NewJobRow::of(identity, has_created_table).begin_sql(identity.lock_key());
    let (begun, pruned, has_outstanding) = tokio::join!(
        biased;
        client.simple_query(&sql),
        prune_old_jobs(client),
        change::has_outstanding_on(client, identity.table_oid)
    );
    let answers = match begun {
        // Another session started the job after this session had looked the job up.
        Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => return Ok(None),
        begun => begun.map_err(|error| schema::with_grant_hint(ledger_error()(error)))?,
    };
    pruned?;
    let is_clean = !has_outstanding?;
    // The statements return: whether the lock was free, the job's number, whether the lock is kept.
    let mut rows = answers.iter().filter_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => Some(row.get(0)),
        _ => None,
    });
    let Some(job) = rows.nth(1) else { return Ok(None) };
    let job = job.and_then(|job| job.parse().ok());
    let job = job.ok_or_else(|| Error::new(ErrorKind::Bug, "the new job has no number"))?;
    Ok(Some(OpenJob {
        job: JobId(job),
        done: WrittenChunks::default(),
        is_clean,
        crash_removes_rows: false,
    }))
}

/// Quotes a text as a literal that does not depend on the session's `standard_conforming_strings`.
fn quoted(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use pgspate_embedded::testing;

    use super::*;
    use crate::UnloggedExtent;
    use crate::connect::{Dsn, Environment};
    use crate::ledger::job::{JobLookup, find_job};

    #[test]
    fn a_job_that_is_not_started_holds_no_lock() {
        let db = testing::database();
        let env = Environment { user: Some("tester".to_owned()), ..Environment::default() };
        let dsn = Dsn::resolve(Some(&db.dsn()), &env).unwrap().unwrap();
        let identity = JobIdentity {
            command: "load",
            table: r#"public."it's \\ t""#.to_owned(),
            table_oid: 7,
            keeps_rows: true,
            sources: Vec::new(),
            options: serde_json::Map::from_iter([("quote".to_owned(), r#"'\""#.into())]),
            in_shadow: false,
            unlogged: UnloggedExtent::Nothing,
            fleet: None,
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let (one, other) = (dsn.connect("a").await.unwrap(), dsn.connect("b").await.unwrap());
            let key = identity.lock_key();
            schema::ensure_ledger(&one.client).await.unwrap();
            let opened = begin_new_job(&one.client, &identity, false).await.unwrap().unwrap();
            // The session holds the lock until the session ends.
            assert!(!lock::try_lock(&other.client, key).await.unwrap());
            assert!(begin_new_job(&other.client, &identity, false).await.unwrap().is_none());
            let found = find_job(&other.client, &identity, false).await.unwrap();
            let JobLookup::Unfinished(record, 0, 0) = found else { panic!("{found:?}") };
            assert_eq!(record.job, opened.job.0);
            one.close().await;
            while !lock::try_lock(&other.client, key).await.unwrap() {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            let unlock = format!("select pg_advisory_unlock({key})");
            other.client.batch_execute(&unlock).await.unwrap();
            // The ledger knows the job now.
            assert!(begin_new_job(&other.client, &identity, false).await.unwrap().is_none());
            let third = dsn.connect("c").await.unwrap();
            assert!(lock::try_lock(&third.client, key).await.unwrap());
        });
    }
}
