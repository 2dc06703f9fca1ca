//! Tests of files that change during a load or between two loads.
//!
//! A load that succeeds has written exactly the rows of one version of the file, each row once.

use std::fmt::Write as _;
use std::fs::{self, File, FileTimes};
use std::io::Write as _;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use crate::support::{LoadCase, Run, finish, session, spawn, wait_until};

/// Rows of 1.9 KiB: about 19 MB in five chunks of 4 MiB. The server would compress longer rows,
/// which takes it longer than all else.
const ROWS: u64 = 10_000;
const PAD: usize = 1_900;
/// The ids of rows at which a load is blocked. The first row is in the third chunk, when the load
/// still has chunks to read. The second row is in the last chunk, when the load has read all
/// chunks.
const BLOCKED_IDS: [u64; 2] = [4_500, 9_900];

fn csv_lines(version: &str, ids: std::ops::Range<u64>) -> String {
    let pad = " ".repeat(PAD);
    let mut text = String::new();
    ids.for_each(|id| writeln!(text, "{id},{version},{pad}{}", id * 7).unwrap());
    text
}

fn csv_file(version: &str) -> String {
    format!("id,version,pad\n{}", csv_lines(version, 0..ROWS))
}

fn new_case() -> LoadCase {
    let case = LoadCase::new("create table t (id bigint, version text, pad text)");
    case.put("t.csv", csv_file("a"));
    case
}

/// A change of a file by another program.
#[derive(Debug, Clone, Copy, PartialEq)]
enum FileChange {
    Grow,
    Truncate,
    /// Another file is renamed to the path of the input.
    Replace,
    /// The file's bytes are overwritten by other bytes.
    Rewrite,
    /// Like `Rewrite`, and the old modification time is restored.
    RewriteUnseen,
    Delete,
    /// Only the modification time changes.
    Touch,
    /// Only the permissions change: the file is still the same version.
    Chmod,
}

const CHANGES: [FileChange; 8] = [
    FileChange::Grow,
    FileChange::Truncate,
    FileChange::Replace,
    FileChange::Rewrite,
    FileChange::RewriteUnseen,
    FileChange::Delete,
    FileChange::Touch,
    FileChange::Chmod,
];

fn apply_change(change: FileChange, path: &Path) {
    let open = || File::options().write(true).read(true).open(path).unwrap();
    let rewrite = || {
        let file = open();
        let changed = file.metadata().unwrap();
        let text = fs::read_to_string(path).unwrap().replace(",a,", ",b,");
        file.write_all_at(text.as_bytes(), 0).unwrap();
        (file, changed)
    };
    match change {
        FileChange::Grow => {
            let mut file = File::options().append(true).open(path).unwrap();
            file.write_all(csv_lines("a", ROWS..ROWS + 10).as_bytes()).unwrap();
        }
        FileChange::Truncate => open().set_len(6 << 20).unwrap(),
        FileChange::Replace => {
            let other = path.with_extension("new");
            fs::write(&other, csv_file("b")).unwrap();
            fs::rename(other, path).unwrap();
        }
        FileChange::Rewrite => drop(rewrite()),
        FileChange::RewriteUnseen => {
            let (file, before) = rewrite();
            let times = FileTimes::new().set_modified(before.modified().unwrap());
            file.set_times(times).unwrap();
        }
        FileChange::Delete => fs::remove_file(path).unwrap(),
        FileChange::Touch => {
            let now = std::time::SystemTime::now();
            open().set_times(FileTimes::new().set_modified(now)).unwrap();
        }
        FileChange::Chmod => fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap(),
    }
}

/// An uncommitted row whose unique key makes a load wait at one row of the file.
struct RowLock {
    runtime: tokio::runtime::Runtime,
    holder: tokio_postgres::Client,
}

impl RowLock {
    fn at(case: &LoadCase, id: u64) -> RowLock {
        case.db.run(&format!("create unique index held on t (id) where id = {id}"));
        let (runtime, holder) = session(&case.db.dsn());
        let sql = format!("begin; insert into t values ({id}, 'held')");
        runtime.block_on(holder.batch_execute(&sql)).unwrap();
        RowLock { runtime, holder }
    }

    fn wait(&self, case: &LoadCase) {
        let waits = "select count(*) from pg_stat_activity \
                     where wait_event_type = 'Lock' and datname = current_database()";
        wait_until("the load waits for the key", || case.value(waits) != "0");
    }

    fn end(self) {
        self.runtime.block_on(self.holder.batch_execute("rollback")).unwrap();
    }
}

fn summarize_table(case: &LoadCase) -> String {
    case.value(
        "select concat_ws(' ', count(*), count(distinct id), coalesce(min(version), '-'), \
                          coalesce(max(version), '-'), max(id)) from t",
    )
}

/// Returns the summary that the table must have if it holds exactly the rows of the file.
fn summarize_file(path: &Path) -> String {
    let Ok(text) = fs::read_to_string(path) else { return "no file".to_owned() };
    let lines: Vec<_> = text.lines().skip(1).collect();
    let versions = lines.iter().filter_map(|line| line.split(',').nth(1));
    let version = |it: Option<&str>| it.unwrap_or("-").to_owned();
    let (min, max) = (version(versions.clone().min()), version(versions.max()));
    let last = lines.len().saturating_sub(1);
    format!("{} {} {min} {max} {last}", lines.len(), lines.len())
}

#[track_caller]
fn check_no_duplicates(case: &LoadCase, run: &Run, path: &Path, what: &str) {
    let twice = case.value("select count(*) - count(distinct id) from t");
    assert_eq!(twice, "0", "{what}: {}", run.stderr);
    match run.status {
        Some(0) => {
            assert_eq!(summarize_table(case), summarize_file(path), "{what}: {}", run.stderr)
        }
        Some(2) => assert!(run.stderr.contains("t.csv"), "{what}: {}", run.stderr),
        other => panic!("{what}: {other:?} {}", run.stderr),
    }
}

fn check_change_during_load(change: FileChange, commit: &str, moment: u64, loses_session: bool) {
    let what = format!("{change:?} at {moment}, commit {commit}, session lost: {loses_session}");
    let case = new_case();
    let path = case.path("t.csv");
    let lock = RowLock::at(&case, moment);
    let args = format!("t.csv --commit {commit} --lanes 1 --quiet");
    let child = spawn(&mut case.load_command(&args));
    lock.wait(&case);
    apply_change(change, &path);
    if loses_session {
        case.db.run(
            "select pg_terminate_backend(pid) from pg_stat_activity \
             where datname = current_database() and wait_event_type = 'Lock'",
        );
    }
    lock.end();
    let run = finish(child);
    check_no_duplicates(&case, &run, &path, &what);
    // The load with the new session reads the whole file again, so all its rows are of one version.
    let is_read_again = loses_session && commit == "end" && change == FileChange::RewriteUnseen;
    let is_same = change == FileChange::Chmod || is_read_again;
    assert_eq!(run.status, Some(if is_same { 0 } else { 2 }), "{what}: {}", run.stderr);
    if commit == "end" && !is_same {
        assert_eq!(summarize_table(&case), "0 0 - -", "{what}");
    }
    case.db.run("drop index held");
    let again = case.load(&args);
    check_no_duplicates(&case, &again, &path, &format!("{what}, again"));
    // The first load wrote no row, so the second load writes the present version.
    let is_whole = !matches!(change, FileChange::Delete | FileChange::Truncate);
    if commit == "end" && is_whole {
        assert_eq!(again.status, Some(0), "{what}: {}", again.stderr);
    }
}

#[test]
fn a_load_that_commits_at_the_end_writes_no_row_of_a_changed_file() {
    for change in CHANGES {
        check_change_during_load(change, "end", BLOCKED_IDS[0], false);
    }
}

#[test]
fn a_load_that_commits_at_the_end_checks_the_file_after_reading_all_of_it() {
    for change in CHANGES {
        check_change_during_load(change, "end", BLOCKED_IDS[1], false);
    }
}

#[test]
fn a_load_that_commits_chunks_reports_a_changed_file() {
    for change in CHANGES {
        check_change_during_load(change, "chunk", BLOCKED_IDS[0], false);
    }
}

#[test]
fn a_load_that_commits_chunks_checks_the_file_after_reading_all_of_it() {
    for change in CHANGES {
        check_change_during_load(change, "chunk", BLOCKED_IDS[1], false);
    }
}

#[test]
fn a_load_that_loses_its_session_writes_no_row_twice_if_the_file_changes() {
    for change in CHANGES {
        check_change_during_load(change, "end", BLOCKED_IDS[0], true);
        check_change_during_load(change, "chunk", BLOCKED_IDS[0], true);
    }
}

/// Starts a load and kills the load in its third chunk. Earlier chunks are in the table.
fn start_and_kill_load() -> LoadCase {
    let case = new_case();
    let lock = RowLock::at(&case, BLOCKED_IDS[0]);
    let mut child = spawn(&mut case.load_command("t.csv --commit chunk --lanes 1 --quiet"));
    lock.wait(&case);
    child.kill().unwrap();
    child.wait().unwrap();
    lock.end();
    case.db.run("drop index held");
    assert_ne!(summarize_table(&case), "0 0 - -");
    case
}

#[test]
fn a_killed_load_continues_only_if_the_part_it_read_is_unchanged() {
    for change in CHANGES {
        let case = start_and_kill_load();
        let before = summarize_table(&case);
        apply_change(change, &case.path("t.csv"));
        let run = case.load("t.csv --commit chunk --lanes 1 --quiet");
        check_no_duplicates(&case, &run, &case.path("t.csv"), &format!("{change:?}"));
        // Only the part of the file after the written chunks may have changed.
        let goes_on = matches!(change, FileChange::Grow | FileChange::Touch | FileChange::Chmod);
        if goes_on {
            assert_eq!(run.status, Some(0), "{change:?}: {}", run.stderr);
        } else {
            assert_eq!(run.status, Some(2), "{change:?}: {}", run.stderr);
            assert_eq!(summarize_table(&case), before, "{change:?}");
        }
    }
}

#[test]
fn no_row_of_a_loaded_file_is_loaded_twice() {
    for change in CHANGES {
        let case = new_case();
        case.load("t.csv --quiet").success();
        let before = summarize_table(&case);
        apply_change(change, &case.path("t.csv"));
        let run = case.load("t.csv --quiet");
        match change {
            FileChange::Touch | FileChange::Chmod => {
                assert_eq!((run.status, summarize_table(&case)), (Some(0), before), "{change:?}");
            }
            FileChange::Delete => assert_eq!(run.status, Some(2)),
            _ => {
                let said = run.refusal();
                assert!(said.contains("t.csv has changed since it was loaded"), "{said}");
                assert_eq!(summarize_table(&case), before, "{change:?}");
            }
        }
        // The file has other rows under the same name, like an export of the next day.
        if matches!(change, FileChange::Replace | FileChange::Rewrite | FileChange::RewriteUnseen) {
            case.load("t.csv --quiet --changed reload").success();
            let versions = "select string_agg(distinct version, '') || count(*) from t";
            assert_eq!(case.value(versions), "ab20000", "{change:?}");
        }
    }
}

#[test]
fn a_load_detects_one_changed_row_in_the_middle_of_a_loaded_file() {
    let case = new_case();
    case.load("t.csv --quiet").success();
    let path = case.path("t.csv");
    let before = fs::metadata(&path).unwrap().modified().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("5000,a", "5000,x", 1)).unwrap();
    let times = FileTimes::new().set_modified(before);
    File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
    let said = case.load("t.csv --quiet").refusal();
    assert!(said.contains("t.csv has changed since it was loaded"), "{said}");
    case.load("t.csv --quiet --restart").success();
    assert_eq!(case.value("select count(*) from t where version = 'x'"), "1");
    // Other options are refused, too: they would load the same rows with other values.
    let said = case.load("t.csv --quiet --null x").refusal();
    assert!(said.contains("null was \"\" and is \"x\""), "{said}");
}

#[test]
fn a_load_detects_a_change_in_one_of_several_files() {
    let case = LoadCase::new("create table t (id bigint, version text, pad text)");
    for part in 0..3 {
        let rows = csv_lines("a", part * 3000..(part + 1) * 3000);
        case.put(&format!("in/{part}.csv"), format!("id,version,pad\n{rows}"));
    }
    let compress = |name: &str| {
        let mut gzip = std::process::Command::new("gzip");
        assert!(gzip.arg("-1f").arg(case.path(name)).status().unwrap().success());
    };
    compress("in/2.csv");
    for (commit, changed) in [("end", "in/2.csv.gz"), ("end", "in/0.csv"), ("chunk", "in/0.csv")] {
        let lock = RowLock::at(&case, 4_000);
        let args = format!("in --table t --commit {commit} --lanes 1 --quiet");
        let child = spawn(&mut case.load_command(&args));
        lock.wait(&case);
        let path = case.path(changed);
        let whole = fs::read(&path).unwrap();
        // The load has read `in/0.csv`, and has yet to read `in/2.csv.gz`.
        File::options().append(true).open(&path).unwrap().write_all(b"\n").unwrap();
        lock.end();
        let said = finish(child).refusal();
        assert!(said.contains(&format!("\"{changed}\" grew from")), "{said}");
        assert!(!said.contains("--rejects"), "{said}");
        case.db.run("drop index held");
        fs::write(&path, whole).unwrap();
        match commit {
            "end" => assert_eq!(summarize_table(&case), "0 0 - -"),
            _ => {
                // The load continues if the files are unchanged.
                case.load(&args).success();
                assert_eq!(summarize_table(&case), "9000 9000 a a 8999");
            }
        }
    }
    // One file has one more row.
    let mut file = File::options().append(true).open(case.path("in/1.csv")).unwrap();
    file.write_all(csv_lines("a", 9000..9001).as_bytes()).unwrap();
    let said = case.load("in --table t --quiet").refusal();
    assert!(said.contains("in/1.csv has changed since it was loaded into public.t"), "{said}");
    assert_eq!(summarize_table(&case), "9000 9000 a a 8999");
}

#[test]
fn a_load_reads_standard_input_to_its_end_after_the_file_is_removed() {
    let case = new_case();
    let path = case.path("t.csv");
    let lock = RowLock::at(&case, BLOCKED_IDS[0]);
    let mut command = case.load_command("- --table t --lanes 1 --quiet");
    let mut child = {
        command.stdin(File::open(&path).unwrap());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command.spawn().unwrap()
    };
    lock.wait(&case);
    fs::remove_file(&path).unwrap();
    lock.end();
    assert!(child.wait().unwrap().success());
    assert_eq!(summarize_table(&case), format!("{ROWS} {ROWS} a a {}", ROWS - 1));
}
