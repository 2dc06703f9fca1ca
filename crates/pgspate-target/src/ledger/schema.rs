//! The schema `pgspate`: made on first need, in the database that the rows go to.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::bound;
use super::policies::{self, POLICIES, STREAM_POLICIES};
use super::trust::LedgerSchema;
use crate::{Ask, Error, ErrorKind, Result, server_error};
use pgspate_base::Secret;

/// Version of the tables. A ledger of a later version is not touched, one of an earlier version is
/// brought up to this one.
const VERSION: i32 = 3;

/// What version 3 has and earlier ones have not, but for the key and the policies.
/// Version 2 brought the digest. Rows of earlier versions become the owner's.
const UPGRADE: &str = "\
lock table pgspate.version in exclusive mode;
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

/// The same for streams, where there are any.
const UPGRADE_STREAMS: &str = "\
alter table pgspate.stream add column if not exists role name not null default current_user;
alter table pgspate.dead_letter add column if not exists role name not null default current_user";

/// Makes the ledger's key, by the server: so it is in no statement that a log may keep.
const SECRET: &str = "pg_catalog.gen_random_uuid()::text || pg_catalog.gen_random_uuid()::text";

/// What makes it. `job.key` says what a job is about, `job.fingerprint` also in which state its
/// sources and options were; a key has at most one job that is not finished. `ledger.position` is
/// the byte at which the chunk begins in its input, and `ledger.digest` is of its content; both
/// must be the same when it is cut again. A job cannot be forgotten while a chunk of it is written,
/// by whatever session: else its rows would stay and nothing would know of them. `reject` has the
/// rows that were set aside. `change.steps` puts back what was changed on the table; the first
/// `change.done` of them are done. As they are run by whoever puts things back, they are kept from
/// being written under another role's name. `emptied` has tables that were emptied: jobs up to
/// `upto` count no more, but for `but`. `version.secret` is the key by which URLs are hashed;
/// whoever may read the rows that were set aside may read it.
const MAKE: &str = "\
create table pgspate.job (
    job bigint generated always as identity primary key,
    key text not null,
    fingerprint text not null,
    command text not null,
    table_oid oid not null,
    table_name text not null,
    made_table boolean not null,
    role name not null default current_user,
    sources jsonb not null,
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

/// What it has of streams of changes. `stream.ordinal` counts the events that are applied;
/// `stream.fence` is raised by each process that opens the stream.
const MAKE_STREAMS: &str = "\
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

/// Whether the database has a ledger.
///
/// # Errors
/// When the server cannot be asked, or the schema is of another version or not a ledger.
pub(super) async fn exists(client: &Client) -> Result<bool> {
    if !is_there(client).await? {
        return Ok(false);
    }
    check_version(client).await.map(|()| true)
}

/// The same, of whatever version.
///
/// # Errors
/// When the server cannot be asked; when the schema is not to be trusted, or not a ledger.
pub async fn is_there(client: &Client) -> Result<bool> {
    LedgerSchema::read(client).await?.has("version")
}

/// Refuses a ledger of another version, where there is one that cannot be brought up to this one.
///
/// # Errors
/// When it is, or cannot be read or changed.
pub(super) async fn check_version(client: &Client) -> Result<()> {
    let failed = server_error("could not look for the ledger, schema \"pgspate\"".to_owned());
    let version = client.ask_opt("select version from pgspate.version", &[]).await;
    let version = version.map_err(|error| refused(failed(error)))?;
    match version.map(|row| row.get::<_, i32>(0)) {
        Some(VERSION) => Ok(()),
        Some(found @ 1..VERSION) => upgrade(client, found).await,
        found => {
            let found = found.map_or("none".to_owned(), |version| version.to_string());
            let message = format!("the ledger's version is {found}, expected {VERSION}");
            Err(Error::new(ErrorKind::Ledger, message)
                .hint("It was made by another version of pgspate; use that one."))
        }
    }
}

/// Brings a ledger of an earlier version up to this one.
async fn upgrade(client: &Client, from: i32) -> Result<()> {
    let found = LedgerSchema::read(client).await?;
    let mut parts = vec![format!("{UPGRADE}; {}", policies::sql(POLICIES))];
    let later = [
        ("stream", MAKE_STREAMS, UPGRADE_STREAMS, STREAM_POLICIES),
        ("bound", bound::MAKE, bound::UPGRADE, bound::POLICIES),
    ];
    for (table, make, upgrade, rules) in later {
        let tables = if found.has(table)? { upgrade } else { make };
        parts.push(format!("{tables}; {}", policies::sql(rules)));
    }
    let sql = format!(
        "begin; {}; \
         update pgspate.version set version = {VERSION}, secret = {SECRET} \
         where version < {VERSION}; \
         alter table pgspate.version alter column secret set not null; commit",
        parts.join("; ")
    );
    let Err(error) = client.batch_execute(&sql).await else { return Ok(()) };
    let _ = client.batch_execute("rollback").await;
    let message = format!("could not bring the ledger from version {from} to {VERSION}");
    Err(server_error(message)(error)
        .hint("It was made by an earlier pgspate. Have its owner run any `pgspate load` once."))
}

/// The key by which what sources' names leave out is hashed.
///
/// # Errors
/// When the ledger cannot be read.
pub async fn secret(client: &Client) -> Result<Secret> {
    check_version(client).await?;
    let failed = server_error("could not read the ledger, schema \"pgspate\"".to_owned());
    let row = client.ask_one("select secret from pgspate.version", &[]).await;
    let row = row.map_err(|error| refused(failed(error)))?;
    Ok(Secret::new(row.get::<_, &str>(0)))
}

/// Makes it, if it is not there.
pub async fn ensure(client: &Client) -> Result<()> {
    if exists(client).await? {
        return Ok(());
    }
    let failed = || server_error("could not make the ledger, schema \"pgspate\"".to_owned());
    let has_schema = LedgerSchema::read(client).await?.is_there;
    // Not "if not exists", for which a role must be one that may make schemas.
    let schema = if has_schema { "" } else { "create schema pgspate;" };
    let sql = format!(
        "begin; {schema} {MAKE}; {MAKE_STREAMS}; {}; {}; \
         insert into pgspate.version values ({VERSION}, {SECRET}); commit",
        bound::MAKE,
        [POLICIES, STREAM_POLICIES, bound::POLICIES].map(policies::sql).join("; ")
    );
    let Err(error) = client.batch_execute(&sql).await else { return Ok(()) };
    // The transaction has failed; that it ends is all that counts.
    let _ = client.batch_execute("rollback").await;
    let was_first =
        [SqlState::UNIQUE_VIOLATION, SqlState::DUPLICATE_TABLE, SqlState::DUPLICATE_SCHEMA];
    if error.code().is_some_and(|code| was_first.contains(code)) && exists(client).await? {
        // Another session made it at the same time.
        return Ok(());
    }
    Err(refused(failed()(error)))
}

/// For a role that may not use or make the ledger: the SQL that somebody else has to run.
pub(super) fn refused(error: Error) -> Error {
    if error.sqlstate() != Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
        return error;
    }
    error.hint(
        "The ledger makes a load resumable and keeps it from being loaded twice. Have the \
         database's owner run, for the role that loads,\n\
         \x20   create schema if not exists pgspate authorization ROLE;\n\
         or, where the schema is another role's already,\n\
         \x20   grant usage on schema pgspate to ROLE;\n\
         \x20   grant select, insert, update, delete on all tables in schema pgspate to ROLE;\n\
         or load with `--no-ledger`: in one piece, and again whenever it is asked for.",
    )
}
