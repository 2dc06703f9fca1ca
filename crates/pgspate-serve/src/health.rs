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
/// How long the server may take for an answer, and for a new connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before the next attempt to connect.
const CONNECT_PAUSE: Duration = Duration::from_millis(500);

/// Watches the server with a connection of its own. Never returns.
pub(crate) async fn watch_server(
    dsn: Dsn,
    state: Arc<ServeState>,
    notify: Arc<dyn Fn(ServeNotice) + Send + Sync>,
) {
    let set_up = |is_up: bool| {
        if state.is_server_up.swap(is_up, Ordering::Relaxed) != is_up {
            notify(if is_up { ServeNotice::ServerBack } else { ServeNotice::ServerAway });
        }
    };
    loop {
        match timeout(ANSWER_TIMEOUT, dsn.connect("pgspate serve")).await {
            Ok(Ok(connection)) => {
                set_up(true);
                while answers(&connection).await {
                    sleep(INTERVAL).await;
                }
                // Another attempt to connect decides: the session alone may have been ended.
            }
            // The server answers, though it has no connection left. The lanes have theirs.
            Ok(Err(error)) if error.sqlstate().is_some_and(|code| code.code() == "53300") => {
                set_up(true);
                sleep(INTERVAL).await;
            }
            _ => {
                set_up(false);
                sleep(CONNECT_PAUSE).await;
            }
        }
    }
}

async fn answers(connection: &Connection) -> bool {
    let asked = connection.client.fetch_one("select true", &[]);
    !connection.is_closed() && matches!(timeout(ANSWER_TIMEOUT, asked).await, Ok(Ok(_)))
}
