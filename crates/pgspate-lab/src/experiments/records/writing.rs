//! The ways of writing records: one at a time, many in a statement, or by COPY.
//!
//! Rows are in memory before the clock starts. One session writes each record or batch in its own
//! transaction and waits until the transaction is durable.

use std::ops::Range;

use bytes::Bytes;
use futures_util::SinkExt as _;
use pgspate::Result;
use pgspate::target::connect::Connection;

use super::super::sending::{StatementCache, execute, failed, placeholders, rows_per_statement};
use crate::data::accounts::{BankAccounts, BankTable};

/// The rows of a table.
pub(super) struct BankRows<'a> {
    pub(super) bank: &'a BankAccounts,
    pub(super) table: BankTable,
    /// The number of accounts that transactions can belong to.
    pub(super) accounts: u64,
}

impl BankRows<'_> {
    pub(super) fn text(&self, id: u64, out: &mut Vec<u8>) {
        self.bank.text(self.table, id, self.accounts, out);
    }
}

/// A way of writing records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordMethod {
    Single,
    Values,
    Copy,
}

/// The records of one transaction.
pub(super) enum RecordsToWrite {
    /// The values of all rows, in the order of rows and columns.
    Values(Vec<String>),
    /// The rows in COPY's text format.
    CopyText(Bytes),
}

impl RecordMethod {
    pub(super) const ALL: [RecordMethod; 3] =
        [RecordMethod::Single, RecordMethod::Values, RecordMethod::Copy];

    pub(super) fn name(self) -> &'static str {
        match self {
            RecordMethod::Single => "single inserts",
            RecordMethod::Values => "multi-row inserts",
            RecordMethod::Copy => "COPY of batches",
        }
    }

    pub(super) fn named(name: &str) -> RecordMethod {
        RecordMethod::ALL
            .into_iter()
            .find(|writing| writing.name() == name)
            .unwrap_or(RecordMethod::Single)
    }

    /// Returns the rows with the numbers `ids` in batches of at most `batch` rows.
    pub(super) fn batches(
        self,
        ids: Range<u64>,
        batch: u64,
        rows: &BankRows<'_>,
    ) -> Vec<RecordsToWrite> {
        let rows_max = rows_per_statement(rows.table.columns().len()) as u64;
        let step = match self {
            RecordMethod::Single => 1,
            RecordMethod::Values => batch.min(rows_max),
            RecordMethod::Copy => batch,
        };
        let starts = ids.clone().step_by(step as usize);
        let ranges = starts.map(|start| start..(start + step).min(ids.end));
        ranges.map(|range| self.batch(range, rows)).collect()
    }

    fn batch(self, ids: Range<u64>, rows: &BankRows<'_>) -> RecordsToWrite {
        match self {
            RecordMethod::Copy => {
                let mut text = Vec::new();
                ids.for_each(|id| rows.text(id, &mut text));
                RecordsToWrite::CopyText(Bytes::from(text))
            }
            _ => RecordsToWrite::Values(
                ids.flat_map(|id| rows.bank.fields(rows.table, id, rows.accounts)).collect(),
            ),
        }
    }

    /// Writes the batches one after the other.
    pub(super) async fn write(
        self,
        connection: &Connection,
        table: BankTable,
        batches: &[RecordsToWrite],
    ) -> Result<()> {
        let client = &connection.client;
        let failed = failed(connection, "write records");
        let columns = table.columns();
        let mut statements = StatementCache::default();
        for batch in batches {
            match batch {
                RecordsToWrite::CopyText(text) => {
                    let copy = format!("copy {} from stdin", table.name());
                    let mut sink = Box::pin(client.copy_in(&copy).await.map_err(&failed)?);
                    sink.send(text.clone()).await.map_err(&failed)?;
                    sink.as_mut().finish().await.map_err(&failed)?;
                }
                RecordsToWrite::Values(values) => {
                    let rows = values.len() / columns.len();
                    let statement = statements.of(client, rows, || insert(table, rows)).await;
                    let statement = statement.map_err(&failed)?;
                    execute(client, &statement, values).await.map_err(&failed)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the INSERT statement for `rows` rows.
fn insert(table: BankTable, rows: usize) -> String {
    let (name, columns) = (table.name(), table.columns().join(", "));
    format!("insert into {name} ({columns}) values {}", placeholders(rows, table.types()))
}
