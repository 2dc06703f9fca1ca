//! `apply` waits for locks of other sessions, but closes a connection whose server stopped
//! responding.

use crate::plan::{Fault, FaultPlace, FaultPlan};
use crate::protocol::MessageSide;
use crate::proxy::Proxy;
use crate::run::{finish, session, spawn, wait_until};
use crate::support::LoadCase;
use crate::{apply, command, rows};

const CREATE_PARTITIONED: &str = "\
create table t (id int primary key) partition by range (id);
create table t1 partition of t for values from (0) to (10)";

/// Reading the facts of a partitioned table locks its partitions. A session that waits for such a
/// lock does not count as stalled.
#[test]
fn waiting_for_a_table_lock_does_not_count_as_a_stall() {
    let case = LoadCase::new(CREATE_PARTITIONED);
    case.put("s.ndjson", r#"{"op":"insert","table":"t","row":{"id":1}}"#);
    let (runtime, other) = session(&case.db.dsn());
    let lock = "begin; lock table t1 in access exclusive mode";
    runtime.block_on(other.batch_execute(lock)).unwrap();
    let child = spawn(&mut command(&case, "s.ndjson --quiet --stall-timeout 1 --retry-for 1"));
    // Wait five times the stall timeout.
    let waits = "select count(*) from pg_locks l join pg_stat_activity a using (pid) \
                 where not l.granted and a.datname = current_database() \
                   and clock_timestamp() - a.query_start > '5 s'";
    wait_until("the run has waited for the lock for 5 seconds", || case.value(waits) == "1");
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

/// A batch that waits in vain is not sent in another way, which would wait as long again.
#[test]
fn the_lock_timeout_is_waited_for_once() {
    let case = LoadCase::new(
        "create table t (id int primary key, v int); create table u (id int primary key)",
    );
    case.db.run("insert into t values (1, 0)");
    let update = r#"{"op":"update","table":"t","row":{"id":1,"v":1}}"#;
    let other = r#"{"op":"insert","table":"u","row":{"id":1}}"#;
    let (row, table) = ("select from t where id = 1 for update", "lock table t");
    let both = format!("{update}\n{other}");
    let (runtime, holder) = session(&case.db.dsn());
    for (stream, lock, events, args) in [
        ("one", row, update, ""),
        ("two", row, &both, "--batch-delay 60000"),
        ("staged", row, update, "--direct-rows 0"),
        ("table", table, update, ""),
        ("staged-table", table, update, "--direct-rows 0"),
    ] {
        case.put("s.ndjson", events);
        runtime.block_on(holder.batch_execute(&format!("begin; {lock}"))).unwrap();
        let proxy = Proxy::start(&case.db.dsn(), None);
        let mut command = case.command(&["apply", "--to", &proxy.dsn(), "--stream", stream]);
        let args = format!("s.ndjson --quiet --lock-timeout 1 {args}");
        let run = finish(spawn(command.args(args.split_whitespace())));
        assert_eq!(run.status, Some(2), "{stream}: {}", run.stderr);
        assert!(run.stderr.contains("lock timeout (SQLSTATE 55P03)"), "{stream}: {}", run.stderr);
        let named = run.stderr.contains("The lock was held for 1 s by session ");
        assert!(named, "{stream}: {}", run.stderr);
        let (log, is_staged) = (proxy.log(), stream == "staged");
        assert_eq!(log.contains(" <- G "), is_staged, "{stream}: {log}");
        // In a transaction that is sent as a whole, later statements fail, too.
        assert!(stream == "two" || log.matches(" <- E ").count() == 1, "{stream}: {log}");
        runtime.block_on(holder.batch_execute("rollback")).unwrap();
        apply(&case, &format!("s.ndjson --quiet --stream {stream}")).success();
        assert_eq!(rows(&case, "t"), "(1,1)", "{stream}");
        case.db.run("update t set v = 0");
    }
}

/// After the server refused an event, the run's last statement is `rollback`. The server never
/// replies to that statement.
#[test]
fn a_rollback_without_a_reply_does_not_hang_the_run() {
    let case = LoadCase::new("create table t (id int primary key, v int check (v < 5))");
    case.put("s.ndjson", r#"{"op":"insert","table":"t","row":{"id":1,"v":9}}"#);
    let args = "s.ndjson --quiet --direct-rows 0 --stall-timeout 1 --retry-for 1";
    // This first run creates the ledger.
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
    let last = FaultPlan::new(Fault::Stall, FaultPlace::Kind(MessageSide::Client, b'Q', asked));
    let (again, proxy) = run(Some(last));
    assert!(proxy.has_fired());
    assert_eq!(again, refusal);
}

/// A row that exchanges unique values is copied, deleted and inserted again. Columns that the event
/// lacks keep what another session writes before that.
#[test]
fn a_row_that_is_inserted_again_keeps_what_another_session_writes_meanwhile() {
    let case = LoadCase::new(
        "create table t (id int primary key, v int unique, note text); \
         insert into t values (1, 1), (2, 2), (3, 3)",
    );
    let event = |id: u32, v: u32| {
        let end = if id == 3 { r#","end":true"# } else { "" };
        let row = format!(r#""row":{{"id":{id},"v":{v}}}"#);
        format!("{{\"op\":\"update\",\"table\":\"t\",{row},\"tx\":1{end}}}\n")
    };
    case.put("s.ndjson", event(1, 2) + &event(2, 3) + &event(3, 1));
    let (runtime, other) = session(&case.db.dsn());
    let update = "begin; update t set note = 'theirs' where id = 3";
    runtime.block_on(other.batch_execute(update)).unwrap();
    let child = spawn(&mut command(&case, "s.ndjson --quiet"));
    let waits = "select count(*) > 0 from pg_locks l join pg_stat_activity a using (pid) \
                 where not l.granted and a.datname = current_database()";
    wait_until("the run waits for the row", || case.value(waits) == "t");
    runtime.block_on(other.batch_execute("commit")).unwrap();
    finish(child).success();
    assert_eq!(rows(&case, "t"), "(1,2,) (2,3,) (3,1,theirs)");
}

/// A row whose key changes is copied and deleted. Columns that the event lacks keep what another
/// session writes before that.
#[test]
fn a_key_change_keeps_what_another_session_writes_meanwhile() {
    let case = LoadCase::new("create table t (id int primary key, a text, b text)");
    case.db.run("insert into t values (1, 'a', 'old'), (2, 'a', 'old')");
    case.put("s.ndjson", r#"{"op":"update","table":"t","key":{"id":1},"row":{"id":3,"a":"x"}}"#);
    let (runtime, other) = session(&case.db.dsn());
    let update = "begin; update t set b = 'new' where id = 1";
    runtime.block_on(other.batch_execute(update)).unwrap();
    let child = spawn(&mut command(&case, "s.ndjson --quiet --direct-rows 0"));
    let waits = "select count(*) from pg_locks l join pg_stat_activity a using (pid) \
                 where not l.granted and a.datname = current_database()";
    wait_until("the run waits for the row", || case.value(waits) == "1");
    runtime.block_on(other.batch_execute("commit")).unwrap();
    let run = finish(child);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(rows(&case, "t"), "(2,a,old) (3,x,new)");
}
