//! Sources and targets that are not any more what they were: restored, replaced, made anew.

use crate::rows;
use crate::run::{finish, wait_until};
use crate::source::{Source, follow};
use crate::support::Case;

const TABLE: &str = "create table t (id int primary key)";

fn source() -> Source {
    Source::new(&format!("{TABLE};\ncreate publication p for table t"))
}

/// The target is put back to an older state while a stream runs, with its ledger and its fence.
/// What was applied since then is gone, and the stream must not go on after it.
#[test]
fn a_target_that_goes_back_is_noticed_while_the_stream_runs() {
    let source = source();
    let case = Case::new(TABLE);
    let child = follow(&source, &case, "--create-slot --follow --quiet");
    source.wait_for_reader();
    source.run("insert into t values (1)");
    wait_until("the first row is there", || rows(&case, "t") == "(1)");
    case.db.run("create table backup as select * from pgspate.stream");
    source.run("insert into t values (2)");
    wait_until("the second row is there", || rows(&case, "t") == "(1) (2)");
    case.db.run(
        "delete from t where id = 2;
         update pgspate.stream s set (ordinal, source, digest, fence)
             = (select ordinal, source, digest, fence from backup);
         select pg_terminate_backend(pid) from pg_stat_activity
             where datname = current_database() and application_name = 'pgspate apply'",
    );
    source.run("insert into t values (3)");
    let run = finish(child);
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("but the ledger is now at "), "{}", run.stderr);
    assert_eq!(rows(&case, "t"), "(1)");
    // The source does not have the second one any more.
    let again = finish(follow(&source, &case, "--quiet"));
    assert!(again.stderr.contains("cannot be read any more"), "{}", again.stderr);
    assert_eq!(rows(&case, "t"), "(1)");
}
