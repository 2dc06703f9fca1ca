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

#[test]
fn columns_that_the_table_lacks_are_added() {
    let case = LoadCase::new(
        "create table t (id int primary key, tenant int); insert into t values (1, 7), (2, 8)",
    );
    case.put("t.csv", "id,n\n1,5\n3,6\n");
    let args = "t.csv --scope-by tenant --set tenant=7 --add-columns --read-ahead always";
    let plan = sync(&case, &format!("{args} --plan"));
    assert!(plan.stdout.starts_with("alter table public.t\n    add column n bigint;\n"));
    let said = sync(&case, &format!("{args} --check")).refusal();
    assert!(said.contains("a check changes nothing"), "{said}");
    let said = sync(&case, args).success();
    assert!(said.contains("column \"n\" added as bigint"), "{said}");
    assert_eq!(case.rows("t"), ["(1,7,5)", "(2,8,)", "(3,7,6)"]);
    assert_eq!(counts(&case, args), [0, 0, 0, 2]);
}

#[test]
fn a_table_that_gets_columns_is_not_read_ahead() {
    let case = LoadCase::new("create table t (id int primary key); insert into t values (1)");
    case.put("t.csv", "id,n\n1,5\n3,6\n");
    let args = "t.csv --no-delete --add-columns --read-ahead always";
    let ahead = "the table is not read ahead in this run: it does not have column \"n\" yet";
    let plan = sync(&case, &format!("{args} --plan"));
    assert!(plan.stderr.contains(ahead), "{}", plan.stderr);
    let said = sync(&case, args).success();
    assert!(said.contains(ahead), "{said}");
    assert_eq!(case.rows("t"), ["(1,5)", "(3,6)"]);
    let said = sync(&case, args).success();
    assert!(!said.contains(ahead) && said.contains("the table was read first"), "{said}");
}
