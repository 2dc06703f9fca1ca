//! Reads a table with several sessions in one snapshot.

use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use futures_util::StreamExt;
use futures_util::future::try_join_all;
use tokio::task::JoinSet;

use super::{BEGIN, ROWS_MAX, TableExtent, open_session, row_hasher};
use crate::copy::{BINARY_HEADER, BINARY_TRAILER};
use crate::stage::known_rows::{KnownRows, RowHasher, RowsRead};
use crate::sync::{PreparedSync, Scope};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::quote_ident;

/// Minimum blocks per reading session.
const BLOCKS_PER_READER_MIN: u64 = 1024;
const READERS_MAX: u64 = 4;
/// First server version with TID range scans.
const HAS_TID_RANGE_SCAN: u32 = 140_000;

/// A range of blocks: the first, and the one after the last. `None` means no bound.
type BlockRange = (Option<u64>, Option<u64>);

/// A session that reads a part of the table, and the blocks of that part.
pub(in crate::sync) struct TableReader {
    pub(in crate::sync) connection: Arc<Connection>,
    range: BlockRange,
}

/// Opens the sessions that read the table.
pub(in crate::sync) async fn connect_readers(
    sync: &PreparedSync,
    extent: TableExtent,
) -> Result<Vec<TableReader>> {
    let ranges = ranges(extent.blocks, sync.staging.control().server_version());
    let all = ranges.into_iter().map(async |range| {
        let connection = Arc::new(open_session(sync).await?);
        Ok(TableReader { connection, range })
    });
    try_join_all(all).await
}

/// Reads the table's rows in this snapshot: all rows, or the rows that fulfil the predicate of
/// `--scope`.
pub(in crate::sync) async fn read_table(
    sync: &PreparedSync,
    readers: &[TableReader],
    snapshot: &str,
) -> Result<KnownRows> {
    let row_hasher = row_hasher(sync);
    let rows = Arc::new(AtomicUsize::new(0));
    let parts = readers.iter().map(async |TableReader { connection, range }| {
        let copy = copy_to_sql(sync, *range);
        let failed = |error| connection.explain("could not read the table", error);
        let client = &connection.client;
        // The holder of the snapshot keeps the table's lock until the readers are done. A session
        // that waits for a stronger lock waits for the holder, so no reader may wait behind it.
        let begin = format!(
            "{BEGIN}; set transaction snapshot '{snapshot}'; \
             lock table {} in access share mode nowait",
            sync.table()
        );
        client.batch_execute(&begin).await.map_err(failed)?;
        let (session, rows) = (Arc::clone(connection), Arc::clone(&rows));
        let row_hasher = row_hasher.clone();
        // Each session has its own task, because hashing rows takes CPU time. The task ends when
        // this future is dropped.
        let mut task = JoinSet::new();
        task.spawn(async move { copy_out(&session, &copy, &row_hasher, &rows).await });
        let read = task.join_next().await.expect("a task was spawned");
        read.map_err(|error| {
            Error::new(ErrorKind::Bug, "reading the table panicked").because(error)
        })?
    });
    Ok(KnownRows::new(row_hasher.clone(), try_join_all(parts).await?))
}

/// Runs a COPY TO statement and returns its rows. Adds the number of rows to `rows`, which counts
/// the rows of all sessions.
pub(super) async fn copy_out(
    connection: &Connection,
    copy: &str,
    row_hasher: &RowHasher,
    rows: &AtomicUsize,
) -> Result<RowsRead> {
    let failed = |error| connection.explain("could not read the table", error);
    let messages = connection.client.copy_out(copy).await.map_err(failed)?;
    let mut messages = pin!(messages);
    let broken = || Error::new(ErrorKind::Bug, "a CopyData message has an incomplete row");
    let mut read = RowsRead::default();
    let (mut is_first, mut is_over) = (true, false);
    while let Some(message) = messages.next().await {
        let message = message.map_err(failed)?;
        let mut bytes = &message[..];
        if mem::take(&mut is_first) {
            bytes = bytes.strip_prefix(BINARY_HEADER).ok_or_else(broken)?;
        }
        let before = read.len();
        // The server sends only complete rows in a CopyData message.
        while !bytes.is_empty() && !is_over {
            is_over = bytes == BINARY_TRAILER;
            if !is_over {
                bytes = row_hasher.read(&mut read, bytes).ok_or_else(broken)?;
            }
        }
        let more = read.len() - before;
        if rows.fetch_add(more, Relaxed) + more > ROWS_MAX {
            return Err(Error::new(
                ErrorKind::Plan,
                "the table has too many rows to keep in memory",
            ));
        }
    }
    if is_over { Ok(read) } else { Err(broken()) }
}

/// Returns the range of blocks for each session. The last range is open, because the table may have
/// grown.
fn ranges(blocks: u64, server_version: u32) -> Vec<BlockRange> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let most = (blocks / BLOCKS_PER_READER_MIN).min(READERS_MAX).min(cores).max(1);
    let readers = if server_version < HAS_TID_RANGE_SCAN { 1 } else { most };
    let bound = |nth: u64| (nth > 0 && nth < readers).then(|| blocks * nth / readers);
    (0..readers).map(|nth| (bound(nth), bound(nth + 1))).collect()
}

fn copy_to_sql(sync: &PreparedSync, (from, to): BlockRange) -> String {
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
