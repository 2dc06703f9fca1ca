//! Rows that were set aside: written in their chunk's transaction, read when the job ends.

use futures_util::{Stream, TryStreamExt};
use serde::Serialize;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use super::job::{JobId, failed};
use crate::{InputPlace, Result};

/// A row that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reject {
    /// Ordinal within the chunk, from 0.
    pub row: u64,
    /// Where it stands in the input; the column where the server names one.
    pub place: InputPlace,
    /// The SQLSTATE of the refusal.
    pub sqlstate: SqlState,
    /// The server's message, or ours for a record that is no row.
    pub message: String,
    /// The record as it stands in the input, with its line end.
    pub record: Vec<u8>,
}

/// A row that was set aside, as the ledger has it. The record is not part of its JSON.
#[derive(Debug, Clone, Serialize)]
pub struct RejectRecord {
    /// The job.
    pub job: i64,
    /// The chunk, and the row within it, both from 0.
    pub chunk: i64,
    /// The row within the chunk.
    pub row: i64,
    /// The input's name.
    pub source: Option<String>,
    /// Line in the input, from 1, for formats with lines.
    pub line: Option<i64>,
    /// Row in the input, from 1, for formats without lines.
    pub source_row: Option<i64>,
    /// Offset into the decompressed input.
    pub byte: Option<i64>,
    /// The column that the server names.
    pub column: Option<String>,
    /// The SQLSTATE.
    pub sqlstate: String,
    /// The server's message.
    pub message: String,
    /// The record as it stands in the input, with its line end.
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

/// Writes the rows of a chunk that were set aside; to be run in the transaction that writes the
/// chunk.
pub async fn insert(
    client: &Client,
    job: JobId,
    chunk: u64,
    rejects: &[Reject],
) -> Result<(), tokio_postgres::Error> {
    let number = |number: u64| number.cast_signed();
    let numbers = |of: &dyn Fn(&Reject) -> Option<u64>| -> Vec<Option<i64>> {
        rejects.iter().map(|reject| of(reject).map(number)).collect()
    };
    let rows: Vec<i64> = rejects.iter().map(|reject| number(reject.row)).collect();
    let sources: Vec<_> = rejects.iter().map(|reject| reject.place.source.as_deref()).collect();
    let columns: Vec<_> = rejects.iter().map(|reject| reject.place.column.as_deref()).collect();
    let codes: Vec<_> = rejects.iter().map(|reject| reject.sqlstate.code()).collect();
    // Text cannot hold a zero byte, which a message about one may quote.
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

/// All rows of a job that were set aside, in input order.
pub async fn rejects(
    client: &Client,
    job: JobId,
) -> Result<impl Stream<Item = Result<RejectRecord>>> {
    let rows = client.query_raw(SELECT, [job.0]).await.map_err(failed())?;
    Ok(rows.map_ok(|row| record(&row)).map_err(|error| failed()(error)))
}

fn record(row: &Row) -> RejectRecord {
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
