//! The ways in which many callers write their records.
//!
//! Each call returns when its record is durable.

use std::sync::Arc;
use std::time::Duration;

use pgspate::target::connect::{Connection, Dsn};
use pgspate::writer::{EncodedRows, InsertRequest, InsertShape, OnConflict, Writer, WriterOptions};
use pgspate::{Error, ErrorKind, Result};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_postgres::Statement;

use super::super::sending::{execute, failed, pipelined, placeholders};
use super::served::ServedCallers;
use crate::TrialContext;
use crate::context::SCHEMA;
use crate::data::accounts::BankTable;

/// How long a hand-written batcher collects records.
const BATCH_PAUSE: Duration = Duration::from_millis(5);
/// The most records of its batch.
const BATCH_ROWS: usize = 1000;

/// A way in which callers write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallerMethod {
    Sessions,
    Batcher,
    Writer,
    Serve,
    ServeHundred,
}

impl CallerMethod {
    pub(super) const ALL: [CallerMethod; 5] = [
        CallerMethod::Sessions,
        CallerMethod::Batcher,
        CallerMethod::Writer,
        CallerMethod::Serve,
        CallerMethod::ServeHundred,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            CallerMethod::Sessions => "a session for each caller",
            CallerMethod::Batcher => "a batch every 5 ms",
            CallerMethod::Writer => "pgspate's writer",
            CallerMethod::Serve => "pgspate serve",
            CallerMethod::ServeHundred => "pgspate serve, 100 rows a request",
        }
    }

    /// Returns the number of records of a request to `pgspate serve`.
    pub(super) fn rows_served(self) -> Option<u64> {
        match self {
            CallerMethod::Serve => Some(1),
            CallerMethod::ServeHundred => Some(100),
            _ => None,
        }
    }

    pub(super) fn named(name: &str) -> CallerMethod {
        CallerMethod::ALL
            .into_iter()
            .find(|method| method.name() == name)
            .unwrap_or(CallerMethod::Sessions)
    }
}

/// Writes the records of many callers.
pub(super) enum RecordSender {
    /// Callers with a session of their own.
    Sessions(Vec<(Connection, Statement)>),
    /// A task that writes a batch in one transaction.
    Batcher { records: mpsc::Sender<BatchedRecord>, task: JoinHandle<Result<()>> },
    /// pgspate's writer.
    Writer { writer: Writer, shape: Arc<InsertShape> },
    /// `pgspate serve`, to which each caller has a connection.
    Served(ServedCallers),
}

/// How records were put together.
pub(super) struct SetFigures {
    /// The mean number of records of a set.
    pub(super) records_of_set: f64,
    /// The number of lanes that may write.
    pub(super) lanes: u64,
}

impl SetFigures {
    /// Computes the figures. `sets` are numbers of sets by size.
    pub(super) fn new(sets: &[u64], set_rows: u64, lanes: u64) -> SetFigures {
        let count = sets.iter().sum::<u64>().max(1);
        SetFigures { records_of_set: set_rows as f64 / count as f64, lanes }
    }
}

/// A record for the batcher, and its caller, who waits.
pub(super) struct BatchedRecord {
    values: Vec<String>,
    written: oneshot::Sender<()>,
}

impl RecordSender {
    /// Opens the sessions of `callers` callers. `way` leads to the server: the connection string,
    /// and the port of a proxy on 127.0.0.1.
    pub(super) async fn open(
        method: CallerMethod,
        callers: usize,
        table: BankTable,
        way: (&Dsn, Option<u16>),
        context: &TrialContext,
    ) -> Result<RecordSender> {
        let (dsn, proxy_port) = way;
        match method {
            CallerMethod::Sessions => {
                let mut sessions = Vec::with_capacity(callers);
                for _ in 0..callers {
                    sessions.push(open_session(table, dsn).await?);
                }
                Ok(RecordSender::Sessions(sessions))
            }
            CallerMethod::Batcher => {
                let (session, statement) = open_session(table, dsn).await?;
                let (records, received) = mpsc::channel(callers.max(1));
                let task = context.runtime().spawn(write_batches(received, session, statement));
                Ok(RecordSender::Batcher { records, task })
            }
            CallerMethod::Writer => {
                let options = WriterOptions::default();
                let writer = Writer::open(dsn.clone(), options, context.runtime()).await?;
                let columns = table.columns().iter().map(|name| (*name).to_owned()).collect();
                let request = InsertRequest {
                    table: context.table(table.name()),
                    columns,
                    on_conflict: OnConflict::Refuse,
                    returning: Vec::new(),
                };
                let shape = writer.shape(&request).await?;
                Ok(RecordSender::Writer { writer, shape })
            }
            CallerMethod::Serve | CallerMethod::ServeHundred => {
                let served = ServedCallers::start(callers, table, proxy_port, context).await?;
                Ok(RecordSender::Served(served))
            }
        }
    }

    /// Writes records of a caller. Returns when they are durable. Only `pgspate serve` takes
    /// several.
    pub(super) async fn send(&self, caller: usize, mut records: Vec<Vec<String>>) -> Result<()> {
        if let RecordSender::Served(served) = self {
            return served.send(caller, &records).await;
        }
        let values = records.pop().unwrap_or_default();
        match self {
            RecordSender::Served(_) => Ok(()),
            RecordSender::Sessions(sessions) => {
                let (session, statement) = &sessions[caller];
                let done = execute(&session.client, statement, &values).await;
                done.map(drop).map_err(failed(session, "write a record"))
            }
            RecordSender::Batcher { records, .. } => {
                let (written, answer) = oneshot::channel();
                let sent = records.send(BatchedRecord { values, written }).await;
                sent.map_err(|_| batcher_ended())?;
                answer.await.map_err(|_| batcher_ended())
            }
            RecordSender::Writer { writer, shape } => {
                let fields: Vec<_> = values.iter().map(|value| Some(value.as_bytes())).collect();
                let mut rows = EncodedRows::default();
                shape.push_record(&fields, &mut rows)?;
                writer.insert(shape, rows).await.map(drop)
            }
        }
    }

    /// Returns the CPU time of `pgspate serve`, in seconds.
    pub(super) fn serve_cpu_seconds(&self) -> Option<f64> {
        match self {
            RecordSender::Served(served) => served.cpu_seconds(),
            _ => None,
        }
    }

    /// Ends the sessions. Returns how a writer has put records together.
    pub(super) async fn close(self) -> Result<Option<SetFigures>> {
        match self {
            RecordSender::Sessions(sessions) => {
                for (session, _) in sessions {
                    session.close().await;
                }
                Ok(None)
            }
            RecordSender::Batcher { records, task } => {
                drop(records);
                task.await.map_err(|_| batcher_ended())??;
                Ok(None)
            }
            RecordSender::Writer { writer, .. } => {
                let report = writer.close().await;
                let (set_rows, lanes) = (report.set_rows, report.lanes_allowed);
                Ok(Some(SetFigures::new(&report.sets, set_rows, lanes)))
            }
            RecordSender::Served(served) => served.close().await.map(Some),
        }
    }
}

fn batcher_ended() -> Error {
    Error::new(ErrorKind::Server, "the task that writes batches has ended")
}

/// Opens a session with a prepared INSERT.
async fn open_session(table: BankTable, dsn: &Dsn) -> Result<(Connection, Statement)> {
    let connection = dsn.connect("pgspate lab").await?;
    let (name, columns) = (table.name(), table.columns().join(", "));
    let values = placeholders(1, table.types());
    let sql = format!("insert into {SCHEMA}.{name} ({columns}) values {values}");
    let prepared = connection.client.prepare(&sql).await;
    let statement = prepared.map_err(failed(&connection, "prepare an INSERT"))?;
    Ok((connection, statement))
}

/// Collects records, and writes them in one transaction, as `executemany` of drivers does.
async fn write_batches(
    mut records: mpsc::Receiver<BatchedRecord>,
    session: Connection,
    statement: Statement,
) -> Result<()> {
    let failed = failed(&session, "write a batch");
    while let Some(first) = records.recv().await {
        tokio::time::sleep(BATCH_PAUSE).await;
        let mut batch = vec![first];
        while let (true, Ok(record)) = (batch.len() < BATCH_ROWS, records.try_recv()) {
            batch.push(record);
        }
        session.client.batch_execute("begin").await.map_err(&failed)?;
        let mut values = Vec::with_capacity(batch.len());
        for record in &batch {
            values.push(&record.values);
        }
        pipelined(&session.client, &statement, values).await.map_err(&failed)?;
        session.client.batch_execute("commit").await.map_err(&failed)?;
        for record in batch {
            // The caller waits unless the trial was stopped.
            let _ = record.written.send(());
        }
    }
    Ok(())
}
