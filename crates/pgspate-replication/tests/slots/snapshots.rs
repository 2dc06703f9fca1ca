//! The rows before a slot's stream, from the snapshot at the slot's beginning.

use std::future::pending;

use pgspate_replication::postgres::{SlotSnapshot, SlotStream};

use crate::support::{dsn, events, line, lines, server};

#[tokio::test]
async fn snapshot_and_stream_together_have_every_change_once() {
    let server = server();
    server.run(
        "create schema shop;
         create table shop.orders (id int primary key, note text, twice int generated always as \
         (id * 2) stored);
         create table shop.empty (id int primary key);
         insert into shop.orders (id, note) values (1, E'a\\tb\\\\'), (2, null), (3, '');
         create publication p for all tables;",
    );
    let dsn = dsn(&server.dsn());
    let snapshot = SlotSnapshot::create(&dsn, "s", "p", pending()).await.unwrap();
    // Changes after the slot's beginning are not in the snapshot.
    server.run(
        "update shop.orders set note = 'new' where id = 1;\n delete from shop.orders where id = 2",
    );
    let names: Vec<_> = snapshot.tables().iter().map(|it| it.name.table.as_str()).collect();
    assert_eq!(names, ["empty", "orders"]);
    let mut found = Vec::new();
    for table in snapshot.tables() {
        found.extend(events(&snapshot, table).await.iter().map(line));
    }
    found.sort();
    assert_eq!(
        found,
        [
            "Snapshot shop.orders {id=1 note=a\tb\\} end",
            "Snapshot shop.orders {id=2 note=NULL} end",
            "Snapshot shop.orders {id=3 note=} end",
        ]
    );
    // Other sessions, such as lanes, can import the snapshot.
    let rows = server.query(&format!(
        "begin isolation level repeatable read; set transaction snapshot '{}'; \
         select count(*) from shop.orders where note = 'new'",
        snapshot.name()
    ));
    assert_eq!(rows, [[Some("0".to_owned())]]);
    let from = snapshot.lsn();
    snapshot.close().await;
    let mut stream = SlotStream::start(&dsn, "s", "p", from, from).await.unwrap();
    assert_eq!(
        lines(&mut stream, 2).await.0,
        [
            "Update shop.orders {id=1 note=new} by [id] end",
            "Delete shop.orders was {id=2} by [id] end",
        ]
    );
    stream.close().await;
}

#[tokio::test]
async fn the_snapshot_has_the_publications_columns_and_filters() {
    let server = server();
    if server.query("show server_version_num")[0][0].as_deref().unwrap() < "150000" {
        return;
    }
    server.run(
        "create table t (id int primary key, secret text, n int);
         insert into t values (1, 'x', 1), (2, 'y', 2);
         create publication p for table t (id, n) where (n > 1);",
    );
    let snapshot = SlotSnapshot::create(&dsn(&server.dsn()), "s", "p", pending()).await.unwrap();
    let table = &snapshot.tables()[0];
    assert_eq!(table.query(), "select id, n from only public.t where (n > 1)");
    let mut found = Vec::new();
    let take = &mut |piece: &[u8]| {
        found.extend_from_slice(piece);
        Ok(())
    };
    snapshot.copy(table, take, pending()).await.unwrap();
    assert_eq!(found, b"2\t2\n");
}

#[tokio::test]
async fn a_new_slot_is_dropped_if_a_later_step_fails() {
    let server = server();
    let dsn = dsn(&server.dsn());
    let error = SlotSnapshot::create(&dsn, "s", "p", pending()).await.unwrap_err();
    assert_eq!(error.to_string(), "publication \"p\" does not exist, or has no tables");
    assert!(server.query("select 1 from pg_replication_slots").is_empty());
    server.run("create table t (id int); create publication p for all tables");
    let snapshot = SlotSnapshot::create(&dsn, "s", "p", pending()).await.unwrap();
    let error = SlotSnapshot::create(&dsn, "s", "p", pending()).await.unwrap_err();
    assert_eq!(error.to_string(), "could not make replication slot \"s\"");
    assert_eq!(error.sqlstate().unwrap().code(), "42710");
    snapshot.close().await;
}
