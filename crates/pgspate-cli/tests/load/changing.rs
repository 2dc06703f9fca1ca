//! Files that change while they are loaded, or between two runs.
//!
//! A load that succeeds has written exactly the rows of one version of the file, each row once.

use std::fmt::Write as _;
use std::fs::{self, File, FileTimes};
use std::io::Write as _;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use crate::support::{LoadCase, Run, finish, session, spawn, wait_until};

/// Rows of 2 KiB: about 20 MiB in five chunks of 4 MiB.
const ROWS: u64 = 10_000;
/// A row of the third chunk and one of the last: a load that waits for one has chunks to read
/// still, or none.
const MOMENTS: [u64; 2] = [4_500, 9_900];

fn rows(version: &str, ids: std::ops::Range<u64>) -> String {
    let mut text = String::new();
    ids.for_each(|id| writeln!(text, "{id},{version},{:>2030}", id * 7).unwrap());
    text
}

fn file(version: &str) -> String {
    format!("id,version,pad\n{}", rows(version, 0..ROWS))
}

fn case() -> LoadCase {
    let case = LoadCase::new("create table t (id bigint, version text, pad text)");
    case.put("t.csv", file("a"));
    case
}

/// What happens to a file.
#[derive(Debug, Clone, Copy, PartialEq)]
enum FileChange {
    Grow,
    Truncate,
    /// Another file takes its name.
    Replace,
    /// Other bytes in the same place.
    Rewrite,
    /// Other bytes in the same place, with the old modification time restored.
    RewriteUnseen,
    Delete,
    /// Only its time is another.
    Touch,
    /// Only its rights are others: it is the same file.
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

fn apply(change: FileChange, path: &Path) {
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
            file.write_all(rows("a", ROWS..ROWS + 10).as_bytes()).unwrap();
        }
        FileChange::Truncate => open().set_len(6 << 20).unwrap(),
        FileChange::Replace => {
            let other = path.with_extension("new");
            fs::write(&other, file("b")).unwrap();
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

fn table(case: &LoadCase) -> String {
    case.value(
        "select concat_ws(' ', count(*), count(distinct id), coalesce(min(version), '-'), \
                          coalesce(max(version), '-'), max(id)) from t",
    )
}

/// What the table has when it has exactly what is in the file now.
fn content(path: &Path) -> String {
    let Ok(text) = fs::read_to_string(path) else { return "no file".to_owned() };
    let lines: Vec<_> = text.lines().skip(1).collect();
    let versions = lines.iter().filter_map(|line| line.split(',').nth(1));
    let version = |it: Option<&str>| it.unwrap_or("-").to_owned();
    let (min, max) = (version(versions.clone().min()), version(versions.max()));
    let last = lines.len().saturating_sub(1);
    format!("{} {} {min} {max} {last}", lines.len(), lines.len())
}

#[track_caller]
fn nothing_is_there_twice(case: &LoadCase, run: &Run, path: &Path, what: &str) {
    let twice = case.value("select count(*) - count(distinct id) from t");
    assert_eq!(twice, "0", "{what}: {}", run.stderr);
    match run.status {
        Some(0) => assert_eq!(table(case), content(path), "{what}: {}", run.stderr),
        Some(2) => assert!(run.stderr.contains("t.csv"), "{what}: {}", run.stderr),
        other => panic!("{what}: {other:?} {}", run.stderr),
    }
}

fn trial(change: FileChange, commit: &str, moment: u64, loses_session: bool) {
    let what = format!("{change:?} at {moment}, commit {commit}, session lost: {loses_session}");
    let case = case();
    let path = case.path("t.csv");
    let held = RowLock::at(&case, moment);
    let args = format!("t.csv --commit {commit} --lanes 1 --quiet");
    let child = spawn(&mut case.load_command(&args));
    held.wait(&case);
    apply(change, &path);
    if loses_session {
        case.db.run(
            "select pg_terminate_backend(pid) from pg_stat_activity \
             where datname = current_database() and wait_event_type = 'Lock'",
        );
    }
    held.end();
    let run = finish(child);
    nothing_is_there_twice(&case, &run, &path, &what);
    // A new session reads the whole file again, and so reads one version of the file, too.
    let is_read_again = loses_session && commit == "end" && change == FileChange::RewriteUnseen;
    let is_same = change == FileChange::Chmod || is_read_again;
    assert_eq!(run.status, Some(if is_same { 0 } else { 2 }), "{what}: {}", run.stderr);
    if commit == "end" && !is_same {
        assert_eq!(table(&case), "0 0 - -", "{what}");
    }
    case.db.run("drop index held");
    let again = case.load(&args);
    nothing_is_there_twice(&case, &again, &path, &format!("{what}, again"));
    // Nothing was written: the file is loaded as it is by now.
    let is_whole = !matches!(change, FileChange::Delete | FileChange::Truncate);
    if commit == "end" && is_whole {
        assert_eq!(again.status, Some(0), "{what}: {}", again.stderr);
    }
}

#[test]
fn a_load_that_commits_at_the_end_writes_nothing_of_a_file_that_changes() {
    for change in CHANGES {
        trial(change, "end", MOMENTS[0], false);
    }
}

#[test]
fn a_load_that_commits_at_the_end_looks_again_when_all_is_read() {
    for change in CHANGES {
        trial(change, "end", MOMENTS[1], false);
    }
}

#[test]
fn a_load_that_commits_chunks_says_that_a_file_has_changed() {
    for change in CHANGES {
        trial(change, "chunk", MOMENTS[0], false);
    }
}

#[test]
fn a_load_that_commits_chunks_looks_again_when_all_is_read() {
    for change in CHANGES {
        trial(change, "chunk", MOMENTS[1], false);
    }
}

#[test]
fn a_file_that_changes_while_a_session_is_lost() {
    for change in CHANGES {
        trial(change, "end", MOMENTS[0], true);
        trial(change, "chunk", MOMENTS[0], true);
    }
}

/// A load with chunks in the table that was killed, before a row of the third.
fn killed() -> LoadCase {
    let case = case();
    let held = RowLock::at(&case, MOMENTS[0]);
    let mut child = spawn(&mut case.load_command("t.csv --commit chunk --lanes 1 --quiet"));
    held.wait(&case);
    child.kill().unwrap();
    child.wait().unwrap();
    held.end();
    case.db.run("drop index held");
    assert_ne!(table(&case), "0 0 - -");
    case
}

#[test]
fn a_load_is_gone_on_with_only_over_what_it_has_read() {
    for change in CHANGES {
        let case = killed();
        let before = table(&case);
        apply(change, &case.path("t.csv"));
        let run = case.load("t.csv --commit chunk --lanes 1 --quiet");
        nothing_is_there_twice(&case, &run, &case.path("t.csv"), &format!("{change:?}"));
        // Whatever is behind the chunks that are written may be another.
        let goes_on = matches!(change, FileChange::Grow | FileChange::Touch | FileChange::Chmod);
        if goes_on {
            assert_eq!(run.status, Some(0), "{change:?}: {}", run.stderr);
        } else {
            assert_eq!(run.status, Some(2), "{change:?}: {}", run.stderr);
            assert_eq!(table(&case), before, "{change:?}");
        }
    }
}

#[test]
fn a_file_that_was_loaded_is_not_loaded_twice() {
    for change in CHANGES {
        let case = case();
        case.load("t.csv --quiet").success();
        let before = table(&case);
        apply(change, &case.path("t.csv"));
        let run = case.load("t.csv --quiet");
        match change {
            FileChange::Touch | FileChange::Chmod => {
                assert_eq!((run.status, table(&case)), (Some(0), before), "{change:?}");
            }
            FileChange::Grow | FileChange::Truncate => {
                let said = run.refusal();
                assert!(said.contains("contains rows that job 1 has already loaded"), "{said}");
                assert!(said.contains("The table has 10000 rows of job 1"), "{said}");
                assert_eq!(table(&case), before, "{change:?}");
            }
            // Other rows under the same name, as of the next day.
            FileChange::Replace | FileChange::Rewrite | FileChange::RewriteUnseen => {
                run.success();
                let versions = "select string_agg(distinct version, '') || count(*) from t";
                assert_eq!(case.value(versions), "ab20000", "{change:?}");
            }
            FileChange::Delete => assert_eq!(run.status, Some(2)),
        }
    }
}

#[test]
fn a_changed_row_in_the_middle_is_seen() {
    let case = case();
    case.load("t.csv --quiet").success();
    let path = case.path("t.csv");
    let before = fs::metadata(&path).unwrap().modified().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("5000,a", "5000,x", 1)).unwrap();
    let times = FileTimes::new().set_modified(before);
    File::options().write(true).open(&path).unwrap().set_times(times).unwrap();
    let said = case.load("t.csv --quiet").refusal();
    assert!(said.contains("contains rows that job 1 has already loaded"), "{said}");
    case.load("t.csv --quiet --restart").success();
    assert_eq!(case.value("select count(*) from t where version = 'x'"), "1");
    // The same options count too: no row comes twice by another reading of it.
    let said = case.load("t.csv --quiet --null x").refusal();
    assert!(said.contains("null was \"\" and is \"x\""), "{said}");
}

#[test]
fn one_file_of_several_and_compressed_ones() {
    let case = LoadCase::new("create table t (id bigint, version text, pad text)");
    for part in 0..3 {
        let rows = rows("a", part * 3000..(part + 1) * 3000);
        case.put(&format!("in/{part}.csv"), format!("id,version,pad\n{rows}"));
    }
    let compress = |name: &str| {
        let mut gzip = std::process::Command::new("gzip");
        assert!(gzip.arg("-1f").arg(case.path(name)).status().unwrap().success());
    };
    compress("in/2.csv");
    for (commit, changed) in [("end", "in/2.csv.gz"), ("end", "in/0.csv"), ("chunk", "in/0.csv")] {
        let held = RowLock::at(&case, 4_000);
        let args = format!("in --table t --commit {commit} --lanes 1 --quiet");
        let child = spawn(&mut case.load_command(&args));
        held.wait(&case);
        let path = case.path(changed);
        let whole = fs::read(&path).unwrap();
        // One is still to be read, the other is.
        File::options().append(true).open(&path).unwrap().write_all(b"\n").unwrap();
        held.end();
        let said = finish(child).refusal();
        assert!(said.contains(&format!("\"{changed}\" grew from")), "{said}");
        assert!(!said.contains("--rejects"), "{said}");
        case.db.run("drop index held");
        fs::write(&path, whole).unwrap();
        match commit {
            "end" => assert_eq!(table(&case), "0 0 - -"),
            _ => {
                // An unchanged file is continued.
                case.load(&args).success();
                assert_eq!(table(&case), "9000 9000 a a 8999");
            }
        }
    }
    // One more row in one of them: the others would be loaded twice.
    let mut file = File::options().append(true).open(case.path("in/1.csv")).unwrap();
    file.write_all(rows("a", 9000..9001).as_bytes()).unwrap();
    let said = case.load("in --table t --quiet").refusal();
    assert!(said.contains("in/0.csv contains rows that job 3 has already loaded"), "{said}");
    assert_eq!(table(&case), "9000 9000 a a 8999");
}

/// What is read through standard input or a pipe is read to its end, once, and proves nothing.
#[test]
fn standard_input_is_what_comes_through_it() {
    let case = case();
    let path = case.path("t.csv");
    let held = RowLock::at(&case, MOMENTS[0]);
    let mut command = case.load_command("- --table t --lanes 1 --quiet");
    let mut child = {
        command.stdin(File::open(&path).unwrap());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command.spawn().unwrap()
    };
    held.wait(&case);
    fs::remove_file(&path).unwrap();
    held.end();
    assert!(child.wait().unwrap().success());
    assert_eq!(table(&case), format!("{ROWS} {ROWS} a a {}", ROWS - 1));
}
