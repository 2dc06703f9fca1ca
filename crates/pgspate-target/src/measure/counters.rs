//! Counters of the whole server and of one database, by what each version calls them.
//!
//! Every column of a query is named after the field it fills; a field that a version's query does
//! not have stays `None`. Times are `None` where the server does not take them, as its zeros say
//! nothing then.

use serde::Serialize;
use tokio_postgres::{Client, Row};

use crate::Ask;

/// Makes a struct of counters that grow, each of which may be unknown.
macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: Option<u64>,)+
            /// When they were set to zero, in microseconds since 1970; between two, the same.
            #[serde(skip)]
            pub(super) reset: Option<i64>,
        }

        impl $name {
            /// What was counted since an earlier look; nothing is known if that was before a reset.
            #[must_use]
            pub fn since(&self, before: &$name) -> $name {
                if self.reset != before.reset {
                    return $name::default();
                }
                $name {
                    $($field: $crate::measure::counters::grown(self.$field, before.$field),)+
                    reset: self.reset,
                }
            }

            /// From a row whose columns are named after the fields.
            pub(super) fn read(row: &tokio_postgres::Row) -> $name {
                $name {
                    $($field: $crate::measure::counters::named(row, stringify!($field)),)+
                    reset: row.try_get::<_, Option<i64>>("reset").ok().flatten(),
                }
            }
        }
    };
}
pub(super) use counters;

counters! {
    /// WAL of the whole server (from PostgreSQL 14 on).
    Wal {
        /// Records.
        records,
        /// Whole pages among them: the first change of a page after a checkpoint.
        full_page_images,
        /// Bytes.
        bytes,
        /// How often a session had to write because the buffers were full.
        buffers_full,
        /// Writes to files.
        writes,
        /// Waits for the disk.
        syncs,
        /// Milliseconds of writing, with `track_wal_io_timing`.
        write_ms,
        /// Milliseconds of waiting for the disk, with `track_wal_io_timing`.
        sync_ms,
    }
}

counters! {
    /// Reading and writing of pages (from PostgreSQL 16 on).
    Io {
        /// Read operations.
        reads,
        /// Bytes that they read.
        read_bytes,
        /// Write operations.
        writes,
        /// Bytes that they wrote.
        write_bytes,
        /// Writes of pages that had to leave the whole cache, not only the ring of a COPY or a
        /// VACUUM: checkpoints', the background writer's, and sessions' that needed room.
        writes_normal,
        /// Operations that made files longer.
        extends,
        /// Bytes by which they did.
        extend_bytes,
        /// Pages that were found in the cache.
        hits,
        /// Pages that had to leave the cache for others.
        evictions,
        /// Waits for the disk.
        fsyncs,
        /// Milliseconds of reading, with `track_io_timing`.
        read_ms,
        /// Milliseconds of writing, with `track_io_timing`.
        write_ms,
        /// Milliseconds of making files longer, with `track_io_timing`.
        extend_ms,
    }
}

counters! {
    /// Checkpoints, and who wrote pages to make room.
    Checkpoints {
        /// Those that came by the clock.
        timed,
        /// Those that were asked for, as a rule by the amount of WAL.
        requested,
        /// Pages that they wrote.
        buffers_written,
        /// Milliseconds of writing.
        write_ms,
        /// Milliseconds of waiting for the disk.
        sync_ms,
        /// Pages that the background writer wrote.
        buffers_cleaned,
        /// How often it stopped, as it had written as much as it may at once.
        cleaning_stopped,
        /// Pages that sessions wrote themselves (up to PostgreSQL 16).
        buffers_by_sessions,
        /// Pages that were taken into the cache.
        buffers_allocated,
    }
}

counters! {
    /// The current database.
    Database {
        /// Transactions that were committed.
        commits,
        /// Transactions that were rolled back.
        rollbacks,
        /// Pages that were read, from the disk or the system's cache.
        blocks_read,
        /// Pages that were found in the server's cache.
        blocks_hit,
        /// Rows inserted.
        rows_inserted,
        /// Rows updated.
        rows_updated,
        /// Rows deleted.
        rows_deleted,
        /// Temporary files of sorts, hashes and the like.
        temp_files,
        /// Bytes of these.
        temp_bytes,
        /// Deadlocks.
        deadlocks,
        /// Milliseconds of reading, with `track_io_timing`.
        read_ms,
        /// Milliseconds of writing, with `track_io_timing`.
        write_ms,
        /// Bytes of the database.
        bytes,
    }
}

/// Version 18 has moved writes to `pg_stat_io`.
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

/// Up to 17 every operation is of `op_bytes`; from 18 on bytes are counted.
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

/// WAL; `None` before version 14.
pub(super) async fn wal(client: &Client, version: u32) -> Wal {
    let sql = match version {
        ..140_000 => return Wal::default(),
        140_000..180_000 => WAL_14,
        180_000.. => WAL_18,
    };
    first(client, sql, Wal::read).await
}

/// Of tables by everybody, of tables by sessions, of temporary tables; `None` before version 16.
pub(super) async fn io(client: &Client, version: u32) -> [Io; 3] {
    let mut all = <[Io; 3]>::default();
    if version < 160_000 {
        return all;
    }
    for row in client.ask_all(&io_sql(version), &[]).await.unwrap_or_default() {
        let (of_tables, by_sessions): (bool, Option<bool>) = (row.get(0), row.get(1));
        match (of_tables, by_sessions) {
            (true, None) => all[0] = Io::read(&row),
            (true, Some(true)) => all[1] = Io::read(&row),
            (false, None) => all[2] = Io::read(&row),
            _ => {}
        }
    }
    all
}

pub(super) async fn checkpoints(client: &Client, version: u32) -> Checkpoints {
    let sql = if version < 170_000 { CHECKPOINTS_13 } else { CHECKPOINTS_17 };
    first(client, sql, Checkpoints::read).await
}

pub(super) async fn database(client: &Client) -> Database {
    let mut database = first(client, DATABASE, Database::read).await;
    let row = client.ask_one("select pg_database_size(current_database())", &[]).await;
    database.bytes = row.ok().and_then(|row| super::number(&row, 0));
    database
}

async fn first<T: Default>(client: &Client, sql: &str, read: impl Fn(&Row) -> T) -> T {
    match client.ask_opt(sql, &[]).await {
        Ok(Some(row)) => read(&row),
        _ => T::default(),
    }
}

/// How much a counter has grown; unknown if it is less than it was.
pub(super) fn grown(after: Option<u64>, before: Option<u64>) -> Option<u64> {
    after?.checked_sub(before?)
}

/// A column by its name; `None` where there is none, or its value is null or negative.
pub(super) fn named(row: &Row, name: &str) -> Option<u64> {
    let value = row.try_get::<_, Option<i64>>(name).ok().flatten();
    value.and_then(|value| u64::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_reset_or_is_unknown_says_nothing() {
        let wal = |bytes, reset| Wal { bytes, reset, records: Some(7), ..Wal::default() };
        let grown = wal(Some(30), Some(1)).since(&wal(Some(10), Some(1)));
        assert_eq!((grown.bytes, grown.records, grown.syncs), (Some(20), Some(0), None));
        assert_eq!(wal(Some(30), Some(2)).since(&wal(Some(10), Some(1))), Wal::default());
        assert_eq!(wal(Some(5), None).since(&wal(Some(10), None)).bytes, None);
        assert_eq!(wal(None, None).since(&wal(Some(10), None)).bytes, None);
    }
}
