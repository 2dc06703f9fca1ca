//! Tests of `--date-format`: dates and timestamps that are not written in ISO format.

use insta::assert_snapshot;

use crate::support::LoadCase;

const TABLE: &str = "create table t (id int, day date, at timestamp, note text)";

#[test]
fn dates_are_read_in_the_format_and_null_stays_null() {
    let csv = "id;day;at;note\n1;31.12.2024;1/2/99 3:04 PM;01.02.2024\n2;;;\n3;\"1.2.2024\";;x\n";
    let text =
        "1\t31.12.2024\t1/2/99 3:04 PM\t01.02.2024\n2\t\\N\t\\N\t\\N\n3\t\\x31.2.2024\t\\N\tx\n";
    let json = "{\"id\":1,\"day\":\"31.12.2024\",\"at\":\"1\\/2\\/99 3:04 PM\",\
                \"note\":\"01.02.2024\"}\n\
                {\"id\":2,\"day\":null}\n{\"id\":3,\"day\":\"1.2.2024\",\"note\":\"x\"}\n";
    for (format, content) in [("csv", csv), ("text", text), ("json", json)] {
        // A statement trigger makes all rows text. An id with a space is left to the server.
        for (trigger, id) in [
            ("", "1"),
            ("create trigger t before insert on t execute function f()", "1"),
            ("", " 1 "),
        ] {
            if format == "json" && id != "1" {
                continue;
            }
            let case = LoadCase::new(&format!(
                "{TABLE}; create function f() returns trigger language plpgsql \
                 as 'begin return null; end'; {trigger}"
            ));
            // A DateStyle under which the same text is another day.
            let database = case.value("select current_database()");
            case.db.run(&format!("alter database {database} set datestyle = 'ISO, MDY'"));
            case.put("t", content.replacen("\n1", &format!("\n{id}"), 1));
            let mut command = case.load_command(&format!("t --table t --quiet --format {format}"));
            command.args(["--date-format", "%d.%m.%Y", "--date-format", "at=%m/%d/%y %I:%M %p"]);
            crate::run::finish(crate::run::spawn(&mut command)).success();
            assert_eq!(
                case.rows("t"),
                [
                    "(1,2024-12-31,\"1999-01-02 15:04:00\",01.02.2024)",
                    "(2,,,)",
                    "(3,2024-02-01,,x)"
                ],
                "{format} {trigger} {id}"
            );
        }
    }
}

#[test]
fn a_date_that_the_server_cannot_read_is_hinted_at_the_option() {
    let case = LoadCase::new(TABLE);
    for (name, text, hint) in [
        (
            "t.csv",
            "id,day\n1,31/12/2024\n",
            "`--date-format %d/%m/%Y` reads dates such as 31/12/2026.",
        ),
        (
            "t.csv",
            "id,day\n1,31.12.2024\n",
            "`--date-format %d.%m.%Y` reads dates such as 31.12.2026.",
        ),
        (
            "t.json",
            "{\"id\":1,\"day\":\"31-12-2024\"}\n",
            "`--date-format %d-%m-%Y` reads dates such as 31-12-2026.",
        ),
    ] {
        case.put(name, text);
        let said = case.refusal(&format!("{name} --table t")).replace("\n      … ", " ");
        // PostgreSQL 18 writes the setting as `DateStyle`.
        let is_servers = said.to_lowercase().contains("different \"datestyle\" setting");
        assert!(is_servers && said.contains(hint), "{said}");
    }
    case.put("t.csv", "id,day\n1,2024-02-30\n");
    let said = case.refusal("t.csv --table t");
    assert!(!said.contains("--date-format"), "{said}");
}

#[test]
fn a_value_without_the_format_is_refused_with_its_place() {
    let case = LoadCase::new(TABLE);
    case.put("t.csv", "id,day\n1,31.12.2024\n2,12/31/2024\n");
    assert_snapshot!(case.refusal("t.csv --table t --date-format %d.%m.%Y"), @r#"
    error: could not load "t.csv" into public.t
      caused by: "12/31/2024" does not have the date format "%d.%m.%Y"
      at: t.csv, line 3, byte 20, column "day"

    hint: Give a column another format with `--date-format COLUMN=FORMAT`.
    "#);
    // No year has such a month.
    case.put("t.csv", "id,day\n1,02/13/2024\n2,13/02/2024\n");
    for args in ["t.csv --table t", "t.csv --table new --create"] {
        let said = case.refusal(&format!("{args} --date-format %m/%d/%Y"));
        let what = "\"13/02/2024\" does not have the date format \"%m/%d/%Y\"";
        assert!(said.contains(what) && !said.contains("datestyle"), "{args}: {said}");
    }
    // The server says which days do not exist.
    case.put("t.csv", "id,day\n1,31.12.2024\n2,31.02.2024\n");
    assert_snapshot!(case.refusal("t.csv --table t --date-format %d.%m.%Y"), @r#"
    error: could not load "t.csv" into public.t
      caused by: date/time field value out of range: "2024-02-31" (SQLSTATE 22008)
      at: t.csv, line 3, byte 20, column "day"
    "#);
    // ISO dates do not have the format, either.
    case.put("t.json", "{\"id\":1,\"day\":\"2024-12-31\"}\n");
    assert_snapshot!(case.refusal("t.json --table t --date-format %d.%m.%Y"), @r#"
    error: could not load "t.json" into public.t
      caused by: "2024-12-31" does not have the date format "%d.%m.%Y"
      at: t.json, line 1, byte 0, column "day"

    hint: Give a column another format with `--date-format COLUMN=FORMAT`.
    "#);
}

#[test]
fn the_first_refusal_is_reported_whoever_refuses() {
    let case = LoadCase::new(TABLE);
    for (content, line) in [
        ("id,day\n1,31.12.2024\nx,1.1.2024\n3,5\n", "line 3"),
        ("id,day\n1,31.12.2024\n2,5\nx,1.1.2024\n", "line 3"),
        ("id,day\n1,30.02.2024\n2,5\n", "line 2"),
    ] {
        case.put("t.csv", content);
        let said = case.refusal("t.csv --table t --date-format %d.%m.%Y");
        assert!(said.contains(line), "{content}: {said}");
    }
}

#[test]
fn rejected_dates_are_set_aside_as_they_are_in_the_file() {
    let case = LoadCase::new(TABLE);
    let csv = "id,day\n1,31.12.2024\n2,12/31/2024\n3,30.02.2024\n4,\nx,1.1.2024\n6,6.6.2024\n";
    case.put("t.csv", csv);
    let flags = "--table t --quiet --date-format %d.%m.%Y";
    case.load(&format!("t.csv {flags} --rejects bad.csv")).partial();
    let rejected = std::fs::read_to_string(case.path("bad.csv")).unwrap();
    assert_eq!(rejected, "id,day\n2,12/31/2024\n3,30.02.2024\nx,1.1.2024\n");
    let reasons = std::fs::read_to_string(case.path("bad.csv.json")).unwrap();
    let states: Vec<_> = reasons
        .lines()
        .map(|line| {
            let reason: serde_json::Value = serde_json::from_str(line).unwrap();
            format!("{} {} {}", reason["line"], reason["column"], reason["sqlstate"])
        })
        .collect();
    assert_eq!(states, ["3 \"day\" \"22007\"", "4 \"day\" \"22008\"", "6 \"id\" \"22P02\""]);
    assert_eq!(case.rows("t"), ["(1,2024-12-31,,)", "(4,,,)", "(6,2024-06-06,,)"]);
    case.put("u.json", "{\"id\":1,\"day\":\"1.1.24\"}\n{\"id\":2,\"day\":\"1.1.2024\"}\n");
    case.load(&format!("u.json {flags} --rejects bad.json --max-rejects 1")).partial();
    assert_eq!(case.value("select day from t where id = 2"), "2024-01-01");
}

#[test]
fn a_created_table_has_dates_if_the_sample_has_the_format() {
    let case = LoadCase::new("");
    case.put(
        "t.csv",
        "id,day,At,z,nr,code\n1,31.12.2024,1.2.2024 3:04,1.2.2024 3:04 +0200,20240101,x\n",
    );
    let mut command = case.load_command("t.csv --create --quiet --date-format %d.%m.%Y");
    command.args(["--date-format", "at=%d.%m.%Y %H:%M", "--date-format", "z=%d.%m.%Y %H:%M %z"]);
    crate::run::finish(crate::run::spawn(&mut command)).success();
    assert_eq!(
        case.columns(),
        "id bigint, day date, At timestamp without time zone, z timestamp with time zone, \
         nr bigint, code text"
    );
    case.db.run("drop table t; drop schema pgspate cascade");
    case.put("t.json", "{\"day\":20241231,\"n\":20241231,\"at\":\"31.12.2024\"}\n");
    case.load("t.json --create --quiet --date-format day=%Y%m%d --date-format %d.%m.%Y").success();
    assert_eq!(case.columns(), "day date, n bigint, at date");
    assert_eq!(case.rows("t"), ["(2024-12-31,20241231,2024-12-31)"]);
    // A column that the user names has dates, whatever the sample says.
    case.put("empty.csv", "id,day\n1,\n");
    case.load("empty.csv --create --quiet --date-format day=%d.%m.%Y").success();
    assert_eq!(case.value("select pg_typeof(day) from empty"), "date");
    case.put("wrong.csv", "id,day\n1,1/2/2024\n");
    let said = case.refusal("wrong.csv --create --date-format day=%d.%m.%Y");
    assert!(said.contains("does not have the date format"), "{said}");
    // A later value that does not have the format is not a reason to make the column text.
    let mut csv = "id,day\n".to_owned();
    (0..60_000).for_each(|id| csv += &format!("{id},31.12.2024\n"));
    case.put("late.csv", csv + "60000,2024-12-31\n");
    let said = case.refusal("late.csv --create --date-format %d.%m.%Y");
    assert!(
        said.contains("line 60002") && said.contains("does not have the date format"),
        "{said}"
    );
}

#[test]
fn wrong_formats_are_refused() {
    let case = LoadCase::new(TABLE);
    case.put("t.csv", "id,day\n1,31.12.2024\n");
    for (args, problem) in [
        ("--date-format DD.MM.YYYY", "a date format has a year (%Y or %y) once"),
        ("--date-format %d.%m.%Y --date-format %m/%d/%Y", "is given twice for all columns"),
        ("--date-format note=%d.%m.%Y", "the input has no column \"note\""),
        ("--date-format id=%d.%m.%Y", "is of type integer, not date"),
        ("--date-format dya=%d.%m.%Y", "Did you mean column \"day\"?"),
    ] {
        let said = case.refusal(&format!("t.csv --table t {args}"));
        assert!(said.replace("\n      … ", " ").contains(problem), "{args}: {said}");
    }
    case.put("n.csv", "id\n1\n");
    let plan = case.load("n.csv --table t --plan --date-format %d.%m.%Y").stdout;
    assert!(plan.contains("`--date-format` applies to no column"), "{plan}");
}

#[test]
fn a_file_is_not_skipped_if_its_dates_are_read_otherwise() {
    let case = LoadCase::new(TABLE);
    case.put("t.csv", "id,day\n1,01.02.2024\n");
    case.load("t.csv --table t --quiet --date-format %d.%m.%Y").success();
    case.load("t.csv --table t --quiet --date-format %d.%m.%Y").success();
    let said = case.refusal("t.csv --table t --date-format %m.%d.%Y");
    let changed = "date-format was \"%d.%m.%Y\" and is \"%m.%d.%Y\"";
    assert!(said.contains("with other options") && said.contains(changed), "{said}");
    let said = case.refusal("t.csv --table t --date-format day=%d.%m.%Y");
    let changed = "date-format was \"%d.%m.%Y\" and is \"day=%d.%m.%Y\"";
    assert!(said.contains(changed), "{said}");
    assert_eq!(case.rows("t"), ["(1,2024-02-01,,)"]);
}
