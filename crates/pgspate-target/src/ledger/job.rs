//! Jobs and their chunks in the ledger: recording chunks, finishing the job.

use std::collections::HashMap;
use std::fmt::Write as _;

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row};

use super::identity::JobIdentity;
use super::member::FleetMember;
use super::{dropped_keys, emptied, schema, unlogged};
use crate::{Error, ErrorKind, Result, TypedParameter, TypedQuery, WrittenTable, server_error};
use pgspate_input::format::Chunk;

/// A job's number in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobId(pub i64);

/// The ledger row of a chunk, or sums over several chunks.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChunkRecord {
    /// The chunk's number.
    pub chunk: u64,
    /// The number of the input that the chunk is from.
    pub input: usize,
    /// The byte where the chunk begins in its input; the row, for columnar files.
    pub position: u64,
    /// The digest of the chunk's content, if it has one.
    pub digest: Option<u128>,
    /// Rows read.
    pub rows_in: u64,
    /// Rows written.
    pub rows_written: u64,
    /// Rows rejected.
    pub rows_rejected: u64,
}

/// Records the chunks that a job writes into its table.
#[derive(Debug, Clone)]
pub struct ChunkRecorder {
    /// The job.
    pub job: JobId,
    /// The table that the chunks are written into.
    pub table: WrittenTable,
    /// Whether a server crash removes the job's rows, as in an unlogged table.
    pub crash_removes_rows: bool,
}

impl ChunkRecorder {
    /// Returns statements that record chunks. The statements must run in the transaction that
    /// writes the chunks. The transaction fails if another job has dropped the table's keys or
    /// replaced its rows. It also fails if the rows went into another table of the same name, or if
    /// a column has another type by now. If `crash_removes_rows`, the transaction also fails if a
    /// crash has emptied the table.
    pub fn insert_chunks_sql(&self, records: &[ChunkRecord]) -> String {
        let ChunkRecorder { job, table, crash_removes_rows } = self;
        let job_sql = if *crash_removes_rows { unlogged::job_sql(*job) } else { job.0.to_string() };
        let mut sql = format!(
            "{}; insert into pgspate.ledger \
             (job, chunk, input, position, digest, rows_in, rows_written, rows_rejected) values",
            dropped_keys::refuse_without_keys_sql(job.0)
        );
        for (index, record) in records.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let ChunkRecord {
                chunk,
                input,
                position,
                digest,
                rows_in,
                rows_written,
                rows_rejected,
            } = record;
            let digest = digest.map_or("null".to_owned(), |digest| format!("'{digest:032x}'"));
            // A NULL in the first row fails the statement. `is_refused_for_replaced_table`,
            // `is_refused_for_emptied_table` and `is_refused_for_altered_table` detect the failure.
            let (input, position, rows_in) = match index {
                0 => (
                    format!("case when {} then {input} end", table.has_name_sql()),
                    format!(
                        "case when not {} then {position} end",
                        emptied::is_emptied_sql(&format!("{}::oid", table.oid), &job.0.to_string())
                    ),
                    format!("case when {} then {rows_in} end", table.has_types_sql()),
                ),
                _ => (input.to_string(), position.to_string(), rows_in.to_string()),
            };
            // Writing to a String cannot fail.
            let _ = write!(
                sql,
                "{comma} ({job_sql}, {chunk}, {input}, {position}, {digest}, {rows_in}, \
                 {rows_written}, {rows_rejected})"
            );
        }
        sql
    }
}

/// Returns whether the server refused a chunk because its rows went into another table of the same
/// name.
pub fn is_refused_for_replaced_table(error: &tokio_postgres::Error) -> bool {
    is_refused_for_null(error, "input")
}

/// Returns whether the server refused a chunk because another job has emptied the table.
pub fn is_refused_for_emptied_table(error: &tokio_postgres::Error) -> bool {
    is_refused_for_null(error, "position")
}

/// Returns whether the server refused a chunk because a column of the table has another type than
/// the chunk's rows were encoded for.
pub fn is_refused_for_altered_table(error: &tokio_postgres::Error) -> bool {
    is_refused_for_null(error, "rows_in")
}

/// Returns whether the server refused a chunk's row because it has NULL in `column`.
pub(super) fn is_refused_for_null(error: &tokio_postgres::Error, column: &str) -> bool {
    error.as_db_error().is_some_and(|refusal| {
        *refusal.code() == SqlState::NOT_NULL_VIOLATION
            && refusal.schema() == Some("pgspate")
            && refusal.table() == Some("ledger")
            && refusal.column() == Some(column)
    })
}

/// Returns whether the server refused a chunk because the ledger already has it.
pub fn is_chunk_recorded(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|refusal| {
        *refusal.code() == SqlState::UNIQUE_VIOLATION
            && refusal.schema() == Some("pgspate")
            && matches!(refusal.table(), Some("ledger" | "reject"))
    })
}

/// The chunks of a job that are written.
#[derive(Debug, Clone, Default)]
pub struct WrittenChunks {
    records: HashMap<u64, ChunkRecord>,
}

impl WrittenChunks {
    /// Returns the record of a chunk, if the chunk is written.
    pub fn get(&self, chunk: u64) -> Option<&ChunkRecord> {
        self.records.get(&chunk)
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> u64 {
        self.records.len() as u64
    }

    /// Removes chunks that `others` lacks.
    pub fn keep_only(&mut self, others: &WrittenChunks) {
        self.records.retain(|chunk, _| others.records.contains_key(chunk));
    }

    /// Returns whether the chunks have numbers by their inputs. Earlier versions numbered the
    /// chunks of all inputs consecutively.
    pub(super) fn are_numbered_by_input(&self) -> bool {
        self.records.values().all(|record| Chunk::input_of(record.chunk) == record.input)
    }

    /// Returns whether a chunk of this input is written.
    pub(super) fn has_input(&self, input: usize) -> bool {
        self.records.values().any(|record| record.input == input)
    }

    /// Returns the number of the last input of these chunks. 0 without a chunk.
    pub(super) fn last_input(&self) -> usize {
        self.records.values().map(|record| record.input).max().unwrap_or(0)
    }

    /// Returns the number of rows in these chunks.
    pub fn rows_written(&self) -> u64 {
        self.records.values().map(|record| record.rows_written).sum()
    }

    /// Returns the sums of rows read, written and rejected.
    pub fn totals(&self) -> ChunkRecord {
        let mut totals =
            ChunkRecord { rows_written: self.rows_written(), ..ChunkRecord::default() };
        for record in self.records.values() {
            totals.rows_in += record.rows_in;
            totals.rows_rejected += record.rows_rejected;
        }
        totals
    }
}

/// A job as the ledger has it.
#[derive(Debug, Clone)]
pub struct JobRecord {
    /// The job's number.
    pub job: i64,
    /// When the job started, in the session's time zone.
    pub started: String,
    /// When the job was finished.
    pub finished: Option<String>,
    /// Rows written, once the job is finished.
    pub rows_written: i64,
    /// Rows rejected, once the job is finished.
    pub rows_rejected: i64,
    /// Whether the job created its table.
    pub has_created_table: bool,
    pub(super) command: String,
    pub(super) key: String,
    pub(super) fingerprint: String,
    pub(super) options: String,
    pub(super) table_oid: u32,
    /// Whether the ledger has all files of the job. Earlier versions kept a thousand of them.
    pub(super) lists_all_files: bool,
}

/// A job that is ready to continue.
#[derive(Debug, Clone)]
pub struct OpenJob {
    /// The job's number.
    pub job: JobId,
    /// The chunks that earlier runs have written.
    pub done: WrittenChunks,
    /// Whether all changes that earlier loads made to the table are put back.
    pub is_clean: bool,
    /// Whether a server crash would remove the job's rows.
    pub crash_removes_rows: bool,
}

/// Deletes chunks, rejects and changes of jobs that finished more than 7 days ago. The jobs stay.
/// Changes that are not put back also stay.
pub(super) async fn prune_old_jobs(client: &Client) -> Result<()> {
    let sql = "with old as (select job from pgspate.job \
                            where finished < now() - interval '7 days'), \
                    chunks as (delete from pgspate.ledger using old where ledger.job = old.job), \
                    rejects as (delete from pgspate.reject using old where reject.job = old.job) \
               delete from pgspate.change using old \
               where change.job = old.job and change.done >= cardinality(change.steps)";
    let pruned = client.run_statement(sql, &[]).await;
    pruned.map(drop).map_err(|error| schema::with_grant_hint(ledger_error()(error)))
}

/// Reads the chunks of an open job that are written by now.
///
/// # Errors
/// [`ErrorKind::Ledger`] if another session has forgotten the job. The ledger then does not say
/// which of the job's rows are in the table.
pub async fn reread_written_chunks(client: &Client, job: JobId) -> Result<WrittenChunks> {
    let sql = "select exists (select from pgspate.job where job = $1)";
    // Read the chunks first: chunks are forgotten before or together with their job.
    let done = read_written_chunks(client, job).await?;
    if client.fetch_one(sql, &[&job.0]).await.map_err(ledger_error())?.get(0) {
        return Ok(done);
    }
    let message = format!("job {} is no longer in the ledger", job.0);
    Err(Error::new(ErrorKind::Ledger, message).hint(
        "Another session has forgotten the job while this load had lost its connection. Check \
         which of the job's rows are in the table. The same command loads from the beginning.",
    ))
}

/// Reads the chunks of a job that are written.
pub async fn read_written_chunks(client: &Client, job: JobId) -> Result<WrittenChunks> {
    let sql = "select chunk, input, position, rows_in, rows_written, rows_rejected, digest \
               from pgspate.ledger where job = $1";
    let rows = client.fetch_all(sql, &[&job.0]).await.map_err(ledger_error())?;
    let records = rows.iter().map(read_chunk_record).map(|record| (record.chunk, record));
    Ok(WrittenChunks { records: records.collect() })
}

/// Marks the job and its files as loaded, and the fleet's member as done, durably and at once. The
/// job's chunk records stay for a while: a disconnected session may still try to write a chunk, and
/// must find that the chunk is written.
///
/// Returns `None` and marks nothing if the ledger lacks chunks, or if a crash has removed the rows
/// although `crash_removes_rows` is set.
///
/// # Errors
/// [`ErrorKind::Server`] if the ledger cannot be written.
pub async fn finish_job(
    client: &Client,
    job: JobId,
    chunks: u64,
    identity: &JobIdentity,
    crash_removes_rows: bool,
) -> Result<Option<ChunkRecord>> {
    let member = identity.fleet.as_ref().map(FleetMember::finish_sql).unwrap_or_default();
    let bound_job = if crash_removes_rows { unlogged::job_sql(job) } else { "0".to_owned() };
    let sql = format!(
        "with sums as ( \
                   select count(*) as chunks, coalesce(sum(rows_in), 0)::bigint as rows_in, \
                          coalesce(sum(rows_written), 0)::bigint as rows_written, \
                          coalesce(sum(rows_rejected), 0)::bigint as rows_rejected \
                   from pgspate.ledger where job = $1), \
              finished as ( \
                   update pgspate.job set finished = coalesce(finished, clock_timestamp()), \
                          fingerprint = $3, \
                          chunks = sums.chunks, rows_in = sums.rows_in, \
                          rows_written = sums.rows_written, rows_rejected = sums.rows_rejected \
                   from sums where job = $1 and sums.chunks = $2 and {bound_job} is not null \
                     and not exists (select from pgspate.change c where c.job = $1 \
                                       and c.done < pg_catalog.cardinality(c.steps)) \
                   returning sums.rows_in, sums.rows_written, sums.rows_rejected), \
              rows_of as ( \
                   select input, sum(rows_written)::bigint as rows from pgspate.ledger \
                   where job = $1 group by input), \
              files as ( \
                   update pgspate.source_file f \
                   set source = n.file -> 'source', rows = coalesce(r.rows, 0) \
                   from finished, jsonb_array_elements($4::jsonb) with ordinality n(file, nth) \
                        left join rows_of r on r.input = n.nth - 1 \
                   where f.job = $1 and f.input = n.nth - 1) {member} \
         select rows_in, rows_written, rows_rejected from finished"
    );
    let expected = chunks.cast_signed();
    let (fingerprint, files) = (identity.fingerprint(), identity.files_json());
    let values: [&dyn TypedParameter; 4] = [&job.0, &expected, &fingerprint, &files];
    let row = client.fetch_opt(&sql, &values).await.map_err(ledger_error())?;
    let Some(row) = row else { return Ok(None) };
    let number = |column: usize| row.get::<_, i64>(column).cast_unsigned();
    let (rows_in, rows_written, rows_rejected) = (number(0), number(1), number(2));
    Ok(Some(ChunkRecord { rows_in, rows_written, rows_rejected, ..ChunkRecord::default() }))
}

/// Returns whether the job is finished.
pub async fn is_job_finished(client: &Client, job: JobId) -> Result<bool> {
    let sql = "select exists (select from pgspate.job where job = $1 and finished is not null)";
    Ok(client.fetch_one(sql, &[&job.0]).await.map_err(ledger_error())?.get(0))
}

/// Records that the job's rows are now in the table with oid `table_oid`. Must run in the
/// transaction that renames that table.
pub async fn move_job_to(client: &Client, job: JobId, table_oid: u32) -> Result<()> {
    let sql = "update pgspate.job set table_oid = $2 where job = $1";
    client.run_statement(sql, &[&job.0, &table_oid]).await.map(drop).map_err(ledger_error())
}

/// Returns a function that wraps an error of a statement on the ledger.
pub(super) fn ledger_error() -> impl FnOnce(tokio_postgres::Error) -> Error {
    server_error("could not use the ledger, schema \"pgspate\"".to_owned())
}

fn read_chunk_record(row: &Row) -> ChunkRecord {
    let number = |column: usize| row.get::<_, i64>(column).cast_unsigned();
    ChunkRecord {
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
