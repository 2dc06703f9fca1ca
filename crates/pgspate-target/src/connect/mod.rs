//! Connecting as libpq does: conninfo, environment, password and service files, TLS, several hosts.
//!
//! [`Dsn::resolve`] turns words and surroundings into checked parameters without touching the
//! network; [`Dsn::connect`] tries the servers in order. A password is in a `Dsn` and on its way to
//! the server, and nowhere else: not in `Debug`, not in an error, not in a command line.

mod attempt;
mod certificate;
mod connection;
mod conninfo;
mod dsn;
mod environment;
mod failure;
mod framing;
mod guard;
mod host;
mod keyword;
mod passfile;
mod pooler;
mod revocation;
mod service;
mod settings;
mod socket;
mod tap;
#[cfg(test)]
mod tests;
mod tls;
mod tls_settings;
mod uri;
mod verify;
mod walsender;

pub use connection::{Canceller, Connection};
pub use dsn::{Dsn, STALL_TIMEOUT};
pub use environment::Environment;
#[doc(hidden)]
pub use framing::headers_of_server;
pub use walsender::Walsender;

use tokio_postgres::Client;

use crate::Result;

/// What a session is asked in the round trip in which it is asked who it is. Asked twice where
/// there is a pooler: the search path is not pinned the first time, so that names have to be
/// qualified, or the transaction begun by [`begin_pinned`](super::begin_pinned).
pub trait Question: Sync {
    /// What comes of it.
    type Answer: Send;

    /// Asks. Must not wait for locks: `connect_timeout` counts for it, too.
    fn ask(&self, client: &Client) -> impl Future<Output = Self::Answer> + Send;
}

/// Asks nothing.
struct Nothing;

impl Question for Nothing {
    type Answer = ();

    async fn ask(&self, _: &Client) {}
}

impl Dsn {
    /// Connects to the first of the servers that takes the connection and is of the kind that
    /// `target_session_attrs` asks for. `application_name` is what the session is called unless
    /// the parameters name it. Must run inside a tokio runtime with I/O and time.
    ///
    /// Errors are of [`ErrorKind::Connect`](crate::ErrorKind::Connect) where no server could be
    /// reached or one refused (the server's words and SQLSTATE are the cause; several servers are a
    /// cause each), and of [`ErrorKind::Usage`](crate::ErrorKind::Usage) where TLS or channel
    /// binding cannot be had as the parameters demand it, or what answers is a pooler that gives
    /// every transaction another session.
    pub async fn connect(&self, application_name: &str) -> Result<Connection> {
        Ok(attempt::connect(self, application_name, &Nothing).await?.0)
    }

    /// The same, and asks something more.
    ///
    /// # Errors
    /// Those of connecting. What has become of the question is in its answer.
    pub async fn connect_asking<Q: Question>(
        &self,
        application_name: &str,
        asked: &Q,
    ) -> Result<(Connection, Q::Answer)> {
        attempt::connect(self, application_name, asked).await
    }
}
