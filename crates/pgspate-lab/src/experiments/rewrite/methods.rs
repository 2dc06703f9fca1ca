//! The ways of replacing a night's results.
//!
//! All but pgspate have the night's rows in memory, as text, before the clock starts, and write
//! one meter per transaction, as results come meter by meter. pgspate reads them from a file and
//! writes them in one transaction.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::SinkExt as _;
use pgspate::format::sniff::{Format, SniffOverrides};
use pgspate::measure::{Measurement, PRICE_PER_MILLION};
use pgspate::plan::RowRequest;
use pgspate::reading::{self, LoadWatch};
use pgspate::sync::{self, Scope};
use pgspate::target::connect::Connection;
use pgspate::{Error, ErrorKind, Result};
use tokio_postgres::Statement;

use super::super::sending::{TextValue, failed, pipelined};
use crate::TrialContext;
use crate::data::meters::{self, NightlyPredictions};
use crate::data::{GeneratedRows, meters::Prediction};

/// A method of replacing a night's results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RewriteMethod {
    DeleteInsert,
    Upsert,
    Orm,
    Merge,
    Sync,
    SyncWithRoom,
    /// Two sessions share the meters.
    SyncShared,
    /// Writes half of the meters, vacuums, writes the other half, and vacuums again.
    SyncInTurns,
}

impl RewriteMethod {
    pub(super) const ALL: [RewriteMethod; 8] = [
        RewriteMethod::DeleteInsert,
        RewriteMethod::Upsert,
        RewriteMethod::Orm,
        RewriteMethod::Merge,
        RewriteMethod::Sync,
        RewriteMethod::SyncWithRoom,
        RewriteMethod::SyncShared,
        RewriteMethod::SyncInTurns,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            RewriteMethod::DeleteInsert => "delete + insert",
            RewriteMethod::Upsert => "upsert",
            RewriteMethod::Orm => "row by row, what differs",
            RewriteMethod::Merge => "stage + MERGE",
            RewriteMethod::Sync => "pgspate sync",
            RewriteMethod::SyncWithRoom => "pgspate sync, fillfactor 60",
            RewriteMethod::SyncShared => "pgspate sync --lanes 2",
            RewriteMethod::SyncInTurns => "pgspate sync --vacuum, 2 turns",
        }
    }

    pub(super) fn named(name: &str) -> RewriteMethod {
        RewriteMethod::ALL
            .into_iter()
            .find(|way| way.name() == name)
            .unwrap_or(RewriteMethod::DeleteInsert)
    }

    fn is_ours(self) -> bool {
        matches!(
            self,
            RewriteMethod::Sync
                | RewriteMethod::SyncWithRoom
                | RewriteMethod::SyncShared
                | RewriteMethod::SyncInTurns
        )
    }
}

/// The meter, the time and the prediction of a row.
type PredictionRow = [String; 3];

/// A job that writes night after night.
pub(super) struct NightlyJob<'a> {
    way: RewriteMethod,
    context: &'a TrialContext,
    connection: Connection,
    statements: HashMap<&'static str, Statement>,
    /// The night's rows, by meter.
    rows: Vec<Vec<PredictionRow>>,
    /// The night's file.
    path: PathBuf,
}

const INSERT: &str = "insert into use_prediction (meter, occurred, prediction) values ($1, $2, $3)";
const UPSERT: &str = "insert into use_prediction (meter, occurred, prediction) \
                      values ($1, $2, $3) \
                      on conflict (meter, occurred) do update set prediction = excluded.prediction";
const UPDATE: &str = "update use_prediction set prediction = $3 where meter = $1 and occurred = $2";
const DELETE: &str = "delete from use_prediction where meter = $1 and occurred = $2";
const DELETE_METER: &str = "delete from use_prediction where meter = $1";
/// Deletes by a join: the generic plan for `not occurred = any($2)` compares each row with each
/// value.
const DELETE_OTHERS: &str = "delete from use_prediction t where meter = $1 and not exists \
                             (select from unnest($2::timestamp[]) kept(occurred) \
                             where kept.occurred = t.occurred)";
const SELECT: &str = "select occurred::text, prediction::text from use_prediction where meter = $1";
const STAGE: &str = "create temp table stage (like use_prediction) on commit drop";
const COPY_STAGE: &str = "copy stage from stdin";
const MERGE: &str = "merge into use_prediction t using stage s \
                     on t.meter = s.meter and t.occurred = s.occurred \
                     when matched and t.prediction is distinct from s.prediction \
                     then update set prediction = s.prediction \
                     when not matched then insert values (s.meter, s.occurred, s.prediction)";
const DELETE_UNSTAGED: &str = "delete from use_prediction t where t.meter = $1 and not exists \
                               (select from stage s where s.meter = t.meter \
                               and s.occurred = t.occurred)";

impl<'a> NightlyJob<'a> {
    pub(super) fn open(way: RewriteMethod, context: &'a TrialContext) -> Result<NightlyJob<'a>> {
        let connection = context.connect()?;
        let wanted: &[&str] = match way {
            RewriteMethod::DeleteInsert => &[DELETE_METER, INSERT],
            RewriteMethod::Upsert => &[UPSERT, DELETE_OTHERS],
            RewriteMethod::Orm => &[SELECT, INSERT, UPDATE, DELETE],
            _ => &[],
        };
        let mut statements = HashMap::new();
        context.block_on(async {
            for sql in wanted {
                let statement = connection.client.prepare(sql).await;
                let statement = statement.map_err(failed(&connection, "prepare a statement"))?;
                statements.insert(*sql, statement);
            }
            Ok(())
        })?;
        let path = context.scratch().join("night.txt");
        Ok(NightlyJob { way, context, connection, statements, rows: Vec::new(), path })
    }

    /// Generates a night's results. This work is not measured.
    pub(super) fn take(&mut self, nights: &NightlyPredictions, night: u32) -> Result<()> {
        if !self.way.is_ours() {
            let row =
                |meter: u32, of: &Prediction| [meter.to_string(), of.occurred(), of.prediction()];
            let meter =
                |(meter, all): (u32, &[Prediction])| all.iter().map(|of| row(meter, of)).collect();
            self.rows = nights.meters().map(meter).collect();
            return Ok(());
        }
        let mut text = Vec::new();
        let mut rows = nights.text();
        while rows.append(&mut text) {}
        self.path = self.context.scratch().join(format!("night-{night}.txt"));
        fs::write(&self.path, text).map_err(|error| {
            let message = format!("could not write \"{}\"", self.path.display());
            Error::new(ErrorKind::Source, message).because(error)
        })
    }

    /// Writes the night's results to the table.
    pub(super) fn write(&self) -> Result<()> {
        if self.way.is_ours() {
            return self.sync();
        }
        self.context.block_on(async {
            let failed = failed(&self.connection, "write a meter's results");
            for (meter, rows) in (1..).zip(&self.rows) {
                let meter: i32 = meter;
                self.connection.client.batch_execute("begin").await.map_err(&failed)?;
                match self.way {
                    RewriteMethod::DeleteInsert => self.delete_insert(meter, rows).await,
                    RewriteMethod::Upsert => self.upsert(meter, rows).await,
                    RewriteMethod::Orm => self.orm(meter, rows).await,
                    _ => self.merge(meter, rows).await,
                }
                .map_err(&failed)?;
                self.connection.client.batch_execute("commit").await.map_err(&failed)?;
            }
            Ok(())
        })
    }

    /// Makes this session publish its counters.
    pub(super) fn flush_counters(&self) -> Result<()> {
        self.context.block_on(async {
            Measurement::take(&self.connection.client, &[]).await;
            Ok(())
        })
    }

    /// Deletes the meter's old rows and inserts the new rows.
    async fn delete_insert(
        &self,
        meter: i32,
        rows: &[PredictionRow],
    ) -> Result<(), tokio_postgres::Error> {
        let client = &self.connection.client;
        client.execute(&self.statements[DELETE_METER], &[&meter]).await?;
        pipelined(client, &self.statements[INSERT], rows).await?;
        Ok(())
    }

    /// Writes every row, changed or not, then deletes the rows that are absent tonight.
    async fn upsert(
        &self,
        meter: i32,
        rows: &[PredictionRow],
    ) -> Result<(), tokio_postgres::Error> {
        let client = &self.connection.client;
        pipelined(client, &self.statements[UPSERT], rows).await?;
        let kept: Vec<String> = rows.iter().map(|row| format!("\"{}\"", row[1])).collect();
        let kept = format!("{{{}}}", kept.join(","));
        client.execute(&self.statements[DELETE_OTHERS], &[&meter, &TextValue(&kept)]).await?;
        Ok(())
    }

    /// Reads and compares the old rows, and runs one statement for each row that differs.
    async fn orm(&self, meter: i32, rows: &[PredictionRow]) -> Result<(), tokio_postgres::Error> {
        let client = &self.connection.client;
        let read = client.query(&self.statements[SELECT], &[&meter]).await?;
        let mut old: HashMap<&str, &str> =
            read.iter().map(|row| (row.get(0), row.get(1))).collect();
        let (mut inserts, mut updates) = (Vec::new(), Vec::new());
        for row in rows {
            match old.remove(row[1].as_str()) {
                None => inserts.push(row),
                Some(known) if known != row[2] => updates.push(row),
                Some(_) => {}
            }
        }
        let of_meter = meter.to_string();
        let gone = old.keys().map(|occurred| [of_meter.as_str(), occurred]);
        pipelined(client, &self.statements[DELETE], gone).await?;
        pipelined(client, &self.statements[UPDATE], updates).await?;
        pipelined(client, &self.statements[INSERT], inserts).await?;
        Ok(())
    }

    /// Copies into a temporary table, merges the differences, and deletes absent rows.
    async fn merge(&self, meter: i32, rows: &[PredictionRow]) -> Result<(), tokio_postgres::Error> {
        let client = &self.connection.client;
        client.batch_execute(STAGE).await?;
        let mut text = String::new();
        for row in rows {
            text += &format!("{}\t{}\t{}\n", row[0], row[1], row[2]);
        }
        let mut sink = Box::pin(client.copy_in(COPY_STAGE).await?);
        sink.send(Bytes::from(text)).await?;
        sink.as_mut().finish().await?;
        client.batch_execute("analyze stage").await?;
        client.batch_execute(MERGE).await?;
        client.execute(DELETE_UNSTAGED, &[&meter]).await?;
        Ok(())
    }

    /// Runs `pgspate sync` for all meters at once, from the night's file.
    fn sync(&self) -> Result<()> {
        let columns = Some(meters::COLUMNS.split(", ").map(str::to_owned).collect());
        let options = sync::SyncOptions {
            reading: reading::ReadingOptions {
                read: SniffOverrides { format: Some(Format::Text), ..SniffOverrides::default() },
                rows: RowRequest { columns, ..RowRequest::default() },
                ..reading::ReadingOptions::of_sources(vec![self.path.display().to_string()])
            },
            table: Some(self.context.table(meters::TABLE)),
            scope: Scope::By(vec!["meter".to_owned()]),
            max_delete: 20.0,
            price_per_million: PRICE_PER_MILLION,
            lanes: if self.way == RewriteMethod::SyncShared { 2 } else { 1 },
            vacuums: self.way == RewriteMethod::SyncInTurns,
            transactions: if self.way == RewriteMethod::SyncInTurns { 2 } else { 1 },
            ..sync::SyncOptions::default()
        };
        let watch = Arc::new(LoadWatch::default());
        let stopping = Arc::clone(&watch);
        let (dsn, runtime) = (self.context.dsn().clone(), self.context.runtime());
        self.context.stoppable(
            move || stopping.copy.cancel(),
            || sync::prepare(options, dsn, runtime)?.run(&watch).map(drop),
        )
    }
}
