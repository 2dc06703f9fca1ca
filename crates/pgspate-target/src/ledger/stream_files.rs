//! The files of streams of changes, in the order in which they are read.
//!
//! A stream's position names the file that was read last. The files before it are in a table, so
//! that a run of one of them alone does not apply its events again.

use tokio_postgres::Client;

use super::job::ledger_error;
use super::schema;
use crate::{Result, TypedQuery};

/// Creates the table of the files. Version 9 of the ledger added it. `nth` is the place of the file
/// in the stream. A stream that a user deletes takes its files along.
pub(super) const CREATE_TABLE: &str = "\
create table pgspate.stream_file (
    stream text not null,
    partition text not null default '',
    nth integer not null,
    file text not null,
    role name not null default current_user,
    primary key (stream, file),
    foreign key (stream, partition) references pgspate.stream on delete cascade)";

/// Policies of the table. All roles can see the files, as they can see the streams.
pub(super) const POLICIES: &str = "\
alter table pgspate.stream_file enable row level security;
create policy look on pgspate.stream_file for select using (true);
create policy record on pgspate.stream_file for insert with check (role = current_user);
create policy work on pgspate.stream_file for update using (IS_OURS);
create policy forget on pgspate.stream_file for delete using (IS_OURS)";

/// Records the files of an open stream in their order. They are named as in the positions of
/// streams.
///
/// # Errors
/// [`ErrorKind::Ledger`](crate::ErrorKind::Ledger) or
/// [`ErrorKind::Server`](crate::ErrorKind::Server) if the role may not write the ledger.
pub async fn record_stream_files(client: &Client, stream: &str, files: &[String]) -> Result<()> {
    let sql = "insert into pgspate.stream_file (stream, nth, file) \
               select $1, min(nth), file from unnest($2::text[]) with ordinality as f(file, nth) \
               group by file \
               on conflict (stream, file) do update set nth = excluded.nth \
               where stream_file.nth <> excluded.nth";
    let recorded = client.run_statement(sql, &[&stream, &files.to_vec()]).await;
    recorded.map_err(|error| schema::with_grant_hint(ledger_error()(error))).map(drop)
}

/// Returns the stream other than `name` that has read one of `files`, and this file. The files are
/// named as in the positions of streams. Only streams that are named after their first file count:
/// the user distinguishes the others.
///
/// # Errors
/// [`ErrorKind::Ledger`](crate::ErrorKind::Ledger) or
/// [`ErrorKind::Server`](crate::ErrorKind::Server) if the role may not read the ledger.
pub async fn find_stream_of_files(
    client: &Client,
    name: &str,
    files: &[String],
) -> Result<Option<(String, String)>> {
    if !schema::check_exists(client).await? {
        return Ok(None);
    }
    // A stream that was last applied by an earlier version has no files in the table.
    let sql = "select s.stream, f.file from pgspate.stream s \
               cross join lateral regexp_replace(s.source, ', line [0-9]+$', '') as reached \
               cross join lateral ( \
                   select reached as file \
                   union all \
                   select passed.file from pgspate.stream_file passed \
                   join pgspate.stream_file last using (stream) \
                   where stream = s.stream and last.file = reached and passed.nth < last.nth) f \
               where s.stream <> $1 and s.partition = '' and f.file = any($2) \
               and (s.stream like '/%' or s.stream like '%://%') \
               order by s.updated desc, f.file limit 1";
    let row = client.fetch_opt(sql, &[&name, &files.to_vec()]).await;
    let row = row.map_err(|error| schema::with_grant_hint(ledger_error()(error)))?;
    Ok(row.map(|row| (row.get(0), row.get(1))))
}
