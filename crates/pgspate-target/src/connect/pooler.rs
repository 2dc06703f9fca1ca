//! Detects connection poolers, and refuses those that give each transaction another session.
//!
//! With such a pooler, a session's settings, locks and temporary tables would affect other
//! programs. A pooler is detected because it invents the process id that is sent with the cancel
//! key. The pooling mode is tested with transactions that change nothing.

use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::connection::Connection;
use crate::{Error, ErrorKind};

/// How often the test is repeated. Other clients of a busy pooler can make one test miss
/// transaction pooling.
const ROUNDS: usize = 4;
/// How long to wait until a second session gets a backend. With session pooling, the second session
/// waits while all backends are taken.
const BACKEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Identifies the backend of a transaction.
const BACKEND_QUERY: &str =
    "select pg_catalog.pg_backend_pid(), pg_catalog.pg_postmaster_start_time()";

/// Returns the error for a pooler that pgspate cannot use.
pub(super) fn pooler_error(place: &str) -> Error {
    let message =
        format!("{place} is a connection pooler that gives each transaction another session");
    Error::new(ErrorKind::Usage, message).hint(
        "Connect to the server's own port, or to a pool with session pooling (PgBouncer's \
         `pool_mode = session`). Through this pooler, settings and locks of pgspate's sessions \
         would reach other programs.",
    )
}

/// Returns whether the pooler gives the transactions of `connection` different backends.
/// `open_another` opens one more connection to the same address.
///
/// While `connection` is idle, the other connection holds a backend. After that, `connection` gets
/// the same backend again only if the pooler keeps one backend for each session.
pub(super) async fn shares_backends<F>(
    connection: &Connection,
    mut open_another: impl FnMut() -> F,
) -> bool
where
    F: Future<Output = Option<Connection>>,
{
    for _ in 0..ROUNDS {
        let first = timeout(BACKEND_TIMEOUT, read_backend(&connection.client, BACKEND_QUERY)).await;
        let Ok(Some(first)) = first else { return false };
        // A refused connection, for example by a small pool, proves nothing.
        let other = async {
            let other = open_another().await?;
            let backend = read_backend(&other.client, &format!("begin; {BACKEND_QUERY}")).await?;
            Some((other, backend))
        };
        let Ok(Some((other, second))) = timeout(BACKEND_TIMEOUT, other).await else {
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

/// Reads the process id of the transaction's backend, with the server's start time.
async fn read_backend(client: &Client, sql: &str) -> Option<String> {
    let messages = client.simple_query(sql).await.ok()?;
    messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(format!("{} {}", row.get(0)?, row.get(1)?)),
        _ => None,
    })
}
