//! What others hold is waited for, and what nobody answers is not.

use crate::plan::{At, Fault, Plan};
use crate::proxy::Proxy;
use crate::run::{finish, session, spawn, wait_until};
use crate::support::Case;
use crate::wire::Side;
use crate::{apply, command, rows};

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

/// The last thing that a run asks after a refusal is to roll back.
#[test]
fn a_rollback_that_nobody_answers_ends() {
    let case = Case::new("create table t (id int primary key, v int check (v < 5))");
    case.put("s.ndjson", r#"{"op":"insert","table":"t","row":{"id":1,"v":9}}"#);
    let args = "s.ndjson --quiet --direct-rows 0 --stall-timeout 1 --retry-for 1";
    // The ledger is there then.
    let refusal = apply(&case, args).refusal();
    let run = |plan| {
        let proxy = Proxy::start(&case.db.dsn(), plan);
        let mut command = case.command(&["apply", "--to", &proxy.dsn()]);
        let run = finish(spawn(command.args(args.split_whitespace())));
        (run.refusal(), proxy)
    };
    let (again, proxy) = run(None);
    assert_eq!(again, refusal);
    let asked = proxy.log().matches(" -> Q ").count() as u64;
    let last = Plan::new(Fault::Stall, At::Kind(Side::Client, b'Q', asked));
    let (again, proxy) = run(Some(last));
    assert!(proxy.has_fired());
    assert_eq!(again, refusal);
}
