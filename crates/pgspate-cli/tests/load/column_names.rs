//! Tests of names: a header whose names differ in upper and lower case only, mistyped names of
//! tables, and texts for people beside the data.

use insta::assert_snapshot;

use crate::support::LoadCase;

#[test]
fn names_that_differ_only_in_case_are_a_header() {
    let case = LoadCase::new("create table two (\"ID\" int, id int, name text)");
    case.put("t.csv", "ID,id,name\n1,2,x\n3,4,y\n");
    case.load("t.csv --table new --create --quiet").success();
    case.load("t.csv --table two --quiet").success();
    for table in ["new", "two"] {
        assert_eq!(case.rows(table), ["(1,2,x)", "(3,4,y)"], "{table}");
    }
    // The names match exactly, in whatever order.
    case.put("turned.csv", "name,id,ID\nz,6,5\n");
    case.load("turned.csv --table two --quiet").success();
    assert_eq!(case.value("select \"ID\" from two where name = 'z'"), "5");
}

#[test]
fn a_name_that_matches_a_column_only_without_case_is_refused_if_another_name_matches_exactly() {
    let case = LoadCase::new("create table t (id int, name text)");
    case.put("t.csv", "ID,id,name\n1,2,x\n3,4,y\n");
    assert_snapshot!(case.refusal("t.csv --table t"), @r#"
    error: field "ID" matches no column of "t" exactly, and field "id" differs from it in
          … case only

    hint: Name the columns for the input's fields with `--columns a,b,...`.
    "#);
    // Which of the two is meant is not guessed.
    let said = case.refusal("t.csv --table t --ignore-unknown");
    assert!(said.contains("differs from it in"), "{said}");
    // Without a twin, upper and lower case do not matter.
    case.put("upper.csv", "ID,NAME\n5,z\n");
    case.load("upper.csv --table t --quiet").success();
    assert_eq!(case.value("select name from t where id = 5"), "z");
}

#[test]
fn a_mistyped_table_is_asked_about() {
    let case = LoadCase::new(
        "create table customers (id int); create schema sales; create table sales.orders (id int)",
    );
    case.put("t.csv", "id\n1\n");
    let hint = |table: &str| {
        let said = case.refusal(&format!("t.csv --table {table}"));
        said.split_once("hint: ").unwrap().1.to_owned()
    };
    assert!(hint("custmers").starts_with("Did you mean table customers? `--create` would"));
    assert!(hint("sales.order").starts_with("Did you mean table sales.orders? "));
    assert!(hint("ordres").starts_with("Did you mean table sales.orders? "));
    assert!(hint("weather").starts_with("`--create` would create it with:"));
}

#[test]
fn texts_for_people_beside_the_data_are_named_and_skipped() {
    let case = LoadCase::new("create table t (id int)");
    case.put("land/README.md", "# Orders\n\nTwo files, of two days.\n");
    case.put("land/a.csv", "id\n1\n");
    case.put("land/a.csv.sha256", "0123  a.csv\n");
    case.put("land/b.csv", "id\n2\n");
    let plan = case.load("land --table t --plan").stdout;
    let note = "skipped \"land/README.md\" and 1 other file: not data, by the name";
    assert!(plan.contains(note), "{plan}");
    let run = case.load("land --table t --json --quiet");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((&report["inputs"], &report["rows_written"]), (&2.into(), &2.into()));
    assert!(report["warnings"].to_string().contains("skipped"), "{report}");
    let again = case.load("land --table t --restart");
    assert_eq!(again.stderr.matches("README.md").count(), 1, "{}", again.stderr);
    // A file that the user names is read.
    let named = case.refusal("land/README.md land/b.csv --table t");
    assert!(named.contains("land/README.md"), "{named}");
}

/// Fields go by their order, so a header in another order than `--columns` may be a mistake.
#[test]
fn names_in_another_order_than_columns_are_said() {
    let case = LoadCase::new("create table t (id text, name text)");
    case.put("t.csv", "id,name\n1,x\n");
    case.put("t.json", "{\"id\":2,\"name\":\"y\"}\n");
    let said = |args: &str| case.load(&format!("{args} --table t --restart")).stderr;
    let warning =
        "field \"id\" is loaded into column \"name\", because `--columns` goes by the order";
    assert!(said("t.csv --quiet --columns name,id").contains(warning));
    for args in ["t.csv --columns ID,name", "t.json --columns name,id"] {
        assert!(!said(args).contains("is loaded into column"), "{args}");
    }
    assert_eq!(case.rows("t"), ["(1,x)", "(2,y)", "(x,1)"]);
}

#[test]
fn names_that_are_too_long_are_those_that_the_server_keeps() {
    let case = LoadCase::new("");
    let name = format!("{}é", "x".repeat(62));
    let long = format!("{name}yz");
    case.put("t.csv", format!("id,{long}\n1,a\n"));
    case.put("t.json", format!("{{\"id\":1,\"{long}\":\"a\"}}\n"));
    for file in ["t.csv", "t.json"] {
        let load = format!("{file} --quiet --restart --table");
        case.load(&format!("{load} t --create --type {long}=varchar(9)")).success();
        case.load(&format!("{load} t --add-columns")).success();
        assert_eq!(
            case.columns(),
            format!("id bigint, {} character varying(9)", "x".repeat(62)),
            "{file}"
        );
        case.db.run("create table u (id int)");
        case.load(&format!("{load} u --add-columns")).success();
        assert_eq!([case.rows("t").len(), case.rows("u").len()], [2, 1], "{file}");
        case.db.run("drop table t, u");
    }
    case.put("u.json", format!("{{\"{name}1\":1,\"{name}2\":2}}\n"));
    // Messages are longer than a line.
    let refusal = |args: &str| {
        let run = case.load(&format!("{args} --quiet"));
        assert_eq!(run.status, Some(2), "{}", run.stderr);
        run.stderr
    };
    let said = refusal("u.json --table u --create");
    assert!(said.contains("the input has two columns") && said.contains("63 bytes"), "{said}");
    case.db.run(&format!("create table u (id int, {} int)", "x".repeat(62)));
    let said = refusal("u.json --table u");
    assert!(said.contains("is named more than once"), "{said}");
    // Only a later record has the second key.
    let more = format!("{{\"{name}1\":1}}\n").repeat(40_000);
    case.put("v.json", format!("{more}{{\"{name}2\":2}}\n"));
    let said = refusal("v.json --table u --ignore-unknown");
    assert!(said.contains("is named more than once"), "{said}");
    assert_eq!(case.rows("u"), Vec::<String>::new());
}
