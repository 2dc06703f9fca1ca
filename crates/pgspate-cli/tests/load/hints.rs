//! Tests that errors of files as people have them say what to do.

use insta::assert_snapshot;

use crate::support::{LoadCase, finish, spawn};

fn new_case() -> LoadCase {
    LoadCase::new("create table t (id int, name text)")
}

#[test]
fn a_first_record_that_is_not_json_is_no_record_without_columns() {
    let case = new_case();
    case.put("t.json", "{\"id\":1,\"name\":NaN}\n");
    assert_snapshot!(case.refusal("t.json"), @"
    error: could not read the first record: it is not valid JSON, or too long
      at: t.json

    hint: JSON has no NaN and no Infinity: write null. Keys and strings need double quotes.
          … The first record may have up to 1 MiB.
    ");
    let created = case.refusal("t.json --table made --create");
    assert_eq!(created, case.refusal("t.json"));
    case.put("quotes.json", "{'id':1}");
    assert!(case.refusal("quotes.json --table t").contains("not valid JSON"));
    case.put("empty.json", "{}\n");
    assert!(case.refusal("empty.json --table t").contains("no field of the input"));
}

#[test]
fn a_file_whose_lines_differ_in_their_delimiters_is_refused() {
    let case = new_case();
    let line = |nth: u32| match nth {
        ..4 => format!("{nth};n{nth}\n"),
        _ => format!("{nth};n{nth};{}\n", nth * 2),
    };
    let rows: String = (0..10).map(line).collect();
    case.put("t.csv", format!("id;name;amount\n{rows}"));
    assert_snapshot!(case.refusal("t.csv --create --table made"), @r#"
    error: could not detect the delimiter: most lines have ";", but in different numbers
      at: t.csv

    hint: Name the delimiter, for example `--delimiter ';'`. If each line is one field,
          … name the comma.
    "#);
    let named = case.refusal("t.csv --create --table made --delimiter ;");
    assert!(named.contains("missing data for column \"amount\""), "{named}");
    case.load("t.csv --create --table made --delimiter ,").success();
    assert_eq!(case.value("select count(*) from made"), "11");
    // A table of one column takes whole lines.
    case.db.run("create table lines (line text)");
    case.load("t.csv --table lines --header no").success();
    assert_eq!(case.value("select count(*) from lines"), "11");
}

/// With the wrong one of them, parts of values would be in other columns.
#[test]
fn a_file_that_two_delimiters_fit_is_refused() {
    let case = LoadCase::new("create table t (id text, low text, high text)");
    case.put("t.csv", "x1;1,1;2,5\n".repeat(5));
    assert_snapshot!(case.refusal("t.csv --table t"), @r#"
    error: could not detect the delimiter: "," and ";" both occur equally often in each line
      at: t.csv

    hint: Name the delimiter, for example `--delimiter ';'`.
    "#);
    case.load("t.csv --table t --delimiter ;").success();
    assert_eq!(case.rows("t"), ["(x1,\"1,1\",\"2,5\")"; 5]);
    // The header has one of them.
    case.put("u.csv", format!("id;low;high\n{}", "x2;1,1;2,5\n".repeat(5)));
    case.load("u.csv --table t").success();
    assert_eq!(case.value("select count(*) from t where high = '2,5'"), "10");
}

#[test]
fn a_decimal_comma_says_how_to_convert_it() {
    let case = LoadCase::new("create table t (id int, amount numeric)");
    case.put("t.csv", "id;amount\n1;1.234,50\n");
    assert_snapshot!(case.refusal("t.csv --table t"), @r#"
    error: could not load "t.csv" into public.t
      caused by: invalid input syntax for type numeric: "1.234,50" (SQLSTATE 22P02)
      at: t.csv, line 2, byte 10, column "amount"

    hint: The number has a decimal comma. Load the column as text, and convert it on the
          … server: `replace(replace(COLUMN, '.', ''), ',', '.')::numeric`.
    "#);
}

#[test]
fn skipping_every_field_says_what_was_skipped() {
    let case = new_case();
    case.put("t.csv", "a,b\n1,2\n");
    let said = case.refusal("t.csv --ignore-unknown --table t");
    assert!(said.contains("no field of the input is a column of \"t\""), "{said}");
    assert!(said.contains("`--ignore-unknown` skips fields"), "{said}");
}

#[test]
fn empty_lines_and_other_line_ends_say_what_removes_them() {
    let case = new_case();
    case.put("t.csv", "id,name\n1,a\n\n2,b\n");
    assert_snapshot!(case.refusal("t.csv"), @r#"
    error: could not load "t.csv" into public.t
      caused by: missing data for column "name"
      at: t.csv, line 3, byte 12

    hint: Expected 2 fields, found 1. The line is empty. Skip such lines with
          … `--skip-blank-lines`.
    "#);
    case.load("t.csv --skip-blank-lines").success();
    case.put("above.csv", "\n\nid,name\n1,a\n");
    for args in ["--table t", "--create", "--table t --header yes", "--table t --header no"] {
        let said = case.refusal(&format!("above.csv {args}"));
        assert!(said.contains("The first line is empty"), "{args}: {said}");
    }
    case.load("above.csv --table t --skip-blank-lines").success();
    for (text, how) in [
        ("id,name\r\n1,a\n", "`tr -d '\\r'` makes all of them newlines"),
        ("id,name\n1,a\r\n", "`tr -d '\\r'` makes all of them newlines"),
        ("id,name\r1,a\n", "`tr '\\r' '\\n'` makes all of them newlines"),
    ] {
        case.put("u.csv", text);
        let said = case.refusal("u.csv --table t --header yes").replace("\n      … ", " ");
        assert!(said.contains(how), "{text:?}: {said}");
    }
}

#[test]
fn nul_bytes_say_what_removes_them() {
    let case = new_case();
    case.put("t.csv", "id,name\n1,a\0\n");
    for args in ["t.csv", "t.csv --format csv"] {
        let said = case.refusal(args);
        assert!(said.contains("`tr -d '\\000'` removes them"), "{args}: {said}");
    }
    case.put("t.bin", b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0\xff\xff");
    let said = case.refusal("t.bin --table t");
    assert!(said.contains("`\\copy TABLE from FILE (format binary)`"), "{said}");
}

#[test]
fn a_header_before_a_long_line_is_not_called_the_only_line() {
    let case = LoadCase::new("");
    case.put("t.csv", format!("id,name\n1,{}\n", "x".repeat(2 << 20)));
    let said = case.refusal("t.csv --create").replace("\n      … ", " ");
    assert!(said.contains("the first 256 KiB have no other whole line"), "{said}");
    case.load("t.csv --create --header yes").success();
    assert_eq!(case.value("select length(name) from t"), (2 << 20).to_string());
}

#[test]
fn a_file_with_another_delimiter_in_a_folder_is_told() {
    let case = new_case();
    case.put("land/a.csv", "id,name\n1,a\n");
    case.put("land/b.csv", "id;name\n2;b\n");
    assert_snapshot!(case.refusal("land --table t"), @r#"
    error: could not load "land/a.csv" and 1 more into public.t
      caused by: the header differs from the header of the first input: field "id" is
          … missing
      at: land/b.csv, line 1

    hint: The line is delimited by ";", other than the first input. Load such inputs apart
          … from the others.
    "#);
}

/// A service that has no records answers `[]`, and one that fails may answer with anything.
#[test]
fn json_without_objects_is_no_rows_or_a_refused_record() {
    let case = new_case();
    for (text, refused) in [
        ("[]", None),
        (" [ ]\n", None),
        ("5\n", Some("expected a JSON object or array")),
        ("\"x\"", Some("expected a JSON object or array")),
        ("null", Some("expected a JSON object or array")),
    ] {
        case.put("t.json", text);
        match refused {
            None => drop(case.load("t.json --table t --restart").success()),
            Some(message) => {
                let said = case.refusal("t.json --table t");
                assert!(said.contains(message) && said.contains("line 1"), "{text}: {said}");
            }
        }
        let said = case.refusal("t.json --table made --create");
        assert!(said.contains("the input has no objects"), "{text}: {said}");
    }
    assert_eq!(case.rows("t"), Vec::<String>::new());
    case.put("t.json", "{\"id\": 1, \"name\": \"\\ud800\"}");
    let said = case.refusal("t.json --table t");
    assert!(said.contains("`--rejects FILE` sets such records aside"), "{said}");
}

#[test]
fn bytes_of_windows_name_its_encoding() {
    let case = LoadCase::new("create table t (id int, note text)");
    case.put("t.csv", b"id,note\n1,\x93quoted\x94\n");
    assert!(case.refusal("t.csv").contains("WIN1252"));
    case.put("t.csv", b"id,note\n1,caf\xe9\n");
    assert!(case.refusal("t.csv").contains("WIN1252"));
}

#[test]
fn a_row_that_was_taken_for_a_header_has_a_hint() {
    let case = LoadCase::new("create table t (a text, b text)");
    case.put("t.csv", "apple,red\nbanana,yellow\n");
    let said = case.refusal("t.csv");
    assert!(said.contains("`--header no`"), "{said}");
}

#[test]
fn names_that_the_header_does_not_have_are_explained() {
    let case = new_case();
    case.put("t.csv", "id,name,id\n1,a,2\n");
    assert_snapshot!(case.refusal("t.csv"), @r#"
    error: column "id_2" of relation "t" does not exist

    hint: The header has "id" more than once. Name the columns for the input's fields with
          … `--columns a,b,...`, skip fields without a column with `--ignore-unknown`, or
          … add columns with `--add-columns`.
    "#);
    case.put("t.csv", "id,name,\n1,a,2\n");
    assert!(case.refusal("t.csv").contains("Field 3 of the header has no name."));
    case.put("t.csv", "id,name,id_2\n1,a,2\n");
    assert!(!case.refusal("t.csv").contains("The header"));
}

#[test]
fn names_that_are_columns_in_snake_case_have_a_hint() {
    let case = LoadCase::new("create table t (order_id int, note text)");
    case.put("t.csv", "Order ID,note\n1,a\n");
    assert_snapshot!(case.refusal("t.csv"), @r#"
    error: column "Order ID" of relation "t" does not exist

    hint: `--snake-case` reads this name as "order_id". Name the columns for the input's
          … fields with `--columns a,b,...`, skip fields without a column with
          … `--ignore-unknown`, or add columns with `--add-columns`.
    "#);
    case.load("t.csv --snake-case --quiet").success();
    assert_eq!(case.rows("t").len(), 1);
}

#[test]
fn a_header_of_years_is_not_a_row() {
    let case = LoadCase::new("");
    case.put("t.csv", "country,2019,2020,2021\nfr,1,2,3\nde,4,5,6\n");
    let said = case.refusal("t.csv --create");
    assert!(said.contains("successive years") && said.contains("`--header yes`"), "{said}");
    case.load("t.csv --create --header yes --quiet").success();
    assert_eq!(case.columns(), "country text, 2019 bigint, 2020 bigint, 2021 bigint");
    // Rows of years are rows.
    case.put("u.csv", "2019,2020\n2020,2021\n2021,2022\n");
    case.load("u.csv --create --quiet").success();
    assert_eq!(case.value("select count(*) from u"), "3");
}

#[test]
fn lines_above_the_header_have_a_hint() {
    let case = LoadCase::new("create table t (id int, note text)");
    case.put("t.csv", "sep=;\r\nid;note\r\n1;x\r\n");
    let refusal = |args: &str| case.refusal(args).replace("\n      … ", " ");
    let said = refusal("t.csv");
    assert!(said.contains("`sep=;`") && said.contains("--delimiter ';'"), "{said}");
    for (title, hint) in [("Report of May", "tail -n +2"), ("# report", "`--comment '#'`")] {
        case.put("t.csv", format!("{title}\nid,note\n1,x\n2,y\n"));
        for args in ["t.csv", "t.csv --table new --create"] {
            let said = refusal(args);
            assert!(said.contains(hint), "{args}: {said}");
        }
    }
    case.load("t.csv --comment # --quiet").success();
    assert_eq!(case.rows("t"), ["(1,x)", "(2,y)"]);
}

#[test]
fn a_json_file_beside_csv_files_is_named() {
    let case = LoadCase::new("create table t (id int, note text)");
    case.put("land/a.csv", "id,note\n1,x\n");
    case.put("land/b.json", "{\"id\":2,\"note\":\"y\"}\n");
    let said = case.refusal("land --table t");
    assert!(said.contains("the format is json") && said.contains("b.json"), "{said}");
}

#[test]
fn a_text_beside_csv_files_has_the_hint_of_a_pattern() {
    let case = LoadCase::new("create table t (id int, note text)");
    case.put("land/m.csv", "id,note\n1,x\n");
    for name in ["land/a_notes.txt", "land/notes.txt"] {
        case.put(name, "some words\nand more of them here\n");
        let said = case.refusal("land --table t").replace("\n      … ", " ");
        let hint = format!("If \"{name}\" is not data, name the other files by a pattern:");
        assert!(said.contains(&hint) && said.contains("`'land/*.csv'`"), "{name}: {said}");
        std::fs::remove_file(case.path(name)).unwrap();
    }
}

#[test]
fn backups_beside_data_are_skipped_and_named() {
    let case = LoadCase::new("create table t (id int, note text)");
    case.put("land/a.csv", "id,note\n1,x\n");
    case.put("land/a.csv.bak", "id,note\n1,x\n");
    let run = case.load("land --table t --quiet --json");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    assert!(run.stdout.contains("skipped \\\"land/a.csv.bak\\\""), "{}", run.stdout);
    assert_eq!(case.rows("t"), ["(1,x)"]);
}

#[test]
fn values_between_apostrophes_name_the_option_for_quotes() {
    let case = new_case();
    case.put("t.csv", "id,name\n1,'a,b'\n2,'c'\n");
    assert_snapshot!(case.refusal("t.csv --table t"), @r#"
    error: could not load "t.csv" into public.t
      caused by: extra data after last expected column
      at: t.csv, line 2, byte 8

    hint: Expected 2 fields, found 3. If apostrophes quote values in this input, use
          … `--quote "'"`.
    "#);
    case.load("t.csv --table t --quote '").success();
    assert_eq!(case.rows("t"), ["(1,\"a,b\")", "(2,c)"]);
    case.put("plain.csv", "id,name\n1,it's,so\n");
    assert!(!case.refusal("plain.csv --table t").contains("apostrophes"));
}

#[test]
fn a_table_cannot_be_created_in_a_schema_that_does_not_exist() {
    let case = new_case();
    case.put("t.csv", "id\n1\n");
    assert_snapshot!(case.refusal("t.csv --create --table staging.t"), @r#"
    error: could not create table staging.t
      caused by: schema "staging" does not exist (SQLSTATE 3F000)

    hint: Create the schema first, with `create schema ...`.
    "#);
}

#[test]
fn row_level_security_says_which_role_can_load() {
    let case = LoadCase::new("create table guarded (id int)");
    case.put("t.csv", "1\n");
    let role = format!("{}_guarded", case.db.name());
    case.db.run(&format!(
        "create role {role} login; grant select, insert on guarded to {role}; \
         alter table guarded enable row level security"
    ));
    let dsn = format!("{} options='-c role={role}'", case.db.dsn());
    let args = ["load", "--to", &dsn, "t.csv", "-t", "guarded", "-q", "--no-ledger"];
    assert_snapshot!(finish(spawn(&mut case.command(&args))).refusal(), @r#"
    error: could not load "t.csv" into public.guarded
      caused by: COPY FROM not supported with row-level security (SQLSTATE 0A000)

    hint: Load as a role that sees all rows of the table: `alter role ... bypassrls`.
    "#);
    case.db.run(&format!("drop owned by {role}; drop role {role}"));
}
