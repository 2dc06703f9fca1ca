//! Sessions and slots that prevent the removal of dead rows, and others that only seem to.

use pgspate_embedded::testing;

use crate::run::{ask, session};
use crate::{expect_no_finding, findings, remedy, warnings_and_notes};

#[test]
fn sessions_and_slots_that_keep_dead_rows_are_found() {
    let server = testing::server("wal_level = logical");
    let dsn = server.dsn();
    ask(&dsn, "create table t (id int)");
    ask(&dsn, "create database other");
    ask(&dsn, "select pg_create_logical_replication_slot('forgotten', 'pgoutput')");
    // Both sessions wrote rows and stay idle in their transactions: one in this database, and one
    // in another database, where it does no harm.
    let (runtime, here) = session(&dsn);
    runtime.block_on(here.batch_execute("begin; insert into t values (1)")).unwrap();
    let (other, there) = session(&format!("{dsn} dbname=other"));
    other.block_on(there.batch_execute("begin; create table t (id int)")).unwrap();
    ask(
        &dsn,
        "create procedure burn() language plpgsql as $$ begin \
         for i in 1..100001 loop perform pg_current_xact_id(); commit; end loop; end $$",
    );
    ask(&dsn, "call burn()");
    let found = warnings_and_notes(&dsn, "held-back", "");
    let text = |id: usize, name: &str| found[id][name].as_str().unwrap();
    let slot = found.iter().position(|it| it["object"] == "replication slot forgotten").unwrap();
    let held = found.iter().position(|it| it["object"] != "replication slot forgotten").unwrap();
    assert_eq!(found.len(), 2, "{found:?}");
    // A logical slot keeps no dead rows of user tables.
    let evidence = text(slot, "evidence");
    assert!(evidence.contains("cannot remove rows in the system catalogs that died"), "{evidence}");
    let evidence = text(held, "evidence");
    assert!(evidence.starts_with("idle in transaction since "), "{evidence}");
    assert!(!evidence.contains("catalogs"), "{evidence}");
    for statement in found.iter().flat_map(remedy) {
        ask(&dsn, &statement);
    }
    expect_no_finding(&dsn, "held-back", "");
    assert_eq!(findings(&dsn, "held-back", "").len(), 1);
    other.block_on(there.batch_execute("rollback")).unwrap();
}
