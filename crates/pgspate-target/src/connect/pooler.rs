//! Connection poolers: noticed, and refused where they give every transaction another session.
//!
//! Settings, locks and temporary tables of a session reach other programs there. A pooler shows in
//! the protocol: it makes up the process id that belongs to the key for cancel requests. How it
//! pools is tried out with transactions that change nothing.

use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::connection::Connection;
use crate::{Error, ErrorKind};

/// So many times another session is opened. Where the clients of a busy pooler come in between, one
/// time need not tell.
const ROUNDS: usize = 4;
/// How long a second session may take to get a backend. Where each session keeps its own, it waits
/// while all are taken.
const PATIENCE: Duration = Duration::from_secs(5);

/// Which backend serves a transaction.
const BACKEND: &str = "select pg_catalog.pg_backend_pid(), pg_catalog.pg_postmaster_start_time()";

/// Why a pooler in front of a server cannot be used.
pub(super) fn refusal(place: &str) -> Error {
    let message =
        format!("{place} is a connection pooler that gives each transaction another session");
    Error::new(ErrorKind::Usage, message).hint(
        "Connect to the server's own port, or to a pool with session pooling (PgBouncer's \
         `pool_mode = session`): settings and locks of pgspate's sessions would reach other \
         programs here.",
    )
}

/// Whether the pooler that `connection` leads to gives its transactions several backends. `another`
/// opens one more connection to the same address.
///
/// The session is idle, so that a backend is its own only if it keeps one between transactions.
pub(super) async fn shares_backends<F>(
    connection: &Connection,
    mut another: impl FnMut() -> F,
) -> bool
where
    F: Future<Output = Option<Connection>>,
{
    for _ in 0..ROUNDS {
        let first = timeout(PATIENCE, backend(&connection.client, BACKEND)).await;
        let Ok(Some(first)) = first else { return false };
        // Also what is refused, as by a pool that is too small, says nothing.
        let holding = async {
            let other = another().await?;
            let backend = backend(&other.client, &format!("begin; {BACKEND}")).await?;
            Some((other, backend))
        };
        let Ok(Some((other, second))) = timeout(PATIENCE, holding).await else { return false };
        let again = backend(&connection.client, BACKEND);
        let is_shared = first == second
            || timeout(PATIENCE, again).await.ok().flatten().is_some_and(|again| again != first);
        let _ = timeout(PATIENCE, other.client.batch_execute("rollback")).await;
        other.close().await;
        if is_shared {
            return true;
        }
    }
    false
}

async fn backend(client: &Client, sql: &str) -> Option<String> {
    let messages = client.simple_query(sql).await.ok()?;
    messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(format!("{} {}", row.get(0)?, row.get(1)?)),
        _ => None,
    })
}
