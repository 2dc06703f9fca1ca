//! What the server can lose: rows in unlogged tables, which crash recovery empties.
//!
//! `pgspate.life` is unlogged itself. It has one number, which is gone with the rows of all such
//! tables, and another number comes in its place. `pgspate.bound` is logged and names the jobs and
//! streams that have written to such tables, each with the number of that time. So a number that
//! is not there any more proves that the rows are not, either. No session outlives a crash: one
//! that has seen the number may rely on it until it ends.

use std::hash::{BuildHasher, RandomState};

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error as ServerError};

use super::identity::Identity;
use super::job::{Done, JobId, failed, read_done};
use super::{schema, trust};
use crate::{Ask, Error, ErrorKind, Result, Unlogged, quote_literal};

pub(super) const MAKE: &str = "\
create unlogged table pgspate.life (
    life bigint not null,
    one boolean primary key default true check (one));
create table pgspate.bound (
    job bigint unique references pgspate.job on delete cascade,
    stream text unique,
    life bigint not null,
    whole boolean not null,
    role name not null default current_user,
    check ((job is null) <> (stream is null)))";

/// Nobody takes the number away, brings back one that a crash has taken, or takes another's bond.
pub(super) const POLICIES: &str = "\
alter table pgspate.life enable row level security;
create policy look on pgspate.life for select using (true);
create policy bring on pgspate.life for insert
    with check (not exists (select from pgspate.bound where bound.life = life.life));
alter table pgspate.bound enable row level security;
create policy look on pgspate.bound for select using (true);
create policy record on pgspate.bound for insert with check (role = current_user
    and (stream is not null or exists (
        select from pgspate.job where job.job = bound.job and IS_OURS))
    and not exists (
        select from pgspate.stream where stream.stream = bound.stream and not IS_OURS));
create policy work on pgspate.bound for update using (IS_OURS);
create policy forget on pgspate.bound for delete using (IS_OURS)";

/// What such a table of an earlier version has not.
pub(super) const UPGRADE: &str = "\
alter table pgspate.bound add column if not exists role name not null default current_user";

/// The number of a job whose rows are still there; NULL of any other one.
pub(super) fn job_sql(job: JobId) -> String {
    format!(
        "(select b.job from pgspate.bound b join pgspate.life l on l.life = b.life \
         where b.job = {})",
        job.0
    )
}

/// Whether the server refused a chunk's row because a crash has emptied the table.
pub fn is_emptied(error: &ServerError) -> bool {
    error.as_db_error().is_some_and(|said| {
        *said.code() == SqlState::NOT_NULL_VIOLATION
            && said.schema() == Some("pgspate")
            && said.table() == Some("ledger")
            && said.column() == Some("job")
    })
}

/// What has written to unlogged tables.
#[derive(Debug, Clone, Copy)]
enum Writer<'a> {
    Job(JobId),
    Stream(&'a str),
}

impl Writer<'_> {
    /// The condition for its row.
    fn is_row(self) -> String {
        match self {
            Writer::Job(job) => format!("job = {}", job.0),
            Writer::Stream(stream) => format!("stream = {}", quote_literal(stream)),
        }
    }

    fn values(self) -> String {
        match self {
            Writer::Job(job) => format!("{}, null", job.0),
            Writer::Stream(stream) => format!("null, {}", quote_literal(stream)),
        }
    }

    /// Binds it to the server's life as of now, unless it is bound; `renews`: in any case.
    fn bind_sql(self, is_whole: bool, renews: bool) -> String {
        // Two sessions may bring the number at the same time. One of them does.
        let life = RandomState::new().hash_one("life").cast_signed();
        let forget = match renews {
            true => format!("delete from pgspate.bound where {};", self.is_row()),
            false => String::new(),
        };
        let values = self.values();
        format!(
            "insert into pgspate.life (life) values ({life}) on conflict do nothing; {forget} \
             insert into pgspate.bound (job, stream, life, whole) \
             select {values}, life, {is_whole} from pgspate.life on conflict do nothing"
        )
    }
}

/// What the ledger knows of a writer that is bound.
struct Bond {
    is_alive: bool,
    /// All that it has written was unlogged.
    is_whole: bool,
}

async fn look(client: &Client, writer: Writer<'_>) -> Result<Option<Bond>> {
    let sql = format!(
        "select exists (select from pgspate.life l where l.life = b.life), b.whole \
         from pgspate.bound b where {}",
        writer.is_row()
    );
    let row = client.ask_opt(&sql, &[]).await.map_err(|error| schema::refused(failed()(error)))?;
    Ok(row.map(|row| Bond { is_alive: row.get(0), is_whole: row.get(1) }))
}

async fn bind(client: &Client, writer: Writer<'_>, is_whole: bool, renews: bool) -> Result<()> {
    let sql = writer.bind_sql(is_whole, renews);
    // A later statement sees what another session has committed meanwhile.
    let sql = format!("begin isolation level read committed; {sql}; commit");
    let bound = client.batch_execute(&sql).await;
    if bound.is_err() {
        // The error that is told is the one before.
        let _ = client.batch_execute("rollback").await;
    }
    bound.map_err(|error| schema::refused(failed()(error)))?;
    check_role(client, writer).await
}

/// Refuses a bond that another role has made before: it could take it back, and a crash would not
/// be noticed.
async fn check_role(client: &Client, writer: Writer<'_>) -> Result<()> {
    let bond = format!("pgspate.bound where {}", writer.is_row());
    let Some(role) = trust::doubtful_role(client, &bond).await? else { return Ok(()) };
    let row = writer.is_row();
    let message = format!("the row of pgspate.bound where {row} is of role \"{role}\"");
    Err(Error::new(ErrorKind::Ledger, message).hint(format!(
        "It says that rows of unlogged tables are still there, and that role could change it. \
         Have the ledger's owner run `delete from pgspate.bound where {row}`."
    )))
}

/// What has become of a job's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Kept,
    /// All of them are gone.
    Emptied,
}

/// What has become of the rows of a job that has written some.
///
/// # Errors
/// Of [`ErrorKind::Ledger`] when only some of them may be gone, or nothing can tell.
pub(super) async fn fate(client: &Client, job: JobId, identity: &Identity) -> Result<Fate> {
    let (table, unlogged) = (&identity.table, identity.unlogged);
    let message = match look(client, Writer::Job(job)).await? {
        None if unlogged == Unlogged::No => return Ok(Fate::Kept),
        Some(Bond { is_alive: true, .. }) => return Ok(Fate::Kept),
        Some(Bond { is_whole: true, .. }) if unlogged == Unlogged::Wholly => {
            return Ok(Fate::Emptied);
        }
        Some(_) => format!(
            "the server has crashed since job {} wrote to {table}: what was unlogged is empty, and \
             other rows of the job may still be there",
            job.0
        ),
        None => format!(
            "{table} is unlogged, and nothing tells whether a crash has emptied it since job {} \
             wrote to it",
            job.0
        ),
    };
    Err(Error::new(ErrorKind::Ledger, message).hint(
        "Look which of its rows are there, also where partitions are logged or triggers write. \
         Take them out, and load all of them again with `--restart`.",
    ))
}

/// The chunks whose rows are in the table still.
pub(super) async fn done_now(client: &Client, job: JobId, identity: &Identity) -> Result<Done> {
    let done = read_done(client, job).await?;
    if done.chunks() == 0 {
        return Ok(done);
    }
    match fate(client, job, identity).await? {
        Fate::Kept => Ok(done),
        Fate::Emptied => Ok(Done::default()),
    }
}

/// The error for chunks that are not in the ledger, though no crash can have taken them.
pub fn lacks_chunks(job: JobId, chunks: u64) -> Error {
    let message = format!("the ledger does not have the {chunks} chunks of job {}", job.0);
    Error::new(ErrorKind::Ledger, message)
        .hint("Another session has changed it. `pgspate status` shows what it has.")
}

/// Binds a job that has written nothing yet.
pub(super) async fn bind_job(client: &Client, job: JobId, identity: &Identity) -> Result<bool> {
    if identity.unlogged == Unlogged::No {
        return Ok(look(client, Writer::Job(job)).await?.is_some());
    }
    let is_whole = identity.unlogged == Unlogged::Wholly;
    bind(client, Writer::Job(job), is_whole, false).await.map(|()| true)
}

/// Has a job begin over whose rows are all gone.
///
/// # Errors
/// Of [`ErrorKind::Ledger`] when some of them may be there.
pub async fn begin_over(client: &Client, job: JobId, identity: &Identity) -> Result<bool> {
    let unlogged = match Unlogged::read(client, identity.table_oid).await? {
        Unlogged::Wholly => identity.unlogged,
        // It is logged by now, with what rows it had then.
        some => some,
    };
    let identity = Identity { unlogged, ..identity.clone() };
    if fate(client, job, &identity).await? == Fate::Kept {
        return Ok(false);
    }
    let bind = Writer::Job(job).bind_sql(true, true);
    let sql = format!(
        "begin isolation level read committed; delete from pgspate.ledger where job = {0}; \
         delete from pgspate.reject where job = {0}; \
         update pgspate.job set finished = null, chunks = 0, rows_in = 0, rows_written = 0, \
                                rows_rejected = 0 where job = {0}; {bind}; commit",
        job.0
    );
    let begun = client.batch_execute(&sql).await;
    if begun.is_err() {
        let _ = client.batch_execute("rollback").await;
    }
    begun.map(|()| true).map_err(|error| schema::refused(failed()(error)))
}

/// Binds a stream before it writes to an unlogged table. `renews`: whatever it has written before
/// is to be written again. `is_within` a transaction that is open.
pub async fn bind_stream(
    client: &Client,
    stream: &str,
    renews: bool,
    is_within: bool,
) -> Result<()> {
    let writer = Writer::Stream(stream);
    if !is_within {
        return bind(client, writer, false, renews).await;
    }
    let bound = client.batch_execute(&writer.bind_sql(false, renews)).await;
    bound.map_err(|error| schema::refused(failed()(error)))?;
    check_role(client, writer).await
}

/// Refuses to go on with a stream whose rows a crash has taken.
///
/// # Errors
/// Of [`ErrorKind::Ledger`] then.
pub async fn check_stream(client: &Client, stream: &str) -> Result<()> {
    let Some(Bond { is_alive: false, .. }) = look(client, Writer::Stream(stream)).await? else {
        return Ok(());
    };
    let message = format!(
        "the server has crashed since stream \"{stream}\" wrote to unlogged tables, and has \
         emptied them"
    );
    let name = quote_literal(stream);
    Err(Error::new(ErrorKind::Ledger, message).hint(format!(
        "Fill these tables again from the source. To begin the stream anew run `delete from \
         pgspate.stream where stream = {name}`; to go on where it is, `delete from pgspate.bound \
         where stream = {name}`. `alter table ... set logged` keeps rows over a crash."
    )))
}

/// A stream that is begun anew has written nothing.
pub(super) async fn release_stream(client: &Client, stream: &str) -> Result<()> {
    let sql = format!("delete from pgspate.bound where {}", Writer::Stream(stream).is_row());
    client.tell(&sql, &[]).await.map(drop).map_err(|error| schema::refused(failed()(error)))
}

/// The jobs and streams whose rows a crash has taken, or a part of them. None on a standby, which
/// cannot read unlogged tables.
pub(super) async fn emptied(client: &Client) -> Result<(Vec<i64>, Vec<String>)> {
    let look = "select not pg_is_in_recovery()";
    if !client.ask_one(look, &[]).await.map_err(failed())?.get::<_, bool>(0) {
        return Ok((Vec::new(), Vec::new()));
    }
    let sql = "select b.job, b.stream from pgspate.bound b \
               where not exists (select from pgspate.life l where l.life = b.life)";
    let rows = client.ask_all(sql, &[]).await;
    let rows = rows.map_err(|error| schema::refused(failed()(error)))?;
    let jobs = rows.iter().filter_map(|row| row.get(0)).collect();
    Ok((jobs, rows.iter().filter_map(|row| row.get(1)).collect()))
}
