//! A slot's stream, read from a real server.

use std::future::pending;
use std::time::Duration;

use pgspate_base::ErrorKind;
use pgspate_events::Lsn;
use pgspate_replication::postgres::{SlotStream, drop_slot};

use crate::support::{ReplicatingServer, dsn, lines, server, server_with};

/// Waits until the server has confirmed the position `wanted`.
async fn wait_until_confirmed(server: &ReplicatingServer, wanted: Lsn) {
    let sql = "select confirmed_flush_lsn from pg_replication_slots";
    loop {
        let rows = server.query(sql);
        let found: Lsn = rows[0][0].as_deref().unwrap().parse().unwrap();
        assert!(found <= wanted, "the server confirmed {found}, which is after {wanted}");
        if found == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn committed_changes_are_sent_again_until_they_are_confirmed() {
    let server = server();
    server.run(
        "create table \"o r\" (id int primary key, at timestamptz, f float8, b bytea, big text);
         alter table \"o r\" alter big set storage external;
         create table log (x int, y text);
         alter table log replica identity full;
         create table other (x int);
         create publication \"my 'pub'\" for table \"o r\", log;
         select pg_create_logical_replication_slot('s', 'pgoutput');
         begin;
         insert into \"o r\" values (1, '2024-03-01 10:00:00.5+00', 0.1, '\\x00ff',
             repeat('x', 3000));
         update \"o r\" set f = 'NaN' where id = 1;
         update \"o r\" set id = 2;
         commit;
         insert into other values (1);
         begin;
         insert into log values (1, 'a'), (1, null);
         update log set y = 'b' where y = 'a';
         delete from log where y is null;
         delete from \"o r\";
         truncate log, \"o r\";
         commit;",
    );
    let dsn = dsn(&server.dsn());
    let big = "x".repeat(3000);
    let publication = "my 'pub'";
    let mut stream = SlotStream::start(&dsn, "s", publication, Lsn(0), Lsn(0)).await.unwrap();
    let first = [
        format!(
            "Insert public.o r {{id=1 at=2024-03-01 10:00:00.5+00 f=0.1 b=\\x00ff big={big}}} \
             by [id]"
        ),
        "Update public.o r {id=1 at=2024-03-01 10:00:00.5+00 f=NaN b=\\x00ff big=-} by [id]".into(),
        "Update public.o r {id=2 at=2024-03-01 10:00:00.5+00 f=NaN b=\\x00ff big=-} \
         was {id=1} by [id] end"
            .into(),
    ];
    let second = [
        "Insert public.log {x=1 y=a}",
        "Insert public.log {x=1 y=NULL}",
        "Update public.log {x=1 y=b} was {x=1 y=a}",
        "Delete public.log was {x=1 y=NULL}",
        "Delete public.o r was {id=2} by [id]",
        "Truncate public.log",
        "Truncate public.o r by [id] end",
    ];
    let (found, end) = lines(&mut stream, 2).await;
    assert_eq!(found[..3], first);
    assert_eq!(found[3..], second);
    // Nothing was confirmed, so the server sends all changes again.
    stream.close().await;
    let mut stream = SlotStream::start(&dsn, "s", publication, Lsn(0), Lsn(0)).await.unwrap();
    let (again, _) = lines(&mut stream, 2).await;
    assert!(again == found, "{} events, {} before", again.len(), found.len());
    stream.confirm(end);
    wait_until_confirmed(&server, end).await;
    stream.close().await;
    // The server now sends only new changes.
    server.run("insert into log values (3, 'c')");
    let mut stream = SlotStream::start(&dsn, "s", publication, Lsn(0), Lsn(0)).await.unwrap();
    let (found, last) = lines(&mut stream, 1).await;
    assert_eq!(found, ["Insert public.log {x=3 y=c} end"]);
    stream.close().await;
    // The stream begins at the caller's position, not at the slot's position.
    server.run("insert into log values (4, 'd')");
    let mut stream = SlotStream::start(&dsn, "s", publication, last, last).await.unwrap();
    assert_eq!(lines(&mut stream, 1).await.0, ["Insert public.log {x=4 y=d} end"]);
    stream.close().await;
    drop_slot(&dsn, "s", pending()).await.unwrap();
    assert!(server.query("select 1 from pg_replication_slots").is_empty());
}

#[tokio::test]
async fn a_busy_caller_does_not_lose_the_session() {
    let server = server_with("wal_sender_timeout = '1s'");
    server.run(
        "create table t (id int primary key, filler text);
         create publication p for all tables;
         select pg_create_logical_replication_slot('s', 'pgoutput');",
    );
    let dsn = dsn(&server.dsn());
    let mut stream = SlotStream::start(&dsn, "s", "p", Lsn(0), Lsn(0)).await.unwrap();
    // These are more events than can wait for the caller.
    server.run("insert into t select n, repeat('x', 1000) from generate_series(1, 20000) n");
    let mut events = Vec::new();
    let mut is_first = true;
    while events.len() < 20_000 {
        let received = stream.next().await.unwrap();
        assert!(received.events.len() < 20_000, "the number of waiting events must have a limit");
        events.extend(received.events);
        if std::mem::take(&mut is_first) {
            tokio::time::sleep(Duration::from_millis(2500)).await;
        }
    }
    let last = events.last().unwrap();
    assert!(last.ends_transaction && events.iter().filter(|it| it.ends_transaction).count() == 1);
    stream.close().await;
}

#[tokio::test]
async fn a_stream_without_changes_can_be_confirmed_too() {
    let server = server();
    server.run(
        "create table t (id int primary key);
         create table u (id int);
         create publication p for table t;
         select pg_create_logical_replication_slot('s', 'pgoutput');
         insert into u select generate_series(1, 1000);",
    );
    let dsn = dsn(&server.dsn());
    let mut stream = SlotStream::start(&dsn, "s", "p", Lsn(0), Lsn(0)).await.unwrap();
    let wanted: Lsn =
        server.query("select pg_current_wal_lsn()")[0][0].as_deref().unwrap().parse().unwrap();
    loop {
        let received = stream.next().await.unwrap();
        assert_eq!(received.events, []);
        if let Some(end) = received.end.filter(|end| *end >= wanted) {
            stream.confirm(end);
            wait_until_confirmed(&server, end).await;
            break;
        }
    }
    stream.close().await;
}

#[tokio::test]
async fn errors_say_what_is_missing_and_what_to_do() {
    let server = server();
    let dsn = dsn(&server.dsn());
    let error = SlotStream::start(&dsn, "s", "p", Lsn(0), Lsn(0)).await.unwrap_err();
    assert_eq!(error.to_string(), "publication \"p\" does not exist");
    assert!(error.hint_text().unwrap().contains("create publication p for all tables"));
    server.run("create table t (id int); create publication p for all tables");
    let error = SlotStream::start(&dsn, "no_such", "p", Lsn(0), Lsn(0)).await.unwrap_err();
    assert_eq!(error.to_string(), "could not read replication slot \"no_such\"");
    assert_eq!(error.sqlstate().unwrap().code(), "42704");
    server.run("select pg_create_logical_replication_slot('s', 'pgoutput')");
    let stream = SlotStream::start(&dsn, "s", "p", Lsn(0), Lsn(0)).await.unwrap();
    let error = SlotStream::start(&dsn, "s", "p", Lsn(0), Lsn(0)).await.unwrap_err();
    assert_eq!(error.sqlstate().unwrap().code(), "55006");
    assert!(error.hint_text().unwrap().contains("Another session"));
    stream.close().await;
    server.run("create role plain login");
    let plain = dsn_of(&server.dsn(), "plain");
    let error = SlotStream::start(&plain, "s", "p", Lsn(0), Lsn(0)).await.unwrap_err();
    assert!(error.to_string().ends_with("for replication"), "{error}");
    assert_eq!(error.sqlstate().unwrap().code(), "42501");
    assert!(error.hint_text().unwrap().contains("replication"));
}

#[tokio::test]
async fn the_end_of_the_server_ends_the_stream() {
    let server = server();
    server.run(
        "create table t (id int primary key);
         create publication p for all tables;
         select pg_create_logical_replication_slot('s', 'pgoutput')",
    );
    let mut stream =
        SlotStream::start(&dsn(&server.dsn()), "s", "p", Lsn(0), Lsn(0)).await.unwrap();
    server.run(
        "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = 's'",
    );
    let error = loop {
        if let Err(error) = stream.next().await {
            break error;
        }
    };
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Connect, true));
    assert!(stream.next().await.is_err(), "the stream must have ended");
}

/// Returns a connection string for the same server and database with another role.
fn dsn_of(text: &str, role: &str) -> pgspate_target::connect::Dsn {
    let kept = text.split_whitespace().filter(|part| !part.starts_with("user="));
    dsn(&format!("{} user={role}", kept.collect::<Vec<_>>().join(" ")))
}

/// The decoder holds the row back until the commit, and the transaction has no other events.
#[tokio::test]
async fn a_row_larger_than_a_piece_comes_alone() {
    let server = server();
    server.run(
        "create table t (id int primary key, big text);
         create publication p for table t;
         select pg_create_logical_replication_slot('s', 'pgoutput');
         insert into t values (1, repeat('x', 3000000));
         insert into t values (2, null);",
    );
    let mut stream =
        SlotStream::start(&dsn(&server.dsn()), "s", "p", Lsn(0), Lsn(0)).await.unwrap();
    let all = tokio::time::timeout(Duration::from_secs(60), lines(&mut stream, 2));
    let (found, _) = all.await.expect("the stream must continue");
    assert!(found[0].len() > 3_000_000, "{} bytes", found[0].len());
    assert_eq!(found[1..], ["Insert public.t {id=2 big=NULL} by [id] end"]);
    stream.close().await;
}
