//! Detects connection poolers, and refuses those that give each transaction another session.
//!
//! With such a pooler, a session's settings, locks and temporary tables would affect other
//! programs. A pooler is detected by the protocol: it invents the process id that belongs to the
//! cancel key. The pooling mode is tested with transactions that change nothing.

use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::connection::Connection;
use crate::{Error, ErrorKind};

/// How often a second session is opened. If clients of a busy pooler interfere, one test may not be
/// enough.
const ROUNDS: usize = 4;
/// How long to wait until a second session gets a backend. With session pooling, it waits while all
/// backends are taken.
const BACKEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Identifies the backend of a transaction.
const BACKEND_QUERY: &str =
    "select pg_catalog.pg_backend_pid(), pg_catalog.pg_postmaster_start_time()";

/// Returns why the pooler cannot be used.
pub(super) fn pooler_error(place: &str) -> Error {
    let message =
        format!("{place} is a connection pooler that gives each transaction another session");
    Error::new(ErrorKind::Usage, message).hint(
        "Connect to the server's own port, or to a pool with session pooling (PgBouncer's \
         `pool_mode = session`): settings and locks of pgspate's sessions would reach other \
         programs here.",
    )
}

/// Returns whether the pooler gives the transactions of `connection` different backends. `another`
/// opens one more connection to the same address.
///
/// The session is idle, so it has the same backend again only if it keeps one between transactions.
pub(super) async fn shares_backends<F>(
    connection: &Connection,
    mut another: impl FnMut() -> F,
) -> bool
where
    F: Future<Output = Option<Connection>>,
{
    for _ in 0..ROUNDS {
        let first = timeout(BACKEND_TIMEOUT, read_backend(&connection.client, BACKEND_QUERY)).await;
        let Ok(Some(first)) = first else { return false };
        // A refused connection, for example by a small pool, proves nothing.
        let holding = async {
            let other = another().await?;
            let backend = read_backend(&other.client, &format!("begin; {BACKEND_QUERY}")).await?;
            Some((other, backend))
        };
        let Ok(Some((other, second))) = timeout(BACKEND_TIMEOUT, holding).await else {
            return false;
        };
        let again = read_backend(&connection.client, BACKEND_QUERY);
        let is_shared = first == second
            || timeout(BACKEND_TIMEOUT, again)
                .await
                .ok()
                .flatten()
                .is_some_and(|again| again != first);
        let _ = timeout(BACKEND_TIMEOUT, other.client.batch_execute("rollback")).await;
        other.close().await;
        if is_shared {
            return true;
        }
    }
    false
}

async fn read_backend(client: &Client, sql: &str) -> Option<String> {
    let messages = client.simple_query(sql).await.ok()?;
    messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(format!("{} {}", row.get(0)?, row.get(1)?)),
        _ => None,
    })
}
