//! The table read ahead of the source, so that only rows that it does not have are staged.
//!
//! Where most rows are as they were, sending them all to the server, and having it join them with
//! all that it has, is most of the work of a sync. Several sessions read the table here in one
//! snapshot, the rows of the source are looked up as they are encoded, and those that are not
//! there byte for byte are staged, in a transaction with that same snapshot. The server compares
//! them with the rows of the table that the source was not seen to have: among these is every row
//! that is to be updated or deleted, and every decision is the server's still.

mod probe;

use std::pin::pin;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::try_join_all;
use tokio_postgres::Client;

use super::statements::{Scope, UNMET};
use super::{Sync, write};
use crate::copy::timeouts;
use crate::encode::Encoded;
use crate::load::Watch;
use crate::measure::Measurement;
use crate::plan::When;
use crate::stage::known::{Known, Recognition, Seen};
use crate::stage::{Ahead, fill};
use crate::target::connect::Connection;
use crate::target::{quote_ident, server_error};
use crate::{Error, Kind, Result};

/// Smaller tables are compared before sessions to read them are there.
const BLOCKS_MIN: u64 = 256;
/// A session reads at least so many blocks.
const BLOCKS_EACH: u64 = 1024;
const READERS_MAX: u64 = 4;
/// Rows that are kept in memory, each in about 40 bytes.
const ROWS_MAX: usize = 25_000_000;
/// One row in so many is looked up by its place rather than found in a scan of the table.
const FEW: u64 = 20;
/// From here on a part of a table can be scanned by its blocks.
const SCANS_RANGES: u32 = 140_000;

const BEGIN: &str = "begin isolation level repeatable read, read only";

/// Blocks and estimated rows of a table that has them all to itself, in an order that is known.
const EXTENT: &str = "\
select pg_relation_size(c.oid) / current_setting('block_size')::int8, c.reltuples::int8,
       pg_relation_size(c.oid)
from pg_class c join pg_am a on a.oid = c.relam
where c.oid = $1 and c.relkind = 'r' and not c.relhassubclass and a.amname = 'heap'";

/// How much there is to read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    blocks: u64,
    /// Whether or not it pays.
    is_always: bool,
}

/// Whether the table is to be read ahead: where that can only leave out what needs no look, and
/// where the source is large enough for the table.
pub(super) async fn extent(sync: &Sync) -> Result<Option<Extent>> {
    let (load, columns) = (&sync.load, &sync.columns);
    let fits = match &sync.options.scope {
        // A scope is that of a row as long as the row is there.
        Scope::By(_) => sync.build().movers().is_none(),
        Scope::InsertOnly => false,
        Scope::Where(_) | Scope::All | Scope::NoDelete => true,
    };
    let is_plain = columns.key_is_unique
        && !columns.found_by_key
        && !columns.all().any(|column| column.is_ignored);
    let is_awkward =
        sync.options.keeps_last || load.is_shared() || load.is_text() || load.is_stream();
    let when = sync.options.read_ahead;
    if when == When::Never || !fits || !is_plain || is_awkward {
        return Ok(None);
    }
    let failed = server_error("could not look up the size of the table".to_owned());
    let row = load.control().client.query_opt(EXTENT, &[&load.table().oid]).await;
    let Some(row) = row.map_err(failed)? else { return Ok(None) };
    let [blocks, rows, bytes] = [0, 1, 2].map(|nth| row.get::<_, i64>(nth).max(0).unsigned_abs());
    // Of the whole table a compressed source may be a small part by its bytes.
    let share = if sync.options.scope == Scope::All { 32 } else { 4 };
    let is_worth_it = blocks >= BLOCKS_MIN
        && rows <= ROWS_MAX as u64
        && bytes <= load.stored_bytes().saturating_mul(share);
    let is_always = when == When::Always;
    Ok((is_worth_it || is_always).then_some(Extent { blocks, is_always }))
}

/// What was read, under a lock that keeps other syncs of the same rows waiting.
pub(super) struct Read {
    /// For staging.
    pub(super) ahead: Ahead,
    /// What was counted before the lock's transaction began.
    pub(super) before: Option<Measurement>,
}

/// Reads the table in the snapshot of a transaction of the control connection, which stays open
/// until it is ended by [`let_go`]. `None` when that would not pay, by the `first` rows of the
/// source.
pub(super) async fn read(
    sync: &Sync,
    extent: Extent,
    first: Encoded,
    watch: &Arc<Watch>,
) -> Result<Option<Read>> {
    let control = sync.load.control();
    if !extent.is_always && !probe::pays(sync, &first, watch).await? {
        return Ok(None);
    }
    write::lock(control, sync).await?;
    let before = write::measure_before(sync, control, sync.load.stored_bytes()).await;
    let failed = || server_error("could not begin to read the table".to_owned());
    control.client.batch_execute(BEGIN).await.map_err(failed())?;
    let row = control.client.query_one("select pg_export_snapshot()", &[]).await;
    let snapshot: String = row.map_err(failed())?.get(0);
    let recognition = recognition(sync);
    let ranges = ranges(extent.blocks, control.server_version());
    let timeouts = timeouts(&sync.options.load.limits);
    let begin = format!("{BEGIN}; set transaction snapshot '{snapshot}'");
    let parts = ranges.into_iter().map(|range| {
        let sql = [timeouts.clone(), begin.clone(), select(sync, range)];
        read_part(sync, sql, recognition.clone(), Arc::clone(watch))
    });
    let parts = try_join_all(parts).await?;
    let known = Arc::new(Known::new(recognition, parts));
    Ok(Some(Read { ahead: Ahead { snapshot, known }, before }))
}

/// How rows of the table are told apart: by the columns that the source has.
fn recognition(sync: &Sync) -> Recognition {
    let names: Vec<_> = sync.load.columns().iter().map(|column| &column.name).collect();
    let by: &[String] = match &sync.options.scope {
        Scope::By(columns) => columns,
        _ => &[],
    };
    let scope = (0..names.len()).filter(|nth| by.contains(names[*nth])).collect();
    Recognition::new(names.len(), scope)
}

/// Ends the transaction that [`read`] has begun. What comes of it is of no importance: nothing was
/// written.
pub(super) async fn let_go(sync: &Sync) {
    let _ = sync.load.control().client.batch_execute("rollback").await;
}

/// The blocks that each session reads: all of them together, as the table may have grown.
fn ranges(blocks: u64, server_version: u32) -> Vec<(Option<u64>, Option<u64>)> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let most = (blocks / BLOCKS_EACH).min(READERS_MAX).min(cores).max(1);
    let readers = if server_version < SCANS_RANGES { 1 } else { most };
    let bound = |nth: u64| (nth > 0 && nth < readers).then(|| blocks * nth / readers);
    (0..readers).map(|nth| (bound(nth), bound(nth + 1))).collect()
}

fn select(sync: &Sync, (from, to): (Option<u64>, Option<u64>)) -> String {
    let columns = sync.load.columns().iter();
    let columns: Vec<_> = columns.map(|it| format!("t.{}", quote_ident(&it.name))).collect();
    let mut conditions = Vec::new();
    conditions.extend(from.map(|block| format!("t.ctid >= '({block},0)'")));
    conditions.extend(to.map(|block| format!("t.ctid < '({block},0)'")));
    if let Scope::Where(predicate) = &sync.options.scope {
        conditions.push(format!("({predicate})"));
    }
    let condition = match conditions.is_empty() {
        true => String::new(),
        false => format!(" where {}", conditions.join(" and ")),
    };
    format!(
        "copy (select t.ctid, {} from {} t{condition}) to stdout (format binary)",
        columns.join(", "),
        sync.load.table().sql_name
    )
}

/// Reads a part of the table in a session of its own: sets it up, begins, copies.
async fn read_part(
    sync: &Sync,
    sql: [String; 3],
    recognition: Recognition,
    watch: Arc<Watch>,
) -> Result<Seen> {
    let connection = sync.load.connect("pgspate sync").await?;
    let reading = tokio::spawn(async move {
        let [timeouts, begin, copy] = &sql;
        let failed = |error| connection.explain("could not read the table", error);
        connection.client.batch_execute(timeouts).await.map_err(failed)?;
        connection.client.batch_execute(begin).await.map_err(failed)?;
        let seen = copy_out(&connection, copy, &recognition, &watch).await;
        connection.close().await;
        seen
    });
    let stopped = AbortOnDrop(reading.abort_handle());
    let seen = reading.await;
    drop(stopped);
    seen.map_err(|error| Error::new(Kind::Bug, "reading the table panicked").because(error))?
}

/// A task that ends with whoever waits for it.
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The rows that a statement copies out, as [`Recognition::read`] takes them.
async fn copy_out(
    connection: &Connection,
    copy: &str,
    recognition: &Recognition,
    watch: &Watch,
) -> Result<Seen> {
    let failed = |error| connection.explain("could not read the table", error);
    let rows = connection.client.copy_out(copy).await.map_err(failed)?;
    let mut rows = pin!(rows);
    let mut seen = Seen::default();
    let mut header = fill::BINARY_HEADER;
    while let Some(message) = rows.next().await {
        let message = message.map_err(failed)?;
        let mut bytes = message.strip_prefix(header).unwrap_or_default();
        header = b"";
        while !bytes.is_empty() && bytes != fill::BINARY_TRAILER {
            // A message of the protocol is whole rows.
            let rest = recognition.read(&mut seen, bytes);
            bytes = rest.ok_or_else(|| Error::new(Kind::Bug, "a row was read in pieces"))?;
        }
        if watch.copy.is_cancelled() {
            return Err(Error::new(Kind::Cancelled, "stopped by the user"));
        }
        if seen.len() > ROWS_MAX {
            return Err(Error::new(Kind::Plan, "the table has grown beyond what can be kept"));
        }
    }
    Ok(seen)
}

/// Tells the staging session which rows of the table the source was not seen to have.
pub(super) async fn tell(connection: &Connection, known: &Known) -> Result<()> {
    let failed = || server_error("could not stage which rows are left".to_owned());
    let client: &Client = &connection.client;
    let create = "create temporary table pgspate_unmet (tid tid, is_in boolean) on commit drop";
    client.batch_execute(create).await.map_err(failed())?;
    let copy = format!("copy {UNMET} from stdin (format binary)");
    let statement = client.prepare(&copy).await.map_err(failed())?;
    let (mut rows, mut count) = (Vec::new(), 0);
    for (tid, is_in) in known.unmet() {
        rows.extend_from_slice(&[0, 2, 0, 0, 0, 6]);
        rows.extend_from_slice(&tid.block.to_be_bytes());
        rows.extend_from_slice(&tid.item.to_be_bytes());
        rows.extend_from_slice(&[0, 0, 0, 1, u8::from(is_in)]);
        count += 1;
    }
    fill::binary(connection, &statement, &rows, count).await?;
    if count * FEW < known.len() as u64 {
        // They are looked up in the table's order.
        client.batch_execute("set local random_page_cost = 1.1").await.map_err(failed())?;
    }
    client.batch_execute(&format!("analyze {UNMET}")).await.map_err(failed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_read_by_one_session() {
        assert_eq!(ranges(100_000, 130_000), [(None, None)]);
        let many = ranges(100_000, 140_000);
        assert_eq!((many[0].0, many[many.len() - 1].1), (None, None));
        assert!(many.windows(2).all(|two| two[0].1 == two[1].0 && two[0].1.is_some()));
        assert_eq!(ranges(10, 140_000), [(None, None)]);
    }
}
