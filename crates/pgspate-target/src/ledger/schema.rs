//! The schema `pgspate`, created on first use in the target database.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::policies::{self, FILE_POLICIES, POLICIES, STREAM_POLICIES};
use super::trust::{LedgerSchema, TrustedLedger};
use super::{fleet_job, member, request, stream_files, unlogged};
use crate::{Error, ErrorKind, Result, TypedQuery, server_error};
use pgspate_base::Secret;

/// The version of the tables. A ledger of a later version is refused. A ledger of an earlier
/// version is upgraded.
pub(super) const VERSION: i32 = 9;

/// Upgrades the main tables to version 3, except the key and the policies. Version 2 added
/// `ledger.digest`. Rows of earlier versions get the owner as their role.
const UPGRADE: &str = "\
alter table pgspate.ledger add column if not exists digest text;
alter table pgspate.version add column if not exists secret text;
alter table pgspate.job add column if not exists role name not null default current_user;
drop policy if exists look on pgspate.change;
drop policy if exists record on pgspate.change;
drop policy if exists undo on pgspate.change;
drop policy if exists forget on pgspate.change;
create table if not exists pgspate.emptied (
    table_oid oid not null,
    upto bigint not null,
    but bigint not null,
    role name not null default current_user);
create index if not exists emptied_table on pgspate.emptied (table_oid)";

/// Upgrades the jobs to version 4: each file of a job becomes a row of its own. Earlier versions
/// kept the first thousand files. The key is that of `source_file.rs`.
const UPGRADE_FILES: &str = "\
insert into pgspate.source_file (job, input, key, source, rows)
select j.job, s.nth - 1,
       encode(sha256(convert_to(concat(s.source ->> 'name', E'\\n' || (s.source ->> 'url')),
                                'UTF8')), 'hex'),
       s.source - 'head',
       case when j.finished is not null and jsonb_array_length(j.sources) = 1
            then j.rows_written end
from pgspate.job j, jsonb_array_elements(j.sources) with ordinality s(source, nth);
alter table pgspate.job add column lists_all_files boolean not null default true;
update pgspate.job set lists_all_files = false where jsonb_array_length(sources) >= 1000;
alter table pgspate.job drop column sources";

/// Upgrades the tables for streams, if they exist.
const UPGRADE_STREAMS: &str = "\
alter table pgspate.stream add column if not exists role name not null default current_user;
alter table pgspate.dead_letter add column if not exists role name not null default current_user";

/// Upgrades to version 7: the publication of all tables lets rows be updated or deleted only in
/// tables with a replica identity, and these have no primary key. Streams that are bound have no
/// job, and jobs have no stream.
const IDENTIFY_ROWS: &str = "\
alter table pgspate.emptied replica identity full;
alter table pgspate.bound replica identity full;
alter table pgspate.version replica identity full";

/// The expression by which the server creates the ledger's key. So no statement in a log contains
/// the key.
const SECRET: &str = "pg_catalog.gen_random_uuid()::text || pg_catalog.gen_random_uuid()::text";

/// Creates the ledger's tables.
///
/// - `job.key` identifies the subject of a job. `job.fingerprint` also covers the state of its
///   sources and options. A key has at most one unfinished job.
/// - `job.lists_all_files` is false if an earlier version recorded the job and kept only its first
///   files.
/// - `ledger.position` is the byte at which the chunk begins in its input. `ledger.digest` is the
///   digest of the chunk's content. Position and digest must be the same when the chunk is cut
///   again.
/// - The foreign key of `ledger` keeps a job from being forgotten while any session writes a chunk
///   of the job. Otherwise the chunk's rows would stay without a record.
/// - `reject` has the rejected rows.
/// - `change.steps` puts a change to the table back. The first `change.done` steps are done.
///   Another role may run the steps, so no role may write them under another role's name.
/// - `emptied` lists emptied tables: jobs up to `upto` no longer count, except job `but`.
/// - `version.secret` is the key for hashing URLs. A role that may read rejected rows may read the
///   key.
const CREATE_TABLES: &str = "\
create table pgspate.job (
    job bigint generated always as identity primary key,
    key text not null,
    fingerprint text not null,
    command text not null,
    table_oid oid not null,
    table_name text not null,
    made_table boolean not null,
    role name not null default current_user,
    lists_all_files boolean not null default true,
    options jsonb not null,
    started timestamptz not null default clock_timestamp(),
    finished timestamptz,
    chunks bigint not null default 0,
    rows_in bigint not null default 0,
    rows_written bigint not null default 0,
    rows_rejected bigint not null default 0);
create unique index job_unfinished on pgspate.job (key) where finished is null;
create index job_finished on pgspate.job (key, finished);
create table pgspate.ledger (
    job bigint not null references pgspate.job,
    chunk bigint not null,
    input integer not null,
    position bigint not null,
    rows_in bigint not null,
    rows_written bigint not null,
    rows_rejected bigint not null,
    digest text,
    written timestamptz not null default clock_timestamp(),
    primary key (job, chunk));
create table pgspate.reject (
    job bigint not null,
    chunk bigint not null,
    row bigint not null,
    source text,
    line bigint,
    source_row bigint,
    byte bigint,
    column_name text,
    sqlstate text not null,
    message text not null,
    record bytea not null,
    primary key (job, chunk, row));
create table pgspate.change (
    job bigint not null,
    ordinal integer not null,
    table_oid oid not null,
    kind text not null,
    object text not null,
    steps text[] not null,
    done integer not null default 0,
    beside boolean not null,
    role name not null default current_user,
    made timestamptz not null default clock_timestamp(),
    primary key (job, ordinal));
create index change_undone on pgspate.change (table_oid) where done < cardinality(steps);
create table pgspate.emptied (
    table_oid oid not null,
    upto bigint not null,
    but bigint not null,
    role name not null default current_user);
create index emptied_table on pgspate.emptied (table_oid);
create table pgspate.version (version integer not null, secret text not null)";

/// Creates the table of the jobs' files. `source_file.key` identifies a file by its name, and
/// `source_file.rows` counts the rows that were written from the file. A file counts as loaded once
/// its job is finished.
const CREATE_FILE_TABLE: &str = "\
create table pgspate.source_file (
    job bigint not null references pgspate.job on delete cascade,
    input integer not null,
    key text not null,
    source jsonb not null,
    rows bigint,
    primary key (job, input));
create index source_file_key on pgspate.source_file (key)";

/// Creates the tables for streams of changes. `stream.ordinal` counts the applied events. Each
/// process that opens a stream raises `stream.fence`.
const CREATE_STREAM_TABLES: &str = "\
create table pgspate.stream (
    stream text not null,
    partition text not null,
    ordinal bigint not null default 0,
    source text not null default '',
    digest text not null default '',
    fence bigint not null default 0,
    role name not null default current_user,
    dead_letters bigint not null default 0,
    updated timestamptz not null default clock_timestamp(),
    primary key (stream, partition));
create table pgspate.dead_letter (
    letter bigint generated always as identity primary key,
    stream text not null,
    partition text not null,
    position bigint not null,
    source text not null,
    line bigint not null,
    table_name text,
    sqlstate text,
    message text not null,
    payload text not null,
    role name not null default current_user,
    written timestamptz not null default clock_timestamp())";

/// Returns whether the database has a ledger. Upgrades a ledger of an earlier version.
///
/// # Errors
/// [`ErrorKind::Ledger`] if the version is unsupported, or if the schema is not trusted or not a
/// ledger. [`ErrorKind::Server`] if the ledger cannot be read or upgraded.
pub(super) async fn check_exists(client: &Client) -> Result<bool> {
    find_ledger(client).await.map(|found| found.is_some())
}

/// Returns the ledger, if the database has one. Upgrades a ledger of an earlier version.
///
/// # Errors
/// The errors of [`check_exists`].
pub(super) async fn find_ledger(client: &Client) -> Result<Option<TrustedLedger>> {
    let found = find_ledger_of_any_version(client).await?;
    if found.is_some() {
        check_version(client).await?;
    }
    Ok(found)
}

/// Returns the ledger, if the database has one, without its version.
///
/// # Errors
/// [`ErrorKind::Ledger`] if the schema is not trusted or not a ledger. [`ErrorKind::Server`] if the
/// server refuses the query.
pub(super) async fn find_ledger_of_any_version(client: &Client) -> Result<Option<TrustedLedger>> {
    let schema = LedgerSchema::read(client).await?;
    let may_read_dropped_keys = schema.may_read_dropped_keys();
    Ok(schema.has_table("version")?.then_some(TrustedLedger { may_read_dropped_keys }))
}

/// Returns whether the database has a ledger of any version.
///
/// # Errors
/// [`ErrorKind::Ledger`] if the schema is not trusted or not a ledger. [`ErrorKind::Server`] if the
/// server refuses the query, [`ErrorKind::Connect`] if the connection fails.
pub async fn ledger_exists(client: &Client) -> Result<bool> {
    LedgerSchema::read(client).await?.has_table("version")
}

/// Checks the ledger's version, and upgrades a ledger of an earlier version.
///
/// # Errors
/// [`ErrorKind::Ledger`] if the version is unsupported. [`ErrorKind::Server`] if the ledger cannot
/// be read or upgraded.
pub(super) async fn check_version(client: &Client) -> Result<()> {
    match read_version(client).await? {
        Some(VERSION) => Ok(()),
        Some(found @ 1..VERSION) => upgrade(client, found).await,
        found => Err(version_error(found)
            .hint("Another version of pgspate created the ledger. Use that version.")),
    }
}

/// Checks that the ledger has this version. Does not upgrade it, because the caller has begun a
/// transaction.
///
/// # Errors
/// [`ErrorKind::Ledger`] if the version is another one. [`ErrorKind::Server`] if the ledger cannot
/// be read.
pub(super) async fn require_version(client: &Client) -> Result<()> {
    match read_version(client).await? {
        Some(VERSION) => Ok(()),
        found => Err(version_error(found)
            .hint("Another version of pgspate created the ledger meanwhile. Try again.")),
    }
}

async fn read_version(client: &Client) -> Result<Option<i32>> {
    let failed = server_error("could not look up the ledger in schema \"pgspate\"".to_owned());
    let version = client.fetch_opt("select version from pgspate.version", &[]).await;
    let version = version.map_err(|error| with_grant_hint(failed(error)))?;
    Ok(version.map(|row| row.get(0)))
}

fn version_error(found: Option<i32>) -> Error {
    Error::new(
        ErrorKind::Ledger,
        match found {
            Some(found) => format!("the ledger's version is {found}, expected {VERSION}"),
            None => format!("the ledger records no version, expected {VERSION}"),
        },
    )
}

/// Upgrades a ledger of an earlier version.
async fn upgrade(client: &Client, from: i32) -> Result<()> {
    let Err(error) = client.batch_execute(&upgrade_sql(client, from).await?).await else {
        return Ok(());
    };
    let _ = client.batch_execute("rollback").await;
    let version = client.fetch_opt("select version from pgspate.version", &[]).await;
    if matches!(&version, Ok(Some(row)) if row.get::<_, i32>(0) == VERSION) {
        // Another session has upgraded the ledger at the same time.
        return Ok(());
    }
    let message = format!("could not upgrade the ledger from version {from} to {VERSION}");
    Err(server_error(message)(error).hint(
        "An earlier version of pgspate created the ledger. Have the ledger's owner run any \
             `pgspate load` once.",
    ))
}

/// Returns the transaction that upgrades a ledger of version `from`.
async fn upgrade_sql(client: &Client, from: i32) -> Result<String> {
    let mut parts = Vec::new();
    if from < 3 {
        let schema = LedgerSchema::read(client).await?;
        parts.push(format!("{UPGRADE}; {}", policies::sql(POLICIES)));
        let later_tables = [
            ("stream", CREATE_STREAM_TABLES, UPGRADE_STREAMS, STREAM_POLICIES),
            ("bound", unlogged::CREATE_TABLES, unlogged::UPGRADE, unlogged::POLICIES),
        ];
        for (table, create, upgrade, table_policies) in later_tables {
            let statements = if schema.has_table(table)? { upgrade } else { create };
            parts.push(format!("{statements}; {}", policies::sql(table_policies)));
        }
    }
    if from < 4 {
        let files = policies::sql(FILE_POLICIES);
        parts.push(format!("{CREATE_FILE_TABLE}; {files}; {UPGRADE_FILES}"));
        parts.push(format!("{}; {}", member::CREATE_TABLES, policies::sql(member::POLICIES)));
    }
    if from < 5 {
        parts.push(format!("{}; {}", fleet_job::CREATE_TABLES, policies::sql(fleet_job::POLICIES)));
    }
    match from {
        // Version 8 changed only the numbers of chunks.
        7 | 8 => {}
        6 => parts.push(request::UPGRADE.to_owned()),
        _ => parts.push(format!("{}; {}", request::CREATE_TABLE, policies::sql(request::POLICIES))),
    }
    parts.push(format!(
        "{}; {}",
        stream_files::CREATE_TABLE,
        policies::sql(stream_files::POLICIES)
    ));
    parts.push(IDENTIFY_ROWS.to_owned());
    Ok(format!(
        "begin; lock table pgspate.version in exclusive mode; {}; \
         update pgspate.version set version = {VERSION}, secret = coalesce(secret, {SECRET}) \
         where version < {VERSION}; \
         alter table pgspate.version alter column secret set not null; commit",
        parts.join("; ")
    ))
}

/// Reads the key by which hidden parts of source URLs are hashed.
///
/// # Errors
/// [`ErrorKind::Server`] if the ledger cannot be read.
pub async fn read_url_key(client: &Client) -> Result<Secret> {
    check_version(client).await?;
    let failed = server_error("could not read the ledger, schema \"pgspate\"".to_owned());
    let row = client.fetch_one("select secret from pgspate.version", &[]).await;
    let row = row.map_err(|error| with_grant_hint(failed(error)))?;
    Ok(Secret::new(row.get::<_, &str>(0)))
}

/// Creates the ledger, if it does not exist.
pub async fn ensure_ledger(client: &Client) -> Result<()> {
    if check_exists(client).await? {
        return Ok(());
    }
    let failed = || server_error("could not create the ledger, schema \"pgspate\"".to_owned());
    let has_schema = LedgerSchema::read(client).await?.exists;
    // `create schema if not exists` needs the CREATE privilege even if the schema exists.
    let schema = if has_schema { "" } else { "create schema pgspate;" };
    let sql = format!(
        "begin; {schema} {CREATE_TABLES}; {CREATE_FILE_TABLE}; {CREATE_STREAM_TABLES}; \
         {}; {}; {}; {}; {}; {}; {IDENTIFY_ROWS}; \
         insert into pgspate.version values ({VERSION}, {SECRET}); commit",
        stream_files::CREATE_TABLE,
        unlogged::CREATE_TABLES,
        member::CREATE_TABLES,
        fleet_job::CREATE_TABLES,
        request::CREATE_TABLE,
        [
            POLICIES,
            FILE_POLICIES,
            STREAM_POLICIES,
            stream_files::POLICIES,
            unlogged::POLICIES,
            member::POLICIES,
            fleet_job::POLICIES,
            request::POLICIES
        ]
        .map(policies::sql)
        .join("; ")
    );
    let Err(error) = client.batch_execute(&sql).await else { return Ok(()) };
    // The transaction has failed and only has to end.
    let _ = client.batch_execute("rollback").await;
    let created_meanwhile =
        [SqlState::UNIQUE_VIOLATION, SqlState::DUPLICATE_TABLE, SqlState::DUPLICATE_SCHEMA];
    if error.code().is_some_and(|code| created_meanwhile.contains(code))
        && check_exists(client).await?
    {
        // Another session created the ledger at the same time.
        return Ok(());
    }
    Err(with_grant_hint(failed()(error)))
}

/// Adds a hint with the SQL that grants access, if the role lacks privileges for the ledger.
pub(super) fn with_grant_hint(error: Error) -> Error {
    if error.sqlstate() != Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        return error;
    }
    error.hint(
        "The ledger makes loads resumable and prevents loading twice. Have the database's owner \
         run, for the role that loads,\n\
         \x20   create schema if not exists pgspate authorization ROLE;\n\
         or, if another role already owns the schema,\n\
         \x20   grant usage on schema pgspate to ROLE;\n\
         \x20   grant select, insert, update, delete on all tables in schema pgspate to ROLE;\n\
         A load also works without a ledger, with `pgspate load --no-ledger`: the load is not \
         resumable, and running it again loads again.",
    )
}
