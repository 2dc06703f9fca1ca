//! Connecting as libpq does: conninfo, environment, password and service files, TLS, several hosts.
//!
//! [`Dsn::resolve`] checks the parameters without using the network. [`Dsn::connect`] tries the
//! servers in order. A password is stored in a `Dsn` and sent to the server. No password appears in
//! `Debug` output, errors or command lines.

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
mod lock_watch;
mod parameters;
mod passfile;
mod pooler;
mod replication;
mod revocation;
mod service;
mod socket;
#[cfg(test)]
mod tests;
mod tls;
mod tls_settings;
mod traffic;
mod uri;
mod verify;

pub use connection::{Canceller, Connection};
pub use dsn::{Dsn, STALL_TIMEOUT};
pub use environment::Environment;
#[doc(hidden)]
pub use framing::parse_server_headers;
pub use lock_watch::{LockWatch, describe_session_sql};
pub use replication::ReplicationSession;

use tokio_postgres::Client;

use crate::Result;

/// A query that a new session sends together with the query for its identity. Behind a pooler the
/// query runs twice. The first time the search path is not pinned yet. So the query must qualify
/// names, or begin its transaction with [`begin_pinned_sql`](super::begin_pinned_sql).
pub trait SessionQuery: Sync {
    /// The result of the query.
    type Answer: Send;

    /// Runs the query. The query must not wait for locks, since `connect_timeout` covers it.
    fn run(&self, client: &Client) -> impl Future<Output = Self::Answer> + Send;
}

/// No query: nothing is sent.
struct NoQuery;

impl SessionQuery for NoQuery {
    type Answer = ();

    async fn run(&self, _: &Client) {}
}

impl Dsn {
    /// Connects to the first server that accepts the connection and has the session type of
    /// `target_session_attrs`. `application_name` is used unless the parameters set one. Must run
    /// inside a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`](crate::ErrorKind::Connect) if no server could be reached, or if a
    /// server refused the connection. The cause has the server's message and SQLSTATE. If several
    /// servers were tried, each has a cause of its own.
    ///
    /// [`ErrorKind::Usage`](crate::ErrorKind::Usage) if TLS or channel binding is not available
    /// as required, or if a pooler gives each transaction another session.
    ///
    /// [`ErrorKind::Server`](crate::ErrorKind::Server) if pgspate does not support the server's
    /// version.
    pub async fn connect(&self, application_name: &str) -> Result<Connection> {
        Ok(attempt::connect(self, application_name, &NoQuery).await?.0)
    }

    /// Connects like [`Dsn::connect`], and runs `query` in the new session.
    ///
    /// # Errors
    /// The errors of [`Dsn::connect`]. An error of the query is part of the returned answer.
    pub async fn connect_and_query<Q: SessionQuery>(
        &self,
        application_name: &str,
        query: &Q,
    ) -> Result<(Connection, Q::Answer)> {
        attempt::connect(self, application_name, query).await
    }
}
