//! The row of a new job, and a job that is begun in one message.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::identity::Identity;
use super::job::{Done, JobId, Opened, failed, prune};
use super::{change, lock, schema};
use crate::{Error, ErrorKind, Parameter, Result};

/// A job's row, but for where it comes from.
const INTO: &str = "\
insert into pgspate.job (key, fingerprint, command, table_oid, table_name, made_table, sources, \
                         options)";

/// Makes the row of the values of [`NewRow`]; gives its job.
pub(super) fn insert_sql() -> String {
    format!("{INTO} select $1, $2, $3, $4, $5, $6, $7::jsonb, $8::jsonb returning job")
}

/// The values of a job's row.
pub(super) struct NewRow {
    key: String,
    fingerprint: String,
    command: &'static str,
    table_oid: u32,
    table: String,
    made_table: bool,
    sources: String,
    options: String,
}

impl NewRow {
    pub(super) fn of(identity: &Identity, made_table: bool) -> NewRow {
        NewRow {
            key: identity.key(),
            fingerprint: identity.fingerprint(),
            command: identity.command,
            table_oid: identity.table_oid,
            table: identity.table.clone(),
            made_table,
            sources: identity.sources_json(),
            options: identity.options_json(),
        }
    }

    pub(super) fn values(&self) -> [&dyn Parameter; 8] {
        [
            &self.key,
            &self.fingerprint,
            &self.command,
            &self.table_oid,
            &self.table,
            &self.made_table,
            &self.sources,
            &self.options,
        ]
    }

    /// Begins the job, if its lock is free and the ledger knows nothing of it, and holds the lock
    /// for the session then. All of it is one message, and so one transaction: what a pooler
    /// shares by transactions has no lock of a session that it does not begin a job in.
    fn begin_sql(&self, lock: i64) -> String {
        let NewRow { command, table_oid, made_table, .. } = self;
        let [key, fingerprint, table, sources, options] =
            [&self.key, &self.fingerprint, &self.table, &self.sources, &self.options]
                .map(|text| quoted(text));
        let is_held = lock::is_held(lock);
        // What is looked up is looked up under the lock.
        format!(
            "select pg_try_advisory_xact_lock({lock}); \
             with held as materialized ( \
                 select from pg_locks l where l.pid = pg_backend_pid() and {is_held}) \
             {INTO} \
             select {key}, {fingerprint}, '{command}', {table_oid}, {table}, {made_table}, \
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

/// Begins a job in a ledger that knows nothing of it, in one round trip. `None` where it knows
/// something after all, or another session is at it. Nothing is begun or held then.
pub(super) async fn begin_unknown(
    client: &Client,
    identity: &Identity,
    made_table: bool,
) -> Result<Option<Opened>> {
    let sql = NewRow::of(identity, made_table).begin_sql(identity.lock_key());
    let (begun, pruned, is_left) = tokio::join!(
        biased;
        client.simple_query(&sql),
        prune(client),
        change::is_left_on(client, identity.table_oid)
    );
    let answers = match begun {
        // Another session has begun it, and has not said so when this one looked.
        Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => return Ok(None),
        begun => begun.map_err(|error| schema::refused(failed()(error)))?,
    };
    pruned?;
    let is_clean = !is_left?;
    // Whether the lock was free, the job, and that the lock is kept.
    let mut rows = answers.iter().filter_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => Some(row.get(0)),
        _ => None,
    });
    let Some(job) = rows.nth(1) else { return Ok(None) };
    let job = job.and_then(|job| job.parse().ok());
    let job = job.ok_or_else(|| Error::new(ErrorKind::Bug, "a job without a number"))?;
    Ok(Some(Opened { job: JobId(job), done: Done::default(), is_clean, is_bound: false }))
}

/// As a literal, whatever the session takes a backslash for.
fn quoted(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use pgspate_embedded::testing;

    use super::*;
    use crate::Unlogged;
    use crate::connect::{Dsn, Environment};
    use crate::ledger::job::{Found, find};

    #[test]
    fn a_job_that_is_not_begun_holds_no_lock() {
        let db = testing::database();
        let env = Environment { user: Some("tester".to_owned()), ..Environment::default() };
        let dsn = Dsn::resolve(Some(&db.dsn()), &env).unwrap().unwrap();
        let identity = Identity {
            command: "load",
            table: r#"public."it's \\ t""#.to_owned(),
            table_oid: 7,
            keeps_rows: true,
            sources: Vec::new(),
            options: serde_json::Map::from_iter([("quote".to_owned(), r#"'\""#.into())]),
            in_shadow: false,
            unlogged: Unlogged::No,
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let (one, other) = (dsn.connect("a").await.unwrap(), dsn.connect("b").await.unwrap());
            let key = identity.lock_key();
            schema::ensure(&one.client).await.unwrap();
            let opened = begin_unknown(&one.client, &identity, false).await.unwrap().unwrap();
            // It is held as long as the session lives.
            assert!(!lock::try_hold(&other.client, key).await.unwrap());
            assert!(begin_unknown(&other.client, &identity, false).await.unwrap().is_none());
            let found = find(&other.client, &identity, false).await.unwrap();
            let Found::Unfinished(record, 0, 0) = found else { panic!("{found:?}") };
            assert_eq!(record.job, opened.job.0);
            one.close().await;
            while !lock::try_hold(&other.client, key).await.unwrap() {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            let unlock = format!("select pg_advisory_unlock({key})");
            other.client.batch_execute(&unlock).await.unwrap();
            // It is known by now.
            assert!(begin_unknown(&other.client, &identity, false).await.unwrap().is_none());
            let third = dsn.connect("c").await.unwrap();
            assert!(lock::try_hold(&third.client, key).await.unwrap());
        });
    }
}
