//! Tests of how a load pauses autovacuum, analyzes the table and advances sequences.

use std::process::Child;

use insta::assert_snapshot;
use tokio::runtime::Runtime;
use tokio_postgres::Client;

use crate::support::{LoadCase, Run, session, spawn, wait_until};

/// Storage options of the table and of its TOAST table.
const OPTIONS: &str = "\
select concat_ws(' | ',
    (select array_agg(o order by o) from unnest(c.reloptions) o),
    (select array_agg(o order by o) from pg_class t, unnest(t.reloptions) o
     where t.oid = c.reltoastrelid))
from pg_class c where c.oid = 't'::regclass";

fn run_status(case: &LoadCase, args: &str) -> Run {
    let mut command = case.command(&["status", "--to", &case.db.dsn()]);
    Run::of(command.args(args.split_whitespace()).output().unwrap())
}

/// Starts a load that waits in its first rows for a lock. Returns the load and the session that
/// holds the lock.
fn start_blocked_load(case: &LoadCase, args: &str) -> (Child, Runtime, Client) {
    case.db.run(
        "create function wait() returns trigger language plpgsql as
             'begin perform pg_advisory_xact_lock_shared(7); return new; end';
         create trigger wait before insert on t for each row execute function wait()",
    );
    let (runtime, holder) = session(&case.db.dsn());
    runtime.block_on(holder.batch_execute("begin; select pg_advisory_xact_lock(7)")).unwrap();
    let child = spawn(&mut case.load_command(&format!("t.csv --lanes 2 {args}")));
    wait_until("a row waits", || {
        let sql = "select count(*) from pg_stat_activity \
                   where datname = current_database() and wait_event = 'advisory'";
        case.value(sql) != "0"
    });
    (child, runtime, holder)
}

#[test]
fn a_load_pauses_autovacuum_and_restores_its_setting() {
    for set in [
        "",
        "with (fillfactor = 70, toast.autovacuum_vacuum_threshold = 100)",
        "with (autovacuum_enabled, fillfactor = 70, toast.autovacuum_enabled = true)",
        "with (autovacuum_enabled = true, toast.autovacuum_enabled = off)",
    ] {
        let case = LoadCase::new(&format!("create table t (id int, note text) {set}"));
        case.put("t.csv", "id,note\n1,a\n2,b\n");
        let before = case.value(OPTIONS);
        let (child, runtime, holder) =
            start_blocked_load(&case, "--quiet --pause-autovacuum always");
        let meanwhile = case.value(OPTIONS);
        assert_eq!(meanwhile.matches("autovacuum_enabled=off").count(), 2, "{meanwhile}");
        runtime.block_on(holder.batch_execute("rollback")).unwrap();
        crate::support::finish(child).success();
        assert_eq!(case.value(OPTIONS), before);
    }
}

#[test]
fn an_option_that_a_user_sets_during_the_load_stays() {
    let case = LoadCase::new("create table t (id int, note text)");
    case.put("t.csv", "id,note\n1,a\n2,b\n");
    let (child, runtime, holder) = start_blocked_load(&case, "--pause-autovacuum always");
    case.db.run("alter table t set (autovacuum_enabled = true)");
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    let said = crate::support::finish(child).success();
    assert_eq!(
        case.value("select reloptions::text from pg_class where oid = 't'::regclass"),
        "{autovacuum_enabled=true}"
    );
    let toast = "select count(*) from pg_class where reloptions::text like '%off%'";
    assert_eq!(case.value(toast), "0");
    let warning = "autovacuum_enabled of public.t was changed during the load, and stays as it is";
    assert!(said.replace("\n", " ").contains(warning), "{said}");
}

#[test]
fn restore_turns_autovacuum_on_after_a_killed_load() {
    let case = LoadCase::new("create table t (id int, note text) with (fillfactor = 90)");
    case.put("t.csv", "id,note\n1,a\n2,b\n");
    let before = case.value(OPTIONS);
    let (mut child, runtime, holder) =
        start_blocked_load(&case, "--quiet --pause-autovacuum always");
    child.kill().unwrap();
    child.wait().unwrap();
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    assert_ne!(case.value(OPTIONS), before);
    wait_until("the ledger shows that the load has ended", || {
        !run_status(&case, "1").stdout.contains("under way")
    });
    assert_snapshot!(run_status(&case, "--restore").stderr, @"autovacuum of job 1 is back");
    assert_eq!(case.value(OPTIONS), before);
    assert_eq!(case.rows("t").len(), 0);
}

#[test]
fn restore_names_what_a_user_has_changed_since() {
    let case = LoadCase::new("create table t (id int)");
    case.put("t.csv", "id\n1\n2\n");
    let (mut child, runtime, holder) =
        start_blocked_load(&case, "--header yes --quiet --pause-autovacuum always");
    child.kill().unwrap();
    child.wait().unwrap();
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    case.db.run("alter table t set (autovacuum_enabled = true)");
    wait_until("the ledger shows that the load has ended", || {
        !run_status(&case, "1").stdout.contains("running in")
    });
    let said = run_status(&case, "--restore").stderr.replace('\n', " ");
    let warning = "warning: autovacuum_enabled of public.t was changed since the load changed it, \
                   and stays as it is";
    assert_eq!(said.trim(), warning);
    let options = "select reloptions::text from pg_class where oid = 't'::regclass";
    assert_eq!(case.value(options), "{autovacuum_enabled=true}");
}

#[test]
fn a_load_leaves_disabled_autovacuum_disabled() {
    let case = LoadCase::new("create table t (id int) with (autovacuum_enabled = no)");
    case.put("t.csv", "id\n1\n");
    case.load("t.csv --header yes --quiet --pause-autovacuum always").success();
    assert_eq!(
        case.value("select reloptions from pg_class where relname = 't'"),
        "{autovacuum_enabled=no}"
    );
    assert_eq!(case.value("select count(*) from pgspate.change"), "0");
}

/// Runs a load. Returns from its report which of ANALYZE and VACUUM the load ran, and the reason.
fn read_analyze_decision(case: &LoadCase, args: &str) -> String {
    let run = case.load(&format!("{args} --json --quiet"));
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let value = |name: &str| {
        let (_, rest) = run.stdout.split_once(&format!("\"{name}\": ")).unwrap();
        rest.split(['\n', ',']).next().unwrap().trim_matches('"').to_owned()
    };
    format!("{}: {}", value("counted"), value("counted_reason"))
}

#[test]
fn a_load_analyzes_the_table_if_many_rows_are_new() {
    let case = LoadCase::new(
        "create table t (id int) with (autovacuum_enabled = off);
         insert into t select generate_series(1, 1000); analyze t",
    );
    let known = |sql: &str| case.value(&format!("select reltuples from pg_class where {sql}"));
    case.put("few.csv", "id\n1\n2\n");
    let many: String = (0..500).map(|id| format!("{id}\n")).collect();
    case.put("many.csv", format!("id\n{many}"));
    assert_snapshot!(read_analyze_decision(&case, "few.csv --table t --header yes"), @"null: less than a tenth of the rows is new: autovacuum analyzes the table when needed");
    assert_eq!(known("relname = 't'"), "1000");
    assert_snapshot!(read_analyze_decision(&case, "many.csv --table t --header yes"), @"analyze: a tenth of the rows or more is new");
    assert_eq!(known("relname = 't'"), "1502");
    let args = "few.csv --table t --header yes --restart --analyze always";
    assert_snapshot!(read_analyze_decision(&case, args), @"analyze: as asked");
    assert_eq!(known("relname = 't'"), "1504");
    let args = "many.csv --table t --header yes --restart --analyze never";
    assert_snapshot!(read_analyze_decision(&case, args), @"null: as asked");
    assert_eq!(known("relname = 't'"), "1504");
    assert_snapshot!(read_analyze_decision(&case, "many.csv --table made --header yes --create"), @"analyze: a tenth of the rows or more is new");
    assert_eq!(known("relname = 'made'"), "500");
    assert_snapshot!(read_analyze_decision(&case, "many.csv --table t --header yes --restart --vacuum"), @"vacuum (freeze: as asked");
    assert_eq!(case.value("select age(relfrozenxid) < 100 from pg_class where relname = 't'"), "t");
}

/// Loads `t.csv`. Returns the lines of its report that name sequences.
fn load_and_find_sequences(case: &LoadCase) -> String {
    let run = case.load("t.csv");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let lines: Vec<_> = run.stderr.lines().filter(|line| line.contains("sequence")).collect();
    lines.join("\n")
}

#[test]
fn sequences_advance_past_the_loaded_values() {
    let case = LoadCase::new(
        "create table t (id int generated always as identity, old serial, small smallserial,
                         down int generated by default as identity (increment -1),
                         tens bigint generated by default as identity (increment 10 start 10),
                         other int generated by default as identity,
                         shared int default nextval('t_other_seq'), note text);
         create sequence loose; alter table t alter shared set default nextval('loose');
         select setval('t_small_seq', 500)",
    );
    case.put(
        "t.csv",
        "id,old,small,down,tens,shared,note\n5000,7,20,-9,35,90,a\n4000,6,10,-3,20,80,b\n",
    );
    assert_snapshot!(load_and_find_sequences(&case), @"
    sequence public.t_id_seq moved to 5000
    sequence public.t_old_seq moved to 7
    sequence public.t_down_seq moved to -9
    sequence public.t_tens_seq moved to 40
    ");
    let next = "insert into t (note) values ('c') \
                returning concat_ws(' ', id, old, small, down, tens, other, shared)";
    assert_eq!(case.value(next), "5001 8 501 -10 50 3 1");
    // Sequences never move back: the sequences are already past all values of this load.
    let run = case.load("t.csv --restart");
    assert!(!run.stderr.contains("moved to"), "{}", run.stderr);
    assert_eq!(case.value(next), "5002 9 502 -11 60 6 2");
}

#[test]
fn sequences_keep_their_step_and_their_bounds() {
    let case = LoadCase::new(
        "create table t (odd bigint generated by default as identity (increment 2),
                         few int generated by default as identity (maxvalue 999),
                         tens int generated by default as identity
                             (increment 10 cache 5 maxvalue 100),
                         small smallserial, note text)",
    );
    case.put("t.csv", "odd,few,tens,small\n1,5,96,1\n400000,9999,5,32767\n");
    assert_snapshot!(load_and_find_sequences(&case), @"
      sequence public.t_odd_seq moved to 400001
      sequence public.t_few_seq moved to 5
      sequence public.t_small_seq moved to 32767
    warning: sequence public.t_tens_seq stays as it is: it has no value beyond 96 in column tens
    warning: sequence public.t_small_seq is at 32767, its last value: the next one will fail
    ");
    let next = "insert into t (note, small) values ('c', 7) \
                returning concat_ws(' ', odd, few, tens)";
    assert_eq!(case.value(next), "400003 6 1");
}

#[test]
fn a_load_from_standard_input_keeps_indexes_and_advances_sequences() {
    let case = LoadCase::new("create table t (id int generated always as identity primary key)");
    let run = case.load_from("id\n70\n71\n", "- --table t --format csv --header yes --json");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert!(run.stdout.contains(r#""counted": "analyze""#), "{}", run.stdout);
    assert!(run.stdout.contains(r#""rebuilt": []"#), "{}", run.stdout);
    assert_eq!(case.value("select nextval('t_id_seq')"), "72");
    let refused = case
        .load_from("id\n80\n", "- --table t --format csv --header yes --rebuild-indexes always");
    assert_snapshot!(refused.refusal(), @"
    error: indexes of public.t cannot be dropped: the input cannot be read again, so no
          … later run could restore the table

    hint: Leave `--rebuild-indexes always` out.
    ");
}

#[test]
fn a_load_warns_if_it_may_not_advance_a_sequence() {
    let case = LoadCase::new("create table t (id serial)");
    case.put("t.csv", "id\n70\n");
    let role = format!("{}_role", case.db.name());
    case.db.run(&format!(
        "create role {role} login; grant select, insert on t to {role};
         grant create on database {} to {role}",
        case.db.name()
    ));
    let to = format!("{} user={role}", case.db.dsn());
    let args = ["load", "t.csv", "--header", "yes", "--table", "t", "--to", &to];
    let run = Run::of(case.command(&args).output().unwrap());
    case.db.run(&format!("drop owned by {role}; drop role {role}"));
    let said = run.success();
    let warnings: Vec<_> = said.lines().skip_while(|line| !line.starts_with("warning")).collect();
    assert_snapshot!(warnings.join("\n"), @"
    warning: could not advance sequence public.t_id_seq; run `select
          … setval('public.t_id_seq', max(id)) from public.t`
    open it with [PSQL] -c 'table public.t limit 10'
    ");
}

#[test]
fn a_load_pauses_autovacuum_of_the_table_that_it_creates() {
    let case = LoadCase::new("");
    case.put("t.csv", "id,note\n1,a\n2,b\n");
    case.load("t.csv --create --pause-autovacuum always --quiet").success();
    assert_eq!((case.value(OPTIONS).as_str(), case.rows("t").len()), ("", 2));
}
