//! Rejected rows: written in their chunk's transaction, read when the job ends.

use futures_util::{Stream, TryStreamExt};
use serde::Serialize;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use super::job::{JobId, ledger_error};
use crate::{InputPlace, Result};

/// A rejected row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reject {
    /// The row's number within the chunk, from 0.
    pub row: u64,
    /// The row's place in the input, with the column if the server names one.
    pub place: InputPlace,
    /// The SQLSTATE of the error.
    pub sqlstate: SqlState,
    /// The server's message, or pgspate's if the record is not a row.
    pub message: String,
    /// The record as in the input, with its line end.
    pub record: Vec<u8>,
}

/// A rejected row as the ledger has it. The row's JSON does not contain the record.
#[derive(Debug, Clone, Serialize)]
pub struct RejectRecord {
    /// The job.
    pub job: i64,
    /// The chunk's number. Those of the second input begin at 2^40, those of the third at twice
    /// that.
    pub chunk: i64,
    /// The row within the chunk, from 0.
    pub row: i64,
    /// The input's name.
    pub source: Option<String>,
    /// The line in the input, from 1, for formats with lines.
    pub line: Option<i64>,
    /// The row in the input, from 1, for formats without lines.
    pub source_row: Option<i64>,
    /// The offset in the decompressed input.
    pub byte: Option<i64>,
    /// The column that the server names.
    pub column: Option<String>,
    /// The SQLSTATE.
    pub sqlstate: String,
    /// The server's message.
    pub message: String,
    /// The record as in the input, with its line end.
    #[serde(skip)]
    pub record: Vec<u8>,
}

const INSERT: &str = "\
insert into pgspate.reject (job, chunk, row, source, line, source_row, byte, column_name, sqlstate,
                            message, record)
select $1, $2, * from unnest($3::bigint[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[],
                             $8::text[], $9::text[], $10::text[], $11::bytea[])";

const SELECT: &str = "\
select job, chunk, row, source, line, source_row, byte, column_name, sqlstate, message, record
from pgspate.reject where job = $1 order by chunk, row";

/// Writes a chunk's rejected rows. Must run in the chunk's transaction.
pub async fn insert_rejects(
    client: &Client,
    job: JobId,
    chunk: u64,
    rejects: &[Reject],
) -> Result<(), tokio_postgres::Error> {
    let number = |number: u64| number.cast_signed();
    let numbers = |field: &dyn Fn(&Reject) -> Option<u64>| -> Vec<Option<i64>> {
        rejects.iter().map(|reject| field(reject).map(number)).collect()
    };
    let rows: Vec<i64> = rejects.iter().map(|reject| number(reject.row)).collect();
    let sources: Vec<_> = rejects.iter().map(|reject| reject.place.source.as_deref()).collect();
    let columns: Vec<_> = rejects.iter().map(|reject| reject.place.column.as_deref()).collect();
    let codes: Vec<_> = rejects.iter().map(|reject| reject.sqlstate.code()).collect();
    // A text value cannot contain a zero byte, but a message may quote one.
    let messages: Vec<_> =
        rejects.iter().map(|reject| reject.message.replace('\0', "\\0")).collect();
    let records: Vec<_> = rejects.iter().map(|reject| reject.record.as_slice()).collect();
    let (lines, source_rows, bytes) = (
        numbers(&|reject| reject.place.line),
        numbers(&|reject| reject.place.row),
        numbers(&|reject| reject.place.byte),
    );
    let chunk = number(chunk);
    let values: [&(dyn ToSql + Sync); 11] = [
        &job.0,
        &chunk,
        &rows,
        &sources,
        &lines,
        &source_rows,
        &bytes,
        &columns,
        &codes,
        &messages,
        &records,
    ];
    client.execute(INSERT, &values).await.map(drop)
}

/// Reads all rejected rows of a job, in input order.
pub async fn read_rejects(
    client: &Client,
    job: JobId,
) -> Result<impl Stream<Item = Result<RejectRecord>>> {
    let rows = client.query_raw(SELECT, [job.0]).await.map_err(ledger_error())?;
    Ok(rows.map_ok(|row| read_reject(&row)).map_err(|error| ledger_error()(error)))
}

fn read_reject(row: &Row) -> RejectRecord {
    RejectRecord {
        job: row.get(0),
        chunk: row.get(1),
        row: row.get(2),
        source: row.get(3),
        line: row.get(4),
        source_row: row.get(5),
        byte: row.get(6),
        column: row.get(7),
        sqlstate: row.get(8),
        message: row.get(9),
        record: row.get(10),
    }
}
