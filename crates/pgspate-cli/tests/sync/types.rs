//! Tests of equal values with different spellings, of NULL, and of columns that a sync does not
//! write.

use crate::counts;
use crate::support::LoadCase;

#[test]
fn equal_values_that_look_different_are_written() {
    let case = LoadCase::new(
        "create table t (id int primary key, n numeric, f float8, i interval, j json, b char(5), \
                         a numeric[])",
    );
    let rows = "1,1.0,0,1 day,\"{\"\"a\"\": 1}\",ab,{1.0}\n2,,NaN,,,,\n";
    case.put("t.csv", format!("id,n,f,i,j,b,a\n{rows}"));
    assert_eq!(counts(&case, "t.csv --scope all"), [2, 0, 0, 0]);
    assert_eq!(counts(&case, "t.csv --scope all"), [0, 0, 0, 2]);
    let source = "1,1.00,-0,24:00:00,\"{\"\"a\"\":1}\",ab,{1.00}\n2,,NaN,,,,\n";
    case.put("t.csv", format!("id,n,f,i,j,b,a\n{source}"));
    assert_eq!(counts(&case, "t.csv --scope all"), [0, 1, 0, 1]);
    let row = "select concat_ws(' ', n, f, i, j, b, a) from t where id = 1";
    assert_eq!(case.value(row), "1.00 -0 24:00:00 {\"a\":1} ab    {1.00}");
    assert_eq!(counts(&case, "t.csv --scope all"), [0, 0, 0, 2]);
}

#[test]
fn null_matches_null_in_a_key() {
    let case = LoadCase::new("create table t (a int, b text, n int)");
    case.db.run("insert into t values (1, null, 1), (null, null, 2), (2, 'x', 3)");
    case.put("t.csv", "a,b,n\n1,,1\n,,5\n,y,6\n");
    assert_eq!(counts(&case, "t.csv --key a,b --scope all"), [1, 1, 1, 1]);
    let rows = "select string_agg(concat(a, ',', b, ',', n), ' ' order by n) from t";
    assert_eq!(case.value(rows), "1,,1 ,,5 ,y,6");
    assert_eq!(counts(&case, "t.csv --key a,b --scope-by a"), [0, 0, 0, 3]);
}

#[test]
fn null_and_an_empty_array_are_two_keys() {
    for ty in ["int[]", "tags"] {
        let case =
            LoadCase::new(&format!("create domain tags as text[]; create table t (k {ty}, v int)"));
        case.put("t.csv", "k,v\n,1\n{},2\n{1},3\n\"{{1,2},{3,4}}\",4\n");
        assert_eq!(counts(&case, "t.csv --key k --scope all"), [4, 0, 0, 0], "{ty}");
        for args in ["--scope all", "--scope-by k", "--no-delete", "--scope all --keep last"] {
            assert_eq!(counts(&case, &format!("t.csv --key k {args}")), [0, 0, 0, 4], "{ty}");
        }
        // The row with NULL is in another scope than the row with the empty array.
        case.put("t.csv", "k,v\n{},5\n{1},3\n");
        assert_eq!(counts(&case, "t.csv --key k --scope-by k"), [0, 1, 0, 1], "{ty}");
        assert_eq!(case.value("select v from t where k is null"), "1", "{ty}");
        let all = "t.csv --key k --scope all --max-delete 90%";
        assert_eq!(counts(&case, all), [0, 0, 2, 2], "{ty}");
    }
}

#[test]
fn keys_that_a_collation_finds_equal_match() {
    let case = LoadCase::new(
        "create collation ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false); \
         create table t (name text collate ci primary key, n int)",
    );
    case.db.run("insert into t values ('Ada', 1), ('Bob', 2)");
    case.put("t.csv", "name,n\nADA,1\nBob,2\n");
    assert_eq!(counts(&case, "t.csv --scope all"), [0, 1, 0, 1]);
    assert_eq!(case.value("select string_agg(name, ' ' order by name) from t"), "ADA Bob");
}

#[test]
fn generated_and_identity_columns_are_synced() {
    let case = LoadCase::new(
        "create table t (id int generated always as identity primary key, n int, \
                         twice int generated always as (n * 2) stored)",
    );
    case.put("t.csv", "id,n\n5,1\n7,2\n");
    assert_eq!(counts(&case, "t.csv --scope all"), [2, 0, 0, 0]);
    case.put("t.csv", "id,n\n5,1\n7,3\n");
    assert_eq!(counts(&case, "t.csv --scope all"), [0, 1, 0, 1]);
    assert_eq!(
        case.value("select string_agg(concat_ws(',', id, n, twice), ' ' order by id) from t"),
        "5,1,2 7,3,6"
    );
}

#[test]
fn rows_move_between_partitions() {
    let case = LoadCase::new(
        "create table t (id int, part int, n int) partition by list (part); \
         create table t1 partition of t for values in (1); \
         create table t2 partition of t for values in (2)",
    );
    case.db.run("insert into t values (1, 1, 1), (2, 1, 2), (3, 2, 3)");
    case.put("t.csv", "id,part,n\n1,2,1\n2,1,2\n3,2,4\n");
    assert_eq!(counts(&case, "t.csv --key id --scope all"), [0, 2, 0, 1]);
    assert_eq!((case.rows("t1").len(), case.rows("t2").len()), (1, 2));
}

#[test]
fn triggers_fire_once_for_each_change_and_foreign_keys_are_checked() {
    let case = LoadCase::new(
        "create table kind (id int primary key); insert into kind values (1), (2); \
         create table t (id int primary key, kind int references kind); \
         create table log (what text); \
         create function note() returns trigger language plpgsql as \
           'begin insert into log values (tg_op); return coalesce(new, old); end'; \
         create trigger note after insert or update or delete on t for each row \
           execute function note()",
    );
    case.db.run("insert into t values (1, 1), (2, 1), (3, 1); truncate log");
    case.put("t.csv", "id,kind\n1,1\n2,2\n4,2\n");
    assert_eq!(counts(&case, "t.csv --scope all"), [1, 1, 1, 1]);
    assert_eq!(
        case.value("select string_agg(what, ' ' order by what) from log"),
        "DELETE INSERT UPDATE"
    );
    case.put("t.csv", "id,kind\n1,1\n2,2\n4,3\n");
    let said = crate::sync(&case, "t.csv --scope all --quiet").refusal();
    assert!(said.contains("violates foreign key constraint"), "{said}");
    assert_eq!(case.value("select kind from t where id = 4"), "2");
}

#[test]
fn rows_exchange_values_of_a_deferrable_unique_column() {
    let case = LoadCase::new("create table t (id int primary key, place int unique deferrable)");
    case.db.run("insert into t values (1, 1), (2, 2), (3, 3)");
    case.put("t.csv", "id,place\n1,2\n2,1\n4,3\n");
    assert_eq!(counts(&case, "t.csv --scope all"), [1, 2, 1, 0]);
}
