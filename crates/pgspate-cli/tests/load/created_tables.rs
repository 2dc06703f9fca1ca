//! Tests of the types and the primary key that the user chooses for a created table.

use insta::assert_snapshot;

use crate::support::LoadCase;

#[test]
fn a_created_table_has_the_types_and_the_key_of_the_flags() {
    let case = LoadCase::new("create domain zip as text check (value <> '')");
    case.put("t.csv", "id,Day,price,zip\n1,2024-02-29,1.50,01234\n2,2024-03-01,2,99999\n");
    let args = "t.csv --create --type id=int --type price=numeric(10,2) --type zip=zip \
                --primary-key id,day";
    case.load(args).success();
    assert_eq!(case.columns(), "id integer, Day date, price numeric(10,2), zip zip");
    let key = "select pg_get_constraintdef(oid) from pg_constraint \
               where conrelid = 't'::regclass and contype = 'p'";
    assert_eq!(case.value(key), "PRIMARY KEY (id, \"Day\")");
    assert_eq!(case.rows("t"), ["(1,2024-02-29,1.50,01234)", "(2,2024-03-01,2.00,99999)"]);
}

#[test]
fn a_type_of_a_column_of_json_can_be_chosen() {
    let case = LoadCase::new("");
    case.put("t.json", "{\"a\":1,\"b\":\"x\"}\n");
    case.load("t.json --create --type b=varchar(3)").success();
    assert_eq!(case.columns(), "a bigint, b character varying(3)");
}

#[test]
fn a_column_whose_type_was_chosen_is_not_widened() {
    let case = LoadCase::new("");
    case.put("t.csv", "a,b\n1,1\n2,x\n");
    assert_snapshot!(case.refusal("t.csv --create --type b=bigint"), @r#"
    error: could not load "t.csv" into public.t
      caused by: invalid input syntax for type bigint: "x" (SQLSTATE 22P02)
      at: t.csv, line 3, byte 8, column "b"
    "#);
}

#[test]
fn the_sequence_of_a_created_column_is_advanced() {
    for flags in ["", "--commit chunk", "--replace", "--no-ledger"] {
        let case = LoadCase::new("");
        case.put("t.csv", "id,v\n5,a\n6,b\n");
        let args = format!("t.csv --create --type id=bigserial --primary-key id {flags}");
        let said = case.load(&args).success();
        assert!(said.contains("moved to 6"), "{flags}: {said}");
        assert_eq!(case.value("insert into t (v) values ('n') returning id"), "7", "{flags}");
    }
}

#[test]
fn rows_that_break_the_primary_key_are_refused_and_the_table_is_dropped() {
    let case = LoadCase::new("");
    case.put("t.csv", "a,b\n1,1\n1,2\n");
    let said = case.refusal("t.csv --create --primary-key a");
    assert!(said.contains("SQLSTATE 23505"), "{said}");
}

#[test]
fn wrong_types_and_columns_are_refused() {
    let case = LoadCase::new("");
    case.put("t.csv", "id,price\n1,2\n");
    assert_snapshot!(case.refusal("t.csv --create --type prize=int"), @r#"
    error: the input has no column "prize", which `--type` names

    hint: Did you mean column "price"?
    "#);
    assert_snapshot!(case.refusal("t.csv --create --primary-key key"), @r#"
    error: the input has no column "key", which `--primary-key` names

    hint: The input has the columns id, price.
    "#);
    let said = case.refusal("t.csv --create --type price=nothing");
    assert!(said.contains("type \"nothing\" does not exist"), "{said}");
    // What is not the name of a type never becomes a part of a statement.
    for ty in ["int);drop", "int,x", "int/**/not/**/null", "int--"] {
        let said = case.refusal(&format!("t.csv --create --type price={ty}"));
        assert!(said.contains("is no type for column \"price\""), "{ty}: {said}");
    }
    let said = case.refusal("t.csv --type price=int");
    assert!(said.contains("--create"), "{said}");
    let said = case.refusal("t.csv --create --type price");
    assert!(said.contains("expected COLUMN=TYPE"), "{said}");
}

#[test]
fn names_in_snake_case_fit_the_columns() {
    let case = LoadCase::new("");
    case.put("t.csv", "Order ID,UnitPrice,note\n1,2.5,x\n");
    case.load("t.csv --create --snake-case --primary-key order_id").success();
    assert_eq!(case.columns(), "order_id bigint, unit_price numeric, note text");
    // The key `unitPrice` is in none of the first records.
    let mut records = "{\"orderId\":2}\n".to_owned();
    (3..60_000).for_each(|id| records += &format!("{{\"orderId\":{id}}}\n"));
    case.put("u.json", records + "{\"orderId\":60000,\"unitPrice\":7.5}\n");
    case.load("u.json --table t --snake-case --ignore-unknown --quiet").success();
    let prices = "select string_agg(unit_price::text, ' ' order by order_id) from t";
    assert_eq!(case.value(prices), "2.5 7.5");
    case.put("v.json", "{\"orderId\":70000,\"order_id\":70001}\n");
    let said = case.refusal("v.json --table t --snake-case");
    assert!(said.contains("column \"order_id\" is named more than once"), "{said}");
    let said = case.refusal("t.csv --restart");
    assert!(said.contains("Order ID"), "{said}");
}

#[test]
fn columns_of_a_table_created_from_json_are_the_named_keys() {
    let case = LoadCase::new("");
    case.put("t.json", "{\"b\":1,\"a\":\"x\",\"d\":2}\n{\"b\":2,\"d\":3}\n");
    case.load("t.json --create --columns a,b,c,d").success();
    assert_eq!(case.columns(), "a text, b bigint, c text, d bigint");
    assert_eq!(case.rows("t"), ["(,2,,3)", "(x,1,,2)"]);
    // The values of arrays have no names.
    case.db.run("drop table t");
    case.put("t.json", "[1,\"x\"]\n[2,\"y\"]\n");
    case.load("t.json --create --columns a,b").success();
    assert_eq!(case.columns(), "a bigint, b text");
}

#[test]
fn json_arrays_are_rows_by_position() {
    let case = LoadCase::new(
        "create table t (a int, length int generated always as (length(b)) stored, b text)",
    );
    case.put("one.json", "[[1,\"x\"],[2,\"yz\"]]");
    case.put("lines.json", "[3,null]\n[4,{\"k\":[5]}]\n");
    for name in ["one.json", "lines.json"] {
        case.load(&format!("{name} --table t")).success();
    }
    assert_eq!(case.rows("t"), ["(1,1,x)", "(2,2,yz)", "(3,,)", "(4,9,\"{\"\"k\"\":[5]}\")"]);
    case.put("short.json", "[6]\n");
    let said = case.refusal("short.json --table t");
    assert!(said.contains("the array has 1 value, but the load has 2 columns"), "{said}");
    case.load("short.json --table t --columns a").success();
    // A created table has the columns of the arrays, and the second file fills them, too.
    case.load("one.json --table u --create").success();
    case.put("two.json", "[8,\"z\"]\n");
    case.load("two.json --table u --create --set at=now --add-columns").success();
    assert_eq!(
        case.value("select string_agg(column_1 || column_2, ' ' order by 1) from u"),
        "1x 2yz 8z"
    );
}

/// Types and a key of a table that exists are not changed. A load that runs every night says so
/// only if the table has others.
#[test]
fn choices_that_the_table_does_not_have_are_told() {
    let case = LoadCase::new("");
    case.put("t.csv", "id,price\n1,2.5\n");
    let args = "t.csv --create --type price=numeric(10,2) --primary-key id --quiet --json";
    let warnings = |args: &str| {
        let run = case.load(&format!("{args} --restart"));
        let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
        serde_json::from_value::<Vec<String>>(report["warnings"].clone()).unwrap()
    };
    assert_eq!(warnings(args), Vec::<String>::new());
    case.db.run("delete from t");
    assert_eq!(warnings(args), Vec::<String>::new());
    case.db.run("delete from t; alter table t alter price type numeric(8,1)");
    assert_eq!(
        warnings(args),
        ["`--type` has no effect on column \"price\", which public.t has as numeric(8,1)"]
    );
    case.db.run("delete from t; alter table t alter price type text, drop constraint t_pkey");
    assert_eq!(
        warnings(args),
        [
            "`--type` has no effect on column \"price\", which public.t has as text",
            "`--primary-key` has no effect: public.t exists, and has no primary key"
        ]
    );
    case.db.run("delete from t; alter table t add primary key (price, id)");
    let said = warnings(args).pop().unwrap();
    assert!(said.ends_with("and has the primary key (price, id)"), "{said}");
}
