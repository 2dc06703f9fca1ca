//! Temporary files of the whole server: what was closed meanwhile, and what is there.
//!
//! The server counts a temporary file when it is closed, so its counters say what was given back.
//! What fills a disk are the files that are there: those are looked up before and after.

use std::time::Instant;

use tokio_postgres::Client;

use super::disk::{Disk, free_bytes};
use super::scene::SINCE;
use pgspate_target::Ask;

/// Columns: the database, its files and their bytes, and for how many hours that was counted.
const DATABASES: &str = "\
select d.datname::text, d.temp_files, d.temp_bytes,
       (extract(epoch from clock_timestamp() - SINCE) / 3600)::float8
from pg_stat_database d
where d.datname is not null and d.datname !~ '^template[01]$'";

/// What a superuser sees in the folder of a tablespace, and in the folders that parallel sessions
/// share there. `%ROOTS` is where such a folder is.
const LISTED: &str = "\
with files as (select root || '/' || name as path
               from (%ROOTS) roots(root), pg_ls_dir(root, true, false) name),
looked as (select path, size, isdir from files, pg_stat_file(path, true))
select coalesce(sum(size), 0)::int8
from (select size from looked where not isdir
      union all
      select shared.size from looked, pg_ls_dir(path, true, false) name,
          pg_stat_file(path || '/' || name, true) shared
      where looked.isdir) files";

/// One database's temporary files.
#[derive(Debug, Clone, Default)]
pub(super) struct Closed {
    pub(super) name: String,
    /// Since statistics began, and for how many hours that is.
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) hours: Option<f64>,
    /// Those that were closed while it was looked.
    pub(super) files_meanwhile: u64,
    pub(super) bytes_meanwhile: u64,
}

/// Where temporary files of this role go in this database.
#[derive(Debug, Clone)]
pub(super) struct Place {
    oid: u32,
    pub(super) name: String,
    /// Empty beside the data; else as a rule a folder from the root on.
    location: String,
    /// Whether the files there may be listed with, and without, those that parallel sessions share.
    lists_all: bool,
    lists_own: bool,
}

/// What was seen of temporary files.
#[derive(Debug, Clone, Default)]
pub(super) struct TempFiles {
    /// By database; empty where that cannot be seen.
    pub(super) closed: Vec<Closed>,
    /// The one place where they go; nothing where there are several.
    pub(super) place: Option<Place>,
    /// Bytes of those that are there, if this role may know.
    pub(super) held: Option<u64>,
    /// By how many bytes a second those that are there have grown.
    pub(super) growth: f64,
    /// For how long it was looked.
    pub(super) seconds: f64,
    /// What is free where they are, for a server on this machine.
    pub(super) free: Option<u64>,
}

/// A look before.
pub(super) struct Before {
    seen: TempFiles,
    looked: Instant,
}

impl Before {
    /// Looks, outside of a transaction: what is refused is not known.
    pub(super) async fn look(client: &Client) -> Before {
        Before { seen: look(client, place(client).await).await, looked: Instant::now() }
    }

    /// Looks again.
    pub(super) async fn until_now(self, client: &Client, disk: Option<&Disk>) -> TempFiles {
        let mut now = look(client, self.seen.place.clone()).await;
        now.seconds = self.looked.elapsed().as_secs_f64().max(0.1);
        for closed in &mut now.closed {
            let then = self.seen.closed.iter().find(|it| it.name == closed.name);
            let grown = |now: u64, then: Option<u64>| {
                then.and_then(|then| now.checked_sub(then)).unwrap_or_default()
            };
            closed.files_meanwhile = grown(closed.files, then.map(|it| it.files));
            closed.bytes_meanwhile = grown(closed.bytes, then.map(|it| it.bytes));
        }
        if let (Some(now_held), Some(held)) = (now.held, self.seen.held) {
            now.growth = now_held.saturating_sub(held) as f64 / now.seconds;
        }
        now.free = disk
            .zip(now.place.as_ref())
            .and_then(|(disk, place)| free_bytes(&disk.folder().join(&place.location)));
        now
    }
}

impl Place {
    /// Whether that is the volume of the data.
    pub(super) fn is_default(&self) -> bool {
        self.location.is_empty()
    }

    /// Whether files that parallel sessions share are not among those that were counted.
    pub(super) fn misses_shared(&self) -> bool {
        !self.lists_all
    }

    /// The sessions that have files there: their names, and those of folders, begin with one.
    pub(super) fn owners(&self) -> String {
        let names = match self.lists_all {
            true => format!("({}) roots(root), pg_ls_dir(root, true, false) name", self.roots()),
            false => format!("pg_ls_tmpdir({})", self.oid),
        };
        format!(
            "select pid, usename, left(query, 60) from pg_stat_activity where pid in (select \
             substring(name from '^pgsql_tmp([0-9]+)')::int from {names});"
        )
    }

    /// A query for the folders of the files.
    fn roots(&self) -> String {
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

async fn look(client: &Client, place: Option<Place>) -> TempFiles {
    let held = match &place {
        Some(place) => held(client, place).await,
        None => None,
    };
    TempFiles { closed: closed(client).await, place, held, ..TempFiles::default() }
}

async fn closed(client: &Client) -> Vec<Closed> {
    let rows = client.ask_all(&DATABASES.replace("SINCE", SINCE), &[]).await.unwrap_or_default();
    let number = |value: Option<i64>| value.unwrap_or_default().unsigned_abs();
    let closed = rows.iter().map(|row| Closed {
        name: row.get(0),
        files: number(row.get(1)),
        bytes: number(row.get(2)),
        hours: row.get(3),
        ..Closed::default()
    });
    closed.collect()
}

/// The one tablespace that `temp_tablespaces` names and that is there; the database's own where it
/// names none.
async fn place(client: &Client) -> Option<Place> {
    let sql = "select t.oid, t.spcname::text, coalesce(pg_tablespace_location(t.oid), ''), \
               t.oid = d.dattablespace, current_setting('temp_tablespaces'), \
               has_function_privilege('pg_ls_dir(text,bool,bool)', 'execute') \
               and has_function_privilege('pg_stat_file(text,bool)', 'execute'), \
               has_function_privilege('pg_ls_tmpdir(oid)', 'execute') \
               from pg_tablespace t, pg_database d where d.datname = current_database()";
    let rows = client.ask_all(sql, &[]).await.ok()?;
    let wanted = names(rows.first()?.get(4));
    let is_named = |name: &str| wanted.iter().any(|it| it == name);
    let mut named: Vec<_> = rows.iter().filter(|row| is_named(row.get(1))).collect();
    if named.is_empty() {
        named = rows.iter().filter(|row| row.get(3)).collect();
    }
    match named.as_slice() {
        [row] => Some(Place {
            oid: row.get(0),
            name: row.get(1),
            location: row.get(2),
            lists_all: row.get(5),
            lists_own: row.get(6),
        }),
        _ => None,
    }
}

/// Bytes of the files that are there.
async fn held(client: &Client, place: &Place) -> Option<u64> {
    let sql = match (place.lists_all, place.lists_own) {
        (true, _) => LISTED.replace("%ROOTS", &place.roots()),
        (false, true) => {
            format!("select coalesce(sum(size), 0)::int8 from pg_ls_tmpdir({})", place.oid)
        }
        (false, false) => return None,
    };
    let row = client.ask_one(&sql, &[]).await.ok()?;
    Some(row.get::<_, i64>(0).unsigned_abs())
}

/// The names in a list of identifiers as SQL writes them.
pub(super) fn names(list: &str) -> Vec<String> {
    let mut names = Vec::new();
    let (mut name, mut is_quoted) = (String::new(), false);
    for c in list.chars().chain([',']) {
        match c {
            // A doubled one ends and begins anew, and stands for itself.
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
        assert_eq!(names(""), Vec::<String>::new());
        assert_eq!(names("\"\""), Vec::<String>::new());
        assert_eq!(names("Fast, \"Slow, one\",\"a\"\"b\""), ["fast", "Slow, one", "a\"b"]);
    }
}
