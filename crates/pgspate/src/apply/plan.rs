//! What a run would do, found out without doing any of it.
//!
//! Nothing is written: not the ledger, whose fence would end a run that is under way, and no slot.

use serde::Serialize;
use tokio::runtime::Handle;

use super::options::ApplyOptions;
use super::origin::{StreamOrigin, find, name};
use super::route::{TableMap, Router};
use crate::Result;
use crate::source::Input;
use pgspate_replication::kafka::{Partition, Topics};
use pgspate_replication::postgres::PublishedTable;
use pgspate_replication::slot::{Begin, Slot};
use pgspate_target::connect::Dsn;
use pgspate_target::ledger::{self, Mark};

/// What a run would do.
#[derive(Debug, Clone, Serialize)]
pub struct ApplyPlan {
    /// The stream's name in the ledger.
    pub stream: String,
    /// What is read, in its order.
    pub sources: Vec<String>,
    /// Events that are applied already.
    pub events_before: u64,
    /// Where it begins, and what is done first.
    pub begins: Vec<String>,
    /// Where it ends.
    pub ends: String,
    /// Of a slot: the tables of the publication, as they are now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<ApplyPlanTable>,
}

/// A table of a publication.
#[derive(Debug, Clone, Serialize)]
pub struct ApplyPlanTable {
    /// Its name on the source.
    pub from: String,
    /// The table that its events go to, as SQL writes it; none when it is left out.
    pub to: Option<String>,
    /// The columns by which rows are found on the target; none where whole rows are compared.
    pub key: Vec<String>,
    /// What is in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Finds out what a run would do. Blocks; call it from a thread that is not one of `runtime`'s.
///
/// # Errors
/// As [`super::prepare`].
pub fn plan(options: &ApplyOptions, dsn: Dsn, runtime: &Handle) -> Result<ApplyPlan> {
    let dsn = dsn.with_stall_timeout(options.limits.stall_timeout);
    let names = TableMap::parse(&options.maps, &options.tables)?;
    let found = find(options, runtime)?;
    let stream = name(options, &found)?;
    let mark = runtime.block_on(read_mark(&dsn, &stream))?;
    let slot = match found {
        StreamOrigin::Slot(slot) => *slot,
        StreamOrigin::Inputs(inputs) => return Ok(of_inputs(stream, &inputs, &mark, options.follows)),
        StreamOrigin::Topics(topics) => {
            let rows = runtime.block_on(read_parts(&dsn, &stream))?;
            return of_topics(stream, &topics, &rows, &mark, options.follows);
        }
    };
    let begin = Begin::choose(&slot, &mark, options.creates_slot, options.copies_rows)?;
    let unknown = options.unknown_columns;
    let router = Router::new(dsn, names, unknown, options.limits, runtime.clone());
    let router = runtime.block_on(router)?;
    Ok(ApplyPlan {
        stream,
        sources: vec![format!("{} of publication {}", slot.title(), slot.publication)],
        events_before: mark.ordinal,
        begins: begins(&slot, begin),
        ends: match options.follows {
            true => "never: what is committed is applied as it comes".to_owned(),
            false => format!("at {}, where the source's log ends now", slot.log_end),
        },
        tables: tables(runtime.block_on(slot.tables())?, &router)?,
    })
}

fn of_inputs(stream: String, inputs: &[Input], mark: &Mark, follows: bool) -> ApplyPlan {
    let ends = match follows {
        true => "never: what is appended to the last file is applied, too",
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

fn of_topics(
    stream: String,
    topics: &Topics,
    rows: &[(String, Mark)],
    mark: &Mark,
    follows: bool,
) -> Result<ApplyPlan> {
    let partitions = topics.begin(&stream, mark, rows)?;
    let of = |topic: &String| {
        let count = partitions.iter().filter(|it| it.topic == *topic).count();
        format!("topic {topic}, {count} {}", if count == 1 { "partition" } else { "partitions" })
    };
    let begin = |it: &Partition| match it.next {
        next if next >= it.end => format!("{} at its end, offset {next}", it.name()),
        next => format!("{} at offset {next}, {} behind", it.name(), it.end - next),
    };
    Ok(ApplyPlan {
        stream,
        sources: topics.names().iter().map(of).collect(),
        events_before: mark.ordinal,
        begins: partitions.iter().map(begin).collect(),
        ends: match follows {
            true => "never: what is written is applied as it comes",
            false => "where each partition ends now",
        }
        .to_owned(),
        tables: Vec::new(),
    })
}

/// The parts of a stream that the ledger knows, and where they are.
pub(super) async fn read_parts(dsn: &Dsn, stream: &str) -> Result<Vec<(String, Mark)>> {
    let connection = dsn.connect("pgspate apply").await?;
    let parts = ledger::read_parts(&connection.client, stream).await;
    connection.close().await;
    parts
}

pub(super) async fn read_mark(dsn: &Dsn, stream: &str) -> Result<Mark> {
    let connection = dsn.connect("pgspate apply").await?;
    let mark = ledger::read_mark(&connection.client, stream, "").await;
    connection.close().await;
    mark
}

fn begins(slot: &Slot, begin: Begin) -> Vec<String> {
    let makes = format!("make replication slot {}", slot.name);
    let copies = "copy the rows of all tables, as they are where the slot begins, through the \
                  lanes of a load";
    let mut begins = match begin {
        Begin::Stream(from) => return vec![format!("after {from}")],
        Begin::Slot => return vec![makes, "with what is committed from then on".to_owned()],
        Begin::Copy { again: false } => Vec::new(),
        Begin::Copy { again: true } => vec![format!(
            "empty the tables that a copy was filling which did not end, and drop slot {}",
            slot.name
        )],
    };
    begins.extend([makes, copies.to_owned(), "with what is committed from then on".to_owned()]);
    begins
}

fn tables(published: Vec<PublishedTable>, router: &Router) -> Result<Vec<ApplyPlanTable>> {
    let mut tables = Vec::new();
    for table in published {
        let schema = table.name.schema.as_deref().unwrap_or_default();
        let from = format!("{schema}.{}", table.name.table);
        tables.push(match router.facts(&table.name) {
            Ok(None) => ApplyPlanTable { from, to: None, key: Vec::new(), problem: None },
            Ok(Some(facts)) => {
                let key =
                    facts.keying.columns.iter().map(|(at, _)| facts.columns[*at].name.clone());
                let lacks = |column: &&String| {
                    let mut own = facts.columns.iter().map(|column| &column.name);
                    !own.any(|own| own == *column) && !facts.generated.contains(column)
                };
                let problem = table.columns.iter().find(lacks);
                ApplyPlanTable {
                    from,
                    to: Some(facts.table.sql_name.clone()),
                    key: key.collect(),
                    problem: problem.map(|name| format!("it has no column \"{name}\"")),
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
