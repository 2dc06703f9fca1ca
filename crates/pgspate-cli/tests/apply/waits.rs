//! What others hold is waited for, and what nobody answers is not.

use crate::run::{finish, session, spawn, wait_until};
use crate::support::Case;
use crate::{command, rows};

const PARTED: &str = "\
create table t (id int primary key) partition by range (id);
create table t1 partition of t for values from (0) to (10)";

/// To look a partitioned table up takes locks on its partitions: a session that waits for one is
/// not a silent one.
#[test]
fn a_lock_on_a_table_that_is_looked_up_is_no_silence() {
    let case = Case::new(PARTED);
    case.put("s.ndjson", r#"{"op":"insert","table":"t","row":{"id":1}}"#);
    let (runtime, other) = session(&case.db.dsn());
    let lock = "begin; lock table t1 in access exclusive mode";
    runtime.block_on(other.batch_execute(lock)).unwrap();
    let child = spawn(&mut command(&case, "s.ndjson --quiet --stall-timeout 1 --retry-for 1"));
    // Longer than it would take to give up a silent one, twice.
    let waits = "select count(*) from pg_locks l join pg_stat_activity a using (pid) \
                 where not l.granted and a.datname = current_database() \
                   and clock_timestamp() - a.query_start > '5 s'";
    wait_until("it waits", || case.value(waits) == "1");
    runtime.block_on(other.batch_execute("rollback")).unwrap();
    let run = finish(child);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(rows(&case, "t"), "(1)");
    runtime.block_on(other.batch_execute(lock)).unwrap();
    let refusal =
        finish(spawn(&mut command(&case, "s.ndjson --quiet --stream u --lock-timeout 1")));
    assert_eq!(refusal.status, Some(2));
    assert!(refusal.stderr.contains("lock timeout (SQLSTATE 55P03)"), "{}", refusal.stderr);
}
