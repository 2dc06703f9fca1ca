//! Databases for tests: one server per process, one database per test.
//!
//! If `PGSPATE_TEST_DSN` (a URL or `key=value`) is set, tests use that server. The role in it must
//! be allowed to create databases, and the server must not require TLS. Otherwise all tests of a
//! process share one [`ThrowawayServer`], whose major version is chosen by
//! `PGSPATE_TEST_PG_VERSION`. All functions panic on errors, and may be called in async tests.

use std::env;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio_postgres::NoTls;

use crate::dsn;
use crate::error::{self, Result};
use crate::find::{Installation, locate, locate_major, wanted_major};
use crate::progress::{Progress, silent};
use crate::throwaway::{ThrowawayBuilder, ThrowawayServer};

/// The shared server. A static is never dropped; the watchdog stops the server after the process
/// ends.
static SHARED: OnceLock<ThrowawayServer> = OnceLock::new();

/// A database for one test. The database is dropped with the value.
#[derive(Debug)]
pub struct TestDb {
    server: String,
    name: String,
}

impl TestDb {
    /// Returns the connection string of the database: `key=value`, or a URL if `PGSPATE_TEST_DSN`
    /// is a URL.
    pub fn dsn(&self) -> String {
        dsn::with_database(&self.server, &self.name)
    }

    /// Returns the name of the database.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs statements in the database.
    ///
    /// # Panics
    /// When a statement fails.
    pub fn run(&self, sql: &str) {
        run_sql(&self.dsn(), sql).unwrap_or_else(|e| panic!("{}", e.chain()));
    }

    /// Runs one query and returns its rows. Values are texts as the server prints them; NULL is
    /// `None`.
    ///
    /// # Panics
    /// When the query fails.
    pub fn query(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        query_sql(&self.dsn(), sql).unwrap_or_else(|e| panic!("{}", e.chain()))
    }
}

impl Drop for TestDb {
    fn drop(&mut self) {
        // `force` ends sessions that a failed test has left open. An error is ignored: the test may
        // have killed the server.
        let _ = run_sql(&self.server, &format!("drop database \"{}\" with (force)", self.name));
    }
}

/// Creates a new, empty database.
///
/// # Panics
/// When there is no server, or the server cannot create the database.
pub fn database() -> TestDb {
    let server = server_dsn();
    let name = unique_name();
    // No session is ever connected to template0, so this statement never waits.
    let sql = format!("create database \"{name}\" template template0");
    run_sql(&server, &sql).unwrap_or_else(|e| panic!("{}", e.chain()));
    TestDb { server, name }
}

/// Returns the connection string for the database `postgres` of the tests' server, or
/// `PGSPATE_TEST_DSN`.
///
/// # Panics
/// When no server can be started.
pub fn server_dsn() -> String {
    match env::var("PGSPATE_TEST_DSN") {
        Ok(dsn) if !dsn.trim().is_empty() => dsn,
        _ => SHARED.get_or_init(|| server("")).dsn(),
    }
}

/// Starts a server for one test, with these lines in its `postgresql.conf`.
///
/// # Panics
/// When the server does not start.
pub fn server(conf: &str) -> ThrowawayServer {
    let started = builder().conf(conf).start(&silent);
    started.unwrap_or_else(|e| panic!("{}", e.chain()))
}

/// Returns a builder for servers of the version that the tests use.
///
/// # Panics
/// When there is no installation of that version.
pub fn builder() -> ThrowawayBuilder {
    let installed = installation(&silent).unwrap_or_else(|e| panic!("{}", e.chain()));
    ThrowawayServer::builder().installation(installed).trust_roles()
}

/// Returns the installation that tests use: of the version `PGSPATE_TEST_PG_VERSION`, if set, else
/// the one that [`locate`] finds.
///
/// # Errors
/// The errors of [`locate`].
pub fn installation(progress: &Progress<'_>) -> Result<Installation> {
    match wanted_major("PGSPATE_TEST_PG_VERSION")? {
        None => locate(progress),
        major => locate_major(major, progress),
    }
}

/// Returns a name that no other process, thread or machine uses on the server.
fn unique_name() -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let nanos_since_epoch =
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("pgspate_test_{}_{count}_{:x}", std::process::id(), nanos_since_epoch as u64)
}

/// Runs statements over a new connection.
pub(crate) fn run_sql(dsn: &str, sql: &str) -> Result<()> {
    query_sql(dsn, sql).map(drop)
}

/// Runs statements on a new thread, so that the caller may be within an async runtime.
fn query_sql(dsn: &str, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
    let work = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.map_err(|e| error::new("could not start a tokio runtime").because(e))?;
        runtime.block_on(query(dsn, sql))
    };
    std::thread::scope(|scope| scope.spawn(work).join())
        .unwrap_or_else(|_| Err(error::new("the thread that talks to the server panicked")))
}

async fn query(dsn: &str, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
    let no_connection =
        |e| error::new("could not connect to the test server").because(server_message(&e));
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await.map_err(no_connection)?;
    let connection = tokio::spawn(connection);
    let result = client.simple_query(sql).await;
    drop(client);
    // Waits for the end of the session, because the next statement may drop its database.
    let _ = connection.await;
    let failed = |e| error::new("a statement of the test failed").because(server_message(&e));
    let messages = result.map_err(failed)?;
    let rows = messages.iter().filter_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let values = |row: &tokio_postgres::SimpleQueryRow| {
        (0..row.len()).map(|column| row.get(column).map(str::to_string)).collect()
    };
    Ok(rows.map(values).collect())
}

/// Returns the server's message, or that of the client library. For an error of the server, the
/// client library says only "db error".
fn server_message(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(server) => format!("{} (SQLSTATE {})", server.message(), server.code().code()),
        None => match std::error::Error::source(error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        },
    }
}
