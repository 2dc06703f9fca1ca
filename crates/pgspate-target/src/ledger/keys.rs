//! Keys that a load has dropped for its time: nobody else of pgspate writes into that table
//! meanwhile, as nothing would refuse a row that is there twice.
//!
//! A load drops keys under a lock that waits for every transaction which writes, and records them
//! in the same transaction. So a writer asks in its own transaction, after it has written: what it
//! does not see then has not happened before its commit.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::identity::lock_key;
use super::trust::LedgerSchema;
use super::{lock, schema};
use crate::{Ask, Error, ErrorKind, Result, server_error};

/// Of the change `c`: what can refuse a row is down.
const IS_DOWN: &str = "\
c.done < pg_catalog.cardinality(c.steps)
  and c.kind in ('unique index', 'primary key', 'unique constraint', 'exclusion constraint',
                 'foreign key')";

/// That the table of the change `c` is one that this transaction writes.
const IS_WRITTEN: &str = "\
exists (select from pg_catalog.pg_locks l
        where l.pid = pg_catalog.pg_backend_pid() and l.locktype = 'relation' and l.granted
          and l.relation = c.table_oid and l.mode = 'RowExclusiveLock'
          and l.database = (select oid from pg_catalog.pg_database
                            where datname = pg_catalog.current_database()))";

/// That keys of a table which this transaction writes are down, by another job than this one.
pub(super) fn is_down_sql(job: i64) -> String {
    format!(
        "exists (select from pgspate.change c where {IS_DOWN} and c.job <> {job} and {IS_WRITTEN})"
    )
}

/// Fails the transaction, as [`is_refused`] tells, where that is so.
pub(super) fn refuse_sql(job: i64) -> String {
    format!(
        "insert into pgspate.ledger (job, chunk, input, position, rows_in, rows_written, \
                                     rows_rejected) \
         select {job}, null, 0, 0, 0, 0, 0 where {}",
        is_down_sql(job)
    )
}

/// Whether a transaction was refused since keys are down.
pub fn is_refused(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|said| {
        *said.code() == SqlState::NOT_NULL_VIOLATION
            && said.schema() == Some("pgspate")
            && said.table() == Some("ledger")
            && said.column() == Some("chunk")
    })
}

/// A job that has dropped keys and not put them back.
#[derive(Debug)]
pub struct KeysDown {
    job: i64,
    table: String,
    keys: String,
    role: String,
    /// The session that works on the job, in words.
    worker: Option<String>,
}

impl KeysDown {
    /// Whether a session is at work, which will put them back.
    pub fn is_under_way(&self) -> bool {
        self.worker.is_some()
    }

    /// The job, and who is at it.
    pub fn who(&self) -> String {
        match &self.worker {
            Some(worker) => format!("job {} in {worker}", self.job),
            None => format!("job {}, on which no session is at work", self.job),
        }
    }

    /// Why nothing is written.
    pub fn refuse(&self) -> Error {
        let KeysDown { job, table, keys, role, .. } = self;
        let message = format!(
            "table {table} is without {keys}, which {} has dropped for its rows",
            self.who()
        );
        Error::new(ErrorKind::Ledger, message).hint(match self.is_under_way() {
            true => format!("Wait until it is done: `pgspate status {job}` shows it."),
            false => format!(
                "`pgspate status --restore {job}` puts them back, as role \"{role}\" or one that \
                 is a member of it."
            ),
        })
    }
}

/// The jobs but for one that have keys down: of a table and its partitions, or of any.
///
/// # Errors
/// When the server cannot be asked. A role that may not read the ledger sees none.
pub async fn keys_down(client: &Client, table: Option<u32>, except: i64) -> Result<Vec<KeysDown>> {
    let failed = || server_error("could not look for keys that are dropped".to_owned());
    if !LedgerSchema::read(client).await?.is_readable() {
        return Ok(Vec::new());
    }
    let look = "select has_table_privilege('pgspate.change', 'select') \
                and has_table_privilege('pgspate.job', 'select')";
    if !client.ask_one(look, &[]).await.map_err(failed())?.get::<_, bool>(0) {
        return Ok(Vec::new());
    }
    schema::check_version(client).await?;
    let sql = format!(
        "select c.job, c.table_oid::regclass::text, c.role::text, j.key, \
                string_agg(pg_catalog.format('%s \"%s\"', c.kind, c.object), ', ' \
                           order by c.ordinal) \
         from pgspate.change c left join pgspate.job j on j.job = c.job \
         where {IS_DOWN} and c.job <> $2 and ($1::oid is null or c.table_oid = $1 \
             or c.table_oid in (select relid from pg_partition_tree($1::oid::regclass))) \
           and exists (select from pg_class t where t.oid = c.table_oid) \
         group by 1, 2, 3, 4 order by 1"
    );
    let rows = client.ask_all(&sql, &[&table, &except]).await.map_err(failed())?;
    let mut all = Vec::with_capacity(rows.len());
    for row in &rows {
        let worker = match row.get::<_, Option<&str>>(3) {
            Some(key) => lock::holder(client, lock_key(key)).await?,
            None => None,
        };
        let (job, table, role, keys) = (row.get(0), row.get(1), row.get(2), row.get(4));
        all.push(KeysDown { job, table, keys, role, worker });
    }
    Ok(all)
}

/// Refuses to write into a table of which another job has keys down.
///
/// # Errors
/// Then, naming the job and its session; and when the server cannot be asked.
pub async fn check_no_keys_down(client: &Client, table: u32) -> Result<()> {
    match keys_down(client, Some(table), 0).await?.first() {
        Some(down) => Err(down.refuse()),
        None => Ok(()),
    }
}

/// A job that a session works on and which writes into the table, but for one; in words.
///
/// # Errors
/// When the server cannot be asked.
pub async fn writer(client: &Client, table: u32, except: i64) -> Result<Option<String>> {
    let failed = server_error("could not look up other loads".to_owned());
    let sql = "select job, key from pgspate.job \
               where table_oid = $1 and finished is null and job <> $2 order by job";
    let rows = client.ask_all(sql, &[&table, &except]).await.map_err(failed)?;
    for row in &rows {
        if let Some(worker) = lock::holder(client, lock_key(row.get(1))).await? {
            return Ok(Some(format!("job {} in {worker}", row.get::<_, i64>(0))));
        }
    }
    Ok(None)
}
