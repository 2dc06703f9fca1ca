//! Tests of loads that are killed and run again, run at the same time, or run again with changes:
//! no row is lost and no row is written twice.

use std::fmt::Write as _;

use insta::assert_snapshot;

use crate::support::{LoadCase, Run, TO_VERSION_3, finish, redact, session, spawn, wait_until};

const ROWS: u64 = 200_000;

/// Returns about 20 MB of rows, which are five chunks. `id` counts from 0, and `note` is `id * 7`.
fn csv_text() -> String {
    let mut text = "id,note\n".to_owned();
    (0..ROWS).for_each(|id| writeln!(text, "{id},{:>90}", id * 7).unwrap());
    text
}

fn new_case() -> LoadCase {
    let case = LoadCase::new("create table t (id bigint, note text)");
    case.put("t.csv", csv_text());
    case
}

/// Checks that the table has every row once, with the right note.
fn assert_complete(case: &LoadCase) {
    let sql = "select concat_ws(' ', count(*), count(distinct id), min(id), max(id), \
                      count(*) filter (where trim(note)::bigint = id * 7)) from t";
    assert_eq!(case.value(sql), format!("{ROWS} {ROWS} 0 {} {ROWS}", ROWS - 1));
}

fn count(case: &LoadCase, sql: &str) -> u64 {
    case.value(&format!("select count(*) from {sql}")).parse().unwrap()
}

fn run_status(case: &LoadCase, args: &str) -> Run {
    let mut command = case.command(&["status", "--to", &case.db.dsn()]);
    Run::of(command.args(args.split_whitespace()).output().unwrap())
}

/// Makes a load wait at the row `id`: another session has inserted its key without a commit.
fn block_load_at(case: &LoadCase, id: u64) -> (tokio::runtime::Runtime, tokio_postgres::Client) {
    case.db.run("create unique index on t (id)");
    let (runtime, holder) = session(&case.db.dsn());
    let sql = format!("begin; insert into t values ({id}, 'of another session')");
    runtime.block_on(holder.batch_execute(&sql)).unwrap();
    (runtime, holder)
}

#[test]
fn a_killed_load_continues_when_it_is_run_again() {
    let case = new_case();
    let (runtime, holder) = block_load_at(&case, ROWS - 1);
    let mut child = spawn(&mut case.load_command("t.csv --commit chunk --lanes 2 --quiet"));
    wait_until("chunks are written", || {
        case.value("select to_regclass('pgspate.ledger') is not null") == "t"
            && count(&case, "pgspate.ledger") >= 3
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let written = count(&case, "t");
    assert!(written > 0 && written < ROWS, "{written}");
    assert!(redact(&run_status(&case, "").stdout).contains("to continue"));
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    let run = case.load("t.csv --commit chunk --lanes 2");
    assert!(run.success().contains("resuming job 1 of "), "{}", run.stderr);
    assert_complete(&case);
    assert_snapshot!(redact(&run_status(&case, "1").stdout), @"
    job 1  load [DIR]/t.csv into public.t
      began [WHEN]; finished [WHEN]
      200,000 rows in 5 chunks
    ");
    // A third run writes nothing.
    let again = case.load("t.csv --commit chunk --json");
    assert_eq!(again.status, Some(0));
    let report: serde_json::Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!((&report["rows_in"], &report["rows_before"]), (&0.into(), &ROWS.into()));
    assert_complete(&case);
}

#[test]
fn a_killed_load_that_commits_at_the_end_starts_over() {
    let case = new_case();
    let (runtime, holder) = block_load_at(&case, ROWS - 1);
    let mut child = spawn(&mut case.load_command("t.csv --lanes 2 --quiet"));
    let waits = "pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()";
    wait_until("a lane waits for the key", || count(&case, waits) > 0);
    child.kill().unwrap();
    child.wait().unwrap();
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    case.load("t.csv --lanes 2").success();
    assert_complete(&case);
}

#[test]
fn a_lane_whose_session_is_terminated_continues_with_another() {
    for commit in ["chunk", "end"] {
        let case = new_case();
        let (runtime, holder) = block_load_at(&case, ROWS / 2);
        let mut command = case.load_command("t.csv --lanes 2 --quiet --commit");
        let child = spawn(command.arg(commit));
        let waits = "from pg_stat_activity where wait_event_type = 'Lock' \
                     and datname = current_database()";
        wait_until("a lane waits for the key", || {
            count(&case, waits.trim_start_matches("from ")) > 0
        });
        case.db.run(&format!("select pg_terminate_backend(pid) {waits}"));
        runtime.block_on(holder.batch_execute("rollback")).unwrap();
        finish(child).success();
        assert_complete(&case);
        assert_eq!(count(&case, "pgspate.ledger where job = 1"), 5, "{commit}");
    }
}

#[test]
fn a_lane_with_another_session_reads_times_as_before() {
    let case = LoadCase::new("create table t (id int primary key, at timestamptz, note text)");
    let rows: Vec<_> =
        (1..=ROWS).map(|id| format!("{id},2024-01-02 03:04:05,{:>60}\n", "")).collect();
    case.put("t.csv", rows.concat());
    let (runtime, holder) = session(&case.db.dsn());
    let block = format!("begin; insert into t values ({})", ROWS / 2);
    runtime.block_on(holder.batch_execute(&block)).unwrap();
    let args = "t.csv --header no --lanes 1 --commit chunk --rebuild-indexes never --quiet";
    let child = spawn(&mut case.load_command(args));
    let waits = "from pg_stat_activity where wait_event_type = 'Lock' \
                 and datname = current_database()";
    wait_until("the lane waits for the key", || {
        count(&case, waits.trim_start_matches("from ")) > 0
    });
    case.db.run(&format!(
        "alter database \"{}\" set timezone = 'Asia/Tokyo'; \
         select pg_terminate_backend(pid) {waits}",
        case.db.name()
    ));
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    finish(child).success();
    assert_eq!(
        case.value("select count(*) || ' ' || count(distinct at) from t"),
        format!("{ROWS} 1")
    );
}

#[test]
fn a_chunk_that_another_session_commits_meanwhile_is_not_written_twice() {
    let case = new_case();
    case.load("t.csv --lanes 2").success();
    // Another session inserts the ledger's row of chunk 2 without a commit, like a lost session
    // that the server still runs.
    case.db
        .run("update pgspate.job set finished = null; delete from pgspate.ledger where chunk = 2");
    let range = case.value("select rows_in from pgspate.ledger where chunk = 1");
    let (runtime, holder) = session(&case.db.dsn());
    let sql = format!(
        "begin; insert into pgspate.ledger (job, chunk, input, position, rows_in, rows_written, \
                                            rows_rejected) \
         values (1, 2, 0, {}, {range}, {range}, 0)",
        8 << 20
    );
    // The recorded position is approximate. The load itself cuts chunk 2 at the edge of a record.
    runtime.block_on(holder.batch_execute(&sql)).unwrap();
    let child = spawn(&mut case.load_command("t.csv --commit chunk --lanes 2 --quiet"));
    let waits = "pg_stat_activity where wait_event_type = 'Lock' and datname = current_database() \
                 and query like 'insert into pgspate.ledger%'";
    wait_until("the load waits for the chunk of the other session", || count(&case, waits) > 0);
    runtime.block_on(holder.batch_execute("commit")).unwrap();
    finish(child).success();
    assert_complete(&case);
}

#[test]
fn a_second_run_of_a_running_load_is_refused() {
    let case = new_case();
    let (runtime, holder) = block_load_at(&case, 5);
    let first = spawn(&mut case.load_command("t.csv --quiet"));
    let waits = "pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()";
    wait_until("a lane waits for the key", || count(&case, waits) > 0);
    let second = case.load("t.csv --quiet");
    assert_eq!(second.status, Some(2));
    assert_snapshot!(redact(&second.stderr), @r#"
    error: could not load "t.csv" into public.t
      caused by: this load is running in session [N] ("pgspate load" from a local socket,
          … since [WHEN])

    hint: Wait until that run is done. Then run the same command again to do the rest.
    "#);
    assert!(redact(&run_status(&case, "1").stdout).contains("running in session [N]"));
    assert!(run_status(&case, "1 --forget").refusal().contains("job 1 is running"));
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    finish(first).success();
    assert_complete(&case);
}

#[test]
fn a_run_that_waits_for_the_same_load_does_not_load_again() {
    let case = new_case();
    let (runtime, holder) = block_load_at(&case, 5);
    let first = spawn(&mut case.load_command("t.csv --quiet"));
    let activity = "pg_stat_activity where datname = current_database() and";
    let waits = format!("{activity} wait_event_type = 'Lock'");
    wait_until("a lane waits for the key", || count(&case, &waits) > 0);
    let second = spawn(&mut case.load_command("t.csv --json"));
    let asks = format!("{activity} query like 'select pg_try_advisory_lock%'");
    wait_until("the second run waits for the first", || count(&case, &asks) > 0);
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    finish(first).success();
    let second = finish(second);
    // The second run reports that the input is loaded already. If the first run takes long, the
    // second run gives up.
    let said = &second.stderr;
    assert!(second.status == Some(0) || said.contains("running"), "{said}");
    if second.status == Some(0) {
        assert!(said.contains("job 1 has loaded this, "), "{said}");
        let report: serde_json::Value = serde_json::from_str(&second.stdout).unwrap();
        let again = case.load("t.csv --json");
        assert_eq!(report, serde_json::from_str::<serde_json::Value>(&again.stdout).unwrap());
    }
    assert_complete(&case);
}

/// Creates a case in which a load has committed some chunks and then failed.
fn case_with_unfinished_load() -> LoadCase {
    let case = new_case();
    let mut broken = csv_text();
    broken.push_str("not a number,x\n");
    case.put("t.csv", broken);
    let said = case.load("t.csv --commit chunk --lanes 1 --quiet").refusal();
    assert!(said.contains("at: t.csv, line 200002, "), "{said}");
    assert!(said.contains(&format!("{} rows are in the table", count(&case, "t"))), "{said}");
    case
}

#[test]
fn the_report_of_a_resumed_load_counts_this_run_and_all_runs_apart() {
    let case = case_with_unfinished_load();
    let before = count(&case, "t");
    let run = case.load("t.csv --rejects bad.csv --lanes 1 --json");
    assert_eq!(run.status, Some(1), "{}", run.stderr);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["rows_before"], before);
    assert_eq!(report["rows_written"], ROWS - before);
    assert_eq!(report["rows_rejected"], 1);
    assert_eq!(report["rows_rejected_before"], 0);
    let [all, earlier] = ["bytes", "bytes_before"].map(|key| report[key].as_u64().unwrap());
    assert!(earlier > all / 2 && earlier < all, "{report}");
    // The first line has what this run wrote, and so does its rate.
    let line = format!("  with earlier runs: 200,000 rows, {} MB, 1 set aside\n", 19.5);
    assert!(run.stderr.contains(&line), "{}", run.stderr);
    assert!(run.stderr.contains(": 27,668 rows, 2."), "{}", run.stderr);
    // A load that was not interrupted has no such line.
    let once = case.load("t.csv --restart --rejects again.csv");
    assert_eq!(once.status, Some(1), "{}", once.stderr);
    assert!(!once.stderr.contains("with earlier runs"), "{}", once.stderr);
}

#[test]
fn a_load_does_not_continue_with_a_changed_source() {
    let case = case_with_unfinished_load();
    let before = count(&case, "t");
    case.put("t.csv", "id,note\n1,another\n");
    let said = case.load("t.csv --commit chunk --quiet").stderr;
    assert_snapshot!(redact(&said), @"
    error: could not continue unfinished job 1: its sources or options have changed
          … (fingerprint [HASH] then, [HASH] now)
          [DIR]/t.csv was 19488913 bytes, changed at [WHEN], content [HASH] and is 18
          … bytes, changed at [WHEN], content [HASH]

    hint: Undo these changes to continue the job, or load from the beginning with
          … `--restart`. The 172332 rows that job 1 has written stay in the table.
    ");
    assert_eq!(count(&case, "t"), before);
    case.load("t.csv --commit chunk --quiet --restart").success();
    assert_eq!(count(&case, "t"), before + 1);
}

#[test]
fn a_load_does_not_continue_with_options_that_change_the_rows() {
    let case = case_with_unfinished_load();
    let said = case.load("t.csv --commit chunk --quiet --null x").refusal();
    assert!(said.contains("null was \"\" and is \"x\""), "{said}");
    assert!(said.contains("`--restart`"), "{said}");
    // Options that do not change the rows may differ.
    let said = case.load("t.csv --commit chunk --quiet --lanes 3").refusal();
    assert!(said.contains("invalid input syntax for type bigint"), "{said}");
}

#[test]
fn a_truncated_table_is_loaded_again() {
    let case = case_with_unfinished_load();
    case.db.run("truncate t");
    case.put("t.csv", csv_text());
    case.load("t.csv --commit chunk --quiet").success();
    assert_complete(&case);
    case.db.run("truncate t");
    case.load("t.csv --quiet").success();
    assert_complete(&case);
    // A finished job does not prevent a load of a file with other rows and the same name.
    case.put("t.csv", "id,note\n-1,more\n");
    case.load("t.csv --quiet --changed reload").success();
    assert_eq!(count(&case, "t"), ROWS + 1);
}

#[test]
fn a_forgotten_job_is_loaded_again() {
    let case = new_case();
    case.load("t.csv --quiet").success();
    assert_eq!(run_status(&case, "1 --forget").status, Some(0));
    assert_eq!((count(&case, "pgspate.job"), count(&case, "pgspate.ledger")), (0, 0));
    assert_snapshot!(run_status(&case, "1").refusal(), @"
    error: the ledger of this database has no job 1

    hint: `pgspate status` lists all jobs.
    ");
    case.load("t.csv --quiet").success();
    assert_eq!(count(&case, "t"), 2 * ROWS);
}

#[test]
fn a_role_that_may_not_create_the_ledger_is_told_how() {
    let case = new_case();
    let name = format!("{}_role", case.db.name());
    case.db.run(&format!("create role \"{name}\" login; grant all on t to \"{name}\""));
    let dsn = format!("{} user='{name}'", case.db.dsn());
    let load = |more: &[&str]| {
        let args = [&["load", "-q", "--to", &dsn, "t.csv"], more].concat();
        Run::of(case.command(&args).output().unwrap())
    };
    let (refused, without) = (load(&[]), load(&["--no-ledger"]));
    let again = load(&["--no-ledger"]);
    case.db.run(&format!("drop owned by \"{name}\"; drop role \"{name}\""));
    assert_snapshot!(refused.refusal(), @r#"
    error: could not load "t.csv" into public.t
      caused by: could not create the ledger, schema "pgspate"
      caused by: permission denied for database [DATABASE] (SQLSTATE 42501)

    hint: The ledger makes loads resumable and prevents loading twice. Have the database's
          … owner run, for the role that loads,
        create schema if not exists pgspate authorization ROLE;
    or, if another role already owns the schema,
        grant usage on schema pgspate to ROLE;
        grant select, insert, update, delete on all tables in schema pgspate to ROLE;
    A load also works without a ledger, with `pgspate load --no-ledger`: the load is not
          … resumable, and running it again loads again.
    "#);
    assert_eq!((without.status, again.status), (Some(0), Some(0)));
    assert_eq!(count(&case, "t"), 2 * ROWS);
}

#[test]
fn a_role_that_may_not_insert_is_told_so_whatever_it_may_do_with_the_ledger() {
    let case = new_case();
    case.put("other.csv", "id,note\n1,x\n");
    case.load("other.csv --table t --quiet").success();
    let name = format!("{}_role", case.db.name());
    case.db.run(&format!(
        "create role \"{name}\" login; grant select on t to \"{name}\"; \
         grant usage on schema pgspate to \"{name}\"; \
         grant select, insert, update, delete on all tables in schema pgspate to \"{name}\""
    ));
    let dsn = format!("{} user='{name}'", case.db.dsn());
    let refused = Run::of(case.command(&["load", "-q", "--to", &dsn, "t.csv"]).output().unwrap());
    case.db.run(&format!("drop owned by \"{name}\"; drop role \"{name}\""));
    assert_snapshot!(refused.refusal(), @r#"
    error: could not load "t.csv" into public.t
      caused by: this role may not insert rows into public.t

    hint: Have its owner run `grant insert on public.t to ROLE`.
    "#);
}

#[test]
fn a_load_from_standard_input_creates_no_ledger() {
    let case = LoadCase::new("create table t (id bigint, note text)");
    for rows in [1, 2] {
        case.load_from("id,note\n1,x\n", "- --table t --quiet").success();
        assert_eq!(count(&case, "t"), rows);
    }
    assert_eq!(case.value("select to_regnamespace('pgspate') is null"), "t");
    let plan = case.load_from("id,note\n1,x\n", "- --table t --plan");
    assert!(plan.stdout.contains("\ncommit   all at the end, lane by lane"), "{}", plan.stdout);
    let asked = case.load_from("id,note\n1,x\n", "- --table t --commit chunk --quiet");
    assert_snapshot!(asked.refusal(), @"
    error: chunks cannot be committed one by one: the input cannot be read again later

    hint: Leave `--commit chunk` out.
    ");
}

#[test]
fn a_foreign_schema_named_pgspate_is_left_alone() {
    let case =
        LoadCase::new("create table t (id int); create schema pgspate; create table pgspate.x ()");
    case.put("t.csv", "id\n1\n");
    assert_snapshot!(case.load("t.csv --header yes --quiet").refusal(), @r#"
    error: schema "pgspate" is not a ledger of pgspate

    hint: Rename that schema. A load also works with `--no-ledger`.
    "#);
    case.load("t.csv --header yes --quiet --no-ledger").success();
}

#[test]
fn the_error_names_the_session_that_holds_the_lock() {
    let case = LoadCase::new("create table t (id int)");
    case.put("t.csv", "id\n1\n");
    let (runtime, holder) = session(&format!("{} application_name=greedy", case.db.dsn()));
    runtime.block_on(holder.batch_execute("begin; lock table t")).unwrap();
    let run = case.load("t.csv --header yes --quiet --lock-timeout 2");
    let said = run.refusal();
    assert_snapshot!(said, @r#"
    error: could not load "t.csv" into public.t
      caused by: canceling statement due to lock timeout (SQLSTATE 55P03)

    hint: The lock was held for [TIME] by session [N] ('greedy', role [ROLE], idle in
          … transaction). End that session, or wait longer with `--lock-timeout`.
    "#);
    runtime.block_on(holder.batch_execute("commit")).unwrap();
}

#[test]
fn a_load_stops_if_its_job_is_removed_from_the_ledger() {
    let case = new_case();
    let (runtime, holder) = block_load_at(&case, ROWS - 1);
    let child = spawn(&mut case.load_command("t.csv --commit chunk --lanes 2 --quiet"));
    wait_until("chunks are written", || {
        case.value("select to_regclass('pgspate.ledger') is not null") == "t"
            && count(&case, "pgspate.ledger") >= 3
    });
    // The load opens new sessions, which do not find the job.
    let (other_runtime, other) = session(&case.db.dsn());
    let end = "begin; lock table pgspate.ledger; delete from pgspate.ledger; \
               select pg_terminate_backend(pid) from pg_stat_activity \
               where datname = current_database() and application_name like 'pgspate load%'; \
               lock table pgspate.job; delete from pgspate.job; commit";
    other_runtime.block_on(other.batch_execute(end)).unwrap();
    let written = count(&case, "t");
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    let refusal = finish(child).refusal();
    assert!(refusal.contains("job 1 is no longer in the ledger"), "{refusal}");
    assert_eq!(count(&case, "t"), written);
}

/// A locked partition is not mistaken for an unreachable server.
#[test]
fn a_load_waits_for_the_lock_of_a_partition() {
    let case = LoadCase::new(
        "create table t (id int) partition by range (id); \
         create table t1 partition of t for values from (0) to (10)",
    );
    case.put("t.csv", "id\n1\n");
    let (runtime, other) = session(&case.db.dsn());
    let lock = "begin; lock table t1 in access exclusive mode";
    runtime.block_on(other.batch_execute(lock)).unwrap();
    let dsn = format!("{} connect_timeout=2", case.db.dsn());
    let load = |args: &str| {
        let mut command = case.command(&["load", "t.csv", "--to", &dsn, "--table", "t"]);
        spawn(command.args(args.split_whitespace()))
    };
    let refusal = finish(load("--quiet --lock-timeout 1")).refusal();
    assert!(refusal.contains("lock timeout (SQLSTATE 55P03)"), "{refusal}");
    let child = load("--quiet");
    let waits = "select count(*) from pg_locks l join pg_stat_activity a using (pid) \
                 where not l.granted and a.datname = current_database() \
                   and clock_timestamp() - a.query_start > '3 s'";
    wait_until("the load waits for the lock", || case.value(waits) == "1");
    runtime.block_on(other.batch_execute("rollback")).unwrap();
    finish(child).success();
    assert_eq!(case.value("select count(*) from t"), "1");
}

/// The jobs of the earlier version are still known after the upgrade.
#[test]
fn a_ledger_of_an_earlier_version_is_upgraded() {
    let case = case_with_unfinished_load();
    let second = "do $$declare it record; begin \
                  for it in select tablename, policyname from pg_policies \
                            where schemaname = 'pgspate' and tablename <> 'change' loop \
                      execute format('drop policy %I on pgspate.%I', it.policyname, it.tablename); \
                      execute format('alter table pgspate.%I disable row level security', \
                                     it.tablename); \
                  end loop; end$$; \
                  alter table pgspate.job drop column role; \
                  alter table pgspate.version drop column secret; \
                  update pgspate.version set version = 2";
    let first = "alter table pgspate.ledger drop column digest; \
                 update pgspate.version set version = 1";
    let before = count(&case, "t");
    for earlier in [vec![], vec![second], vec![second, first]] {
        case.db.run(TO_VERSION_3);
        earlier.iter().for_each(|sql| case.db.run(sql));
        // The load continues, so the ledger still recognizes the source.
        let said = case.load("t.csv --commit chunk --quiet").refusal();
        assert!(said.contains("invalid input syntax for type bigint"), "{said}");
        let now = "select concat_ws(' ', version, length(secret)) from pgspate.version";
        assert_eq!(case.value(now), "9 72");
        let open = "select count(*) from pg_class where relnamespace = 'pgspate'::regnamespace \
                    and relkind = 'r' and relname <> 'version' and not relrowsecurity";
        assert_eq!(case.value(open), "0");
    }
    case.db.run("update pgspate.version set version = 10");
    let said = case.load("t.csv --commit chunk --quiet").refusal();
    assert!(said.contains("the ledger's version is 10, expected 9"), "{said}");
    assert_eq!(count(&case, "t"), before);
}

/// Turns the ledger into one of version 6.
const TO_VERSION_6: &str = "\
update pgspate.version set version = 6;
alter table pgspate.emptied replica identity default;
alter table pgspate.bound replica identity default;
alter table pgspate.version replica identity default;
drop index pgspate.request_expires;
alter table pgspate.request drop column expires;
drop table pgspate.stream_file;
create index request_written on pgspate.request (written)";

/// Such a publication lets rows be updated or deleted only in tables with a replica identity.
#[test]
fn the_ledger_works_beside_a_publication_of_all_tables() {
    let case = LoadCase::new("create unlogged table t (id int)");
    case.put("t.csv", "id\n1\n");
    case.load("t.csv --quiet").success();
    case.db.run("create publication everything for all tables");
    let unidentified = "select count(*) from pg_class c \
                        where relnamespace = 'pgspate'::regnamespace and relkind = 'r' \
                          and relreplident <> 'f' and not exists ( \
                              select from pg_index where indrelid = c.oid and indisprimary)";
    for is_upgraded in [false, true] {
        if is_upgraded {
            case.db.run(TO_VERSION_6);
            assert_eq!(case.value(unidentified), "3");
        }
        for _ in 0..2 {
            case.load("t.csv --replace --quiet").success();
        }
        assert_eq!(case.value(unidentified), "0");
        assert_eq!(case.value("select count(*) from t"), "1");
        let job = case.value("select max(job) from pgspate.bound");
        let dsn = case.db.dsn();
        let forgotten = case.command(&["status", "--forget", &job, "--to", &dsn]).output();
        Run::of(forgotten.unwrap()).success();
        assert_eq!(case.value("select version from pgspate.version"), "9");
    }
}
