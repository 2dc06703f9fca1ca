//! Tests that a sync refuses wrong options and inputs, and leaves the table unchanged.

use insta::assert_snapshot;

use crate::lost_key::load_and_lose_key;
use crate::support::{LoadCase, session};
use crate::{command, counts, finish, spawn, sync};

fn new_case() -> LoadCase {
    let case = LoadCase::new("create table t (id int primary key, kind text not null, n int)");
    case.db.run("insert into t select i, 'a', i from generate_series(1, 10) i");
    case
}

/// Runs a sync that must fail and change nothing. Returns the error.
fn sync_and_expect_refusal(case: &LoadCase, args: &str) -> String {
    let before = case.contents();
    let said = sync(case, &format!("{args} --quiet")).refusal();
    assert_eq!(case.contents(), before);
    said
}

#[test]
fn a_sync_that_deletes_too_many_rows_is_refused() {
    let case = new_case();
    case.put("t.csv", "id,kind,n\n1,a,1\n2,a,2\n");
    assert_snapshot!(sync_and_expect_refusal(&case, "t.csv --scope all"), @"
    error: could not sync public.t
      caused by: 8 of 10 rows of the scope (80.0%) would be deleted; --max-delete allows 50%

    hint: `--check` shows examples. Raise `--max-delete` if the deletion is intended.
    ");
    let check = sync(&case, "t.csv --scope all --check");
    assert_eq!(check.status, Some(1));
    let last = check.stderr.lines().last().unwrap();
    let why = "8 of 10 rows of the scope (80.0%) would be deleted; --max-delete allows 50%";
    assert_eq!(last, format!("warning: without `--check`, this sync is refused: {why}"));
    assert_eq!(counts(&case, "t.csv --scope all --max-delete 80%"), [0, 0, 8, 2]);
}

#[test]
fn a_sync_without_a_scope_is_told_its_choices() {
    let case = new_case();
    case.put("t.csv", "id,kind,n\n1,a,1\n");
    let said = sync_and_expect_refusal(&case, "t.csv");
    for flag in ["--scope all", "--scope-by COLUMNS", "--no-delete", "--insert-only"] {
        assert!(said.contains(&format!("tip: '{flag}' ")), "{said}");
    }
}

#[test]
fn a_sync_into_a_view_is_refused() {
    let case = new_case();
    case.put("t.csv", "id,kind,n\n1,a,1\n2,a,2\n");
    case.db.run("create view v as select * from t");
    for scope in ["--scope all", "--no-delete", "--insert-only", "--scope-by kind --plan"] {
        let args = format!("t.csv --table v --key id {scope}");
        assert_eq!(
            sync_and_expect_refusal(&case, &args),
            "error: public.v is a view, and sync writes only into tables\n\n\
             hint: Sync the table behind it.\n"
        );
    }
}

#[test]
fn mistyped_names_are_asked_about() {
    let case = new_case();
    case.put("t.csv", "id,kind,n\n1,a,1\n2,a,2\n");
    case.db.run("create table customers (id int primary key)");
    case.db.run(r#"create table ma (id int); create table "MC" (id int)"#);
    for (args, question) in [
        ("t.csv --no-delete --key idd", "Did you mean column \"id\"?"),
        ("t.csv --no-delete --key Kind", "Did you mean column \"kind\"?"),
        ("t.csv --no-delete --ignore-columns knd", "Did you mean column \"kind\"?"),
        ("t.csv --scope-by kin", "Did you mean column \"kind\"?"),
        ("t.csv --no-delete --table custmers", "Did you mean table customers?"),
        ("t.csv --no-delete --table MC", "Did you mean table \"MC\"?"),
    ] {
        let said = sync_and_expect_refusal(&case, args);
        assert!(said.contains(&format!("hint: {question}")), "{args}: {said}");
    }
}

#[test]
fn an_error_about_the_predicate_names_no_table_of_pgspate() {
    let case = new_case();
    case.put("t.csv", "id,kind,n\n1,a,1\n2,a,2\n");
    assert_snapshot!(sync_and_expect_refusal(&case, "t.csv --scope idd>1"), @r#"
    error: could not sync public.t
      caused by: could not compare the source with the predicate of `--scope`
      caused by: column "idd" does not exist (SQLSTATE 42703)

    hint: Perhaps you meant to reference the column "id".
    "#);
}

#[test]
fn a_scope_over_a_column_of_the_table_alone_is_refused() {
    let case = new_case();
    case.put("t.csv", "id,n\n1,1\n2,2\n");
    for scope in ["--scope-by kind", "--scope kind='a'"] {
        let said = sync_and_expect_refusal(&case, &format!("t.csv {scope}"));
        assert!(said.contains("column \"kind\" of the scope is not in the source"), "{said}");
        assert!(said.contains("`--set kind=...`"), "{said}");
    }
}

#[test]
fn a_source_without_rows_is_refused() {
    let case = new_case();
    case.put("t.csv", "id,kind,n\n");
    assert_snapshot!(sync_and_expect_refusal(&case, "t.csv --scope all --header yes"), @"
    error: could not sync public.t
      caused by: the source has no rows: all rows of the scope would be deleted

    hint: Use `--allow-empty` if that is intended.
    ");
    let all = "t.csv --scope all --header yes --allow-empty";
    assert_eq!(counts(&case, all), [0, 0, 10, 0]);
}

#[test]
fn a_source_without_rows_has_no_scopes_for_scope_by() {
    let case = new_case();
    case.put("t.csv", "id,n\n");
    for args in ["", "--allow-empty"] {
        let run = sync(&case, &format!("t.csv --header yes --scope-by kind --set kind=a {args}"));
        assert_eq!(run.status, Some(0), "{}", run.stderr);
        assert!(run.stderr.contains("`--scope-by` finds no scope"), "{}", run.stderr);
        assert_eq!(case.rows("t").len(), 10);
    }
}

/// A header that is taken for a row would be inserted, and all other rows deleted.
#[test]
fn one_line_that_may_be_a_header_is_refused() {
    let case = LoadCase::new("create table t (id text primary key, n text)");
    case.put("t.csv", "person,number\n");
    for args in ["", "--columns id,n"] {
        let said = sync_and_expect_refusal(&case, &format!("t.csv --scope all {args}"));
        assert!(said.contains("there is only one line"), "{said}");
    }
    case.put("u.csv", "apple,red\nbanana,yellow\n");
    let created = "u.csv --scope all --create --primary-key apple --quiet --json";
    let run = sync(&case, created);
    assert!(run.stderr.starts_with("warning: the first line was taken for"), "{}", run.stderr);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["warnings"].as_array().unwrap().len(), 1);
    assert!(report["input"].to_string().contains("header yes:"), "{report}");
}

#[test]
fn duplicate_keys_in_the_source_are_refused() {
    let case = new_case();
    case.put("t.csv", "id,kind,n\n1,a,5\n2,b,2\n1,c,7\n");
    assert_snapshot!(sync_and_expect_refusal(&case, "t.csv --no-delete"), @"
    error: could not sync public.t
      caused by: the source has 1 key more than once: (1) 2 times

    hint: Name more columns with `--key`, or keep the last of such rows with `--keep last`.
    ");
    assert_eq!(counts(&case, "t.csv --no-delete --keep last"), [0, 2, 0, 0]);
    assert_eq!(case.value("select kind || n from t where id = 1"), "c7");
}

#[test]
fn a_json_key_that_the_first_records_lack_is_refused() {
    let case = new_case();
    let mut records: String =
        (0..60_000).map(|id| format!("{{\"id\":{id},\"kind\":\"a\"}}\n")).collect();
    records += "{\"id\":60000,\"kind\":\"a\",\"n\":1}\n";
    case.put("t.json", &records);
    assert_snapshot!(sync_and_expect_refusal(&case, "t.json --no-delete"), @r#"
    error: could not sync public.t with "t.json"
      caused by: key "n" names a column, but the first records do not have this key
      at: t.json, line 60001, byte 1428913, column "n"

    hint: Name the keys of all records with `--columns a,b,...`.
    "#);
}

/// The server's place is one in the stage. The error has the place in the source, as in a load.
#[test]
fn a_refused_value_has_its_place() {
    let case = new_case();
    case.put("t.csv", "id,kind,n\n1,a,1\n2,a,x\n3,a,y\n");
    for args in ["", "--read-ahead always", "--read-ahead never"] {
        let said = sync_and_expect_refusal(&case, &format!("t.csv --scope all {args}"));
        assert!(said.contains("at: t.csv, line 3, byte 16, column \"n\""), "{args}: {said}");
        assert!(!said.contains("pgspate_stage"), "{said}");
    }
    let scopes = "t.csv --scope-by kind --lanes 2";
    let said = sync_and_expect_refusal(&case, scopes);
    assert!(said.contains("at: t.csv, line 3, byte 16, column \"n\""), "{said}");
}

/// The refused rows are sent again as text, to find the first of them. They need the user's search
/// path, too.
#[test]
fn a_value_that_a_check_of_its_domain_refuses_has_its_place() {
    let case = new_case();
    case.db.run(
        "create table allowed (v int); insert into allowed select generate_series(1, 9); \
         create function is_allowed(int) returns boolean language plpgsql as \
             'begin return exists (select from allowed where v = $1); end'; \
         create domain allowed_int as int check (value is null or is_allowed(value)); \
         alter table t add column d allowed_int",
    );
    case.put("t.csv", "id,kind,n,d\n1,a,1,3\n2,a,2,9\n3,a,3,10\n4,a,4,11\n");
    let said = sync_and_expect_refusal(&case, "t.csv --scope all");
    assert!(said.contains("violates check constraint \"allowed_int_check\""), "{said}");
    assert!(said.contains("at: t.csv, line 4"), "{said}");
}

/// Each row of the source counts once, however many rows of the table have its key.
#[test]
fn a_key_that_is_too_narrow_is_counted_by_rows_of_the_source() {
    let case = new_case();
    case.put("t.csv", "id,kind,n\n20,a,99\n");
    for scope in [&["--scope-by", "n"][..], &["--scope", "n = 99"]] {
        let mut command = command(&case, "t.csv --key kind --quiet");
        let said = finish(spawn(command.args(scope))).refusal();
        assert!(said.contains("the source has 1 row with the key of a table row"), "{said}");
    }
}

/// A plan changes nothing.
#[test]
fn a_plan_does_not_upgrade_the_ledger() {
    let case = new_case();
    case.put("t.csv", "id,kind,n\n1,a,1\n");
    case.put("o.csv", "id\n1\n");
    case.load("o.csv --table o --create --quiet").success();
    case.db.run("update pgspate.version set version = 5");
    let plan = crate::sync(&case, "t.csv --scope all --plan");
    assert_eq!(plan.status, Some(0), "{}", plan.stderr);
    assert_eq!(case.value("select version from pgspate.version"), "5");
}

#[test]
fn rows_outside_of_the_scope_are_refused() {
    let case = new_case();
    case.put("t.csv", "id,kind,n\n1,b,5\n20,b,6\n");
    let mut command = crate::command(&case, "t.csv --quiet");
    let run = crate::finish(crate::spawn(command.args(["--scope", "kind = 'b'"])));
    assert_snapshot!(run.refusal(), @"
    error: could not sync public.t
      caused by: the source has 1 row with the key of a table row that is outside the scope

    hint: Widen `--scope`, remove these rows from the source, or name more columns with
          … `--key`.
    ");
    assert_snapshot!(sync_and_expect_refusal(&case, "t.csv --scope-by kind"), @"
    error: could not sync public.t
      caused by: the source has 1 row with the key of a table row in a scope that the
          … source does not have, such as (1)

    hint: If the row has moved to another scope, give the source all rows of both scopes.
          … Or use `--no-delete` in place of `--scope-by`, which updates the row. If a key
          … is unique only within its scope, add the columns of `--scope-by` to `--key`.
    ");
    assert_eq!(case.value("select count(*) from t where kind = 'a'"), "10");
}

#[test]
fn unusable_keys_and_scopes_are_refused() {
    let case = LoadCase::new("create table t (a int, b json); create table u (id int primary key)");
    case.put("t.csv", "a,b\n1,{}\n");
    assert_snapshot!(sync_and_expect_refusal(&case, "t.csv --no-delete"), @"
    error: public.t has no primary key to match rows by

    hint: Name the columns that identify a row with `--key a,b`.
    ");
    let said = sync_and_expect_refusal(&case, "t.csv --no-delete --key c");
    assert_snapshot!(said, @r#"error: column "c" of relation "t" does not exist"#);
    case.db.run("create table k (id int generated always as identity primary key, a int unique)");
    case.put("k.csv", "a\n1\n");
    assert_snapshot!(sync_and_expect_refusal(&case, "k.csv --no-delete"), @r#"
    error: column "id" is not in the source

    hint: Name columns of the source that identify a row with `--key a,b`.
    "#);
    let said = sync_and_expect_refusal(&case, "t.csv --scope-by c --key a");
    assert_snapshot!(said, @r#"error: column "c" of the scope is not in the source"#);
    assert_snapshot!(sync_and_expect_refusal(&case, "t.csv --no-delete --key b"), @r#"
    error: column "b" of the key has type json, and the server cannot tell whether two
          … values of this type are equal

    hint: Name columns of other types for the key, such as an id. Or compare as jsonb:
          … `alter table public.t alter column b type jsonb`.
    "#);
    assert_snapshot!(sync_and_expect_refusal(&case, "t.csv --no-delete --key a --table none"), @r#"
    error: relation "none" does not exist

    hint: `--create` creates the table with types that fit the source.
    "#);
}

#[test]
fn rows_that_the_table_refuses_are_reported() {
    let case = new_case();
    case.put("t.csv", "id,kind,n\n1,b,5\n20,,6\n");
    assert_snapshot!(sync_and_expect_refusal(&case, "t.csv --no-delete"), @r#"
    error: could not sync public.t
      caused by: could not insert rows
      caused by: null value in column "kind" of relation "t" violates not-null constraint
          … (SQLSTATE 23502)
      caused by: Failing row contains (20, null, 6)
    "#);
    case.put("bad.csv", "id,kind,n\n1,b,5\n20,b,x\n");
    assert_snapshot!(sync_and_expect_refusal(&case, "bad.csv --table t --no-delete"), @r#"
    error: could not sync public.t with "bad.csv"
      caused by: invalid input syntax for type integer: "x" (SQLSTATE 22P02)
      at: bad.csv, line 3, byte 16, column "n"
    "#);
}

#[test]
fn a_key_whose_type_has_no_equality_is_refused() {
    let case = LoadCase::new(
        "create type pair as (a int, b json); \
         create table t (j json, p point, a json[], w pair, e text[], n int)",
    );
    case.put("t.csv", "j,p,a,w,e,n\n{},\"(1,2)\",{},,{x},1\n");
    assert_snapshot!(sync_and_expect_refusal(&case, "t.csv --no-delete --key n,j"), @r#"
    error: column "j" of the key has type json, and the server cannot tell whether two
          … values of this type are equal

    hint: Name columns of other types for the key, such as an id. Or compare as jsonb:
          … `alter table public.t alter column j type jsonb`.
    "#);
    let said = sync_and_expect_refusal(&case, "t.csv --key n --scope-by p --plan");
    assert!(said.contains("column \"p\" of the scope has type point"), "{said}");
    let said = sync_and_expect_refusal(&case, "t.csv --no-delete --key a");
    assert!(said.contains("has type json[]") && said.contains("type jsonb[]`"), "{said}");
    assert_eq!(counts(&case, "t.csv --no-delete --key e"), [1, 0, 0, 0]);
}

/// A row is deleted before its children move to another parent.
#[test]
fn children_that_leave_a_deleted_parent_need_a_deferred_constraint() {
    for (action, message) in [
        ("", Some("deferrable initially deferred")),
        ("on delete cascade", Some("deferrable initially deferred")),
        ("deferrable initially deferred", None),
    ] {
        let case = LoadCase::new(&format!(
            "create table t (id int primary key, p int references t {action}); \
             insert into t values (1, null), (2, 1), (3, null)"
        ));
        case.put("t.csv", "id,p\n2,3\n3,\n");
        match message {
            Some(message) => {
                let said = sync_and_expect_refusal(&case, "t.csv --scope all");
                assert!(said.replace("\n      … ", " ").contains(message), "{action}: {said}");
                assert!(!said.contains("bug"), "{action}: {said}");
            }
            None => assert_eq!(counts(&case, "t.csv --scope all"), [0, 1, 1, 1]),
        }
    }
}

/// The action of a foreign key writes rows that do not differ, or are outside the scope.
#[test]
fn rows_that_a_foreign_key_writes_besides_the_differences_roll_the_sync_back() {
    let to_itself = |action: &str| {
        format!(
            "create table t (id int primary key, s text, up int references t {action}); \
             insert into t values (1, 'a', null), (2, 'b', 1), (3, 'a', null)"
        )
    };
    let over_lines = "create table t (id int primary key, s text, last int); \
         create table line (id int primary key, of int references t on delete cascade); \
         insert into t values (1, 'a', null), (2, 'b', null), (3, 'a', null); \
         insert into line values (7, 1); update t set last = 7 where id = 2; \
         alter table t add foreign key (last) references line on delete cascade";
    for (create, source) in [
        (to_itself("on delete cascade"), "id,s,up\n2,b,1\n3,a,\n"),
        (to_itself("on delete set null"), "id,s,up\n2,b,1\n3,a,\n"),
        (over_lines.to_owned(), "id,s,last\n2,b,7\n3,a,\n"),
    ] {
        let case = LoadCase::new(&create);
        let rows = case.rows("t");
        case.put("t.csv", source);
        case.put("scope.csv", source.replace("2,b,1\n", "").replace("2,b,7\n", ""));
        for args in ["t.csv --scope all", "scope.csv --table t --scope-by s"] {
            let said = sync_and_expect_refusal(&case, args);
            assert!(said.contains("more rows were deleted or updated than differ"), "{said}");
            assert_eq!(case.rows("t"), rows, "{create} {args}");
        }
    }
}

/// A rule writes the rows elsewhere, and the server reports them as written.
#[test]
fn a_table_with_rules_is_refused() {
    let case = LoadCase::new(
        "create table t (id int primary key); create table other (id int); \
         create rule r as on insert to t do instead insert into other values (new.id)",
    );
    case.put("t.csv", "id\n1\n");
    assert_snapshot!(sync_and_expect_refusal(&case, "t.csv --scope all"), @r#"
    error: rule "r" rewrites statements that write public.t

    hint: Replace the rule by a trigger. `pgspate load` writes by COPY, which no rule
          … rewrites.
    "#);
}

/// A hidden row would count as absent, and a sync would insert it again.
#[test]
fn a_table_whose_rows_a_policy_hides_is_refused() {
    let case = LoadCase::new(
        "create table t (id int, v int); insert into t values (1, 0), (2, 0); \
         alter table t enable row level security; create policy few on t using (id = 1)",
    );
    let database = case.value("select current_database()");
    let role = format!("writer_of_{database}");
    case.db.run(&format!("create role {role}; grant all on t to {role}"));
    case.put("t.csv", "id,v\n1,0\n2,0\n");
    let as_role = |args: &str| {
        let mut command = command(&case, &format!("t.csv --key id --quiet {args}"));
        finish(spawn(command.env("PGOPTIONS", format!("-c role={role}"))))
    };
    let refused: Vec<_> = ["--scope all", "--scope all --check", "--insert-only"]
        .map(|args| as_role(args).refusal())
        .into();
    case.db.run("alter table t disable row level security");
    let seen = as_role("--scope all");
    case.db.run(&format!("drop owned by {role} cascade; drop role {role}"));
    assert!(refused.iter().all(|said| *said == refused[0]), "{refused:?}");
    assert_snapshot!(refused[0], @"
    error: row-level security of public.t applies to this role and may hide rows of the
          … table

    hint: Sync as a role that sees all rows: `alter role ... bypassrls`.
    ");
    assert_eq!(seen.status, Some(0), "{}", seen.stderr);
    assert_eq!(case.rows("t").join(" "), "(1,0) (2,0)");
}

/// The table of differences has columns beside those of the source.
#[test]
fn more_columns_than_can_be_compared_are_refused() {
    for (columns, is_refused) in [(1597, false), (1598, true)] {
        let names: Vec<_> = (1..columns).map(|nth| format!("c{nth}")).collect();
        let flags = names.join(" bool, ");
        let case = LoadCase::new(&format!("create table t (id int primary key, {flags} bool)"));
        case.put("t.csv", format!("id,{}\n1{}\n", names.join(","), ",t".repeat(columns - 1)));
        if !is_refused {
            assert_eq!(counts(&case, "t.csv --scope all"), [1, 0, 0, 0]);
            continue;
        }
        let said = sync_and_expect_refusal(&case, "t.csv --scope all");
        assert!(said.contains("the source has 1598 columns, but a sync compares at most 1597"));
    }
}

/// Each of the syncs first needs another lock of the table.
#[test]
fn a_sync_waits_no_longer_for_a_lock_than_the_lock_timeout() {
    let case = new_case();
    case.put("t.csv", "id,kind,n\n1,b,1\n");
    let (runtime, holder) = session(&case.db.dsn());
    let ways = ["--scope all", "--scope all --check", "--no-delete --read-ahead never"];
    for (lock, ways) in
        [("lock table t", &ways[..]), ("select from t where id = 1 for update", &["--no-delete"])]
    {
        runtime.block_on(holder.batch_execute(&format!("begin; {lock}"))).unwrap();
        for way in ways {
            let args = format!("t.csv --table t {way} --lock-timeout 1 --quiet");
            let said = sync(&case, &args).refusal();
            assert!(said.contains("lock timeout (SQLSTATE 55P03)"), "{way}: {said}");
            assert!(said.contains("The lock was held for [TIME] by session [N]"), "{way}: {said}");
        }
        runtime.block_on(holder.batch_execute("rollback")).unwrap();
    }
    assert_eq!(counts(&case, "t.csv --no-delete"), [0, 1, 0, 0]);
}

/// A table whose key a load has dropped looks like a table without a key.
#[test]
fn a_sync_without_a_key_names_the_load_that_has_dropped_it() {
    let case = new_case();
    case.put("u.csv", "id,kind,n\n11,a,1\n");
    load_and_lose_key(&case, "u.csv");
    case.put("t.csv", "id,kind,n\n1,b,1\n");
    let said = sync(&case, "t.csv --no-delete --quiet").refusal();
    assert!(said.contains("dropped primary key \"t_pkey\" and not put them back"), "{said}");
}
