//! Tests of the proxy: each fault disturbs a connection exactly as its name says.

use std::io::ErrorKind;
use std::time::Duration;

use pgspate_embedded::testing::{self, TestDb};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

use crate::plan::{Fault, FaultPlace, FaultPlan};
use crate::protocol::MessageSide;
use crate::proxy::{Proxy, StallRelease};
use crate::run::wait_until;

/// Returns a database with a table, and a client connected through a proxy with this fault.
fn connect_through_proxy(plan: FaultPlan) -> (TestDb, Proxy, Runtime, Client) {
    let db = testing::database();
    db.run("create table x (a int)");
    let proxy = Proxy::start(&db.dsn(), Some(plan));
    let runtime = Runtime::new().unwrap();
    let client = runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&proxy.dsn(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    });
    (db, proxy, runtime, client)
}

fn count_rows(db: &TestDb) -> String {
    db.query("select count(*) from x")[0][0].clone().unwrap()
}

/// Returns whether a commit was confirmed, and how many rows the table has afterwards.
fn try_commit(fault: Fault, sql: &str) -> (bool, String) {
    let (db, proxy, runtime, client) =
        connect_through_proxy(FaultPlan::new(fault, FaultPlace::Commit(1)));
    runtime.block_on(client.batch_execute("begin; insert into x values (1)")).unwrap();
    let committed = runtime.block_on(client.batch_execute(sql)).is_ok();
    wait_until("the connection is closed", || client.is_closed());
    assert!(proxy.has_fired());
    let sessions = format!(
        "select count(*) from pg_stat_activity where datname = '{}' \
         and backend_type = 'client backend' and pid <> pg_backend_pid()",
        db.name()
    );
    wait_until("the server's session has ended", || {
        db.query(&sessions)[0][0].as_deref() == Some("0")
    });
    (committed, count_rows(&db))
}

#[test]
fn each_fault_at_a_commit_commits_and_confirms_as_documented() {
    let sql = "set local synchronous_commit to default; commit";
    assert_eq!(try_commit(Fault::Cut, sql), (false, "0".to_owned()));
    assert_eq!(try_commit(Fault::CutInside, sql), (false, "0".to_owned()));
    assert_eq!(try_commit(Fault::SwallowCommit, sql), (false, "1".to_owned()));
    // The client may get the reply, if the reply arrives before the connection is closed.
    assert_eq!(try_commit(Fault::CutAfter, sql).1, "1");
}

#[test]
fn prepared_commit_is_recognized() {
    let (db, proxy, runtime, client) =
        connect_through_proxy(FaultPlan::new(Fault::SwallowCommit, FaultPlace::Commit(1)));
    let work = async {
        client.batch_execute("begin; insert into x values (1)").await.unwrap();
        let commit = client.prepare("commit").await.unwrap();
        assert_eq!(proxy.counts().1, 0);
        client.execute(&commit, &[]).await.unwrap_err();
    };
    runtime.block_on(work);
    assert!(client.is_closed());
    assert_eq!((proxy.counts().1, count_rows(&db)), (1, "1".to_owned()));
}

#[test]
fn a_stall_holds_one_connection_until_it_is_released() {
    let (db, proxy, runtime, client) = connect_through_proxy(FaultPlan::new(
        Fault::Stall,
        FaultPlace::Kind(MessageSide::Client, b'Q', 1),
    ));
    runtime.block_on(async {
        let statement = client.batch_execute("insert into x values (1)");
        tokio::pin!(statement);
        let wait = Duration::from_millis(300);
        assert!(
            tokio::time::timeout(wait, &mut statement).await.is_err(),
            "the statement must wait"
        );
        assert!(proxy.has_fired());
        // Other connections are not stalled.
        let (other, connection) = tokio_postgres::connect(&proxy.dsn(), NoTls).await.unwrap();
        tokio::spawn(connection);
        other.batch_execute("select 1").await.unwrap();
        proxy.release(StallRelease::Resume);
        statement.await.unwrap();
    });
    assert_eq!(count_rows(&db), "1");
}

#[test]
fn a_server_that_is_away_refuses_connections_and_comes_back() {
    let plan = FaultPlan::new(Fault::Cut, FaultPlace::Kind(MessageSide::Client, b'Q', 2));
    let (_db, proxy, runtime, client) = connect_through_proxy(plan.away(Duration::from_secs(2)));
    runtime.block_on(async {
        let (other, connection) = tokio_postgres::connect(&proxy.dsn(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute("select 1").await.unwrap();
        client.batch_execute("select 1").await.unwrap_err();
        let refused = || async {
            let error = TcpStream::connect(proxy.address()).await.err();
            error.is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        };
        while !refused().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The fault was planned for one connection, but all connections are cut.
        other.batch_execute("select 1").await.unwrap_err();
        while refused().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(tokio_postgres::connect(&proxy.dsn(), NoTls).await.unwrap());
    });
}
