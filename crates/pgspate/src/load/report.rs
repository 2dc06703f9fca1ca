//! What a load did, in numbers.

use serde::Serialize;

use super::{Load, Watch, Widened};
use crate::copy::Outcome;
use crate::format::Mode;
use crate::target::connect::Connection;

/// What a load did.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The table, as SQL writes it.
    pub table: String,
    /// Whether the table was made for it.
    pub created: bool,
    /// Inputs.
    pub inputs: usize,
    /// Rows read.
    pub rows_in: u64,
    /// Rows written.
    pub rows_written: u64,
    /// Rows read but not written, as triggers kept them out.
    pub rows_kept_out: u64,
    /// Rows written that the encoder left to the server as text.
    pub rows_as_text: u64,
    /// Stored bytes of the inputs, where known.
    pub stored_bytes: Option<u64>,
    /// Decompressed bytes of the inputs.
    pub bytes: u64,
    /// COPY bytes sent.
    pub bytes_sent: u64,
    /// `binary` or `text`.
    pub path: &'static str,
    /// Lanes that carried rows.
    pub lanes: usize,
    /// Chunks.
    pub chunks: u64,
    /// From the first byte to the last commit.
    pub seconds: f64,
    /// Seconds of the lanes together, by stage.
    pub stages: Stages,
    /// WAL that the server wrote meanwhile, for whomever.
    pub wal_bytes: Option<u64>,
    /// Columns that had to become wider.
    pub widened: Vec<WidenedReport>,
    /// What slowed it down.
    pub warnings: Vec<String>,
}

/// Seconds that the lanes together spent in each stage.
#[derive(Debug, Clone, Serialize)]
pub struct Stages {
    /// Reading and cutting.
    pub source: f64,
    /// Encoding.
    pub encode: f64,
    /// Waiting for the network and the server to take bytes.
    pub server: f64,
    /// Committing, of the whole load.
    pub commit: f64,
}

/// A widened column.
#[derive(Debug, Clone, Serialize)]
pub struct WidenedReport {
    /// The column.
    pub column: String,
    /// Its type at first.
    pub from: String,
    /// Its type now.
    pub to: String,
    /// Where the value is that did not fit.
    pub place: Option<String>,
}

impl Report {
    pub(super) fn new(
        load: &Load,
        outcome: Outcome,
        watch: &Watch,
        widened: Vec<Widened>,
        seconds: f64,
        wal_bytes: Option<u64>,
    ) -> Report {
        let stages = Stages {
            source: outcome.source_seconds,
            encode: outcome.encode_seconds,
            server: outcome.send_seconds,
            commit: outcome.commit_seconds,
        };
        let widened = widened.into_iter().map(|it| WidenedReport {
            column: it.column,
            from: it.from,
            to: it.to,
            place: it.place.map(|place| place.to_string()),
        });
        Report {
            table: load.plan.table.clone(),
            created: load.new_table.is_some(),
            inputs: load.reading.inputs.len(),
            rows_in: outcome.rows_in,
            rows_written: outcome.rows_written,
            rows_kept_out: outcome.rows_in.saturating_sub(outcome.rows_written),
            rows_as_text: outcome.rows_as_text,
            stored_bytes: load.reading.stored_bytes(),
            bytes: watch.copy.snapshot().bytes,
            bytes_sent: outcome.bytes_sent,
            path: if load.plan.mode == Mode::Binary { "binary" } else { "text" },
            lanes: outcome.lanes,
            chunks: outcome.chunks,
            seconds,
            stages,
            wal_bytes,
            widened: widened.collect(),
            warnings: load.plan.warnings.clone(),
        }
    }
}

/// Where the WAL is now; unknown on a server that does not tell.
pub(super) async fn wal_position(connection: &Connection) -> Option<String> {
    let sql = "select pg_current_wal_insert_lsn()::text";
    connection.client.query_one(sql, &[]).await.ok().map(|row| row.get(0))
}

/// WAL bytes written since.
pub(super) async fn wal_since(connection: &Connection, lsn: Option<&str>) -> Option<u64> {
    let sql = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::text::pg_lsn)::int8";
    let row = connection.client.query_one(sql, &[&lsn?]).await.ok()?;
    u64::try_from(row.get::<_, i64>(0)).ok()
}
