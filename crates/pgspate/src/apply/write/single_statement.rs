//! Writes a small batch by a single statement, which also moves the stream's position.
//!
//! The statement is a transaction of its own. It writes all of the batch, or nothing. If the stream
//! is not at the expected position, or if a table was altered, the statement succeeds and writes
//! nothing. So several batches may be sent before the server answers: none is written unless all
//! before it are.

use std::pin::{Pin, pin};
use std::sync::Arc;

use futures_util::TryStreamExt as _;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use super::altered_tables::checked_definitions;
use super::direct::RowParameters;
use super::session::WriterSession;
use super::statements::{ApplyStatements, RowSource, SHARED_COUNTS, shared_rows_sql};
use crate::Result;
use crate::apply::batch::EventBatch;
use crate::apply::write::ApplyCounts;
use pgspate_target::ledger::{DefinitionCheck, StreamMove, stream_move_sql};
use pgspate_target::{TableStorage, UnloggedExtent};

/// The answer to a batch, when it arrives.
pub(super) type SingleAnswer = Pin<Box<dyn Future<Output = BatchAnswer> + Send>>;

/// The answer to a batch.
pub(super) struct BatchAnswer {
    /// What the batch did, or would have done if it was refused. `None` if the statement wrote
    /// nothing, or if that is unknown.
    pub(super) counts: Option<ApplyCounts>,
    /// Whether the statement was committed, as far as is known.
    pub(super) outcome: Result<()>,
}

/// Completes "could not".
pub(super) const TASK: &str = "apply a batch";

/// The number of parameters of [`pgspate_target::KnownDefinitions`].
const DEFINITION_PARAMETERS: usize = 3;
/// The number of parameters of [`RowParameters`].
const ROW_PARAMETERS: usize = 3;

/// Checks whether a single statement can write the rows of this batch.
///
/// The statement's parts do not see each other's rows, but triggers and rules might expect that. A
/// crash must not keep rows and lose the position. A batch of several tables has a statement for
/// each combination of them, which is seldom used again. A row may be the first to lock its
/// partition, after the statement has looked for loads that have dropped keys of the partition.
pub(super) fn may_share_statement(batch: &EventBatch) -> bool {
    let [encoded] = batch.encoded_tables.as_slice() else { return false };
    let facts = &batch.tables[encoded.table];
    facts.has_fingerprint()
        && facts.table.kind == 'r'
        && facts.table.storage == TableStorage::Plain
        && facts.table.unlogged == UnloggedExtent::Nothing
        && facts.table.rules.is_empty()
        && !facts.has_triggers
        && !facts.has_acting_referrers
        && !facts.table.has_foreign_parts
        && !facts.table.commits_across_nodes
        && !facts.columns.iter().any(|column| column.is_identity_always)
        && !(encoded.may_repeat_keys && encoded.deletes + encoded.upserts > 1)
}

/// Returns the numbers of the definitions of the batch's tables.
pub(super) fn definition_numbers(batch: &EventBatch) -> impl Iterator<Item = u32> {
    batch.encoded_tables.iter().map(|it| batch.tables[it.table].version)
}

/// Returns the text of the statement for a batch.
pub(super) fn single_statement_sql(batch: &EventBatch, check: DefinitionCheck) -> String {
    let numbers: Vec<u32> = definition_numbers(batch).collect();
    let moved = format!("with moved as materialized ({})", stream_move_sql(&numbers, check));
    let (mut rows, mut writes) = (vec![moved], Vec::new());
    let mut columns = vec!["(select count(*) from moved)".to_owned()];
    let mut parameter = StreamMove::PARAMETERS + 1;
    if check == DefinitionCheck::Compare {
        parameter += DEFINITION_PARAMETERS;
    }
    for (number, encoded) in batch.encoded_tables.iter().enumerate() {
        let facts = &batch.tables[encoded.table];
        let source = RowSource::SharedParameters(number);
        let statements = ApplyStatements::new(facts, encoded, source, false);
        let (of_table, counts) = statements.shared_writes(encoded, number);
        rows.push(shared_rows_sql(facts, number, parameter));
        writes.extend(of_table);
        columns.extend(counts);
        parameter += ROW_PARAMETERS;
    }
    rows.append(&mut writes);
    format!("{} select {}", rows.join(", "), columns.join(", "))
}

/// Sends a batch by its prepared statement. `commits_later`: the commit need not wait for the disk.
/// The first poll of the future sends the message.
///
/// # Errors
/// [`ErrorKind::Bug`] if the batch does not fit its statement.
pub(super) fn send(
    session: &WriterSession,
    statement: Statement,
    batch: &EventBatch,
    (check, stream_move, commits_later): (DefinitionCheck, StreamMove, bool),
) -> Result<SingleAnswer> {
    let connection = Arc::clone(&session.connection);
    let definitions = match check {
        DefinitionCheck::Compare => Some(checked_definitions(batch).owned_parameters()),
        DefinitionCheck::NothingElseRan => None,
    };
    let mut rows = Vec::with_capacity(batch.encoded_tables.len());
    let mut parameter = StreamMove::PARAMETERS;
    if definitions.is_some() {
        parameter += DEFINITION_PARAMETERS;
    }
    for encoded in &batch.encoded_tables {
        let ty = statement.params().get(parameter);
        rows.push(RowParameters::new(&batch.tables[encoded.table], encoded, ty)?);
        parameter += ROW_PARAMETERS;
    }
    let missing: u64 = batch.encoded_tables.iter().map(|it| it.missing).sum();
    Ok(Box::pin(async move {
        let (ordinal, level) = (stream_move.ordinal(), commits_later.then_some("off"));
        let mut values: Vec<&(dyn ToSql + Sync)> = Vec::with_capacity(parameter);
        values.extend(stream_move.parameters(&ordinal, &level));
        if let Some((oids, fingerprints, childless)) = &definitions {
            values.extend([oids as &(dyn ToSql + Sync), fingerprints, childless]);
        }
        values.extend(rows.iter().flat_map(RowParameters::values));
        let mut counts = None;
        let answer = read_counts(&connection.client, &statement, values, &mut counts).await;
        let outcome =
            answer.map_err(|error| connection.explain(format!("could not {TASK}"), error));
        if let Some(counts) = &mut counts {
            counts.missing += missing;
        }
        BatchAnswer { counts, outcome }
    }))
}

/// Runs a statement. Sets `counts` when its row arrives, unless the statement wrote nothing.
async fn read_counts(
    client: &Client,
    statement: &Statement,
    values: Vec<&(dyn ToSql + Sync)>,
    counts: &mut Option<ApplyCounts>,
) -> Result<(), tokio_postgres::Error> {
    let mut rows = pin!(client.query_raw(statement, values).await?);
    while let Some(row) = rows.try_next().await? {
        let count = |column: usize| row.get::<_, i64>(column).unsigned_abs();
        if count(0) == 0 {
            continue;
        }
        let counts = counts.get_or_insert_default();
        for first in (1..row.len()).step_by(SHARED_COUNTS) {
            counts.deleted += count(first);
            counts.updated += count(first + 1);
            counts.inserted += count(first + 2);
            counts.missing += count(first + 3);
        }
    }
    Ok(())
}
