//! Counters of the whole server and of one database. Each server version has its own names for the
//! counters.
//!
//! Each result column is named after the struct field that it fills. A field stays `None` if the
//! version's query has no such column. Times are `None` if the server does not measure them, since
//! the server then reports zeros.

use serde::Serialize;
use tokio_postgres::{Client, Row};

use crate::TypedQuery;

/// Defines a struct of growing counters, each of which may be unknown.
macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: Option<u64>,)+
            /// When the counters were last reset, in microseconds since 1970.
            #[serde(skip)]
            pub(super) reset: Option<i64>,
        }

        impl $name {
            /// Returns the growth since `before`. All fields are `None` if the counters were reset
            /// in between.
            #[must_use]
            pub fn since(&self, before: &$name) -> $name {
                if self.reset != before.reset {
                    return $name::default();
                }
                $name {
                    $($field: $crate::measure::counters::counter_growth(
                        self.$field,
                        before.$field,
                    ),)+
                    reset: self.reset,
                }
            }

            /// Reads the counters from a row whose columns are named after the fields.
            pub(super) fn read(row: &tokio_postgres::Row) -> $name {
                $name {
                    $($field: $crate::measure::counters::counter_by_name(row, stringify!($field)),)+
                    reset: row.try_get::<_, Option<i64>>("reset").ok().flatten(),
                }
            }
        }
    };
}
pub(super) use counters;

counters! {
    /// WAL of the whole server (PostgreSQL 14 and newer).
    WalCounters {
        /// WAL records.
        records,
        /// Full-page images: the first change of each page after a checkpoint.
        full_page_images,
        /// Bytes of WAL.
        bytes,
        /// Writes by sessions because the WAL buffers were full.
        buffers_full,
        /// Writes to WAL files.
        writes,
        /// Syncs of WAL files.
        syncs,
        /// Milliseconds spent writing, with `track_wal_io_timing`.
        write_ms,
        /// Milliseconds spent syncing, with `track_wal_io_timing`.
        sync_ms,
    }
}

counters! {
    /// Reads and writes of pages (PostgreSQL 16 and newer).
    IoCounters {
        /// Read operations.
        reads,
        /// Bytes read.
        read_bytes,
        /// Write operations.
        writes,
        /// Bytes written.
        write_bytes,
        /// Page writes outside the ring buffers of COPY and VACUUM: by checkpoints, by the
        /// background writer, and by sessions that needed space in the cache.
        writes_normal,
        /// Operations that extended files.
        extends,
        /// Bytes by which files were extended.
        extend_bytes,
        /// Pages found in the cache.
        hits,
        /// Pages evicted from the cache to make space for others.
        evictions,
        /// Syncs of files.
        fsyncs,
        /// Milliseconds spent reading, with `track_io_timing`.
        read_ms,
        /// Milliseconds spent writing, with `track_io_timing`.
        write_ms,
        /// Milliseconds spent extending files, with `track_io_timing`.
        extend_ms,
    }
}

counters! {
    /// Checkpoints, and pages written outside of checkpoints.
    CheckpointCounters {
        /// Checkpoints started by `checkpoint_timeout`.
        timed,
        /// Requested checkpoints, usually because of `max_wal_size`.
        requested,
        /// Pages written by checkpoints.
        buffers_written,
        /// Milliseconds that checkpoints spent writing.
        write_ms,
        /// Milliseconds that checkpoints spent syncing.
        sync_ms,
        /// Pages written by the background writer.
        buffers_cleaned,
        /// How often the background writer stopped at `bgwriter_lru_maxpages`.
        cleaning_stopped,
        /// Pages written by sessions themselves (up to PostgreSQL 16).
        buffers_by_sessions,
        /// Pages allocated in the cache.
        buffers_allocated,
    }
}

counters! {
    /// Work in the current database.
    DatabaseCounters {
        /// Committed transactions.
        commits,
        /// Transactions that were rolled back.
        rollbacks,
        /// Pages read, from disk or the operating system's cache.
        blocks_read,
        /// Pages found in the server's cache.
        blocks_hit,
        /// Rows inserted.
        rows_inserted,
        /// Rows updated.
        rows_updated,
        /// Rows deleted.
        rows_deleted,
        /// Temporary files, for example of sorts and hashes.
        temp_files,
        /// Bytes of temporary files.
        temp_bytes,
        /// Deadlocks.
        deadlocks,
        /// Milliseconds spent reading, with `track_io_timing`.
        read_ms,
        /// Milliseconds spent writing, with `track_io_timing`.
        write_ms,
    }
}

/// WAL counters of versions 14 to 17. Version 18 counts WAL writes in `pg_stat_io`.
const WAL_14: &str = "\
select wal_records::int8 as records, wal_fpi::int8 as full_page_images, wal_bytes::int8 as bytes,
       wal_buffers_full::int8 as buffers_full, wal_write::int8 as writes, wal_sync::int8 as syncs,
       case when timed then wal_write_time::int8 end as write_ms,
       case when timed then wal_sync_time::int8 end as sync_ms,
       (extract(epoch from stats_reset) * 1e6)::int8 as reset
from pg_stat_wal,
     (select current_setting('track_wal_io_timing')::bool as timed) setting";

const WAL_18: &str = "\
select wal_records::int8 as records, wal_fpi::int8 as full_page_images, wal_bytes::int8 as bytes,
       wal_buffers_full::int8 as buffers_full, io.writes, io.syncs, io.write_ms, io.sync_ms,
       (extract(epoch from stats_reset) * 1e6)::int8 as reset
from pg_stat_wal,
     (select sum(writes)::int8 as writes, sum(fsyncs)::int8 as syncs,
             case when current_setting('track_wal_io_timing')::bool
                  then sum(write_time)::int8 end as write_ms,
             case when current_setting('track_wal_io_timing')::bool
                  then sum(fsync_time)::int8 end as sync_ms
      from pg_stat_io where object = 'wal') io";

/// Returns the I/O query. Up to version 17 every operation has `op_bytes` bytes. From 18 on the
/// server counts bytes.
fn io_sql(version: u32) -> String {
    let bytes = |operations: &str, counted: &str| match version {
        ..180_000 => format!("sum({operations} * op_bytes)::int8"),
        _ => format!("sum({counted})::int8"),
    };
    let (read, write) = (bytes("reads", "read_bytes"), bytes("writes", "write_bytes"));
    let extend = bytes("extends", "extend_bytes");
    format!(
        "select object = 'relation' as of_tables, backend_type = 'client backend' as by_sessions, \
                sum(reads)::int8 as reads, {read} as read_bytes, sum(writes)::int8 as writes, \
                {write} as write_bytes, \
                sum(writes) filter (where context = 'normal')::int8 as writes_normal, \
                sum(extends)::int8 as extends, {extend} as extend_bytes, \
                sum(hits)::int8 as hits, sum(evictions)::int8 as evictions, \
                sum(fsyncs)::int8 as fsyncs, \
                case when timed then sum(read_time)::int8 end as read_ms, \
                case when timed then sum(write_time)::int8 end as write_ms, \
                case when timed then sum(extend_time)::int8 end as extend_ms, \
                (extract(epoch from max(stats_reset)) * 1e6)::int8 as reset \
         from pg_stat_io, \
              (select current_setting('track_io_timing')::bool as timed) setting \
         where object in ('relation', 'temp relation') \
         group by timed, object = 'relation', \
                  grouping sets ((), (backend_type = 'client backend'))"
    )
}

const CHECKPOINTS_13: &str = "\
select checkpoints_timed::int8 as timed, checkpoints_req::int8 as requested,
       buffers_checkpoint::int8 as buffers_written, checkpoint_write_time::int8 as write_ms,
       checkpoint_sync_time::int8 as sync_ms, buffers_clean::int8 as buffers_cleaned,
       maxwritten_clean::int8 as cleaning_stopped, buffers_backend::int8 as buffers_by_sessions,
       buffers_alloc::int8 as buffers_allocated,
       (extract(epoch from stats_reset) * 1e6)::int8 as reset
from pg_stat_bgwriter";

const CHECKPOINTS_17: &str = "\
select c.num_timed::int8 as timed, c.num_requested::int8 as requested,
       c.buffers_written::int8, c.write_time::int8 as write_ms, c.sync_time::int8 as sync_ms,
       b.buffers_clean::int8 as buffers_cleaned, b.maxwritten_clean::int8 as cleaning_stopped,
       b.buffers_alloc::int8 as buffers_allocated,
       (extract(epoch from greatest(c.stats_reset, b.stats_reset)) * 1e6)::int8 as reset
from pg_stat_checkpointer c, pg_stat_bgwriter b";

const DATABASE: &str = "\
select xact_commit as commits, xact_rollback as rollbacks, blks_read as blocks_read,
       blks_hit as blocks_hit, tup_inserted as rows_inserted, tup_updated as rows_updated,
       tup_deleted as rows_deleted, temp_files, temp_bytes, deadlocks,
       case when current_setting('track_io_timing')::bool then blk_read_time::int8 end as read_ms,
       case when current_setting('track_io_timing')::bool then blk_write_time::int8 end as write_ms,
       (extract(epoch from stats_reset) * 1e6)::int8 as reset
from pg_stat_database where datname = current_database()";

/// Reads WAL counters; all `None` before version 14.
pub(super) async fn read_wal(client: &Client, version: u32) -> WalCounters {
    let sql = match version {
        ..140_000 => return WalCounters::default(),
        140_000..180_000 => WAL_14,
        180_000.. => WAL_18,
    };
    read_first_row(client, sql, WalCounters::read).await
}

/// Reads three sets of I/O counters: of tables by all processes, of tables by sessions, of
/// temporary tables. All counters are `None` before version 16.
pub(super) async fn read_io(client: &Client, version: u32) -> [IoCounters; 3] {
    let mut counters = <[IoCounters; 3]>::default();
    if version < 160_000 {
        return counters;
    }
    for row in client.fetch_all(&io_sql(version), &[]).await.unwrap_or_default() {
        let (of_tables, by_sessions): (bool, Option<bool>) = (row.get(0), row.get(1));
        match (of_tables, by_sessions) {
            (true, None) => counters[0] = IoCounters::read(&row),
            (true, Some(true)) => counters[1] = IoCounters::read(&row),
            (false, None) => counters[2] = IoCounters::read(&row),
            _ => {}
        }
    }
    counters
}

pub(super) async fn read_checkpoints(client: &Client, version: u32) -> CheckpointCounters {
    let sql = if version < 170_000 { CHECKPOINTS_13 } else { CHECKPOINTS_17 };
    read_first_row(client, sql, CheckpointCounters::read).await
}

pub(super) async fn read_database(client: &Client) -> DatabaseCounters {
    read_first_row(client, DATABASE, DatabaseCounters::read).await
}

async fn read_first_row<T: Default>(client: &Client, sql: &str, read: impl Fn(&Row) -> T) -> T {
    match client.fetch_opt(sql, &[]).await {
        Ok(Some(row)) => read(&row),
        _ => T::default(),
    }
}

/// Returns how much a counter has grown. `None` if either value is unknown, or if the counter is
/// lower than before.
pub(super) fn counter_growth(after: Option<u64>, before: Option<u64>) -> Option<u64> {
    after?.checked_sub(before?)
}

/// Reads a counter by its column's name. `None` if the column is missing, NULL or negative.
pub(super) fn counter_by_name(row: &Row, name: &str) -> Option<u64> {
    let value = row.try_get::<_, Option<i64>>(name).ok().flatten();
    value.and_then(|value| u64::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reset_or_unknown_counters_have_no_growth() {
        let wal =
            |bytes, reset| WalCounters { bytes, reset, records: Some(7), ..WalCounters::default() };
        let growth = wal(Some(30), Some(1)).since(&wal(Some(10), Some(1)));
        assert_eq!((growth.bytes, growth.records, growth.syncs), (Some(20), Some(0), None));
        assert_eq!(wal(Some(30), Some(2)).since(&wal(Some(10), Some(1))), WalCounters::default());
        assert_eq!(wal(Some(5), None).since(&wal(Some(10), None)).bytes, None);
        assert_eq!(wal(None, None).since(&wal(Some(10), None)).bytes, None);
    }
}
