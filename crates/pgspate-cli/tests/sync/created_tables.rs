//! Tests that `sync --create` creates a missing table, and drops it again if the sync fails.

use insta::assert_snapshot;

use crate::support::LoadCase;
use crate::{counts, sync};

#[test]
fn a_missing_table_is_created_with_the_key_as_its_primary_key() {
    let case = LoadCase::new("");
    case.put("t.csv", "id,day,n\n1,2024-02-29,5\n2,2024-02-29,6\n");
    let args = "t.csv --key id,day --scope all --create --type n=int";
    let said = sync(&case, args).success();
    assert!(said.contains("public.t (created): 2 inserted"), "{said}");
    let key = "select pg_get_constraintdef(oid) from pg_constraint \
               where conrelid = 't'::regclass and contype = 'p'";
    assert_eq!(case.value(key), "PRIMARY KEY (id, day)");
    // The table exists now, and --create changes nothing.
    assert_eq!(counts(&case, args), [0, 0, 0, 2]);
    assert_eq!(case.rows("t"), ["(1,2024-02-29,5)", "(2,2024-02-29,6)"]);
}

#[test]
fn a_failed_sync_drops_the_table_that_it_created() {
    let case = LoadCase::new("");
    case.put("t.csv", "id,n\n1,5\n1,6\n");
    let said = sync(&case, "t.csv --key id --no-delete --create --quiet").refusal();
    assert!(said.contains("more than once"), "{said}");
    assert_eq!(case.contents(), []);
    case.put("t.csv", "id,n\n1,5\n2,x\n");
    let said = sync(&case, "t.csv --key id --no-delete --create --type n=int --quiet").refusal();
    assert!(said.contains("22P02"), "{said}");
    assert_eq!(case.contents(), []);
    // A sync that is refused before it runs.
    let said = sync(&case, "t.csv --key id --scope-by day --create --quiet").refusal();
    assert!(said.contains("day"), "{said}");
    assert_eq!(case.contents(), []);
}

#[test]
fn a_table_is_not_created_without_a_key_or_by_a_check() {
    let case = LoadCase::new("");
    case.put("t.csv", "id,n\n1,5\n");
    assert_snapshot!(sync(&case, "t.csv --scope all --create --quiet").refusal(), @"
    error: no key is named for t

    hint: Name the columns that identify a row with `--key`.
    ");
    for flag in ["--check", "--plan", "--advise-only"] {
        let said = sync(&case, &format!("t.csv --key id --scope all --create {flag}")).refusal();
        assert!(said.contains("cannot be used with"), "{said}");
    }
    assert_eq!(case.contents(), []);
}
