//! Databases for tests: one server per process, one database per test.
//!
//! With `PGSPATE_TEST_DSN` set (a URL or `key=value`), tests run against that server, which needs
//! a role that may create databases and no TLS; otherwise against a [`Throwaway`] that all tests
//! of the process share. `PGSPATE_TEST_PG_VERSION` chooses its major version. Everything panics
//! on failure, as tests do, and may be used inside async tests.

use std::env;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio_postgres::NoTls;

use crate::dsn;
use crate::error::{self, Result};
use crate::find::{Installation, locate, locate_major, wanted_major};
use crate::progress::{Progress, silent};
use crate::throwaway::{Builder, Throwaway};

/// Never dropped, as statics are not; the throwaway's watchdog ends it with the process.
static SHARED: OnceLock<Throwaway> = OnceLock::new();

/// A database of its own for one test, dropped with the value.
#[derive(Debug)]
pub struct TestDb {
    server: String,
    name: String,
}

impl TestDb {
    /// Connects to the database: `key=value`, or a URL where `PGSPATE_TEST_DSN` is one.
    pub fn dsn(&self) -> String {
        dsn::with_database(&self.server, &self.name)
    }

    /// The database's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs statements in it.
    ///
    /// # Panics
    /// The server refuses one.
    pub fn run(&self, sql: &str) {
        run_sql(&self.dsn(), sql).unwrap_or_else(|e| panic!("{}", e.chain()));
    }

    /// Runs one query and returns its rows, each value as the server writes it and NULL as `None`.
    ///
    /// # Panics
    /// The server refuses it.
    pub fn query(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        query_sql(&self.dsn(), sql).unwrap_or_else(|e| panic!("{}", e.chain()))
    }
}

impl Drop for TestDb {
    fn drop(&mut self) {
        // Sessions that a failed test left open are ended; and a server that a test has killed
        // takes its databases with it anyway.
        let _ = run_sql(&self.server, &format!("drop database \"{}\" with (force)", self.name));
    }
}

/// Makes a new, empty database.
///
/// # Panics
/// There is no server, or it refuses.
pub fn database() -> TestDb {
    let server = server_dsn();
    let name = unique_name();
    // Nobody is ever connected to template0, so that this never has to wait.
    let sql = format!("create database \"{name}\" template template0");
    run_sql(&server, &sql).unwrap_or_else(|e| panic!("{}", e.chain()));
    TestDb { server, name }
}

/// Connects to the database `postgres` (or the one in `PGSPATE_TEST_DSN`) of the tests' server.
///
/// # Panics
/// There is no server.
pub fn server_dsn() -> String {
    match env::var("PGSPATE_TEST_DSN") {
        Ok(dsn) if !dsn.trim().is_empty() => dsn,
        _ => SHARED.get_or_init(|| server("")).dsn(),
    }
}

/// Starts a private server with extra lines for its `postgresql.conf`.
///
/// # Panics
/// It does not start.
pub fn server(conf: &str) -> Throwaway {
    let started = builder().conf(conf).start(&silent);
    started.unwrap_or_else(|e| panic!("{}", e.chain()))
}

/// A builder for private servers of the version that the tests are meant for.
///
/// # Panics
/// There is no such installation.
pub fn builder() -> Builder {
    let found = installation(&silent).unwrap_or_else(|e| panic!("{}", e.chain()));
    Throwaway::builder().installation(found).trust_roles()
}

/// The installation that tests run with: `PGSPATE_TEST_PG_VERSION`, else as [`locate`].
///
/// # Errors
/// As [`locate`].
pub fn installation(progress: &Progress<'_>) -> Result<Installation> {
    match wanted_major("PGSPATE_TEST_PG_VERSION")? {
        None => locate(progress),
        major => locate_major(major, progress),
    }
}

/// Unlike any other on the server, whichever process, thread or machine asks.
fn unique_name() -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("pgspate_test_{}_{count}_{:x}", std::process::id(), nanos as u64)
}

/// Runs statements over a connection of their own.
pub(crate) fn run_sql(dsn: &str, sql: &str) -> Result<()> {
    query_sql(dsn, sql).map(drop)
}

/// Runs statements on a thread of its own, so that a caller inside a runtime is no problem.
fn query_sql(dsn: &str, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
    let work = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| error::new("could not start a runtime").because(e))?;
        runtime.block_on(query(dsn, sql))
    };
    std::thread::scope(|scope| scope.spawn(work).join())
        .unwrap_or_else(|_| Err(error::new("the thread that talks to the server panicked")))
}

async fn query(dsn: &str, sql: &str) -> Result<Vec<Vec<Option<String>>>> {
    let no_connection = |e| error::new("could not connect to the tests' server").because(said(&e));
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await.map_err(no_connection)?;
    let connection = tokio::spawn(connection);
    let answer = client.simple_query(sql).await;
    drop(client);
    // Waited for, so that no session is left when the next statement is about its database.
    let _ = connection.await;
    let refused = |e| error::new("the server refused a test's statement").because(said(&e));
    let messages = answer.map_err(refused)?;
    let rows = messages.iter().filter_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let values = |row: &tokio_postgres::SimpleQueryRow| {
        (0..row.len()).map(|column| row.get(column).map(str::to_string)).collect()
    };
    Ok(rows.map(values).collect())
}

/// The server's own words, where there are any; the client library's say only "db error".
fn said(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(server) => format!("{} (SQLSTATE {})", server.message(), server.code().code()),
        None => match std::error::Error::source(error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        },
    }
}
