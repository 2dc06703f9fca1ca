//! Tests of the plan: which indexes a load drops, which indexes stay, and the reasons.

use std::fmt::Write as _;

use insta::assert_snapshot;

use crate::support::{LoadCase, Run, folded, redact, session, wait_until};

/// Returns 9 MB of rows: enough that a load drops indexes without `--rebuild-indexes always`.
fn csv_text() -> String {
    let mut rows = "id,a,note\n".to_owned();
    (0..90_000).for_each(|row| writeln!(rows, "{row},{},{:>90}", row % 7, row).unwrap());
    rows
}

const CREATE_INDEXED: &str = "\
create table t (id int constraint t_key primary key, a int, note text);
create index t_a on t (a)";

fn new_case(sql: &str) -> LoadCase {
    let case = LoadCase::new(&format!("{CREATE_INDEXED}; {sql}"));
    case.put("t.csv", csv_text());
    case
}

/// Returns the lines of the plan from the line about indexes to the end.
fn read_index_plan(case: &LoadCase, args: &str) -> String {
    let run = case.load(&format!("t.csv --plan {args}"));
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let lines = run.stdout.lines().skip_while(|line| !line.starts_with("indexes"));
    let text = lines.collect::<Vec<_>>().join("\n");
    redact(&text)
}

#[test]
fn the_plan_drops_indexes_only_where_it_pays() {
    let case = new_case("");
    assert_snapshot!(read_index_plan(&case, ""), @"
    indexes  dropped for the load, and created again after it: the table is empty
             t_a    index, dropped
             t_key  primary key, dropped
    ");
    assert_snapshot!(read_index_plan(&case, "--rebuild-indexes never"), @"indexes  stay: as asked");
    assert_snapshot!(read_index_plan(&case, "--no-ledger"), @"
    indexes  stay: without a ledger nothing could restore the table after a crash
    ");
    assert_snapshot!(read_index_plan(&case, "--rejects bad.csv"), @"
    indexes  dropped for the load, and created again after it: the table is empty
             t_a    index, dropped
             t_key  primary key, stays: its checks decide which rows are rejected
    ");
    case.db.run("insert into t select n, n, repeat('x', 200) from generate_series(1, 1000) n");
    assert_snapshot!(read_index_plan(&case, ""), @"
    indexes  dropped for the load, and created again after it: the table is small compared
          … with the input
             t_a    index, dropped
             t_key  primary key, stays: the table has rows
    ");
    case.db.run("insert into t select n, n, repeat('x', 200) from generate_series(1001, 60000) n");
    assert_snapshot!(read_index_plan(&case, ""), @"
    indexes  stay: the table has too many rows compared with the input
    ");
    assert_snapshot!(read_index_plan(&case, "--rebuild-indexes always"), @"
    indexes  dropped for the load, and created again after it: as asked
             t_a    index, dropped
             t_key  primary key, dropped
    ");
    let run = case.load("t.csv --rebuild-indexes always --no-ledger");
    assert_snapshot!(run.refusal(), @"
    error: indexes of public.t cannot be dropped: without a ledger nothing could restore
          … the table after a crash

    hint: Leave `--rebuild-indexes always` out.
    ");
}

#[test]
fn indexes_with_dependents_or_unsafe_functions_are_not_dropped() {
    let case = new_case(
        "create function turn(int, int) returns int immutable language sql as \
             'select -btint4cmp($1, $2)'; \
         create operator class turned for type int using btree as \
             operator 1 >, operator 3 =, operator 5 <, function 1 turn(int, int); \
         create index t_turned on t (a turned); \
         create table child (id int references t); create table far (id int primary key);
         create unique index t_note on t (note);
         create view sums as select id, a, count(*) from t group by id;
         create function half(int) returns int language sql immutable as 'select $1 / 2';
         create index t_half on t (half(id));
         alter table t add constraint t_span exclude using gist (int4range(id, id + 1) with &&),
             add constraint t_far foreign key (a) references far (id)",
    );
    assert_snapshot!(read_index_plan(&case, ""), @r#"
    indexes  dropped for the load, and created again after it: the table is empty
             t_a       index, dropped
             t_half    index, stays: it calls public.half(integer), which may need a
          … certain search path
             t_key     primary key, stays: constraint child_id_fkey on table public.child
          … depends on it
             t_note    unique index, stays: rows that violate it could not be deleted again
          … after the load
             t_span    exclusion constraint, stays: it would be rebuilt under an exclusive
          … lock
             t_turned  index, stays: it calls public.turn(integer,integer), which may need
          … a certain search path
             t_far     foreign key, stays: rows that violate it could not be deleted again
          … after the load
    warning  foreign key "t_far" is checked for each row after each COPY
    "#);
    assert_snapshot!(read_index_plan(&case, "--rebuild-indexes always"), @"
    indexes  dropped for the load, and created again after it: as asked
             t_a       index, dropped
             t_half    index, stays: it calls public.half(integer), which may need a
          … certain search path
             t_key     primary key, stays: constraint child_id_fkey on table public.child
          … depends on it
             t_note    unique index, dropped
             t_span    exclusion constraint, dropped
             t_turned  index, stays: it calls public.turn(integer,integer), which may need
          … a certain search path
             t_far     foreign key, dropped
    ");
}

#[test]
fn keys_of_a_table_with_rows_are_not_dropped() {
    let case = new_case(
        "insert into t values (-1, 1, null);
         create table far (id int primary key); insert into far values (1);
         alter table t add constraint t_far foreign key (a) references far;
         create function f() returns trigger language plpgsql as 'begin return old; end';
         create trigger gone before delete on t for each row execute function f()",
    );
    assert_snapshot!(read_index_plan(&case, ""), @r#"
    indexes  dropped for the load, and created again after it: the table is small compared
          … with the input
             t_a    index, dropped
             t_key  primary key, stays: the table has rows
             t_far  foreign key, stays: the table has rows
    warning  foreign key "t_far" is checked for each row after each COPY
    "#);
    assert_snapshot!(read_index_plan(&case, "--commit chunk"), @r#"
    indexes  dropped for the load, and created again after it: the table is small compared
          … with the input
             t_a    index, dropped
             t_key  primary key, stays: the table has rows
             t_far  foreign key, stays: the table has rows
    warning  foreign key "t_far" is checked for each row after each COPY
    "#);
}

#[test]
fn indexes_of_partitioned_tables_are_not_dropped() {
    let case = new_case(
        "drop table t;
         create table t (id int primary key, a int, note text) partition by range (id);
         create table t1 partition of t for values from (0) to (100000)",
    );
    assert_eq!(read_index_plan(&case, ""), "");
    assert_snapshot!(read_index_plan(&case, "--table t1 --rebuild-indexes always"), @"
    indexes  none can be dropped
             t1_pkey  primary key, stays: it is part of an index of a partitioned table
    ");
}

#[test]
fn indexes_of_a_table_in_use_are_not_dropped() {
    let case = new_case("");
    let (runtime, user) = session(&case.db.dsn());
    runtime.block_on(user.batch_execute("begin; select from t")).unwrap();
    let said = "select count(*) from pg_locks where relation = 't'::regclass";
    wait_until("the session has a lock", || case.value(said) != "0");
    assert_snapshot!(read_index_plan(&case, ""), @"indexes  stay: session [N] (role [ROLE], idle in transaction) uses the table");
    let run = case.load("t.csv");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert_eq!(case.value("select count(*) from t"), "90000");
    let said = case.load("t.csv --restart --rebuild-indexes always").refusal();
    assert_snapshot!(said.replace("\n      … ", " "), @r#"
    format csv: the name ends with .csv
    delimiter ",": 3 fields in each line
    header yes: the first line names the table's columns
    error: could not load "t.csv" into public.t
      caused by: could not lock public.t: session [N] (role [ROLE], idle in transaction) is using it
      caused by: could not drop the indexes of public.t
      caused by: canceling statement due to lock timeout (SQLSTATE 55P03)

    hint: Wait until that session ends, or keep the indexes with `--rebuild-indexes never`.
    "#);
}

#[test]
fn a_role_that_does_not_own_the_table_keeps_its_indexes() {
    let case = new_case("");
    let role = format!("{}_role", case.db.name());
    case.db.run(&format!(
        "create role {role} login; grant select, insert on t to {role};
         grant create on database {} to {role}",
        case.db.name()
    ));
    let to = format!("{} user={role}", case.db.dsn());
    let load = |args: &str| {
        let mut command = case.command(&["load", "t.csv", "--table", "t", "--to", &to]);
        Run::of(command.args(args.split_whitespace()).output().unwrap())
    };
    let plan = load("--plan").stdout;
    let refused = load("--rebuild-indexes always");
    let done = load("--json --quiet");
    case.db.run(&format!("drop owned by {role}; drop role {role}"));
    let lines: Vec<_> = plan.lines().skip_while(|line| !line.starts_with("indexes")).collect();
    assert_snapshot!(lines.join("\n"), @"indexes  stay: this role does not own the table");
    assert_snapshot!(refused.refusal(), @"
    error: indexes of public.t cannot be dropped: this role does not own the table

    hint: Leave `--rebuild-indexes always` out.
    ");
    assert_eq!(done.status, Some(0), "{}", done.stderr);
    assert!(done.stdout.contains(r#""counted_reason": "this role does not own the table""#));
}

#[test]
fn restore_runs_no_statements_of_an_untrusted_role() {
    let case = new_case("");
    let role = format!("{}_role", case.db.name());
    let database = case.db.name().to_owned();
    case.db.run(&format!(
        "create role {role} login; alter table t owner to {role}; \
         grant all on schema public to {role}; grant create on database {database} to {role}"
    ));
    let to = format!("{} user={role}", case.db.dsn());
    let args = ["load", "t.csv", "--table", "t", "--quiet", "--to", &to];
    let done = Run::of(case.command(&args).output().unwrap());
    let mut status = case.command(&["status", "--restore", "--to", &case.db.dsn()]);
    let by_owner = Run::of(status.output().unwrap());
    // The ledger belongs to another role than the role that recorded a statement.
    case.db.run(&format!(
        "do $$declare it text; begin alter schema pgspate owner to postgres; \
         for it in select oid::regclass from pg_class where relkind = 'r' \
           and relnamespace = 'pgspate'::regnamespace \
         loop execute format('alter table %s owner to postgres', it); end loop; end$$; \
         insert into pgspate.change (job, ordinal, table_oid, kind, object, steps, beside, role) \
         values (1, 100, 't'::regclass, 'index', 'x', '{{drop table t}}', false, '{role}')"
    ));
    let by_role = Run::of(status.output().unwrap());
    let plan = read_index_plan(&case, "--restart");
    // Citus 13.2 crashes at `to current_user`.
    case.db.run(&format!("reassign owned by {role} to postgres; drop owned by {role}"));
    case.db.run(&format!("drop role {role}"));
    assert_eq!(done.status, Some(0), "{}", done.stderr);
    let shown = |text: &str| folded(&text.replace(&role, "[ROLE]").replace("\n      … ", " "));
    assert!(by_owner.stderr.contains("is not trusted"), "{}", by_owner.stderr);
    assert_snapshot!(shown(&by_role.refusal().replace("[DATABASE]role", "[ROLE]")), @r#"
    error: could not put index "x" back: role "[ROLE]" recorded the change, and is not
          … trusted

    hint: Connect as "[ROLE]" and run `pgspate status --restore 1`. The current role runs
          … recorded statements only of roles that could act as the current role anyway.
    "#);
    assert_snapshot!(shown(&plan), @r#"
    indexes  stay: the table has too many rows compared with the input
    ledger   not restored by an earlier load, or one that is running: index "x"
    "#);
}
