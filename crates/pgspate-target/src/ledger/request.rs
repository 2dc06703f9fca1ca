//! Calls with an idempotency key: each is written once, however often it is sent.
//!
//! A call's row is inserted by the statement that writes the call's records. A call that is sent
//! again, also at the same time, meets the primary key, and gets the answer of the first one.

use std::time::Duration;

use tokio_postgres::Client;

use super::job::ledger_error;
use crate::{Result, TypedQuery};

/// Creates the table of keyed calls.
///
/// - `request.fingerprint` is a digest of the records. A key that comes with other records is
///   refused.
/// - `request.rows` and `request.answer` are what the call has written and returned: a JSON object
///   for each row.
/// - `request.expires` is when the key may be forgotten. Writers of one role may keep keys for
///   different times. A key that version 6 recorded has NULL.
pub(super) const CREATE_TABLE: &str = "\
create table pgspate.request (
    role name not null default current_user,
    key text not null,
    fingerprint text not null,
    rows bigint not null,
    answer text[] not null,
    written timestamptz not null default clock_timestamp(),
    expires timestamptz,
    primary key (role, key));
create index request_expires on pgspate.request (expires)";

/// Upgrades the table of version 6.
pub(super) const UPGRADE: &str = "\
alter table pgspate.request add column expires timestamptz;
drop index if exists pgspate.request_written;
create index request_expires on pgspate.request (expires)";

/// Policies: a role sees and writes the keys of its own calls alone.
pub(super) const POLICIES: &str = "\
alter table pgspate.request enable row level security;
create policy work on pgspate.request using (IS_OURS) with check (role = current_user)";

/// The most rows that one statement removes.
const PRUNED_AT_ONCE: i64 = 10_000;

/// The answer of a call that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnsweredRequest {
    /// The digest of the records.
    pub fingerprint: String,
    /// The number of rows written.
    pub rows: i64,
    /// The JSON objects of the returned rows.
    pub answer: Vec<String>,
}

/// Returns a statement that runs `insert`, which returns a column `returned`, and records the call
/// in the same transaction. Its last two parameters, `$key` and the next one, are key and
/// fingerprint. The key is kept for `keep`. The statement returns the number of rows and the
/// answer.
pub fn record_request_sql(insert: &str, key: usize, keep: Duration) -> String {
    format!(
        "with written as ({insert}) \
         insert into pgspate.request (key, fingerprint, rows, answer, expires) \
         select ${key}::text, ${}::text, pg_catalog.count(*), \
                coalesce(pg_catalog.array_agg(returned) filter (where returned is not null), \
                         '{{}}'), \
                {} \
         from written returning rows, answer",
        key + 1,
        expires_sql(keep)
    )
}

/// Returns the statement that records a call whose records were written before in the same
/// transaction: key, fingerprint, rows, answer. The key is kept for `keep`.
pub fn record_written_request_sql(keep: Duration) -> String {
    format!(
        "insert into pgspate.request (key, fingerprint, rows, answer, expires) \
         values ($1::text, $2::text, $3::bigint, $4::text[], {})",
        expires_sql(keep)
    )
}

/// Returns the expression of the time when a key is `keep` old. The user's search path may be set.
fn expires_sql(keep: Duration) -> String {
    format!(
        "pg_catalog.clock_timestamp() operator(pg_catalog.+) pg_catalog.make_interval(secs => {})",
        keep_seconds(keep)
    )
}

/// Returns whole seconds, at most those of a time that the server can add to the current one.
fn keep_seconds(keep: Duration) -> i64 {
    i64::try_from(keep.as_secs()).unwrap_or(i64::MAX).min(i64::from(i32::MAX))
}

/// Returns the answer of the role's call with this key.
///
/// # Errors
/// If the ledger cannot be read.
pub async fn find_request(client: &Client, key: &str) -> Result<Option<AnsweredRequest>> {
    let sql = "select fingerprint, rows, answer from pgspate.request \
               where role operator(pg_catalog.=) current_user::name \
                 and key operator(pg_catalog.=) $1";
    let row = client.fetch_opt(sql, &[&key]).await.map_err(ledger_error())?;
    Ok(row.map(|row| AnsweredRequest {
        fingerprint: row.get(0),
        rows: row.get(1),
        answer: row.get(2),
    }))
}

/// Forgets the role's calls whose time is over. Calls that version 6 of the ledger recorded have no
/// time of their own: these are forgotten if they were written longer ago than `keep`.
///
/// # Errors
/// If the ledger cannot be written.
pub async fn prune_requests(client: &Client, keep: Duration) -> Result<()> {
    let sql = "delete from pgspate.request where ctid = any (array( \
                 select ctid from pgspate.request \
                 where role = current_user::name \
                   and (expires < pg_catalog.clock_timestamp() \
                        or expires is null \
                           and written < pg_catalog.clock_timestamp() - $1 * interval '1 s') \
                 limit $2))";
    let seconds = keep_seconds(keep);
    loop {
        let pruned = client.run_statement(sql, &[&seconds, &PRUNED_AT_ONCE]).await;
        if pruned.map_err(ledger_error())? < PRUNED_AT_ONCE.unsigned_abs() {
            return Ok(());
        }
    }
}
