//! Tests of `--rejects`: refused rows are set aside, each once, and all other rows are loaded.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, Int32Array, RecordBatch};
use insta::assert_snapshot;
use serde_json::Value;

use crate::support::{LoadCase, folded, session, spawn, wait_until};

const CREATE_TABLE: &str = "\
create table kind (id int primary key);
insert into kind select generate_series(1, 9);
create table t (id int primary key, kind int references kind, name varchar(5) not null,
                price numeric check (price >= 0), during int4range,
                exclude using gist (during with &&))";

/// One good row, one bad row for each reason, and another good row.
const MIXED_ROWS: &str = "\
id,kind,name,price,during
1,1,one,1.50,\"[1,2)\"
x,1,two,1,\"[2,3)\"
1,1,three,1,\"[3,4)\"
4,10,four,1,\"[4,5)\"
5,1,,1,\"[5,6)\"
6,1,six,-1,\"[6,7)\"
7,1,seven plus,1,\"[7,8)\"
8,1,eight,1,\"[1,9)\"
9,1,nine,1
10,1,ten,1,\"[10,11)\",more
11,1,a\0b,1,\"[11,12)\"
99999999999,1,big,1,\"[12,13)\"
13,1,\"13\"\"\",2,\"[13,14)\"
";

fn read_reasons(case: &LoadCase, file: &str) -> Vec<Value> {
    let text = fs::read_to_string(case.path(file)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn rows_refused_for_every_reason_are_set_aside() {
    let case = LoadCase::new(CREATE_TABLE);
    case.put("t.csv", MIXED_ROWS);
    let run = case.load("t.csv --format csv --rejects bad.csv --lanes 1");
    assert_snapshot!(run.partial(), @r#"
    format csv: as given
    delimiter ",": 5 fields in each line
    header yes: the first line names the table's columns
    public.t: 2 rows, 270 B in [TIME], [RATE]
      stage         busy  per lane
      source [TIME] [TIME]
      encode [TIME] [TIME]
      server [TIME] [TIME]
      commit [TIME]
      1 lane, 1 chunk, 447 B of binary COPY, [SIZE] of WAL
      2 rows left to the server as text
      11 rows set aside in bad.csv, the reasons in bad.csv.json
      once corrected, they can be loaded with
        --format=csv --header=yes --delimiter=, --quote='"' --null=''
    warning: foreign key "t_kind_fkey" is checked for each row after each COPY
    open it with [PSQL] -c 'table public.t limit 10'
    "#);
    assert_eq!(case.rows("t").len(), 2);
    let bad = fs::read_to_string(case.path("bad.csv")).unwrap();
    // The file has the header and all bad rows, byte for byte as in the input.
    let expected: String = MIXED_ROWS
        .split_inclusive('\n')
        .enumerate()
        .filter(|(n, _)| ![1, 13].contains(n))
        .map(|it| it.1)
        .collect();
    assert_eq!(bad, expected);
    let shown: Vec<String> = read_reasons(&case, "bad.csv.json")
        .iter()
        .map(|it| format!("{} {} {} {}", it["line"], it["column"], it["sqlstate"], it["message"]))
        .collect();
    assert_snapshot!(folded(&shown.join("\n")), @r#"
    3 "id" "22P02" "invalid input syntax for type integer: \"x\""
    4 null "23505" "duplicate key value violates unique constraint \"t_pkey\""
    5 null "23503" "insert or update on table \"t\" violates foreign key constraint
          … \"t_kind_fkey\""
    6 "name" "23502" "null value in column \"name\" of relation \"t\" violates not-null
          … constraint"
    7 null "23514" "new row for relation \"t\" violates check constraint \"t_price_check\""
    8 "name" "22001" "value too long for type character varying(5)"
    9 null "23P01" "conflicting key value violates exclusion constraint \"t_during_excl\""
    10 null "22P04" "missing data for column \"during\""
    11 null "22P04" "extra data after last expected column"
    12 null "22021" "invalid byte sequence for encoding \"UTF8\": 0x00"
    13 "id" "22003" "value \"99999999999\" is out of range for type integer"
    "#);
    // A corrected rejects file is loaded like any other file.
    case.put("mended.csv", "id,kind,name,price,during\n3,1,three,1,\"[3,4)\"\n");
    case.load("mended.csv --table t --format csv --header yes").success();
    assert_eq!(case.rows("t").len(), 3);
}

/// Inputs, with the options that they are read with. `x` is no number.
const READ_WITH_OPTIONS: [(&str, &str); 8] = [
    ("id,v,w\n1,'a,b',y\nx,'c',z\n", "--quote '"),
    ("id,v,w\n1,n/a,a\nx,n/a,b\n", "--null n/a"),
    ("id,v,w\n1,\"\",a\nx,\"\",b\n", "--force-null v"),
    ("id,v,w\n1,,a\nx,\\N,b\n", "--null="),
    ("id,v,w\n1,-9,a\nx,-9,b\n", "--null=-9"),
    ("id,v,w\n1,a,b\nx,c,d\n", "--columns id,w,v"),
    ("ID;W\n1;b\nx;d\n", "--snake-case --set v=it's --delimiter ;"),
    ("id\tv\tw\n1\t\\N\tO\"Neil\nx\t\\N\t\"c\"\n", "--quote none --encoding latin1"),
];

#[test]
fn the_report_names_the_options_that_read_rejects_as_the_input() {
    for (input, options) in READ_WITH_OPTIONS {
        let case = LoadCase::new("create table t (id int, v text, w text)");
        case.put("all.csv", input.replace('x', "2"));
        case.load(&format!("all.csv --table t --quiet {options}")).success();
        let expected = case.rows("t");
        case.db.run("truncate t");
        case.put("t.csv", input);
        let load = case.load(&format!("t.csv --rejects bad.csv --json {options}"));
        let report: Value = serde_json::from_str(&load.stdout).unwrap();
        let flags = report["rejects_read_as"].as_str().unwrap();
        let bad = fs::read_to_string(case.path("bad.csv")).unwrap();
        case.put("mended.csv", bad.replace('x', "2"));
        // The flags are quoted for a shell.
        let line = format!("exec \"$0\" load mended.csv --table t --quiet --to \"$1\" {flags}");
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &line, env!("CARGO_BIN_EXE_pgspate"), &case.db.dsn()]);
        let run = shell.current_dir(case.path("")).output().unwrap();
        assert!(run.status.success(), "{flags}: {}", String::from_utf8_lossy(&run.stderr));
        assert_eq!(case.rows("t"), expected, "{flags}");
    }
}

#[test]
fn rows_with_invalid_bytes_or_open_quotes_are_set_aside() {
    let case = LoadCase::new("create table t (id int, note text)");
    case.put("t.csv", b"id,note\n1,a\n2,\xff\n3,c\n4,\"open\n5,e\n");
    assert_eq!(case.load("t.csv --rejects bad.csv").status, Some(1));
    assert_eq!(case.rows("t"), ["(1,a)", "(3,c)"]);
    assert_eq!(fs::read(case.path("bad.csv")).unwrap(), b"id,note\n2,\xff\n4,\"open\n5,e\n");
}

/// Returns rows of several chunks, and the number of bad rows. Every thousandth row is bad.
fn csv_with_bad_rows() -> (String, u64) {
    let mut text = "id,note\n".to_owned();
    let mut bad = 0;
    for id in 0..100_000 {
        match id % 3000 {
            0 => writeln!(text, "{id}x,{:>90}", ""),
            1000 => writeln!(text, "{id}"),
            2000 => writeln!(text, "{},{:>90}", id - 1, ""),
            _ => writeln!(text, "{id},{:>90}", ""),
        }
        .unwrap();
        bad += u64::from(id % 1000 == 0);
    }
    (text, bad)
}

#[test]
fn a_load_that_is_killed_sets_every_row_aside_once() {
    let case = LoadCase::new("create table t (id int primary key, note text)");
    let (text, bad) = csv_with_bad_rows();
    case.put("t.csv", text);
    let (runtime, holder) = session(&case.db.dsn());
    let last = "begin; insert into t values (99999, 'of another session')";
    runtime.block_on(holder.batch_execute(last)).unwrap();
    let mut child = spawn(&mut case.load_command("t.csv --rejects bad.csv --lanes 2 --quiet"));
    let count = |table: &str| -> u64 {
        let is_there = case.value(&format!("select to_regclass('{table}') is not null"));
        if is_there == "f" {
            0
        } else {
            case.value(&format!("select count(*) from {table}")).parse().unwrap()
        }
    };
    wait_until("rows are set aside", || count("pgspate.reject") > 20);
    child.kill().unwrap();
    child.wait().unwrap();
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    assert_eq!(case.load("t.csv --rejects bad.csv --lanes 2").status, Some(1));
    let reasons = read_reasons(&case, "bad.csv.json");
    assert_eq!((reasons.len() as u64, count("t")), (bad, 100_000 - bad));
    let lines: Vec<u64> = reasons.iter().map(|it| it["line"].as_u64().unwrap()).collect();
    assert!(lines.iter().enumerate().all(|(nth, line)| *line == nth as u64 * 1000 + 2));
    let file = fs::read_to_string(case.path("bad.csv")).unwrap();
    assert_eq!(file.lines().count() as u64, bad + 1);
}

#[test]
fn a_stopped_load_continues_with_rejects() {
    let case = LoadCase::new("create table t (id int primary key, note text)");
    let (text, bad) = csv_with_bad_rows();
    case.put("t.csv", text.replacen("0x,", "0,", 1));
    let said = case.load("t.csv --commit chunk --lanes 1 --quiet").refusal();
    assert!(said.contains("missing data for column \"note\""), "{said}");
    assert_eq!(case.load("t.csv --lanes 1 --rejects bad.csv --quiet").status, Some(1));
    assert_eq!(case.value("select count(*) from t"), (100_000 - bad + 1).to_string());
}

#[test]
fn a_load_stops_at_max_rejects() {
    let case = LoadCase::new("create table t (id int primary key, note text)");
    let (text, bad) = csv_with_bad_rows();
    case.put("t.csv", text);
    let stopped = case.load("t.csv --rejects bad.csv --max-rejects 10 --lanes 1 --quiet");
    let said = stopped.refusal();
    assert!(said.contains("rows rejected; --max-rejects allows 10"), "{said}");
    assert!(said.contains("`--max-rejects`"), "{said}");
    let share = case.load("t.csv --rejects bad.csv --max-rejects 0.05% --lanes 1 --quiet");
    assert!(share.refusal().contains("--max-rejects allows 0.05%"), "{}", share.stderr);
    let run = case.load("t.csv --rejects bad.csv --max-rejects 1% --lanes 1 --json --quiet");
    assert_eq!(run.status, Some(1), "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["rows_rejected"].as_u64(), Some(bad));
}

/// The rows that an earlier run rejected count, even if this run rejects none.
#[test]
fn max_rejects_is_judged_again_when_a_load_is_resumed() {
    let case = LoadCase::new("create table t (id int primary key, note text)");
    let (text, bad) = csv_with_bad_rows();
    // All bad rows are in the first chunks; the last row waits for another session.
    let good: String = (100_000..140_000).map(|id| format!("{id},{:>90}\n", "")).collect();
    case.put("t.csv", text + &good);
    let (runtime, holder) = session(&case.db.dsn());
    let last = "begin; insert into t values (139999, 'of another session')";
    runtime.block_on(holder.batch_execute(last)).unwrap();
    let mut child = spawn(&mut case.load_command("t.csv --rejects bad.csv --lanes 1 --quiet"));
    wait_until("all bad rows are set aside", || {
        case.value("select to_regclass('pgspate.reject') is not null") == "t"
            && case.value("select count(*) from pgspate.reject") == bad.to_string()
    });
    child.kill().unwrap();
    child.wait().unwrap();
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    let said = case.load("t.csv --rejects bad.csv --max-rejects 10 --lanes 1 --quiet").refusal();
    assert!(said.contains(&format!("{bad} rows rejected; --max-rejects allows 10")), "{said}");
    let run = case.load(&format!("t.csv --rejects bad.csv --max-rejects {bad} --lanes 1 --quiet"));
    assert_eq!(run.status, Some(1), "{}", run.stderr);
    assert_eq!(case.value("select count(*) from t"), (140_000 - bad).to_string());
}

/// Rows that are sent again, because other rows were rejected, count once.
#[test]
fn max_rejects_in_percent_counts_each_row_once() {
    let case = LoadCase::new("create table t (id int)");
    let rows: Vec<_> =
        (0..2000).map(|id| format!("{id}{}\n", ["x", ""][(id % 100).min(1)])).collect();
    case.put("t.csv", format!("id\n{}", rows.concat()));
    let share = case.load("t.csv --header yes --rejects bad.csv --max-rejects 0.9% --quiet");
    assert!(share.refusal().contains("--max-rejects allows 0.9%"), "{}", share.stderr);
    let share = case.load("t.csv --header yes --rejects bad.csv --max-rejects 1% --quiet");
    assert_eq!(share.status, Some(1), "{}", share.stderr);
}

#[test]
fn rejects_do_not_overwrite_existing_files() {
    let case = LoadCase::new("create table t (id int)");
    case.put("t.csv", "id\n1\nx\n");
    case.put("bad.csv", "something else\n");
    assert_snapshot!(case.refusal("t.csv --header yes --rejects bad.csv"), @r#"
    error: could not load "t.csv" into public.t
      caused by: file "bad.csv" already exists

    hint: Name another file for `--rejects`, or remove this one.
    "#);
    assert_snapshot!(case.refusal("t.csv --header yes --rejects t.csv"), @r#"
    error: could not load "t.csv" into public.t
      caused by: "t.csv" is an input of this load

    hint: Name another file for `--rejects`.
    "#);
    assert_snapshot!(case.refusal("t.csv --header yes --rejects no/such/folder"), @r#"
    error: could not load "t.csv" into public.t
      caused by: could not write rejects to "no/such/folder"
      caused by: No such file or directory (os error 2)
    "#);
    assert_eq!(fs::read_to_string(case.path("bad.csv")).unwrap(), "something else\n");
    // A load without refused rows creates no rejects file.
    case.put("good.csv", "id\n1\n");
    case.load("good.csv --table t --header yes --rejects none.csv").success();
    assert!(!case.path("none.csv").exists() && !case.path("none.csv.json").exists());
}

/// Other users may have put files or links at the paths to which rejects are written.
#[test]
fn rejects_are_written_only_to_private_files() {
    let case = LoadCase::new("create table t (id int)");
    case.put("t.csv", "id\n1\nx\n");
    let refused = |file: &str, why: &str| {
        let said = case.load(&format!("t.csv --header yes --quiet --rejects {file}")).refusal();
        let written = format!("could not write rejects to \"{file}");
        assert!(said.contains(&written) && said.contains(why), "{said}");
    };
    case.put("victim", "untouched");
    symlink(case.path("victim"), case.path("a.part")).unwrap();
    refused("a", "symbolic links");
    fs::hard_link(case.path("victim"), case.path("b.part")).unwrap();
    refused("b", "\"b.part\" has more than one hard link");
    fs::remove_file(case.path("b.part")).unwrap();
    symlink(case.path("victim"), case.path("c.json.part")).unwrap();
    refused("c", "symbolic links");
    assert_eq!(fs::read_to_string(case.path("victim")).unwrap(), "untouched");
    // Only root can give a file to another user.
    case.put("d.part", "untouched");
    if chown(case.path("d.part"), Some(4242), None).is_ok() {
        refused("d", "\"d.part\" belongs to the user with uid 4242");
        assert_eq!(fs::read_to_string(case.path("d.part")).unwrap(), "untouched");
    }
    // A file of the same user that others can read is replaced by a private file.
    case.put("e.part", "old");
    assert_eq!(case.load("t.csv --header yes --quiet --rejects e").status, Some(1));
    for file in ["e", "e.json"] {
        assert_eq!(fs::metadata(case.path(file)).unwrap().mode() & 0o777, 0o600, "{file}");
    }
}

#[test]
fn rows_of_json_and_of_standard_input_are_set_aside() {
    let case = LoadCase::new("create table t (id int, tags text[])");
    case.put(
        "t.json",
        "{\"id\": 1, \"tags\": [\"a\"]}\n{\"id\": \"x\"}\n{\"id\": 3 4}\n{\"id\": 4}\n",
    );
    assert_eq!(case.load("t.json --rejects bad.json --quiet").status, Some(1));
    assert_eq!(case.rows("t"), ["(1,{a})", "(4,)"]);
    assert_eq!(
        fs::read_to_string(case.path("bad.json")).unwrap(),
        "{\"id\": \"x\"}\n{\"id\": 3 4}\n"
    );
    let rows = "id,tags\n7,{}\ny,{}\n8,{}\n";
    let run = case.load_from(rows, "- --table t --rejects bad.csv --quiet");
    assert_eq!(run.status, Some(1), "{}", run.stderr);
    assert_eq!(case.rows("t").len(), 4);
    assert_eq!(fs::read_to_string(case.path("bad.csv")).unwrap(), "id,tags\ny,{}\n");
}

#[test]
fn rejects_are_refused_if_rows_cannot_be_set_aside() {
    let case = LoadCase::new(
        "create table t (id int primary key, parent int references t); \
         create table u (id int)",
    );
    case.put("t.csv", "id,parent\n1,\n2,1\n");
    assert_snapshot!(case.refusal("t.csv --rejects bad.csv"), @r#"
    error: rows cannot be set aside: one COPY statement: rows may refer to each other by
          … foreign key "t_parent_fkey"

    hint: Load without `--rejects`: the error names the first refused row.
    "#);
    assert_snapshot!(case.refusal("t.csv --table u --ignore-unknown --rejects bad.csv --no-ledger"), @"
    error: rows cannot be set aside: rejected rows are kept in the ledger

    hint: Leave `--no-ledger` out.
    ");
    assert_snapshot!(case.refusal("t.csv --table u --ignore-unknown --rejects bad.csv --commit end"), @"
    error: rows cannot be set aside: each chunk must be committed on its own

    hint: Leave `--commit end` out.
    ");
    assert_snapshot!(case.refusal("t.csv --table u --max-rejects 3"), @"
    error: `--max-rejects` needs a file for the rejected rows, or they would be lost

    hint: Name the file with `--rejects`, for example `--rejects rejected.csv`.
    ");
}

/// A load with `--rejects` was killed, and is run again without `--rejects`.
#[test]
fn rejected_rows_are_reported_without_a_rejects_file_too() {
    let case = LoadCase::new("create table t (id int)");
    let rows: String = (0..10).map(|id| format!("{id}{}\n", ["", "x"][id % 2])).collect();
    case.put("t.csv", format!("id\n{rows}"));
    assert_eq!(case.load("t.csv --header yes --rejects bad.csv --quiet").status, Some(1));
    // The ledger is now as if the load was killed before it wrote the rejects file.
    case.db.run("update pgspate.job set finished = null, rows_rejected = 0");
    fs::remove_file(case.path("bad.csv")).unwrap();
    fs::remove_file(case.path("bad.csv.json")).unwrap();
    let told = "  5 rows set aside by job 1, kept in the ledger\n  \
                the same command with --rejects FILE writes them to a file\n";
    let again = case.load("t.csv --header yes --quiet");
    assert_eq!((again.status, again.stderr.as_str()), (Some(1), told));
    let once_more = case.load("t.csv --header yes --quiet");
    assert_eq!((once_more.status, once_more.stderr.as_str()), (Some(1), told));
    let loud = case.load("t.csv --header yes");
    assert!(loud.stderr.contains("5 rows, 5 rejected, at "), "{}", loud.stderr);
    let written = case.load("t.csv --header yes --rejects bad.csv --quiet");
    assert_eq!(written.status, Some(1));
    assert!(written.stderr.contains("5 rows set aside in bad.csv"), "{}", written.stderr);
    let bad = fs::read_to_string(case.path("bad.csv")).unwrap();
    assert_eq!(bad, "id\n1x\n3x\n5x\n7x\n9x\n");
    assert_eq!((case.rows("t").len(), read_reasons(&case, "bad.csv.json").len()), (5, 5));
    // A file that is still there may have been corrected by hand.
    case.put("bad.csv", "id\n1\n3\n");
    assert_eq!(case.load("t.csv --header yes --rejects bad.csv --quiet").status, Some(1));
    assert_eq!(fs::read_to_string(case.path("bad.csv")).unwrap(), "id\n1\n3\n");
    // The ledger keeps rejected rows for seven days.
    case.db.run("delete from pgspate.reject");
    fs::remove_file(case.path("bad.csv")).unwrap();
    let gone = case.load("t.csv --header yes --rejects bad.csv --quiet").refusal();
    assert!(gone.contains("job 1 rejected 5 rows, of which the ledger still has 0"), "{gone}");
}

/// A folder grows after a row of it was set aside.
#[test]
fn a_rerun_names_the_jobs_that_set_rows_aside() {
    let case = LoadCase::new("create table t (id int)");
    case.put("land/a.csv", "id\n1\nx\n");
    assert_eq!(case.load("land --table t --rejects bad.csv --quiet").status, Some(1));
    let again = case.load("land --table t --quiet");
    assert_eq!(again.status, Some(1), "{}", again.stderr);
    case.put("land/b.csv", "id\n2\n");
    case.load("land --table t --quiet").success();
    let run = case.load("land --table t --quiet");
    assert_eq!(run.status, Some(0), "the last job has written all rows: {}", run.stderr);
    assert!(run.stderr.contains("  1 row set aside by job 1, kept"), "{}", run.stderr);
    case.put("land/c.csv", "id\ny\n");
    assert_eq!(case.load("land --table t --rejects more.csv --quiet").status, Some(1));
    let run = case.load("land --table t --quiet");
    assert_eq!(run.status, Some(1));
    assert!(run.stderr.contains("  2 rows set aside by jobs 1, 3, kept"), "{}", run.stderr);
}

#[test]
fn two_loads_do_not_write_one_file() {
    let case = LoadCase::new("create table t (id int primary key); create table u (id int)");
    case.put("t.csv", "id\n1\nx\n");
    case.put("u.csv", "id\n1\ny\n");
    let (runtime, holder) = session(&case.db.dsn());
    let first = "begin; insert into t values (1)";
    runtime.block_on(holder.batch_execute(first)).unwrap();
    let child = spawn(&mut case.load_command("t.csv --header yes --rejects bad.csv --quiet"));
    let waits = "select count(*) from pg_stat_activity \
                 where wait_event_type = 'Lock' and datname = current_database()";
    wait_until("the first load waits for the key", || case.value(waits) != "0");
    let second = case.load("u.csv --header yes --rejects bad.csv --quiet").refusal();
    assert!(second.contains("another load is writing its rejects to \"bad.csv\""), "{second}");
    runtime.block_on(holder.batch_execute("rollback")).unwrap();
    assert_eq!(crate::support::finish(child).status, Some(1));
    assert_eq!(fs::read_to_string(case.path("bad.csv")).unwrap(), "id\nx\n");
    let third = case.load("u.csv --header yes --rejects bad.csv --quiet").refusal();
    assert!(third.contains("file \"bad.csv\" already exists"), "{third}");
    assert_eq!(case.load("u.csv --header yes --rejects v.csv --quiet").status, Some(1));
    assert!(!case.path("bad.csv.part").exists() && !case.path("v.csv.part").exists());
    // The files that a killed load left do not block later loads.
    case.put("w.csv.part", "half");
    case.put("w0.csv", "id\n7\nz\n");
    let killed = case.load("w0.csv --table u --header yes --rejects w.csv --quiet");
    assert_eq!(killed.status, Some(1), "{}", killed.stderr);
    assert_eq!(fs::read_to_string(case.path("w.csv")).unwrap(), "id\nz\n");
}

/// The hint names `--rejects` only if a row caused the error.
#[test]
fn an_error_that_no_row_caused_does_not_suggest_rejects() {
    let case = LoadCase::new("create table t (id bigint, note text)");
    let rows: String = (0..100_000).map(|id| format!("{id},{:>90}\n", "")).collect();
    case.put("t.csv", format!("id,note\n{rows}"));
    let mut gzip = std::process::Command::new("gzip");
    assert!(gzip.arg("-k1").arg(case.path("t.csv")).status().unwrap().success());
    let whole = fs::read(case.path("t.csv.gz")).unwrap();
    case.put("t.csv.gz", &whole[..whole.len() - 9]);
    let said = case.load("t.csv.gz --table t --commit chunk --lanes 1 --quiet").refusal();
    assert!(said.contains("gzip data ends early"), "{said}");
    assert!(!said.contains("--rejects"), "{said}");
}

#[test]
fn rows_are_set_aside_whatever_isolation_level_the_role_has() {
    for level in ["repeatable read", "serializable"] {
        let case = LoadCase::new("create table t (id int primary key)");
        case.db.run(&format!(
            "do $$ begin execute format('alter database %I set default_transaction_isolation \
             to %L', current_database(), '{level}'); end $$"
        ));
        case.put("t.csv", "id\n1\nx\n3\n1\n");
        let run = case.load("t.csv --quiet --rejects bad.csv");
        assert_eq!(run.status, Some(1), "{level}: {}", run.stderr);
        assert_eq!(case.rows("t"), ["(1)", "(3)"]);
        assert_eq!(fs::read_to_string(case.path("bad.csv")).unwrap(), "id\nx\n1\n");
    }
}

/// A text column has no such value, and neither has JSON. The record keeps the bytes, and is
/// refused again until they are corrected.
#[test]
fn bytes_that_are_not_text_are_set_aside_unchanged() {
    let case = LoadCase::new("create table t (id int, note text)");
    let ids: ArrayRef = Arc::new(Int32Array::from(vec![1, 2]));
    let notes: ArrayRef = Arc::new(BinaryArray::from(vec![&b"one"[..], b"a\xffb"]));
    let batch = RecordBatch::try_from_iter([("id", ids), ("note", notes)]).unwrap();
    let mut file = Vec::new();
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    case.put("t.parquet", file);
    case.load("t.parquet --table t --rejects bad.json --quiet").partial();
    let record = fs::read(case.path("bad.json")).unwrap();
    assert_eq!(record.escape_ascii().to_string(), r#"{\"id\":2,\"note\":\"a\xffb\"}\n"#);
    let said = case.refusal("bad.json --table t");
    assert!(said.contains("it is not valid JSON"), "{said}");
}
