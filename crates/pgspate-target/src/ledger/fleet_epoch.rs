//! Jobs that write the epochs of a stream. The ledger has the job of the latest epoch.
//!
//! A job is complete in the transaction that makes its rows visible. So an epoch that the engine
//! repeats is found complete. Attempts of an epoch that was not completed stay in the stage. They
//! are left out when the epoch is completed. So a repeated epoch needs no fence.

use tokio_postgres::Client;

use super::fleet_job::{
    BegunFleetJob, JobAndWarning, NewFleetJob, check_trusted, in_transaction, insert_job,
    lock_for_begin, other_options_error, other_table_error,
};
use super::fleet_stage::ensure_stage;
use super::identity::digest_texts;
use super::job::ledger_error;
use super::schema;
use crate::{Error, ErrorKind, Result, TypedQuery};

/// The condition by which a complete job `j` replaces a job `e` of an earlier epoch. A job with a
/// stage or with rejected rows stays. The user's search path may be set, so operators are
/// qualified.
pub(super) const EARLIER: &str = "\
e.key operator(pg_catalog.=) j.key and e.job operator(pg_catalog.<) j.job
and e.finished is not null and e.rows_rejected operator(pg_catalog.=) 0
and e.options operator(pg_catalog.?) 'epoch'
and pg_catalog.to_regnamespace(pg_catalog.concat('pgspate_job_', e.job)) is null";

/// An epoch of a stream.
#[derive(Debug, Clone, Copy)]
pub struct EpochOfStream<'a> {
    /// The stream's name. Each table has streams of its own, also after it is renamed.
    pub stream: &'a str,
    /// The epoch's number.
    pub number: i64,
    /// The id of the query that counts the epochs, if it is known.
    pub query: Option<&'a str>,
    /// Whether the query completes every epoch. Then a missing epoch is refused.
    pub is_gapless: bool,
}

/// Begins the job of an epoch, or joins it if it has begun. The latest epoch may be begun again
/// after it was completed. `new.options` have the epoch as `epoch`. Returns a warning, too, if
/// epochs are missing before this one.
///
/// # Errors
/// [`ErrorKind::Ledger`] if the stream belongs to another query or to an untrusted role, or if its
/// job was begun with other options. Also if an earlier epoch is not complete, or a later one is,
/// or if an epoch is missing that the query has completed.
/// [`ErrorKind::Server`] if the ledger cannot be written or the stage cannot be created.
pub async fn join_epoch(
    client: &Client,
    new: NewFleetJob<'_>,
    epoch: EpochOfStream<'_>,
) -> Result<JobAndWarning> {
    schema::ensure_ledger(client).await?;
    let (key, is_named_alike) = match find_key(client, new.table_oid, epoch.stream).await? {
        Some(key) => (key, false),
        None => new_key(client, new, epoch.stream).await?,
    };
    let begun = async {
        lock_for_begin(client, &key).await?;
        check_trusted(client, &key, new.name.unwrap_or_default()).await?;
        let warning = match find_latest(client, &key, new, epoch).await? {
            FoundEpoch::Begun(begun) => {
                if !begun.is_complete {
                    ensure_stage(client, &begun, new).await?;
                }
                return Ok((begun, None));
            }
            FoundEpoch::New(None) if is_named_alike => Some(begins_anew_warning(new.table, epoch)),
            FoundEpoch::New(warning) => warning,
        };
        insert_job(client, &key, new).await.map(|begun| (begun, warning))
    };
    in_transaction(client, begun).await
}

/// Returns the key of the jobs of a stream into this table. The key has the name that the table had
/// when the stream began. Returns `None` if no epoch has begun. Also if a new table has taken the
/// name of a dropped one since the latest epoch; then the jobs are found by the name.
async fn find_key(client: &Client, table_oid: u32, stream: &str) -> Result<Option<String>> {
    let sql = "select key from pgspate.job where table_oid = $1 and command = 'fleet' \
               and options->'epoch'->>'stream' = $2 order by job desc limit 1";
    let row = client.fetch_opt(sql, &[&table_oid, &stream]).await.map_err(ledger_error())?;
    Ok(row.map(|row| row.get(0)))
}

/// Returns the key of a stream of which no epoch has begun into this table. Also returns whether a
/// renamed table that had the name before has a stream of the same name.
async fn new_key(client: &Client, new: NewFleetJob<'_>, stream: &str) -> Result<(String, bool)> {
    let key = digest_texts(["fleet stream", new.table, stream]);
    let sql = "select exists (select from pgspate.job j join pg_class c on c.oid = j.table_oid \
                              where j.key = $1 and j.table_oid <> $2)";
    let row = client.fetch_one(sql, &[&key, &new.table_oid]).await.map_err(ledger_error())?;
    let is_taken = row.get(0);
    match is_taken {
        true => {
            let table_oid = new.table_oid.to_string();
            Ok((digest_texts(["fleet stream", new.table, stream, &table_oid]), true))
        }
        false => Ok((key, false)),
    }
}

/// Returns the warning of a stream into a table that has taken the name of a renamed table.
fn begins_anew_warning(table: &str, epoch: EpochOfStream<'_>) -> String {
    let EpochOfStream { stream, number, .. } = epoch;
    format!(
        "stream {stream} has written another table that had the name {table}; epoch {number} \
         begins a stream of its own"
    )
}

/// The job of an epoch in the ledger.
enum FoundEpoch {
    /// The job has begun.
    Begun(BegunFleetJob),
    /// The job is to be created. With a warning if epochs are missing before it.
    New(Option<String>),
}

/// Finds the job of the epoch: that of the stream's latest epoch, or a new one.
async fn find_latest(
    client: &Client,
    key: &str,
    new: NewFleetJob<'_>,
    epoch: EpochOfStream<'_>,
) -> Result<FoundEpoch> {
    // Waits for a session that completes the job. The next statement reads what it has done.
    let lock = "select from pgspate.fleet_job f join pgspate.job j on j.job = f.job \
                where j.key = $1 order by j.job desc limit 1 for key share of f";
    client.fetch_opt(lock, &[&key]).await.map_err(ledger_error())?;
    let sql = "select f.job, f.fence, j.finished is not null, j.table_oid, j.table_name, \
                      j.options = $2::text::jsonb, (j.options->'epoch'->>'number')::int8, \
                      j.options->'epoch'->>'query' \
               from pgspate.job j join pgspate.fleet_job f on f.job = j.job where j.key = $1 \
               order by j.job desc limit 1";
    let row = client.fetch_opt(sql, &[&key, &new.options]).await.map_err(ledger_error())?;
    let Some(row) = row else { return Ok(FoundEpoch::New(None)) };
    let (job, fence, is_complete): (i64, i64, bool) = (row.get(0), row.get(1), row.get(2));
    let (latest, query): (i64, Option<&str>) = (row.get(6), row.get(7));
    if let (Some(query), Some(now)) = (query, epoch.query)
        && query != now
    {
        return Err(other_query_error(job, epoch.stream, query));
    }
    let name = new.name.unwrap_or_default();
    match latest.cmp(&epoch.number) {
        std::cmp::Ordering::Greater if is_complete => Err(earlier_epoch_error(job, latest, epoch)),
        std::cmp::Ordering::Less if is_complete && epoch.number - latest > 1 => {
            let missing = missing_epochs_error(job, latest, epoch);
            match epoch.is_gapless {
                true => Err(missing),
                false => Ok(FoundEpoch::New(Some(missing.to_string()))),
            }
        }
        std::cmp::Ordering::Less if is_complete => Ok(FoundEpoch::New(None)),
        std::cmp::Ordering::Equal if is_complete => {
            Ok(FoundEpoch::Begun(BegunFleetJob { job, fence, is_complete }))
        }
        std::cmp::Ordering::Equal if row.get::<_, u32>(3) != new.table_oid => {
            Err(other_table_error(job, name, row.get(4)))
        }
        std::cmp::Ordering::Equal if !row.get::<_, bool>(5) => Err(other_options_error(job, name)),
        std::cmp::Ordering::Equal => {
            Ok(FoundEpoch::Begun(BegunFleetJob { job, fence, is_complete }))
        }
        _ => Err(unfinished_epoch_error(job, latest, epoch)),
    }
}

fn other_query_error(job: i64, stream: &str, query: &str) -> Error {
    let message = format!("stream {stream} is written by the query {query}");
    Error::new(ErrorKind::Ledger, message).hint(format!(
        "A query with a new checkpoint counts its epochs from 0 again, and reads its source again. \
         Give it another stream name. If all its rows are new, run `pgspate status --forget {job}`."
    ))
}

/// Returns the error of an epoch before the latest one. An engine repeats the latest epoch alone.
fn earlier_epoch_error(job: i64, latest: i64, epoch: EpochOfStream<'_>) -> Error {
    let EpochOfStream { stream, number, .. } = epoch;
    let message =
        format!("epoch {number} of stream {stream} cannot begin: epoch {latest} is complete");
    Error::new(ErrorKind::Ledger, message).hint(format!(
        "The checkpoint of the query is older than the table, or is another one. Give a new query \
         another stream name. If the rows from epoch {number} on are not in the table, run \
         `pgspate status --forget {job}`."
    ))
}

/// Returns the error of an epoch that does not follow the latest one.
fn missing_epochs_error(job: i64, latest: i64, epoch: EpochOfStream<'_>) -> Error {
    let EpochOfStream { stream, number, .. } = epoch;
    let message = format!(
        "epoch {number} of stream {stream} does not follow epoch {latest}, the latest in the ledger"
    );
    Error::new(ErrorKind::Ledger, message).hint(format!(
        "Epochs that the query has completed are missing in this database, as after a failover to \
         a standby that lacked them. Write their rows again. Then run `pgspate status --forget \
         {job}`, and start the query again."
    ))
}

fn unfinished_epoch_error(job: i64, latest: i64, epoch: EpochOfStream<'_>) -> Error {
    let EpochOfStream { stream, number, .. } = epoch;
    let message =
        format!("epoch {number} of stream {stream} cannot begin: epoch {latest} is not complete");
    Error::new(ErrorKind::Ledger, message).hint(format!(
        "The engine completes epochs in order. If no query works on epoch {latest}, run `pgspate \
         status --forget {job}`: then its rows are not written."
    ))
}
