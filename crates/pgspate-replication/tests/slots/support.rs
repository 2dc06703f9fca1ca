//! A server with logical replication, a connection to it, and the events that it sends.

use std::future::pending;
use std::sync::Arc;

use pgspate_embedded::{ThrowawayServer, silent, testing};
use pgspate_events::Lsn;
use pgspate_events::decode::TargetTypes;
use pgspate_events::{ChangeEvent, ChangeKind, EventOrigin, EventRow, EventValue, SourceTable};
use pgspate_replication::postgres::{PublishedTable, SlotSnapshot, SlotStream};
use pgspate_target::connect::{Dsn, Environment};
use tokio_postgres::{NoTls, SimpleQueryMessage};

pub(crate) use crate::events::line;

/// A target without types. The values of pgoutput need no types.
pub(crate) struct NoColumnTypes;

impl TargetTypes for NoColumnTypes {
    fn type_of(&self, _: &SourceTable, _: &str) -> Option<Arc<str>> {
        None
    }
}

/// Reads the rows of a table as events. A commit may follow each event.
pub(crate) async fn events(snapshot: &SlotSnapshot, table: &PublishedTable) -> Vec<ChangeEvent> {
    let mut text = Vec::new();
    let take = &mut |piece: &[u8]| {
        text.extend_from_slice(piece);
        Ok(())
    };
    snapshot.copy(table, take, pending()).await.unwrap();
    let columns: Arc<[Box<str>]> = table.columns.iter().map(|name| name.as_str().into()).collect();
    let value = |field: &str| match field {
        "\\N" => EventValue::Null,
        _ => EventValue::Text(field.replace("\\t", "\t").replace("\\\\", "\\").into()),
    };
    let event = |row: &str| ChangeEvent {
        table: Arc::new(table.name.clone()),
        op: ChangeKind::Snapshot,
        new: Some(EventRow {
            columns: columns.clone(),
            values: row.split('\t').map(value).collect(),
        }),
        old: None,
        key: None,
        origin: EventOrigin::default(),
        ends_transaction: true,
    };
    String::from_utf8(text).unwrap().lines().map(event).collect()
}

/// A server of the test's own, because slots are shared by all databases of a server.
pub(crate) struct ReplicatingServer(ThrowawayServer);

pub(crate) fn server() -> ReplicatingServer {
    server_with("")
}

/// Starts a server with more lines of configuration.
pub(crate) fn server_with(conf: &str) -> ReplicatingServer {
    ReplicatingServer::of(conf, None, &[])
}

impl ReplicatingServer {
    /// Starts a server with lines of configuration, lines of `pg_hba.conf`, and files in its data
    /// folder.
    pub(crate) fn of(conf: &str, hba: Option<&str>, files: &[(&str, String)]) -> ReplicatingServer {
        let own = "wal_level = logical\nmax_wal_senders = 6\nmax_replication_slots = 4\n\
                   timezone = 'UTC'\n";
        let mut builder = testing::builder().conf(&format!("{own}{conf}"));
        if let Some(hba) = hba {
            builder = builder.hba(hba);
        }
        for (name, content) in files {
            builder = builder.file(name, content.as_str());
        }
        ReplicatingServer(
            builder.start(&silent).unwrap_or_else(|error| panic!("{}", error.chain())),
        )
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.port()
    }

    pub(crate) fn dsn(&self) -> String {
        self.0.dsn()
    }

    /// Runs statements one by one. Each statement ends at the end of a line.
    pub(crate) fn run(&self, sql: &str) {
        self.work(sql.split(";\n").collect());
    }

    /// Runs a query and returns its rows.
    pub(crate) fn query(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.work(vec![sql])
    }

    /// Runs statements on a new thread, because the caller is inside a runtime.
    fn work(&self, statements: Vec<&str>) -> Vec<Vec<Option<String>>> {
        let dsn = self.dsn();
        let work = async move {
            let (client, driver) = tokio_postgres::connect(&dsn, NoTls).await.unwrap();
            let driver = tokio::spawn(driver);
            let mut rows = Vec::new();
            for statement in statements {
                for message in client.simple_query(statement).await.unwrap() {
                    if let SimpleQueryMessage::Row(row) = message {
                        let value = |at| row.get(at).map(str::to_owned);
                        rows.push((0..row.len()).map(value).collect());
                    }
                }
            }
            drop(client);
            driver.await.unwrap().unwrap();
            rows
        };
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(work)
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }
}

/// Parses a connection string.
pub(crate) fn dsn(text: &str) -> Dsn {
    let env = Environment { user: Some("tester".to_owned()), ..Environment::default() };
    Dsn::resolve(Some(text), &env).unwrap().unwrap()
}

/// Reads events until a number of transactions have ended. Returns the events as lines, without the
/// transactions' numbers, and the end of the last transaction.
pub(crate) async fn lines(stream: &mut SlotStream, transactions: usize) -> (Vec<String>, Lsn) {
    let (mut found, mut ended, mut end) = (Vec::new(), 0, Lsn(0));
    while ended < transactions {
        let received = stream.next().await.unwrap();
        for event in &received.events {
            ended += usize::from(event.ends_transaction);
            let shown = line(event);
            let number = format!(" in {}", event.origin.transaction.as_deref().unwrap());
            found.push(shown.replace(&number, ""));
        }
        end = received.end.unwrap_or(end);
    }
    (found, end)
}
