//! The table read ahead of the source, so that only rows that it does not have are staged.
//!
//! Where most rows are as they were, sending them all to the server, and having it join them with
//! all that it has, is most of the work of a sync. Several sessions read the table here in one
//! snapshot, the rows of the source are looked up as they are encoded, and those that are not
//! there byte for byte are staged, in a transaction with that same snapshot. The server compares
//! them with the rows of the table that the source was not seen to have: among these is every row
//! that is to be updated or deleted, and every decision is the server's still.

mod probe;
mod read;

use std::sync::Arc;

use tokio_postgres::Client;

pub(super) use probe::pays;
pub(super) use read::{connect, read};

use super::statements::{IS_IN, Scope, TID, UNMET};
use super::{PreparedSync, write};
use crate::copy::fill;
use crate::format::Mode;
use crate::plan::AutoChoice;
use crate::stage::known::{KnownRows, RowHasher};
use crate::stage::pin;
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::measure::Measurement;
use pgspate_target::{Ask, server_error};

/// Smaller tables are compared before sessions to read them are there.
const BLOCKS_MIN: u64 = 256;
/// Rows that are kept in memory, each in 30 to 52 bytes, and for a moment in twice as many.
const ROWS_MAX: usize = 25_000_000;
/// One row in so many is looked up by its place rather than found in a scan of the table.
const FEW: u64 = 20;
/// So many rows are in a block of a table that was never analyzed, or more.
const ROWS_IN_BLOCK: i64 = 200;

/// A table that was read ahead of the source.
#[derive(Debug, Clone)]
pub(super) struct TableReadAhead {
    /// What it was read by, exported: as others see the table there, so does the session that
    /// stages, in the one transaction that it leaves open.
    pub(super) snapshot: String,
    /// Its rows.
    pub(super) known: Arc<KnownRows>,
}

const BEGIN: &str = "begin isolation level repeatable read, read only";

/// Blocks, estimated rows and bytes of a table that has its rows all to itself.
const EXTENT: &str = "\
select pg_relation_size(c.oid) / current_setting('block_size')::int8, c.reltuples::int8,
       pg_relation_size(c.oid)
from pg_class c join pg_am a on a.oid = c.relam
where c.oid = $1 and c.oid = to_regclass($2) and c.relkind = 'r' and not c.relhassubclass
  and a.amname = 'heap'";

/// How much there is to read.
#[derive(Debug, Clone, Copy)]
pub(super) struct TableExtent {
    blocks: u64,
    /// Whether or not it pays.
    is_always: bool,
}

/// Whether the table is to be read ahead: where that can only leave out what needs no look, and
/// where the source is large enough for the table.
pub(super) async fn extent(sync: &PreparedSync) -> Result<Option<TableExtent>> {
    let (staging, columns) = (&sync.staging, &sync.columns);
    let fits = match &sync.options.scope {
        // A scope is that of a row as long as the row is there.
        Scope::By(_) => {
            let statements = sync.build();
            // By its bytes it is known, so that it must have one spelling.
            statements.movers().is_none() && statements.scope_columns().iter().all(|it| it.is_exact)
        }
        Scope::InsertOnly => false,
        Scope::Where(_) | Scope::All | Scope::NoDelete => true,
    };
    let is_plain = columns.key_is_unique
        && !columns.found_by_key
        && !columns.all().any(|column| column.is_ignored);
    let is_awkward = sync.options.keeps_last
        || staging.is_shared()
        || staging.is_text()
        || staging.reading.is_stream();
    let when = sync.options.read_ahead;
    if when == AutoChoice::Never || !fits || !is_plain || is_awkward {
        return Ok(None);
    }
    let (failed, table) =
        (server_error("could not look up the size of the table".to_owned()), &staging.table);
    let row = staging.control().client.ask_opt(EXTENT, &[&table.oid, &table.sql_name]).await;
    let Some(row) = row.map_err(failed)? else { return Ok(None) };
    let [blocks, rows, bytes] = [0, 1, 2].map(|nth| row.get::<_, i64>(nth));
    let rows = if rows > 0 { rows } else { blocks * ROWS_IN_BLOCK };
    let [blocks, rows, bytes] = [blocks, rows, bytes].map(i64::unsigned_abs);
    // Of the whole table a compressed source may be a small part by its bytes.
    let share = if sync.options.scope == Scope::All { 32 } else { 4 };
    let is_worth_it = blocks >= BLOCKS_MIN
        && rows <= ROWS_MAX as u64
        && bytes <= staging.stored_bytes().saturating_mul(share);
    let is_always = when == AutoChoice::Always && rows <= ROWS_MAX as u64;
    Ok((is_worth_it || is_always).then_some(TableExtent { blocks, is_always }))
}

impl TableExtent {
    /// Whether the first rows of the source are to say if it pays.
    pub(super) fn is_doubtful(&self) -> bool {
        !self.is_always
    }
}

/// A session that nothing ends while it waits.
pub(super) async fn open(sync: &PreparedSync) -> Result<Connection> {
    let session = sync.staging.own.dsn.connect("pgspate sync").await?;
    let failed = server_error("could not begin to read the table".to_owned());
    session.client.batch_execute(&sync.options.limits.session_sql()).await.map_err(failed)?;
    Ok(session)
}

/// What the session that holds everything has to tell.
pub(super) struct HeldSnapshot {
    /// The snapshot, exported.
    pub(super) snapshot: String,
    /// What was counted before.
    pub(super) before: Option<Measurement>,
}

/// Has a session hold the lock that keeps other syncs of the same rows waiting, the snapshot, and
/// the table: nobody empties it or moves its rows about meanwhile. All of it ends with the session.
pub(super) async fn hold(sync: &PreparedSync, session: &Connection) -> Result<HeldSnapshot> {
    let failed = || server_error("could not begin to read the table".to_owned());
    let client = &session.client;
    write::lock(session, sync).await?;
    let before = write::measure_before(sync, session, sync.staging.stored_bytes()).await;
    let table = &sync.staging.table;
    let lock = format!("lock table {} in access share mode", table.sql_name);
    client.batch_execute(BEGIN).await.map_err(failed())?;
    client.batch_execute(&lock).await.map_err(failed())?;
    let is_still = client.ask_opt(EXTENT, &[&table.oid, &table.sql_name]).await.map_err(failed())?;
    if is_still.is_none() {
        return Err(Error::new(ErrorKind::Plan, "the table has become another one"));
    }
    let row = client.ask_one("select pg_export_snapshot()", &[]).await.map_err(failed())?;
    Ok(HeldSnapshot { snapshot: row.get(0), before })
}

/// Ends what [`hold`] holds but for the lock against other syncs: the session that stages has the
/// rest by then.
pub(super) async fn hand_over(session: &Connection) -> Result<()> {
    let failed = server_error("could not hand over the snapshot".to_owned());
    session.client.batch_execute("rollback").await.map_err(failed)
}

/// How rows of the table are told apart: by the columns that the source has.
fn recognition(sync: &PreparedSync) -> RowHasher {
    let names: Vec<_> = sync.staging.plan.columns.iter().map(|column| &column.name).collect();
    let by: &[String] = match &sync.options.scope {
        Scope::By(columns) => columns,
        _ => &[],
    };
    let scope = (0..names.len()).filter(|nth| by.contains(names[*nth])).collect();
    RowHasher::new(names.len(), scope)
}

/// Tells the staging session which rows of the table the source was not seen to have. Whether all
/// of them are known to be of the source's scopes; the others are for [`admit`].
pub(super) async fn tell(connection: &Connection, known: &KnownRows) -> Result<bool> {
    let failed = || server_error("could not stage which rows are left".to_owned());
    let client: &Client = &connection.client;
    let create =
        format!("create temporary table pgspate_unmet ({TID} tid, {IS_IN} boolean) on commit drop");
    client.batch_execute(&create).await.map_err(failed())?;
    let copy = format!("copy {UNMET} from stdin (format binary)");
    let statement = client.prepare(&copy).await.map_err(failed())?;
    let (mut rows, mut count, mut is_all_in) = (Vec::new(), 0, true);
    for (tid, is_in) in known.unmet() {
        rows.extend_from_slice(&[0, 2, 0, 0, 0, 6]);
        rows.extend_from_slice(&tid.block.to_be_bytes());
        rows.extend_from_slice(&tid.item.to_be_bytes());
        rows.extend_from_slice(&[0, 0, 0, 1, u8::from(is_in)]);
        count += 1;
        is_all_in &= is_in;
    }
    fill::copy(connection, &statement, Mode::Binary, &rows, count).await?;
    if count * FEW < known.len() as u64 {
        // They are looked up in the table's order.
        client.batch_execute("set local random_page_cost = 1.1").await.map_err(failed())?;
    }
    client.batch_execute(&format!("analyze {UNMET}")).await.map_err(failed())?;
    Ok(is_all_in)
}

/// Marks those whose scope is told by the staged rows alone. These are analyzed by then.
pub(super) async fn admit(client: &Client, sync: &PreparedSync) -> Result<()> {
    let failed = || server_error("could not compare scopes".to_owned());
    let Some(admit) = sync.build().admit() else { return Ok(()) };
    pin::allow_nested_loop(client, &admit).await.map_err(failed())?;
    client.batch_execute(&admit).await.map_err(failed())
}
