//! Tests of `--data`: TPC-H's tables, and the user's files.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{Int64Array, RecordBatch};
use flate2::Compression;
use flate2::write::GzEncoder;
use insta::assert_snapshot;
use parquet::arrow::ArrowWriter;
use serde_json::Value;

use crate::{lab, result_lines};

/// Flags for few trials: all strategies, with and without indexes.
const FEW_TRIALS: &str = "--repeats 1 --only autovacuum=on --only synchronous_commit=on";

/// Writes a compressed file.
fn write_gzip(path: &Path, text: &str) {
    let mut out = GzEncoder::new(File::create(path).unwrap(), Compression::fast());
    out.write_all(text.as_bytes()).unwrap();
    out.finish().unwrap();
}

/// Returns the numbers of rows that the trials of a strategy loaded.
fn loaded_rows(lines: &[Value], strategy: &str) -> Vec<f64> {
    let of_it = lines.iter().filter(|line| line["trial"]["strategy"] == strategy);
    let rows = |line: &Value| {
        let numbers = line["numbers"].as_array().unwrap();
        numbers.iter().find(|it| it["name"] == "rows").and_then(|it| it["value"].as_f64())
    };
    of_it.filter_map(rows).collect()
}

/// Writes the report page. The page must contain these texts.
fn check_report_page(folder: &Path, has: &[&str]) {
    let report = lab(folder, "report --out page.html");
    assert_eq!(report.status, Some(0), "{}", report.stderr);
    let page = fs::read_to_string(folder.join("page.html")).unwrap();
    for text in has {
        assert!(page.contains(text), "the page has no \"{text}\"");
    }
    assert!(!page.contains("NaN"));
}

const STRATEGIES: [&str; 3] = ["one session", "a session per file", "pgspate"];

#[test]
fn all_strategies_load_equal_rows_of_tpch() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    let done = lab(folder, &format!("run bulk --data tpch --scale 0.00002 {FEW_TRIALS}"));
    assert_eq!(done.status, Some(0), "{}", done.stderr);
    assert!(done.stdout.starts_with("bulk, scale 0.00002: pgspate loads "), "{}", done.stdout);
    let lines = result_lines(folder);
    assert_eq!(lines.len(), 9);
    for strategy in STRATEGIES {
        // 18,567 lines of 4,650 orders, 620 parts of four out of 31 suppliers, 465 customers,
        // 25 nations of five regions.
        assert_eq!(loaded_rows(&lines, strategy), [26_843.0; 3], "{strategy}");
    }
    assert!(lines.iter().all(|line| line["conditions"]["data"]["kind"] == "tpch"));
    check_report_page(
        folder,
        &[
            "How fast do TPC-H&#39;s eight tables load",
            "Time for all eight tables",
            "lineitem alone.",
            "pgspate lab run bulk --data tpch --scale 0.00002",
            "at scale factor 0.0031",
            "partsupp",
        ],
    );
    let other = lab(folder, "run bulk --scale 0.00002 --repeats 1");
    assert_eq!(other.status, Some(2));
    assert_snapshot!(other.stderr, @r#"
    error: results of bulk in "pgspate-lab" are of another set of data: tpch, not imdb

    hint: Give another folder with `--results`, or discard the earlier results with `--fresh`.
    "#);
}

#[test]
fn all_strategies_load_equal_rows_of_own_files() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    fs::create_dir(folder.join("mine")).unwrap();
    // The last price is not a number. It lies behind the part that pgspate reads to create a table.
    let orders: String = (0..10_100).map(|nth| format!("{nth},\"a, {nth}\",{nth}.5\n")).collect();
    write_gzip(&folder.join("mine/order.csv.gz"), &format!("id,Name,price\n{orders}10101,,x\n"));
    write_gzip(&folder.join("mine/items-1.csv.gz"), "item,at\n1,2024-01-01\n2,2024-02-29\n");
    write_gzip(&folder.join("mine/items-2.csv.gz"), "at,item\n2024-03-01,3\n");
    // A file without rows that belongs to an existing table.
    write_gzip(&folder.join("mine/items-3.csv.gz"), "item,at\n");
    fs::write(folder.join("mine/part-3.csv"), "").unwrap();
    // The file with the most stored bytes.
    let long = format!("id,text\n1,{}\n2,y\n", "x".repeat(200_000));
    fs::write(folder.join("mine/long.csv"), long).unwrap();
    // The two files spell NULL differently.
    fs::write(folder.join("mine/part-1.csv"), "id,v\n1,\\N\n2,x\n").unwrap();
    fs::write(folder.join("mine/part-2.csv"), "id,v\n3,\n4,y\n").unwrap();
    let run = format!("run bulk --data mine {FEW_TRIALS}");
    let done = lab(folder, &run);
    assert_eq!(done.status, Some(0), "{}", done.stderr);
    let all = result_lines(folder);
    assert_eq!(all.len(), 6);
    for strategy in STRATEGIES {
        assert_eq!(loaded_rows(&all, strategy), [10_110.0; 2], "{strategy}");
    }
    let tables = all[0]["conditions"]["data"]["tables"].as_array().unwrap();
    let names: Vec<_> =
        tables.iter().map(|it| (it["name"].as_str(), it["files"].as_u64())).collect();
    let expected = [("long", 1), ("order", 1), ("items", 3), ("part", 3)];
    let expected = expected.map(|(name, files)| (Some(name), Some(files)));
    assert_eq!(names, expected);
    check_report_page(
        folder,
        &[
            "How fast do these files load: by one session",
            "order alone.",
            "pgspate lab run bulk --data ... --repeats 1",
            "items: 3 files of csv",
            "Files have no information about keys",
        ],
    );
    // The lab keeps measurements as long as the files are unchanged.
    let again = lab(folder, &run);
    assert_eq!((again.status, result_lines(folder).len()), (Some(0), 6));
    write_gzip(&folder.join("mine/items-2.csv.gz"), "at,item\n2024-03-01,3\n2024-03-01,4\n");
    let other = lab(folder, &run);
    assert_eq!(other.status, Some(2));
    let said =
        "error: results of bulk in \"pgspate-lab\" are of another set of data: your files for";
    assert!(other.stderr.starts_with(said), "{}", other.stderr);
}

#[test]
fn files_belong_to_one_table_if_their_columns_are_equal() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    fs::create_dir(folder.join("mine")).unwrap();
    let parquet = |name: &str, column: &str| {
        let ids: arrow_array::ArrayRef = Arc::new(Int64Array::from_iter_values(0..10));
        let batch = RecordBatch::try_from_iter([(column, ids)]).unwrap();
        let file = File::create(folder.join("mine").join(name)).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    };
    for (name, column) in [("t1.parquet", "a"), ("t2.parquet", "b"), ("t3.parquet", "a")] {
        parquet(name, column);
    }
    fs::write(folder.join("mine/u1.ndjson"), "{\"a\": 1}\n").unwrap();
    fs::write(folder.join("mine/u2.ndjson"), "{\"b\": 1, \"a\": 2}\n").unwrap();
    fs::write(folder.join("mine/u3.ndjson"), "").unwrap();
    let done = lab(folder, &format!("run bulk --data mine {FEW_TRIALS}"));
    assert_eq!(done.status, Some(0), "{}", done.stderr);
    let all = result_lines(folder);
    assert_eq!(loaded_rows(&all, "pgspate"), [32.0; 2]);
    let tables = all[0]["conditions"]["data"]["tables"].as_array().unwrap();
    let mut names: Vec<_> =
        tables.iter().map(|it| (it["name"].as_str().unwrap(), it["files"].as_u64())).collect();
    names.sort();
    assert_eq!(names, [("t", Some(2)), ("t2", Some(1)), ("u", Some(3))]);
}

#[test]
fn all_strategies_load_equal_rows_of_odd_files() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    fs::create_dir(folder.join("odd")).unwrap();
    for (name, text) in [
        ("crlf.csv", "id,txt\r\n1,\"a \"\"q\"\" b\"\r\n2,\r\n3,\"\"\r\n4,\"two\r\nlines\"\r\n"),
        ("mark.csv", "\u{feff}id;näme\n1;x\n2;\"y;z\"\n"),
        ("bare mark.csv", "\u{feff}1,a\n2,b\n"),
        ("names.csv", "\"id\",\"a, b\",\"select\"\n1,2,\"3\"\n4,5,\"6\"\n"),
        ("escapes.csv", "id,txt\n1,\"a \\\" b\"\n2,\"c \\\" d\"\n"),
        ("nulls.csv", "id,v\n1,NULL\n2,3\n3,4\n"),
        ("empty lines.csv", "name\nx\n\ny\n"),
        ("notes.tsv", "id\tnote\n1\t5\" disk\n2\t\\N\n3\t\"half\n"),
        // PostgreSQL has a view of this name, and `pg_catalog` is searched first.
        ("pg_settings.csv", "name,setting\nx,1\n"),
        ("server.copy", "1\ta\\tb\t\\N\n2\tc\\\\d\tx\n"),
    ] {
        fs::write(folder.join("odd").join(name), text).unwrap();
    }
    // The run itself compares the rows that the strategies load.
    let done = lab(folder, &format!("run bulk --data odd {FEW_TRIALS}"));
    assert_eq!(done.status, Some(0), "{}", done.stderr);
    let all = result_lines(folder);
    for strategy in STRATEGIES {
        assert_eq!(loaded_rows(&all, strategy), [24.0; 2], "{strategy}");
    }
}

#[test]
fn strategies_with_copy_are_skipped_if_copy_cannot_read_a_file() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    fs::write(folder.join("a.ndjson"), "{\"id\": 1}\n{\"id\": 2, \"of\": [1]}\n").unwrap();
    fs::write(folder.join("b.csv"), "id\n1\n").unwrap();
    let done = lab(
        folder,
        &format!("run bulk storage --data a.ndjson b.csv {FEW_TRIALS} --only volume=x"),
    );
    assert_eq!(done.status, Some(2), "bulk has no volume");
    let done = lab(folder, &format!("run bulk --data a.ndjson b.csv {FEW_TRIALS}"));
    assert_eq!(done.status, Some(0), "{}", done.stderr);
    let all = result_lines(folder);
    assert_eq!(loaded_rows(&all, "pgspate"), [3.0; 2]);
    let left_out: Vec<_> = all.iter().filter_map(|line| line["skipped"].as_str()).collect();
    assert_eq!(left_out, ["COPY does not read a.ndjson: it is json"; 4]);
    let said = done.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let why = "COPY was not measured, because COPY does not read a.ndjson: it is json.";
    assert!(said.starts_with("bulk: pgspate loads 3 rows in ") && said.ends_with(why), "{said}");
    check_report_page(
        folder,
        &["skipped, because COPY does not read a.ndjson: it is json: one session"],
    );
}

#[test]
fn the_error_names_the_bad_row_and_the_run_leaves_no_file() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    write_gzip(&folder.join("good.csv.gz"), "id,name\n1,a\n2,b\n");
    write_gzip(&folder.join("bad.csv.gz"), "id,name\n1,a\n2,b\n3,c,d\n");
    let done = lab(folder, "run bulk --data good.csv.gz bad.csv.gz --repeats 1 --quiet");
    assert_eq!((done.status, done.stdout.as_str()), (Some(2), ""));
    assert_snapshot!(done.stderr, @r#"
    error: could not load "bad.csv.gz" into pgspate_lab.bad
      caused by: extra data after last expected column
      at: bad.csv.gz, line 4, byte 16

    hint: Expected 2 fields, found 3. Correct the row, or load without this file.
    "#);
    let mut left: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["bad.csv.gz", "good.csv.gz"]);
}

#[test]
fn invalid_data_are_refused_before_anything_is_started() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path();
    fs::write(folder.join("a.csv"), "id\n1\n").unwrap();
    for (args, said) in [
        ("run rewrite --data tpch", "error: rewrite has its own data, and does not accept --data"),
        ("run bulk --data a.csv --scale 0.1", "error: --scale does not apply to your own files"),
        ("run bulk --data a.csv tpch", "error: \"tpch\" cannot be combined with other data"),
        ("run bulk --data none.csv", "error: \"none.csv\" does not exist"),
        ("run bulk --data a.csv ./a.csv -", "error: \"-\" can be read only once"),
    ] {
        let refused = lab(folder, args);
        assert_eq!(refused.status, Some(2), "{args}");
        assert!(refused.stderr.starts_with(said), "{args}: {}", refused.stderr);
    }
    assert_eq!(fs::read_dir(folder).unwrap().count(), 1);
}
