//! Tests that keys which a load has dropped are restored after errors, renames and other loads.

use std::fmt::Write as _;
use std::process::{Child, Command, Stdio};

use tokio::runtime::Runtime;
use tokio_postgres::Client;

use crate::support::{LoadCase, Run, finish, session, spawn, wait_until};

/// Empties the table and the ledger.
const TRUNCATE_ALL: &str = "truncate t, pgspate.job, pgspate.source_file, pgspate.fleet_job, \
     pgspate.part, pgspate.bound, \
                            pgspate.ledger, pgspate.reject, pgspate.change";

/// Selects the definitions of the indexes and constraints of the table that was named `t` first.
pub(crate) const SELECT_DEFINITIONS: &str = "\
select string_agg(line, E'\\n' order by line) from (
    select pg_get_indexdef(indexrelid) || coalesce(' ' || obj_description(indexrelid), '') as line
    from pg_index where indrelid = (select oid from noted)
    union all
    select conname || ' ' || pg_get_constraintdef(oid) || coalesce(' ' || obj_description(oid), '')
    from pg_constraint where conrelid = (select oid from noted)
        and contype not in ('n', 'c')) lines";

/// Creates a table with keys, and a check that makes each inserted row wait for an advisory lock.
const CREATE_TABLE: &str = "\
create table far (a int primary key); insert into far select generate_series(0, 6);
create function wait() returns boolean language plpgsql as
    'begin if current_setting(''application_name'') like ''pgspate load%''
           then perform pg_advisory_xact_lock_shared(7); end if; return true; end';
create table t (id int constraint t_key primary key, a int constraint t_far references far,
                b text, constraint t_both unique (id, a), constraint waits check (wait()));
create index t_a on t (a);
create unique index t_b on t (b) where b <> '';
comment on index t_a is 'a'; comment on constraint t_key on t is 'key';
create table noted as select 't'::regclass::oid as oid";

fn csv_text(count: usize) -> String {
    let mut rows = "id,a,b\n".to_owned();
    (0..count).for_each(|row| writeln!(rows, "{row},{},b{row}", row % 7).unwrap());
    rows
}

/// Starts a load that has dropped the keys and waits in its first rows for a lock.
///
/// Returns the load and the session that holds the lock.
fn start_blocked_load(case: &LoadCase, args: &str) -> (Child, Runtime, Client) {
    let (runtime, holder) = session(&case.db.dsn());
    runtime.block_on(holder.batch_execute("begin; select pg_advisory_xact_lock(7)")).unwrap();
    let child = spawn(&mut case.load_command(args));
    wait_until("a row waits", || {
        let sql = "select count(*) from pg_stat_activity \
                   where datname = current_database() and wait_event = 'advisory'";
        case.value(sql) != "0"
    });
    (child, runtime, holder)
}

/// Arguments of a load that drops the keys.
const DROP_KEYS: &str = "t.csv --rebuild-indexes always --lanes 2 --quiet";

/// Starts a load and kills the load after it has dropped the keys.
pub(crate) fn start_and_kill_load(case: &LoadCase) {
    let (mut child, runtime, holder) = start_blocked_load(case, DROP_KEYS);
    child.kill().unwrap();
    child.wait().unwrap();
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    wait_until("its sessions are gone", || case.is_quiet());
    assert_eq!(case.value("select count(*) from pg_index where indrelid = 't'::regclass"), "0");
}

pub(crate) fn run_restore(case: &LoadCase) -> Run {
    let mut command = case.command(&["status", "--restore", "--to", &case.db.dsn()]);
    Run::of(command.output().unwrap())
}

pub(crate) fn new_case() -> (LoadCase, String) {
    let case = LoadCase::new(CREATE_TABLE);
    case.put("t.csv", csv_text(1000));
    let shape = case.value(SELECT_DEFINITIONS);
    assert_eq!(shape.lines().count(), 7, "{shape}");
    (case, shape)
}

/// Returns commands of loads that fail before they restore the keys, or soon after.
fn commands_that_fail_early(case: &LoadCase) -> Vec<(&'static str, Command)> {
    let role = format!("{}_reader", case.db.name());
    let load = |args: &str| case.load_command(&format!("{DROP_KEYS} {args}"));
    let with = |mut command: Command, options: &str| {
        command.env("PGOPTIONS", options);
        command
    };
    let mut as_reader = case.command(&["load", "--to", &format!("{} user={role}", case.db.dsn())]);
    as_reader.args(DROP_KEYS.split(' '));
    vec![
        ("a rejects file that exists", load("--rejects there.csv")),
        ("a rejects file in no folder", load("--rejects no/such/folder.csv")),
        ("a rejects file that is the source", load("--rejects t.csv")),
        ("a bad option", load("--max-rejects many --rejects r.csv")),
        ("a bad delimiter", load("--delimiter xx")),
        ("a column that is not there", load("--columns id,a,nothing")),
        ("a source that is not there", load("nothing.csv")),
        ("an unknown encoding", load("--encoding nonsense")),
        ("a role that may not write", as_reader),
        ("a session that may not write", with(load(""), "-c default_transaction_read_only=on")),
        ("a statement timeout", with(load("--retry-for 0"), "-c statement_timeout=1")),
        ("a restart, and a rejects file", load("--restart --rejects there.csv")),
        ("other options, and a rejects file", load("--null x --rejects there.csv")),
        ("another file, and a rejects file", {
            case.load_command("other.csv --table t --quiet --rejects there.csv")
        }),
        ("a row that is refused", case.load_command("bad.csv --table t --quiet")),
        ("a swap that is refused", load("--replace=swap --columns id,a,nothing")),
        ("an atomic load, and a rejects file", load("--atomic --rejects there.csv")),
    ]
}

#[test]
fn keys_survive_every_early_error() {
    let (case, shape) = new_case();
    case.put("there.csv", "somebody's rows\n");
    case.put("other.csv", "id,a,b\n5000,1,x\n");
    case.put("bad.csv", "id,a,b\nx,1,x\n");
    let role = format!("{}_reader", case.db.name());
    case.db.run(&format!("create role {role} login; grant select on t to {role}"));
    start_and_kill_load(&case);
    case.db.run(&format!(
        "grant usage on schema pgspate to {role}; \
         grant select, insert, update, delete on all tables in schema pgspate to {role}"
    ));
    for (nth, (what, mut command)) in commands_that_fail_early(&case).into_iter().enumerate() {
        if nth > 0 {
            start_and_kill_load(&case);
        }
        let run = finish(spawn(command.stdin(Stdio::null())));
        assert!(matches!(run.status, Some(2)), "{what}: {:?} {}", run.status, run.stderr);
        if nth % 2 == 0 {
            let back = run_restore(&case);
            assert_eq!(back.status, Some(0), "{what}: {}", back.stderr);
            assert_eq!(case.value(SELECT_DEFINITIONS), shape, "{what}: {}", run.stderr);
        }
        let again = case.load(DROP_KEYS);
        assert_eq!(again.status, Some(0), "{what}: {}", again.stderr);
        assert_eq!(case.value(SELECT_DEFINITIONS), shape, "{what}: {}", run.stderr);
        assert_eq!(case.value("select count(*) from t"), "1000", "{what}");
        case.db.run(TRUNCATE_ALL);
    }
    case.db.run(&format!("drop owned by {role}; drop role {role}"));
}

#[test]
fn an_early_error_names_the_unrestored_keys() {
    let (case, _) = new_case();
    case.put("there.csv", "somebody's rows\n");
    start_and_kill_load(&case);
    let run = case.load(&format!("{DROP_KEYS} --rejects there.csv"));
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    let said = run.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("file \"there.csv\" already exists"), "{said}");
    assert!(said.contains("primary key \"t_key\""), "{said}");
    assert!(said.contains("`pgspate status --restore 1`"), "{said}");
}

#[test]
fn old_jobs_keep_unrestored_keys_in_the_ledger() {
    let (case, shape) = new_case();
    start_and_kill_load(&case);
    // An old version may have marked the job as finished without restoring the keys.
    case.db.run("update pgspate.job set finished = now() - interval '8 days'");
    case.db.run("create table other (id int)");
    case.put("other.csv", "id\n1\n");
    case.load("other.csv --quiet --header yes").success();
    assert_eq!(run_restore(&case).status, Some(0));
    assert_eq!(case.value(SELECT_DEFINITIONS), shape);
}

#[test]
fn restore_without_a_ledger_has_nothing_to_do() {
    let case = LoadCase::new("create table t (id int)");
    let run = run_restore(&case);
    assert_eq!((run.status, run.stderr.as_str()), (Some(0), "there is nothing to put back\n"));
}

#[test]
fn restore_skips_a_dropped_table() {
    let (case, _) = new_case();
    start_and_kill_load(&case);
    case.db.run("drop table t");
    let run = run_restore(&case);
    assert_eq!((run.status, run.stderr.as_str()), (Some(0), "there is nothing to put back\n"));
}

#[test]
fn a_renamed_table_gets_its_own_keys_back() {
    let (case, shape) = new_case();
    let options =
        "select coalesce((select string_agg(o, ' ' order by o) from unnest(reloptions) o),
                                   'none') from pg_class where oid = ";
    // Another table takes the name of the renamed table. Another schema takes the name of its
    // schema.
    let renames = [
        "alter table t rename to was; create table t (id int, a int, b text)",
        "alter schema public rename to before; create schema public; \
         create table t (id int, a int, b text)",
        "create schema elsewhere; alter table t set schema elsewhere; \
         create table t (id int, a int, b text)",
        "alter table t rename to \"it's \\ \"\"t\"; create table t (id int, a int, b text)",
        "alter table far rename to far_was; create table far (a int primary key)",
    ];
    let back = [
        "drop table t; alter table was rename to t",
        "drop schema public cascade; alter schema before rename to public",
        "drop table t; alter table elsewhere.t set schema public; drop schema elsewhere",
        "drop table t; alter table \"it's \\ \"\"t\" rename to t",
        "drop table far; alter table far_was rename to far",
    ];
    for (rename, undo) in renames.into_iter().zip(back) {
        let (mut child, runtime, holder) =
            start_blocked_load(&case, &format!("{DROP_KEYS} --pause-autovacuum always"));
        child.kill().unwrap();
        child.wait().unwrap();
        runtime.block_on(holder.batch_execute("rollback")).unwrap();
        wait_until("its sessions are gone", || case.is_quiet());
        case.db.run(rename);
        let run = run_restore(&case);
        assert_eq!(run.status, Some(0), "{rename}: {}", run.stderr);
        let namesakes = "select count(*) from pg_index i join pg_class c on c.oid = i.indrelid \
                         where c.relname = 't' and i.indrelid <> (select oid from pg_temp.n)";
        let namesakes = namesakes.replace("pg_temp.n", "before_or_public.noted");
        let noted = match rename.contains("alter schema") {
            true => "before",
            false => "public",
        };
        assert_eq!(case.value(&namesakes.replace("before_or_public", noted)), "0", "{rename}");
        case.db.run(undo);
        assert_eq!(case.value(SELECT_DEFINITIONS), shape, "{rename}");
        assert_eq!(case.value(&format!("{options} 't'::regclass")), "none", "{rename}");
        case.db.run(TRUNCATE_ALL);
    }
}

#[test]
fn restore_names_a_renamed_column() {
    let (case, shape) = new_case();
    start_and_kill_load(&case);
    case.db.run(
        "alter table t rename a to x; alter table t rename b to a; alter table t rename x to b",
    );
    let run = run_restore(&case);
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("could not put back"), "{}", run.stderr);
    assert!(run.stderr.contains("was renamed to"), "{}", run.stderr);
    assert!(run.stderr.contains("Rename the column back to its old name"), "{}", run.stderr);
    case.db.run(
        "alter table t rename a to x; alter table t rename b to a; alter table t rename x to b",
    );
    assert_eq!(run_restore(&case).status, Some(0));
    assert_eq!(case.value(SELECT_DEFINITIONS), shape);
}

#[test]
fn restore_reports_a_name_taken_by_another_object() {
    let (case, shape) = new_case();
    start_and_kill_load(&case);
    case.db.run("create table t_a (id int); create index t_b on far (a)");
    let run = run_restore(&case);
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    let said = run.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("already exists"), "{said}");
    assert!(
        said.contains("Rename or drop that object, then run `pgspate status --restore 1`"),
        "{said}"
    );
    case.db.run("drop table t_a; drop index t_b");
    assert_eq!(run_restore(&case).status, Some(0));
    assert_eq!(case.value(SELECT_DEFINITIONS), shape);
}

#[test]
fn keys_are_restored_exactly_under_other_settings() {
    let case = LoadCase::new(CREATE_TABLE);
    case.db.run(
        r"alter table t add at timestamp, add f float8, add s interval;
          create index t_back on t (id) where b <> 'a\b' and b <> 'it''s';
          create index t_at on t (id) where at > timestamp '2020-01-02';
          create index t_float on t (id) where f > 0.1::float8 + 0.2;
          create index t_span on t (id) where s > interval '-1 day 2 hours';
          create index t_null on t ((b = null))",
    );
    case.put("t.csv", csv_text(100));
    let shape = case.value(SELECT_DEFINITIONS);
    let settings = [
        ("", "-c standard_conforming_strings=off -c datestyle=SQL,DMY -c intervalstyle=iso_8601"),
        ("-c standard_conforming_strings=off -c datestyle=German -c extra_float_digits=0", ""),
        ("-c quote_all_identifiers=on", "-c transform_null_equals=on"),
        ("-c intervalstyle=sql_standard -c datestyle=SQL,MDY", "-c datestyle=SQL,DMY"),
    ];
    for (then, later) in settings {
        let (runtime, holder) = session(&case.db.dsn());
        runtime.block_on(holder.batch_execute("begin; select pg_advisory_xact_lock(7)")).unwrap();
        let mut command = case.load_command(DROP_KEYS);
        let mut child = spawn(command.env("PGOPTIONS", then));
        wait_until("the keys are gone", || {
            case.value("select count(*) from pg_index where indrelid = 't'::regclass") == "0"
        });
        child.kill().unwrap();
        child.wait().unwrap();
        runtime.block_on(holder.batch_execute("rollback")).unwrap();
        wait_until("its sessions are gone", || case.is_quiet());
        let mut command = case.command(&["status", "--restore", "--to", &case.db.dsn()]);
        let run = Run::of(command.env("PGOPTIONS", later).output().unwrap());
        assert_eq!(run.status, Some(0), "{then}, {later}: {}", run.stderr);
        assert_eq!(case.value(SELECT_DEFINITIONS), shape, "{then}, {later}");
        case.db.run(TRUNCATE_ALL);
    }
}

/// Joins the lines of a text.
fn join_lines(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_second_load_waits_until_the_first_restores_the_keys() {
    for (first, second) in [("1,1,1\n1,2,2\n", "5,5,5\n"), ("1,1,1\n2,2,2\n", "5,5,x\n5,6,y\n")] {
        let (case, shape) = new_case();
        case.put("t.csv", format!("id,a,b\n{first}"));
        case.put("other.csv", format!("id,a,b\n{second}"));
        let (child, runtime, holder) = start_blocked_load(&case, DROP_KEYS);
        for args in ["", "--no-ledger", "--rebuild-indexes always"] {
            let args = format!("other.csv --table t --quiet --lock-timeout 1 {args}");
            let run = case.load(&args);
            assert_eq!(run.status, Some(2), "{args}: {}", run.stderr);
            let said = join_lines(&run.stderr);
            assert!(said.contains("could not write into table public.t"), "{said}");
            assert!(said.contains("primary key \"t_key\", foreign key \"t_far\" and"), "{said}");
            assert!(said.contains("job 1 in session"), "{said}");
        }
        let beside = spawn(&mut case.load_command("other.csv --table t --quiet"));
        let looks = "select count(*) from pg_stat_activity where datname = current_database() \
                     and application_name = 'pgspate load' and query like '%pgspate.change%'";
        wait_until("the second load waits", || case.value(looks) != "0");
        runtime.block_on(holder.batch_execute("commit")).unwrap();
        let (one, two) = (finish(child), finish(beside));
        assert_eq!(case.value(SELECT_DEFINITIONS), shape, "{}{}", one.stderr, two.stderr);
        let (one_rows, two_rows) = (first.lines().count(), second.lines().count());
        let expected = match first.starts_with("1,1,1\n1,") {
            true => (Some(2), Some(0), two_rows),
            false => (Some(0), Some(2), one_rows),
        };
        let rows = case.value("select count(*) from t").parse::<usize>().unwrap();
        assert_eq!((one.status, two.status, rows), expected, "{}{}", one.stderr, two.stderr);
    }
}

#[test]
fn keys_are_not_dropped_while_another_load_runs() {
    let (case, shape) = new_case();
    // The first load keeps the keys and waits in its first rows.
    let (child, runtime, holder) =
        start_blocked_load(&case, "t.csv --lanes 2 --quiet --rebuild-indexes never --commit chunk");
    case.put("other.csv", "id,a,b\n5000,1,x\n");
    let run = case.load("other.csv --table t --quiet --rebuild-indexes always --lanes 1");
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    runtime.block_on(holder.batch_execute("commit")).unwrap();
    assert_eq!(finish(child).status, Some(0));
    assert_eq!(case.value(SELECT_DEFINITIONS), shape);
}

#[test]
fn sync_and_apply_do_not_write_while_keys_are_missing() {
    let (case, shape) = new_case();
    case.put("other.csv", "id,a,b\n5000,1,x\n");
    case.put(
        "events.json",
        r#"{"op":"c","after":{"id":6000,"a":1,"b":"z"},"source":{"schema":"public","table":"t"}}"#,
    );
    let to = case.db.dsn();
    let sync = ["sync", "other.csv", "--table", "t", "--key", "id", "--no-delete", "-q"];
    let apply = ["apply", "events.json", "--format", "debezium", "-q", "--stream", "s"];
    let run = |args: &[&str]| finish(spawn(case.command(args).args(["--to", &to])));
    // At first the load still runs. Later it is killed.
    let (mut child, runtime, holder) = start_blocked_load(&case, DROP_KEYS);
    for is_killed in [false, true] {
        if is_killed {
            child.kill().unwrap();
            child.wait().unwrap();
            runtime.block_on(holder.batch_execute("rollback")).unwrap();
            wait_until("its sessions are gone", || case.is_quiet());
        }
        for args in [&sync[..], &apply[..]] {
            let refused = run(args);
            assert_eq!(refused.status, Some(2), "{args:?} {}", refused.stderr);
            let said = join_lines(&refused.stderr);
            assert!(said.contains("could not write into table public.t"), "{said}");
            let who = if is_killed { "no session works" } else { "job 1 in session" };
            assert!(said.contains(who), "{said}");
        }
    }
    assert_eq!(run_restore(&case).status, Some(0));
    assert_eq!(case.value(SELECT_DEFINITIONS), shape);
    for args in [&sync[..], &apply[..]] {
        let done = run(args);
        assert_eq!(done.status, Some(0), "{args:?} {}", done.stderr);
    }
    assert_eq!(case.value("select count(*) from t"), "2");
}

#[test]
fn another_load_restores_the_keys_before_it_writes() {
    let (case, shape) = new_case();
    case.db.run("insert into t select n, n % 7, 'n' || n from generate_series(5000, 5010) n");
    start_and_kill_load(&case);
    case.put("other.csv", "id,a,b\n5000,1,x\n");
    let run = case.load("other.csv --table t --quiet");
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("duplicate key"), "{}", run.stderr);
    assert!(run.stderr.contains("at: other.csv"), "{}", run.stderr);
    assert_eq!(case.value(SELECT_DEFINITIONS), shape);
}

#[test]
fn a_load_waits_for_the_lock_of_a_table_with_an_index() {
    let case = LoadCase::new("create table t (id int primary key, a int)");
    case.put("t.csv", "id,a\n1,1\n2,2\n");
    let (runtime, holder) = session(&case.db.dsn());
    let lock = "set application_name = 'the holder'; begin; lock table t";
    runtime.block_on(holder.batch_execute(lock)).unwrap();
    let run = case.load("t.csv --quiet --lock-timeout 2");
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    let said = join_lines(&run.stderr);
    assert!(said.contains("lock timeout"), "{said}");
    assert!(said.contains("The lock was held for 2 s by session"), "{said}");
    assert!(said.contains("the holder"), "{said}");
    let child = spawn(&mut case.load_command("t.csv --quiet"));
    wait_until("the load has waited for longer than a second", || {
        let sql = "select count(*) from pg_stat_activity where datname = current_database() \
                   and wait_event_type = 'Lock' and clock_timestamp() - xact_start > '1.5 s'";
        case.value(sql) != "0"
    });
    runtime.block_on(holder.batch_execute("commit")).unwrap();
    finish(child).success();
    assert_eq!(case.value("select count(*) from t"), "2");
}

#[test]
fn indexes_stay_if_temp_file_limit_is_too_small() {
    let case = LoadCase::new("create table t (id int constraint t_key primary key, a int, b text)");
    case.put("t.csv", csv_text(600_000));
    let load = |args: &str, options: &str| {
        let mut command = case.load_command(&format!("t.csv {args}"));
        finish(spawn(command.env("PGOPTIONS", options).stdin(Stdio::null())))
    };
    let said = load("--plan", "-c temp_file_limit=1MB").stdout;
    assert!(said.contains("indexes  stay: temp_file_limit leaves too little room"), "{said}");
    let said = load("--plan", "-c temp_file_limit=1GB").stdout;
    assert!(said.contains("primary key, dropped"), "{said}");
    case.put("first.csv", "id\n1\n");
    case.load("first.csv --create --quiet --header yes").success();
    // Parallel workers always write files. A single process sorts in memory.
    let options = "-c temp_file_limit=0 -c max_parallel_maintenance_workers=2";
    let run = load("--quiet --rebuild-indexes always", options);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let key = "select indisvalid from pg_index where indexrelid = 't_key'::regclass";
    assert_eq!(
        (case.value(key), case.value("select count(*) from t")),
        ("t".into(), "600000".into())
    );
}

/// Returns rows whose column `code` has numbers, and text in the last row.
fn csv_with_late_text(rows: usize) -> String {
    let mut text = "id,code,note\n".to_owned();
    (0..rows).for_each(|row| writeln!(text, "{row},{row},{:>90}", row).unwrap());
    text + &format!("{rows},A1,last\n")
}

#[test]
fn a_continued_load_still_widens_a_column_of_its_created_table() {
    for is_committed in [false, true] {
        let case = LoadCase::new("");
        case.put("first.csv", "id\n1\n");
        case.load("first.csv --create --quiet --header yes").success();
        case.put("late.csv", csv_with_late_text(50_000));
        let (runtime, holder) = session(&case.db.dsn());
        case.db.run(
            "create function held() returns trigger language plpgsql as
                 'begin perform pg_advisory_xact_lock_shared(7); return new; end';
             create trigger held before insert on pgspate.ledger
                 for each row execute function held()",
        );
        runtime.block_on(holder.batch_execute("begin; select pg_advisory_xact_lock(7)")).unwrap();
        let args = "late.csv --create --quiet --lanes 1 --commit chunk";
        let mut child = spawn(&mut case.load_command(args));
        let waits = "select count(*) from pg_stat_activity where datname = current_database() \
                     and wait_event = 'advisory'";
        wait_until("the first chunk waits", || case.value(waits) != "0");
        child.kill().unwrap();
        child.wait().unwrap();
        if !is_committed {
            case.db.run(
                "select pg_terminate_backend(pid) from pg_stat_activity \
                 where datname = current_database() and application_name like 'pgspate%'",
            );
        }
        runtime.block_on(holder.batch_execute("rollback")).unwrap();
        wait_until("its sessions are gone", || case.is_quiet());
        let ty = "select pg_typeof(code) from late limit 1";
        let ty_of_table = "select format_type(atttypid, -1) from pg_attribute \
                           where attrelid = 'late'::regclass and attname = 'code'";
        assert_eq!(case.value(ty_of_table), "bigint");
        assert_eq!(case.value("select count(*) > 0 from late") == "t", is_committed);
        let run = case.load(args);
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        assert_eq!(
            (case.value(ty), case.value("select count(*) from late")),
            ("text".into(), "50001".into())
        );
    }
}

#[test]
fn an_index_alone_is_not_a_restored_primary_key() {
    let (case, shape) = new_case();
    start_and_kill_load(&case);
    case.db.run("alter table t add constraint other primary key (id)");
    let run = run_restore(&case);
    assert_eq!(run.status, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("primary key \"t_key\""), "{}", run.stderr);
    assert!(run.stderr.contains("multiple primary keys"), "{}", run.stderr);
    case.db.run("alter table t drop constraint other");
    assert_eq!(run_restore(&case).status, Some(0));
    assert_eq!(case.value(SELECT_DEFINITIONS), shape);
}

#[test]
fn a_load_takes_over_the_keys_of_two_unfinished_loads() {
    let (case, shape) = new_case();
    let rows: String = (5000..5900).map(|id| format!("{id},{},c{id}\n", id % 7)).collect();
    case.put("u.csv", format!("id,a,b\n{rows}"));
    for file in ["t.csv", "u.csv"] {
        let args = format!("{file} --table t --rebuild-indexes always --lanes 2 --quiet");
        let (mut child, runtime, holder) = start_blocked_load(&case, &args);
        child.kill().unwrap();
        child.wait().unwrap();
        runtime.block_on(holder.batch_execute("rollback")).unwrap();
        wait_until("its sessions are gone", || case.is_quiet());
        if file == "t.csv" {
            assert_eq!(run_restore(&case).status, Some(0));
            assert_eq!(case.value(SELECT_DEFINITIONS), shape);
        }
    }
    case.load("t.csv u.csv --table t --quiet").success();
    assert_eq!(case.value(SELECT_DEFINITIONS), shape);
    assert_eq!(case.value("select count(*) from t"), "1900");
}

#[test]
fn rows_that_a_rule_keeps_from_being_removed_are_not_loaded_twice() {
    let case = LoadCase::new(
        "create table far (a int primary key); insert into far values (1); \
         create table t (id int, a int constraint t_far references far); \
         insert into t values (0, 1); \
         create rule keep as on delete to t do instead nothing",
    );
    let rows: String = (1..10).map(|id| format!("{id},1\n")).collect();
    case.put("t.csv", format!("id,a\n{rows}10,2\n"));
    let load = || case.load("t.csv --rebuild-indexes always --quiet").refusal();
    let said = load();
    insta::assert_snapshot!(said, @r#"
    error: could not load "t.csv" into public.t
      caused by: could not put back foreign key "t_far"
      caused by: insert or update on table "t" violates foreign key constraint "t_far"
          … (SQLSTATE 23503)
      caused by: Key (a)=(2) is not present in table "far"

    hint: Every row is in the table, but some of its indexes are missing. `pgspate status
          … --restore 1` creates them, and so does the same command, run again.
    "#);
    assert_eq!(load(), said);
    let count = "select count(*) || ' ' || count(distinct id) from t";
    assert_eq!(case.value(count), "11 11");
}

#[test]
fn a_replica_identity_that_a_user_sets_during_the_load_stays() {
    let identity = "select relreplident from pg_class where oid = 't'::regclass";
    for (set, expected) in [("", "i"), ("alter table t replica identity full", "f")] {
        let (case, shape) = new_case();
        case.db.run("alter table t replica identity using index t_key");
        start_and_kill_load(&case);
        case.db.run(set);
        run_restore(&case).success();
        assert_eq!(case.value(SELECT_DEFINITIONS), shape);
        assert_eq!(case.value(identity), expected);
    }
}
