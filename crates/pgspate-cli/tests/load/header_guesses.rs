//! Tests that a first line which may be a header or a row is neither lost nor written silently.

use insta::assert_snapshot;

use crate::support::LoadCase;

/// A line of words alone is a row for `\copy`, and a header for most exports.
#[test]
fn one_line_that_names_other_columns_is_not_a_row_of_a_table() {
    let case = LoadCase::new("create table t (id text, name text)");
    case.put("t.csv", "person,full name\n");
    for args in ["", "--columns id,name", "--ignore-unknown", "--add-columns"] {
        let said = case.refusal(&format!("t.csv --table t {args}"));
        assert!(said.contains("hint: Say so with `--header yes`, or `--header no`"), "{said}");
    }
    assert_snapshot!(case.refusal("t.csv --table t --columns id,name"), @"
    error: could not tell whether the first line names the columns: there is only one line
      at: t.csv

    hint: Say so with `--header yes`, or `--header no` if it is a row.
    ");
    assert_eq!(case.rows("t"), Vec::<String>::new());
    case.load("t.csv --table t --columns id,name --header yes").success();
    assert_eq!(case.rows("t"), Vec::<String>::new());
    case.load("t.csv --table t --columns id,name --header no --restart").success();
    assert_eq!(case.rows("t"), ["(person,\"full name\")"]);
    // Names of the table are a header, and values are a row.
    case.put("u.csv", "id,name\n");
    case.load("u.csv --table t").success();
    case.put("v.csv", "1,name\n");
    case.load("v.csv --table t").success();
    assert_eq!(case.rows("t").len(), 2);
}

/// With `--columns`, names in a header do not count, so a row taken for a header would be lost.
#[test]
fn a_row_of_words_is_not_lost_as_a_header() {
    let case = LoadCase::new("create table t (a text, b text)");
    case.put("t.csv", "apple,red\nbanana,yellow\n");
    for args in ["--columns a,b", "--ignore-unknown", "--add-columns"] {
        let said = case.refusal(&format!("t.csv --table t {args}"));
        assert!(said.contains("columns: all columns are text"), "{said}");
    }
    // Without these options, the names are compared with those of the table.
    let said = case.refusal("t.csv --table t");
    assert!(said.contains("\"apple\""), "{said}");
    case.load("t.csv --table t --columns a,b --header no").success();
    assert_eq!(case.rows("t"), ["(apple,red)", "(banana,yellow)"]);
    // A header that has one of the names is known.
    case.put("u.csv", "b,more,yet\nx,y,z\n");
    case.load("u.csv --table t --ignore-unknown").success();
    assert_eq!(case.value("select count(*) from t"), "3");
}

#[test]
fn a_header_that_may_be_a_row_of_a_new_table_is_said() {
    let case = LoadCase::new("");
    case.put("t.csv", "apple,red\nbanana,yellow\n");
    let run = case.load("t.csv --table t --create --quiet --json");
    let warning = "the first line was taken for the names of the columns, although all columns \
                   are text; if it is a row, load with `--header no`";
    assert_eq!((run.status, run.stderr), (Some(0), format!("warning: {warning}\n")));
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["warnings"], serde_json::json!([warning]));
    let input = report["input"].as_array().unwrap();
    assert!(input.iter().any(|it| it.as_str().unwrap().starts_with("header yes:")), "{input:?}");
    let plan = case.load("t.csv --table u --create --plan --json").stdout;
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    assert_eq!(plan["warnings"], serde_json::json!([warning]));
    // Who says whether there is a header is not warned, and neither is who has values below it.
    for args in ["t.csv --table v --header yes", "t.csv --table w --header no"] {
        assert_eq!(case.load(&format!("{args} --create --quiet")).success(), "");
    }
    case.put("x.csv", "name,weight\napple,3\n");
    assert_eq!(case.load("x.csv --create --quiet").success(), "");
}

/// A header of a later file is not a row, and a row is not a header.
#[test]
fn files_that_disagree_on_the_header_are_refused() {
    let case = LoadCase::new("create table t (id text, note text)");
    case.put("a.csv", "1,x\n2,y\n");
    case.put("b.csv", "id,note\n3,z\n4,z\n");
    for args in ["--table t", "--table t --columns id,note", "--table new --create"] {
        for files in ["a.csv b.csv", "b.csv a.csv"] {
            let said = case.refusal(&format!("{files} {args}"));
            let [first, later] = [0, 1].map(|nth| files.split(' ').nth(nth).unwrap());
            assert!(said.contains(&format!("\"{first}\"")), "{said}");
            assert!(said.contains(&format!("at: {later}")), "{said}");
            assert!(said.contains("`--header yes`, or `--header no`"), "{said}");
        }
    }
    assert_snapshot!(case.refusal("a.csv b.csv --table t"), @r#"
    error: could not load "a.csv" and 1 more into public.t
      caused by: the first line seems to name the columns, but the first line of "a.csv" is
          … a row
      at: b.csv

    hint: Say what holds for all files: `--header yes`, or `--header no` if the first line
          … is a row. Or load such files apart from the others.
    "#);
    // One name alone, and a header without rows.
    case.put("c.csv", "id,note\n");
    let said = case.refusal("a.csv c.csv --table t");
    assert!(said.contains("at: c.csv"), "{said}");
    case.load("a.csv b.csv --table t --header no --quiet").success();
    assert_eq!(case.value("select count(*) from t"), "5");
    // Files that agree are loaded, empty files among them.
    case.db.run("truncate t");
    case.put("d.csv", "");
    case.put("e.csv", "note,id\nu,5\n");
    case.load("b.csv c.csv d.csv e.csv --table t --quiet").success();
    assert_eq!(case.rows("t"), ["(3,z)", "(4,z)", "(5,u)"]);
    case.put("f.csv", "6,v\n");
    case.load("a.csv d.csv f.csv --table t --quiet --restart").success();
    assert_eq!(case.value("select count(*) from t"), "6");
    // Words alone may be rows, and are no header of another file.
    case.db.run("truncate t");
    case.put("g.csv", "x,y\nu,v\n");
    case.put("h.csv", "w,z\nn,m\n");
    case.load("g.csv h.csv --table t --columns id,note --header no --quiet --restart").success();
    case.load("a.csv h.csv --table t --quiet --restart").success();
    assert_eq!(case.value("select count(*) from t"), "8");
    // With `--columns` the names of headers do not count.
    case.put("i.csv", "nr,text\n7,x\n");
    case.put("j.csv", "number,words\n8,x\n");
    case.load("i.csv j.csv --table t --columns id,note --quiet --restart").success();
    assert_eq!(case.value("select count(*) from t"), "10");
}

#[test]
fn files_that_disagree_on_null_or_escape_are_refused() {
    let case = LoadCase::new("create table t (id int, note text)");
    case.put("a.csv", "id,note\n1,x\n2,\"y\"\n");
    case.put("b.csv", "id,note\n3,\\N\n");
    case.put("c.csv", "id,note\n4,\"a \\\"b\\\" c\"\n");
    let said = case.refusal("a.csv b.csv --table t");
    assert!(said.contains("some fields are \\N") && said.contains("--null '\\N'"), "{said}");
    let said = case.refusal("a.csv c.csv --table t");
    assert!(said.contains("at: c.csv") && said.contains("`--escape '\\'`"), "{said}");
    // Files without quotes in quotes have no escape of their own.
    case.put("d.csv", "id,note\n5,\"a \"\"b\"\" c\"\n");
    let said = case.refusal("c.csv d.csv --table t");
    assert!(said.contains("at: d.csv") && said.contains("`--escape '\"'`"), "{said}");
    case.load("c.csv a.csv --table t --quiet --restart").success();
    assert_eq!(case.value("select note from t where id = 4"), "a \"b\" c");
    case.db.run("truncate t");
    case.load("a.csv b.csv --table t --null \\N --quiet --restart").success();
    assert_eq!(case.value("select count(*) from t where note is null"), "1");
}

/// The header of the first file is certain, and the first line of the second file is a row.
#[test]
fn a_row_of_a_later_file_is_not_lost_as_a_header() {
    let case = LoadCase::new("create table t (a text, b text)");
    case.put("a.csv", "a,b\nx,y\n");
    case.put("b.csv", "alice,berlin\nbob,rome\n");
    let said = case.refusal("a.csv b.csv --table t --columns a,b");
    assert!(said.contains("the first line is not the header of \"a.csv\""), "{said}");
}

/// With `--columns`, nothing compares the names of a header.
#[test]
fn a_first_line_without_a_name_of_columns_is_said() {
    let case = LoadCase::new("create table t (code text, name text)");
    case.put("t.csv", "ABC,Widget\n1001,Gadget\n1002,Foo\n");
    let warning = "has none of the names of `--columns`";
    let said = case.load("t.csv --table t --columns code,name").stderr;
    assert!(said.contains(warning), "{said}");
    for header in ["yes", "no"] {
        let args = format!("t.csv --table t --columns code,name --header {header} --restart");
        let said = case.load(&args).stderr;
        assert!(!said.contains(warning), "{said}");
    }
    assert_eq!(case.value("select count(*) from t where code = 'ABC'"), "1");
}

/// Names may have letters of any language, and the marks that people write.
#[test]
fn a_header_in_any_language_is_no_row() {
    for names in ["Prénom,Ville", "имя,город", "名前,都市", "Name (full),City/Town", "Won %,Team #"]
    {
        let case = LoadCase::new("create table t (a text, b text)");
        case.put("t.csv", format!("{names}\nZoé,Orléans\nBob,Paris\n"));
        let said = case.load("t.csv --table made --create").stderr;
        assert!(said.contains("warning: the first line"), "{names}: {said}");
        let columns = "select string_agg(attname, ',' order by attnum) from pg_attribute \
                       where attrelid = 'made'::regclass and attnum > 0";
        assert_eq!(case.value(columns), names);
        assert_eq!(case.value("select count(*) from made"), "2");
        // The table has other names, so the line may be a row.
        case.refusal("t.csv --table t");
        assert!(case.rows("t").is_empty(), "{names}");
    }
}

#[test]
fn a_short_first_line_is_no_header_of_columns_that_are_named() {
    let case = LoadCase::new("create table t (a text, b text)");
    case.put("t.text", "x\n1\t2\n");
    assert_snapshot!(case.refusal("t.text --table t --format text --columns a,b"), @"
    error: could not tell whether the first line names the columns: it has 1 field, and
          … most other lines have 2
      at: t.text

    hint: Say so with `--header yes`, or `--header no` if it is a row.
    ");
    case.load("t.text --table t --format text --columns a,b --header yes").success();
    assert_eq!(case.rows("t"), ["(1,2)"]);
}
