//! Tests that every format, compression and dialect is loaded from a file into a table.

use std::io::Write;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array,
    RecordBatch, StringArray, TimestampMicrosecondArray,
};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::TryStreamExt;
use insta::assert_snapshot;

use crate::support::{LoadCase, session};

const CREATE_TABLE: &str = "create table t (id int, name text, at date)";
const CSV_ROWS: &str = "id,name,at\n1,one,2024-01-01\n2,,2024-02-29\n3,\"thr,ee\",\n";
const LOADED_ROWS: [&str; 3] = ["(1,one,2024-01-01)", "(2,,2024-02-29)", "(3,\"thr,ee\",)"];

fn compress_with_gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn compressed_files_are_loaded() {
    let case = LoadCase::new(CREATE_TABLE);
    let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    bzip2.write_all(CSV_ROWS.as_bytes()).unwrap();
    let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
    xz.write_all(CSV_ROWS.as_bytes()).unwrap();
    for (name, content) in [
        ("t.csv.gz", compress_with_gzip(CSV_ROWS.as_bytes())),
        ("t.csv.zst", zstd::encode_all(CSV_ROWS.as_bytes(), 1).unwrap()),
        ("t.csv.bz2", bzip2.finish().unwrap()),
        ("t.csv.xz", xz.finish().unwrap()),
        // The content decides, not the file's name. Gzip data may have several members.
        (
            "t.csv",
            [
                compress_with_gzip(&CSV_ROWS.as_bytes()[..30]),
                compress_with_gzip(&CSV_ROWS.as_bytes()[30..]),
            ]
            .concat(),
        ),
    ] {
        case.put(name, content);
        case.load(name).success();
        assert_eq!(case.rows("t"), LOADED_ROWS, "{name}");
        case.db.run("truncate t");
    }
}

#[test]
fn standard_input_is_loaded() {
    let case = LoadCase::new(CREATE_TABLE);
    case.load_from(CSV_ROWS, "- --table t").success();
    assert_eq!(case.rows("t"), LOADED_ROWS);
    case.db.run("truncate t; alter table t add primary key (id)");
    case.load_from(compress_with_gzip(CSV_ROWS.as_bytes()), "- --table t").success();
    assert_eq!(case.rows("t"), LOADED_ROWS);
    case.load_from("", "- --table t --format csv").success();
    assert_eq!(case.rows("t"), LOADED_ROWS);
}

#[test]
fn a_named_pipe_is_loaded() {
    let case = LoadCase::new(CREATE_TABLE);
    let pipe = case.path("pipe.csv");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let writer = std::thread::spawn(move || std::fs::write(pipe, CSV_ROWS).unwrap());
    case.load("pipe.csv --table t").success();
    writer.join().unwrap();
    assert_eq!(case.rows("t"), LOADED_ROWS);
}

#[test]
fn files_with_different_column_orders_are_loaded_together() {
    let case = LoadCase::new(CREATE_TABLE);
    case.put("d/1.csv", CSV_ROWS);
    case.put("d/2.csv", "at,id,name\n2024-03-01,4,four\n");
    case.put("d/3.csv", "");
    case.put("d/sub/4.csv.gz", compress_with_gzip(b"NAME,at,id\nfive,,5\n"));
    case.put("d/_SUCCESS", "");
    let more = ["(4,four,2024-03-01)", "(5,five,)"];
    let all = [&LOADED_ROWS[..], &more].concat();
    for sources in ["d", "d/**/*.csv*", "d/1.csv d/2.csv d/3.csv d/sub/4.csv.gz"] {
        case.load(&format!("{sources} --table t")).success();
        assert_eq!(case.rows("t"), all, "{sources}");
        case.db.run("truncate t");
    }
    case.load("d/?.csv --table t").success();
    assert_eq!(case.rows("t"), all[..4]);
}

#[test]
fn json_is_loaded_from_lines_and_from_an_array() {
    let case = LoadCase::new("create table t (id int, name text, tags text[], doc jsonb, at date)");
    let lines = "{\"id\":1,\"name\":\"one\",\"tags\":[\"a\",\"b c\"],\"doc\":{\"k\":[1,null]}}\n\
                 {\"at\":\"2024-02-29\",\"doc\":null,\"name\":null,\"id\":2}\n";
    let rows = ["(1,one,\"{a,\"\"b c\"\"}\",\"{\"\"k\"\": [1, null]}\",)", "(2,,,,2024-02-29)"];
    case.put("t.ndjson", lines);
    case.load("t.ndjson").success();
    assert_eq!(case.rows("t"), rows);
    case.db.run("truncate t");
    case.put("t.json", format!("[{}]", lines.trim_end().replace('\n', ",\n ")));
    case.load("t.json").success();
    assert_eq!(case.rows("t"), rows);
}

fn record_batch() -> RecordBatch {
    let columns: [(&str, ArrayRef); 7] = [
        ("id", Arc::new(Int64Array::from_iter_values([1, 2]))),
        ("name", Arc::new(StringArray::from(vec![Some("one"), None]))),
        ("amount", {
            let values = Decimal128Array::from(vec![Some(12_345), Some(-1)]);
            Arc::new(values.with_precision_and_scale(10, 2).unwrap())
        }),
        ("at", Arc::new(Date32Array::from(vec![Some(19_782), None]))),
        ("seen", Arc::new(TimestampMicrosecondArray::from(vec![1_709_164_800_000_001, 0]))),
        ("ok", Arc::new(BooleanArray::from(vec![Some(true), None]))),
        ("ratio", Arc::new(Float64Array::from(vec![0.1, f64::NAN]))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true)))
        .unwrap()
}

const LOADED_BATCH: [&str; 2] = [
    "(1,one,123.45,2024-02-29,\"2024-02-29 00:00:00.000001\",t,0.1)",
    "(2,,-0.01,,\"1970-01-01 00:00:00\",,NaN)",
];

#[test]
fn parquet_is_loaded_into_a_created_table() {
    let case = LoadCase::new("");
    let mut file = Vec::new();
    let mut writer =
        parquet::arrow::ArrowWriter::try_new(&mut file, record_batch().schema(), None).unwrap();
    writer.write(&record_batch()).unwrap();
    writer.close().unwrap();
    case.put("t.parquet", &file);
    assert_snapshot!(case.load("t.parquet --create").success(), @"
    format parquet: begins with PAR1
    create table t (
        id bigint,
        name text,
        amount numeric(10,2),
        at date,
        seen timestamp,
        ok boolean,
        ratio double precision
    )
    public.t (created): 2 rows, 337 B in [TIME], [RATE]
      stage         busy  per lane
      source [TIME] [TIME]
      encode [TIME] [TIME]
      server [TIME] [TIME]
      commit [TIME]
      1 lane, 1 chunk, 138 B of binary COPY, [SIZE] of WAL
    open it with [PSQL] -c 'table public.t limit 10'
    ");
    assert_eq!(case.rows("t"), LOADED_BATCH);
    case.put("twice/1.parquet", &file);
    case.put("twice/2.parquet", &file);
    case.put("mixed/1.parquet", &file);
    case.put("mixed/2.csv", CSV_ROWS);
    assert_snapshot!(case.refusal("mixed/ --table t"), @r#"
    error: could not load "mixed/1.parquet" and 1 more into public.t
      caused by: the format is not parquet, but the format of the first input is parquet
      at: mixed/2.csv

    hint: Load inputs of different formats one after the other.
    "#);
    case.load("twice --table t").success();
    assert_eq!(case.rows("t").len(), 6);
    // The footer of a Parquet file has the offsets of its columns, so a pipe cannot be loaded.
    assert_snapshot!(case.load_from(file, "- --table t --quiet").stderr, @"
    error: standard input has no random access, which this format needs
      at: -

    hint: Save the data to a file first, and name the file.
    ");
}

#[test]
fn arrow_files_and_streams_are_loaded() {
    let case = LoadCase::new("");
    let schema = record_batch().schema();
    let mut file = arrow_ipc::writer::FileWriter::try_new(Vec::new(), &schema).unwrap();
    file.write(&record_batch()).unwrap();
    case.put("t.arrow", file.into_inner().unwrap());
    case.load("t.arrow --create").success();
    assert_eq!(case.rows("t"), LOADED_BATCH);
    let mut stream = arrow_ipc::writer::StreamWriter::try_new(Vec::new(), &schema).unwrap();
    stream.write(&record_batch()).unwrap();
    let stream = stream.into_inner().unwrap();
    case.db.run("truncate t");
    case.load_from(stream.clone(), "- --table t").success();
    assert_eq!(case.rows("t"), LOADED_BATCH);
    // The rows of a second stream must not be lost, and a stream without its end may lack rows.
    let (joined, cut) = (stream.repeat(2), stream[..stream.len() - 8].to_vec());
    for (stream, words) in [(joined, "bytes follow the end marker"), (cut, "end marker is missing")]
    {
        let said = case.load_from(stream, "- --table t --quiet").refusal();
        assert!(said.contains(words), "{said}");
        assert_eq!(case.rows("t"), LOADED_BATCH);
    }
}

#[test]
fn parquet_and_arrow_values_that_do_not_fit_the_table_are_refused() {
    let case = LoadCase::new("create table t (id smallint, name date)");
    let ids: ArrayRef = Arc::new(Int32Array::from_iter_values([1, 2, 70_000]));
    let names: ArrayRef = Arc::new(BooleanArray::from(vec![true, false, true]));
    let mut file = Vec::new();
    let ids = RecordBatch::try_from_iter([("id", ids)]).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut file, ids.schema(), None).unwrap();
    writer.write(&ids).unwrap();
    writer.close().unwrap();
    case.put("ids.parquet", &file);
    assert_snapshot!(case.refusal("ids.parquet --table t"), @r#"
    error: could not load "ids.parquet" into public.t
      caused by: value "70000" is out of range for type smallint (SQLSTATE 22003)
      at: ids.parquet, row 3, column "id"
    "#);
    let names = RecordBatch::try_from_iter([("name", names)]).unwrap();
    let mut file = arrow_ipc::writer::FileWriter::try_new(Vec::new(), &names.schema()).unwrap();
    file.write(&names).unwrap();
    case.put("names.arrow", file.into_inner().unwrap());
    assert_snapshot!(case.refusal("names.arrow --table t"), @r#"
    error: could not load "names.arrow" into public.t
      caused by: invalid input syntax for type date: "true" (SQLSTATE 22007)
      at: names.arrow, row 1, column "name"
    "#);
}

#[test]
fn the_output_of_copy_to_is_loaded_unchanged() {
    let case = LoadCase::new(
        "create table source (a int, b text, c bytea, d text[]); \
         insert into source values \
           (1, E'tab\\there\\nand \\\\ back', '\\x00ff5c', '{a,NULL,\"x y\"}'), \
           (2, null, null, null), (3, '', '', '{}'), (4, '\\N', '\\x5c4e', null); \
         create table t (like source)",
    );
    for (format, file) in [("text", "t.copy"), ("csv", "t.csv"), ("csv, header", "h.csv")] {
        let sql = format!("copy source to stdout (format {format})");
        case.put(file, read_copy_output(&case, &sql));
        case.load(&format!("{file} --table t")).success();
        assert_eq!(case.rows("t"), case.rows("source"), "{format}");
        case.db.run("truncate t");
    }
}

/// Returns the bytes that a `copy ... to stdout` statement sends.
fn read_copy_output(case: &LoadCase, sql: &str) -> Vec<u8> {
    let (runtime, client) = session(&case.db.dsn());
    let pieces = async {
        let stream = client.copy_out(sql).await.unwrap();
        stream.try_collect::<Vec<_>>().await.unwrap()
    };
    runtime.block_on(pieces).concat()
}

#[test]
fn quotes_in_the_tsv_files_of_imdb_are_ordinary_characters() {
    let case = LoadCase::new("create table t (tconst text, title text, is_adult int, year int)");
    let rows = "tconst\ttitle\tisAdult\tyear\n\
                tt0000001\tCarmencita \"the\" dancer\t0\t1894\n\
                tt0000002\t\"Le clown et ses chiens\t0\t\\N\n\
                tt0000003\tC:\\new\t\\N\t1892\n";
    case.put("title.basics.tsv.gz", compress_with_gzip(rows.as_bytes()));
    case.load("title.basics.tsv.gz --table t --columns tconst,title,is_adult,year").success();
    assert_eq!(
        case.rows("t"),
        [
            "(tt0000001,\"Carmencita \"\"the\"\" dancer\",0,1894)",
            "(tt0000002,\"\"\"Le clown et ses chiens\",0,)",
            "(tt0000003,\"C:\\\\new\",,1892)",
        ]
    );
}

#[test]
fn delimited_text_of_other_dialects_is_loaded() {
    for (args, content) in [
        ("t.csv", "id;name;at\n1;one;2024-01-01\n2;;2024-02-29\n3;thr,ee;\n"),
        ("t.csv", "id,name,at\r\n1,one,2024-01-01\r\n2,,2024-02-29\r\n3,\"thr,ee\",\r\n"),
        ("t.csv", "id,name,at\r1,one,2024-01-01\r2,,2024-02-29\r3,\"thr,ee\","),
        ("t.csv", "\u{feff}id,name,at\n1,one,2024-01-01\n2,,2024-02-29\n3,\"thr,ee\",\n"),
        ("t.psv", "id|name|at\n1|one|2024-01-01\n2||2024-02-29\n3|thr,ee|\n"),
        ("t.tbl --header no", "1|one|2024-01-01|\n2||2024-02-29|\n3|thr,ee||\n"),
        (
            "t.csv --delimiter : --quote '",
            "id:name:at\n1:one:2024-01-01\n2::'2024-02-29'\n3:'thr,ee':\n",
        ),
        ("t.csv --quote none --delimiter |", "1|one|2024-01-01\n2||2024-02-29\n3|thr,ee|\n"),
        ("t.csv --null -", "id,name,at\n1,one,2024-01-01\n2,-,2024-02-29\n3,\"thr,ee\",-\n"),
        (
            "t.csv --comment # --skip-blank-lines",
            "# made by hand, \"\nid,name,at\n\n1,one,2024-01-01\n#2,two,\n2,,2024-02-29\n\n\
             3,\"thr,ee\",\n\n",
        ),
        (
            "t.txt --format text --null ~",
            "1\tone\t2024-01-01\n2\t~\t2024-02-29\n3\tthr\\,ee\t~\n\\.\n",
        ),
    ] {
        let case = LoadCase::new(CREATE_TABLE);
        case.put(args.split(' ').next().unwrap(), content);
        case.load(args).success();
        assert_eq!(case.rows("t"), LOADED_ROWS, "{args}: {content}");
    }
}

#[test]
fn a_last_column_that_is_always_empty_is_null() {
    let case = LoadCase::new(CREATE_TABLE);
    case.put("t.psv", "1|one|\n2||\n");
    case.load("t.psv --header no").success();
    assert_eq!(case.rows("t"), ["(1,one,)", "(2,,)"]);
}

#[test]
fn options_decide_between_null_and_the_empty_string() {
    let case = LoadCase::new("create table t (a text, b text, c text)");
    case.put("t.csv", "a,b,c\n,\"\",x\n\"\",,x\n");
    let told = || case.rows("t").join(" ");
    let cases = [
        ("", "(\"\",,x) (,\"\",x)"),
        ("--force-null a,b", "(,,x) (,,x)"),
        ("--force-not-null a,b", "(\"\",\"\",x) (\"\",\"\",x)"),
        ("--null x", "(\"\",\"\",) (\"\",\"\",)"),
    ];
    for (args, rows) in cases {
        case.load(&format!("t.csv {args}")).success();
        assert_eq!(told(), rows, "{args}");
        case.db.run("truncate t");
    }
}

#[test]
fn text_encoded_in_latin1_is_loaded() {
    let case = LoadCase::new("create table t (\"größe\" int, name text)");
    case.put("t.csv", b"name,gr\xf6\xdfe\ncaf\xe9,1\n\"\xdcber, \",2\n");
    case.load("t.csv --encoding LATIN1 --header yes").success();
    assert_eq!(case.rows("t"), ["(1,café)", "(2,\"Über, \")"]);
    case.db.run("truncate t");
    case.put("n.csv", b"1,caf\xe9\n2,\xdcber\n");
    case.load("n.csv --table t --encoding latin1 --header no").success();
    assert_eq!(case.rows("t"), ["(1,café)", "(2,Über)"]);
    case.db.run("truncate t");
    case.put("n.csv", b"1,caf\xe9\n\xfcbel,\xdcber\n");
    assert_snapshot!(case.refusal("n.csv --table t --encoding latin1 --header no"), @r#"
    error: could not load "n.csv" into public.t
      caused by: invalid input syntax for type integer: "übel" (SQLSTATE 22P02)
      at: n.csv, line 2, byte 7, column "größe"
    "#);
    assert_snapshot!(case.refusal("n.csv --table t --encoding nonsense --header no"), @r#"
    error: could not load "n.csv" into public.t
      caused by: argument to option "encoding" must be a valid encoding name (SQLSTATE
          … 22023)

    hint: PostgreSQL has no encoding of this name. If `iconv` has it, convert the input
          … first: `iconv -f nonsense -t UTF-8 FILE | pgspate load - ...`.
    "#);
    for args in ["n.csv --table t --header no", "t.csv"] {
        let said = case.refusal(&format!("{args} --encoding cp1252"));
        assert!(said.contains("hint: Did you mean `--encoding WIN1252`?"), "{args}: {said}");
    }
    let mut load = case.load_command("n.csv --table t --header no -q");
    let run = load.env("PGCLIENTENCODING", "LATIN1").output().unwrap();
    assert_snapshot!(crate::support::Run::of(run).refusal(), @r#"
    error: could not load "n.csv" into public.t
      caused by: invalid input syntax for type integer: "übel" (SQLSTATE 22P02)
      at: n.csv, line 2, byte 7, column "größe"
    "#);
}

#[test]
fn late_json_keys_are_loaded_from_a_file_and_refused_on_standard_input() {
    let case = LoadCase::new("create table t (id int, note text default 'none', \"Qty\" int)");
    let mut rows = String::new();
    let long = " ".repeat(99);
    (0..20_000).for_each(|row| rows += &format!("{{\"id\": {row}, \"x\": \"{long}\"}}\n"));
    let head = rows.clone();
    rows += "{\"id\": -1, \"x\": 1, \"qty\": 7}\n{\"id\": -2, \"note\": \"late\"}\n";
    case.put("t.json", rows.clone());
    case.load("t.json --ignore-unknown").success();
    let late = "select string_agg(t::text, ' ' order by id) from t where id < 1";
    assert_eq!(case.value(late), "(-2,late,) (-1,,7) (0,,)");
    assert_eq!(case.value("select count(*) from t"), "20002");
    assert_snapshot!(case.load_from(rows, "- --table t -q --ignore-unknown").refusal(), @r#"
    error: could not load "-" into public.t
      caused by: key "qty" names a column, but the first records do not have this key
      at: -, line 20001, byte 2428909, column "qty"

    hint: Name the keys of all records with `--columns a,b,...`.
    "#);
    case.put("u.json", head + "{\"id\": -1, \"Id\": 1}\n");
    assert_snapshot!(case.refusal("u.json --table t --ignore-unknown"), @r#"
    error: could not load "u.json" into public.t
      caused by: field "Id" matches no column of "t" exactly, and field "id" differs from
          … it in case only
      at: u.json, line 20001, byte 2428901, column "Id"

    hint: Name the columns for the input's fields with `--columns a,b,...`.
    "#);
    assert_eq!(case.value("select count(*) from t"), "20002");
}

#[test]
fn a_null_string_is_refused_for_a_format_with_a_null_of_its_own() {
    let case = LoadCase::new("create table t (id bigint, note text)");
    case.put("t.ndjson", "{\"id\":1,\"note\":\"NA\"}\n");
    assert_snapshot!(case.refusal("t.ndjson --table t --null NA"), @r"
    error: `--null` does not apply to this format, which has a NULL of its own

    hint: Leave it out. Convert strings that stand for NULL before the load.
    ");
}
