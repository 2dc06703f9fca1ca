//! Sessions that write single records, of `pgspate serve` and of a `Writer`. While such a session
//! is open, a load keeps the keys of the tables that the session writes into.
//!
//! The sessions that write into a table share an advisory lock, each until its end. The transaction
//! in which a load drops keys has that lock alone. So a session that comes later waits for the end
//! of that transaction, and then finds the dropped keys in the ledger.
//!
//! The lock has the name of the table, because an INSERT names its table. So a session also keeps
//! the keys of a table that takes the name of another. All partitions have the lock of their root.
//! A session that writes into a view has the lock of the view alone, and the load takes the locks
//! of all views above its table. So a view that is replaced keeps the keys of its new tables.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::dropped_keys::first_dropped_keys;
use super::lock;
use crate::{Result, TypedQuery, begin_pinned_sql, quote_literal, server_error};

/// The SQLSTATE of the error of records whose table lacks its keys for now: `object_in_use`.
pub const KEYS_DROPPED: SqlState = SqlState::OBJECT_IN_USE;

/// The key of the lock, for the table `t`. NULL if there is no such table any more.
const LOCK_KEY: &str = "\
select hashtextextended(format('pgspate writers %I.%I', n.nspname, c.relname), 0) as key
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.oid = coalesce(pg_partition_root(t.oid::regclass)::oid, t.oid)";

/// Returns a subquery for the oid of the table with these unquoted names.
fn find_table_sql(schema: &str, table: &str) -> String {
    format!(
        "(select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace \
          where n.nspname = {} and c.relname = {}) t",
        quote_literal(schema),
        quote_literal(table)
    )
}

/// Returns a statement that calls this function with the lock of the table.
fn on_lock_sql(function: &str, schema: &str, table: &str) -> String {
    format!("select {function}(({LOCK_KEY})) from {}", find_table_sql(schema, table))
}

/// Takes the lock that the writers of the table share, until the session ends. `schema` and `table`
/// are unquoted. The session must not be in a transaction. It may have any `search_path`.
///
/// # Errors
/// [`ErrorKind::Ledger`] with SQLSTATE [`KEYS_DROPPED`] if a job has dropped keys of the table.
/// [`ErrorKind::Server`] if the server refuses a statement, [`ErrorKind::Connect`] if the
/// connection fails. The lock is not held then.
///
/// [`ErrorKind::Ledger`]: crate::ErrorKind::Ledger
/// [`ErrorKind::Server`]: crate::ErrorKind::Server
/// [`ErrorKind::Connect`]: crate::ErrorKind::Connect
pub async fn join_record_writers(client: &Client, schema: &str, table: &str) -> Result<()> {
    let joined = join_in_transaction(client, schema, table).await;
    if joined.is_err() {
        let unlock = on_lock_sql("pg_advisory_unlock_shared", schema, table);
        // The caller reports the earlier error. If the lock is not held, unlocking is a warning.
        let undo = format!("rollback; {}; {unlock}; commit", begin_pinned_sql());
        let _ = client.batch_execute(&undo).await;
    }
    joined
}

/// Takes the lock, and looks for dropped keys. After an error, the transaction is still open.
async fn join_in_transaction(client: &Client, schema: &str, table: &str) -> Result<()> {
    let failed = || server_error(format!("could not begin to write into table {schema}.{table}"));
    let lock = on_lock_sql("pg_advisory_lock_shared", schema, table);
    client.batch_execute(&format!("{}; {lock}", begin_pinned_sql())).await.map_err(failed())?;
    // The table may have been exchanged while the session waited for the lock.
    let oid = format!("select oid from {}", find_table_sql(schema, table));
    if let Some(row) = client.fetch_opt(&oid, &[]).await.map_err(failed())? {
        check_no_dropped_keys_for_writers(client, row.get(0)).await?;
    }
    client.batch_execute("commit").await.map_err(failed())
}

/// Refuses to write into a table, or a view of it, if a job has dropped the table's keys. Single
/// records need no ledger, so its version does not matter.
///
/// # Errors
/// Those of [`join_record_writers`].
pub async fn check_no_dropped_keys_for_writers(client: &Client, table: u32) -> Result<()> {
    match first_dropped_keys(client, table).await? {
        Some(dropped) => Err(dropped.to_error().with_sqlstate(KEYS_DROPPED)),
        None => Ok(()),
    }
}

/// A query for the keys of the locks of table `$1` and of all views above it or its partitions.
fn lock_keys_sql() -> String {
    format!(
        "with recursive above(oid) as ( \
             (select $1::oid union \
              select p.relid::oid from pg_partition_tree( \
                  coalesce(pg_partition_root($1::oid::regclass), $1::oid::regclass)) p) \
             union \
             select v.oid from above a \
             join pg_depend d on d.refclassid = 'pg_class'::regclass and d.refobjid = a.oid \
                             and d.classid = 'pg_rewrite'::regclass \
             join pg_rewrite r on r.oid = d.objid \
             join pg_class v on v.oid = r.ev_class and v.relkind = 'v') \
         select distinct key from above t, lateral ({LOCK_KEY}) as lock"
    )
}

/// Takes the locks of the writers of the table and of the views above it alone, until the
/// transaction ends. If a session writes single records there, returns that session in words. Its
/// lock is not held then.
///
/// # Errors
/// [`ErrorKind::Server`](crate::ErrorKind::Server) if the server refuses the query,
/// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if the connection fails.
pub async fn exclude_record_writers(client: &Client, table: u32) -> Result<Option<String>> {
    let failed = server_error("could not check for sessions that write records".to_owned());
    let sql = format!(
        "select key, pg_try_advisory_xact_lock(key) from ({}) locks where key is not null",
        lock_keys_sql()
    );
    let rows = client.fetch_all(&sql, &[&table]).await.map_err(failed)?;
    let Some(row) = rows.iter().find(|row| !row.get::<_, bool>(1)) else { return Ok(None) };
    let writer = lock::lock_holder(client, row.get(0)).await?;
    Ok(Some(writer.unwrap_or_else(|| "another session".to_owned())))
}
