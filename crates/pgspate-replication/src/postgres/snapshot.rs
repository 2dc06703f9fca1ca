//! The snapshot of a publication's tables at the position where a slot begins.
//!
//! Creating the slot exports a snapshot, and another session reads the tables in that snapshot. The
//! snapshot and the slot's stream together have every change once.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;

use super::stream::no_publication_error;
use crate::{Error, ErrorKind, Result};
use pgspate_events::{Lsn, SourceTable};
use pgspate_target::connect::{Connection, Dsn, ReplicationSession};
use pgspate_target::quote_ident;
use pgspate_target::session::{self, TimeoutScope};

/// The size at which a piece of rows is complete.
const PIECE_BYTES: usize = 256 << 10;
/// How long terminating the backend of a waiting session may take.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(5);
/// The hint for missing rights. The stream has all rows, so row-level security must not hide any.
const MUST_SEE_ALL_ROWS: &str = "The role must see all rows: `grant select on ... to ...`, and \
                                 if a table has row-level security, `alter role ... bypassrls`.";

/// A table of a publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedTable {
    /// The table's schema and name.
    pub name: SourceTable,
    /// The columns that are published, in the table's order.
    pub columns: Vec<String>,
    /// Whether the columns include generated columns. COPY reads these by a query only.
    pub has_generated_columns: bool,
    /// The publication's row filter, as SQL.
    pub filter: Option<String>,
    /// Whether the table is partitioned. Its rows are then in its partitions.
    pub is_partitioned: bool,
}

impl PublishedTable {
    /// Returns the query for the table's published rows.
    pub fn query(&self) -> String {
        // Tables that inherit from the table are published themselves.
        let only = if self.is_partitioned { "" } else { "only " };
        let query = format!("select {} from {only}{}", self.sql_columns(), self.sql_name());
        match &self.filter {
            Some(filter) => format!("{query} where {filter}"),
            None => query,
        }
    }

    /// Returns what COPY reads the published rows from: the table itself if possible, or a query.
    /// For a query, the planner would run the functions in the predicates of the table's indexes.
    fn copy_source_sql(&self) -> String {
        let needs_query = self.is_partitioned
            || self.filter.is_some()
            || self.has_generated_columns
            || self.columns.is_empty();
        match needs_query {
            true => format!("({})", self.query()),
            false => format!("{} ({})", self.sql_name(), self.sql_columns()),
        }
    }

    fn sql_columns(&self) -> String {
        let columns: Vec<_> = self.columns.iter().map(|name| quote_ident(name)).collect();
        columns.join(", ")
    }

    fn sql_name(&self) -> String {
        let table = quote_ident(&self.name.table);
        match &self.name.schema {
            Some(schema) => format!("{}.{table}", quote_ident(schema)),
            None => table.into_owned(),
        }
    }
}

/// A slot that has just been created, and the snapshot of the database at its beginning. The server
/// keeps the snapshot as long as this value lives. Dropping it ends the sessions and keeps the
/// slot.
pub struct SlotSnapshot {
    /// The session that exports the snapshot. It must not run any other command.
    exporter: ReplicationSession,
    connection: Connection,
    name: String,
    lsn: Lsn,
    tables: Vec<PublishedTable>,
}

impl SlotSnapshot {
    /// Creates a slot for pgoutput and imports the snapshot at its beginning. The server waits for
    /// open transactions before it creates the slot; `stop` ends this wait early. Must run inside
    /// a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`] or [`ErrorKind::Server`] if the slot exists already, `wal_level` is
    /// not logical, or the role may not replicate. If a later step fails, the slot is dropped
    /// again.
    pub async fn create(
        dsn: &Dsn,
        slot: &str,
        publication: &str,
        stop: impl Future<Output = ()>,
    ) -> Result<SlotSnapshot> {
        let what = "prepare the session that exports a snapshot";
        let connection = dsn.connect("pgspate").await?;
        let mut exporter = dsn.open_replication_session(&connection, "pgspate").await?;
        // Reading the rows may take long, and the snapshot is kept while other sessions read.
        let unlimited = TimeoutScope::Session.disable_with_lock_timeout_sql(0);
        exporter.command(&unlimited, what).await?;
        let done = connection.client.batch_execute(&unlimited).await;
        done.map_err(|error| connection.explain(format!("could not {what}"), error))?;
        let command = format!(
            "CREATE_REPLICATION_SLOT {} LOGICAL pgoutput EXPORT_SNAPSHOT",
            quote_ident(slot)
        );
        let what = format!("make replication slot \"{slot}\"");
        let slot_rows =
            run_unless_stopped(&mut exporter, &connection, &command, &what, stop).await?;
        match SlotSnapshot::import(exporter, connection, slot_rows, publication).await {
            Ok(snapshot) => Ok(snapshot),
            Err(error) => {
                // Report the first error. An error of dropping the slot does not matter.
                let _ = drop_slot(dsn, slot, pending()).await;
                Err(error)
            }
        }
    }

    async fn import(
        exporter: ReplicationSession,
        connection: Connection,
        slot_rows: Vec<Vec<Option<String>>>,
        publication: &str,
    ) -> Result<SlotSnapshot> {
        let mut values = slot_rows.into_iter().next().unwrap_or_default().into_iter().skip(1);
        let (Some(Some(lsn)), Some(Some(name))) = (values.next(), values.next()) else {
            return Err(no_slot_start_error());
        };
        let lsn = lsn.parse()?;
        let begin = format!(
            "set search_path = ''; set row_security = off; \
             begin isolation level repeatable read read only; \
             set transaction snapshot '{}'; set datestyle = 'ISO'; \
             set intervalstyle = 'postgres'; set extra_float_digits = 3; set bytea_output = 'hex'",
            name.replace('\'', "''")
        );
        let taken = connection.client.batch_execute(&begin).await;
        taken.map_err(|error| connection.explain("could not import the snapshot", error))?;
        let tables = list_published_tables(&connection, publication).await?;
        Ok(SlotSnapshot { exporter, connection, name, lsn, tables })
    }

    /// Returns the snapshot's name, with which other sessions import it (`set transaction
    /// snapshot`).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the position where the slot begins. Reading the stream starts here.
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// Returns the published tables.
    pub fn tables(&self) -> &[PublishedTable] {
        &self.tables
    }

    /// Passes a table's rows to `take` as COPY text, in pieces of whole rows of about 256 KiB. Ends
    /// early if `stop` completes.
    ///
    /// # Errors
    /// When the server or `take` fails.
    pub async fn copy(
        &self,
        table: &PublishedTable,
        take: &mut (dyn FnMut(&[u8]) -> Result<()> + Send),
        stop: impl Future<Output = ()>,
    ) -> Result<()> {
        tokio::select! {
            copied = self.copy_all(table, take) => copied,
            () = stop => {
                // COPY may wait for a lock. If the cancel request fails, the session's end stops
                // COPY.
                let _ = self.connection.cancel().await;
                Err(stopped_by_user())
            }
        }
    }

    async fn copy_all(
        &self,
        table: &PublishedTable,
        take: &mut (dyn FnMut(&[u8]) -> Result<()> + Send),
    ) -> Result<()> {
        let failed = |error: tokio_postgres::Error| {
            let message = format!("could not read table \"{}\"", table.name.table);
            let refused = error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE);
            let error = self.connection.explain(message, error);
            if refused { error.hint(MUST_SEE_ALL_ROWS) } else { error }
        };
        let sql = format!("copy {} to stdout", table.copy_source_sql());
        let rows = self.connection.client.copy_out(&sql).await.map_err(failed)?;
        let mut rows = pin!(rows);
        let mut piece = Vec::new();
        while let Some(row) = rows.next().await {
            // Each CopyData message has one row.
            piece.extend_from_slice(&row.map_err(failed)?);
            if piece.len() >= PIECE_BYTES {
                take(&piece)?;
                piece.clear();
            }
        }
        if piece.is_empty() { Ok(()) } else { take(&piece) }
    }

    /// Releases the snapshot. After that the slot's stream can be read.
    pub async fn close(self) {
        let SlotSnapshot { exporter, connection, .. } = self;
        connection.close().await;
        exporter.close().await;
    }
}

impl std::fmt::Debug for SlotSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlotSnapshot")
            .field("name", &self.name)
            .field("lsn", &self.lsn)
            .field("tables", &self.tables)
            .finish_non_exhaustive()
    }
}

/// Lists the tables of a publication. From PostgreSQL 15 on, a publication may have column lists
/// and row filters. From PostgreSQL 18 on, it may have generated columns.
pub(crate) async fn list_published_tables(
    connection: &Connection,
    publication: &str,
) -> Result<Vec<PublishedTable>> {
    let has_lists_and_filters = connection.server_version() >= 150_000;
    let (columns, filter) = match has_lists_and_filters {
        true => ("p.attnames::pg_catalog.text[]", "p.rowfilter"),
        false => ("null::pg_catalog.text[]", "null::pg_catalog.text"),
    };
    let may_publish_generated = connection.server_version() >= 180_000;
    let is_publishable = if may_publish_generated { "true" } else { "a.attgenerated = ''" };
    let sql = format!(
        "select p.schemaname::pg_catalog.text, p.tablename::pg_catalog.text, l.names, \
         l.has_generated, {filter}, c.relkind = 'p' \
         from pg_catalog.pg_publication_tables p \
         join pg_catalog.pg_namespace n on n.nspname = p.schemaname \
         join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = p.tablename \
         cross join lateral (\
             select pg_catalog.array_agg(a.attname::pg_catalog.text order by a.attnum) as names, \
                    pg_catalog.bool_or(a.attgenerated <> '') as has_generated \
             from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attnum > 0 \
             and not a.attisdropped and {is_publishable} \
             and ({columns} is null or a.attname::pg_catalog.text = any ({columns}))) l \
         where p.pubname = $1 order by 1, 2"
    );
    let rows = connection.client.query(&sql, &[&publication]).await;
    let rows =
        rows.map_err(|error| connection.explain("could not list the publication's tables", error))?;
    if rows.is_empty() {
        let message = format!("publication \"{publication}\" does not exist, or has no tables");
        return Err(no_publication_error(publication, message));
    }
    let table = |row: &tokio_postgres::Row| PublishedTable {
        name: SourceTable { schema: Some(row.get(0)), table: row.get(1) },
        columns: row.get::<_, Option<Vec<String>>>(2).unwrap_or_default(),
        has_generated_columns: row.get::<_, Option<bool>>(3).unwrap_or_default(),
        filter: row.get(4),
        is_partitioned: row.get(5),
    };
    Ok(rows.iter().map(table).collect())
}

/// Creates a slot without a snapshot. Returns the position where the slot begins. Ends early if
/// `stop` completes.
///
/// # Errors
/// The errors of [`SlotSnapshot::create`].
pub async fn create_slot(dsn: &Dsn, slot: &str, stop: impl Future<Output = ()>) -> Result<Lsn> {
    let (connection, mut session) = open_both_sessions(dsn).await?;
    let command =
        format!("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput NOEXPORT_SNAPSHOT", quote_ident(slot));
    let what = format!("make replication slot \"{slot}\"");
    let slot_rows = run_unless_stopped(&mut session, &connection, &command, &what, stop).await?;
    session.close().await;
    connection.close().await;
    match slot_rows.into_iter().next().and_then(|row| row.into_iter().nth(1)?) {
        Some(lsn) => lsn.parse(),
        None => Err(no_slot_start_error()),
    }
}

fn no_slot_start_error() -> Error {
    Error::new(ErrorKind::Server, "the server did not return the position of the new slot")
}

/// Drops a slot, after the session that reads it has ended. Ends early if `stop` completes.
///
/// # Errors
/// When the slot does not exist or a session reads it.
pub async fn drop_slot(dsn: &Dsn, slot: &str, stop: impl Future<Output = ()>) -> Result<()> {
    let (connection, mut session) = open_both_sessions(dsn).await?;
    // WAIT: the session that reads the slot may be about to end.
    let command = format!("DROP_REPLICATION_SLOT {} WAIT", quote_ident(slot));
    let what = format!("drop replication slot \"{slot}\"");
    run_unless_stopped(&mut session, &connection, &command, &what, stop).await?;
    session.close().await;
    connection.close().await;
    Ok(())
}

/// Opens a replication session and an ordinary connection to the same server.
async fn open_both_sessions(dsn: &Dsn) -> Result<(Connection, ReplicationSession)> {
    let connection = dsn.connect("pgspate").await?;
    let session = dsn.open_replication_session(&connection, "pgspate").await?;
    Ok((connection, session))
}

/// Runs a command that may wait long for other sessions. If `stop` completes first, the session's
/// backend is terminated over `connection`. Without this, the server would not notice that the
/// client has gone, and would still run the command later.
async fn run_unless_stopped(
    session: &mut ReplicationSession,
    connection: &Connection,
    command: &str,
    what: &str,
    stop: impl Future<Output = ()>,
) -> Result<Vec<Vec<Option<String>>>> {
    let pid_rows = session.command("select pg_catalog.pg_backend_pid()", what).await?;
    let pid = pid_rows.into_iter().flatten().flatten().next();
    let pid = pid.and_then(|pid| pid.parse::<i32>().ok()).unwrap_or_default();
    tokio::select! {
        done = session.command(command, what) => done,
        () = stop => {
            let end = "select pg_catalog.pg_terminate_backend($1)";
            let _ = timeout(TERMINATE_TIMEOUT, connection.client.query_one(end, &[&pid])).await;
            Err(stopped_by_user())
        }
    }
}

/// Returns the error for a command that the user stopped.
fn stopped_by_user() -> Error {
    session::stopped_error().hint("Run the same command again to start over.")
}
