//! A server that replicates, a connection to it, and what comes from it.

use std::future::pending;
use std::sync::Arc;

use pgspate_embedded::{Throwaway, silent, testing};
use pgspate_events::Lsn;
use pgspate_events::decode::TargetTypes;
use pgspate_events::{ChangeEvent, SourceTable, ChangeKind, EventOrigin, EventRow, EventValue};
use pgspate_replication::postgres::{PublishedTable, Replication, Snapshot};
use pgspate_target::connect::{Dsn, Environment};
use tokio_postgres::{NoTls, SimpleQueryMessage};

pub(crate) use crate::events::line;

/// pgoutput's values need no types.
pub(crate) struct NoTypes;

impl TargetTypes for NoTypes {
    fn of(&self, _: &SourceTable, _: &str) -> Option<Arc<str>> {
        None
    }
}

/// The rows of a table as events, each of which may be followed by a commit.
pub(crate) async fn events(snapshot: &Snapshot, table: &PublishedTable) -> Vec<ChangeEvent> {
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
        new: Some(EventRow { columns: columns.clone(), values: row.split('\t').map(value).collect() }),
        old: None,
        key: None,
        position: EventOrigin::default(),
        ends_transaction: true,
    };
    String::from_utf8(text).unwrap().lines().map(event).collect()
}

/// A server of its own, as slots belong to all of a server.
pub(crate) struct Server(Throwaway);

pub(crate) fn server() -> Server {
    server_with("")
}

/// With more lines of configuration.
pub(crate) fn server_with(conf: &str) -> Server {
    Server::of(conf, None, &[])
}

impl Server {
    /// With lines of configuration, of `pg_hba.conf`, and files in its data folder.
    pub(crate) fn of(conf: &str, hba: Option<&str>, files: &[(&str, String)]) -> Server {
        let own = "wal_level = logical\nmax_wal_senders = 6\nmax_replication_slots = 4\n\
                   timezone = 'UTC'\n";
        let mut builder = testing::builder().conf(&format!("{own}{conf}"));
        if let Some(hba) = hba {
            builder = builder.hba(hba);
        }
        for (name, content) in files {
            builder = builder.file(name, content.as_str());
        }
        Server(builder.start(&silent).unwrap_or_else(|error| panic!("{}", error.chain())))
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.port()
    }

    pub(crate) fn dsn(&self) -> String {
        self.0.dsn()
    }

    /// Runs statements, each by itself, that end with their lines.
    pub(crate) fn run(&self, sql: &str) {
        self.work(sql.split(";\n").collect());
    }

    /// The rows of one query.
    pub(crate) fn query(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.work(vec![sql])
    }

    /// On a thread of its own, as the caller is inside a runtime.
    fn work(&self, statements: Vec<&str>) -> Vec<Vec<Option<String>>> {
        let dsn = self.dsn();
        let work = async move {
            let (client, driver) = tokio_postgres::connect(&dsn, NoTls).await.unwrap();
            let driver = tokio::spawn(driver);
            let mut rows = Vec::new();
            for statement in statements {
                for message in client.simple_query(statement).await.unwrap() {
                    if let SimpleQueryMessage::EventRow(row) = message {
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

/// The parameters of a connection to it.
pub(crate) fn dsn(text: &str) -> Dsn {
    let env = Environment { user: Some("tester".to_owned()), ..Environment::default() };
    Dsn::resolve(Some(text), &env).unwrap().unwrap()
}

/// The lines of events, without their transactions' numbers, until so many transactions have ended;
/// and where the last of them ended.
pub(crate) async fn lines(stream: &mut Replication, transactions: usize) -> (Vec<String>, Lsn) {
    let (mut found, mut ended, mut end) = (Vec::new(), 0, Lsn(0));
    while ended < transactions {
        let received = stream.next().await.unwrap();
        for event in &received.events {
            ended += usize::from(event.ends_transaction);
            let shown = line(event);
            let number = format!(" in {}", event.position.transaction.as_deref().unwrap());
            found.push(shown.replace(&number, ""));
        }
        end = received.end.unwrap_or(end);
    }
    (found, end)
}
