//! Reads the table before the source, so that only rows that the table does not have are staged.
//!
//! If most rows are unchanged, sending all rows and joining them with the whole table is most of a
//! sync's work. So several sessions read the table in one snapshot, and pgspate looks up source
//! rows while it encodes them. Rows that the table does not have byte for byte are staged, in a
//! transaction with the same snapshot. The server compares the staged rows with the unmatched rows
//! of the table. Every row to update or delete is unmatched, so the server still decides about it.

mod probe;
mod read;

use std::sync::Arc;

use tokio_postgres::Client;

pub(super) use probe::saves_time;
pub(super) use read::{connect_readers, read_table};

use super::statements::{SCOPE_IN_SOURCE, Scope, TID, UNMATCHED};
use super::{PreparedSync, attempts};
use crate::copy::temp_table;
use crate::format::EncodeMode;
use crate::plan::AutoChoice;
use crate::stage::known_rows::{KnownRows, RowHasher};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::measure::Measurement;
use pgspate_target::{TypedQuery, server_error};

/// A table with fewer blocks is not read ahead. The server compares such a table in less time than
/// the reading sessions need to connect.
const BLOCKS_MIN: u64 = 256;
/// Maximum number of rows to keep in memory. A row takes 30 to 52 bytes, and for a moment twice as
/// many.
const ROWS_MAX: usize = 25_000_000;
/// If fewer than one row in this many is unmatched, the server looks up the unmatched rows by
/// address instead of scanning the table.
const ROWS_PER_LOOKUP_MIN: u64 = 20;
/// Assumed rows per block of a table that was never analyzed.
const UNANALYZED_ROWS_PER_BLOCK: i64 = 200;

/// A table that was read ahead of the source.
#[derive(Debug, Clone)]
pub(super) struct TableReadAhead {
    /// The exported snapshot in which the table was read. The staging session uses the snapshot,
    /// too, in the transaction that it keeps open.
    pub(super) snapshot: String,
    /// The table's rows.
    pub(super) known: Arc<KnownRows>,
}

const BEGIN: &str = "begin isolation level repeatable read, read only";

/// Query for the size of a plain heap table without inheritance. Columns: blocks, estimated rows,
/// bytes. Returns no row for other tables.
const EXTENT_SQL: &str = "\
select pg_relation_size(c.oid) / current_setting('block_size')::int8, c.reltuples::int8,
       pg_relation_size(c.oid)
from pg_class c join pg_am a on a.oid = c.relam
where c.oid = $1 and c.oid = to_regclass($2) and c.relkind = 'r' and not c.relhassubclass
  and a.amname = 'heap'";

/// The size of the table to read.
#[derive(Debug, Clone, Copy)]
pub(super) struct TableExtent {
    blocks: u64,
    /// Whether to read ahead even if that may not save time.
    is_always: bool,
}

/// Returns the table's size if the table is to be read ahead, otherwise `None`. Reading ahead must
/// leave out only unchanged rows, and the source must be large compared to the table.
pub(super) async fn choose_extent(sync: &PreparedSync) -> Result<Option<TableExtent>> {
    let (staging, columns) = (&sync.staging, &sync.columns);
    let fits = match &sync.options.scope {
        // A row's scope cannot change while the row's key stays.
        Scope::By(_) => {
            let statements = sync.build_statements();
            // Scopes are recognised by bytes, so equal values must have identical bytes.
            statements.keys_in_other_scopes().is_none()
                && statements.scope_columns().iter().all(|it| it.is_exact)
        }
        Scope::InsertOnly => false,
        Scope::Where(_) | Scope::All | Scope::NoDelete => true,
    };
    let is_plain = columns.key_is_unique
        && staging.table.storage.facts().has_row_addresses
        && !columns.all().any(|column| column.is_ignored);
    let needs_all_rows = sync.options.keeps_last
        || staging.is_shared()
        || staging.is_text()
        || staging.reading.is_stream();
    let when = sync.options.read_ahead;
    if when == AutoChoice::Never || !fits || !is_plain || needs_all_rows {
        return Ok(None);
    }
    let (failed, table) =
        (server_error("could not look up the size of the table".to_owned()), &staging.table);
    let row = staging.control().client.fetch_opt(EXTENT_SQL, &[&table.oid, &table.sql_name]).await;
    let Some(row) = row.map_err(failed)? else { return Ok(None) };
    let [blocks, rows, bytes] = [0, 1, 2].map(|nth| row.get::<_, i64>(nth));
    let rows = if rows > 0 { rows } else { blocks * UNANALYZED_ROWS_PER_BLOCK };
    let [blocks, rows, bytes] = [blocks, rows, bytes].map(i64::unsigned_abs);
    // A compressed source may have few bytes compared to the table.
    let share = if sync.options.scope == Scope::All { 32 } else { 4 };
    let is_worth_it = blocks >= BLOCKS_MIN
        && rows <= ROWS_MAX as u64
        && bytes <= staging.stored_bytes().saturating_mul(share);
    let is_always = when == AutoChoice::Always && rows <= ROWS_MAX as u64;
    Ok((is_worth_it || is_always).then_some(TableExtent { blocks, is_always }))
}

impl TableExtent {
    /// Returns whether pgspate must first test, with some rows of the source, whether reading ahead
    /// saves time.
    pub(super) fn needs_probe(&self) -> bool {
        !self.is_always
    }
}

/// Opens a session without timeouts while idle.
pub(super) async fn open_session(sync: &PreparedSync) -> Result<Connection> {
    let session = sync.staging.control_session.dsn.connect("pgspate sync").await?;
    let failed = server_error("could not begin to read the table".to_owned());
    session.client.batch_execute(&sync.options.limits.session_sql()).await.map_err(failed)?;
    Ok(session)
}

/// A snapshot that a session has exported and keeps open.
pub(super) struct HeldSnapshot {
    /// The id of the exported snapshot.
    pub(super) snapshot: String,
    /// Server counters from before the sync.
    pub(super) before: Option<Measurement>,
}

/// Takes the lock against other syncs of the same rows, locks the table against TRUNCATE and
/// rewrites, and exports a snapshot. The locks and the snapshot end with the session.
pub(super) async fn hold_snapshot(
    sync: &PreparedSync,
    session: &Connection,
) -> Result<HeldSnapshot> {
    let failed = || server_error("could not begin to read the table".to_owned());
    let client = &session.client;
    attempts::lock_scope(session, sync).await?;
    let before = attempts::measure_before(sync, session, sync.staging.stored_bytes()).await;
    let table = &sync.staging.table;
    let lock = format!("lock table {} in access share mode", table.sql_name);
    client.batch_execute(BEGIN).await.map_err(failed())?;
    client.batch_execute(&lock).await.map_err(failed())?;
    let same_table =
        client.fetch_opt(EXTENT_SQL, &[&table.oid, &table.sql_name]).await.map_err(failed())?;
    if same_table.is_none() {
        return Err(Error::new(ErrorKind::Plan, "the table was replaced"));
    }
    let row = client.fetch_one("select pg_export_snapshot()", &[]).await.map_err(failed())?;
    Ok(HeldSnapshot { snapshot: row.get(0), before })
}

/// Releases the snapshot and the lock on the table, but not the lock against other syncs. Called
/// when the staging session has taken over the snapshot.
pub(super) async fn release_snapshot(session: &Connection) -> Result<()> {
    let failed = server_error("could not release the snapshot".to_owned());
    session.client.batch_execute("rollback").await.map_err(failed)
}

/// Returns the hasher of the table's rows, over the columns that the source has.
fn row_hasher(sync: &PreparedSync) -> RowHasher {
    let names: Vec<_> = sync.staging.plan.columns.iter().map(|column| &column.name).collect();
    let by: &[String] = match &sync.options.scope {
        Scope::By(columns) => columns,
        _ => &[],
    };
    let scope = (0..names.len()).filter(|nth| by.contains(names[*nth])).collect();
    RowHasher::new(names.len(), scope)
}

/// Copies the addresses of unmatched rows into a temporary table of the staging session. Returns
/// whether the source has matched rows in the scopes of all unmatched rows. If not,
/// [`mark_staged_scopes`] must look for staged rows of the other scopes.
pub(super) async fn stage_unmatched(connection: &Connection, known: &KnownRows) -> Result<bool> {
    let failed = || server_error("could not stage the unmatched rows".to_owned());
    let client: &Client = &connection.client;
    let create = format!(
        "create temporary table pgspate_unmet ({TID} tid, {SCOPE_IN_SOURCE} boolean) on commit drop"
    );
    client.batch_execute(&create).await.map_err(failed())?;
    let copy = format!("copy {UNMATCHED} from stdin (format binary)");
    let statement = client.prepare(&copy).await.map_err(failed())?;
    let (mut rows, mut count, mut all_scopes_in_source) = (Vec::new(), 0, true);
    for (tid, scope_in_source) in known.unmatched() {
        rows.extend_from_slice(&[0, 2, 0, 0, 0, 6]);
        rows.extend_from_slice(&tid.block.to_be_bytes());
        rows.extend_from_slice(&tid.item.to_be_bytes());
        rows.extend_from_slice(&[0, 0, 0, 1, u8::from(scope_in_source)]);
        count += 1;
        all_scopes_in_source &= scope_in_source;
    }
    temp_table::copy_rows(connection, &statement, EncodeMode::Binary, &rows, count).await?;
    if count * ROWS_PER_LOOKUP_MIN < known.len() as u64 {
        // The lookups are in the table's order, so they cost little more than sequential reads.
        client.batch_execute("set local random_page_cost = 1.1").await.map_err(failed())?;
    }
    client.batch_execute(&format!("analyze {UNMATCHED}")).await.map_err(failed())?;
    Ok(all_scopes_in_source)
}

/// Marks unmatched rows in scopes whose source rows are all staged. The stage must be analyzed.
pub(super) async fn mark_staged_scopes(client: &Client, sync: &PreparedSync) -> Result<()> {
    let failed = || server_error("could not compare scopes".to_owned());
    let statements = sync.build_statements();
    let Some(mark) = statements.mark_staged_scopes() else { return Ok(()) };
    statements.planned(client).allow_nested_loop(&mark).await.map_err(failed())?;
    client.batch_execute(&mark).await.map_err(failed())
}
