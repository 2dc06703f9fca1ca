//! The ways of applying changes.
//!
//! All but pgspate have the events in memory before the clock starts; pgspate reads them as JSON
//! from a file. Each batch is one transaction.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pgspate::apply::{self, Watch};
use pgspate::target::connect::Connection;
use pgspate::{Error, Kind, Result};
use tokio_postgres::Statement;

use super::super::ways::{Prepared, Text, execute, failed, places, rows_per_statement};
use super::events::{COLUMNS, Event, Row};
use crate::Ground;

/// How changes are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Statements,
    Values,
    Unnest,
    Apply,
}

impl Way {
    pub(super) const ALL: [Way; 4] = [Way::Statements, Way::Values, Way::Unnest, Way::Apply];

    pub(super) fn name(self) -> &'static str {
        match self {
            Way::Statements => "prepared statements",
            Way::Values => "multi-row VALUES",
            Way::Unnest => "UNNEST of arrays",
            Way::Apply => "pgspate apply",
        }
    }

    pub(super) fn named(name: &str) -> Way {
        Way::ALL.into_iter().find(|way| way.name() == name).unwrap_or(Way::Statements)
    }
}

/// A session that applies events, with its statements.
pub(super) struct Writer<'a> {
    ground: &'a Ground,
    connection: Connection,
    insert: Statement,
    update: Statement,
    delete: Statement,
    delete_any: Statement,
    unnest: Statement,
    values: Prepared,
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

/// Inserts rows, or updates those that are there.
fn upsert(rows: &str) -> String {
    let sets = sets(|_, name| format!("excluded.{name}"));
    format!("insert into orders ({}) {rows} on conflict (id) do update set {sets}", names())
}

impl<'a> Writer<'a> {
    pub(super) fn open(ground: &'a Ground) -> Result<Writer<'a>> {
        let connection = ground.connect()?;
        let types = COLUMNS.map(|(_, kind)| kind);
        let insert = format!("insert into orders ({}) values {}", names(), places(1, &types));
        let update = sets(|nth, _| format!("${}::{}", nth + 1, types[nth]));
        let update = format!("update orders set {update} where id = $1");
        let arrays: Vec<_> = (1..=types.len()).map(|nth| format!("${nth}::text[]")).collect();
        let arrays = arrays.iter().zip(types).map(|(place, kind)| format!("{place}::{kind}[]"));
        let arrays = arrays.collect::<Vec<_>>().join(", ");
        let unnest = upsert(&format!("select * from unnest({arrays})"));
        let delete_any = "delete from orders where id = any($1)";
        let all = ["delete from orders where id = $1", delete_any, &insert, &update, &unnest];
        let mut statements = Vec::new();
        ground.block_on(async {
            for sql in all {
                let statement = connection.client.prepare(sql).await;
                statements.push(statement.map_err(failed(&connection, "prepare a statement"))?);
            }
            Ok(())
        })?;
        let [delete, delete_any, insert, update, unnest] = statements
            .try_into()
            .map_err(|_| Error::new(Kind::Bug, "a statement was not prepared"))?;
        let values = Prepared::default();
        Ok(Writer { ground, connection, insert, update, delete, delete_any, unnest, values })
    }

    /// Applies all events, so many in a transaction.
    pub(super) fn write(&mut self, way: Way, events: &[Event], batch: usize) -> Result<()> {
        let ground = self.ground;
        ground.block_on(async {
            for some in events.chunks(batch) {
                // A statement is a transaction of its own anyway.
                let is_alone = way == Way::Statements && some.len() == 1;
                if !is_alone {
                    self.plain("begin").await?;
                }
                let done = match way {
                    Way::Statements => self.each(some).await,
                    _ => self.folded(way, some).await,
                };
                done.map_err(failed(&self.connection, "apply events"))?;
                if !is_alone {
                    self.plain("commit").await?;
                }
            }
            Ok(())
        })
    }

    async fn plain(&self, sql: &str) -> Result<()> {
        let done = self.connection.client.batch_execute(sql).await;
        done.map_err(failed(&self.connection, "end a transaction"))
    }

    /// A prepared statement for each event, and its answer is waited for.
    async fn each(&self, events: &[Event]) -> Result<(), tokio_postgres::Error> {
        let client = &self.connection.client;
        for event in events {
            match event {
                Event::Insert(row) => execute(client, &self.insert, row).await?,
                Event::Update(row) => execute(client, &self.update, row).await?,
                Event::Delete(key) => execute(client, &self.delete, &[key]).await?,
            };
        }
        Ok(())
    }

    /// The last event of each key: a delete of many rows, and an upsert of many.
    async fn folded(&mut self, way: Way, events: &[Event]) -> Result<(), tokio_postgres::Error> {
        let mut last: HashMap<&str, &Event> = HashMap::with_capacity(events.len());
        for event in events {
            last.insert(event.key(), event);
        }
        let mut rows: Vec<&Row> = Vec::new();
        let mut gone: Vec<i64> = Vec::new();
        for (key, event) in last {
            match event {
                Event::Insert(row) | Event::Update(row) => rows.push(row),
                Event::Delete(_) => gone.extend(key.parse::<i64>()),
            }
        }
        if !gone.is_empty() {
            self.connection.client.execute(&self.delete_any, &[&gone]).await?;
        }
        match way {
            Way::Values => self.values(&rows).await,
            _ => self.unnest(&rows).await,
        }
    }

    async fn values(&mut self, rows: &[&Row]) -> Result<(), tokio_postgres::Error> {
        for some in rows.chunks(rows_per_statement(COLUMNS.len())) {
            let client = &self.connection.client;
            let sql = || {
                let values = places(some.len(), &COLUMNS.map(|(_, kind)| kind));
                upsert(&format!("values {values}"))
            };
            let statement = self.values.of(client, some.len(), sql).await?;
            let values: Vec<Text<'_>> =
                some.iter().flat_map(|row| row.iter().map(|value| Text(value))).collect();
            client.execute_raw(&statement, values).await?;
        }
        Ok(())
    }

    async fn unnest(&self, rows: &[&Row]) -> Result<(), tokio_postgres::Error> {
        if rows.is_empty() {
            return Ok(());
        }
        let column = |nth: usize| rows.iter().map(|row| row[nth].as_str()).collect::<Vec<_>>();
        let columns: [Vec<&str>; COLUMNS.len()] = std::array::from_fn(column);
        self.connection.client.execute_raw(&self.unnest, &columns).await?;
        Ok(())
    }
}

/// Applies the events of a file through pgspate.
pub(super) fn apply_file(ground: &Ground, path: &str, batch: usize) -> Result<apply::Report> {
    let options = apply::Options {
        sources: vec![path.to_owned()],
        stream: Some(ground.stream()),
        batch_rows: batch as u64,
        // Batches are cut by their size alone, also when nothing is being written.
        batch_delay: Duration::from_secs(60),
        ..apply::Options::default()
    };
    let watch = Arc::new(Watch::default());
    let stopping = Arc::clone(&watch);
    ground.stoppable(
        move || stopping.cancel(),
        || {
            let apply = apply::prepare(options, ground.dsn().clone(), ground.runtime())?;
            apply.run(&watch, ground.runtime())
        },
    )
}
