//! Temporary space: how much staging and comparing need, and how much is available.
//!
//! A server that runs out of space in the middle disturbs all sessions, so pgspate checks before it
//! starts. Space that cannot be seen from the client is not guessed.

use std::path::Path;

use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::{TargetTable, TypedQuery, server_error};

/// Memory for the smaller side of a hash join, as the transactions set it.
const HASH_BYTES: u64 = 512 << 20;

/// Columns: `temp_file_limit` in KiB; the folder of temporary tables, if it is a single one; the
/// size of the table with its partitions.
const LIMITS: &str = "\
select (select setting::int8 from pg_settings where name = 'temp_file_limit'),
       case cardinality(places.names)
       when 0 then coalesce(
           (select nullif(pg_tablespace_location(dattablespace), '') from pg_database
            where datname = current_database()),
           case when pg_has_role('pg_read_all_settings', 'member')
                then current_setting('data_directory') end)
       when 1 then (select nullif(pg_tablespace_location(oid), '') from pg_tablespace
                    where spcname = places.names[1]) end,
       (select coalesce(sum(pg_relation_size(relid)), 0)::int8
        from (select relid::oid from pg_partition_tree($1::oid::regclass)
              union select $1::oid) parts(relid))
from (select array(select trim(both ' \"' from name)
                   from unnest(string_to_array(current_setting('temp_tablespaces'), ',')) name
                   where trim(name) not in ('', '\"\"'))) places(names)";

/// Available temporary space, and the size of the table to compare with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TempSpace {
    /// Bytes that one session may use in temporary files.
    files_max: Option<u64>,
    /// Free bytes in the folder of temporary tables and files, for a server on this machine.
    free: Option<u64>,
    table_bytes: u64,
}

impl TempSpace {
    /// Reads the limits.
    ///
    /// # Errors
    /// When the connection is lost.
    pub(crate) async fn read(connection: &Connection, table: &TargetTable) -> Result<TempSpace> {
        let failed = server_error("could not look up the server's temporary space".to_owned());
        let row = connection.client.fetch_one(LIMITS, &[&table.oid]).await.map_err(failed)?;
        let limit: Option<i64> = row.get(0);
        let place: Option<String> = row.get(1);
        let place = place.filter(|_| connection.is_local());
        Ok(TempSpace {
            // -1 is no limit.
            files_max: limit.and_then(|limit| u64::try_from(limit).ok()).map(|limit| limit << 10),
            free: place.and_then(|place| free_bytes(Path::new(&place))),
            table_bytes: row.get::<_, i64>(2).unsigned_abs(),
        })
    }

    /// Checks that `staged` bytes can be staged and compared.
    ///
    /// # Errors
    /// When there is too little space; the hint says which setting to change.
    pub(crate) fn check(&self, staged: u64) -> Result<()> {
        let files = self.temp_file_bytes(staged);
        let megabytes = |bytes: u64| bytes.div_ceil(1 << 20);
        let all = megabytes(staged + files);
        if let Some(most) = self.files_max.filter(|most| files > *most) {
            let (files, most) = (megabytes(files), megabytes(most));
            let message = format!(
                "comparing needs about {files} MiB of temporary files, but temp_file_limit is \
                 {most} MiB"
            );
            return Err(Error::new(ErrorKind::Plan, message).hint(format!(
                "Run `alter role current_user set temp_file_limit = '{files}MB'` as a superuser, \
                 or sync fewer rows at a time with `--scope`."
            )));
        }
        if let Some(free) = self.free.filter(|free| staged + files > *free) {
            let message = format!(
                "staging and comparing need about {all} MiB of temporary space, but {} MiB are \
                 free",
                megabytes(free)
            );
            return Err(Error::new(ErrorKind::Plan, message).hint(
                "Set temp_tablespaces to a tablespace with more room, or sync fewer rows at a time \
                 with `--scope`.",
            ));
        }
        Ok(())
    }

    /// Returns the bytes of temporary files for a comparison: both sides, if the smaller one does
    /// not fit in memory.
    fn temp_file_bytes(&self, staged: u64) -> u64 {
        // A row takes about twice its size in a hash table.
        match staged.min(self.table_bytes) * 2 > HASH_BYTES {
            true => staged + self.table_bytes,
            false => 0,
        }
    }
}

/// Returns the free bytes of a folder's file system. If the folder is not accessible, the nearest
/// accessible parent is used, which is mostly on the same file system.
fn free_bytes(folder: &Path) -> Option<u64> {
    let found = folder.ancestors().find_map(|it| rustix::fs::statvfs(it).ok())?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_side_that_fits_in_memory_needs_no_files() {
        let space = TempSpace { files_max: Some(0), free: None, table_bytes: 10 * GIB };
        space.check(GIB / 8).unwrap();
        let error = space.check(GIB).unwrap_err().to_string();
        assert!(error.contains("about 11264 MiB of temporary files"), "{error}");
    }

    #[test]
    fn the_folder_must_have_room_for_rows_and_files() {
        let space = TempSpace { files_max: None, free: Some(3 * GIB), table_bytes: GIB };
        space.check(GIB).unwrap();
        let error = space.check(2 * GIB).unwrap_err().to_string();
        assert!(error.contains("about 5120 MiB of temporary space, but 3072 MiB"), "{error}");
        TempSpace { free: None, ..space }.check(100 * GIB).unwrap();
    }
}
