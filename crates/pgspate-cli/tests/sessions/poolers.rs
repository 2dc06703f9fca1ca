//! Every command refuses a pooler that gives each transaction another session. The command refuses
//! before it changes a session. A pooler that keeps one backend for each client is accepted.

use crate::fake_pooler::{FakePooler, Pooling};
use crate::run::{Run, ask, finish, spawn};
use crate::support::LoadCase;

/// The arguments of every command that connects to a server, to be split at spaces. The commands
/// use `t.csv` and table `t`.
pub(crate) const COMMANDS: [&str; 9] = [
    "load t.csv",
    "load t.csv --plan",
    "sync t.csv --scope all",
    "sync t.csv --table t --scope-by id --fleet f --generation 1 --members 1 --member 0",
    "fleet f",
    "apply events.ndjson",
    "doctor",
    "tune",
    "status",
];

/// The settings, advisory locks, temporary tables and prepared statements that a session keeps.
/// PgBouncer sets `application_name` for each client, so that setting does not count.
pub(crate) const SELECT_SESSION_STATE: &str = "\
select concat_ws(' ', current_setting('synchronous_commit'), current_setting('search_path'),
                 current_setting('lock_timeout'),
                 (select string_agg(name || '=' || setting, ',') from pg_settings
                  where source = 'session' and name <> 'application_name'),
                 (select count(*) from pg_locks
                  where locktype = 'advisory' and pid = pg_backend_pid()),
                 (select count(*) from pg_class where relnamespace = pg_my_temp_schema()),
                 (select count(*) from pg_prepared_statements))";

/// Returns a case with a table, a file and an event.
pub(crate) fn case() -> LoadCase {
    let case = LoadCase::new("create table t (id int primary key, n int)");
    case.put("t.csv", "id,n\n1,1\n2,2\n");
    case.put("events.ndjson", "{\"op\":\"insert\",\"table\":\"t\",\"row\":{\"id\":3,\"n\":3}}\n");
    case
}

/// Runs a command with `dsn` as target. `args` are split at spaces.
pub(crate) fn run(case: &LoadCase, dsn: &str, args: &str) -> Run {
    let mut args: Vec<&str> = args.split_whitespace().collect();
    args.splice(1..1, ["--to", dsn]);
    finish(spawn(&mut case.command(&args)))
}

#[test]
fn every_command_refuses_transaction_pooling() {
    for pooling in [Pooling::LastUsed, Pooling::InTurn] {
        let case = case();
        let pooler = FakePooler::start(&case.db.dsn(), pooling);
        let before = ask(&pooler.dsn(), SELECT_SESSION_STATE);
        for command in COMMANDS {
            let run = run(&case, &pooler.dsn(), command);
            assert_eq!((run.status, run.stdout.as_str()), (Some(2), ""), "{command}");
            assert!(
                run.stderr.contains("is a connection pooler that gives each transaction another")
                    && run.stderr.contains("hint: Connect to the server's own port, or to a pool"),
                "{pooling:?}: {command}: {}",
                run.stderr
            );
            for _ in 0..6 {
                assert_eq!(
                    ask(&pooler.dsn(), SELECT_SESSION_STATE),
                    before,
                    "{pooling:?}: {command}"
                );
            }
        }
        assert_eq!(case.value("select count(*) from t"), "0");
    }
}

#[test]
fn every_command_accepts_session_pooling() {
    let case = case();
    let pooler = FakePooler::start(&case.db.dsn(), Pooling::Session);
    for command in COMMANDS {
        let run = run(&case, &pooler.dsn(), command);
        assert!(matches!(run.status, Some(0 | 1)), "{command}: {}", run.stderr);
    }
    assert_eq!(case.value("select count(*) from t"), "3");
}

/// The first rows of the source are looked up before the table is read ahead.
#[test]
fn a_sync_of_a_table_that_is_read_ahead_accepts_session_pooling() {
    let case = case();
    case.db.run(
        "alter table t add note text default repeat('x', 200); \
         insert into t select i, i from generate_series(1, 20000) i; analyze t",
    );
    let lines = (1..=20_000).map(|id| format!("{id},{id}\n"));
    case.put("t.csv", "id,n\n".to_owned() + &lines.collect::<String>());
    let pooler = FakePooler::start(&case.db.dsn(), Pooling::Session);
    let run = run(&case, &pooler.dsn(), "sync t.csv --scope all");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let known = "20,000 of them were not staged, because the table was read first";
    assert!(run.stderr.contains(known), "{}", run.stderr);
}
