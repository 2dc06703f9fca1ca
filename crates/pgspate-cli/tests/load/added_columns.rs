//! Tests of `--add-columns`: columns of the input that the table lacks are added to the table.

use std::fs;

use insta::assert_snapshot;
use serde_json::Value;

use crate::support::{LoadCase, Run, finish, session, spawn, wait_until};

#[test]
fn missing_columns_are_added_with_types_that_fit() {
    let case = LoadCase::new("create table t (id int); insert into t values (0)");
    case.put("t.csv", "id,New Name,price,day\n1,x,1.50,2024-02-29\n2,,,\n");
    let plan = case.load("t.csv --table t --add-columns --plan");
    assert!(
        plan.stdout.contains(
            "alter table public.t\n    add column \"New Name\" text,\n    add column price \
             numeric,\n    add column day date;\n"
        ),
        "{}",
        plan.stdout
    );
    let plan = case.load("t.csv --table t --add-columns --plan --json").stdout;
    let plan: Value = serde_json::from_str(&plan).unwrap();
    assert!(plan["add_columns"].as_str().unwrap().starts_with("alter table"), "{plan}");
    assert_eq!(case.columns(), "id integer");
    let run = case.load("t.csv --table t --add-columns --json");
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let added = report["added_columns"].as_array().unwrap().iter();
    let added: Vec<_> = added.map(|it| format!("{} {}", it["name"], it["type"])).collect();
    assert_eq!(added, [r#""New Name" "text""#, r#""price" "numeric""#, r#""day" "date""#]);
    assert_eq!(case.columns(), "id integer, New Name text, price numeric, day date");
    assert_eq!(case.rows("t"), ["(0,,,)", "(1,x,1.50,2024-02-29)", "(2,,,)"]);
    // The second run finds the columns, and the file in the ledger.
    let said = case.load("t.csv --table t --add-columns").success();
    assert!(said.contains("has loaded this") && !said.contains("alter"), "{said}");
}

#[test]
fn a_new_file_of_a_folder_brings_a_new_column() {
    let case = LoadCase::new("create table t (id int)");
    case.put("land/a.csv", "id\n1\n");
    case.put("land/b.csv", "id,x\n2,5\n");
    let flags = "--table t --quiet --add-columns --file-name-column file";
    // The header of all new files must be the same.
    let said = case.load(&format!("land/a.csv land/b.csv {flags}")).refusal();
    assert!(said.contains("the header differs from the header of the first input"), "{said}");
    case.load(&format!("land/a.csv {flags}")).success();
    case.load(&format!("land/*.csv {flags}")).success();
    assert_eq!(case.columns(), "id integer, file text, x bigint");
    assert_eq!(case.rows("t"), ["(1,land/a.csv,)", "(2,land/b.csv,5)"]);
}

#[test]
fn keys_of_json_and_names_in_snake_case_are_added() {
    let case = LoadCase::new("create table t (order_id int)");
    case.put("t.json", "{\"OrderId\":1,\"UnitPrice\":2.5}\n{\"orderId\":2,\"tags\":[\"x\"]}\n");
    let said = case.load("t.json --table t --quiet --add-columns --snake-case");
    assert_eq!(said.status, Some(2), "{}", said.stderr);
    case.put("t.json", "{\"OrderId\":1,\"UnitPrice\":2.5}\n{\"OrderId\":2,\"tags\":[\"x\"]}\n");
    case.load("t.json --table t --quiet --add-columns --snake-case").success();
    assert_eq!(case.columns(), "order_id integer, unit_price numeric, tags jsonb");
    assert_eq!(case.rows("t"), ["(1,2.5,)", "(2,,\"[\"\"x\"\"]\")"]);
}

#[test]
fn names_that_differ_in_case_only_and_fields_without_names_add_nothing() {
    let case = LoadCase::new("create table t (id int, \"Name\" text)");
    case.put("t.csv", "ID,name\n1,x\n");
    case.load("t.csv --table t --quiet --add-columns").success();
    case.put("twins.csv", "ID,id,name\n1,2,x\n");
    let said = case.refusal("twins.csv --table t --add-columns");
    assert!(said.contains("differs from it in"), "{said}");
    case.put("headless.csv", "2,y\n");
    case.load("headless.csv --table t --quiet --add-columns").success();
    case.put("wide.csv", "3,z,5\n");
    let said = case.refusal("wide.csv --table t --add-columns");
    assert!(said.contains("extra data after last expected column"), "{said}");
    assert_eq!(case.columns(), "id integer, Name text");
    assert_eq!(case.rows("t"), ["(1,x)", "(2,y)"]);
    let said = case.refusal("t.csv --table t --add-columns --ignore-unknown");
    assert!(said.contains("cannot be used with"), "{said}");
}

#[test]
fn columns_are_added_before_rows_are_replaced() {
    for how in ["--replace=swap", "--replace=truncate", "--atomic", "--commit chunk"] {
        let case = LoadCase::new("create table t (id int primary key); insert into t values (0)");
        case.put("t.csv", "id,n\n1,5\n");
        case.load(&format!("t.csv --table t --quiet --add-columns {how}")).success();
        let expected: &[&str] =
            if how.contains("replace") { &["(1,5)"] } else { &["(0,)", "(1,5)"] };
        assert_eq!(case.rows("t"), expected, "{how}");
    }
}

#[test]
fn a_value_that_does_not_fit_an_added_column_is_refused_with_a_hint() {
    let case = LoadCase::new("create table t (id int)");
    let mut csv = "id,code\n".to_owned();
    (0..20_000).for_each(|id| csv += &format!("{id},{id}\n"));
    case.put("t.csv", csv + "20000,A1\n");
    let run = case.load("t.csv --table t --quiet --add-columns");
    assert_snapshot!(run.refusal(), @r#"
    error: could not load "t.csv" into public.t
      caused by: value "A1" does not fit type bigint, which was guessed from the first rows
      at: t.csv, line 20002, byte 217788, column "code"

    hint: Column "code" was added as bigint, because of the first rows. If this value is
          … right: `alter table public.t alter column code type text`. Column "code" of
          … public.t was added and stays.
    "#);
    // The column stays, and the statement of the hint helps.
    case.db.run("alter table public.t alter column code type text");
    case.load("t.csv --table t --quiet --add-columns").success();
    assert_eq!(case.value("select count(*) from t"), "20001");
}

#[test]
fn partitioned_tables_get_columns_and_their_partitions_do_not() {
    let case = LoadCase::new(
        "create table t (id int) partition by list (id); \
         create table t1 partition of t for values in (1)",
    );
    case.put("t.csv", "id,n\n1,5\n");
    assert_snapshot!(case.refusal("t.csv --table t1 --add-columns"), @"
    error: cannot add columns to public.t1, a partition of public.t

    hint: Load into public.t, or add the columns to it first.
    ");
    case.load("t.csv --table t --quiet --add-columns").success();
    assert_eq!(case.rows("t1"), ["(1,5)"]);
}

#[test]
fn a_role_that_does_not_own_the_table_is_told_what_to_grant() {
    let case = LoadCase::new("create table t (id int)");
    let role = format!("{}_adder", case.value("select current_database()"));
    case.db.run(&format!("create role {role} login; grant all on t to {role}"));
    case.put("t.csv", "id,n\n1,5\n");
    let run = load_as(&case, &role);
    let owner = case.value("select current_user");
    let said = run.refusal().replace(&role, "[ADDER]").replace(&owner, "[OWNER]");
    case.db.run(&format!("drop owned by {role}; drop role {role}"));
    assert_eq!(case.columns(), "id integer");
    assert_snapshot!(said, @"
    error: must be owner of table public.t to add columns

    hint: Let [OWNER] run this statement:
    alter table public.t
        add column n bigint;
    ");
}

/// Adds the columns of `t.csv` to `t` as this role.
fn load_as(case: &LoadCase, role: &str) -> Run {
    let dsn = format!("{} options='-c role={role}'", case.db.dsn());
    let args = ["load", "--to", &dsn, "t.csv", "-t", "t", "-q", "--add-columns"];
    finish(spawn(&mut case.command(&args)))
}

#[test]
fn an_owner_that_may_only_insert_rows_adds_columns() {
    let case = LoadCase::new("create table t (id int)");
    let database = case.value("select current_database()");
    let role = format!("{database}_owner");
    case.db.run(&format!(
        "create role {role} login; grant create on database {database} to {role}; \
         grant create on schema public to {role}; alter table t owner to {role}; \
         revoke update, delete, truncate on t from {role}"
    ));
    case.put("t.csv", "id,n\n1,5\n");
    let run = load_as(&case, &role);
    let (columns, rows) = (case.columns(), case.rows("t"));
    case.db.run(&format!("drop owned by {role}; drop role {role}"));
    run.success();
    assert_eq!((columns, rows), ("id integer, n bigint".to_owned(), vec!["(1,5)".to_owned()]));
}

#[test]
fn the_load_waits_for_the_lock_and_names_the_session_that_holds_it() {
    let case = LoadCase::new("create table t (id int)");
    case.put("t.csv", "id,n\n1,5\n");
    let (runtime, holder) = session(&case.db.dsn());
    runtime.block_on(holder.batch_execute("begin; select from t")).unwrap();
    let run = case.load("t.csv --table t --quiet --add-columns --lock-timeout 1");
    let said = run.refusal();
    assert!(said.contains("could not add columns to public.t"), "{said}");
    assert!(said.contains("SQLSTATE 55P03") && said.contains("session [N]"), "{said}");
    assert_eq!(case.columns(), "id integer");
    let child = spawn(&mut case.load_command("t.csv --table t --quiet --add-columns"));
    wait_until("the load waits", || is_waiting(&case));
    runtime.block_on(holder.batch_execute("commit")).unwrap();
    finish(child).success();
    assert_eq!(case.rows("t"), ["(1,5)"]);
}

/// Returns whether a session waits for a lock.
fn is_waiting(case: &LoadCase) -> bool {
    let sql = "select count(*) from pg_locks where not granted and relation = 't'::regclass";
    case.value(sql) != "0"
}

#[test]
fn a_column_that_another_session_adds_meanwhile_is_used_with_its_type() {
    for from_stdin in [false, true] {
        let case = LoadCase::new("create table t (id int)");
        case.put("t.csv", "id,n\n1,5\n");
        let (runtime, other) = session(&case.db.dsn());
        let begin = "begin; lock table t in access exclusive mode; alter table t add n float8";
        // The load plans before the lock.
        runtime.block_on(other.batch_execute("begin; select from t")).unwrap();
        let source = if from_stdin { "- --format csv" } else { "t.csv" };
        let args = format!("{source} --table t --quiet --add-columns");
        let mut child = spawn(&mut case.load_command(&args));
        if from_stdin {
            use std::io::Write;
            child.stdin.take().unwrap().write_all(&fs::read(case.path("t.csv")).unwrap()).unwrap();
        }
        wait_until("the load waits", || is_waiting(&case));
        runtime.block_on(other.batch_execute(&format!("{}; commit", &begin[7..]))).unwrap();
        let run = finish(child);
        if from_stdin {
            let said = run.refusal();
            assert!(said.contains("another session has added columns"), "{said}");
            assert_eq!(case.value("select count(*) from t"), "0");
        } else {
            run.success();
            assert_eq!(case.rows("t"), ["(1,5)"]);
        }
        assert_eq!(case.columns(), "id integer, n double precision");
    }
}

#[test]
fn types_of_added_columns_can_be_chosen() {
    let case = LoadCase::new("create table t (id int)");
    case.put("land/a.csv", "id\n1\n");
    let args = "--table t --quiet --add-columns --type price=numeric(10,2) --type ID=text";
    case.put("price.csv", "id,Price\n2,5\n");
    case.load(&format!("price.csv {args}")).success();
    assert_eq!(case.columns(), "id integer, Price numeric(10,2)");
    assert_eq!(case.rows("t"), ["(2,5.00)"]);
    // The column of a later file, and a column that no file has.
    let args = "land/*.csv --table t --add-columns --type code=varchar(9)";
    let said = case.refusal(args);
    assert!(said.contains("the input has no column \"code\", which `--type` names"), "{said}");
    case.load("land/a.csv --table t --quiet --add-columns").success();
    case.put("land/b.csv", "id,code\n3,007\n");
    case.load(args).success();
    assert_eq!(case.columns(), "id integer, Price numeric(10,2), code character varying(9)");
    case.load(args).success();
    // A type of the user's own, as in CREATE TABLE.
    case.db.run("create type mood as enum ('sad', 'glad')");
    case.put("mood.csv", "id,mood\n4,glad\n");
    case.load("mood.csv --table t --quiet --add-columns --type mood=mood").success();
    assert!(case.columns().ends_with(", mood mood"), "{}", case.columns());
    case.db.run("alter table t drop mood");
    case.put("bad.csv", "id,code,n\n4,0123456789,5\n");
    let said = case.refusal("bad.csv --table t --add-columns --type n=nothing");
    assert!(said.contains("type \"nothing\" does not exist"), "{said}");
    assert_snapshot!(case.refusal("bad.csv --table t --type n=int"), @r#"
    error: `--type` needs `--create` or `--add-columns`: it does not change columns that
          … the table has

    hint: Create the table with `--create`, or add column "n" to it with `--add-columns`.
    "#);
}

#[test]
fn a_key_that_the_sample_lacks_is_added_by_its_type() {
    let mut json = String::new();
    (0..40_000).for_each(|id| json += &format!("{{\"id\":{id},\"name\":\"number {id:>9}\"}}\n"));
    json += "{\"id\":40000,\"late\":5}\n";
    for flag in ["--create", "--add-columns"] {
        let is_new = flag == "--create";
        let case = LoadCase::new(if is_new { "" } else { "create table t (id bigint, name text)" });
        case.put("t.json", &json);
        let said = case.refusal(&format!("t.json --table t {flag}"));
        if is_new {
            assert_snapshot!(said, @r#"
            error: could not load "t.json" into public.t
              caused by: key "late" names no column, because none of the first records has this key
              at: t.json, line 40001, byte 1548902

            hint: Name the column and its type, for example with `--type 'late=text'`. To ignore
                  … keys without a column, use `--ignore-unknown` and leave out `--add-columns`.
            "#);
        }
        let said = case.load(&format!("t.json --table t {flag} --type late=int")).success();
        assert!(said.contains("key \"late\" is not in the first records"), "{said}");
        assert_eq!(case.columns(), "id bigint, name text, late integer");
        assert_eq!(case.value("select max(late) from t where id = 40000"), "5");
    }
    // A sync reads the source once.
    let case = LoadCase::new("create table t (id bigint primary key, name text)");
    case.put("t.json", &json);
    let mut sync = case.command(&["sync", "--to", &case.db.dsn()]);
    let args = "t.json --table t --no-delete --add-columns --type late=int";
    finish(spawn(sync.args(args.split(' ')))).success();
    assert_eq!(case.value("select max(late) from t where id = 40000"), "5");
}

/// Columns are added before the first row, and other sessions may use them at once.
#[test]
fn a_failed_load_says_that_its_columns_stay() {
    let case = LoadCase::new("create table t (id int primary key)");
    case.put("t.csv", "id,note,size\n1,a,2\n1,b,3\n");
    let run = case.load("t.csv --add-columns --quiet");
    assert!(run.refusal().contains("Columns \"note\", \"size\" of public.t were added"));
    assert_eq!(case.columns(), "id integer, note text, size bigint");
    case.put("t.csv", "id,more\nx,1\n");
    let run = case.load("t.csv --add-columns --quiet --header yes");
    assert!(run.refusal().contains("Column \"more\" of public.t was added and stays."));
}

#[test]
fn a_column_that_numbers_rows_is_not_added() {
    let case = LoadCase::new("create table t (id int)");
    case.put("t.csv", "id,n\n1,1\n");
    let said = case.load("t.csv --table t --add-columns --type n=bigserial --quiet").refusal();
    assert_eq!(
        said,
        "error: `--add-columns` cannot add a column of type bigserial, which numbers rows\n\n\
         hint: Give the type of the numbers: `--type n=bigint`. Or add the column by hand before\n\
         \x20     … the load.\n"
    );
    assert_eq!(case.columns(), "id integer");
}
