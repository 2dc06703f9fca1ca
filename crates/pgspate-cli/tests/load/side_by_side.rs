//! Tests of compressed files that are decompressed and cut side by side.

use std::process::Command;

use crate::growing_folders::{BIG_ROWS, assert_big, block_at, kill, put_big};
use crate::support::{LoadCase, wait_until};

/// The number of files.
const FILES: u64 = 4;

/// Creates a case with compressed files `in/0` to `in/3`, each of several chunks.
fn new_case() -> LoadCase {
    let case = LoadCase::new("create table t (id bigint, note text)");
    for file in 0..FILES {
        let name = format!("in/{file}");
        put_big(&case, &name, file);
        let mut gzip = Command::new("gzip");
        assert!(gzip.arg("-1").arg(case.path(&name)).status().unwrap().success());
        std::fs::rename(case.path(&format!("{name}.gz")), case.path(&name)).unwrap();
    }
    case
}

/// The files that have chunks in the ledger, each with the first numbers of its chunks. A file's
/// numbers begin at a multiple of 2^40.
const NUMBERS: &str = "select string_agg(concat(input, ':', chunk - (input::bigint << 40)), ' ' \
                                         order by input, chunk) from pgspate.ledger \
                       where chunk - (input::bigint << 40) < 2";

#[test]
fn every_row_of_compressed_files_is_loaded_once() {
    for flags in ["--lanes 1", "--lanes 3", "--commit chunk --lanes 3", "--commit chunk"] {
        let case = new_case();
        case.load(&format!("in --format csv --table t --quiet {flags}")).success();
        assert_big(&case, FILES);
        assert_eq!(case.value(NUMBERS), "0:0 0:1 1:0 1:1 2:0 2:1 3:0 3:1", "{flags}");
    }
}

#[test]
fn one_lane_keeps_the_order_of_the_files() {
    let case = new_case();
    case.load("in --format csv --table t --quiet --lanes 1").success();
    let jumps = "select count(*) from (select id - lag(id) over (order by ctid) as step from t) s \
                 where step <> 1";
    assert_eq!(case.value(jumps), "0");
}

#[test]
fn an_interrupted_load_continues_with_another_number_of_lanes() {
    for (first, second) in [("--lanes 3", "--lanes 1"), ("--lanes 1", "--lanes 3")] {
        let case = new_case();
        let blocked_row = BIG_ROWS + BIG_ROWS / 2;
        let (child, release) = block_at(&case, blocked_row, &format!("--commit chunk {first}"));
        let chunks = "select count(*) from pgspate.ledger";
        wait_until("a chunk is committed", || case.value(chunks) != "0");
        kill(child);
        release();
        let run = case.load(&format!("in --format csv --table t --commit chunk {second}"));
        let said = run.success();
        assert!(said.contains("resuming job 1 of "), "{said}");
        assert_big(&case, FILES);
    }
}

/// Later files may have rows in the table, as they are read side by side.
#[test]
fn a_file_of_which_no_row_is_written_may_be_corrected() {
    let case = new_case();
    let row = |id: &str| format!("id,note\n{id},x\n");
    case.put("in/1", row("x"));
    let args = "in --format csv --table t --commit chunk --lanes 3";
    let said = case.load(args).refusal();
    assert!(said.contains("invalid input syntax for type bigint: \"x\""), "{said}");
    case.put("in/1", row(&BIG_ROWS.to_string()));
    case.load(args).success();
    let rows = (FILES - 1) * BIG_ROWS + 1;
    let sql = "select concat_ws(' ', count(*), count(distinct id)) from t";
    assert_eq!(case.value(sql), format!("{rows} {rows}"));
}

/// Earlier versions numbered the chunks of all files consecutively.
#[test]
fn an_unfinished_job_of_an_earlier_version_is_refused() {
    let case = new_case();
    let flags = "--commit chunk --lanes 1";
    let (child, release) = block_at(&case, BIG_ROWS + BIG_ROWS - 1, flags);
    kill(child);
    release();
    case.db
        .run("update pgspate.ledger set chunk = chunk - (input::bigint << 40) + 3 where input > 0");
    let before = case.contents();
    let said = case.refusal(&format!("in --format csv --table t {flags}"));
    assert!(said.contains("job 1 was begun by an earlier version of pgspate"), "{said}");
    assert_eq!(case.contents(), before);
    case.db.run("truncate t");
    case.load(&format!("in --format csv --table t --quiet {flags}")).success();
    assert_big(&case, FILES);
}
