//! The tables of a publication as they were where a slot begins.
//!
//! The slot's creation exports a snapshot, which another session takes over: what it reads and what
//! the slot sends are all there is, and nothing is in both.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;

use super::stream::no_publication;
use crate::{Error, ErrorKind, Result};
use pgspate_events::{Lsn, SourceTable};
use pgspate_target::connect::{Connection, Dsn, Walsender};
use pgspate_target::quote_ident;
use pgspate_target::session::{self, Timeouts};

/// Bytes of rows that are handed on at a time.
const PIECE_BYTES: usize = 256 << 10;
/// How long it may take to end a session that waits.
const PATIENCE: Duration = Duration::from_secs(5);
/// The stream has all rows, whatever policies a table has.
const ALL_ROWS: &str = "The role must see all rows: `grant select on ... to ...`, and where a \
                        table has row-level security `alter role ... bypassrls`.";

/// A table of a publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedTable {
    /// Its name.
    pub name: SourceTable,
    /// The columns that are published, in the table's order.
    pub columns: Vec<String>,
    /// The condition that published rows fulfil, as SQL.
    pub filter: Option<String>,
    /// Its rows are those of its partitions.
    pub is_partitioned: bool,
}

impl PublishedTable {
    /// The query that gives its published rows.
    pub fn query(&self) -> String {
        // Tables that inherit from it are published by themselves.
        let only = if self.is_partitioned { "" } else { "only " };
        let query = format!("select {} from {only}{}", self.sql_columns(), self.sql_name());
        match &self.filter {
            Some(filter) => format!("{query} where {filter}"),
            None => query,
        }
    }

    /// Returns what COPY reads its published rows from: the table itself where it can. A query is
    /// planned first, and planning runs the functions in conditions of the table's indexes.
    fn copied(&self) -> String {
        match self.is_partitioned || self.filter.is_some() || self.columns.is_empty() {
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

/// A slot that has just been made, and the state of the database there. As long as it lives the
/// server keeps that state; dropping it ends the sessions and leaves the slot.
pub struct Snapshot {
    /// The session that exports the snapshot, which must not do anything else.
    exporter: Walsender,
    connection: Connection,
    name: String,
    lsn: Lsn,
    tables: Vec<PublishedTable>,
}

impl Snapshot {
    /// Makes a slot for pgoutput and takes over the snapshot of where it begins, unless `stop`
    /// comes first: the server waits for transactions that are open. Must run inside a tokio
    /// runtime with I/O and time.
    ///
    /// # Errors
    /// [`ErrorKind::Connect`] or [`ErrorKind::Server`] with the server's words: the slot is there
    /// already, `wal_level` is not logical, no right to replicate. After the slot was made it is
    /// dropped again.
    pub async fn create(
        dsn: &Dsn,
        slot: &str,
        publication: &str,
        stop: impl Future<Output = ()>,
    ) -> Result<Snapshot> {
        let what = "prepare the session that exports a snapshot";
        let connection = dsn.connect("pgspate").await?;
        let mut exporter = dsn.walsender(&connection, "pgspate").await?;
        // Rows are read for as long as that takes, and the snapshot is kept while others are read.
        let unlimited = Timeouts::OfSession.off_with_lock_timeout(0);
        exporter.command(&unlimited, what).await?;
        let done = connection.client.batch_execute(&unlimited).await;
        done.map_err(|error| connection.explain(format!("could not {what}"), error))?;
        let command = format!(
            "CREATE_REPLICATION_SLOT {} LOGICAL pgoutput EXPORT_SNAPSHOT",
            quote_ident(slot)
        );
        let what = format!("make replication slot \"{slot}\"");
        let made = command_unless(&mut exporter, &connection, &command, &what, stop).await?;
        match Snapshot::take_over(exporter, connection, made, publication).await {
            Ok(snapshot) => Ok(snapshot),
            Err(error) => {
                // The first error is the one that matters.
                let _ = drop_slot(dsn, slot, pending()).await;
                Err(error)
            }
        }
    }

    async fn take_over(
        exporter: Walsender,
        connection: Connection,
        made: Vec<Vec<Option<String>>>,
        publication: &str,
    ) -> Result<Snapshot> {
        let mut values = made.into_iter().next().unwrap_or_default().into_iter().skip(1);
        let (Some(Some(lsn)), Some(Some(name))) = (values.next(), values.next()) else {
            return Err(unplaced());
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
        taken.map_err(|error| connection.explain("could not take over the snapshot", error))?;
        let tables = published(&connection, publication).await?;
        Ok(Snapshot { exporter, connection, name, lsn, tables })
    }

    /// The snapshot's name: other sessions take it over with `set transaction snapshot`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the slot begins: start to read it from here.
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// The tables that are published.
    pub fn tables(&self) -> &[PublishedTable] {
        &self.tables
    }

    /// Gives a table's rows as COPY text, in pieces of whole rows of about 256 KiB, unless `stop`
    /// comes first.
    ///
    /// # Errors
    /// The server's, and those of `take`, which end it.
    pub async fn copy(
        &self,
        table: &PublishedTable,
        take: &mut (dyn FnMut(&[u8]) -> Result<()> + Send),
        stop: impl Future<Output = ()>,
    ) -> Result<()> {
        tokio::select! {
            copied = self.copy_all(table, take) => copied,
            () = stop => {
                // It may wait for a lock. If this does not get there, the session's end will do.
                let _ = self.connection.cancel().await;
                Err(stopped())
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
            if refused { error.hint(ALL_ROWS) } else { error }
        };
        let sql = format!("copy {} to stdout", table.copied());
        let rows = self.connection.client.copy_out(&sql).await.map_err(failed)?;
        let mut rows = pin!(rows);
        let mut piece = Vec::new();
        while let Some(row) = rows.next().await {
            // A message of the protocol is a row.
            piece.extend_from_slice(&row.map_err(failed)?);
            if piece.len() >= PIECE_BYTES {
                take(&piece)?;
                piece.clear();
            }
        }
        if piece.is_empty() { Ok(()) } else { take(&piece) }
    }

    /// Lets the snapshot go: the slot's stream can be read now.
    pub async fn close(self) {
        let Snapshot { exporter, connection, .. } = self;
        connection.close().await;
        exporter.close().await;
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("name", &self.name)
            .field("lsn", &self.lsn)
            .field("tables", &self.tables)
            .finish_non_exhaustive()
    }
}

/// The tables of a publication, which has columns and filters of its own from PostgreSQL 15 on.
pub(crate) async fn published(
    connection: &Connection,
    publication: &str,
) -> Result<Vec<PublishedTable>> {
    let with_parts = connection.server_version() >= 150_000;
    let (columns, filter) = match with_parts {
        true => ("p.attnames::pg_catalog.text[]", "p.rowfilter"),
        false => ("null::pg_catalog.text[]", "null::pg_catalog.text"),
    };
    let sql = format!(
        "select p.schemaname::pg_catalog.text, p.tablename::pg_catalog.text, \
         (select pg_catalog.array_agg(a.attname::pg_catalog.text order by a.attnum) \
          from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attnum > 0 \
          and not a.attisdropped and a.attgenerated = '' \
          and ({columns} is null or a.attname::pg_catalog.text = any ({columns}))), {filter}, \
         c.relkind = 'p' \
         from pg_catalog.pg_publication_tables p \
         join pg_catalog.pg_namespace n on n.nspname = p.schemaname \
         join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = p.tablename \
         where p.pubname = $1 order by 1, 2"
    );
    let rows = connection.client.query(&sql, &[&publication]).await;
    let rows =
        rows.map_err(|error| connection.explain("could not list the publication's tables", error))?;
    if rows.is_empty() {
        let message = format!("publication \"{publication}\" does not exist, or has no tables");
        return Err(no_publication(publication, message));
    }
    let table = |row: &tokio_postgres::Row| PublishedTable {
        name: SourceTable { schema: Some(row.get(0)), table: row.get(1) },
        columns: row.get::<_, Option<Vec<String>>>(2).unwrap_or_default(),
        filter: row.get(3),
        is_partitioned: row.get(4),
    };
    Ok(rows.iter().map(table).collect())
}

/// Makes a slot without a snapshot, unless `stop` comes first. Returns where the slot begins.
///
/// # Errors
/// As [`Snapshot::create`].
pub async fn make_slot(dsn: &Dsn, slot: &str, stop: impl Future<Output = ()>) -> Result<Lsn> {
    let (connection, mut session) = both(dsn).await?;
    let command =
        format!("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput NOEXPORT_SNAPSHOT", quote_ident(slot));
    let what = format!("make replication slot \"{slot}\"");
    let made = command_unless(&mut session, &connection, &command, &what, stop).await?;
    session.close().await;
    connection.close().await;
    match made.into_iter().next().and_then(|row| row.into_iter().nth(1)?) {
        Some(lsn) => lsn.parse(),
        None => Err(unplaced()),
    }
}

fn unplaced() -> Error {
    Error::new(ErrorKind::Server, "the server did not say where the slot begins")
}

/// Drops a slot, after the session that reads it has ended, unless `stop` comes first.
///
/// # Errors
/// The server's: there is no such slot, or somebody reads it.
pub async fn drop_slot(dsn: &Dsn, slot: &str, stop: impl Future<Output = ()>) -> Result<()> {
    let (connection, mut session) = both(dsn).await?;
    // Waits for a session that is about to end.
    let command = format!("DROP_REPLICATION_SLOT {} WAIT", quote_ident(slot));
    let what = format!("drop replication slot \"{slot}\"");
    command_unless(&mut session, &connection, &command, &what, stop).await?;
    session.close().await;
    connection.close().await;
    Ok(())
}

/// A session for replication, and one beside it.
async fn both(dsn: &Dsn) -> Result<(Connection, Walsender)> {
    let connection = dsn.connect("pgspate").await?;
    let session = dsn.walsender(&connection, "pgspate").await?;
    Ok((connection, session))
}

/// Runs a command that may wait for others for long. When `stop` comes first the session is ended
/// from `beside` it: left alone the server would not notice that nobody waits any more, and do
/// later what is not wanted then.
async fn command_unless(
    session: &mut Walsender,
    beside: &Connection,
    command: &str,
    what: &str,
    stop: impl Future<Output = ()>,
) -> Result<Vec<Vec<Option<String>>>> {
    let own = session.command("select pg_catalog.pg_backend_pid()", what).await?;
    let pid = own.into_iter().flatten().flatten().next();
    let pid = pid.and_then(|pid| pid.parse::<i32>().ok()).unwrap_or_default();
    tokio::select! {
        done = session.command(command, what) => done,
        () = stop => {
            let end = "select pg_catalog.pg_terminate_backend($1)";
            let _ = timeout(PATIENCE, beside.client.query_one(end, &[&pid])).await;
            Err(stopped())
        }
    }
}

/// The user does not want it any more.
fn stopped() -> Error {
    session::stopped().hint("Run the same command again to begin anew.")
}
