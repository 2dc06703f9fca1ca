//! Temporary space: what staging and comparing take, and what there is.
//!
//! A server that runs out of it in the middle takes others down with it, so what can be known
//! before is looked at before. What cannot be seen from here is not guessed.

use std::path::Path;

use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::Connection;
use pgspate_target::{Ask, Table, server_error};

/// Memory for the smaller side of a comparison, as the transactions set it.
const HASH_BYTES: u64 = 512 << 20;

/// Columns: `temp_file_limit` in KiB, where temporary tables are put if that is one place, and the
/// size of the table with its partitions.
const LOOK: &str = "\
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

/// What there is, and the table that rows are compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TempSpace {
    /// What one session may have in temporary files.
    files_max: Option<u64>,
    /// Free bytes where temporary tables and files are, for a server on this machine.
    free: Option<u64>,
    table_bytes: u64,
}

impl TempSpace {
    /// Looks.
    ///
    /// # Errors
    /// Those of the connection.
    pub(crate) async fn look(connection: &Connection, table: &Table) -> Result<TempSpace> {
        let failed = server_error("could not look up the server's temporary space".to_owned());
        let row = connection.client.ask_one(LOOK, &[&table.oid]).await.map_err(failed)?;
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

    /// That so many bytes can be staged, and compared.
    ///
    /// # Errors
    /// What it takes, what there is, and what to change.
    pub(crate) fn check(&self, staged: u64) -> Result<()> {
        let files = self.comparing(staged);
        let megabytes = |bytes: u64| bytes.div_ceil(1 << 20);
        let all = megabytes(staged + files);
        if let Some(most) = self.files_max.filter(|most| files > *most) {
            let (files, most) = (megabytes(files), megabytes(most));
            let message = format!(
                "comparing takes about {files} MiB of temporary files, and temp_file_limit is \
                 {most} MiB"
            );
            return Err(Error::new(ErrorKind::Plan, message).hint(format!(
                "`alter role current_user set temp_file_limit = '{files}MB'` as a superuser, or \
                 sync fewer rows at a time with `--scope`."
            )));
        }
        if let Some(free) = self.free.filter(|free| staged + files > *free) {
            let message = format!(
                "staging and comparing takes about {all} MiB of temporary space, and {} MiB are \
                 free there",
                megabytes(free)
            );
            return Err(Error::new(ErrorKind::Plan, message).hint(
                "Set temp_tablespaces to a place with more room, or sync fewer rows at a time \
                 with `--scope`.",
            ));
        }
        Ok(())
    }

    /// Temporary files for a comparison: both sides, when the smaller one is too big for memory.
    fn comparing(&self, staged: u64) -> u64 {
        // A row takes about as much again in a hash table.
        match staged.min(self.table_bytes) * 2 > HASH_BYTES {
            true => staged + self.table_bytes,
            false => 0,
        }
    }
}

/// Of the file system that a folder is on. The folder itself may be closed to us; what is above it
/// is on the same one more often than not, and then has as much.
fn free_bytes(folder: &Path) -> Option<u64> {
    let found = folder.ancestors().find_map(|it| rustix::fs::statvfs(it).ok())?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn what_fits_into_memory_takes_no_files() {
        let space = TempSpace { files_max: Some(0), free: None, table_bytes: 10 * GIB };
        space.check(GIB / 8).unwrap();
        let error = space.check(GIB).unwrap_err().to_string();
        assert!(error.contains("about 11264 MiB of temporary files"), "{error}");
    }

    #[test]
    fn a_place_has_to_hold_the_rows_and_the_files() {
        let space = TempSpace { files_max: None, free: Some(3 * GIB), table_bytes: GIB };
        space.check(GIB).unwrap();
        let error = space.check(2 * GIB).unwrap_err().to_string();
        assert!(error.contains("about 5120 MiB of temporary space, and 3072 MiB"), "{error}");
        TempSpace { free: None, ..space }.check(100 * GIB).unwrap();
    }
}
