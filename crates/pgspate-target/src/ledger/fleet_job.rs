//! Jobs of distributed engines such as Spark: one write by many processes, visible at once.
//!
//! Each attempt writes its rows into the job's stage in one transaction. The last statement of that
//! transaction seals the attempt: it inserts the attempt's row into `pgspate.part`. The seal needs
//! the job's current fence, so no attempt of an earlier run of the driver can seal. The rows of an
//! attempt are recognised by the number of its transaction.

use std::hash::{BuildHasher, RandomState};

use tokio_postgres::{Client, Row};

use super::fleet_stage::{create_run_stage, drop_old_stages};
use super::identity::{digest_texts, lock_key};
use super::job::{JobId, ledger_error};
use super::{emptied, fleet_epoch, lock, schema, trust};
use crate::{Error, ErrorKind, Result, TypedParameter, TypedQuery, quote_literal};
use pgspate_base::numbers::counted;

/// Creates the tables for jobs of distributed engines such as Spark.
///
/// - `fleet_job` has the state of a job in `pgspate.job` with the command `fleet`.
///   `fleet_job.fence` counts the runs of the driver, from a random number on: a ledger that is
///   created again or restored gives the same numbers to other jobs.
/// - `part` has a row for each sealed attempt. `part.xid` is the number of its transaction.
pub(super) const CREATE_TABLES: &str = "\
create table pgspate.fleet_job (
    job bigint primary key references pgspate.job on delete cascade,
    name text,
    fence bigint not null default 1,
    report text);
create table pgspate.part (
    job bigint not null references pgspate.fleet_job on delete cascade,
    part bigint not null,
    xid bigint not null,
    columns text[] not null,
    rows bigint not null,
    sealed timestamptz not null default clock_timestamp(),
    primary key (job, xid))";

/// Policies of these tables. All roles can see jobs, and only the role of a job can work on it.
pub(super) const POLICIES: &str = "\
alter table pgspate.fleet_job enable row level security;
create policy look on pgspate.fleet_job for select using (true);
create policy work on pgspate.fleet_job using (exists (
    select from pgspate.job where job.job = fleet_job.job and IS_OURS));
alter table pgspate.part enable row level security;
create policy work on pgspate.part using (exists (
    select from pgspate.job where job.job = part.job and IS_OURS))";

/// The bits of a fence that count runs of the driver. The bits above are random, and the same in
/// all runs of a job. All together fit into the numbers of JSON.
const RUN_BITS: u32 = 20;
const RANDOM_BITS: u32 = 31;

/// A job to begin, or to begin again.
#[derive(Debug, Clone, Copy)]
pub struct NewFleetJob<'a> {
    /// The name by which a rerun of the driver finds the job; `None` for a job of its own.
    pub name: Option<&'a str>,
    /// The table's oid.
    pub table_oid: u32,
    /// The table's name in SQL.
    pub table: &'a str,
    /// The job's options as JSON. A rerun of the driver must have the same.
    pub options: &'a str,
    /// Where attempts write.
    pub destination: FleetDestination,
    /// Whether the stage has the column [`ATTEMPT_COLUMN`](super::ATTEMPT_COLUMN).
    pub marks_attempts: bool,
}

/// The table that attempts write to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FleetDestination {
    /// A stage, which is created with the job.
    Stage,
    /// A table that the caller creates after the job has begun: a shadow, or a stage by
    /// [`create_job_stage`](super::create_job_stage).
    CreatedLater,
    /// The table itself.
    Table {
        /// Whether a rerun keeps the parts that are written already.
        keeps_parts: bool,
    },
}

/// A job that a driver has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BegunFleetJob {
    /// The job's number.
    pub job: i64,
    /// The number of the driver's run.
    pub fence: i64,
    /// Whether an earlier run has completed the job.
    pub is_complete: bool,
}

impl BegunFleetJob {
    /// Returns the fence of the driver's first run.
    pub(super) fn first_fence(&self) -> i64 {
        self.fence >> RUN_BITS << RUN_BITS
    }

    /// Returns whether `fence` is that of a run of the same job, and not of another job that has
    /// the same number.
    pub fn is_job_of(&self, fence: i64) -> bool {
        fence >> RUN_BITS == self.fence >> RUN_BITS
    }
}

/// A sealed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedPart {
    /// The part that the attempt wrote.
    pub part: i64,
    /// The number of its transaction.
    pub xid: i64,
    /// The columns that it wrote.
    pub columns: Vec<String>,
    /// Its rows.
    pub rows: i64,
}

impl SealedPart {
    /// Reads the columns `part`, `xid`, `columns`, `rows`.
    fn of_row(row: &Row) -> SealedPart {
        SealedPart { part: row.get(0), xid: row.get(1), columns: row.get(2), rows: row.get(3) }
    }
}

/// The state of a job, whose row is locked until the transaction ends.
#[derive(Debug, Clone)]
pub struct LockedFleetJob {
    /// The number of the driver's latest run.
    pub fence: i64,
    /// The report, if the job is complete.
    pub report: Option<String>,
    /// The table's current name in SQL; `None` if the table was dropped.
    pub table: Option<String>,
    /// The table's oid.
    pub table_oid: u32,
}

/// Begins a job, or raises the fence of an unfinished job of that name and begins it again. Creates
/// the stage in the same transaction. Returns a warning, too, if rows of an earlier run were
/// removed.
///
/// # Errors
/// [`ErrorKind::Ledger`] if the job of that name belongs to an untrusted role, or writes another
/// table. [`ErrorKind::Server`] if the ledger cannot be written or the stage cannot be created.
pub async fn begin_fleet_job(client: &Client, new: NewFleetJob<'_>) -> Result<JobAndWarning> {
    schema::ensure_ledger(client).await?;
    let (begun, warning) = in_transaction(client, begin_in_transaction(client, new)).await?;
    if begun.fence > begun.first_fence() && !begun.is_complete {
        drop_old_stages(client, &begun).await;
    }
    Ok((begun, warning))
}

/// A job that has begun, and what the user should know.
pub type JobAndWarning = (BegunFleetJob, Option<String>);

/// Does `work` in a transaction.
pub(super) async fn in_transaction<T>(
    client: &Client,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let begin = "begin isolation level read committed";
    client.batch_execute(begin).await.map_err(ledger_error())?;
    let done = work.await;
    let end = if done.is_ok() { "commit" } else { "rollback" };
    let ended = client.batch_execute(end).await.map_err(ledger_error());
    let done = done?;
    ended.map(|()| done)
}

async fn begin_in_transaction(client: &Client, new: NewFleetJob<'_>) -> Result<JobAndWarning> {
    let key = match new.name {
        Some(name) => digest_texts(["fleet job", name]),
        None => {
            let sql = "select gen_random_uuid()::text";
            let row = client.fetch_one(sql, &[]).await.map_err(ledger_error())?;
            digest_texts(["fleet job without a name", row.get(0)])
        }
    };
    lock_for_begin(client, &key).await?;
    match begin_again(client, &key, new).await? {
        FoundFleetJob::Begun(begun) => Ok((begun, None)),
        FoundFleetJob::New(warning) => {
            insert_job(client, &key, new).await.map(|begun| (begun, warning))
        }
    }
}

/// Lets one session at a time begin the job of this key, until the transaction ends.
pub(super) async fn lock_for_begin(client: &Client, key: &str) -> Result<()> {
    let lock = "select pg_advisory_xact_lock($1)";
    let locked = client.fetch_one(lock, &[&lock_key(key)]).await;
    locked.map(drop).map_err(ledger_error())
}

/// Inserts a job with this key, and creates its stage.
pub(super) async fn insert_job(
    client: &Client,
    key: &str,
    new: NewFleetJob<'_>,
) -> Result<BegunFleetJob> {
    let refused = |error| schema::with_grant_hint(ledger_error()(error));
    let sql = "insert into pgspate.job \
               (key, fingerprint, command, table_oid, table_name, made_table, options) \
               values ($1, $1, 'fleet', $2, $3, false, $4::text::jsonb) returning job";
    let values: [&dyn TypedParameter; 4] = [&key, &new.table_oid, &new.table, &new.options];
    let job: i64 = client.fetch_one(sql, &values).await.map_err(refused)?.get(0);
    let sql = "insert into pgspate.fleet_job (job, name, fence) values ($1, $2, $3)";
    let name = new.name.map(str::to_owned);
    let random = RandomState::new().hash_one(job) >> (u64::BITS - RANDOM_BITS);
    let fence = random.cast_signed() << RUN_BITS;
    client.run_statement(sql, &[&job, &name, &fence]).await.map_err(refused)?;
    if new.destination == FleetDestination::Stage {
        create_run_stage(client, job, fence, new).await?;
    }
    Ok(BegunFleetJob { job, fence, is_complete: false })
}

/// The job of a name in the ledger.
enum FoundFleetJob {
    /// The job is begun again.
    Begun(BegunFleetJob),
    /// The job is to be created. With a warning if rows of an earlier job were removed.
    New(Option<String>),
}

/// Begins the job of this key again, if there is one.
async fn begin_again(client: &Client, key: &str, new: NewFleetJob<'_>) -> Result<FoundFleetJob> {
    let name = new.name.unwrap_or_default();
    check_trusted(client, key, name).await?;
    // A statement that has waited for a lock sees other rows as they were before. So the next
    // statement reads them.
    let lock = "select from pgspate.fleet_job f join pgspate.job j on j.job = f.job \
                where j.key = $1 order by j.job desc limit 1 for update of f";
    client.fetch_opt(lock, &[&key]).await.map_err(ledger_error())?;
    let sql = "select f.job, f.fence, j.finished is not null, j.table_oid, j.table_name, \
                      j.options = $2::text::jsonb, \
                      (select count(*) from pgspate.part p where p.job = f.job), \
                      IS_EMPTIED, \
                      exists (select from pgspate.part p where p.job = f.job and p.rows > 0) \
               from pgspate.job j join pgspate.fleet_job f on f.job = j.job where j.key = $1 \
               order by j.job desc limit 1"
        .replace("IS_EMPTIED", &emptied::is_emptied_sql("j.table_oid", "j.job"));
    let row = client.fetch_opt(&sql, &[&key, &new.options]).await.map_err(ledger_error())?;
    let Some(row) = row else { return Ok(FoundFleetJob::New(None)) };
    let (job, fence, is_complete): (i64, i64, bool) = (row.get(0), row.get(1), row.get(2));
    if row.get::<_, u32>(3) != new.table_oid {
        return Err(other_table_error(job, name, row.get(4)));
    }
    if is_complete {
        return Ok(FoundFleetJob::Begun(BegunFleetJob { job, fence, is_complete }));
    }
    if !row.get::<_, bool>(5) {
        return Err(other_options_error(job, name));
    }
    let (written, is_emptied): (i64, bool) = (row.get(6), row.get(7));
    let is_visible = matches!(new.destination, FleetDestination::Table { .. });
    if is_visible && (is_emptied || written > 0) {
        // An empty table proves nothing if no part had rows.
        let needs_rows = is_emptied || row.get(8);
        if written == 0 || (needs_rows && is_empty(client, new).await?) {
            // A new job has a number above those that do not count.
            let sql = "with rejects as (delete from pgspate.reject where job = $1) \
                       delete from pgspate.job where job = $1";
            client.run_statement(sql, &[&job]).await.map_err(ledger_error())?;
            let warning = (written > 0).then(|| lost_parts_warning(name, written));
            return Ok(FoundFleetJob::New(warning));
        }
        if is_emptied {
            return Err(emptied_meanwhile_error(job, name));
        }
    }
    let keeps_parts = new.destination == FleetDestination::Table { keeps_parts: true };
    if new.destination == (FleetDestination::Table { keeps_parts: false }) && written > 0 {
        let parts = counted(written.unsigned_abs(), "part");
        let message = format!("an earlier run of job \"{name}\" has written {parts} to the table");
        return Err(Error::new(ErrorKind::Ledger, message).hint(format!(
            "If each part has the same rows in every run, begin the job with `stable_parts=True`: \
             these parts are not written again. If not, delete the rows and run `pgspate status \
             --forget {job}`."
        )));
    }
    let sql = "with parts as (delete from pgspate.part where job = $1 and not $2) \
               update pgspate.fleet_job set fence = fence + 1 where job = $1";
    client.run_statement(sql, &[&job, &keeps_parts]).await.map_err(ledger_error())?;
    if new.destination == FleetDestination::Stage {
        create_run_stage(client, job, fence + 1, new).await?;
    }
    Ok(FoundFleetJob::Begun(BegunFleetJob { job, fence: fence + 1, is_complete }))
}

/// Returns the warning of parts whose rows were removed.
fn lost_parts_warning(name: &str, written: i64) -> String {
    let parts = counted(written.unsigned_abs(), "part");
    let (were, they_are) = if written == 1 { ("was", "it is") } else { ("were", "they are") };
    format!(
        "{parts} of job \"{name}\" {were} written by an earlier run, but the table is empty; \
         {they_are} written again"
    )
}

/// Returns whether the job's table is empty, in the open transaction, so that written rows were
/// removed. False if this role cannot see all rows, or if the table is locked. Also if a trigger
/// may have put the rows into another table.
async fn is_empty(client: &Client, new: NewFleetJob<'_>) -> Result<bool> {
    let begin = "savepoint pgspate_look; set local lock_timeout = '1s'";
    client.batch_execute(begin).await.map_err(ledger_error())?;
    let look = format!(
        "select not pg_catalog.row_security_active($1::oid) and not exists (select from {}) \
         and exists (select from pg_catalog.pg_class where oid operator(pg_catalog.=) $1 \
                     and relkind operator(pg_catalog.=) any ('{{r,p}}'::\"char\"[])) \
         and not exists (\
             select from pg_catalog.pg_trigger where not tgisinternal \
               and (tgrelid operator(pg_catalog.=) $1 or tgrelid operator(pg_catalog.=) any (\
                    select relid::oid from pg_catalog.pg_partition_tree($1::oid::regclass))) \
               and (tgtype::int4 operator(pg_catalog.&) 1) operator(pg_catalog.<>) 0)",
        new.table
    );
    let empty = client.fetch_one(&look, &[&new.table_oid]).await;
    let end = "rollback to savepoint pgspate_look";
    client.batch_execute(end).await.map_err(ledger_error())?;
    Ok(empty.is_ok_and(|row| row.get(0)))
}

/// Refuses a job of this key that belongs to an untrusted role.
pub(super) async fn check_trusted(client: &Client, key: &str, name: &str) -> Result<()> {
    let rows = format!("pgspate.job where key = {}", quote_literal(key));
    match trust::untrusted_role(client, &rows).await? {
        None => Ok(()),
        Some(role) => {
            let message = format!("job \"{name}\" belongs to role \"{role}\"");
            Err(Error::new(ErrorKind::Ledger, message).hint("Choose another name."))
        }
    }
}

/// Returns the error of a job that writes another table.
pub(super) fn other_table_error(job: i64, name: &str, table: &str) -> Error {
    let message = format!("job \"{name}\" is job {job}, which writes {table}");
    Error::new(ErrorKind::Ledger, message).hint(format!(
        "Choose another name for another table. If the table was created again, without the job's \
         rows, run `pgspate status --forget {job}`."
    ))
}

/// Returns the error of a job that an earlier run has begun with other options.
pub(super) fn other_options_error(job: i64, name: &str) -> Error {
    let message = format!("job \"{name}\" is job {job}, which was begun with other options");
    Error::new(ErrorKind::Ledger, message).hint(format!(
        "Begin it with the same options, or run `pgspate status --forget {job}` first."
    ))
}

/// Returns the error of a job that has parts, in a table that was emptied after the job began.
fn emptied_meanwhile_error(job: i64, name: &str) -> Error {
    let message = format!(
        "the table was emptied while job \"{name}\" wrote to it: some of its parts may be gone"
    );
    Error::new(ErrorKind::Ledger, message).hint(format!(
        "Delete the rows of job {job} that are left, and run `pgspate status --forget {job}`."
    ))
}

/// Locks the job's row in the open transaction. Returns whether this run of the driver is the
/// latest, and the job is not complete.
///
/// # Errors
/// [`ErrorKind::Server`] if the ledger cannot be read, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn lock_fence(client: &Client, begun: &BegunFleetJob) -> Result<bool> {
    let sql = "select from pgspate.fleet_job \
               where job = $1 and fence = $2 and report is null for update";
    let row = client.fetch_opt(sql, &[&begun.job, &begun.fence]).await.map_err(ledger_error())?;
    Ok(row.is_some())
}

/// What an attempt has written.
#[derive(Debug, Clone, Copy)]
pub struct NewPart<'a> {
    /// The number of the part.
    pub part: i64,
    /// The names of the written columns.
    pub columns: &'a [String],
    /// The condition that these columns have the types that their values are encoded for.
    pub has_types_sql: &'a str,
    /// Rows written.
    pub rows: i64,
}

/// Seals an attempt in its open transaction. Returns the number of the transaction, or `None` if
/// the fence is no longer that of `begun` or the job has ended. Also if the attempt `is_visible`,
/// because it has written to the job's table, and the table was emptied since the job began. Also
/// if a column has another type than the rows are encoded for. The user's search path may be set,
/// so operators are qualified.
///
/// # Errors
/// [`ErrorKind::Server`] if the ledger cannot be written, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn seal_part(
    client: &Client,
    begun: &BegunFleetJob,
    new: NewPart<'_>,
    is_visible: bool,
) -> Result<Option<i64>> {
    let NewPart { part, columns, has_types_sql, rows } = new;
    let sql = "insert into pgspate.part (job, part, xid, columns, rows) \
               select f.job, $3, pg_catalog.txid_current(), $4, $5 from pgspate.fleet_job f \
               where f.job operator(pg_catalog.=) $1 and f.fence operator(pg_catalog.=) $2 \
                 and f.report is null and HAS_TYPES \
                 and not ($6 and exists (select from pgspate.job j \
                          where j.job operator(pg_catalog.=) f.job and IS_EMPTIED)) for key share \
               returning xid"
        .replace("IS_EMPTIED", &emptied::is_emptied_sql("j.table_oid", "j.job"))
        .replace("HAS_TYPES", has_types_sql);
    let columns = columns.to_vec();
    let values: [&dyn TypedParameter; 6] =
        [&begun.job, &begun.fence, &part, &columns, &rows, &is_visible];
    let row = client.fetch_opt(&sql, &values).await.map_err(ledger_error())?;
    Ok(row.map(|row| row.get(0)))
}

/// Returns whether the job's table was emptied since the job began, so that its parts were removed.
/// The user's search path may be set, so operators are qualified.
///
/// # Errors
/// [`ErrorKind::Server`] if the ledger cannot be read, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn is_fleet_job_emptied(client: &Client, job: i64) -> Result<bool> {
    let sql = "select exists (select from pgspate.job j \
                              where j.job operator(pg_catalog.=) $1 and IS_EMPTIED)"
        .replace("IS_EMPTIED", &emptied::is_emptied_sql("j.table_oid", "j.job"));
    let row = client.fetch_one(&sql, &[&job]).await.map_err(ledger_error())?;
    Ok(row.get(0))
}

/// Returns the sealed attempt of a part, in a job whose tasks write to the table. The attempts of a
/// part wait here for each other until the end of their transactions. The user's search path may be
/// set, so operators are qualified.
///
/// # Errors
/// [`ErrorKind::Server`] if the ledger cannot be read, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn find_part(
    client: &Client,
    begun: &BegunFleetJob,
    part: i64,
) -> Result<Option<SealedPart>> {
    let job = begun.job;
    let key = lock_key(&digest_texts(["fleet part", &job.to_string(), &part.to_string()]));
    let lock = "select pg_catalog.pg_advisory_xact_lock($1)";
    client.fetch_one(lock, &[&key]).await.map_err(ledger_error())?;
    let sql = "select p.part, p.xid, p.columns, p.rows, f.fence \
               from pgspate.part p join pgspate.fleet_job f on f.job operator(pg_catalog.=) p.job \
               where p.job operator(pg_catalog.=) $1 and p.part operator(pg_catalog.=) $2";
    let row = client.fetch_opt(sql, &[&job, &part]).await.map_err(ledger_error())?;
    let row = row.filter(|row| begun.is_job_of(row.get(4)));
    Ok(row.as_ref().map(SealedPart::of_row))
}

/// Takes one of the slots that limit the connections of a job's tasks. The session holds the slot
/// until it ends. Returns false if all slots are taken.
///
/// # Errors
/// [`ErrorKind::Server`] if the lock cannot be tried, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn take_job_slot(client: &Client, job: i64, slots: u32) -> Result<bool> {
    lock::take_slot(client, &digest_texts(["fleet job slot", &job.to_string()]), slots).await
}

/// Returns whether the attempt of a part with this transaction is sealed. The caller has lost the
/// answer to its commit. `None` if the transaction is still in progress.
///
/// # Errors
/// [`ErrorKind::Server`] if the ledger cannot be read, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn is_part_sealed(client: &Client, [job, part, xid]: [i64; 3]) -> Result<Option<bool>> {
    let sql = "select txid_status($1) is not distinct from 'in progress'";
    if client.fetch_one(sql, &[&xid]).await.map_err(ledger_error())?.get(0) {
        return Ok(None);
    }
    let sql = "select exists (select from pgspate.part where job = $1 and part = $2 and xid = $3)";
    let row = client.fetch_one(sql, &[&job, &part, &xid]).await.map_err(ledger_error())?;
    Ok(Some(row.get(0)))
}

/// Returns whether attempts of this run of the driver can still be sealed: the job exists, is not
/// complete, and was not begun again.
///
/// # Errors
/// [`ErrorKind::Server`] if the ledger cannot be read, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn is_fleet_job_open(client: &Client, begun: &BegunFleetJob) -> Result<bool> {
    let sql = "select exists (select from pgspate.fleet_job \
                              where job = $1 and fence = $2 and report is null)";
    let row = client.fetch_one(sql, &[&begun.job, &begun.fence]).await.map_err(ledger_error())?;
    Ok(row.get(0))
}

/// Locks the job's row in the open transaction. Waits for attempts that are sealing, and holds
/// later ones off. Returns `None` if the job does not exist. The user's search path may be set, so
/// operators are qualified.
///
/// # Errors
/// [`ErrorKind::Server`] if the ledger cannot be read, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn lock_fleet_job(client: &Client, job: i64) -> Result<Option<LockedFleetJob>> {
    let sql = "select f.fence, f.report, \
                      (select pg_catalog.format('%I.%I', n.nspname, c.relname) \
                       from pg_catalog.pg_class c join pg_catalog.pg_namespace n \
                       on n.oid operator(pg_catalog.=) c.relnamespace \
                       where c.oid operator(pg_catalog.=) j.table_oid), j.table_oid \
               from pgspate.fleet_job f join pgspate.job j on j.job operator(pg_catalog.=) f.job \
               where f.job operator(pg_catalog.=) $1 for update of f";
    let row = client.fetch_opt(sql, &[&job]).await.map_err(ledger_error())?;
    Ok(row.map(|row: Row| LockedFleetJob {
        fence: row.get(0),
        report: row.get(1),
        table: row.get(2),
        table_oid: row.get(3),
    }))
}

/// Reads the sealed attempts of a job.
///
/// # Errors
/// [`ErrorKind::Server`] if the ledger cannot be read, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn read_parts(client: &Client, job: i64) -> Result<Vec<SealedPart>> {
    let sql = "select part, xid, columns, rows from pgspate.part \
               where job operator(pg_catalog.=) $1";
    let rows = client.fetch_all(sql, &[&job]).await.map_err(ledger_error())?;
    Ok(rows.iter().map(SealedPart::of_row).collect())
}

/// Records that a table has taken the place of the table with the oid `old`, in the transaction
/// that exchanges them. Unfinished jobs of distributed engines write to the new table from then on.
///
/// # Errors
/// [`ErrorKind::Server`] if the ledger cannot be written, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn move_fleet_jobs(client: &Client, old: u32, new: u32, job: JobId) -> Result<()> {
    let sql = "update pgspate.job set table_oid = $2 \
               where table_oid = $1 and command = 'fleet'";
    if client.run_statement(sql, &[&old, &new]).await.map_err(ledger_error())? == 0 {
        return Ok(());
    }
    let emptied = emptied::record_emptied_sql(client, new, Some(job)).await?;
    client.batch_execute(&emptied).await.map_err(ledger_error())
}

/// Returns the oid of the table that a job writes to.
///
/// # Errors
/// [`ErrorKind::Server`] if the ledger cannot be read, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn fleet_job_table(client: &Client, job: i64) -> Result<Option<u32>> {
    let sql = "select table_oid from pgspate.job where job = $1";
    let row = client.fetch_opt(sql, &[&job]).await.map_err(ledger_error())?;
    Ok(row.map(|row| row.get(0)))
}

/// Marks the job as complete, in the transaction that moves its rows. Forgets the jobs of earlier
/// epochs of its stream. The user's search path may be
/// set, so operators are qualified.
///
/// # Errors
/// [`ErrorKind::Server`] if the ledger cannot be written, [`ErrorKind::Connect`] if the connection
/// fails.
pub async fn complete_fleet_job(
    client: &Client,
    job: i64,
    [rows_in, rows_written, rows_rejected]: [i64; 3],
    report: &str,
) -> Result<()> {
    let sql = "with done as (update pgspate.fleet_job set report = $4 \
                             where job operator(pg_catalog.=) $1), \
                    parts as (delete from pgspate.part where job operator(pg_catalog.=) $1), \
                    earlier as (delete from pgspate.job e using pgspate.job j \
                                where EARLIER_EPOCHS and j.job operator(pg_catalog.=) $1) \
               update pgspate.job set finished = pg_catalog.clock_timestamp(), rows_in = $2, \
                   rows_written = $3, rows_rejected = $5 where job operator(pg_catalog.=) $1";
    let sql = sql.replace("EARLIER_EPOCHS", fleet_epoch::EARLIER);
    let values: [&dyn TypedParameter; 5] = [&job, &rows_in, &rows_written, &report, &rows_rejected];
    client.run_statement(&sql, &values).await.map(drop).map_err(ledger_error())
}
