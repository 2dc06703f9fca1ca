//! Tests of `sync --set` and `sync --file-name-column`: the source lacks a column of the key or of
//! the scope.

use crate::support::LoadCase;
use crate::{counts, sync};

#[test]
fn one_tenant_is_synced_and_the_others_stay() {
    let case = LoadCase::new(
        "create table t (id int, name text, tenant int, primary key (tenant, id)); \
         insert into t values (1, 'a', 6), (1, 'b', 7), (2, 'c', 7), (9, 'd', 7)",
    );
    case.put("t.csv", "id,name\n1,b\n2,C\n3,e\n");
    for lanes in ["--read-ahead never", "--read-ahead always"] {
        let args = format!("t.csv --key tenant,id --scope-by tenant --set tenant=7 {lanes}");
        let expected = match lanes {
            "--read-ahead never" => [1, 1, 1, 1],
            _ => [0, 0, 0, 3],
        };
        assert_eq!(counts(&case, &args), expected, "{lanes}");
    }
    assert_eq!(case.rows("t"), ["(1,a,6)", "(1,b,7)", "(2,C,7)", "(3,e,7)"]);
}

#[test]
fn the_file_is_the_scope() {
    let case = LoadCase::new("");
    case.put("a.csv", "id\n1\n2\n");
    case.put("b.csv", "id\n1\n");
    let flags = "--table t --key file,id --scope-by file --file-name-column file --create";
    assert_eq!(counts(&case, &format!("a.csv b.csv {flags}")), [3, 0, 0, 0]);
    case.put("a.csv", "id\n2\n3\n");
    assert_eq!(counts(&case, &format!("a.csv {flags}")), [1, 0, 1, 1]);
    assert_eq!(case.rows("t"), ["(1,b.csv)", "(2,a.csv)", "(3,a.csv)"]);
}

#[test]
fn a_wrong_value_is_refused_once() {
    let case = LoadCase::new("create table t (id int primary key, tenant int)");
    case.put("t.csv", "id\n1\n");
    let said = sync(&case, "t.csv --no-delete --set tenant=x --quiet").refusal();
    assert!(said.contains("could not set column tenant"), "{said}");
}
