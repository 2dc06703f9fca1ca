//! Tests of columns whose types were guessed from the first rows: no later value loses content.

use insta::assert_snapshot;
use serde_json::Value;

use crate::support::{LoadCase, redact};

/// More rows than the sample has.
const SAMPLED: usize = 10_500;

/// A value of the first rows, a later value, the type that the column gets, and its text of both.
const COLUMNS: [[&str; 5]; 15] = [
    ["12", "01234", "text", "12", "01234"],
    ["7", "+491", "text", "7", "+491"],
    ["8", "1_000", "text", "8", "1_000"],
    ["9", "0x1F", "text", "9", "0x1F"],
    ["1.50", "007.5", "text", "1.50", "007.5"],
    ["1e5", "0.123456789012345678", "numeric", "100000", "0.123456789012345678"],
    ["2e5", "1e400", "numeric", "200000", "1e400"],
    ["2024-01-01", "2024-01-02 10:00", "timestamp without time zone", "", "2024-01-02 10:00:00"],
    ["2024-01-01", "01/02/2024", "text", "2024-01-01", "01/02/2024"],
    ["2024-01-01", "2024-01-02 10:00+02", "text", "2024-01-01", "2024-01-02 10:00+02"],
    ["2024-01-01 10:00:00", "2024-01-01 10:00+02", "text", "", "2024-01-01 10:00+02"],
    ["10:00:00", "11:00+02", "text", "10:00:00", "11:00+02"],
    ["10:00:00", "11:00:00.1234567", "text", "10:00:00", "11:00:00.1234567"],
    ["true", "yes", "text", "true", "yes"],
    ["2024-01-01 10:00Z", "2024-01-01 10:00", "text", "2024-01-01 10:00Z", "2024-01-01 10:00"],
];

/// Returns a csv file with a column for each of [`COLUMNS`], whose last row has the later values.
fn csv() -> String {
    let names: Vec<_> = (0..COLUMNS.len()).map(|nth| format!("c{nth}")).collect();
    let row = |value: usize| COLUMNS.map(|column| column[value]).join(",") + "\n";
    names.join(",") + "\n" + &row(0).repeat(SAMPLED) + &row(1)
}

/// Checks the types and the values of the table's columns.
fn check_columns(case: &LoadCase) {
    assert_eq!(case.value("select count(*) from t"), (SAMPLED + 1).to_string());
    for (nth, [_, later, ty, first, last]) in COLUMNS.iter().enumerate() {
        let sql = format!(
            "select format_type(atttypid, atttypmod) from pg_attribute
                           where attrelid = 't'::regclass and attname = 'c{nth}'"
        );
        assert_eq!(case.value(&sql), *ty, "{later}");
        let has = |value: &str| {
            case.value(&format!("select count(*) from t where c{nth}::text = '{value}'"))
        };
        if *later == "1e400" {
            assert_eq!(case.value(&format!("select max(c{nth}) = 1e400::numeric from t")), "t");
        } else {
            assert_eq!(has(last), "1", "{later}");
        }
        if !first.is_empty() {
            assert_eq!(has(first), SAMPLED.to_string(), "{later}");
        }
    }
}

#[test]
fn later_values_keep_their_content() {
    let case = LoadCase::new("");
    case.put("t.csv", csv());
    case.load("t.csv --create --quiet").success();
    check_columns(&case);
    // In text mode, the server would read every value.
    case.db.run("drop table t");
    case.load("t.csv --create --quiet --encoding LATIN1").success();
    check_columns(&case);
}

#[test]
fn values_of_a_later_file_keep_their_content() {
    let case = LoadCase::new("");
    case.put("a.csv", "id,zip\n1,12345\n");
    case.put("b.csv", "id,zip\n2,01234\n");
    case.load("a.csv b.csv --table t --create --quiet").success();
    assert_eq!(case.rows("t"), ["(1,12345)", "(2,01234)"]);
}

#[test]
fn later_values_of_json_keep_their_content() {
    let case = LoadCase::new("");
    let first = r#"{"a":1,"b":1e5,"c":"2024-01-01","d":true,"e":2,"f":"2024-01-01"}"#;
    let last = r#"{"a":"01","b":1e400,"c":"2024-01-01 10:00+02","d":1,"e":"5","f":20240102}"#;
    case.put("t.json", format!("{first}\n").repeat(25_000) + last);
    case.load("t.json --create --quiet").success();
    assert_eq!(case.columns(), "a text, b numeric, c text, d text, e text, f text");
    let last = "select concat_ws('|', a, b = 1e400::numeric, c, d, e, f) from t where a = '01'";
    assert_eq!(case.value(last), "01|t|2024-01-01 10:00+02|1|5|20240102");
}

#[test]
fn a_stream_is_refused_with_the_place_and_a_type() {
    let case = LoadCase::new("");
    let stream = "id,zip\n".to_owned() + &"1,12345\n".repeat(SAMPLED) + "2,01234\n";
    let run = case.load_from(stream.clone(), "- --table t --create --quiet");
    assert_snapshot!(run.refusal(), @r#"
    error: could not load "-" into public.t
      caused by: value "01234" would lose its leading zero in type bigint, which was
          … guessed from the first rows
      at: -, line 10502, byte 84007, column "zip"

    hint: Column "zip" was created as bigint, because of the first rows, but this value
          … needs text. Name the type: `--type 'zip=text'`. Or load from a file: pgspate
          … can read a file again and widen the column.
    "#);
    assert_eq!(case.contents(), []);
    case.load_from(stream, "- --table t --create --quiet --type zip=text").success();
    assert_eq!(case.value("select max(id) from t where zip = '01234'"), "2");
}

#[test]
fn a_type_that_the_user_has_named_reads_values_as_the_server_does() {
    let case = LoadCase::new("");
    case.put("t.csv", "id,zip\n".to_owned() + &"1,1\n".repeat(SAMPLED) + "2,01234\n");
    case.load("t.csv --create --quiet --type zip=bigint").success();
    assert_eq!(case.value("select zip from t where id = 2"), "1234");
}

#[test]
fn a_sync_refuses_values_that_its_created_table_would_change() {
    let case = LoadCase::new("");
    let rows: String = (0..SAMPLED).map(|id| format!("{id},12345\n")).collect();
    case.put("t.csv", format!("id,zip\n{rows}99999,01234\n"));
    let mut command = case.command(&["sync", "--to", &case.db.dsn()]);
    command.args(["t.csv", "--create", "--key", "id", "--no-delete", "--quiet"]);
    let run = crate::support::finish(crate::support::spawn(&mut command));
    assert_snapshot!(redact(&run.stderr), @r#"
    error: could not sync public.t with "t.csv"
      caused by: value "01234" would lose its leading zero in type bigint, which was
          … guessed from the first rows
      at: t.csv, line 10502, byte 114897, column "zip"

    hint: Name the type of the column: `--type 'zip=text'`.
    "#);
    assert_eq!(case.contents(), []);
}

#[test]
fn an_added_column_refuses_values_that_it_would_change() {
    let case = LoadCase::new("create table t (id int, old bigint)");
    let rows = "1,1,12345\n".repeat(SAMPLED);
    case.put("t.csv", format!("id,old,zip\n{rows}2,01,12345\n3,1,01234\n"));
    let run = case.load("t.csv --add-columns --quiet");
    assert_snapshot!(run.refusal(), @r#"
    error: could not load "t.csv" into public.t
      caused by: value "01234" would lose its leading zero in type bigint, which was
          … guessed from the first rows
      at: t.csv, line 10503, byte 105022, column "zip"

    hint: Column "zip" was added as bigint, because of the first rows. If this value is
          … right: `alter table public.t alter column zip type text`. Column "zip" of
          … public.t was added and stays.
    "#);
    assert_eq!(case.value("select count(*) from t"), "0");
}

#[test]
fn a_value_that_its_column_would_change_is_a_reject() {
    let case = LoadCase::new("");
    case.put("t.csv", "id,zip\n".to_owned() + &"1,1\n".repeat(SAMPLED) + "2,01234\n3,4\n");
    let run = case.load("t.csv --create --rejects bad.csv --json --quiet");
    assert_eq!(run.status, Some(1), "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["rows_rejected"], 1);
    assert_eq!(case.value("select string_agg(zip::text, ' ') from t where id > 1"), "4");
    let rejects = std::fs::read_to_string(case.path("bad.csv")).unwrap();
    assert_eq!(rejects, "id,zip\n2,01234\n");
}

/// The first run writes chunks and stops at a bad record. The next run continues its job, and must
/// not take the types for those of the user's table.
#[test]
fn a_resumed_load_keeps_the_content_of_later_values() {
    let case = LoadCase::new("");
    let rows = "1,12345\n".repeat(700_000);
    case.put("t.csv", format!("id,zip\n{rows}2\n{}3,01234\n", "4,4\n".repeat(SAMPLED)));
    case.load("t.csv --create --commit chunk --quiet").refusal();
    assert_ne!(case.value("select count(*) from t"), "0");
    let run = case.load("t.csv --create --commit chunk --rejects bad.csv --quiet --json");
    assert_eq!(run.status, Some(1), "{}", run.stderr);
    let rejects = std::fs::read_to_string(case.path("bad.csv")).unwrap();
    assert_eq!(rejects, "id,zip\n2\n3,01234\n");
}

#[test]
fn a_created_table_is_the_same_however_the_load_commits() {
    let case = LoadCase::new("");
    // Texts that another type would spell in another way. The last row widens all columns to text.
    let first = "2020-01-01T00:00:00Z,0.50e0,ABCDEF00-0000-4000-8000-000000000000";
    let rows: String = (0..120_000).map(|id| format!("{id},{first}\n")).collect();
    case.put("t.csv", format!("id,at,n,u\n{rows}-1,n/a,n/a,n/a\n"));
    let spelled = "select count(*) || ' ' || min(at) || ' ' || min(n) || ' ' || min(u) from t \
                   where id >= 0 and at || ',' || n || ',' || u = '";
    for commit in ["end", "chunk"] {
        case.load(&format!("t.csv --create --quiet --lanes 1 --commit {commit}")).success();
        assert_eq!(case.value("select count(distinct id) || ' of ' || count(*) from t"), {
            "120001 of 120001"
        });
        let same = case.value(&format!("{spelled}{first}'"));
        assert_eq!(same, format!("120000 {}", first.replace(',', " ")), "{commit}");
        case.db.run("drop table t");
    }
}

/// The server does not show which rows were written under the savepoints of a chunk with a rejected
/// row.
#[test]
fn rows_beside_rejected_rows_are_not_taken_for_changed_rows() {
    let case = LoadCase::new("");
    let row = |id: usize| match id {
        // After the sample, in the first chunk.
        2_000 => format!("x,{:>999}\n", ""),
        9_000..9_010 => format!("0{id},{:>999}\n", ""),
        _ => format!("{id},{:>999}\n", ""),
    };
    case.put("t.csv", format!("id,note\n{}", (0..10_000).map(row).collect::<String>()));
    let args = "t.csv --create --quiet --lanes 1";
    case.load(&format!("{args} --rejects bad.csv --max-rejects 3")).refusal();
    assert_ne!(case.value("select count(*) from t"), "0");
    let said = case.load(&format!("{args} --commit chunk")).refusal();
    assert!(said.contains("told from other rows"), "{said}");
}
