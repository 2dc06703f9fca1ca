//! Plans a run of `apply` for `--plan`, and runs nothing.
//!
//! Planning writes nothing. It does not raise the fence in the ledger, which would end a running
//! process, and it does not create a slot.

use serde::Serialize;
use tokio::runtime::Handle;

use super::options::ApplyOptions;
use super::route::{Router, TableMap};
use super::stream_origin::{StreamOrigin, find_origin, find_position, stream_name};
use crate::Result;
use crate::source::Input;
use pgspate_replication::kafka::{KafkaTopics, TopicPartition};
use pgspate_replication::postgres::PublishedTable;
use pgspate_replication::slot::{Slot, SlotStart};
use pgspate_target::connect::Dsn;
use pgspate_target::ledger::{self, StreamPosition};

/// What a run of `apply` would do.
#[derive(Debug, Clone, Serialize)]
pub struct ApplyPlan {
    /// The stream's name in the ledger.
    pub stream: String,
    /// The sources, in the order in which they are read.
    pub sources: Vec<String>,
    /// Events of the stream that earlier runs applied.
    pub events_before: u64,
    /// Where the run begins, and what the run does before it applies events.
    pub begins: Vec<String>,
    /// Where the run ends.
    pub ends: String,
    /// The tables of a slot's publication.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<ApplyPlanTable>,
}

/// A table of a publication.
#[derive(Debug, Clone, Serialize)]
pub struct ApplyPlanTable {
    /// The table's name on the source.
    pub from: String,
    /// The target table, quoted for SQL; `None` if the table is left out.
    pub to: Option<String>,
    /// The columns by which rows are found in the target. Empty if rows are found by comparing all
    /// columns.
    pub key: Vec<String>,
    /// Why events of the table could not be applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Plans a run. Blocks the calling thread, which must not belong to `runtime`.
///
/// # Errors
/// The errors of [`super::prepare`].
pub fn plan(options: &ApplyOptions, dsn: Dsn, runtime: &Handle) -> Result<ApplyPlan> {
    let dsn = dsn.with_stall_timeout(options.limits.stall_timeout);
    let names = TableMap::parse(&options.maps, &options.tables)?;
    let found = find_origin(options, runtime)?;
    let stream = stream_name(options, &found)?;
    let mark = runtime.block_on(find_position(options, &found, &stream, &dsn))?;
    let unknown = options.unknown_columns;
    let router = Router::new(dsn.clone(), names, unknown, options.limits, runtime.clone());
    let router = runtime.block_on(router)?;
    if !matches!(found, StreamOrigin::Slot(_)) {
        // The plan of a slot lists the tables with their problems.
        router.check_named_tables()?;
    }
    let slot = match found {
        StreamOrigin::Slot(slot) => *slot,
        StreamOrigin::Inputs(inputs) => {
            return Ok(plan_inputs(stream, &inputs, &mark, options.follows));
        }
        StreamOrigin::KafkaTopics(topics) => {
            let rows = runtime.block_on(read_partition_positions(&dsn, &stream))?;
            return plan_topics(stream, &topics, &rows, &mark, options.follows);
        }
    };
    let begin = SlotStart::choose(&slot, &mark, options.creates_slot, options.copies_rows)?;
    Ok(ApplyPlan {
        stream,
        sources: vec![format!("{} of publication {}", slot.title(), slot.publication)],
        events_before: mark.ordinal,
        begins: describe_begin(&slot, begin),
        ends: match options.follows {
            true => "never: new commits are applied when they arrive".to_owned(),
            false => format!("at {}, where the source's WAL ends now", slot.log_end),
        },
        tables: plan_tables(runtime.block_on(slot.tables())?, &router)?,
    })
}

/// Plans a run that reads files.
fn plan_inputs(
    stream: String,
    inputs: &[Input],
    mark: &StreamPosition,
    follows: bool,
) -> ApplyPlan {
    let ends = match follows {
        true => "never: lines appended to the last file are applied, too",
        false => "with the last file",
    };
    let begins = match mark.ordinal {
        0 => "with the first event".to_owned(),
        number => format!("after {number} events, up to {}", mark.source),
    };
    ApplyPlan {
        stream,
        sources: inputs.iter().map(|input| input.name().to_owned()).collect(),
        events_before: mark.ordinal,
        begins: vec![begins],
        ends: ends.to_owned(),
        tables: Vec::new(),
    }
}

/// Plans a run that reads topics.
fn plan_topics(
    stream: String,
    topics: &KafkaTopics,
    rows: &[(String, StreamPosition)],
    mark: &StreamPosition,
    follows: bool,
) -> Result<ApplyPlan> {
    let partitions = topics.begin(&stream, mark, rows)?;
    let describe_topic = |topic: &String| {
        let count = partitions.iter().filter(|it| it.topic == *topic).count();
        format!("topic {topic}, {count} {}", if count == 1 { "partition" } else { "partitions" })
    };
    let begin = |it: &TopicPartition| match it.next {
        next if next >= it.end => format!("{} at its end, offset {next}", it.name()),
        next => format!("{} at offset {next}, {} behind", it.name(), it.end - next),
    };
    Ok(ApplyPlan {
        stream,
        sources: topics.names().iter().map(describe_topic).collect(),
        events_before: mark.ordinal,
        begins: partitions.iter().map(begin).collect(),
        ends: match follows {
            true => "never: new messages are applied when they arrive",
            false => "where each partition ends now",
        }
        .to_owned(),
        tables: Vec::new(),
    })
}

/// Reads the ledger's positions of the stream's partitions.
pub(super) async fn read_partition_positions(
    dsn: &Dsn,
    stream: &str,
) -> Result<Vec<(String, StreamPosition)>> {
    let connection = dsn.connect("pgspate apply").await?;
    let parts = ledger::read_partitions(&connection.client, stream).await;
    connection.close().await;
    parts
}

/// Reads the ledger's position of the stream.
pub(super) async fn read_position_in_ledger(dsn: &Dsn, stream: &str) -> Result<StreamPosition> {
    let connection = dsn.connect("pgspate apply").await?;
    let mark = ledger::read_stream_position(&connection.client, stream, "").await;
    connection.close().await;
    mark
}

/// Returns in words where the run of a slot begins, and what the run does before it applies events.
fn describe_begin(slot: &Slot, begin: SlotStart) -> Vec<String> {
    let create_slot = format!("create replication slot {}", slot.name);
    let copy_rows = "copy the rows of all tables, as of the start of the slot, through the lanes \
                     of a load";
    let mut begins = match begin {
        SlotStart::ContinueStream(from) => return vec![format!("after {from}")],
        SlotStart::CreateSlot => {
            return vec![create_slot, "apply the transactions that commit later".to_owned()];
        }
        SlotStart::InitialCopy { again: false } => Vec::new(),
        SlotStart::InitialCopy { again: true } => {
            vec![format!("truncate the tables of an interrupted copy, and drop slot {}", slot.name)]
        }
    };
    begins.extend([
        create_slot,
        copy_rows.to_owned(),
        "apply the transactions that commit later".to_owned(),
    ]);
    begins
}

/// Returns the target of each published table, and why events of the table could not be applied.
fn plan_tables(published: Vec<PublishedTable>, router: &Router) -> Result<Vec<ApplyPlanTable>> {
    let mut tables = Vec::new();
    for table in published {
        let schema = table.name.schema.as_deref().unwrap_or_default();
        let from = format!("{schema}.{}", table.name.table);
        tables.push(match router.table_for(&table.name) {
            Ok(None) => ApplyPlanTable { from, to: None, key: Vec::new(), problem: None },
            Ok(Some(facts)) => {
                let key =
                    facts.fold_key.columns.iter().map(|(at, _)| facts.columns[*at].name.clone());
                let is_missing = |column: &&String| {
                    let mut own = facts.columns.iter().map(|column| &column.name);
                    !own.any(|own| own == *column) && !facts.generated.contains(column)
                };
                let missing = table.columns.iter().find(is_missing);
                ApplyPlanTable {
                    from,
                    to: Some(facts.table.sql_name.clone()),
                    key: key.collect(),
                    problem: missing
                        .map(|name| format!("the target table has no column \"{name}\"")),
                }
            }
            Err(error) if error.is_retryable() => return Err(error),
            Err(error) => {
                let problem = Some(error.to_string());
                ApplyPlanTable { from, to: None, key: Vec::new(), problem }
            }
        });
    }
    Ok(tables)
}
