//! Inserts the ledger's row for a new job, in one round trip.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::identity::JobIdentity;
use super::job::{JobId, OpenJob, WrittenChunks, ledger_error, prune_old_jobs};
use super::open::OpenOptions;
use super::{change, lock, schema};
use crate::{Error, ErrorKind, Result, TypedParameter, TypedQuery};

/// The start of the statement that inserts a job's row. A query for the values must follow.
const INSERT_JOB: &str = "\
insert into pgspate.job (key, fingerprint, command, table_oid, table_name, made_table, options)";

/// Returns the statement that inserts the values of [`NewJobRow`] and returns the job's number.
pub(super) fn insert_job_sql() -> String {
    format!("{INSERT_JOB} select $1, $2, $3, $4, $5, $6, $7::jsonb returning job")
}

/// Returns the statement that records the sources of a job: `files` is
/// [`JobIdentity::files_json`], and `n.nth` counts the sources from 1.
pub(super) fn insert_files_sql(job: &str, files: &str) -> String {
    format!(
        "insert into pgspate.source_file (job, input, key, source) \
         select {job}, n.nth - 1, n.file ->> 'key', n.file -> 'source' \
         from jsonb_array_elements({files}::jsonb) with ordinality n(file, nth)"
    )
}

/// Returns a condition: a job of the table has one of the files, and is not in `seen`.
pub(super) fn has_other_job_sql(keys: &str, table_oid: &str, seen: &str) -> String {
    format!(
        "exists (select from pgspate.source_file f join pgspate.job j on j.job = f.job \
                 where f.key = any({keys}) and j.table_oid = {table_oid} \
                   and j.job <> all({seen}))"
    )
}

/// Returns the key of the lock under which the table's jobs are opened, one after the other.
pub(super) fn opening_lock_key(table_oid: u32) -> i64 {
    // The constant is "open" in ASCII.
    (0x6f70_656e << 32) | i64::from(table_oid)
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
            options: identity.options_json(),
        }
    }

    /// Returns the values in the order of the statement's columns.
    pub(super) fn values(&self) -> [&dyn TypedParameter; 7] {
        [
            &self.key,
            &self.fingerprint,
            &self.command,
            &self.table_oid,
            &self.table,
            &self.has_created_table,
            &self.options,
        ]
    }

    /// Returns statements that start the job, if the job's lock is free and no job but those in
    /// `seen` has one of its files. The session then holds the lock. The statements are sent as one
    /// message. Therefore they run in one transaction, and no session keeps the lock if its job was
    /// not started, even behind a pooler that pools transactions.
    fn begin_sql(&self, identity: &JobIdentity, seen: &[i64], in_transaction: bool) -> String {
        let NewJobRow { command, table_oid, has_created_table, .. } = self;
        let [key, fingerprint, table, options] =
            [&self.key, &self.fingerprint, &self.table, &self.options].map(|text| quoted(text));
        let lock = identity.lock_key();
        let (is_held, opening) = (lock::is_held_sql(lock), opening_lock_key(*table_oid));
        // A later statement must see what was committed before the lock was free.
        let isolation = match in_transaction {
            true => "",
            false => "set transaction isolation level read committed; ",
        };
        let array = |values: Vec<String>, ty: &str| format!("array[{}]::{ty}[]", values.join(","));
        let keys = array(identity.file_keys().iter().map(|key| quoted(key)).collect(), "text");
        let seen = array(seen.iter().map(i64::to_string).collect(), "bigint");
        let has_other_job = has_other_job_sql(&keys, &table_oid.to_string(), &seen);
        let new_job = format!(
            "from pgspate.job where key = {key} and finished is null \
               and xmin::text::bigint = txid_current() % 4294967296"
        );
        let insert_files =
            insert_files_sql(&format!("(select job {new_job})"), &quoted(&identity.files_json()));
        // The ledger is read under the lock.
        format!(
            "{isolation}select pg_advisory_xact_lock({opening}); \
             select pg_try_advisory_xact_lock({lock}); \
             with held as materialized ( \
                 select from pg_locks l where l.pid = pg_backend_pid() and {is_held}) \
             {INSERT_JOB} \
             select {key}, {fingerprint}, '{command}', {table_oid}, {table}, {has_created_table}, \
                    {options}::jsonb \
             from held where not {has_other_job} \
                         and not exists (select from pgspate.job where key = {key} \
                                         and finished is null) \
             returning job; \
             {insert_files} where exists (select {new_job}); \
             select pg_try_advisory_lock({lock}) {new_job}"
        )
    }
}

/// Starts a job that the ledger does not know, in one round trip. Returns `None` if the ledger
/// knows the job or one of its files after all, or if another session works on the job. Then no job
/// is started and no lock is held. `seen` are the jobs with these files that the load knows.
pub(super) async fn begin_new_job(
    client: &Client,
    identity: &JobIdentity,
    seen: &[i64],
    options: OpenOptions,
) -> Result<Option<OpenJob>> {
    let row = NewJobRow::of(identity, options.has_created_table);
    let sql = row.begin_sql(identity, seen, options.in_transaction);
    let (begun, pruned, has_outstanding) = tokio::join!(
        biased;
        client.simple_query(&sql),
        prune_old_jobs(client),
        change::has_outstanding_on(client, identity.table_oid, 0)
    );
    let answers = match begun {
        // Another session started the job after this session had looked the job up.
        Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => return Ok(None),
        Err(error) => return Err(explain_refusal(client, identity.table_oid, error).await),
        Ok(answers) => answers,
    };
    pruned?;
    let is_clean = !has_outstanding?;
    // The statements return: nothing, whether the lock was free, the job's number, whether the lock
    // is kept.
    let mut rows = answers.iter().filter_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => Some(row.get(0)),
        _ => None,
    });
    let Some(job) = rows.nth(2) else { return Ok(None) };
    let job = job.and_then(|job| job.parse().ok());
    let job = job.ok_or_else(|| Error::new(ErrorKind::Bug, "the new job has no number"))?;
    Ok(Some(OpenJob {
        job: JobId(job),
        done: WrittenChunks::default(),
        is_clean,
        crash_removes_rows: false,
    }))
}

/// Explains why the ledger refused a new job. A policy of the ledger refuses jobs of roles that may
/// not insert into the table, which is what the user must know.
async fn explain_refusal(client: &Client, table: u32, error: tokio_postgres::Error) -> Error {
    let is_privilege = error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE);
    let refused = schema::with_grant_hint(ledger_error()(error));
    if !is_privilege {
        return refused;
    }
    let sql = "select $1::oid::regclass::text where not has_any_column_privilege($1, 'insert')";
    match client.fetch_opt(sql, &[&table]).await {
        Ok(Some(row)) => {
            let name: &str = row.get(0);
            Error::new(ErrorKind::Server, format!("this role may not insert rows into {name}"))
                .hint(format!("Have its owner run `grant insert on {name} to ROLE`."))
        }
        _ => refused,
    }
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
    use crate::ledger::known_files::KnownFiles;
    use crate::ledger::source_file::SourceFingerprint;
    use crate::ledger::{EmptyTable, RowsIn};

    #[test]
    fn a_job_that_is_not_started_holds_no_lock() {
        let db = testing::database();
        let env = Environment { user: Some("tester".to_owned()), ..Environment::default() };
        let dsn = Dsn::resolve(Some(&db.dsn()), &env).unwrap().unwrap();
        let source = SourceFingerprint {
            name: r"/it's \\ a.csv".to_owned(),
            ..SourceFingerprint::default()
        };
        let identity = JobIdentity {
            command: "load",
            table: r#"public."it's \\ t""#.to_owned(),
            table_oid: 7,
            rows_in: RowsIn::Table,
            on_empty: EmptyTable::LostRows,
            lock_timeout_millis: 0,
            sources: vec![source],
            options: serde_json::Map::from_iter([("quote".to_owned(), r#"'\""#.into())]),
            guessed: Vec::new(),
            continued_key: None,
            in_shadow: false,
            unlogged: UnloggedExtent::Nothing,
            fleet: None,
        };
        let options = OpenOptions::default();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let (one, other) = (dsn.connect("a").await.unwrap(), dsn.connect("b").await.unwrap());
            let key = identity.lock_key();
            schema::ensure_ledger(&one.client).await.unwrap();
            let opened = begin_new_job(&one.client, &identity, &[], options).await;
            let opened = opened.unwrap().unwrap();
            // The session holds the lock until the session ends.
            assert!(!lock::try_lock(&other.client, key).await.unwrap());
            let again = begin_new_job(&other.client, &identity, &[], options).await;
            assert!(again.unwrap().is_none());
            let known = KnownFiles::read(&other.client, &identity, false).await.unwrap();
            let jobs: Vec<i64> = known.unfinished().map(|record| record.job).collect();
            assert_eq!(jobs, [opened.job.0]);
            one.close().await;
            while !lock::try_lock(&other.client, key).await.unwrap() {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            let unlock = format!("select pg_advisory_unlock({key})");
            other.client.batch_execute(&unlock).await.unwrap();
            // The ledger knows the job now.
            let again = begin_new_job(&other.client, &identity, &[], options).await;
            assert!(again.unwrap().is_none());
            let third = dsn.connect("c").await.unwrap();
            assert!(lock::try_lock(&third.client, key).await.unwrap());
        });
    }
}
