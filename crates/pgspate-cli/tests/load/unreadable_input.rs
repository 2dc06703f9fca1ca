//! Tests that input which cannot be loaded gives a clear error and changes nothing.

use std::io::Write;
use std::sync::Arc;

use arrow_array::{Int64Array, RecordBatch};
use flate2::Compression;
use flate2::write::GzEncoder;
use insta::assert_snapshot;

use crate::support::LoadCase;

const CREATE_TABLE: &str = "create table t (id int primary key, name text, qty int default 7); \
                     insert into t values (-1, 'old', 0)";

fn new_case() -> LoadCase {
    LoadCase::new(CREATE_TABLE)
}

#[test]
fn a_missing_file_is_refused() {
    assert_snapshot!(new_case().refusal("no.csv --table t"), @r#"
    error: "no.csv" does not exist
      at: no.csv

    hint: Relative paths start from the current folder.
    "#);
    assert_snapshot!(new_case().refusal("no*.csv --table t"), @r#"
    error: no files match "no*.csv"
      at: no*.csv

    hint: Patterns match files: `*` stays within one folder, `**` crosses folders, and
          … hidden files are ignored.
    "#);
}

#[test]
fn a_folder_without_files_is_refused() {
    let case = new_case();
    std::fs::create_dir(case.path("empty")).unwrap();
    assert_snapshot!(case.refusal("empty --table t"), @r#"
    error: no files in folder "empty"
      at: empty
    "#);
}

/// The files of such tables also have rows that were deleted or replaced.
#[test]
fn folders_of_other_table_formats_are_refused() {
    let case = new_case();
    for file in [
        "delta/_delta_log/0.json",
        "delta/year=2024/a.csv",
        "hudi/.hoodie/hoodie.properties",
        "hudi/day=1/a.csv",
        "ice/metadata/v1.metadata.json",
        "ice/data/a.csv",
    ] {
        case.put(file, "id,name,qty\n1,a,1\n");
    }
    assert_snapshot!(case.refusal("hudi --table t"), @r#"
    error: "hudi" is a Hudi table
      at: hudi

    hint: The files also contain deleted and replaced rows. Export the current rows to
          … Parquet first. To load all files anyway, name them by a pattern.
    "#);
    for (folder, format) in [
        ("delta", "a Delta Lake table"),
        ("delta/year=2024", "a Delta Lake table"),
        ("hudi/day=1", "a Hudi table"),
        ("ice", "an Iceberg table"),
        ("ice/data", "an Iceberg table"),
    ] {
        let said = case.refusal(&format!("{folder} --table t"));
        assert!(said.contains(&format!("error: \"{folder}\" is ")), "{said}");
        assert!(said.contains(format), "{said}");
    }
    case.load("ice/data/*.csv --table t").success();
    assert_eq!(case.value("select count(*) from t where name = 'a'"), "1");
}

#[test]
fn an_empty_file_without_a_named_format_is_refused() {
    let case = new_case();
    case.put("empty.csv", "");
    assert_snapshot!(case.refusal("empty.csv --table t"), @"
    error: the input is empty
      at: empty.csv

    hint: Name the format with `--format` to load an empty input as no rows. A table cannot
          … be created from it.
    ");
    assert_snapshot!(case.refusal("empty.csv --create --table made"), @"
    error: the input is empty
      at: empty.csv

    hint: Name the format with `--format` to load an empty input as no rows. A table cannot
          … be created from it.
    ");
}

#[test]
fn an_empty_file_of_a_named_format_has_no_rows() {
    let case = new_case();
    case.put("empty.csv", "");
    let run = case.load("empty.csv --table t --format csv --header no --quiet");
    assert_eq!((run.status, run.stderr.as_str()), (Some(0), ""));
    assert_eq!(case.rows("t"), ["(-1,old,0)"]);
}

#[test]
fn a_header_alone_has_no_rows() {
    let case = new_case();
    case.put("t.csv", "id,name,qty\n");
    assert_snapshot!(case.load("t.csv").success(), @r#"
    format csv: the name ends with .csv
    delimiter ",": 3 fields in each line
    header yes: the first line names the table's columns
    public.t: 0 rows, 0 B in [TIME], [RATE]
      stage         busy  per lane
      source [TIME] [TIME]
      encode [TIME] [TIME]
      server [TIME] [TIME]
      commit [TIME]
      0 lanes, 0 chunks, 0 B of binary COPY, [SIZE] of WAL
    open it with [PSQL] -c 'table public.t limit 10'
    "#);
    assert_eq!(case.rows("t"), ["(-1,old,0)"]);
}

#[test]
fn a_table_is_not_created_from_a_line_that_may_be_a_header() {
    let case = LoadCase::new("");
    case.put("t.csv", "id,name\n");
    assert_snapshot!(case.refusal("t.csv --table t --create"), @"
    error: could not tell whether the first line names the columns: there is only one line
      at: t.csv

    hint: Say so with `--header yes`, or `--header no` if it is a row.
    ");
    case.put("u.csv", "id,,\n1,2,3\n");
    let said = case.refusal("u.csv --table t --create");
    assert!(said.contains("several fields of the first are empty"), "{said}");
    case.load("t.csv --table t --create --header yes").success();
    assert_eq!(case.columns(), "id text, name text");
    case.load("t.csv --table u --create --header no").success();
    assert_eq!(case.rows("u"), ["(id,name)"]);
    // Names may occur twice. The later ones get a number.
    case.db.run("drop table t");
    case.put("t.csv", "id,id,name\n1,2,x\n");
    case.load("t.csv --table t --create").success();
    assert_eq!(case.columns(), "id bigint, id_2 bigint, name text");
}

#[test]
fn a_line_with_too_few_fields_is_refused() {
    let case = new_case();
    case.put("t.csv", "id,name,qty\n1,a,1\n2,b,2\n3,c\n4,d,4\n");
    assert_snapshot!(case.refusal("t.csv"), @r#"
    error: could not load "t.csv" into public.t
      caused by: missing data for column "qty"
      at: t.csv, line 4, byte 24

    hint: Expected 3 fields, found 2.
    "#);
}

#[test]
fn a_line_with_too_many_fields_is_refused() {
    let case = new_case();
    case.put("t.csv", "id,name,qty\n1,a,1\n2,\"b\nb\",2,2\n4,d,4\n");
    assert_snapshot!(case.refusal("t.csv"), @r#"
    error: could not load "t.csv" into public.t
      caused by: extra data after last expected column
      at: t.csv, line 3, byte 18

    hint: Expected 3 fields, found 4.
    "#);
}

#[test]
fn a_quote_that_never_closes_is_refused() {
    let case = new_case();
    case.put("t.csv", "id,name,qty\n1,a,1\n2,\"b,2\n4,d,4\n");
    assert_snapshot!(case.refusal("t.csv"), @r#"
    error: could not load "t.csv" into public.t
      caused by: unterminated CSV quoted field
      at: t.csv, line 3, byte 18

    hint: A quote opens a value, and the input ends before another quote closes it. If
          … quotes are ordinary characters in this input, use `--quote none`.
    "#);
}

#[test]
fn bytes_that_are_not_utf8_are_refused() {
    let case = new_case();
    case.put("t.csv", b"id,name,qty\n1,a,1\n2,caf\xe9,2\n4,d,4\n");
    assert_snapshot!(case.refusal("t.csv"), @r#"
    error: could not load "t.csv" into public.t
      caused by: invalid byte sequence for encoding "UTF8": 0xe9 0x09 0x32 (SQLSTATE 22021)
      at: t.csv, line 3, byte 18

    hint: Name the encoding of the input with `--encoding`, for example `--encoding
          … WIN1252`.
    "#);
}

#[test]
fn a_zero_byte_is_refused() {
    let case = new_case();
    case.put("t.csv", b"id,name,qty\n1,a,1\n2,b\0,2\n4,d,4\n");
    assert_snapshot!(case.refusal("t.csv"), @r"
    error: could not detect the format of the input: it contains NUL bytes, so it is not
          … text
      at: t.csv

    hint: Name the format with `--format csv`, `text`, `json`, `parquet` or `arrow`. If it
          … is text with stray NUL bytes, `tr -d '\000'` removes them.
    ");
    assert_snapshot!(case.refusal("t.csv --format csv"), @r#"
    error: could not load "t.csv" into public.t
      caused by: invalid byte sequence for encoding "UTF8": 0x00 (SQLSTATE 22021)
      at: t.csv, line 3, byte 18

    hint: No text of PostgreSQL has NUL bytes. `tr -d '\000'` removes them from a file, and
          … `--rejects FILE` sets such rows aside.
    "#);
}

#[test]
fn truncated_gzip_data_is_refused() {
    let case = new_case();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let mut rows = "id,name,qty\n".to_owned();
    (0..50_000).for_each(|i| rows.push_str(&format!("{i},name {i},{}\n", i * 7 % 1000)));
    encoder.write_all(rows.as_bytes()).unwrap();
    let whole = encoder.finish().unwrap();
    case.put("t.csv.gz", &whole[..whole.len() * 9 / 10]);
    let said = case.refusal("t.csv.gz");
    let said = said.replace(&(whole.len() * 9 / 10).to_string(), "[BYTE]");
    assert_snapshot!(said, @"
    error: gzip data ends early at byte [BYTE]
      at: t.csv.gz

    hint: The file is cut off; copy or download it again.
    ");
    let mut long = whole.clone();
    long.extend_from_slice(b"rubbish behind the end");
    case.put("t.csv.gz", &long);
    assert_snapshot!(case.refusal("t.csv.gz"), @"
    error: could not decompress gzip data at byte 469438
      caused by: other bytes follow the end of the data
      at: t.csv.gz
    ");
}

#[test]
fn a_truncated_parquet_file_is_refused() {
    let case = new_case();
    let ids: arrow_array::ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
    let batch = RecordBatch::try_from_iter([("id", ids)]).unwrap();
    let mut whole = Vec::new();
    let mut writer =
        parquet::arrow::ArrowWriter::try_new(&mut whole, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    case.put("t.parquet", &whole[..whole.len() / 2]);
    assert_snapshot!(case.refusal("t.parquet"), @"
    error: the Parquet file is truncated
      at: t.parquet

    hint: The file does not end with its footer. Copy or write the file again.
    ");
    case.put("z.parquet", &whole);
    let mut gzip = std::process::Command::new("gzip");
    assert!(gzip.arg(case.path("z.parquet")).status().unwrap().success());
    std::fs::rename(case.path("z.parquet.gz"), case.path("z.parquet")).unwrap();
    let said = case.refusal("z.parquet --table t");
    assert!(said.contains("the Parquet file is compressed as a whole"), "{said}");
    case.put("u.parquet", "id,name\n1,a\n");
    assert_snapshot!(case.refusal("u.parquet --table t"), @"
    error: not a Parquet file
      at: u.parquet

    hint: Name the format of the file with `--format`.
    ");
}

#[test]
fn content_of_unknown_format_is_refused() {
    let case = new_case();
    case.put("notes.xyz", "just some words\nand a few more of them here\n");
    assert_snapshot!(case.refusal("notes.xyz --table t"), @"
    error: could not detect the format of the input: no delimiter occurs equally often in
          … its lines
      at: notes.xyz

    hint: Name the format with `--format csv`, `text`, `json`, `parquet` or `arrow`.
    ");
    case.put("wide.csv", b"\xff\xfei\0d\0\n\x001\0\n\0");
    assert_snapshot!(case.refusal("wide.csv --table t"), @"
    error: the input is UTF-16LE, which pgspate does not read
      at: wide.csv, byte 0

    hint: Convert it first: `iconv -f UTF-16 -t UTF-8`.
    ");
}

#[test]
fn a_header_that_does_not_fit_the_table_is_refused() {
    let case = new_case();
    case.put("t.csv", "id,nmae,qty\n1,a,1\n");
    assert_snapshot!(case.refusal("t.csv --header yes"), @r#"
    error: column "nmae" of relation "t" does not exist

    hint: Did you mean column "name"? Name the columns for the input's fields with
          … `--columns a,b,...`, skip fields without a column with `--ignore-unknown`, or
          … add columns with `--add-columns`.
    "#);
    case.put("next.csv", "id,nmae,qty\n2,b,2\n");
    assert_snapshot!(case.refusal("t.csv next.csv --table t --header yes"), @r#"
    error: column "nmae" of relation "t" does not exist
      at: t.csv

    hint: Did you mean column "name"? Name the columns for the input's fields with
          … `--columns a,b,...`, skip fields without a column with `--ignore-unknown`, or
          … add columns with `--add-columns`.
    "#);
    case.put("twice.csv", "id,name,ID\n1,a,1\n");
    assert_snapshot!(case.refusal("twice.csv --table t --header yes"), @r#"
    error: field "ID" matches no column of "t" exactly, and field "id" differs from it in
          … case only

    hint: Name the columns for the input's fields with `--columns a,b,...`.
    "#);
}

#[test]
fn a_generated_column_in_the_header_is_refused_or_skipped() {
    let case = LoadCase::new("create table g (a int, b int generated always as (a * 2) stored)");
    case.put("g.csv", "a,b\n1,2\n");
    assert_snapshot!(case.refusal("g.csv --plan"), @r#"
    error: column "b" is a generated column

    hint: The server computes it. Skip its field with `--ignore-unknown`.
    "#);
    assert!(case.refusal("g.csv --header no --columns a,b").contains("is a generated column"));
    case.load("g.csv --ignore-unknown");
    assert_eq!(case.rows("g"), ["(1,2)"]);
    case.put("g.ndjson", "{\"a\":2,\"b\":3}\n");
    case.load("g.ndjson --ignore-unknown");
    assert_eq!(case.rows("g"), ["(1,2)", "(2,4)"]);
}

#[test]
fn columns_missing_from_the_table_or_the_input_are_refused() {
    let case = new_case();
    case.put("t.csv", "1,a\n");
    assert_snapshot!(case.refusal("t.csv --columns id,title"), @r#"
    error: column "title" of relation "t" does not exist

    hint: Name the columns for the input's fields with `--columns a,b,...`, skip fields
          … without a column with `--ignore-unknown`, or add columns with `--add-columns`.
    "#);
    case.put("h.csv", "id,name\n1,a\n");
    assert_snapshot!(case.refusal("h.csv --table t --header yes --columns id,name,qty"), @r#"
    error: could not load "h.csv" into public.t
      caused by: missing data for column "qty"
      at: h.csv, line 2, byte 8

    hint: Expected 3 fields, found 2.
    "#);
    assert_snapshot!(case.refusal("t.csv --force-null id,no"), @r#"
    error: column "no" of relation "t" does not exist

    hint: Name the columns for the input's fields with `--columns a,b,...`, skip fields
          … without a column with `--ignore-unknown`, or add columns with `--add-columns`.
    "#);
}

#[test]
fn force_null_applies_only_to_csv_columns_of_the_input() {
    let case = LoadCase::new("create table t (\"Qty\" int, name text)");
    case.put("t.csv", "qty\n\"\"\n1\n");
    case.load("t.csv --header yes --force-null QTY").success();
    assert_eq!(case.rows("t"), ["(,)", "(1,)"]);
    assert_snapshot!(case.refusal("t.csv --header yes --force-null name"), @r#"
    error: FORCE_NULL column "name" not referenced by COPY

    hint: Leave it out of `--force-null`: the input does not have it.
    "#);
    assert_snapshot!(case.refusal("t.csv --header yes --force-not-null NAME,qty"), @r#"
    error: FORCE_NOT_NULL column "name" not referenced by COPY

    hint: Leave it out of `--force-not-null`: the input does not have it.
    "#);
    case.put("t.json", "{\"Qty\": 1}\n");
    assert_snapshot!(case.refusal("t.json --force-null Qty"), @r#"
    error: COPY FORCE_NULL requires CSV mode

    hint: Leave `--force-null` out: this format has its own marks for NULL.
    "#);
    assert_snapshot!(case.refusal("t.csv --header yes --format text --force-not-null qty"), @r#"
    error: COPY FORCE_NOT_NULL requires CSV mode

    hint: Leave `--force-not-null` out: this format has its own marks for NULL.
    "#);
}

#[test]
fn files_with_different_columns_are_refused() {
    let case = new_case();
    case.put("1.csv", "id,name\n1,a\n");
    case.put("2.csv", "id,qty\n1,2\n");
    assert_snapshot!(case.refusal("1.csv 2.csv --table t --header yes"), @r#"
    error: could not load "1.csv" and 1 more into public.t
      caused by: the header differs from the header of the first input: field "name" is
          … missing
      at: 2.csv, line 1

    hint: Load inputs with different columns one after the other.
    "#);
}

#[test]
fn invalid_json_is_refused() {
    let case = new_case();
    case.put("t.json", "{\"id\":1,\"name\":\"a\"}\n{\"id\":2,\"name\":}\n");
    assert_snapshot!(case.refusal("t.json"), @r#"
    error: could not load "t.json" into public.t
      caused by: invalid JSON: expected a value
      at: t.json, line 2, byte 35
    "#);
    case.put("u.json", "{\"id\":1,\"nmae\":\"a\"}\n");
    assert_snapshot!(case.refusal("u.json --table t"), @r#"
    error: column "nmae" of relation "t" does not exist

    hint: Did you mean column "name"? Name the columns for the input's fields with
          … `--columns a,b,...`, skip fields without a column with `--ignore-unknown`, or
          … add columns with `--add-columns`.
    "#);
}
