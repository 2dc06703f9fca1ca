//! Counters and sizes of tables, with their partitions, indexes and TOAST tables.
//!
//! The queries call the server's statistics functions by oid instead of reading views. So one query
//! works on every version, and covers partitions, indexes and TOAST tables.

use serde::Serialize;
use tokio_postgres::Client;

use crate::TypedQuery;

use super::counters::counters;

counters! {
    /// Work on the tables.
    TableCounters {
        /// Rows inserted.
        rows_inserted,
        /// Rows updated.
        rows_updated,
        /// HOT updates: updates that wrote no index.
        rows_updated_hot,
        /// Updates whose new row version went to another page (PostgreSQL 16 and newer).
        rows_updated_newpage,
        /// Rows deleted.
        rows_deleted,
        /// Pages of tables read.
        table_blocks_read,
        /// Pages of tables found in the server's cache.
        table_blocks_hit,
        /// Pages of indexes read.
        index_blocks_read,
        /// Pages of indexes found in the server's cache.
        index_blocks_hit,
        /// Pages of TOAST tables and their indexes read.
        toast_blocks_read,
        /// Pages of TOAST tables and their indexes found in the server's cache.
        toast_blocks_hit,
        /// Sequential scans.
        scans,
        /// Runs of VACUUM, manual or by autovacuum.
        vacuums,
    }
}

impl TableCounters {
    /// Returns all pages read: of tables, indexes and TOAST tables.
    pub fn blocks_read(&self) -> Option<u64> {
        Some(self.table_blocks_read? + self.index_blocks_read? + self.toast_blocks_read?)
    }

    /// Returns all pages found in the cache: of tables, indexes and TOAST tables.
    pub fn blocks_hit(&self) -> Option<u64> {
        Some(self.table_blocks_hit? + self.index_blocks_hit? + self.toast_blocks_hit?)
    }
}

/// The state of the tables at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TableState {
    /// Live rows, as the server estimates them.
    pub rows_live: Option<u64>,
    /// Dead row versions, as the server estimates them.
    pub rows_dead: Option<u64>,
    /// Size of the tables' main files, in bytes.
    pub table_bytes: Option<u64>,
    /// Size of the indexes, in bytes.
    pub index_bytes: Option<u64>,
    /// Size of the TOAST tables with their indexes, in bytes.
    pub toast_bytes: Option<u64>,
}

/// Work on the tables between two measurements, and the tables' state at both measurements.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TableDifference {
    /// The work of all sessions.
    pub counted: TableCounters,
    /// The state before.
    pub before: TableState,
    /// The state after.
    pub after: TableState,
}

/// The relations that store the tables' rows: the tables, their partitions, and the tables that
/// inherit from them, such as a hypertable's chunks.
const PARTS: &str = "\
with parts(oid, toast) as (
    select c.oid, c.reltoastrelid from pg_class c
    where c.relkind in ('r', 'm', 't')
      and (c.oid = any($1) or c.oid in (select relid from pg_catalog.unnest($1) as root(oid),
                                        pg_partition_tree(root.oid::regclass)
                                        union all
                                        select inhrelid from pg_inherits
                                        where inhparent = any($1))))";

const COUNTED: &str = "\
select sum(pg_stat_get_tuples_inserted(oid))::int8 as rows_inserted,
       sum(pg_stat_get_tuples_updated(oid))::int8 as rows_updated,
       sum(pg_stat_get_tuples_hot_updated(oid))::int8 as rows_updated_hot,
       sum(pg_stat_get_tuples_deleted(oid))::int8 as rows_deleted,
       sum(pg_stat_get_blocks_fetched(oid) - pg_stat_get_blocks_hit(oid))::int8
           as table_blocks_read,
       sum(pg_stat_get_blocks_hit(oid))::int8 as table_blocks_hit,
       sum(pg_stat_get_numscans(oid))::int8 as scans,
       sum(pg_stat_get_vacuum_count(oid) + pg_stat_get_autovacuum_count(oid))::int8 as vacuums,
       max(i.read) as index_blocks_read, max(i.hit) as index_blocks_hit,
       max(t.read) as toast_blocks_read, max(t.hit) as toast_blocks_hit,
       sum(pg_stat_get_live_tuples(oid))::int8 as rows_live,
       sum(pg_stat_get_dead_tuples(oid))::int8 as rows_dead";

const INDEX_AND_TOAST_COUNTERS: &str = "\
from parts,
     (select coalesce(sum(pg_stat_get_blocks_fetched(indexrelid)
                          - pg_stat_get_blocks_hit(indexrelid)), 0)::int8 as read,
             coalesce(sum(pg_stat_get_blocks_hit(indexrelid)), 0)::int8 as hit
      from parts join pg_index on indrelid = parts.oid) i,
     (select coalesce(sum(pg_stat_get_blocks_fetched(r.oid)
                          - pg_stat_get_blocks_hit(r.oid)), 0)::int8 as read,
             coalesce(sum(pg_stat_get_blocks_hit(r.oid)), 0)::int8 as hit
      from parts join lateral (select toast as oid where toast <> 0
                               union all select indexrelid from pg_index
                               where indrelid = toast) r on true) t
where current_setting('track_counts')::bool";

const SIZES: &str = "\
select sum(pg_relation_size(oid))::int8 as table_bytes, sum(pg_indexes_size(oid))::int8
           as index_bytes,
       sum(case when toast = 0 then 0 else pg_total_relation_size(toast) end)::int8 as toast_bytes
from parts";

/// Reads counters and state of the tables with these oids, added up. `None` if the server refuses
/// both queries.
pub(super) async fn read(
    client: &Client,
    tables: &[u32],
    version: u32,
) -> Option<(TableCounters, TableState)> {
    let newpage_column = match version {
        160_000.. => ", sum(pg_stat_get_tuples_newpage_updated(oid))::int8 as rows_updated_newpage",
        _ => "",
    };
    let sql = format!("{PARTS} {COUNTED}{newpage_column} {INDEX_AND_TOAST_COUNTERS}");
    let tables: Vec<u32> = tables.to_vec();
    let counted = client.fetch_one(&sql, &[&tables]).await.ok();
    let sizes = client.fetch_one(&format!("{PARTS} {SIZES}"), &[&tables]).await.ok();
    if counted.is_none() && sizes.is_none() {
        return None;
    }
    let field = |row: &Option<tokio_postgres::Row>, name: &str| {
        row.as_ref().and_then(|row| super::counters::counter_by_name(row, name))
    };
    let state = TableState {
        rows_live: field(&counted, "rows_live"),
        rows_dead: field(&counted, "rows_dead"),
        table_bytes: field(&sizes, "table_bytes"),
        index_bytes: field(&sizes, "index_bytes"),
        toast_bytes: field(&sizes, "toast_bytes"),
    };
    Some((counted.as_ref().map(TableCounters::read).unwrap_or_default(), state))
}
