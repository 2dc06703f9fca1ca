//! Tests of `--replace` and `--atomic` in one transaction: the load replaces all rows or none, and
//! keeps the properties of the table.

use insta::assert_snapshot;

use crate::support::{LoadCase, finish, folded, session, spawn, wait_until};
use crate::table_properties::{
    DEPENDING, EVERYTHING, check_answers_during_load, dump_schema, send_signal,
};

fn list_ids(case: &LoadCase, table: &str) -> String {
    case.value(&format!("select string_agg(id::text, ' ' order by id) from {table}"))
}

#[test]
fn the_plan_names_the_way_to_replace_and_its_reason() {
    let case = LoadCase::new(
        "create table t (id int primary key, note text); \
         create table other (t int references t)",
    );
    case.put("t.csv", "id,note\n1,a\n");
    let plan = |args: &str| folded(&case.load(&format!("t.csv --table t --plan {args}")).stdout);
    assert_snapshot!(plan("--replace"), @r#"
    input    format csv: the name ends with .csv
    input    delimiter ",": 2 fields in each line
    input    header yes: the first line names the table's columns
    table    public.t
    replace  one transaction, truncate and COPY FREEZE: constraint other_t_fkey on table
          … public.other depends on it
    path     binary COPY: all columns have exact encoders; unusual values go as text
    lanes    1: the input is small
    chunks   4 MiB of input, cut at record edges
    commit   all at the end: a load that fails leaves nothing behind
    others   can neither read nor write the table, nor public.other until the load is done
    columns  id    integer  binary (int4)
             note  text     binary (bytes)
    indexes  stay: rows become visible at once, with their indexes
    warning  foreign key other_t_fkey of public.other is dropped, added and checked again
    "#);
    assert_snapshot!(plan("--atomic"), @r#"
    input    format csv: the name ends with .csv
    input    delimiter ",": 2 fields in each line
    input    header yes: the first line names the table's columns
    table    public.t
    at once  one transaction: constraint other_t_fkey on table public.other depends on it
    path     binary COPY: all columns have exact encoders; unusual values go as text
    lanes    1: the input is small
    chunks   4 MiB of input, cut at record edges
    commit   all at the end: a load that fails leaves nothing behind
    others   read and write as always
    columns  id    integer  binary (int4)
             note  text     binary (bytes)
    indexes  stay: rows become visible at once, with their indexes
    "#);
    let json = case.load("t.csv --table t --plan --replace --json").stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["at_once"]["method"], "transaction");
    assert_eq!(
        (&json["at_once"]["replaces"], &json["at_once"]["freeze"]),
        (&true.into(), &true.into())
    );
}

#[test]
fn afterwards_the_table_holds_the_input_and_nothing_else() {
    let case =
        LoadCase::new("create table t (id int primary key); insert into t values (1), (2), (3)");
    case.put("t.csv", "id\n3\n4\n");
    assert_snapshot!(case.load("t.csv --table t --replace --quiet").success(), @"");
    assert_eq!(list_ids(&case, "t"), "3 4");
    // `--replace` loads the file again although it was loaded before.
    case.db.run("insert into t values (9)");
    case.load("t.csv --table t --replace").success();
    assert_eq!(list_ids(&case, "t"), "3 4");
    case.put("none.csv", "id\n");
    case.load("none.csv --table t --replace --header yes --format csv --allow-empty").success();
    assert_eq!(case.rows("t").len(), 0);
    // A replace works without a ledger and from standard input, too.
    case.load("t.csv --table t --replace --no-ledger").success();
    assert_eq!(list_ids(&case, "t"), "3 4");
    case.load_from("id\n7\n", "- --table t --replace --header yes --format csv").success();
    assert_eq!(list_ids(&case, "t"), "7");
}

#[test]
fn a_replace_lets_earlier_files_be_loaded_again() {
    let case = LoadCase::new("create table t (id int)");
    case.put("a.csv", "id\n1\n");
    case.put("b.csv", "id\n2\n");
    case.load("a.csv --table t --header yes").success();
    case.load("a.csv --table t --header yes").success();
    assert_eq!(list_ids(&case, "t"), "1");
    case.load("b.csv --table t --header yes --replace").success();
    assert_eq!(list_ids(&case, "t"), "2");
    case.load("a.csv --table t --header yes").success();
    assert_eq!(list_ids(&case, "t"), "1 2");
}

#[test]
fn a_bad_row_leaves_everything_as_it_was() {
    let case = LoadCase::new("create table t (id int primary key); insert into t values (1), (2)");
    // The table has the first two keys, but the load empties the table first.
    case.put("t.csv", "id\n1\n2\nx\n");
    assert_snapshot!(case.refusal("t.csv --table t --replace --header yes"), @r#"
    error: could not load "t.csv" into public.t
      caused by: invalid input syntax for type integer: "x" (SQLSTATE 22P02)
      at: t.csv, line 4, byte 7, column "id"
    "#);
    assert_eq!(list_ids(&case, "t"), "1 2");
}

#[test]
fn rows_are_frozen() {
    let case = LoadCase::new(
        "create extension pageinspect; \
         create table t (id int, note text); insert into t values (0, '')",
    );
    let rows: String = (0..50_000).map(|id| format!("{id},note {id}\n")).collect();
    case.put("t.csv", rows);
    let unfrozen = "select count(*) filter (where t_infomask & 768 <> 768) || ' of ' || count(*) \
                    from generate_series(0, pg_relation_size('t') / 8192 - 1) page, \
                    heap_page_items(get_raw_page('t', page::int))";
    case.load("t.csv --table t --header no --replace").success();
    assert_eq!(case.value(unfrozen), "0 of 50000");
    case.load("t.csv --table t --header no --no-ledger").success();
    assert_eq!(case.value(unfrozen), "50000 of 100000");
}

#[test]
fn truncate_keeps_all_properties_of_the_table() {
    let case = LoadCase::new(&format!("{EVERYTHING}; {DEPENDING}"));
    let before = dump_schema(&case);
    case.put("t.csv", "a,b,c\n1,x,0.5\n2,y,1.5\n");
    let sequences = "select last_value from t_i_seq union all select last_value from t_s_seq";
    let numbers = case.db.query(sequences);
    case.load("t.csv --table t --replace=truncate --header yes").success();
    assert_eq!(dump_schema(&case), before);
    assert_eq!(case.value("select string_agg(a || b, ' ' order by a) from v"), "1x 2y");
    assert_ne!(case.db.query(sequences), numbers, "sequences go on");
    assert_eq!(case.value("select min(i) > 3 and min(s) > 2 from t"), "t");
    // The new rows must contain every row that another table references.
    case.put("u.csv", "a,b,c\n1,y,1.5\n");
    assert_snapshot!(case.refusal("u.csv --table t --replace=truncate --header yes"), @r#"
    error: could not load "u.csv" into public.t
      caused by: insert or update on table "other" violates foreign key constraint
          … "other_t" (SQLSTATE 23503)
      caused by: Key (t)=(2) is not present in table "t"
    "#);
    assert_eq!(dump_schema(&case), before);
}

#[test]
fn rows_of_partitioned_tables_and_of_partitions_are_replaced() {
    let case = LoadCase::new(
        "create table t (id int primary key, at date) partition by range (id); \
         create table low partition of t for values from (0) to (10); \
         create table high partition of t for values from (10) to (20); \
         create table other (id int references t); \
         insert into t values (1), (11); insert into other values (1), (11)",
    );
    let before = dump_schema(&case);
    case.put("t.csv", "id\n1\n2\n11\n");
    assert_snapshot!(folded(&case.load("t.csv --table t --replace --plan").stdout), @r#"
    input    format csv: the name ends with .csv
    input    delimiter ",": the default, as none was detected
    input    header yes: the first line names the table's columns
    table    public.t
    replace  one transaction, truncate and COPY: it is partitioned
    path     binary COPY: all columns have exact encoders; unusual values go as text
    lanes    1: the input is small
    chunks   4 MiB of input, cut at record edges
    commit   all at the end: a load that fails leaves nothing behind
    others   can neither read nor write the table, nor public.other until the load is done
    columns  id  integer  binary (int4)
             at           not in the input: null
    warning  foreign key other_id_fkey of public.other is dropped, added and checked again
    warning  a repeatable read transaction that began before the load ends sees an empty
          … table, as after any TRUNCATE
    "#);
    case.load("t.csv --table t --replace").success();
    assert_eq!(list_ids(&case, "t"), "1 2 11");
    case.put("low.csv", "id\n1\n3\n");
    assert_snapshot!(folded(&case.load("low.csv --replace --plan").stdout), @r#"
    input    format csv: the name ends with .csv
    input    delimiter ",": the default, as none was detected
    input    header yes: the first line names the table's columns
    table    public.low
    replace  one transaction, truncate and COPY FREEZE: it is a partition
    path     binary COPY: all columns have exact encoders; unusual values go as text
    lanes    1: the input is small
    chunks   4 MiB of input, cut at record edges
    commit   all at the end: a load that fails leaves nothing behind
    others   can neither read nor write the table, nor public.other until the load is done
    columns  id  integer  binary (int4)
             at           not in the input: null
    indexes  stay: rows become visible at once, with their indexes
    warning  foreign key other_id_fkey of public.other is dropped, added and checked again
    "#);
    case.load("low.csv --table low --replace").success();
    assert_eq!(list_ids(&case, "t"), "1 3 11");
    assert_eq!(dump_schema(&case), before);
    // The row with id 12 does not belong into the partition.
    case.put("low.csv", "id\n1\n12\n");
    assert_snapshot!(case.refusal("low.csv --table low --replace"), @r#"
    error: could not load "low.csv" into public.low
      caused by: new row for relation "low" violates partition constraint (SQLSTATE 23514)
      caused by: Failing row contains (12, null)
      at: low.csv, line 3, byte 5
    "#);
}

#[test]
fn rows_of_a_created_table_are_replaced() {
    let case = LoadCase::new("");
    // The sample has only numbers in `code`, so the load starts over with a text column.
    let mut rows = "id,code\n".to_owned();
    (0..200_000).for_each(|id| rows += &format!("{id},{}\n", id * 7));
    case.put("t.csv", rows + "200000,x\n");
    for _ in 0..2 {
        case.load("t.csv --create --replace").success();
        assert_eq!(case.value("select count(*) from t where code = 'x' or id < 5"), "6");
        assert_eq!(case.value("select count(*) from t"), "200001");
    }
}

#[test]
fn views_parents_and_unvalidated_foreign_keys_are_refused() {
    let case = LoadCase::new(
        "create table parent (id int); create table child () inherits (parent); \
         create table t (id int); create view v as select * from t; \
         create table p (id int primary key); create table c (p int); \
         alter table c add constraint c_p foreign key (p) references p not valid",
    );
    case.put("a.csv", "id\n1\n");
    let mut said = String::new();
    for table in ["parent", "v", "p"] {
        said += &case.refusal(&format!("a.csv --header yes --table {table} --replace"));
    }
    assert_snapshot!(said, @"
    error: other tables inherit from public.parent, so the rows of those tables are rows of
          … public.parent, too

    hint: First run `truncate public.parent` for all of these tables, or `truncate only
          … public.parent`, and load without `--replace`.
    error: public.v is a view, whose rows cannot be replaced

    hint: Replace the rows of the table behind it.
    error: foreign key c_p of public.c is not valid or not enforced, and could not be added
          … again in that state

    hint: Run `alter table public.c validate constraint c_p`, or `alter table public.c drop
          … constraint c_p`.
    ");
}

#[test]
fn a_replace_that_waits_in_vain_for_the_lock_changes_nothing() {
    let case = LoadCase::new("create table t (id int); insert into t values (1)");
    case.put("t.csv", "id\n2\n");
    let (runtime, holder) = session(&case.db.dsn());
    runtime
        .block_on(holder.batch_execute("set application_name = 'reader'; begin; table t"))
        .unwrap();
    let said = case.refusal("t.csv --header yes --table t --replace --lock-timeout 1");
    assert_snapshot!(said, @r#"
    error: could not load "t.csv" into public.t
      caused by: canceling statement due to lock timeout (SQLSTATE 55P03)

    hint: The lock was held for [TIME] by session [N] ('reader', role [ROLE], idle in
          … transaction). End that session, or wait longer with `--lock-timeout`.
    "#);
    runtime.block_on(holder.batch_execute("commit")).unwrap();
    case.load("t.csv --header yes --table t --replace --lock-timeout 1").success();
    assert_eq!(list_ids(&case, "t"), "2");
}

#[test]
fn an_interrupt_ends_the_wait_for_the_lock() {
    let case = LoadCase::new("create table t (id int); insert into t values (1)");
    case.put("t.csv", "id\n2\n");
    let (runtime, holder) = session(&case.db.dsn());
    runtime.block_on(holder.batch_execute("begin; table t")).unwrap();
    let child = spawn(&mut case.load_command("t.csv --header yes --table t --quiet --replace"));
    let blocked = "select count(*) from pg_stat_activity where datname = current_database() \
                   and wait_event_type = 'Lock'";
    wait_until("the load waits for the lock", || case.value(blocked) == "1");
    send_signal(&child, "-INT");
    assert_eq!(finish(child).status, Some(130));
    wait_until("nobody waits", || case.value(blocked) == "0");
    runtime.block_on(holder.batch_execute("commit")).unwrap();
    assert_eq!(list_ids(&case, "t"), "1");
}

#[test]
fn a_killed_replace_leaves_the_old_rows() {
    let case = LoadCase::new("create table t (id int, note text); insert into t values (1)");
    let mut child = spawn(&mut case.load_command("- --table t --replace --format csv --header no"));
    let mut pipe = child.stdin.take().unwrap();
    let rows = format!("5,{:>999}\n", "").repeat(10_000);
    std::io::Write::write_all(&mut pipe, rows.as_bytes()).unwrap();
    let lanes = "select count(*) from pg_stat_activity where datname = current_database() \
                 and query like 'copy%' and state <> 'idle'";
    wait_until("rows are being copied", || case.value(lanes) == "1");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(list_ids(&case, "t"), "1");
}

#[test]
fn appended_rows_appear_at_once() {
    let case = LoadCase::new("create table t (id int); insert into t values (0)");
    let rows: String = (1..400_000).map(|id| format!("{id}\n")).collect();
    case.put("t.csv", rows);
    let load = spawn(&mut case.load_command("t.csv --table t --atomic --header no --quiet"));
    check_answers_during_load(&case, load, "select count(*) from t", &["1", "400000"]);
}

/// An export that failed has a header and no rows. It does not empty the table.
#[test]
fn no_rows_replace_rows_only_if_allowed() {
    for how in ["--replace", "--replace=swap"] {
        let case = LoadCase::new("create table t (id int, note text); insert into t values (1)");
        case.put("t.csv", "id,note\n");
        let said = case.refusal(&format!("t.csv {how}"));
        assert_eq!(
            said,
            "error: could not load \"t.csv\" into public.t\n  \
             caused by: there are no rows to put in the place of the table's rows\n\n\
             hint: The table is unchanged. Use `--allow-empty` if it is to be emptied.\n"
        );
        // Rows that are all rejected are none, either.
        case.put("bad.csv", "id,note\nx,a\n");
        if how == "--replace=swap" {
            let bad = case.load("bad.csv --table t --replace=swap --rejects r.csv --quiet");
            assert!(bad.refusal().contains("there are no rows to put"), "{}", bad.stderr);
        }
        assert_eq!(list_ids(&case, "t"), "1");
        case.load(&format!("t.csv {how} --allow-empty")).success();
        assert_eq!(case.value("select count(*) from t"), "0");
        // A table without rows loses none.
        case.load(&format!("t.csv {how} --restart")).success();
    }
}

/// An earlier run has written rows to a shadow table, which is dropped because the table has
/// changed. They do not count as rows that replace the old ones.
#[test]
fn rows_of_a_dropped_shadow_table_replace_nothing() {
    let case = LoadCase::new("create table t (id int, note text); insert into t values (1, 'old')");
    case.put("t.csv", "id,note\n7,a\n8,b\n");
    let (runtime, holder) = session(&case.db.dsn());
    runtime.block_on(holder.batch_execute("begin; lock table t in share mode")).unwrap();
    let args = "t.csv --table t --replace=swap --rejects r.csv --quiet";
    let mut child = spawn(&mut case.load_command(args));
    wait_until("the chunk is written and the exchange waits", || {
        let waiting = "select count(*) from pg_stat_activity \
                       where datname = current_database() and wait_event_type = 'Lock'";
        case.value("select to_regclass('pgspate.ledger') is not null") == "t"
            && case.value("select count(*) from pgspate.ledger") == "1"
            && case.value(waiting) != "0"
    });
    child.kill().unwrap();
    child.wait().unwrap();
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    // No row of the file is accepted from here on.
    case.db.run("alter table t add constraint small check (id < 5)");
    let run = case.load(args);
    assert!(run.stderr.contains("there are no rows to put in the place"), "{}", run.stderr);
    assert_eq!(list_ids(&case, "t"), "1");
}

/// An owner that has revoked its privileges can still alter its tables.
#[test]
fn a_table_is_replaced_if_its_owner_may_not_lock_the_table_that_refers_to_it() {
    let case = LoadCase::new("");
    let name = format!("{}_owner", case.db.name());
    case.db.run(&format!(
        "create role \"{name}\" login; create table t (id int primary key); \
         insert into t values (1); \
         create table part (id int references t) partition by range (id); \
         create table part_1 partition of part for values from (0) to (9); \
         alter table t owner to \"{name}\"; alter table part owner to \"{name}\"; \
         alter table part_1 owner to \"{name}\"; \
         revoke update, delete, truncate on part, part_1 from \"{name}\"; \
         create schema pgspate authorization \"{name}\""
    ));
    case.put("t.csv", "id\n2\n");
    let dsn = format!("{} user='{name}'", case.db.dsn());
    let args = "load t.csv --header yes --table t --replace=truncate --quiet --to";
    let args: Vec<&str> = args.split(' ').chain([&*dsn]).collect();
    let run = crate::support::Run::of(case.command(&args).output().unwrap());
    let keys = "select count(*) from pg_constraint where contype = 'f' \
                and conrelid in ('part'::regclass, 'part_1'::regclass)";
    let keys = case.value(keys);
    let ids = list_ids(&case, "t");
    case.db.run(&format!("drop owned by \"{name}\" cascade; drop role \"{name}\""));
    run.success();
    assert_eq!((ids.as_str(), keys.as_str()), ("2", "2"));
}

/// The key cannot be created as long as the table has the rows that the load is to replace.
#[test]
fn rows_that_violate_a_dropped_key_must_be_removed_before_they_are_replaced() {
    let case = LoadCase::new("create table t (id int primary key, a int)");
    case.put("twice.csv", "id,a\n1,1\n1,2\n");
    let run = case.load("twice.csv --table t --rebuild-indexes always --commit chunk --quiet");
    assert!(run.stderr.contains("SQLSTATE 23505"), "{}", run.stderr);
    case.put("t.csv", "id,a\n1,7\n2,8\n");
    assert_snapshot!(case.load("t.csv --table t --replace --quiet").refusal(), @r#"
    error: could not load "t.csv" into public.t
      caused by: could not put back primary key "t_pkey"
      caused by: could not create unique index "t_pkey" (SQLSTATE 23505)
      caused by: Key (id)=(1) is duplicated

    hint: The rows in public.t violate a key that an earlier load has dropped. Run
          … `truncate public.t`, and then the same command again. An earlier load dropped
          … or changed primary key "t_pkey" and has not restored it. `pgspate status
          … --restore 2` restores it, and so does the next load into the table.
    "#);
    case.db.run("truncate t");
    case.load("t.csv --table t --replace --quiet").success();
    assert_eq!(case.rows("t"), ["(1,7)", "(2,8)"]);
    assert_eq!(case.value("select count(*) from pg_index where indrelid = 't'::regclass"), "1");
}

/// Whether the table is empty decides on the way to replace its rows.
#[test]
fn a_locked_table_is_looked_at_no_longer_than_the_lock_timeout() {
    let case = LoadCase::new("create table t (id int)");
    case.put("t.csv", "id\n1\n");
    let (runtime, holder) = session(&case.db.dsn());
    runtime.block_on(holder.batch_execute("begin; lock table t")).unwrap();
    for way in ["--replace", "--replace --atomic", "--replace=swap"] {
        let args = format!("t.csv --table t {way} --lock-timeout 1 --quiet");
        let said = case.load(&args).refusal();
        assert!(said.contains("lock timeout (SQLSTATE 55P03)"), "{way}: {said}");
        assert!(said.contains("The lock was held for [TIME] by session [N]"), "{way}: {said}");
    }
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    case.load("t.csv --table t --replace --quiet").success();
}
