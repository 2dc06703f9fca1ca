//! Jobs and their chunks: opened, sealed chunk by chunk, finished.

use std::collections::HashMap;
use std::fmt::Write as _;

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row};

use super::bound::{self, done_now};
use super::finished::{find_finished, is_void};
use super::identity::{Identity, Likeness};
use super::new::{self, NewRow, begin_unknown};
use super::{Change, change, keys, lock, policies, schema, shadow};
use crate::{Ask, Error, ErrorKind, Parameter, Result, Unlogged, server_error};

/// A job's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobId(pub i64);

/// What a chunk's row says.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seal {
    /// Ordinal of the chunk.
    pub chunk: u64,
    /// Which input it is of.
    pub input: usize,
    /// The byte at which it begins there; the row, for columnar files.
    pub position: u64,
    /// The digest of its content, where it has one.
    pub digest: Option<u128>,
    /// Rows read.
    pub rows_in: u64,
    /// Rows written.
    pub rows_written: u64,
    /// Rows set aside.
    pub rows_rejected: u64,
}

impl JobId {
    /// Writes the rows of chunks; to be run in the transaction that writes the chunks, which fails
    /// if another job has dropped the table's keys. `is_bound`: refused where a crash has emptied
    /// the table meanwhile.
    pub fn seal_sql(self, seals: &[Seal], is_bound: bool) -> String {
        let job = if is_bound { bound::job_sql(self) } else { self.0.to_string() };
        let mut sql = format!(
            "{}; insert into pgspate.ledger \
             (job, chunk, input, position, digest, rows_in, rows_written, rows_rejected) values",
            keys::refuse_sql(self.0)
        );
        for (nth, seal) in seals.iter().enumerate() {
            let comma = if nth == 0 { "" } else { "," };
            let Seal { chunk, input, position, digest, rows_in, rows_written, rows_rejected } =
                seal;
            let digest = digest.map_or("null".to_owned(), |digest| format!("'{digest:032x}'"));
            // Writing to a String cannot fail.
            let _ = write!(
                sql,
                "{comma} ({job}, {chunk}, {input}, {position}, {digest}, {rows_in}, \
                 {rows_written}, {rows_rejected})"
            );
        }
        sql
    }
}

/// Whether the server refused a chunk's row because the chunk is in the ledger already.
pub fn is_taken(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|said| {
        *said.code() == SqlState::UNIQUE_VIOLATION
            && said.schema() == Some("pgspate")
            && matches!(said.table(), Some("ledger" | "reject"))
    })
}

/// The chunks that are written.
#[derive(Debug, Clone, Default)]
pub struct Done {
    seals: HashMap<u64, Seal>,
}

impl Done {
    /// What the ledger says of a chunk, if it is written.
    pub fn get(&self, chunk: u64) -> Option<&Seal> {
        self.seals.get(&chunk)
    }

    /// How many chunks there are.
    pub fn chunks(&self) -> u64 {
        self.seals.len() as u64
    }

    /// Rows that they have written.
    pub fn rows_written(&self) -> u64 {
        self.seals.values().map(|seal| seal.rows_written).sum()
    }

    /// Rows read and set aside: all sums at once.
    pub fn sums(&self) -> Seal {
        let mut sums = Seal { rows_written: self.rows_written(), ..Seal::default() };
        for seal in self.seals.values() {
            sums.rows_in += seal.rows_in;
            sums.rows_rejected += seal.rows_rejected;
        }
        sums
    }
}

/// A job as the ledger has it.
#[derive(Debug, Clone)]
pub struct JobRecord {
    /// Its number.
    pub job: i64,
    /// When it began, in the session's time zone.
    pub started: String,
    /// When it was finished.
    pub finished: Option<String>,
    /// Rows that it wrote, once it is finished.
    pub rows_written: i64,
    /// Rows that it set aside, once it is finished.
    pub rows_rejected: i64,
    pub(super) fingerprint: String,
    pub(super) sources: String,
    pub(super) options: String,
    pub(super) table_oid: u32,
    /// Whether it made its table.
    pub made_table: bool,
    /// Its chunks, where only reading the sources tells that they still hold them.
    pub in_doubt: Option<Done>,
}

/// What the ledger knows of a job before it is opened.
#[derive(Debug, Clone, Default)]
pub enum Found {
    /// Nothing, or nothing that counts any more.
    #[default]
    Nothing,
    /// It is unfinished, with so many chunks and rows in the table.
    Unfinished(JobRecord, u64, u64),
    /// The same sources were loaded with the same options.
    Finished(JobRecord),
    /// They may have been: only reading them tells whether they are the same.
    Alike(JobRecord),
}

/// What comes of opening a job.
#[derive(Debug, Clone)]
pub enum Begun {
    /// It can go on.
    Opened(Opened),
    /// Another run has done it, since this one looked.
    Finished(JobRecord),
}

/// A job that is ready to go on.
#[derive(Debug, Clone)]
pub struct Opened {
    /// Its number in the ledger.
    pub job: JobId,
    /// The chunks that earlier runs have written.
    pub done: Done,
    /// No load has changed anything on the table that is not put back.
    pub is_clean: bool,
    /// A crash of the server takes its rows.
    pub is_bound: bool,
}

const COLUMNS: &str = "job, started::timestamptz(0)::text, finished::timestamptz(0)::text, \
                       rows_written, fingerprint, sources::text, options::text, table_oid, \
                       made_table, rows_rejected";

/// That the table of a job was not emptied since.
const COUNTS: &str = "\
not exists (select from pgspate.emptied e where e.table_oid = job.table_oid and e.upto >= job.job \
              and e.but <> job.job)";

/// Looks the job up; changes nothing.
///
/// # Errors
/// Of [`ErrorKind::Ledger`] when an unfinished job's sources or options have changed, unless
/// `restart`.
pub async fn find(client: &Client, identity: &Identity, restart: bool) -> Result<Found> {
    match restart || !schema::exists(client).await? {
        true => Ok(Found::Nothing),
        false => find_in(client, identity).await,
    }
}

/// The same in a ledger that is there.
async fn find_in(client: &Client, identity: &Identity) -> Result<Found> {
    let (key, fingerprint) = (identity.key(), identity.fingerprint());
    let sql = format!(
        "select {COLUMNS} from pgspate.job where key = $1 and {COUNTS} \
         order by finished is not null, fingerprint <> $2, job desc limit {JOBS_MAX}"
    );
    let rows = client.ask_all(&sql, &[&key, &fingerprint]).await.map_err(failed())?;
    let mut records: Vec<JobRecord> = rows.iter().map(record).collect();
    if records.first().is_none_or(|first| first.finished.is_some()) {
        return find_finished(client, identity, records).await;
    }
    let mut record = records.swap_remove(0);
    let job = JobId(record.job);
    let has_shadow = shadow::state(client, job).await?.is_some();
    if identity.in_shadow || has_shadow {
        // Nothing of it is in the table, so that it can as well begin anew.
        let is_same = record.fingerprint == fingerprint
            && record.table_oid == identity.table_oid
            && identity.likeness(&record.sources, &record.options) == Likeness::Same;
        if !(identity.in_shadow && has_shadow && is_same) {
            return Ok(Found::Nothing);
        }
        let done = done_now(client, job, identity).await?;
        return Ok(Found::Unfinished(record, done.chunks(), done.rows_written()));
    }
    if identity.replaces() {
        // It was one transaction, which came to nothing or to its end.
        return Ok(Found::Nothing);
    }
    let done = read_done(client, job).await?;
    let is_another = record.table_oid != identity.table_oid;
    if done.rows_written() > 0 && (is_another || is_void(client, identity).await?) {
        return Ok(Found::Nothing);
    }
    let done = match is_another || done.chunks() == 0 {
        true => done,
        false => done_now(client, job, identity).await?,
    };
    let is_same = record.fingerprint == fingerprint;
    if !is_same && done.chunks() == 0 {
        return Ok(Found::Nothing);
    }
    let (chunks, rows) = (done.chunks(), done.rows_written());
    match identity.likeness(&record.sources, &record.options) {
        _ if chunks == 0 => {}
        Likeness::Same if is_same => {}
        Likeness::Another => return Err(identity.refuse_changed(&record, rows)),
        Likeness::Same | Likeness::Unsure => record.in_doubt = Some(done),
    }
    Ok(Found::Unfinished(record, chunks, rows))
}

/// How many jobs about the same sources are looked at.
const JOBS_MAX: u32 = 20;

/// What the ledger knows before a load begins.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// There is one.
    pub is_there: bool,
    /// What it has of these sources.
    pub found: Found,
    /// What earlier loads have changed on the table and not put back.
    pub left: Vec<Change>,
    /// Jobs that were finished, and have loaded something else from the same names.
    pub others: Vec<i64>,
    /// An earlier run, which was not finished, has made the table.
    pub made_table: bool,
}

impl Known {
    /// Asks the ledger, if it `is_there`: in one round trip where it knows nothing.
    ///
    /// # Errors
    /// As [`find`].
    pub async fn ask(
        client: &Client,
        is_there: bool,
        identity: &Identity,
        restart: bool,
    ) -> Result<Known> {
        if !is_there {
            return Ok(Known::default());
        }
        let find = async {
            match restart {
                true => Ok(Found::Nothing),
                false => find_in(client, identity).await,
            }
        };
        let has_made = async {
            let sql = "select exists (select from pgspate.job where key = $1 and table_oid = $2 \
                       and made_table and finished is null)";
            let row = client.ask_one(sql, &[&identity.key(), &identity.table_oid]).await;
            row.map(|row| row.get(0)).map_err(|error| schema::refused(failed()(error)))
        };
        let (version, found, is_left, has_made) = tokio::join!(
            biased;
            schema::check_version(client),
            find,
            change::is_left_on(client, identity.table_oid),
            has_made
        );
        version?;
        let found = match found {
            // The ledger was brought up to this version meanwhile.
            Err(error) if error.sqlstate() == Some(&SqlState::UNDEFINED_COLUMN) => {
                find_in(client, identity).await
            }
            found => found,
        };
        let (found, is_left) = (found?, is_left?);
        let left = match is_left {
            true => change::outstanding_on(client, identity.table_oid).await?,
            false => Vec::new(),
        };
        Ok(Known { is_there, found, left, others: Vec::new(), made_table: has_made? })
    }
}

/// Makes the ledger if need be, takes the job's lock, and gives the job: the unfinished one with
/// the chunks that it has, or a new one. `known` is what the ledger knew before.
///
/// # Errors
/// As [`find`]; when another session works on the job; or when the role may not write the ledger.
pub async fn open(
    client: &Client,
    identity: &Identity,
    known: &Known,
    restart: bool,
    made_table: bool,
) -> Result<Begun> {
    if known.is_there
        && matches!(known.found, Found::Nothing)
        && let Some(opened) = begin_unknown(client, identity, made_table).await?
    {
        return bind(client, identity, opened).await.map(Begun::Opened);
    }
    schema::ensure(client).await?;
    lock::hold(client, identity.lock_key()).await?;
    lock::outlast_lanes(client, identity.lock_key()).await?;
    check_role(client, identity).await?;
    match find(client, identity, restart).await? {
        Found::Nothing => {}
        // That it is something else was found by reading it.
        Found::Alike(record) if known.others.contains(&record.job) => {}
        Found::Unfinished(record, ..) => {
            let job = JobId(record.job);
            // Forgets chunks whose rows a crash has taken.
            let is_bound = bound::bind_job(client, job, identity).await?;
            if is_bound {
                bound::begin_over(client, job, identity).await?;
            }
            let done = read_done(client, job).await?;
            return Ok(Begun::Opened(Opened { job, done, is_clean: false, is_bound }));
        }
        Found::Finished(record) | Found::Alike(record) => {
            return Ok(Begun::Finished(record));
        }
    }
    drop_shadow(client, identity).await?;
    prune(client).await?;
    let job = match leaves_changes(client, identity).await? {
        false => begin(client, identity, made_table).await?,
        true => begin_in_place(client, identity, made_table).await?,
    };
    let opened = Opened { job, done: Done::default(), is_clean: false, is_bound: false };
    bind(client, identity, opened).await.map(Begun::Opened)
}

/// Refuses to go on with, or to forget, an unfinished job of a role that this one is no member of.
async fn check_role(client: &Client, identity: &Identity) -> Result<()> {
    let sql = format!(
        "select job, role::text from pgspate.job \
         where key = $1 and finished is null and not {}",
        policies::IS_OURS
    );
    let Some(row) = client.ask_opt(&sql, &[&identity.key()]).await.map_err(failed())? else {
        return Ok(());
    };
    let (job, role): (i64, &str) = (row.get(0), row.get(1));
    let message = format!("this load is job {job} of role \"{role}\", which has not finished it");
    Err(Error::new(ErrorKind::Ledger, message).hint(format!(
        "Run it as \"{role}\", or as a member of that role. Or have that role run `pgspate status \
         --forget {job}`."
    )))
}

/// Binds a new job whose rows a crash would take.
async fn bind(client: &Client, identity: &Identity, opened: Opened) -> Result<Opened> {
    let is_bound =
        identity.unlogged != Unlogged::No && bound::bind_job(client, opened.job, identity).await?;
    Ok(Opened { is_bound, ..opened })
}

/// Drops the shadow table of an unfinished job that no longer counts.
async fn drop_shadow(client: &Client, identity: &Identity) -> Result<()> {
    let sql = "select job from pgspate.job where key = $1 and finished is null";
    for row in client.ask_all(sql, &[&identity.key()]).await.map_err(failed())? {
        shadow::drop(client, JobId(row.get(0))).await?;
    }
    Ok(())
}

/// Whether an unfinished job, that no longer counts, has changed a table and not put it back.
async fn leaves_changes(client: &Client, identity: &Identity) -> Result<bool> {
    let sql = "select exists (select from pgspate.job join pgspate.change using (job) \
               where key = $1 and finished is null and done < cardinality(steps))";
    Ok(client.ask_one(sql, &[&identity.key()]).await.map_err(failed())?.get(0))
}

/// Begins a job in the place of one with changes: at no time nobody has them.
async fn begin_in_place(client: &Client, identity: &Identity, made_table: bool) -> Result<JobId> {
    client.batch_execute("begin").await.map_err(failed())?;
    let begun = begin(client, identity, made_table).await;
    let end = if begun.is_ok() { "commit" } else { "rollback" };
    let ended = client.batch_execute(end).await.map_err(failed());
    let job = begun?;
    ended.map(|()| job)
}

/// Begins a job. An unfinished one that no longer counts is forgotten, but not how to put back
/// what it has changed on its table.
async fn begin(client: &Client, identity: &Identity, made_table: bool) -> Result<JobId> {
    let refused = |error| schema::refused(failed()(error));
    let sql = "with gone as (delete from pgspate.job where key = $1 and finished is null \
                             returning job), \
                    rejects as (delete from pgspate.reject using gone \
                                where reject.job = gone.job), \
                    chunks as (delete from pgspate.ledger using gone where ledger.job = gone.job) \
               select job from gone";
    let gone = client.ask_all(sql, &[&identity.key()]).await.map_err(refused)?;
    let gone: Vec<i64> = gone.iter().map(|row| row.get(0)).collect();
    let row = NewRow::of(identity, made_table);
    let row = client.ask_one(&new::insert_sql(), &row.values()).await;
    let row = row.map_err(refused)?;
    let job: i64 = row.get(0);
    if !gone.is_empty() {
        let sql = "update pgspate.change set job = $1 where job = any($2)";
        client.tell(sql, &[&job, &gone]).await.map_err(refused)?;
    }
    Ok(JobId(job))
}

/// Drops the chunks, rejects and changes of jobs that were finished long ago; the jobs stay, and
/// so do changes that are not put back.
pub(super) async fn prune(client: &Client) -> Result<()> {
    let sql = "with old as (select job from pgspate.job \
                            where finished < now() - interval '7 days'), \
                    chunks as (delete from pgspate.ledger using old where ledger.job = old.job), \
                    rejects as (delete from pgspate.reject using old where reject.job = old.job) \
               delete from pgspate.change using old \
               where change.job = old.job and change.done >= cardinality(change.steps)";
    let pruned = client.tell(sql, &[]).await;
    pruned.map(drop).map_err(|error| schema::refused(failed()(error)))
}

/// The chunks of a job that was opened which are written by now.
///
/// # Errors
/// Of [`ErrorKind::Ledger`] when another session has forgotten the job: nothing tells then which of
/// its rows are in the table.
pub async fn reread_done(client: &Client, job: JobId) -> Result<Done> {
    let sql = "select exists (select from pgspate.job where job = $1)";
    // Chunks first: they are not forgotten after the job.
    let done = read_done(client, job).await?;
    if client.ask_one(sql, &[&job.0]).await.map_err(failed())?.get(0) {
        return Ok(done);
    }
    let message = format!("job {} is not in the ledger any more", job.0);
    Err(Error::new(ErrorKind::Ledger, message).hint(
        "Another session has forgotten it while this load was away. Look which of its rows are in \
         the table before you run the same command again: that begins anew.",
    ))
}

/// The chunks of a job that are written.
pub async fn read_done(client: &Client, job: JobId) -> Result<Done> {
    let sql = "select chunk, input, position, rows_in, rows_written, rows_rejected, digest \
               from pgspate.ledger where job = $1";
    let rows = client.ask_all(sql, &[&job.0]).await.map_err(failed())?;
    let seals = rows.iter().map(seal).map(|seal| (seal.chunk, seal));
    Ok(Done { seals: seals.collect() })
}

/// Says that every chunk is written, durably. Their rows stay for a while: a session that is cut
/// off from us may still try to write one of them, and must find that it is there.
///
/// Nothing is said where the ledger does not have the chunks that it should have, or a crash has
/// taken the rows of a job that `is_bound`.
///
/// # Errors
/// When the ledger cannot be written.
pub async fn finish(
    client: &Client,
    job: JobId,
    chunks: u64,
    identity: &Identity,
    is_bound: bool,
) -> Result<Option<Seal>> {
    let is_there = if is_bound { bound::job_sql(job) } else { "0".to_owned() };
    let sql = format!(
        "with sums as ( \
                   select count(*) as chunks, coalesce(sum(rows_in), 0)::bigint as rows_in, \
                          coalesce(sum(rows_written), 0)::bigint as rows_written, \
                          coalesce(sum(rows_rejected), 0)::bigint as rows_rejected \
                   from pgspate.ledger where job = $1) \
               update pgspate.job set finished = coalesce(finished, clock_timestamp()), \
                      fingerprint = $3, sources = $4::jsonb, \
                      chunks = sums.chunks, rows_in = sums.rows_in, \
                      rows_written = sums.rows_written, rows_rejected = sums.rows_rejected \
               from sums where job = $1 and sums.chunks = $2 and {is_there} is not null \
               returning sums.rows_in, sums.rows_written, sums.rows_rejected"
    );
    let expected = chunks.cast_signed();
    let (fingerprint, sources) = (identity.fingerprint(), identity.sources_json());
    let values: [&dyn Parameter; 4] = [&job.0, &expected, &fingerprint, &sources];
    let row = client.ask_opt(&sql, &values).await.map_err(failed())?;
    let Some(row) = row else { return Ok(None) };
    let number = |nth: usize| row.get::<_, i64>(nth).cast_unsigned();
    let (rows_in, rows_written, rows_rejected) = (number(0), number(1), number(2));
    Ok(Some(Seal { rows_in, rows_written, rows_rejected, ..Seal::default() }))
}

/// Whether the job is finished.
pub async fn is_finished(client: &Client, job: JobId) -> Result<bool> {
    let sql = "select exists (select from pgspate.job where job = $1 and finished is not null)";
    Ok(client.ask_one(sql, &[&job.0]).await.map_err(failed())?.get(0))
}

/// Notes that the job's rows are in a table of another oid now; to be run in the transaction that
/// gives that table its name.
pub async fn move_to(client: &Client, job: JobId, table_oid: u32) -> Result<()> {
    let sql = "update pgspate.job set table_oid = $2 where job = $1";
    client.tell(sql, &[&job.0, &table_oid]).await.map(drop).map_err(failed())
}

pub(super) fn failed() -> impl FnOnce(tokio_postgres::Error) -> Error {
    server_error("could not use the ledger, schema \"pgspate\"".to_owned())
}

fn record(row: &Row) -> JobRecord {
    JobRecord {
        job: row.get(0),
        started: row.get(1),
        finished: row.get(2),
        rows_written: row.get(3),
        fingerprint: row.get(4),
        sources: row.get(5),
        options: row.get(6),
        table_oid: row.get(7),
        made_table: row.get(8),
        rows_rejected: row.get(9),
        in_doubt: None,
    }
}

fn seal(row: &Row) -> Seal {
    let number = |nth: usize| row.get::<_, i64>(nth).cast_unsigned();
    Seal {
        chunk: number(0),
        input: usize::try_from(row.get::<_, i32>(1)).unwrap_or_default(),
        position: number(2),
        rows_in: number(3),
        rows_written: number(4),
        rows_rejected: number(5),
        digest: row
            .get::<_, Option<&str>>(6)
            .and_then(|digits| u128::from_str_radix(digits, 16).ok()),
    }
}
