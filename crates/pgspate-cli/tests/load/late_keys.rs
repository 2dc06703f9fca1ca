//! Tests of JSON keys that the first records lack: a missing key is NULL in every row, whenever the
//! rows are committed.

use std::fmt::Write as _;
use std::ops::Range;

use insta::assert_snapshot;

use crate::support::LoadCase;

/// Records of 1 KB. A chunk has about four thousand of them.
const RECORDS: usize = 13_000;
/// Records of the third chunk, with the late key.
const LATE: Range<usize> = 9_000..9_100;

/// The value of `status` that rows have, each with the number of rows.
const COUNTS: &str = "\
select string_agg(coalesce(status, 'NULL') || ' ' || n, ', ' order by status)
from (select status, count(*) n from t group by status) counted";
const ALL_NULL: &str = "late 100, NULL 12900";

/// Returns records of which only [`LATE`] have the key `status`. In record `bad`, the id is text.
fn records(bad: Option<usize>) -> String {
    let mut records = String::new();
    for nth in 0..RECORDS {
        let id = if bad == Some(nth) { "\"x\"".to_owned() } else { nth.to_string() };
        write!(records, "{{\"id\":{id},\"note\":\"{:980}\"", "").unwrap();
        records += if LATE.contains(&nth) { ",\"status\":\"late\"}\n" } else { "}\n" };
    }
    records
}

/// Returns a case with the records, and a table whose column `status` has this definition.
fn new_case(status: &str) -> LoadCase {
    let case =
        LoadCase::new(&format!("create table t (id int primary key, note text, status {status})"));
    case.put("t.json", records(None));
    case
}

const BY_CHUNK: &str = "t.json --quiet --lanes 1 --commit chunk";

#[test]
fn a_missing_key_is_null_however_the_load_commits() {
    for args in ["--lanes 1", "--lanes 3 --commit chunk", "--rejects bad.json"] {
        let case = new_case("text default 'new'");
        case.load(&format!("t.json --quiet {args}")).success();
        assert_eq!(case.value(COUNTS), ALL_NULL, "{args}");
    }
    let case = new_case("text default 'new'");
    let run = case.load("t.json --lanes 1 --commit chunk");
    assert_eq!(case.value(COUNTS), ALL_NULL, "{}", run.stderr);
    assert!(run.stderr.contains("the load began again, because key \"status\""), "{}", run.stderr);
}

#[test]
fn rows_of_other_loads_stay() {
    let case = new_case("text default 'new'");
    case.db.run("insert into t values (-1, 'other')");
    case.load(BY_CHUNK).success();
    assert_eq!(case.value(COUNTS), "late 100, new 1, NULL 12900");
}

#[test]
fn a_resumed_load_knows_the_late_keys() {
    let case = new_case("text default 'new'");
    // Only the fourth chunk has the last record.
    case.db.run(&format!("alter table t add constraint most check (id < {})", RECORDS - 1));
    let said = case.load(BY_CHUNK).refusal();
    assert!(said.contains("violates check constraint"), "{said}");
    assert_eq!(case.value("select count(*) from t where status = 'late'"), "100");
    case.db.run("alter table t drop constraint most");
    case.load(BY_CHUNK).success();
    assert_eq!(case.value(COUNTS), ALL_NULL);
}

#[test]
fn a_resumed_load_begins_again_for_a_late_key() {
    let case = new_case("text default 'new'");
    // The second chunk is refused, and the key is in the third chunk.
    case.db.run("alter table t add constraint most check (id < 6000)");
    let said = case.load(BY_CHUNK).refusal();
    assert!(said.contains("violates check constraint"), "{said}");
    assert_ne!(case.value("select count(*) from t where status = 'new'"), "0");
    case.db.run("alter table t drop constraint most");
    case.load(BY_CHUNK).success();
    assert_eq!(case.value(COUNTS), ALL_NULL);
}

#[test]
fn without_a_default_the_rows_stay() {
    let case = new_case("text");
    let run = case.load("t.json --lanes 1 --commit chunk");
    assert_eq!(case.value(COUNTS), ALL_NULL);
    assert!(!format!("{}{}", run.stdout, run.stderr).contains("began again"), "{}", run.stderr);
}

#[test]
fn the_default_of_a_type_counts() {
    let case = LoadCase::new(
        "create domain state as text default 'new'; \
         create table t (id int primary key, note text, status state)",
    );
    case.put("t.json", records(None));
    case.load(BY_CHUNK).success();
    assert_eq!(case.value(COUNTS), ALL_NULL);
}

#[test]
fn a_load_that_cannot_remove_its_rows_names_the_key() {
    let case = new_case("text default 'new'");
    case.db.run("create table other (t int references t)");
    let said = case.load(BY_CHUNK).refusal();
    let written = case.value("select count(*) from t where status = 'new'");
    assert_ne!(written, "0");
    assert_snapshot!(said.replace(&written, "[N]"), @r#"
    error: could not load "t.json" into public.t
      caused by: key "status" names a column, but the first records do not have this key
      at: t.json, line 9001, byte 9017891, column "status"

    hint: Name the keys of all records with `--columns a,b,...`. The rows that are written
          … so far have the column's default, although a missing key is NULL. They stay,
          … because the load could not remove them: foreign keys refer to the table,
          … writing or deleting its rows has effects elsewhere, or other rows would be
          … removed, too. Remove them, and load with `--columns` and `--restart`. [N] rows
          … are in the table; the same command, run again, resumes once the cause is
          … removed.
    "#);
    case.db.run("drop table other; delete from t");
    case.load(&format!("{BY_CHUNK} --columns id,note,status --restart")).success();
    assert_eq!(case.value(COUNTS), ALL_NULL);
}

/// The server does not show which rows were written under a savepoint.
#[test]
fn a_load_with_rejected_rows_names_the_key() {
    let case = new_case("text default 'new'");
    case.put("t.json", records(Some(2_000)));
    let said = case.load("t.json --quiet --lanes 1 --rejects bad.json").refusal();
    assert!(said.contains("key \"status\" names a column"), "{said}");
    assert!(said.contains("told from other rows"), "{said}");
}

#[test]
fn keys_that_differ_in_case_only_are_refused() {
    let case = LoadCase::new("create table t (id int, note text)");
    let long = " ".repeat(999);
    let head = format!("{{\"ID\":1,\"note\":\"{long}\"}}\n").repeat(2_000);
    for late in ["{\"id\":7,\"ID\":8}\n", "{\"ID\":8,\"id\":7}\n", "{\"id\":7}\n"] {
        case.put("t.json", format!("{head}{late}"));
        let said = case.refusal("t.json --table t");
        let ambiguous = "field \"ID\" matches no column of \"t\" exactly, and field \"id\" differs";
        assert!(said.contains(ambiguous), "{late}: {said}");
    }
}
