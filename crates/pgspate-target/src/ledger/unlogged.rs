//! Rows that a server crash can remove: crash recovery empties unlogged tables.
//!
//! The table `pgspate.life` is unlogged itself. It has one row with a random number. A crash
//! removes the number together with the rows of all unlogged tables. Later, a new number is
//! inserted. The table `pgspate.bound` is logged. It lists the jobs and streams that have written
//! to unlogged tables, each with the number at that time: the job or stream is bound to that
//! number. If the number no longer exists, the rows do not exist either. No session survives a
//! crash. So a session that has seen the number may rely on the number until the session ends.

use std::hash::{BuildHasher, RandomState};

use tokio_postgres::{Client, Error as ServerError};

use super::identity::JobIdentity;
use super::job::{JobId, is_refused_for_null, ledger_error};
use super::{schema, trust};
use crate::{Error, ErrorKind, Result, TypedQuery, UnloggedExtent, quote_literal};
use pgspate_base::numbers::counted;

/// Creates the tables `life` and `bound`. `bound.whole` says whether everything that the job wrote
/// was unlogged.
pub(super) const CREATE_TABLES: &str = "\
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

/// Policies: no role may remove the number, restore a number that a crash removed, or change
/// another role's row in `bound`.
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

/// Adds the columns that earlier versions lack.
pub(super) const UPGRADE: &str = "\
alter table pgspate.bound add column if not exists role name not null default current_user";

/// Returns a subquery for the job's id. The subquery gives NULL if a crash has removed the job's
/// rows.
pub(super) fn job_sql(job: JobId) -> String {
    format!(
        "(select b.job from pgspate.bound b join pgspate.life l on l.life = b.life \
         where b.job = {})",
        job.0
    )
}

/// Returns whether the server refused a chunk's row because a crash has emptied the table.
pub fn is_emptied_by_crash(error: &ServerError) -> bool {
    is_refused_for_null(error, "job")
}

/// A job or stream that has written to unlogged tables.
#[derive(Debug, Clone, Copy)]
enum UnloggedWriter<'a> {
    Job(JobId),
    Stream(&'a str),
}

impl UnloggedWriter<'_> {
    /// Returns the condition for the writer's row in `bound`.
    fn row_condition(self) -> String {
        match self {
            UnloggedWriter::Job(job) => format!("job = {}", job.0),
            UnloggedWriter::Stream(stream) => format!("stream = {}", quote_literal(stream)),
        }
    }

    /// Returns the values of `job` and `stream` for the writer's row.
    fn values(self) -> String {
        match self {
            UnloggedWriter::Job(job) => format!("{}, null", job.0),
            UnloggedWriter::Stream(stream) => format!("null, {}", quote_literal(stream)),
        }
    }

    /// Returns statements that bind the writer to the current number. A writer that is already
    /// bound stays bound to its old number, unless `renews`.
    fn bind_sql(self, is_whole: bool, renews: bool) -> String {
        // Two sessions may insert a number at the same time. Only one succeeds.
        let life = RandomState::new().hash_one("life").cast_signed();
        let release = match renews {
            true => format!("delete from pgspate.bound where {};", self.row_condition()),
            false => String::new(),
        };
        let values = self.values();
        format!(
            "insert into pgspate.life (life) values ({life}) on conflict do nothing; {release} \
             insert into pgspate.bound (job, stream, life, whole) \
             select {values}, life, {is_whole} from pgspate.life on conflict do nothing"
        )
    }
}

/// What the ledger knows about a bound writer.
#[derive(Debug, Clone, Copy)]
pub(super) struct WriterBinding {
    /// Whether the number still exists: no crash has happened since the writer was bound.
    pub(super) is_alive: bool,
    /// Whether everything that the writer wrote was unlogged.
    pub(super) is_whole: bool,
}

/// Reads the binding of a writer, if it is bound.
async fn read_binding(
    client: &Client,
    writer: UnloggedWriter<'_>,
) -> Result<Option<WriterBinding>> {
    let sql = format!(
        "select exists (select from pgspate.life l where l.life = b.life), b.whole \
         from pgspate.bound b where {}",
        writer.row_condition()
    );
    let row = client
        .fetch_opt(&sql, &[])
        .await
        .map_err(|error| schema::with_grant_hint(ledger_error()(error)))?;
    Ok(row.map(|row| WriterBinding { is_alive: row.get(0), is_whole: row.get(1) }))
}

/// Binds a writer in a transaction of its own.
async fn bind(
    client: &Client,
    writer: UnloggedWriter<'_>,
    is_whole: bool,
    renews: bool,
) -> Result<()> {
    let sql = writer.bind_sql(is_whole, renews);
    // With read committed, a later statement sees rows that another session committed meanwhile.
    let sql = format!("begin isolation level read committed; {sql}; commit");
    let bound = client.batch_execute(&sql).await;
    if bound.is_err() {
        // The error of the statements is reported.
        let _ = client.batch_execute("rollback").await;
    }
    bound.map_err(|error| schema::with_grant_hint(ledger_error()(error)))?;
    check_role(client, writer).await
}

/// Refuses a row in `bound` that belongs to an untrusted role. That role could change the row, so
/// that pgspate would not notice a crash.
async fn check_role(client: &Client, writer: UnloggedWriter<'_>) -> Result<()> {
    let binding = format!("pgspate.bound where {}", writer.row_condition());
    let Some(role) = trust::untrusted_role(client, &binding).await? else { return Ok(()) };
    let row = writer.row_condition();
    let message = format!(
        "the row of pgspate.bound where {row} belongs to role \"{role}\", which is not trusted"
    );
    Err(Error::new(ErrorKind::Ledger, message).hint(format!(
        "The row states that rows of unlogged tables still exist, and that role could change it. \
         Have the ledger's owner run `delete from pgspate.bound where {row}`."
    )))
}

/// Whether a job's rows still exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowSurvival {
    /// All rows still exist.
    Kept,
    /// A crash has removed all rows.
    Emptied,
}

/// Returns whether the rows that a job has written still exist. `binding` is the job's binding.
///
/// # Errors
/// [`ErrorKind::Ledger`] if a crash may have removed only some of the rows, or if it is unknown
/// whether a crash has happened.
pub(super) fn row_survival(
    binding: Option<WriterBinding>,
    job: JobId,
    identity: &JobIdentity,
) -> Result<RowSurvival> {
    let (table, unlogged) = (&identity.table, identity.unlogged);
    let message = match binding {
        None if unlogged == UnloggedExtent::Nothing => return Ok(RowSurvival::Kept),
        Some(WriterBinding { is_alive: true, .. }) => return Ok(RowSurvival::Kept),
        Some(WriterBinding { is_whole: true, .. }) if unlogged == UnloggedExtent::Everything => {
            return Ok(RowSurvival::Emptied);
        }
        Some(_) => format!(
            "the server has crashed since job {} wrote to {table}: unlogged tables are empty, and \
             other rows of the job may still exist",
            job.0
        ),
        None => format!(
            "{table} is unlogged, and it is unknown whether a crash has emptied it since job {} \
             wrote to it",
            job.0
        ),
    };
    Err(Error::new(ErrorKind::Ledger, message).hint(
        "Find the job's rows that still exist, also in logged partitions and in tables that \
         triggers write. Delete them, and load all rows again with `--restart`.",
    ))
}

/// Returns the error for chunks that are missing in the ledger although no crash can have removed
/// them.
pub fn missing_chunks_error(job: JobId, chunks: u64) -> Error {
    let message =
        format!("could not find {} of job {} in the ledger", counted(chunks, "chunk"), job.0);
    Error::new(ErrorKind::Ledger, message)
        .hint("Another session has changed the ledger. `pgspate status` shows its jobs.")
}

/// Binds a job before it writes, if its table is unlogged. Returns whether the job is bound.
pub(super) async fn bind_job(client: &Client, job: JobId, identity: &JobIdentity) -> Result<bool> {
    if identity.unlogged == UnloggedExtent::Nothing {
        return Ok(read_binding(client, UnloggedWriter::Job(job)).await?.is_some());
    }
    let is_whole = identity.unlogged == UnloggedExtent::Everything;
    bind(client, UnloggedWriter::Job(job), is_whole, false).await.map(|()| true)
}

/// Returns whether rows of the job may exist in logged tables. A chunk's rows and its row in the
/// ledger are written in one transaction, so a crash loses both or neither.
async fn has_written(client: &Client, job: JobId) -> Result<bool> {
    let sql = "select finished is not null or exists (select from pgspate.ledger l \
                                                      where l.job = j.job) \
               from pgspate.job j where j.job = $1";
    let row = client.fetch_opt(sql, &[&job.0]).await.map_err(ledger_error())?;
    Ok(row.is_none_or(|row| row.get(0)))
}

/// Resets a job whose rows were all removed by a crash. Returns whether the job was reset.
///
/// # Errors
/// [`ErrorKind::Ledger`] if some rows may still exist.
pub async fn restart_emptied_job(
    client: &Client,
    job: JobId,
    identity: &JobIdentity,
) -> Result<bool> {
    let unlogged = match UnloggedExtent::read(client, identity.table_oid).await? {
        UnloggedExtent::Everything => identity.unlogged,
        // The table was made logged since, so a crash has not emptied it.
        extent => extent,
    };
    let identity = JobIdentity { unlogged, ..identity.clone() };
    let binding = read_binding(client, UnloggedWriter::Job(job)).await?;
    let is_dead = binding.is_some_and(|binding| !binding.is_alive);
    let is_reset = is_dead && !has_written(client, job).await?;
    if !is_reset && row_survival(binding, job, &identity)? == RowSurvival::Kept {
        return Ok(false);
    }
    let is_whole = unlogged == UnloggedExtent::Everything;
    let bind = UnloggedWriter::Job(job).bind_sql(is_whole, true);
    let sql = format!(
        "begin isolation level read committed; delete from pgspate.ledger where job = {0}; \
         delete from pgspate.reject where job = {0}; \
         update pgspate.job set finished = null, chunks = 0, rows_in = 0, rows_written = 0, \
                                rows_rejected = 0 where job = {0}; {bind}; commit",
        job.0
    );
    let reset = client.batch_execute(&sql).await;
    if reset.is_err() {
        let _ = client.batch_execute("rollback").await;
    }
    reset.map(|()| true).map_err(|error| schema::with_grant_hint(ledger_error()(error)))
}

/// Binds a stream before it writes to an unlogged table. `renews` replaces an earlier binding, if
/// everything that the stream wrote before will be written again. `in_transaction` says whether a
/// transaction is open.
pub async fn bind_stream(
    client: &Client,
    stream: &str,
    renews: bool,
    in_transaction: bool,
) -> Result<()> {
    let writer = UnloggedWriter::Stream(stream);
    if !in_transaction {
        return bind(client, writer, false, renews).await;
    }
    let bound = client.batch_execute(&writer.bind_sql(false, renews)).await;
    bound.map_err(|error| schema::with_grant_hint(ledger_error()(error)))?;
    check_role(client, writer).await
}

/// Refuses to continue a stream whose rows a crash has removed.
///
/// # Errors
/// [`ErrorKind::Ledger`] for such a stream.
pub async fn check_stream_not_emptied(client: &Client, stream: &str) -> Result<()> {
    let Some(WriterBinding { is_alive: false, .. }) =
        read_binding(client, UnloggedWriter::Stream(stream)).await?
    else {
        return Ok(());
    };
    let message = format!(
        "the server has crashed since stream \"{stream}\" wrote to unlogged tables, and has \
         emptied them"
    );
    let name = quote_literal(stream);
    Err(Error::new(ErrorKind::Ledger, message).hint(format!(
        "Fill these tables again from the source. To start the stream again from its beginning, \
         run `delete from pgspate.stream where stream = {name}`. To continue at its position, run \
         `delete from pgspate.bound where stream = {name}`. `alter table ... set logged` makes \
         rows survive a crash."
    )))
}

/// Removes the binding of a stream that starts from its beginning.
pub(super) async fn release_stream(client: &Client, stream: &str) -> Result<()> {
    let sql = format!(
        "delete from pgspate.bound where {}",
        UnloggedWriter::Stream(stream).row_condition()
    );
    client
        .run_statement(&sql, &[])
        .await
        .map(drop)
        .map_err(|error| schema::with_grant_hint(ledger_error()(error)))
}

/// Reads the jobs and streams whose rows a crash has removed, at least in part. Returns none on a
/// standby, which cannot read unlogged tables.
pub(super) async fn emptied_writers(client: &Client) -> Result<(Vec<i64>, Vec<String>)> {
    let sql = "select not pg_is_in_recovery()";
    if !client.fetch_one(sql, &[]).await.map_err(ledger_error())?.get::<_, bool>(0) {
        return Ok((Vec::new(), Vec::new()));
    }
    let sql = "select b.job, b.stream from pgspate.bound b \
               where not exists (select from pgspate.life l where l.life = b.life)";
    let rows = client.fetch_all(sql, &[]).await;
    let rows = rows.map_err(|error| schema::with_grant_hint(ledger_error()(error)))?;
    let jobs = rows.iter().filter_map(|row| row.get(0)).collect();
    Ok((jobs, rows.iter().filter_map(|row| row.get(1)).collect()))
}
