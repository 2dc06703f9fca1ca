//! Tests of columns that the input lacks: `--set` and `--file-name-column`.

use insta::assert_snapshot;

use crate::support::LoadCase;

/// The table of most tests. The date of the second row is a spelling that only the server reads, so
/// rows are binary and text.
const TABLE: &str =
    "create table t (file varchar(40), id int, day date, tenant int, note text default 'none')";
const CSV: &str = "id,day\n1,2024-02-29\n2,J2451187\n3,\n";
const ROWS: [&str; 3] =
    ["(a,1,2024-02-29,7,\"x\ty\")", "(a,2,1999-01-08,7,\"x\ty\")", "(a,3,,7,\"x\ty\")"];

#[test]
fn rows_of_all_formats_get_constants_and_the_name_of_their_file() {
    for (format, content) in [
        ("csv", CSV),
        ("csv", "1,2024-02-29\n2,J2451187\n3,\n"),
        ("text", "1\t2024-02-29\n2\tJ2451187\n3\t\\N\n"),
        (
            "json",
            "{\"day\":\"2024-02-29\",\"id\":1}\n{\"day\":\"J2451187\",\"id\":2}\n{\"id\":3}\n",
        ),
        ("json", "[1,\"2024-02-29\"]\n[2,\"J2451187\"]\n[3,null]\n"),
    ] {
        // A statement trigger makes all rows text.
        for trigger in ["", "create trigger t before insert on t execute function f()"] {
            let case = LoadCase::new(&format!(
                "{TABLE}; create function f() returns trigger language plpgsql \
                 as 'begin return null; end'; {trigger}"
            ));
            case.put("a", content);
            let names = if content.starts_with('[') { " --columns id,day" } else { "" };
            let mut command = case.load_command(&format!(
                "a --table t --quiet --format {format} --file-name-column FILE --set tenant=7 \
                 {names}"
            ));
            command.args(["--set", "note=x\ty"]);
            crate::run::finish(crate::run::spawn(&mut command)).success();
            let rows: Vec<_> = ROWS.iter().map(|row| (*row).to_owned()).collect();
            assert_eq!(case.rows("t"), rows, "{format} {content} {trigger}");
        }
    }
}

#[test]
fn a_time_of_the_clock_is_the_same_in_all_chunks() {
    let case = LoadCase::new("create table t (id text, at timestamptz, day date)");
    case.put("t.csv", format!("{:>99}\n", "a").repeat(150_000));
    let args = "t.csv --header no --columns id --commit chunk --set at=NOW --set day=today --quiet";
    case.load(args).success();
    let times = "select count(distinct at) || ' ' || count(distinct day) from t";
    assert_eq!(case.value(times), "1 1");
    assert_eq!(case.value("select count(distinct chunk) > 1 from pgspate.ledger"), "t");
}

#[test]
fn each_file_gives_its_own_name() {
    let case = LoadCase::new("create table t (id int, source text)");
    for name in ["land/a.csv", "land/b.csv", "land/c.csv"] {
        case.put(name, "id\n1\n2\n");
    }
    case.load("land/*.csv --table t --quiet --file-name-column source --lanes 2").success();
    let names = "select string_agg(source || ' ' || n, ', ' order by source) \
                 from (select source, count(*) n from t group by source) as counted";
    assert_eq!(case.value(names), "land/a.csv 2, land/b.csv 2, land/c.csv 2");
    // A file that is in the table is skipped, and a new one is not.
    case.put("land/d.csv", "id\n1\n");
    case.load("land/*.csv --table t --quiet --file-name-column source").success();
    assert_eq!(case.value("select count(*) from t where source = 'land/d.csv'"), "1");
    assert_eq!(case.value("select count(*) from t"), "7");
}

/// Folders of Hive and Spark hold the value of a column. Without a warning it would be lost.
#[test]
fn a_value_in_the_name_of_a_folder_is_told() {
    let case = LoadCase::new("create table t (id int, year int, month int, source text)");
    case.put("hive/year=2024/month=01/a.csv", "id\n1\n");
    case.put("hive/year=2024/month=02/b.csv", "id\n2\n");
    let warnings = |args: &str| {
        let run = case.load(&format!("{args} --table t --restart --quiet --json"));
        let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
        serde_json::from_value::<Vec<String>>(report["warnings"].clone()).unwrap()
    };
    let warning = |folders: &str, columns: &str, options: &str| {
        format!(
            "folders such as \"{folders}\" hold values of {columns}, which the rows do not have; \
             load each folder by itself with `{options}`"
        )
    };
    let both = warning(
        "year=2024/month=01",
        "columns \"year\" and \"month\"",
        "--set year=2024 --set month=01",
    );
    for args in ["hive", "hive/*/*/*.csv", "hive --plan"] {
        assert_eq!(warnings(args), [both.as_str()], "{args}");
    }
    let said = case.load("hive --table t --restart").success();
    assert_eq!(said.matches("warning: folders such as").count(), 1, "{said}");
    let month = warning("month=01", "column \"month\"", "--set month=01");
    for args in ["hive --set year=2024", "hive/year=2024", "hive/year=2024/*/*.csv"] {
        assert_eq!(warnings(args), [month.as_str()], "{args}");
    }
    for args in [
        "hive --set year=2024 --set MONTH=1",
        "hive --file-name-column source",
        "hive/year=2024/month=01 --set year=2024 --set month=1",
        "hive/year=2024/month=01/a.csv",
    ] {
        assert_eq!(warnings(args), Vec::<String>::new(), "{args}");
    }
    case.put("full/year=2024/a.csv", "id,Year\n1,2024\n");
    assert_eq!(warnings("full"), Vec::<String>::new());
}

#[test]
fn null_the_empty_string_and_values_that_only_the_server_reads_can_be_set() {
    let case = LoadCase::new(
        "create table t (id int, a text default 'a', b text default 'b', c timestamptz, d money)",
    );
    case.put("t.csv", "id\n1\n");
    case.load("t.csv --table t --quiet --set a= --set b=\\N --set c=epoch --set d=1.50").success();
    assert_eq!(
        case.value("select a || '|' || (b is null) || '|' || (c = 'epoch') || '|' || d from t"),
        "|true|true|$1.50"
    );
    let plan = case.load("t.csv --table t --plan --restart --set a=it's --set b=\\N --set c=now");
    assert!(plan.stdout.contains("path     text COPY: all rows go as text"), "{}", plan.stdout);
    assert!(plan.stdout.contains("'it''s' in all rows"), "{}", plan.stdout);
    assert!(plan.stdout.contains("NULL in all rows"), "{}", plan.stdout);
}

#[test]
fn a_created_table_has_the_columns_of_constants_and_file_names() {
    let case = LoadCase::new("");
    case.put("t.csv", "id\n1\n");
    case.load(
        "t.csv --create --quiet --set tenant=7 --set kind=x --type tenant=int --file-name-column f",
    )
    .success();
    assert_eq!(case.columns(), "id bigint, tenant integer, kind text, f text");
    assert_eq!(case.rows("t"), ["(1,7,x,t.csv)"]);
}

#[test]
fn wrong_columns_and_values_are_refused() {
    let case = LoadCase::new(TABLE);
    case.put("t.csv", "id,day\n1,2024-02-29\n");
    assert_snapshot!(case.refusal("t.csv --table t --set tenants=1"), @r#"
    error: column "tenants" of relation "t", which `--set` names, does not exist

    hint: Did you mean column "tenant"? `--add-columns` adds the column to the table.
    "#);
    assert_snapshot!(case.refusal("t.csv --table t --set id=1"), @r#"
    error: the input has column "id", which `--set` names

    hint: Leave `--set` out for this column. Or name the columns for the input's fields
          … with `--columns a,b,...`.
    "#);
    assert_snapshot!(case.refusal("t.csv --table t --set tenant=x"), @r#"
    error: could not set column tenant
      caused by: invalid input syntax for type integer: "x" (SQLSTATE 22P02)
    "#);
    assert_snapshot!(case.refusal("t.csv --table t --set tenant=1 --file-name-column tenant"), @r#"
    error: column "tenant" is named more than once
    "#);
    let said = case.refusal("t.csv --table t --set tenant=1 --set Tenant=2");
    assert!(said.contains("column \"tenant\" is named more than once"), "{said}");
    let said = case.refusal("t.csv --table t --set tenant");
    assert!(said.contains("expected COLUMN=VALUE"), "{said}");
    // A record after the sample has the column; no record of the sample has it.
    let mut records = "{\"id\":2}\n".to_owned();
    (3..150_000).for_each(|id| records += &format!("{{\"id\":{id}}}\n"));
    case.put("t.json", records + "{\"id\":150000,\"tenant\":7}\n");
    let said = case.refusal("t.json --table t --set tenant=1");
    assert!(said.contains("the input has column \"tenant\", which `--set` names"), "{said}");
}

#[test]
fn standard_input_has_no_file_name() {
    let case = LoadCase::new(TABLE);
    let run = case.load_from(CSV, "- --table t --format csv --quiet --file-name-column file");
    assert_snapshot!(run.refusal(), @"
    error: `--file-name-column` needs files, but the input has no file name

    hint: Give the rows a constant instead, with `--set file=...`.
    ");
}

#[test]
fn a_row_with_a_field_too_much_or_too_few_is_refused() {
    // In text, such a row could have as many values as the COPY has columns.
    let case = LoadCase::new(
        "create table t (id int, a text, b text, c text); create function f() returns trigger \
         language plpgsql as 'begin return null; end'; \
         create trigger t before insert on t execute function f()",
    );
    for content in ["id,a\n1,x\n2,y,z\n", "id,a\n1,x\n2\n", "id,a\n1,x\ny,z,\u{1}\n"] {
        case.put("t.csv", content);
        let said = case.refusal("t.csv --table t --set b=1 --set c=2");
        assert!(said.contains("line 3"), "{said}");
    }
}

#[test]
fn another_constant_is_another_load_of_the_same_file() {
    let case = LoadCase::new(TABLE);
    case.put("t.csv", CSV);
    case.load("t.csv --table t --quiet --set tenant=7").success();
    case.load("t.csv --table t --quiet --set tenant=7").success();
    assert_eq!(case.value("select count(*) from t"), "3");
    for args in ["--set tenant=8", "", "--set tenant=7 --file-name-column file"] {
        let said = case.refusal(&format!("t.csv --table t {args}"));
        assert!(said.contains("with other options"), "{said}");
    }
    // A value of each run is for the files that are new in it.
    case.put("u.csv", "id,day\n9,2024-03-03\n");
    let next = case.load("t.csv u.csv --table t --set tenant=9 --changed skip").success();
    assert!(next.contains("2 files: 1 new, 1 skipped as loaded"), "{next}");
    assert_eq!(case.value("select count(*) || ' ' || max(tenant) from t"), "4 9");
    case.load("t.csv --table t --set tenant=10 --changed skip").success();
    assert_eq!(case.value("delete from t where tenant = 9 returning id"), "9");
    case.load("t.csv --table t --quiet --set tenant=8 --restart").success();
    assert_eq!(case.value("select string_agg(distinct tenant::text, ' ') from t"), "7 8");
}

#[test]
fn rejected_records_are_as_in_the_file_and_can_be_loaded_with_the_same_flags() {
    let case = LoadCase::new(TABLE);
    case.put("t.csv", "id,day\n1,2024-02-29\nx,2024-03-01\n3,\n");
    let flags = "--table t --quiet --set tenant=7 --file-name-column file";
    case.load(&format!("t.csv {flags} --rejects bad.csv")).partial();
    let rejected = std::fs::read_to_string(case.path("bad.csv")).unwrap();
    assert_eq!(rejected, "id,day\nx,2024-03-01\n");
    case.put("bad.csv", rejected.replace('x', "2"));
    case.load(&format!("bad.csv {flags}")).success();
    assert_eq!(
        case.rows("t"),
        ["(bad.csv,2,2024-03-01,7,none)", "(t.csv,1,2024-02-29,7,none)", "(t.csv,3,,7,none)"]
    );
}

#[test]
fn values_are_not_sent_in_another_encoding() {
    let case = LoadCase::new(TABLE);
    case.put("t.csv", b"id,day\n1,2024-02-29\n".as_slice());
    case.load("t.csv --table t --quiet --encoding LATIN1 --set note=plain").success();
    let said = case.refusal("t.csv --table t --restart --encoding LATIN1 --set note=\u{fc}");
    assert!(said.contains("has characters other than ASCII"), "{said}");
    case.load("t.csv --table t --quiet --restart --set note=\u{fc}").success();
    assert_eq!(case.value("select note from t where note <> 'plain'"), "\u{fc}");
}

#[test]
fn a_resumed_load_gives_its_file_the_same_name() {
    let case = LoadCase::new("create table t (id int check (id < 99999), note text, file text)");
    let row = |id: usize| format!("{id},{:>99}\n", "");
    let rows: String = (0..100_000).map(row).collect();
    case.put("t.csv", format!("id,note\n{rows}"));
    let args = "--table t --quiet --lanes 1 --commit chunk --file-name-column file";
    case.load(&format!("t.csv {args}")).refusal();
    case.db.run("alter table t drop constraint t_id_check");
    let path = case.path("t.csv").display().to_string();
    assert_snapshot!(case.load(&format!("{path} {args}")).refusal(), @r#"
    error: could not continue unfinished job 1: its sources or options have changed
          … (fingerprint [HASH] then, [HASH] now)
          the name in the rows was "t.csv" and is "[DIR]/t.csv"

    hint: Undo these changes to continue the job, or load from the beginning with
          … `--restart`. The 79243 rows that job 1 has written stay in the table.
    "#);
    case.load(&format!("t.csv {args}")).success();
    assert_eq!(case.value("select string_agg(distinct file, ' ') from t"), "t.csv");
    assert_eq!(case.value("select count(*) from t"), "100000");
    // A file that is in the table is known by any spelling.
    case.load(&format!("{path} {args}")).success();
    assert_eq!(case.value("select count(*) from t"), "100000");
}
