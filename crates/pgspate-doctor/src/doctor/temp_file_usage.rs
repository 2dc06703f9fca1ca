//! Measures the temporary files of the server: files closed during the sample, and files that
//! exist.
//!
//! The server counts a temporary file when the file is closed. Files that still exist are not in
//! its counters, but they fill the disk. So they are listed before and after the sample.

use std::time::Instant;

use tokio_postgres::Client;

use super::context::SINCE;
use super::disk::{ServerDisk, free_bytes};
use pgspate_target::TypedQuery;

/// Columns: the database, its temporary files, their bytes, and the hours since counting began.
const DATABASES: &str = "\
select d.datname::text, d.temp_files, d.temp_bytes,
       (extract(epoch from clock_timestamp() - SINCE) / 3600)::float8
from pg_stat_database d
where d.datname is not null and d.datname !~ '^template[01]$'";

/// The bytes of all files in the temporary folders of a tablespace, also of files that parallel
/// workers share in subfolders. `%ROOTS` is a query for the folders. Needs superuser privileges.
const LISTED_BYTES: &str = "\
with files as (select root || '/' || name as path
               from (%ROOTS) roots(root), pg_ls_dir(root, true, false) name),
looked as (select path, size, isdir from files, pg_stat_file(path, true))
select coalesce(sum(size), 0)::int8
from (select size from looked where not isdir
      union all
      select shared.size from looked, pg_ls_dir(path, true, false) name,
          pg_stat_file(path || '/' || name, true) shared
      where looked.isdir) files";

/// The temporary files that one database has closed.
#[derive(Debug, Clone, Default)]
pub(super) struct DatabaseTempFiles {
    pub(super) name: String,
    /// Files closed since statistics began.
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// Hours since statistics began.
    pub(super) hours: Option<f64>,
    /// Files closed during the sample.
    pub(super) sampled_files: u64,
    pub(super) sampled_bytes: u64,
}

/// The tablespace for temporary files of this role in this database.
#[derive(Debug, Clone)]
pub(super) struct TempLocation {
    oid: u32,
    pub(super) name: String,
    /// The tablespace's folder, usually an absolute path; empty for the default tablespace.
    folder: String,
    /// Whether the role may list all files there, also those that parallel workers share.
    lists_all: bool,
    /// Whether the role may list the files that are not shared.
    lists_unshared: bool,
}

/// The measured temporary files.
#[derive(Debug, Clone, Default)]
pub(super) struct TempFiles {
    /// Closed files of each database; empty if the role cannot see them.
    pub(super) closed: Vec<DatabaseTempFiles>,
    /// The tablespace of the files; `None` if there are several, or if the query for it failed.
    pub(super) location: Option<TempLocation>,
    /// Bytes of the files that exist, if the role can see them.
    pub(super) existing_bytes: Option<u64>,
    /// Bytes a second by which the existing files have grown.
    pub(super) growth: f64,
    /// Seconds between the two measurements.
    pub(super) seconds: f64,
    /// Free bytes in their tablespace, if the server is on this machine.
    pub(super) free_bytes: Option<u64>,
}

/// The measurement before the sample.
pub(super) struct TempFilesBefore {
    files: TempFiles,
    measured: Instant,
}

impl TempFilesBefore {
    /// Measures the temporary files, outside of a transaction. If the server refuses a query, the
    /// value of that query stays unknown.
    pub(super) async fn measure(client: &Client) -> TempFilesBefore {
        let files = measure(client, find_location(client).await).await;
        TempFilesBefore { files, measured: Instant::now() }
    }

    /// Measures again, and returns the files with the changes since the first measurement.
    pub(super) async fn measure_again(
        self,
        client: &Client,
        disk: Option<&ServerDisk>,
    ) -> TempFiles {
        let mut now = measure(client, self.files.location.clone()).await;
        now.seconds = self.measured.elapsed().as_secs_f64().max(0.1);
        for closed in &mut now.closed {
            let then = self.files.closed.iter().find(|it| it.name == closed.name);
            let grown = |now: u64, then: Option<u64>| {
                then.and_then(|then| now.checked_sub(then)).unwrap_or_default()
            };
            closed.sampled_files = grown(closed.files, then.map(|it| it.files));
            closed.sampled_bytes = grown(closed.bytes, then.map(|it| it.bytes));
        }
        if let (Some(bytes), Some(before)) = (now.existing_bytes, self.files.existing_bytes) {
            now.growth = bytes.saturating_sub(before) as f64 / now.seconds;
        }
        now.free_bytes = disk
            .zip(now.location.as_ref())
            .and_then(|(disk, location)| free_bytes(&disk.data_directory().join(&location.folder)));
        now
    }
}

impl TempLocation {
    /// Returns whether this is the default tablespace, on the volume of the data directory.
    pub(super) fn is_default(&self) -> bool {
        self.folder.is_empty()
    }

    /// Returns whether the files that parallel workers share could not be counted.
    pub(super) fn misses_shared(&self) -> bool {
        !self.lists_all
    }

    /// Returns a query for the sessions that own the files. The name of a file or folder begins
    /// with the process ID of its session.
    pub(super) fn owners_query(&self) -> String {
        let names = match self.lists_all {
            true => {
                format!("({}) roots(root), pg_ls_dir(root, true, false) name", self.folders_query())
            }
            false => format!("pg_ls_tmpdir({})", self.oid),
        };
        format!(
            "select pid, usename, left(query, 60) from pg_stat_activity where pid in (select \
             substring(name from '^pgsql_tmp([0-9]+)')::int from {names});"
        )
    }

    /// Returns a query for the folders of the files.
    fn folders_query(&self) -> String {
        let oid = self.oid;
        match self.is_default() {
            true => "select 'base/pgsql_tmp'".to_owned(),
            false => format!(
                "select 'pg_tblspc/{oid}/' || version || '/pgsql_tmp' \
                 from pg_ls_dir('pg_tblspc/{oid}', true, false) version"
            ),
        }
    }
}

async fn measure(client: &Client, location: Option<TempLocation>) -> TempFiles {
    let existing_bytes = match &location {
        Some(location) => existing_bytes(client, location).await,
        None => None,
    };
    let closed = closed_files(client).await;
    TempFiles { closed, location, existing_bytes, ..TempFiles::default() }
}

async fn closed_files(client: &Client) -> Vec<DatabaseTempFiles> {
    let rows = client.fetch_all(&DATABASES.replace("SINCE", SINCE), &[]).await.unwrap_or_default();
    let number = |value: Option<i64>| value.unwrap_or_default().unsigned_abs();
    let closed = rows.iter().map(|row| DatabaseTempFiles {
        name: row.get(0),
        files: number(row.get(1)),
        bytes: number(row.get(2)),
        hours: row.get(3),
        ..DatabaseTempFiles::default()
    });
    closed.collect()
}

/// Returns the one tablespace that `temp_tablespaces` names and that exists. If it names none,
/// returns the database's default tablespace; if several, `None`.
async fn find_location(client: &Client) -> Option<TempLocation> {
    let sql = "select t.oid, t.spcname::text, coalesce(pg_tablespace_location(t.oid), ''), \
               t.oid = d.dattablespace, current_setting('temp_tablespaces'), \
               has_function_privilege('pg_ls_dir(text,bool,bool)', 'execute') \
               and has_function_privilege('pg_stat_file(text,bool)', 'execute'), \
               has_function_privilege('pg_ls_tmpdir(oid)', 'execute') \
               from pg_tablespace t, pg_database d where d.datname = current_database()";
    let rows = client.fetch_all(sql, &[]).await.ok()?;
    let wanted = parse_names(rows.first()?.get(4));
    let is_named = |name: &str| wanted.iter().any(|it| it == name);
    let mut named: Vec<_> = rows.iter().filter(|row| is_named(row.get(1))).collect();
    if named.is_empty() {
        named = rows.iter().filter(|row| row.get(3)).collect();
    }
    match named.as_slice() {
        [row] => Some(TempLocation {
            oid: row.get(0),
            name: row.get(1),
            folder: row.get(2),
            lists_all: row.get(5),
            lists_unshared: row.get(6),
        }),
        _ => None,
    }
}

/// Returns the bytes of the files that exist in the tablespace, if the role may list them.
async fn existing_bytes(client: &Client, location: &TempLocation) -> Option<u64> {
    let sql = match (location.lists_all, location.lists_unshared) {
        (true, _) => LISTED_BYTES.replace("%ROOTS", &location.folders_query()),
        (false, true) => {
            format!("select coalesce(sum(size), 0)::int8 from pg_ls_tmpdir({})", location.oid)
        }
        (false, false) => return None,
    };
    let row = client.fetch_one(&sql, &[]).await.ok()?;
    Some(row.get::<_, i64>(0).unsigned_abs())
}

/// Parses a list of identifiers as SQL writes them.
pub(super) fn parse_names(list: &str) -> Vec<String> {
    let mut names = Vec::new();
    let (mut name, mut is_quoted) = (String::new(), false);
    for c in list.chars().chain([',']) {
        match c {
            // A doubled quote ends and reopens the quoted part, and stands for one quote.
            '"' => {
                is_quoted = !is_quoted;
                if is_quoted && !name.is_empty() {
                    name.push('"');
                }
            }
            ',' if !is_quoted => names.push(std::mem::take(&mut name)),
            c if is_quoted => name.push(c),
            c if c.is_whitespace() => {}
            c => name.extend(c.to_lowercase()),
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_names_are_read_as_sql_reads_them() {
        assert_eq!(parse_names(""), Vec::<String>::new());
        assert_eq!(parse_names("\"\""), Vec::<String>::new());
        assert_eq!(parse_names("Fast, \"Slow, one\",\"a\"\"b\""), ["fast", "Slow, one", "a\"b"]);
    }
}
