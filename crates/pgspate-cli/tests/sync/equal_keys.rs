//! Tests that a sync refuses keys of the source that several rows of the table have.

use insta::assert_snapshot;

use crate::support::LoadCase;
use crate::{counts, sync};

/// Flags for every way in which rows are staged, compared and written.
const MODES: [&str; 6] = [
    "--read-ahead never",
    "--read-ahead always",
    "--lanes 2",
    "--transactions 3",
    "--check",
    "--keep last",
];

fn new_case(columns: &str) -> LoadCase {
    let case = LoadCase::new(&format!("create table t ({columns})"));
    case.put("t.csv", "kind,id,n\n1,1,5\n1,2,2\n2,3,3\n");
    case
}

/// Runs a sync that must fail and change nothing. Returns the error.
fn sync_and_expect_refusal(case: &LoadCase, args: &str) -> String {
    let before = case.contents();
    let said = sync(case, &format!("t.csv --key kind,id --quiet {args}")).refusal();
    assert_eq!(case.contents(), before, "{args}");
    said.replace("\n      … ", " ")
}

#[test]
fn a_duplicate_key_in_the_table_is_refused_in_every_mode() {
    let case = new_case("kind int not null, id int not null, n int");
    case.db.run(
        "insert into t values (1, 1, 5), (1, 1, 5), (1, 2, 2), (2, 3, 3), (2, 3, 4), (2, 3, 4)",
    );
    for mode in MODES {
        for scope in ["--scope-by kind", "--scope all --max-delete 100", "--no-delete"] {
            let said = sync_and_expect_refusal(&case, &format!("{scope} {mode}"));
            let keys = "2 keys of the source are several times in the table: (2, 3) 3 times, \
                        (1, 1) 2 times";
            let is_shared = mode == "--lanes 2" && scope == "--scope-by kind";
            assert!(is_shared || said.contains(keys), "{scope} {mode}: {said}");
            assert!(said.contains(" several times in the table: ("), "{scope} {mode}: {said}");
        }
    }
    assert_snapshot!(sync_and_expect_refusal(&case, "--scope all"), @"
    error: could not sync public.t
      caused by: 2 keys of the source are several times in the table: (2, 3) 3 times, (1, 1) 2 times

    hint: Name more columns with `--key`, or delete all but one row of each of these keys.
    ");
}

#[test]
fn a_check_shows_null_in_keys() {
    let case = new_case("kind int, id int, n int");
    case.put("t.csv", "kind,id,n\n,1,5\n1,,2\n");
    let said = sync(&case, "t.csv --key kind,id --scope all --check").stderr;
    assert!(said.contains("insert  null, 1; 1, null") || said.contains("insert  1, null; null, 1"));
}

#[test]
fn duplicate_keys_with_null_are_refused() {
    let case = new_case("kind int, id int, n int");
    case.put("t.csv", "kind,id,n\n,1,5\n1,2,2\n");
    case.db.run("insert into t values (null, 1, 5), (null, 1, 5), (1, 2, 2)");
    for mode in MODES {
        let said = sync_and_expect_refusal(&case, &format!("--scope all {mode}"));
        assert!(
            said.contains("1 key of the source is several times in the table: (null, 1) 2 times"),
            "{said}"
        );
    }
}

#[test]
fn duplicate_keys_in_inheritance_children_are_refused() {
    let case = new_case("kind int not null, id int not null, n int, primary key (kind, id)");
    case.db.run("create table u () inherits (t); insert into t values (1, 1, 4), (1, 2, 2)");
    case.db.run("insert into u values (1, 1, 5)");
    for mode in MODES {
        let said = sync_and_expect_refusal(&case, &format!("--scope all {mode}"));
        assert!(
            said.contains("1 key of the source is several times in the table: (1, 1) 2 times"),
            "{said}"
        );
    }
}

#[test]
fn duplicate_keys_that_the_source_lacks_are_allowed() {
    let make = || {
        let case = new_case("kind int not null, id int not null, n int");
        case.db.run("insert into t values (1, 1, 5), (1, 2, 2), (2, 3, 3), (8, 8, 8), (8, 8, 8)");
        case
    };
    // Rows with duplicate keys are deleted within the scope. Outside of the scope they are kept.
    for (args, expected) in [
        ("--scope-by kind", [0, 0, 0, 3]),
        ("--scope kind<5", [0, 0, 0, 3]),
        ("--no-delete", [0, 0, 0, 3]),
        ("--insert-only", [0, 0, 0, 3]),
        ("--scope all", [0, 0, 2, 3]),
    ] {
        let case = make();
        assert_eq!(counts(&case, &format!("t.csv --key kind,id {args}")), expected, "{args}");
    }
}

/// The comparison would join each row of the source with each row of the table.
#[test]
fn duplicate_keys_are_refused_before_the_comparison() {
    let case = new_case("kind int, id int, n int");
    case.db.run(
        "insert into t values (1, 1, 1), (1, 1, 2); \
         create function refuse() returns event_trigger language plpgsql as \
         $$ begin if current_query() like '%pgspate_diff%' then raise 'compared'; end if; end $$; \
         create event trigger refuse on ddl_command_start execute function refuse()",
    );
    case.put("t.csv", "kind,id,n\n1,1,5\n1,1,2\n");
    for scope in ["--scope all", "--scope-by id", "--no-delete", "--scope all --check"] {
        let said = sync_and_expect_refusal(&case, scope);
        assert!(said.contains("the source has 1 key more than once: (1, 1) 2 times"), "{said}");
    }
}

#[test]
fn not_null_is_advised_for_keys_of_large_sources() {
    let case = new_case("kind int not null, id int, n int");
    let lines = (0..100_000).map(|id| format!("1,{id},2\n"));
    case.put("t.csv", "kind,id,n\n".to_owned() + &lines.collect::<String>());
    let args = "t.csv --key kind,id --scope all --read-ahead never";
    let advice = "run `alter table public.t alter column id set not null`";
    let said = sync(&case, args).success();
    assert!(said.contains(advice), "{said}");
    case.db.run("alter table t alter column id set not null");
    let said = sync(&case, args).success();
    assert!(!said.contains("may be NULL"), "{said}");
}
