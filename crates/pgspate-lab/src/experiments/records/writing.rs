//! The ways of writing records: one at a time, many in a statement, or by COPY.
//!
//! Rows are in memory before the clock starts. Each record or batch is a transaction of its own, in
//! one session, and waits until it is durable.

use std::ops::Range;

use bytes::Bytes;
use futures_util::SinkExt as _;
use pgspate::Result;
use pgspate::target::connect::Connection;

use super::super::ways::{StatementCache, execute, failed, places, rows_per_statement};
use crate::data::accounts::{BankAccounts, BankTable};

/// The rows of a table.
pub(super) struct BankRows<'a> {
    pub(super) of: &'a BankAccounts,
    pub(super) table: BankTable,
    /// How many accounts there are for transactions to be of.
    pub(super) accounts: u64,
}

impl BankRows<'_> {
    pub(super) fn text(&self, id: u64, out: &mut Vec<u8>) {
        self.of.text(self.table, id, self.accounts, out);
    }
}

/// How records are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordMethod {
    Single,
    Values,
    Copy,
}

/// What is written in one transaction.
pub(super) enum RecordsToWrite {
    /// The values of its rows, one after the other.
    Values(Vec<String>),
    /// COPY text.
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

    /// The rows with these numbers, so many in a batch, or one.
    pub(super) fn batches(
        self,
        ids: Range<u64>,
        batch: u64,
        rows: &BankRows<'_>,
    ) -> Vec<RecordsToWrite> {
        let room = rows_per_statement(rows.table.columns().len()) as u64;
        let step = match self {
            RecordMethod::Single => 1,
            RecordMethod::Values => batch.min(room),
            RecordMethod::Copy => batch,
        };
        let starts = ids.clone().step_by(step as usize);
        let parts = starts.map(|start| start..(start + step).min(ids.end));
        parts.map(|part| self.batch(part, rows)).collect()
    }

    fn batch(self, ids: Range<u64>, rows: &BankRows<'_>) -> RecordsToWrite {
        match self {
            RecordMethod::Copy => {
                let mut text = Vec::new();
                ids.for_each(|id| rows.text(id, &mut text));
                RecordsToWrite::CopyText(Bytes::from(text))
            }
            _ => RecordsToWrite::Values(
                ids.flat_map(|id| rows.of.fields(rows.table, id, rows.accounts)).collect(),
            ),
        }
    }

    /// Writes them, one after the other.
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

/// The statement for so many rows.
fn insert(table: BankTable, rows: usize) -> String {
    let (name, columns) = (table.name(), table.columns().join(", "));
    format!("insert into {name} ({columns}) values {}", places(rows, table.types()))
}
