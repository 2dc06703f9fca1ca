//! Watches whether the server answers, so that requests are refused early while it does not.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pgspate::target::TypedQuery;
use pgspate::target::connect::{Connection, Dsn};
use tokio::time::{sleep, timeout};

use crate::ServeNotice;
use crate::state::ServeState;

/// How often the server is asked.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long the server may take for an answer, and each of its addresses for a new connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before the next attempt to connect.
const CONNECT_PAUSE: Duration = Duration::from_millis(500);
/// Whether the session may write. A standby is read-only.
const MAY_WRITE: &str =
    "select pg_catalog.current_setting('transaction_read_only') operator(pg_catalog.=) 'off'";

/// Watches the server with a connection of its own. Never returns.
pub(crate) async fn watch_server(
    dsn: Dsn,
    state: Arc<ServeState>,
    notify: Arc<dyn Fn(ServeNotice) + Send + Sync>,
) {
    let dsn = dsn.with_connect_limit(ANSWER_TIMEOUT);
    let set = |is_up: bool, is_read_only: bool| {
        let was_up = state.is_server_up.swap(is_up, Ordering::Relaxed);
        let was_read_only = state.is_read_only.swap(is_read_only, Ordering::Relaxed);
        if (was_up, was_read_only) != (is_up, is_read_only) {
            notify(match (is_up, is_read_only) {
                (false, _) => ServeNotice::ServerAway,
                (true, true) => ServeNotice::ServerReadOnly,
                (true, false) => ServeNotice::ServerBack,
            });
        }
    };
    loop {
        match dsn.connect("pgspate serve").await {
            Ok(connection) => {
                while let Some(may_write) = ask_server(&connection).await {
                    set(true, !may_write);
                    sleep(INTERVAL).await;
                    if !may_write {
                        // Another address may lead to the primary.
                        break;
                    }
                }
                // Another attempt to connect decides: the session alone may have been ended.
            }
            // The server answers, though it has no connection left. The lanes have theirs.
            Err(error) if error.sqlstate().is_some_and(|code| code.code() == "53300") => {
                set(true, state.is_read_only.load(Ordering::Relaxed));
                sleep(INTERVAL).await;
            }
            Err(_) => {
                set(false, false);
                sleep(CONNECT_PAUSE).await;
            }
        }
    }
}

/// Asks the server whether it accepts writes. Returns `None` if it does not answer.
async fn ask_server(connection: &Connection) -> Option<bool> {
    if connection.is_closed() {
        return None;
    }
    let asked = timeout(ANSWER_TIMEOUT, connection.client.fetch_one(MAY_WRITE, &[])).await;
    asked.ok()?.ok().map(|row| row.get(0))
}
