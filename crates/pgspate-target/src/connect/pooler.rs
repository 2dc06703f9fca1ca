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

/// What the test of a pooler has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoolingTest {
    /// Each transaction of a session may get another backend.
    SharesBackends,
    /// A session keeps its backend.
    KeepsBackends,
    /// A session keeps its backend while another session waits for one: a pool of one backend, or a
    /// pool that is full now.
    NoSecondBackend,
    /// The pooler has refused a second connection, or the first session has lost its backend.
    Untested,
}

/// Returns the error for a pooler that could not be tested.
pub(super) fn untested_error(place: &str) -> Error {
    let message = format!(
        "could not test whether {place}, a connection pooler, gives each transaction another \
         session: it had no second connection free, or no backend in time"
    );
    Error::new(ErrorKind::Connect, message).hint(
        "Run the command again when the pooler has free connections, or connect to the server's \
         own port.",
    )
}

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

/// Tests whether the pooler gives the transactions of `connection` different backends.
/// `open_another` opens one more connection to the same address.
///
/// While `connection` is idle, the other connection holds a backend. After that, `connection` gets
/// the same backend again only if the pooler keeps one backend for each session.
pub(super) async fn test_pooling<F>(
    connection: &Connection,
    mut open_another: impl FnMut() -> F,
) -> PoolingTest
where
    F: Future<Output = Option<Connection>>,
{
    for _ in 0..ROUNDS {
        let Some(first) = read_backend(&connection.client, BACKEND_QUERY).await else {
            return PoolingTest::Untested;
        };
        let other = match timeout(BACKEND_TIMEOUT, open_another()).await {
            Ok(Some(other)) => Some(other),
            Ok(None) => return PoolingTest::Untested,
            Err(_) => None,
        };
        let second = match &other {
            Some(other) => read_backend(&other.client, &format!("begin; {BACKEND_QUERY}")).await,
            None => None,
        };
        let is_shared = match second.as_ref() == Some(&first) {
            true => Some(true),
            false => {
                let again = read_backend(&connection.client, BACKEND_QUERY).await;
                again.map(|again| again != first)
            }
        };
        if let Some(other) = other {
            if second.is_some() {
                let _ = timeout(BACKEND_TIMEOUT, other.client.batch_execute("rollback")).await;
            }
            other.close().await;
        }
        match is_shared {
            Some(true) => return PoolingTest::SharesBackends,
            Some(false) if second.is_none() => return PoolingTest::NoSecondBackend,
            Some(false) => {}
            None => return PoolingTest::Untested,
        }
    }
    PoolingTest::KeepsBackends
}

/// Reads the process id of the transaction's backend, with the server's start time. Returns `None`
/// if there is no backend in time, or if the query fails.
async fn read_backend(client: &Client, sql: &str) -> Option<String> {
    let messages = timeout(BACKEND_TIMEOUT, client.simple_query(sql)).await.ok()?.ok()?;
    messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(format!("{} {}", row.get(0)?, row.get(1)?)),
        _ => None,
    })
}
