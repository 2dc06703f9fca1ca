//! Keys that the table has more than once are refused, as several rows would become one.

use insta::assert_snapshot;

use crate::support::LoadCase;
use crate::{counts, sync};

/// Every way in which rows are staged, compared and written.
const WAYS: [&str; 6] = [
    "--read-ahead never",
    "--read-ahead always",
    "--lanes 2",
    "--transactions 3",
    "--check",
    "--keep last",
];

fn case(columns: &str) -> LoadCase {
    let case = LoadCase::new(&format!("create table t ({columns})"));
    case.put("t.csv", "kind,id,n\n1,1,5\n1,2,2\n2,3,3\n");
    case
}

/// What a sync says that must fail and leave everything as it was.
fn refusal(case: &LoadCase, args: &str) -> String {
    let before = case.contents();
    let said = sync(case, &format!("t.csv --key kind,id --quiet {args}")).refusal();
    assert_eq!(case.contents(), before, "{args}");
    said.replace("\n      … ", " ")
}

#[test]
fn a_key_that_the_table_has_twice_is_refused_in_every_way() {
    let case = case("kind int not null, id int not null, n int");
    case.db.run(
        "insert into t values (1, 1, 5), (1, 1, 5), (1, 2, 2), (2, 3, 3), (2, 3, 4), (2, 3, 4)",
    );
    for way in WAYS {
        for scope in ["--scope-by kind", "--scope all --max-delete 100", "--no-delete"] {
            let said = refusal(&case, &format!("{scope} {way}"));
            let keys = "2 keys of the source more than once: (2, 3) 3 times, (1, 1) 2 times";
            let is_shared = way == "--lanes 2" && scope == "--scope-by kind";
            assert!(is_shared || said.contains(keys), "{scope} {way}: {said}");
            assert!(said.contains("of the source more than once: ("), "{scope} {way}: {said}");
        }
    }
    assert_snapshot!(refusal(&case, "--scope all"), @"
    error: could not sync public.t
      caused by: the table has 2 keys of the source more than once: (2, 3) 3 times, (1, 1) 2 times

    hint: Name more columns with `--key`, or delete all but one row of each of these keys.
    ");
}

#[test]
fn keys_that_can_be_null_are_keys() {
    let case = case("kind int, id int, n int");
    case.put("t.csv", "kind,id,n\n,1,5\n1,2,2\n");
    case.db.run("insert into t values (null, 1, 5), (null, 1, 5), (1, 2, 2)");
    for way in WAYS {
        let said = refusal(&case, &format!("--scope all {way}"));
        assert!(said.contains("1 key of the source more than once: (null, 1) 2 times"), "{said}");
    }
}

#[test]
fn an_index_of_a_parent_does_not_see_its_children() {
    let case = case("kind int not null, id int not null, n int, primary key (kind, id)");
    case.db.run("create table u () inherits (t); insert into t values (1, 1, 4), (1, 2, 2)");
    case.db.run("insert into u values (1, 1, 5)");
    for way in WAYS {
        let said = refusal(&case, &format!("--scope all {way}"));
        assert!(said.contains("1 key of the source more than once: (1, 1) 2 times"), "{said}");
    }
}

#[test]
fn equal_keys_do_not_matter_where_they_are_not_the_sources() {
    let make = || {
        let case = case("kind int not null, id int not null, n int");
        case.db.run("insert into t values (1, 1, 5), (1, 2, 2), (2, 3, 3), (8, 8, 8), (8, 8, 8)");
        case
    };
    // Outside of the scope they stay; inside they are deleted.
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
