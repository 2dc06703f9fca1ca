//! Tests of loads of folders that change between two runs: each file is loaded once.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::Child;

use serde_json::Value;

use crate::moto::Moto;
use crate::object_store::{load_from_store, put_object};
use crate::support::{LoadCase, Run, TO_VERSION_3, finish, session, spawn, wait_until};

const CREATE: &str = "create table t (id bigint, note text)";

/// Creates a case with files `land/a.csv` and `land/b.csv`, of two rows each.
fn new_case() -> LoadCase {
    let case = LoadCase::new(CREATE);
    put_rows(&case, "land/a.csv", 0..2);
    put_rows(&case, "land/b.csv", 10..12);
    case
}

fn put_rows(case: &LoadCase, name: &str, ids: std::ops::Range<u64>) {
    let rows: String = ids.map(|id| format!("{id},x\n")).collect();
    case.put(name, format!("id,note\n{rows}"));
}

/// Returns the ids in the table, in order: `0 1 10 11`.
fn ids(case: &LoadCase) -> String {
    case.value("select string_agg(id::text, ' ' order by id) from t")
}

/// Runs a load with `--json` and returns its report.
#[track_caller]
fn report(case: &LoadCase, args: &str) -> Value {
    let run = case.load(&format!("{args} --json"));
    assert_eq!(run.status, Some(0), "{args}: {}", run.stderr);
    serde_json::from_str(&run.stdout).unwrap()
}

/// Returns the numbers of new, skipped and changed files: `1 2 0`.
fn counts(report: &Value) -> String {
    let files = &report["files"];
    format!("{} {} {}", files["new"], files["skipped"], files["changed"])
}

#[test]
fn a_folder_that_grows_loads_only_its_new_files() {
    for commit in ["end", "chunk"] {
        let case = new_case();
        for (source, more) in [("land", ""), ("land/*.csv", "")] {
            let args = format!("{source} --table t --commit {commit}{more}");
            report(&case, &args);
            assert_eq!(ids(&case), "0 1 10 11", "{args}");
        }
        // The new files come before, between and after the loaded files.
        for (file, first, all) in [
            ("land/0.csv", 20, "0 1 10 11 20"),
            ("land/ab.csv", 21, "0 1 10 11 20 21"),
            ("land/c.csv", 22, "0 1 10 11 20 21 22"),
        ] {
            put_rows(&case, file, first..first + 1);
            let loaded = report(&case, &format!("land/*.csv --table t --commit {commit}"));
            assert_eq!(ids(&case), all, "{commit}");
            let skipped = all.split(' ').count() - 3;
            assert_eq!(counts(&loaded), format!("1 {skipped} 0"));
            assert_eq!((&loaded["rows_in"], &loaded["inputs"]), (&1.into(), &(skipped + 1).into()));
        }
        let again = report(&case, &format!("land --table t --commit {commit}"));
        assert_eq!((counts(&again), &again["rows_before"]), ("0 5 0".to_owned(), &7.into()));
        assert_eq!(ids(&case), "0 1 10 11 20 21 22");
    }
}

#[test]
fn plan_output_and_status_name_the_skipped_files() {
    let case = new_case();
    case.load("land --table t --quiet").success();
    put_rows(&case, "land/c.csv", 20..21);
    let plan = case.load("land --table t --plan");
    assert!(
        plan.stdout.contains("ledger   3 files: 1 new, 2 skipped as loaded"),
        "{}",
        plan.stdout
    );
    let json = report(&case, "land --table t --plan");
    assert_eq!(counts(&json), "1 2 0");
    assert_eq!(ids(&case), "0 1 10 11");
    let said = case.load("land --table t").success();
    assert_eq!(said.matches("3 files: 1 new, 2 skipped as loaded").count(), 2, "{said}");
    let said = case.load("land --table t").success();
    assert!(said.contains("2 jobs have loaded this, 5 rows, at [WHEN]; `--restart`"), "{said}");
}

#[test]
fn files_are_recognised_in_any_number_order_and_spelling() {
    let case = new_case();
    put_rows(&case, "land/c.csv", 20..21);
    case.load("land/b.csv land/a.csv --table t --quiet").success();
    std::os::unix::fs::symlink(case.path("land"), case.path("link")).unwrap();
    for part in [
        "land/a.csv",
        "land/a.csv land/b.csv",
        "./land/../land/b.csv",
        "link/a.csv",
        "link/b.csv land/a.csv",
    ] {
        assert_eq!(report(&case, &format!("{part} --table t"))["rows_in"], 0, "{part}");
    }
    let absolute = case.path("link").join("[ac].csv");
    let loaded = report(&case, &format!("{} --table t", absolute.display()));
    assert_eq!((counts(&loaded), ids(&case)), ("1 1 0".to_owned(), "0 1 10 11 20".to_owned()));
    for twice in ["land/a.csv land/a.csv", "land/a.csv ./land/a.csv", "land/a.csv link/a.csv"] {
        let said = case.refusal(&format!("{twice} --table t --restart"));
        assert!(said.contains("is named more than once"), "{twice}: {said}");
    }
}

#[test]
fn a_changed_file_is_refused_left_out_or_loaded_again() {
    let case = new_case();
    case.load("land --table t --quiet").success();
    put_rows(&case, "land/a.csv", 5..8);
    put_rows(&case, "land/c.csv", 20..21);
    let said = case.refusal("land --table t");
    assert!(said.contains("land/a.csv has changed since it was loaded into public.t"), "{said}");
    assert!(said.contains("`--changed skip`") && said.contains("`--changed reload`"), "{said}");
    assert!(said.contains("was 16 bytes, changed at [WHEN]"), "{said}");
    let skipped = report(&case, "land --table t --changed skip");
    assert_eq!((counts(&skipped), ids(&case)), ("1 1 1".to_owned(), "0 1 10 11 20".to_owned()));
    // Without a new file, too.
    assert_eq!(counts(&report(&case, "land --table t --changed skip")), "0 2 1");
    assert_eq!(ids(&case), "0 1 10 11 20");
    let run = case.load("land --table t --changed reload");
    assert!(run.success().contains("3 files: 2 skipped as loaded, 1 changed and loaded again"));
    assert_eq!(ids(&case), "0 1 5 6 7 10 11 20");
    // Both versions of the file are known now.
    assert_eq!(counts(&report(&case, "land --table t")), "0 3 0");
    put_rows(&case, "land/a.csv", 0..2);
    assert_eq!(counts(&report(&case, "land --table t")), "0 3 0");
    assert_eq!(ids(&case), "0 1 5 6 7 10 11 20");
}

#[test]
fn a_touched_or_copied_file_is_the_same_file() {
    let case = new_case();
    case.load("land --table t --quiet").success();
    for name in ["land/a.csv", "land/b.csv"] {
        let text = fs::read(case.path(name)).unwrap();
        fs::write(case.path("copy"), text).unwrap();
        fs::rename(case.path("copy"), case.path(name)).unwrap();
    }
    put_rows(&case, "land/c.csv", 20..21);
    assert_eq!(counts(&report(&case, "land --table t")), "1 2 0");
    assert_eq!(ids(&case), "0 1 10 11 20");
}

#[test]
fn a_file_without_rows_may_be_filled_later() {
    let case = new_case();
    case.put("land/c.csv", "");
    case.put("land/d.csv", "id,note\n");
    case.load("land --table t --quiet").success();
    // Only an empty file is new.
    case.put("land/e.csv", "");
    assert_eq!(counts(&report(&case, "land --table t")), "1 4 0");
    for (name, id) in [("land/c.csv", 20), ("land/d.csv", 30), ("land/e.csv", 40)] {
        put_rows(&case, name, id..id + 1);
        assert_eq!(report(&case, "land --table t")["rows_written"], 1, "{name}");
    }
    assert_eq!(ids(&case), "0 1 10 11 20 30 40");
}

#[test]
fn other_options_are_refused_but_guesses_may_differ() {
    let case = new_case();
    case.load("land --table t --quiet").success();
    put_rows(&case, "land/c.csv", 20..21);
    let said = case.refusal("land --table t --null x");
    assert!(
        said.contains("a.csv is in public.t already: job 1 has loaded it with other"),
        "{said}"
    );
    assert!(said.contains("null was \"\" and is \"x\""), "{said}");
    // The new file has another delimiter and another order of columns.
    case.put("land/0.csv", "note;id\nx;30\n");
    fs::remove_file(case.path("land/c.csv")).unwrap();
    assert_eq!(counts(&report(&case, "land --table t")), "1 2 0");
    assert_eq!(counts(&report(&case, "land --table t")), "0 3 0");
    assert_eq!(ids(&case), "0 1 10 11 30");
}

#[test]
fn restart_replace_and_another_table_load_all_files() {
    let case = new_case();
    case.load("land --table t --quiet").success();
    put_rows(&case, "land/c.csv", 20..21);
    let replaced = report(&case, "land --table t --replace");
    assert_eq!((counts(&replaced), ids(&case)), ("3 0 0".to_owned(), "0 1 10 11 20".to_owned()));
    // The files that a replacing load has loaded are in the table.
    put_rows(&case, "land/d.csv", 30..31);
    assert_eq!(counts(&report(&case, "land --table t")), "1 3 0");
    assert_eq!(counts(&report(&case, "land --table t --atomic")), "0 4 0");
    assert_eq!(ids(&case), "0 1 10 11 20 30");
    assert_eq!(counts(&report(&case, "land/c.csv land/d.csv --table t --restart")), "2 0 0");
    assert_eq!(ids(&case), "0 1 10 11 20 20 30 30");
    case.db.run("create table u (like t)");
    assert_eq!(counts(&report(&case, "land --table u")), "4 0 0");
    case.db.run("truncate u");
    assert_eq!(counts(&report(&case, "land --table u")), "4 0 0");
    assert_eq!(case.value("select count(*) from u"), "6");
    case.db.run("alter table u rename to v");
    assert_eq!(counts(&report(&case, "land --table v")), "0 4 0");
}

/// Rows of 2 KiB: three files of about 10 MiB, so that each has several chunks.
pub(crate) const BIG_ROWS: u64 = 5_000;

pub(crate) fn put_big(case: &LoadCase, name: &str, file: u64) {
    let mut text = "id,note\n".to_owned();
    for id in file * BIG_ROWS..(file + 1) * BIG_ROWS {
        writeln!(text, "{id},{id:>1900}").unwrap();
    }
    case.put(name, text);
}

/// Checks that the table has all rows of the first `files` big files, each once.
#[track_caller]
pub(crate) fn assert_big(case: &LoadCase, files: u64) {
    let rows = files * BIG_ROWS;
    let sql = "select concat_ws(' ', count(*), count(distinct id), max(id)) from t";
    assert_eq!(case.value(sql), format!("{rows} {rows} {}", rows - 1));
}

/// Starts a load that waits at the row `id`, and kills it there. Files: `b`, `c`, `d`.
fn kill_at(id: u64, commit: &str) -> LoadCase {
    let case = LoadCase::new(CREATE);
    (0..3)
        .zip(["b", "c", "d"])
        .for_each(|(file, name)| put_big(&case, &format!("in/{name}"), file));
    let (child, release) = block_at(&case, id, &format!("--commit {commit} --lanes 1"));
    kill(child);
    release();
    case
}

pub(crate) fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Starts a load of the folder `in` that waits at the row `id`. Also returns what lets it continue.
pub(crate) fn block_at<'a>(
    case: &'a LoadCase,
    id: u64,
    flags: &str,
) -> (Child, impl FnOnce() + use<'a>) {
    case.db.run(&format!("create unique index held on t (id) where id = {id}"));
    let (runtime, holder) = session(&case.db.dsn());
    let sql = format!("begin; insert into t values ({id}, 'held')");
    runtime.block_on(holder.batch_execute(&sql)).unwrap();
    let args = format!("in --format csv --table t {flags} --quiet");
    let child = spawn(&mut case.load_command(&args));
    let waits = "select count(*) from pg_stat_activity \
                 where wait_event_type = 'Lock' and datname = current_database()";
    wait_until("the load waits for the key", || case.value(waits) != "0");
    let release = move || {
        runtime.block_on(holder.batch_execute("rollback")).unwrap();
        let quiet = "select count(*) from pg_stat_activity where datname = current_database() \
                     and application_name like 'pgspate%' and wait_event_type = 'Lock'";
        wait_until("no session waits for the key", || case.value(quiet) == "0");
        case.db.run("drop index held");
    };
    (child, release)
}

fn load_folder(case: &LoadCase, commit: &str) -> Run {
    case.load(&format!("in --format csv --table t --commit {commit} --lanes 1"))
}

#[test]
fn an_interrupted_load_of_a_folder_is_finished_together_with_new_files() {
    for commit in ["end", "chunk"] {
        // In the second file, so that the first file is written with `--commit chunk`.
        let case = kill_at(BIG_ROWS + 3_000, commit);
        // The new files sort before and after the files of the interrupted load.
        put_big(&case, "in/a", 3);
        put_big(&case, "in/e", 4);
        let said = load_folder(&case, commit).success();
        assert_eq!(said.contains("resuming job 1 of "), commit == "chunk", "{said}");
        assert_big(&case, 5);
        assert_eq!(case.value("select count(*) from pgspate.job where finished is null"), "0");
        assert_eq!(counts(&report(&case, "in --format csv --table t")), "0 5 0");
        assert_big(&case, 5);
    }
}

#[test]
fn an_interrupted_load_continues_if_a_file_it_has_not_reached_is_gone() {
    let case = kill_at(BIG_ROWS + 3_000, "chunk");
    fs::remove_file(case.path("in/d")).unwrap();
    assert!(load_folder(&case, "chunk").success().contains("resuming job 1 of "));
    assert_big(&case, 2);
    put_big(&case, "in/d", 2);
    load_folder(&case, "chunk").success();
    assert_big(&case, 3);
}

#[test]
fn an_interrupted_load_is_not_continued_without_a_file_of_which_it_has_rows() {
    let case = kill_at(BIG_ROWS + 3_000, "chunk");
    let written = case.value("select count(*) from t");
    fs::rename(case.path("in/b"), case.path("b")).unwrap();
    for more in ["", " --restart"] {
        let said = case.refusal(&format!("in --format csv --table t --commit chunk{more}"));
        assert!(said.contains("this load has files of unfinished job 1, but lacks "), "{said}");
        assert!(said.contains("Name all files of job 1"), "{said}");
    }
    assert_eq!(case.value("select count(*) from t"), written);
    fs::rename(case.path("b"), case.path("in/b")).unwrap();
    load_folder(&case, "chunk").success();
    assert_big(&case, 3);
}

#[test]
fn an_interrupted_load_of_files_in_another_order_continues() {
    let case = kill_at(BIG_ROWS + 3_000, "chunk");
    let run = case.load("in/d in/c in/b --format csv --table t --commit chunk --lanes 1");
    assert!(run.success().contains("resuming job 1 of "));
    assert_big(&case, 3);
}

#[test]
fn two_loads_of_overlapping_folders_load_each_file_once() {
    let case = LoadCase::new(CREATE);
    (0..3)
        .zip(["b", "c", "d"])
        .for_each(|(file, name)| put_big(&case, &format!("in/{name}"), file));
    let (child, release) = block_at(&case, BIG_ROWS + 3_000, "--commit end --lanes 1");
    let part = case.load("in/c --format csv --table t --quiet");
    assert!(part.refusal().contains("this load is running in session [N]"), "{}", part.stderr);
    put_big(&case, "in/a", 3);
    let second = spawn(&mut case.load_command("in --format csv --table t --quiet"));
    let waits = "select count(*) from pg_stat_activity where datname = current_database() \
                 and query like 'select pg_try_advisory_lock%'";
    wait_until("the second load waits for the first", || case.value(waits) != "0");
    release();
    assert_eq!(finish(child).status, Some(0));
    // The second load gives up if the first takes long.
    let second = finish(second);
    assert!(second.status == Some(0) || second.stderr.contains("running"), "{}", second.stderr);
    load_folder(&case, "end").success();
    assert_big(&case, 4);
}

#[test]
fn a_folder_with_rejects_loads_only_its_new_files() {
    let case = new_case();
    case.put("land/c.csv", "id,note\nbad,x\n20,x\n");
    case.load("land --table t --rejects bad.csv --quiet").partial();
    put_rows(&case, "land/d.csv", 30..31);
    assert_eq!(counts(&report(&case, "land --table t --rejects worse.csv")), "1 3 0");
    assert_eq!(ids(&case), "0 1 10 11 20 30");
    // All is loaded: the rejects of both jobs are written again.
    fs::remove_file(case.path("bad.csv")).unwrap();
    case.load("land --table t --rejects bad.csv --quiet").partial();
    assert_eq!(fs::read_to_string(case.path("bad.csv")).unwrap(), "id,note\nbad,x\n");
}

/// The ledger has names as text, in which the two would be the same.
#[test]
fn names_that_are_not_utf8_are_refused() {
    let case = LoadCase::new(CREATE);
    put_rows(&case, "land/a.csv", 0..2);
    for byte in [0xfc, 0xf6] {
        let name = OsStr::from_bytes(&[b'M', byte, b'.', b'c', b's', b'v']).to_owned();
        fs::copy(case.path("land/a.csv"), case.path("land").join(name)).unwrap();
    }
    let said = case.refusal("land --table t");
    assert!(said.contains("is not UTF-8"), "{said}");
    assert_eq!(case.rows("t").len(), 0);
}

#[test]
fn thousands_of_files_are_recognised() {
    let case = LoadCase::new(CREATE);
    for file in 0..2_500 {
        put_rows(&case, &format!("land/{file:04}.csv"), file..file + 1);
    }
    case.load("land --table t --quiet").success();
    put_rows(&case, "land/0000-new.csv", 2_500..2_501);
    assert_eq!(counts(&report(&case, "land --table t")), "1 2500 0");
    assert_eq!(
        case.value("select concat_ws(' ', count(*), count(distinct id)) from t"),
        "2501 2501"
    );
}

#[test]
fn objects_of_a_prefix_that_grows_are_loaded_once() {
    let case = LoadCase::new("create table t (id int primary key, name text)");
    let moto = Moto::start(&[]);
    put_object(&moto, "lake", b"");
    put_object(&moto, "lake/land/a.csv", b"id,name\n1,one\n");
    let load = |more: &[&str]| load_from_store(&case, &moto, "s3://lake/land/", more);
    load(&["-q"]).success();
    put_object(&moto, "lake/land/0.csv", b"id,name\n2,two\n");
    assert!(load(&[]).success().contains("2 files: 1 new, 1 skipped as loaded"));
    assert_eq!(case.rows("t"), ["(1,one)", "(2,two)"]);
    put_object(&moto, "lake/land/a.csv", b"id,name\n3,three\n");
    let said = load(&["-q"]).refusal();
    assert!(said.contains("s3://lake/land/a.csv has changed since it was loaded"), "{said}");
    load(&["-q", "--changed", "reload"]).success();
    assert_eq!(case.rows("t"), ["(1,one)", "(2,two)", "(3,three)"]);
}

#[test]
fn files_of_a_ledger_of_version_3_are_recognised() {
    let case = new_case();
    case.load("land --table t --quiet").success();
    case.load("land/a.csv --table t --quiet --restart").success();
    let secret = case.value("select secret from pgspate.version");
    case.db.run(TO_VERSION_3);
    put_rows(&case, "land/c.csv", 20..21);
    assert_eq!(counts(&report(&case, "land --table t")), "1 2 0");
    assert_eq!(ids(&case), "0 0 1 1 10 11 20");
    assert_eq!(case.value("select version from pgspate.version"), "9");
    assert_eq!(case.value("select secret from pgspate.version"), secret);
    assert_eq!(report(&case, "land/a.csv --table t")["rows_before"], 2);
    // An unfinished job of that version continues.
    let case = kill_at(BIG_ROWS + 3_000, "chunk");
    case.db.run(TO_VERSION_3);
    put_big(&case, "in/a", 3);
    assert!(load_folder(&case, "chunk").success().contains("resuming job 1 of "));
    assert_big(&case, 4);
}

#[test]
fn a_job_of_version_3_with_thousands_of_files_is_recognised_as_a_whole_only() {
    let case = LoadCase::new(CREATE);
    for file in 0..1_200 {
        put_rows(&case, &format!("land/{file:04}.csv"), file..file + 1);
    }
    case.load("land --table t --quiet").success();
    case.db.run(TO_VERSION_3);
    assert_eq!(counts(&report(&case, "land --table t")), "0 1200 0");
    put_rows(&case, "land/new.csv", 1_200..1_201);
    let said = case.load("land --table t --quiet").refusal();
    assert!(said.contains("cannot tell which files job 1 has loaded"), "{said}");
    // The new file alone can be loaded.
    case.load("land/new.csv --table t --quiet").success();
    assert_eq!(
        case.value("select concat_ws(' ', count(*), count(distinct id)) from t"),
        "1201 1201"
    );
}
