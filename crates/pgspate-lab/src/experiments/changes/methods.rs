//! The methods of applying changes.
//!
//! All methods except pgspate have the events in memory before the clock starts. pgspate reads the
//! events as JSON from a file. Each batch is one transaction.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::try_join;
use futures_util::{FutureExt as _, SinkExt as _, TryFutureExt as _};
use pgspate::apply::{self, ApplyWatch};
use pgspate::target::connect::Connection;
use pgspate::{Error, ErrorKind, Result};
use tokio_postgres::Statement;

use super::super::sending::{
    StatementCache, TextValue, execute, failed, in_order, placeholders, rows_per_statement,
};
use super::events::{COLUMNS, OrderEvent, OrderRow};
use crate::TrialContext;

/// A method of applying changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangeMethod {
    Statements,
    Pipelined,
    Values,
    Unnest,
    Staged,
    Apply,
}

impl ChangeMethod {
    pub(super) const ALL: [ChangeMethod; 6] = [
        ChangeMethod::Statements,
        ChangeMethod::Pipelined,
        ChangeMethod::Values,
        ChangeMethod::Unnest,
        ChangeMethod::Staged,
        ChangeMethod::Apply,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            ChangeMethod::Statements => "prepared statements",
            ChangeMethod::Pipelined => "pipelined statements",
            ChangeMethod::Values => "multi-row VALUES",
            ChangeMethod::Unnest => "UNNEST of arrays",
            ChangeMethod::Staged => "COPY + stage",
            ChangeMethod::Apply => "pgspate apply",
        }
    }

    pub(super) fn named(name: &str) -> ChangeMethod {
        ChangeMethod::ALL
            .into_iter()
            .find(|way| way.name() == name)
            .unwrap_or(ChangeMethod::Statements)
    }
}

/// A session that applies events, with its statements.
pub(super) struct ChangeWriter<'a> {
    context: &'a TrialContext,
    connection: Connection,
    insert: Statement,
    update: Statement,
    delete: Statement,
    delete_any: Statement,
    unnest: Statement,
    values: StatementCache,
    stage: Option<ChangeStage>,
}

/// The staging table of the method that copies each batch into a temporary table first.
struct ChangeStage {
    copy: Statement,
    apply: Statement,
}

impl ChangeStage {
    async fn open(connection: &Connection) -> Result<ChangeStage> {
        let client = &connection.client;
        let wrong = failed(connection, "prepare a stage");
        let table = "create temp table stage (like orders, gone boolean) on commit delete rows";
        client.batch_execute(table).await.map_err(&wrong)?;
        let rows = upsert(&format!("select {} from stage where not gone", names()));
        // `= any(array(...))` finds rows by the key at every batch size. The staging table is never
        // analyzed, so the server might plan a join as a scan of the whole target table.
        let apply = format!(
            "with deleted as (delete from orders \
             where id = any(array(select id from stage where gone))) {rows}"
        );
        let copy = client.prepare("copy stage from stdin").await.map_err(&wrong)?;
        Ok(ChangeStage { copy, apply: client.prepare(&apply).await.map_err(&wrong)? })
    }
}

/// `customer = excluded.customer, ...`
fn sets(value: impl Fn(usize, &str) -> String) -> String {
    let all = COLUMNS.iter().enumerate().skip(1);
    let all: Vec<_> =
        all.map(|(nth, (name, _))| format!("{name} = {}", value(nth, name))).collect();
    all.join(", ")
}

fn names() -> String {
    COLUMNS.map(|(name, _)| name).join(", ")
}

/// Returns an upsert of `rows`.
fn upsert(rows: &str) -> String {
    let sets = sets(|_, name| format!("excluded.{name}"));
    format!("insert into orders ({}) {rows} on conflict (id) do update set {sets}", names())
}

impl<'a> ChangeWriter<'a> {
    pub(super) fn open(way: ChangeMethod, context: &'a TrialContext) -> Result<ChangeWriter<'a>> {
        let connection = context.connect()?;
        let types = COLUMNS.map(|(_, kind)| kind);
        let insert = format!("insert into orders ({}) values {}", names(), placeholders(1, &types));
        let update = sets(|nth, _| format!("${}::{}", nth + 1, types[nth]));
        let update = format!("update orders set {update} where id = $1");
        let arrays: Vec<_> = (1..=types.len()).map(|nth| format!("${nth}::text[]")).collect();
        let arrays = arrays.iter().zip(types).map(|(place, kind)| format!("{place}::{kind}[]"));
        let arrays = arrays.collect::<Vec<_>>().join(", ");
        let unnest = upsert(&format!("select * from unnest({arrays})"));
        let delete_any = "delete from orders where id = any($1)";
        let all = ["delete from orders where id = $1", delete_any, &insert, &update, &unnest];
        let mut statements = Vec::new();
        context.block_on(async {
            for sql in all {
                let statement = connection.client.prepare(sql).await;
                statements.push(statement.map_err(failed(&connection, "prepare a statement"))?);
            }
            Ok(())
        })?;
        let [delete, delete_any, insert, update, unnest] = statements
            .try_into()
            .map_err(|_| Error::new(ErrorKind::Bug, "a statement was not prepared"))?;
        let values = StatementCache::default();
        let stage = match way {
            ChangeMethod::Staged => Some(context.block_on(ChangeStage::open(&connection))?),
            _ => None,
        };
        Ok(ChangeWriter {
            context,
            connection,
            insert,
            update,
            delete,
            delete_any,
            unnest,
            values,
            stage,
        })
    }

    /// Applies all events, `batch` events in each transaction.
    pub(super) fn write(
        &mut self,
        way: ChangeMethod,
        events: &[OrderEvent],
        batch: usize,
    ) -> Result<()> {
        let context = self.context;
        context.block_on(async {
            for some in events.chunks(batch) {
                match way {
                    ChangeMethod::Pipelined => self.pipelined(some).await,
                    ChangeMethod::Staged => self.staged(some).await,
                    _ => self.waited(way, some).await,
                }
                .map_err(failed(&self.connection, "apply events"))?;
            }
            Ok(())
        })
    }

    /// Applies a batch and waits for the reply to each statement.
    async fn waited(
        &mut self,
        way: ChangeMethod,
        events: &[OrderEvent],
    ) -> Result<(), tokio_postgres::Error> {
        // A single statement is its own transaction.
        let is_alone = way == ChangeMethod::Statements && events.len() == 1;
        if !is_alone {
            self.connection.client.batch_execute("begin").await?;
        }
        match way {
            ChangeMethod::Statements => self.each(events).await?,
            _ => self.folded(way, events).await?,
        }
        if !is_alone {
            self.connection.client.batch_execute("commit").await?;
        }
        Ok(())
    }

    /// Executes a prepared statement for each event, and waits for each reply.
    async fn each(&self, events: &[OrderEvent]) -> Result<(), tokio_postgres::Error> {
        for event in events {
            self.one(event).await?;
        }
        Ok(())
    }

    async fn one(&self, event: &OrderEvent) -> Result<u64, tokio_postgres::Error> {
        let client = &self.connection.client;
        match event {
            OrderEvent::Insert(row) => execute(client, &self.insert, row).await,
            OrderEvent::Update(row) => execute(client, &self.update, row).await,
            OrderEvent::Delete(key) => execute(client, &self.delete, &[key]).await,
        }
    }

    /// Sends all statements without waiting, including begin and commit, as drivers send batches.
    async fn pipelined(&self, events: &[OrderEvent]) -> Result<(), tokio_postgres::Error> {
        let plain = |sql: &'static str| {
            let done = self.connection.client.batch_execute(sql);
            done.map_ok(|()| 0).boxed_local()
        };
        let statements = events.iter().map(|event| self.one(event).boxed_local());
        in_order([plain("begin")].into_iter().chain(statements).chain([plain("commit")])).await?;
        Ok(())
    }

    /// Copies the last event of each key into the staging table, and applies them in one statement.
    ///
    /// The session waits for a reply only if the next message depends on the reply.
    async fn staged(&self, events: &[OrderEvent]) -> Result<(), tokio_postgres::Error> {
        let Some(stage) = &self.stage else { return Ok(()) };
        let client = &self.connection.client;
        let (rows, gone) = last_events(events);
        let mut text = String::new();
        for row in rows {
            text += &row.join("\t");
            text += "\tf\n";
        }
        let nulls = "\t\\N".repeat(COLUMNS.len() - 1);
        for key in gone {
            text += &format!("{key}{nulls}\tt\n");
        }
        let begin = client.batch_execute("begin");
        let ((), sink) = try_join(begin, client.copy_in::<_, Bytes>(&stage.copy)).await?;
        let mut sink = Box::pin(sink);
        sink.send(Bytes::from(text)).await?;
        sink.as_mut().finish().await?;
        let apply = client.execute(&stage.apply, &[]).boxed_local();
        let commit = client.batch_execute("commit").map_ok(|()| 0).boxed_local();
        in_order([apply, commit]).await?;
        Ok(())
    }

    /// Applies the last event of each key by one multi-row DELETE and one multi-row upsert.
    async fn folded(
        &mut self,
        way: ChangeMethod,
        events: &[OrderEvent],
    ) -> Result<(), tokio_postgres::Error> {
        let (rows, gone) = last_events(events);
        if !gone.is_empty() {
            self.connection.client.execute(&self.delete_any, &[&gone]).await?;
        }
        match way {
            ChangeMethod::Values => self.values(&rows).await,
            _ => self.unnest(&rows).await,
        }
    }

    async fn values(&mut self, rows: &[&OrderRow]) -> Result<(), tokio_postgres::Error> {
        for some in rows.chunks(rows_per_statement(COLUMNS.len())) {
            let client = &self.connection.client;
            let sql = || {
                let values = placeholders(some.len(), &COLUMNS.map(|(_, kind)| kind));
                upsert(&format!("values {values}"))
            };
            let statement = self.values.of(client, some.len(), sql).await?;
            let values: Vec<TextValue<'_>> =
                some.iter().flat_map(|row| row.iter().map(|value| TextValue(value))).collect();
            client.execute_raw(&statement, values).await?;
        }
        Ok(())
    }

    async fn unnest(&self, rows: &[&OrderRow]) -> Result<(), tokio_postgres::Error> {
        if rows.is_empty() {
            return Ok(());
        }
        let column = |nth: usize| rows.iter().map(|row| row[nth].as_str()).collect::<Vec<_>>();
        let columns: [Vec<&str>; COLUMNS.len()] = std::array::from_fn(column);
        self.connection.client.execute_raw(&self.unnest, &columns).await?;
        Ok(())
    }
}

/// Returns the last event of each key, as rows to write and keys to delete.
fn last_events(events: &[OrderEvent]) -> (Vec<&OrderRow>, Vec<i64>) {
    let mut last: HashMap<&str, &OrderEvent> = HashMap::with_capacity(events.len());
    for event in events {
        last.insert(event.key(), event);
    }
    let (mut rows, mut gone): (Vec<&OrderRow>, Vec<i64>) = Default::default();
    for (key, event) in last {
        match event {
            OrderEvent::Insert(row) | OrderEvent::Update(row) => rows.push(row),
            OrderEvent::Delete(_) => gone.extend(key.parse::<i64>()),
        }
    }
    (rows, gone)
}

/// Applies the events of a file through pgspate.
pub(super) fn apply_file(
    context: &TrialContext,
    path: &str,
    batch: usize,
) -> Result<apply::ApplyReport> {
    let options = apply::ApplyOptions {
        sources: vec![path.to_owned()],
        stream: Some(context.stream()),
        batch_rows: batch as u64,
        // A batch ends only at its size, even while no other batch is being written.
        batch_delay: Duration::from_secs(60),
        ..apply::ApplyOptions::default()
    };
    let watch = Arc::new(ApplyWatch::default());
    let stopping = Arc::clone(&watch);
    context.stoppable(
        move || stopping.cancel(),
        || {
            let apply = apply::prepare(options, context.dsn().clone(), context.runtime())?;
            apply.run(&watch, context.runtime())
        },
    )
}
