//! Several sessions that read a table in one snapshot.

use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use futures_util::StreamExt;
use futures_util::future::try_join_all;
use tokio::task::JoinSet;

use super::{BEGIN, TableExtent, ROWS_MAX, open, recognition};
use crate::copy::{BINARY_HEADER, BINARY_TRAILER};
use crate::stage::known::{KnownRows, RowHasher, RowsRead};
use crate::sync::{Scope, PreparedSync};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::quote_ident;

/// A session reads at least so many blocks.
const BLOCKS_EACH: u64 = 1024;
const READERS_MAX: u64 = 4;
/// From here on a part of a table can be scanned by its blocks.
const SCANS_RANGES: u32 = 140_000;

/// Blocks from the one to before the other.
type Range = (Option<u64>, Option<u64>);

/// A session, and what it reads.
pub(in crate::sync) struct TableReader {
    pub(in crate::sync) connection: Arc<Connection>,
    range: Range,
}

/// Sessions to read the table with.
pub(in crate::sync) async fn connect(sync: &PreparedSync, extent: TableExtent) -> Result<Vec<TableReader>> {
    let ranges = ranges(extent.blocks, sync.staging.control().server_version());
    let all = ranges.into_iter().map(async |range| {
        let connection = Arc::new(open(sync).await?);
        Ok(TableReader { connection, range })
    });
    try_join_all(all).await
}

/// Reads all rows of the table in this snapshot, or those of the scope's predicate.
pub(in crate::sync) async fn read(
    sync: &PreparedSync,
    readers: &[TableReader],
    snapshot: &str,
) -> Result<KnownRows> {
    let recognition = recognition(sync);
    let rows = Arc::new(AtomicUsize::new(0));
    let parts = readers.iter().map(async |TableReader { connection, range }| {
        let copy = select(sync, *range);
        let failed = |error| connection.explain("could not read the table", error);
        let client = &connection.client;
        let begin = format!("{BEGIN}; set transaction snapshot '{snapshot}'");
        client.batch_execute(&begin).await.map_err(failed)?;
        let (session, rows) = (Arc::clone(connection), Arc::clone(&rows));
        let recognition = recognition.clone();
        // A task each, as there is work to do for every row. It ends with whoever waits for it.
        let mut task = JoinSet::new();
        task.spawn(async move { copy_out(&session, &copy, &recognition, &rows).await });
        let seen = task.join_next().await.expect("a task was spawned");
        seen.map_err(|error| {
            Error::new(ErrorKind::Bug, "reading the table panicked").because(error)
        })?
    });
    Ok(KnownRows::new(recognition.clone(), try_join_all(parts).await?))
}

/// The rows that a statement copies out, as [`RowHasher::read`] takes them. `rows`: how many
/// there are with those of others.
pub(super) async fn copy_out(
    connection: &Connection,
    copy: &str,
    recognition: &RowHasher,
    rows: &AtomicUsize,
) -> Result<RowsRead> {
    let failed = |error| connection.explain("could not read the table", error);
    let messages = connection.client.copy_out(copy).await.map_err(failed)?;
    let mut messages = pin!(messages);
    let broken = || Error::new(ErrorKind::Bug, "rows were read in pieces");
    let mut seen = RowsRead::default();
    let (mut is_first, mut is_over) = (true, false);
    while let Some(message) = messages.next().await {
        let message = message.map_err(failed)?;
        let mut bytes = &message[..];
        if mem::take(&mut is_first) {
            bytes = bytes.strip_prefix(BINARY_HEADER).ok_or_else(broken)?;
        }
        let before = seen.len();
        // A message of the protocol is whole rows.
        while !bytes.is_empty() && !is_over {
            is_over = bytes == BINARY_TRAILER;
            if !is_over {
                bytes = recognition.read(&mut seen, bytes).ok_or_else(broken)?;
            }
        }
        let more = seen.len() - before;
        if rows.fetch_add(more, Relaxed) + more > ROWS_MAX {
            return Err(Error::new(ErrorKind::Plan, "the table has more rows than can be kept"));
        }
    }
    if is_over { Ok(seen) } else { Err(broken()) }
}

/// The blocks that each session reads: all of them together, as the table may have grown.
fn ranges(blocks: u64, server_version: u32) -> Vec<Range> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let most = (blocks / BLOCKS_EACH).min(READERS_MAX).min(cores).max(1);
    let readers = if server_version < SCANS_RANGES { 1 } else { most };
    let bound = |nth: u64| (nth > 0 && nth < readers).then(|| blocks * nth / readers);
    (0..readers).map(|nth| (bound(nth), bound(nth + 1))).collect()
}

fn select(sync: &PreparedSync, (from, to): Range) -> String {
    let columns = sync.staging.plan.columns.iter();
    let columns: Vec<_> = columns.map(|it| format!("t.{}", quote_ident(&it.name))).collect();
    let mut conditions = Vec::new();
    conditions.extend(from.map(|block| format!("t.ctid operator(pg_catalog.>=) '({block},0)'")));
    conditions.extend(to.map(|block| format!("t.ctid operator(pg_catalog.<) '({block},0)'")));
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
        sync.staging.table.sql_name
    )
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
