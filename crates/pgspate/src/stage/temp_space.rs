//! Checks before a sync that the server has enough temporary space for staging and comparing.
//!
//! A server without free disk space disturbs all sessions. pgspate does not guess free space that a
//! client cannot see: the disk of a server on another machine is not checked.

use std::path::Path;

use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::{TargetTable, TypedQuery, server_error};

/// Memory for the smaller side of a hash join: `work_mem` times `hash_mem_multiplier` in
/// [`planner::SETTINGS`](super::planner::SETTINGS).
const HASH_MEMORY_BYTES: u64 = 512 << 20;

/// Query for the limits. Columns: `temp_file_limit` in KiB; the folder of temporary tables, if
/// there is only one; the bytes of the table with its partitions.
const LIMITS_SQL: &str = "\
select case current_setting('temp_file_limit') when '-1' then -1
       else pg_size_bytes(current_setting('temp_file_limit')) / 1024 end,
       case cardinality(places.names)
       when 0 then coalesce(
           (select nullif(pg_tablespace_location(dattablespace), '') from pg_database
            where datname = current_database()),
           case when pg_has_role('pg_read_all_settings', 'member')
                then current_setting('data_directory') end)
       when 1 then (select nullif(pg_tablespace_location(oid), '') from pg_tablespace
                    where spcname = places.names[1]) end,
       {table_bytes}
from (select array(select trim(both ' \"' from name)
                   from unnest(string_to_array(current_setting('temp_tablespaces'), ',')) name
                   where trim(name) not in ('', '\"\"'))) places(names)";

/// Available temporary space, and the size of the table to compare with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TempSpace {
    /// Bytes that one session may use in temporary files; `None` if there is no limit.
    file_bytes_max: Option<u64>,
    /// Free bytes in the folder of temporary tables and files; `None` if they are unknown, as for a
    /// server on another machine.
    free_bytes: Option<u64>,
    /// Bytes of the table with its partitions.
    table_bytes: u64,
}

impl TempSpace {
    /// Reads the limits and the table's size from the server.
    ///
    /// # Errors
    /// [`ErrorKind::Server`] if the server refuses the query, [`ErrorKind::Connect`] if the
    /// connection fails.
    pub(crate) async fn read(connection: &Connection, table: &TargetTable) -> Result<TempSpace> {
        let failed = server_error("could not look up the server's temporary space".to_owned());
        let limits = LIMITS_SQL.replace("{table_bytes}", &table_bytes_sql(table));
        let row = connection.client.fetch_one(&limits, &[]).await.map_err(failed)?;
        let limit_kib: Option<i64> = row.get(0);
        let folder: Option<String> = row.get(1);
        let folder = folder.filter(|_| connection.is_local());
        // The setting -1 means no limit.
        let limit_kib = limit_kib.and_then(|limit| u64::try_from(limit).ok());
        Ok(TempSpace {
            file_bytes_max: limit_kib.map(|limit| limit << 10),
            free_bytes: folder.and_then(|folder| free_bytes(Path::new(&folder))),
            table_bytes: row.get::<_, i64>(2).unsigned_abs(),
        })
    }

    /// Checks that the server has space to stage and compare `staged_bytes` bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Plan`] if there is too little space. The hint says which setting to change.
    pub(crate) fn check(&self, staged_bytes: u64) -> Result<()> {
        let file_bytes = self.temp_file_bytes(staged_bytes);
        let needed_bytes = staged_bytes + file_bytes;
        let mebibytes = |bytes: u64| bytes.div_ceil(1 << 20);
        if let Some(limit_bytes) = self.file_bytes_max.filter(|limit| file_bytes > *limit) {
            let (needed, limit) = (mebibytes(file_bytes), mebibytes(limit_bytes));
            let message = format!(
                "comparing needs about {needed} MiB of temporary files, but temp_file_limit is \
                 {limit} MiB"
            );
            return Err(Error::new(ErrorKind::Plan, message).hint(format!(
                "As a superuser, run `alter role ROLE set temp_file_limit = '{needed}MB'` for the \
                 role of pgspate, or sync fewer rows at a time with `--scope`."
            )));
        }
        if let Some(free) = self.free_bytes.filter(|free| needed_bytes > *free) {
            let message = format!(
                "staging and comparing need about {} MiB of temporary space, but {} MiB are free",
                mebibytes(needed_bytes),
                mebibytes(free)
            );
            return Err(Error::new(ErrorKind::Plan, message).hint(
                "Set temp_tablespaces to a tablespace with more room, or sync fewer rows at a time \
                 with `--scope`.",
            ));
        }
        Ok(())
    }

    /// Returns the bytes of temporary files that a comparison needs. The server writes the stage
    /// and the table to files if the smaller of them does not fit in memory.
    fn temp_file_bytes(&self, staged_bytes: u64) -> u64 {
        // A row takes about twice its size in a hash table.
        match staged_bytes.min(self.table_bytes) * 2 > HASH_MEMORY_BYTES {
            true => staged_bytes + self.table_bytes,
            false => 0,
        }
    }
}

/// Returns an SQL expression for the bytes of the table with its partitions. The user's search path
/// may be set.
pub(crate) fn table_bytes_sql(table: &TargetTable) -> String {
    let oid = format!("{}::pg_catalog.oid", table.oid);
    match table.kind == 'r' && !table.has_children {
        true => format!("pg_catalog.pg_relation_size({oid})"),
        false => format!(
            "(select coalesce(pg_catalog.sum(pg_catalog.pg_relation_size(relid)), 0)::int8 \
              from (select relid::pg_catalog.oid \
                    from pg_catalog.pg_partition_tree({oid}::pg_catalog.regclass) \
                    union select inhrelid from pg_catalog.pg_inherits \
                          where inhparent operator(pg_catalog.=) {oid} \
                    union select {oid}) parts(relid))"
        ),
    }
}

/// Returns the free bytes of a folder's file system. If the folder is not accessible, asks the
/// nearest accessible parent, which is usually on the same file system.
fn free_bytes(folder: &Path) -> Option<u64> {
    let file_system = folder.ancestors().find_map(|it| rustix::fs::statvfs(it).ok())?;
    Some(file_system.f_bavail.saturating_mul(file_system.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_stage_that_fits_in_memory_needs_no_files() {
        let space = TempSpace { file_bytes_max: Some(0), free_bytes: None, table_bytes: 10 * GIB };
        space.check(GIB / 8).unwrap();
        let error = space.check(GIB).unwrap_err().to_string();
        assert!(error.contains("about 11264 MiB of temporary files"), "{error}");
    }

    #[test]
    fn the_folder_must_have_space_for_staged_rows_and_files() {
        let space = TempSpace { file_bytes_max: None, free_bytes: Some(3 * GIB), table_bytes: GIB };
        space.check(GIB).unwrap();
        let error = space.check(2 * GIB).unwrap_err().to_string();
        assert!(error.contains("about 5120 MiB of temporary space, but 3072 MiB"), "{error}");
        TempSpace { free_bytes: None, ..space }.check(100 * GIB).unwrap();
    }
}
