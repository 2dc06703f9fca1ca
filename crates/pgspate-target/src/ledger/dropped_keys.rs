//! Keys that a load has dropped for the load's duration. Meanwhile no other pgspate command writes
//! into the table, since nothing would reject a duplicate row.
//!
//! A load drops keys under a lock that waits for every writing transaction. The load records the
//! keys in the same transaction. A writer checks in its own transaction, after writing or after it
//! has locked the table. Keys that the writer does not see as dropped cannot be dropped before the
//! writer's commit.

use tokio_postgres::Client;

use super::identity::lock_key;
use super::job::is_refused_for_null;
use super::trust::{LedgerSchema, TrustedLedger};
use super::{lock, schema};
use crate::table_parts::parts_sql;
use crate::{Error, ErrorKind, Result, TypedQuery, server_error};

/// A condition: the change `c` has dropped an object that can reject rows.
const IS_DROPPED: &str = "\
c.done < pg_catalog.cardinality(c.steps)
  and c.kind in ('unique index', 'primary key', 'unique constraint', 'exclusion constraint',
                 'foreign key')";

/// A condition: this transaction writes the table of the change `c`.
const IS_WRITTEN: &str = "\
exists (select from pg_catalog.pg_locks l
        where l.pid = pg_catalog.pg_backend_pid() and l.locktype = 'relation' and l.granted
          and l.relation = c.table_oid and l.mode = 'RowExclusiveLock'
          and l.database = (select oid from pg_catalog.pg_database
                            where datname = pg_catalog.current_database()))";

/// Returns a condition: another job than `job` has dropped keys of a table that this transaction
/// writes.
///
/// `pg_locks` takes each of the server's lock partitions in turn, which costs more than the rest of
/// a small transaction. CASE lets the server read it only if some job has dropped keys.
pub(super) fn writes_without_keys_sql(job: i64) -> String {
    let dropped = format!("select from pgspate.change c where {IS_DROPPED} and c.job <> {job}");
    format!("case when exists ({dropped}) then exists ({dropped} and {IS_WRITTEN}) else false end")
}

/// Returns a condition: some job has dropped keys of the table whose OID is `table`, in SQL.
pub(super) fn is_without_keys_sql(table: &str) -> String {
    format!("exists (select from pgspate.change c where c.table_oid = {table} and {IS_DROPPED})")
}

/// Returns a statement that fails the transaction if another job than `job` has dropped keys of a
/// table that the transaction writes. [`is_refused_for_dropped_keys`] detects the failure.
pub(super) fn refuse_without_keys_sql(job: i64) -> String {
    format!(
        "insert into pgspate.ledger (job, chunk, input, position, rows_in, rows_written, \
                                     rows_rejected) \
         select {job}, null, 0, 0, 0, 0, 0 where {}",
        writes_without_keys_sql(job)
    )
}

/// Returns whether a transaction failed because keys are dropped.
pub fn is_refused_for_dropped_keys(error: &tokio_postgres::Error) -> bool {
    is_refused_for_null(error, "chunk")
}

/// The keys of one table that a job has dropped and not put back.
#[derive(Debug)]
pub struct DroppedKeys {
    job: i64,
    table: String,
    keys: String,
    role: String,
    /// The session that works on the job, in words.
    worker: Option<String>,
}

impl DroppedKeys {
    /// Returns whether a session works on the job, and so will put the keys back.
    pub fn has_worker(&self) -> bool {
        self.worker.is_some()
    }

    /// Describes the job and the session that works on it.
    pub fn describe_job(&self) -> String {
        match &self.worker {
            Some(worker) => format!("job {} in {worker}", self.job),
            None => format!("job {}, on which no session works,", self.job),
        }
    }

    /// Returns the error of a command that refuses to write into the table.
    pub fn to_error(&self) -> Error {
        let DroppedKeys { job, table, keys, role, .. } = self;
        let message = format!(
            "could not write into table {table}: {} has dropped {keys} and not put them back",
            self.describe_job()
        );
        Error::new(ErrorKind::Ledger, message).hint(match self.has_worker() {
            true => format!("Wait until the job is done. `pgspate status {job}` shows its state."),
            false => format!(
                "Put them back with `pgspate status --restore {job}`, as role \"{role}\" or a \
                 member of that role."
            ),
        })
    }
}

/// Reads which jobs, except job `except`, have dropped keys of `table`, or of any table if `table`
/// is `None`. Partitions count, and the tables beneath a view. A role that may not read the ledger
/// sees none.
///
/// # Errors
/// [`ErrorKind::Server`] if the server refuses the query, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn dropped_keys(
    client: &Client,
    table: Option<u32>,
    except: i64,
) -> Result<Vec<DroppedKeys>> {
    if !LedgerSchema::read(client).await?.may_read_dropped_keys() {
        return Ok(Vec::new());
    }
    schema::check_version(client).await?;
    find_dropped_keys(client, table, except).await
}

/// Does the same for the first dropped keys of a table, with a ledger of any version. All versions
/// have the columns that are read.
pub(super) async fn first_dropped_keys(client: &Client, table: u32) -> Result<Option<DroppedKeys>> {
    if !LedgerSchema::read(client).await?.may_read_dropped_keys() {
        return Ok(None);
    }
    Ok(find_dropped_keys(client, Some(table), 0).await?.into_iter().next())
}

/// Reads the dropped keys of a ledger that may be read.
async fn find_dropped_keys(
    client: &Client,
    table: Option<u32>,
    except: i64,
) -> Result<Vec<DroppedKeys>> {
    let failed = || server_error("could not check for dropped keys".to_owned());
    // Mostly no load of any table has changes to put back.
    let any = "select exists (select from pgspate.change c \
                              where c.done < pg_catalog.cardinality(c.steps))";
    if !client.fetch_one(any, &[]).await.map_err(failed())?.get::<_, bool>(0) {
        return Ok(Vec::new());
    }
    let sql = format!(
        "select c.job, c.table_oid::regclass::text, c.role::text, j.key, \
                string_agg(pg_catalog.format('%s \"%s\"', c.kind, c.object), ', ' \
                           order by c.ordinal) \
         from pgspate.change c left join pgspate.job j on j.job = c.job \
         where {IS_DROPPED} and c.job <> $2 and ($1::oid is null or c.table_oid in ({})) \
           and exists (select from pg_class t where t.oid = c.table_oid) \
         group by 1, 2, 3, 4 order by 1",
        parts_sql("$1")
    );
    let rows = client.fetch_all(&sql, &[&table, &except]).await.map_err(failed())?;
    let mut dropped = Vec::with_capacity(rows.len());
    for row in &rows {
        let worker = match row.get::<_, Option<&str>>(3) {
            Some(key) => lock::lock_holder(client, lock_key(key)).await?,
            None => None,
        };
        let (job, table, role, keys) = (row.get(0), row.get(1), row.get(2), row.get(4));
        dropped.push(DroppedKeys { job, table, keys, role, worker });
    }
    Ok(dropped)
}

/// Refuses to write into a table if a job has dropped its keys.
///
/// # Errors
/// [`ErrorKind::Ledger`] if keys are dropped. The message names the job and the session that works
/// on the job. [`ErrorKind::Server`] if the server refuses the query, [`ErrorKind::Connect`] if the
/// connection fails.
pub async fn check_no_dropped_keys(client: &Client, table: u32) -> Result<()> {
    match dropped_keys(client, Some(table), 0).await?.first() {
        Some(dropped) => Err(dropped.to_error()),
        None => Ok(()),
    }
}

/// Does the same in a transaction of the caller, in which a ledger of an earlier version cannot be
/// upgraded. `known` is the ledger, if this session has checked it already.
///
/// # Errors
/// Those of [`check_no_dropped_keys`]. [`ErrorKind::Ledger`] if the ledger has another version.
pub async fn check_no_dropped_keys_in_transaction(
    client: &Client,
    table: u32,
    known: Option<TrustedLedger>,
) -> Result<()> {
    let may_read = match known {
        Some(ledger) => ledger.may_read_dropped_keys,
        None => {
            let may_read = LedgerSchema::read(client).await?.may_read_dropped_keys();
            if may_read {
                schema::require_version(client).await?;
            }
            may_read
        }
    };
    if !may_read {
        return Ok(());
    }
    match find_dropped_keys(client, Some(table), 0).await?.first() {
        Some(dropped) => Err(dropped.to_error()),
        None => Ok(()),
    }
}

/// Looks for a job that writes into the table and on which a session works, except job `except`.
/// Returns the job in words.
///
/// # Errors
/// [`ErrorKind::Server`] if the server refuses the query, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn other_writer(client: &Client, table: u32, except: i64) -> Result<Option<String>> {
    let failed = server_error("could not check for other loads".to_owned());
    let sql = "select job, key from pgspate.job \
               where table_oid = $1 and finished is null and job <> $2 order by job";
    let rows = client.fetch_all(sql, &[&table, &except]).await.map_err(failed)?;
    for row in &rows {
        if let Some(worker) = lock::lock_holder(client, lock_key(row.get(1))).await? {
            return Ok(Some(format!("job {} in {worker}", row.get::<_, i64>(0))));
        }
    }
    Ok(None)
}
