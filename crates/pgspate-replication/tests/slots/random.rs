//! A random history, read through a slot, must give the same table as on the server.

use std::future::pending;

use pgspate_events::Lsn;
use pgspate_replication::postgres::{SlotSnapshot, SlotStream};

use crate::events::{TableContents, apply};
use crate::support::{ReplicatingServer, dsn, events, server};

/// Random numbers, the same in every run.
struct ChanceHistory(u64);

impl ChanceHistory {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % limit
    }

    /// Returns a statement, which may find no rows.
    fn statement(&mut self) -> String {
        let (id, other) = (self.below(20), self.below(20));
        let value = match self.below(4) {
            0 => "null".to_owned(),
            1 => format!("repeat('{id}', 3000)"),
            2 => "E'a\\tb\\\\ \\'\"'".to_owned(),
            _ => format!("'{other}'"),
        };
        match self.below(20) {
            0..=7 => format!(
                "insert into t values ({id}, {other} / 3.0, {value}) on conflict do nothing"
            ),
            8..=11 => format!("update t set n = {other} where id = {id}"),
            12..=14 => format!("update t set big = {value} where id < {id}"),
            15..=17 => format!(
                "update t set id = {other}, n = -n where id = {id} \
                 and not exists (select from t where id = {other})"
            ),
            18 => format!("delete from t where id = {id}"),
            _ if self.below(8) == 0 => "truncate t".to_owned(),
            _ => format!("delete from t where id > {id}"),
        }
    }

    /// Runs transactions of a few statements. Some transactions are rolled back.
    fn history(&mut self, server: &ReplicatingServer) {
        let mut sql = String::new();
        for _ in 0..60 {
            sql.push_str("begin;\n");
            for _ in 0..=self.below(6) {
                sql.push_str(&self.statement());
                sql.push_str(";\n");
            }
            sql.push_str(if self.below(6) == 0 { "rollback;\n" } else { "commit;\n" });
        }
        server.run(&sql);
    }
}

fn table(server: &ReplicatingServer) -> TableContents {
    let rows = server.query("select id, n, big from t");
    let row = |row: Vec<Option<String>>| {
        let id = row[0].clone().unwrap();
        (id, ["id", "n", "big"].map(str::to_owned).into_iter().zip(row).collect())
    };
    rows.into_iter().map(row).collect()
}

#[tokio::test]
async fn a_random_history_gives_the_same_table() {
    let server = server();
    for (seed, identity) in [(1, "default"), (2, "full")] {
        server.run(&format!(
            "drop table if exists t;\n\
             create table t (id int primary key, n numeric, big text);\n\
             alter table t alter big set storage external;\n\
             alter table t replica identity {identity};\n\
             drop publication if exists p;\n\
             create publication p for table t"
        ));
        let mut chance = ChanceHistory(seed);
        // Part of the history runs before the slot exists.
        chance.history(&server);
        let slot = format!("s{seed}");
        let dsn = dsn(&server.dsn());
        let snapshot = SlotSnapshot::create(&dsn, &slot, "p", pending()).await.unwrap();
        chance.history(&server);
        let mut events = events(&snapshot, &snapshot.tables()[0]).await;
        let from = snapshot.lsn();
        snapshot.close().await;
        let wanted: Lsn =
            server.query("select pg_current_wal_lsn()")[0][0].as_deref().unwrap().parse().unwrap();
        let mut stream = SlotStream::start(&dsn, &slot, "p", from, from).await.unwrap();
        loop {
            let received = stream.next().await.unwrap();
            events.extend(received.events);
            if received.end.is_some_and(|end| end >= wanted) {
                break;
            }
        }
        stream.close().await;
        assert!(events.len() > 100, "{}", events.len());
        assert_eq!(apply(&events), table(&server), "replica identity {identity}");
    }
}
