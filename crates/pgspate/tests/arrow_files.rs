//! Parquet and Arrow files: every logical type of Parquet, chunks, and damaged files.

#[path = "support/arrow_load.rs"]
mod load;
#[path = "support/arrow_server.rs"]
mod server;

use std::sync::Arc;

use arrow_array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::data_type::{
    ByteArray, ByteArrayType, DataType, FixedLenByteArray, FixedLenByteArrayType, Int32Type,
    Int64Type, Int96, Int96Type,
};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use pgspate::format::arrow::{ArrowCutter, ArrowFile, ArrowStreamCutter};
use pgspate::format::parquet::{ParquetCutter, ParquetFile};
use pgspate::format::{Chunk, ChunkData, Cutter, EncodeMode};
use pgspate::{Error, ErrorKind};

use load::{FuzzMemory, encode, framed_binary_copy, parquet_cutter, pg_type, session_settings};
use pgspate::encode::arrow::schema_types;
use server::Database;

/// Returns a Parquet file of one column. `values` are the physical values, each in a row, and in a
/// list if the column is a list.
fn one_column_file<T: DataType>(declared: &str, values: &[T::T]) -> Bytes {
    let end = if declared.ends_with('}') { "" } else { ";" };
    let schema = parse_message_type(&format!("message m {{ required {declared}{end} }}")).unwrap();
    let mut writer =
        SerializedFileWriter::new(Vec::new(), Arc::new(schema), Default::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let writer_of_values = column.typed::<T>();
    let defined = vec![writer_of_values.get_descriptor().max_def_level(); values.len()];
    let repeated = vec![0; values.len()];
    writer_of_values.write_batch(values, Some(&defined), Some(&repeated)).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.into_inner().unwrap().into()
}

fn fixed(bytes: &[u8]) -> FixedLenByteArray {
    ByteArray::from(bytes.to_vec()).into()
}

/// Loads a file of one column into a column of the type that `--create` chooses, and compares the
/// rows.
fn assert_loaded_values<T: DataType>(
    db: &Database,
    declared: &str,
    values: &[T::T],
    sql: &str,
    want: &[&str],
) {
    let bytes = one_column_file::<T>(declared, values);
    for mode in [EncodeMode::Binary, EncodeMode::Text] {
        let (mut cutter, schema) = parquet_cutter(bytes.clone());
        let made = schema_types(&schema);
        assert_eq!(made[0].1, sql, "{declared}");
        let ty = match sql {
            "double precision" => "float8",
            "bigint" => "int8",
            "integer" => "int4",
            "smallint" => "int2",
            other => other,
        };
        let types = [pg_type(ty)];
        let (out, _) =
            encode(cutter.as_mut(), &schema, &types, &session_settings("UTC"), mode, 1 << 20);
        db.run(&format!("drop table if exists t; create table t (v {sql})"));
        db.copy("copy t from stdin (format binary)", framed_binary_copy(&out.binary)).unwrap();
        db.copy("copy t from stdin", out.text).unwrap();
        let got = db.rows("select v::text, null::text from t order by ctid");
        let got: Vec<&str> = got.iter().map(|row| row.0.as_str()).collect();
        assert_eq!(got, want, "{declared} {mode:?}");
    }
}

#[test]
fn logical_types_of_parquet() {
    let db = Database::new();
    let int32 = |declared: &str, values: &[i32], sql: &str, want: &[&str]| {
        assert_loaded_values::<Int32Type>(&db, declared, values, sql, want);
    };
    int32("int32 v (UINT_8)", &[255], "smallint", &["255"]);
    int32("int32 v (UINT_16)", &[65_535], "integer", &["65535"]);
    int32("int32 v (UINT_32)", &[-1], "bigint", &["4294967295"]);
    int32("int32 v (INT_8)", &[-128], "smallint", &["-128"]);
    int32("int32 v (DATE)", &[-1], "date", &["1969-12-31"]);
    int32("int32 v (TIME(MILLIS,true))", &[1], "time", &["00:00:00.001"]);
    int32(
        "int32 v (DECIMAL(9,9))",
        &[1, -123_456_789],
        "numeric(9,9)",
        &["0.000000001", "-0.123456789"],
    );
    let int64 = |declared: &str, values: &[i64], sql: &str, want: &[&str]| {
        assert_loaded_values::<Int64Type>(&db, declared, values, sql, want);
    };
    int64("int64 v (UINT_64)", &[-1], "numeric(20,0)", &["18446744073709551615"]);
    int64("int64 v (DECIMAL(18,17))", &[1], "numeric(18,17)", &["0.00000000000000001"]);
    int64("int64 v (TIME(MICROS,true))", &[1], "time", &["00:00:00.000001"]);
    int64("int64 v (TIME(NANOS,false))", &[1_000], "time", &["00:00:00.000001"]);
    int64("int64 v (TIMESTAMP(MILLIS,true))", &[1], "timestamptz", &["1970-01-01 00:00:00.001+00"]);
    int64("int64 v (TIMESTAMP(MICROS,false))", &[1], "timestamp", &["1970-01-01 00:00:00.000001"]);
    int64(
        "int64 v (TIMESTAMP(NANOS,false))",
        &[1_000],
        "timestamp",
        &["1970-01-01 00:00:00.000001"],
    );
    let days = |days: u32, nanos: u64| {
        let mut value = Int96::new();
        value.set_data(nanos as u32, (nanos >> 32) as u32, days);
        value
    };
    let moments = [days(2_440_588, 0), days(1_721_426, 1_000), days(5_373_484, 86_399_999_999_000)];
    let want = ["1970-01-01 00:00:00", "0001-01-01 00:00:00.000001", "9999-12-31 23:59:59.999999"];
    let int96 = |declared: &str, sql: &str, want: &[&str]| {
        assert_loaded_values::<Int96Type>(&db, declared, &moments, sql, want);
    };
    int96("int96 v", "timestamp", &want);
    let lists = want.map(|moment| format!("{{\"{moment}\"}}"));
    let list = "group v (LIST) { repeated group list { required int96 element; } }";
    int96(list, "timestamp[]", &lists.each_ref().map(String::as_str));
    let structs = want.map(|moment| format!("{{\"x\": \"{}\"}}", moment.replace(' ', "T")));
    int96("group v { required int96 x; }", "jsonb", &structs.each_ref().map(String::as_str));
}

#[test]
fn byte_types_of_parquet() {
    let db = Database::new();
    let flba = |declared: &str, values: &[FixedLenByteArray], sql: &str, want: &[&str]| {
        assert_loaded_values::<FixedLenByteArrayType>(&db, declared, values, sql, want);
    };
    let big = (-(10i128.pow(38) - 1)).to_be_bytes();
    let nines = format!("-0.{}", "9".repeat(38));
    flba(
        "fixed_len_byte_array(16) v (DECIMAL(38,38))",
        &[fixed(&big)],
        "numeric(38,38)",
        &[&nines],
    );
    flba(
        "fixed_len_byte_array(5) v (DECIMAL(10,2))",
        &[fixed(&[0xFF, 0xFF, 0xFF, 0xFF, 0x9C])],
        "numeric(10,2)",
        &["-1.00"],
    );
    let uuid: Vec<u8> = (0..16).collect();
    flba(
        "fixed_len_byte_array(16) v (UUID)",
        &[fixed(&uuid)],
        "uuid",
        &["00010203-0405-0607-0809-0a0b0c0d0e0f"],
    );
    flba("fixed_len_byte_array(3) v", &[fixed(b"abc")], "bytea", &["\\x616263"]);
    let interval: Vec<u8> = [14u32, 3, 3_661_001].iter().flat_map(|n| n.to_le_bytes()).collect();
    flba(
        "fixed_len_byte_array(12) v (INTERVAL)",
        &[fixed(&interval)],
        "interval",
        &["1 year 2 mons 3 days 01:01:01.001"],
    );
    let list =
        |item: &str| format!("group v (LIST) {{ repeated group list {{ required {item}; }} }}");
    let text = "1 year 2 mons 3 days 01:01:01.001";
    let interval_item = "fixed_len_byte_array(12) element (INTERVAL)";
    let wanted = format!("{{\"{text}\"}}");
    flba(&list(interval_item), &[fixed(&interval)], "interval[]", &[&wanted]);
    let wanted = format!("{{\"x\": \"{text}\"}}");
    let nested = "group v { required fixed_len_byte_array(12) x (INTERVAL); }";
    flba(nested, &[fixed(&interval)], "jsonb", &[&wanted]);
    let text = "00010203-0405-0607-0809-0a0b0c0d0e0f";
    let wanted = format!("{{{text}}}");
    flba(&list("fixed_len_byte_array(16) element (UUID)"), &[fixed(&uuid)], "uuid[]", &[&wanted]);
    let wanted = format!("{{\"x\": \"{text}\"}}");
    let nested = "group v { required fixed_len_byte_array(16) x (UUID); }";
    flba(nested, &[fixed(&uuid)], "jsonb", &[&wanted]);
    let bytes = |declared: &str, values: &[&str], sql: &str, want: &[&str]| {
        let values: Vec<ByteArray> = values.iter().map(|value| (*value).into()).collect();
        assert_loaded_values::<ByteArrayType>(&db, declared, &values, sql, want);
    };
    bytes("byte_array v (JSON)", &["{\"b\":1,\"a\":2}"], "jsonb", &["{\"a\": 2, \"b\": 1}"]);
    bytes("byte_array v (BSON)", &["\u{5}"], "bytea", &["\\x05"]);
    bytes("byte_array v (ENUM)", &["red"], "text", &["red"]);
    bytes(&list("byte_array element (ENUM)"), &["red"], "text[]", &["{red}"]);
    let nested = "group v { required byte_array x (ENUM); }";
    bytes(nested, &["red"], "jsonb", &["{\"x\": \"red\"}"]);
    bytes("byte_array v (UTF8)", &["", "é"], "text", &["", "é"]);
    bytes("byte_array v", &["é"], "bytea", &["\\xc3a9"]);
    bytes("byte_array v (DECIMAL(4,2))", &["\u{1}\u{2}"], "numeric(4,2)", &["2.58"]);
}

/// Returns a batch whose row `n` has the number `n` and a text with this number.
fn numbered_batch(first: i64, rows: i64) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + rows));
    let texts = (first..first + rows).map(|n| format!("row {n} of the file"));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
    RecordBatch::try_from_iter([("id", ids), ("text", texts)]).unwrap()
}

/// Checks that the chunks have the rows from 0 to `rows`, in order. Returns the chunks' sizes in
/// rows.
fn check_rows_and_return_sizes(cutter: &mut dyn Cutter, rows: i64) -> Vec<u64> {
    let mut next = 0;
    let mut sizes = Vec::new();
    while let Some(chunk) = cutter.next().unwrap() {
        assert_eq!((chunk.first_row, chunk.seq), (next as u64, sizes.len() as u64));
        let ChunkData::Rows(source) = &chunk.data else { panic!("{chunk:?}") };
        for _ in 0..2 {
            next = chunk.first_row as i64;
            for batch in source.open().unwrap() {
                let batch = batch.unwrap();
                let ids = batch.column(0).as_any().downcast_ref::<Int64Array>().unwrap();
                for id in ids.values() {
                    assert_eq!(*id, next);
                    next += 1;
                }
            }
            assert_eq!(next as u64, chunk.first_row + source.rows());
        }
        sizes.push(source.rows());
    }
    assert_eq!(next, rows);
    sizes
}

#[test]
fn large_row_groups_are_cut() {
    for statistics in [EnabledStatistics::Page, EnabledStatistics::None] {
        let properties = WriterProperties::builder()
            .set_statistics_enabled(statistics)
            .set_offset_index_disabled(statistics == EnabledStatistics::None)
            .set_max_row_group_row_count(Some(500_000))
            .build();
        let first = numbered_batch(0, 300_000);
        let mut writer =
            ArrowWriter::try_new(Vec::new(), first.schema(), Some(properties)).unwrap();
        writer.write(&first).unwrap();
        writer.write(&numbered_batch(300_000, 300_000)).unwrap();
        let bytes: Bytes = writer.into_inner().unwrap().into();
        let (mut cutter, _) = parquet_cutter(bytes.clone());
        let want: &[u64] = match statistics {
            EnabledStatistics::Page => &[125_000, 125_000, 125_000, 125_000, 100_000],
            _ => &[250_000, 250_000, 100_000],
        };
        assert_eq!(check_rows_and_return_sizes(cutter.as_mut(), 600_000), want);
        let file = ParquetFile::open("f", Arc::new(FuzzMemory(bytes))).unwrap();
        assert_eq!((file.rows(), file.row_groups()), (600_000, 2));
        let chunk = ParquetCutter::new(Arc::new(file), 3).next().unwrap().unwrap();
        assert!(matches!(chunk, Chunk { input: 3, data: ChunkData::Rows(_), .. }), "{chunk:?}");
    }
}

#[test]
fn batches_are_joined_and_cut() {
    for compression in [None, Some(CompressionType::ZSTD), Some(CompressionType::LZ4_FRAME)] {
        let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
        let batches = [(0, 1_000), (1_000, 0), (1_000, 2_000), (3_000, 300_000), (303_000, 10)];
        let batches = batches.map(|(first, rows)| numbered_batch(first, rows));
        let schema = batches[0].schema();
        let mut writer =
            FileWriter::try_new_with_options(Vec::new(), &schema, options.clone()).unwrap();
        batches.iter().for_each(|batch| writer.write(batch).unwrap());
        let bytes = FuzzMemory(writer.into_inner().unwrap().into());
        let file = Arc::new(ArrowFile::open("f", Arc::new(bytes)).unwrap());
        let mut cutter = ArrowCutter::new(file, 0);
        assert_eq!(
            check_rows_and_return_sizes(&mut cutter, 303_010),
            [3_000, 100_000, 100_000, 100_010]
        );
        let mut writer =
            arrow_ipc::writer::StreamWriter::try_new_with_options(Vec::new(), &schema, options)
                .unwrap();
        batches.iter().for_each(|batch| writer.write(batch).unwrap());
        let bytes = std::io::Cursor::new(writer.into_inner().unwrap());
        let mut cutter = ArrowStreamCutter::open("f", Box::new(bytes), 0).unwrap();
        let total: u64 = check_rows_and_return_sizes(&mut cutter, 303_010).iter().sum();
        assert_eq!(total, 303_010);
    }
}

/// Reads a file to its end.
fn read_all(cutter: &mut dyn Cutter) -> Result<u64, Error> {
    let mut rows = 0;
    while let Some(chunk) = cutter.next()? {
        let ChunkData::Rows(source) = &chunk.data else { panic!("{chunk:?}") };
        for batch in source.open()? {
            rows += batch?.num_rows() as u64;
        }
    }
    Ok(rows)
}

fn read_parquet(bytes: Vec<u8>) -> Result<u64, Error> {
    let file = ParquetFile::open("bad.parquet", Arc::new(FuzzMemory(bytes.into())))?;
    read_all(&mut ParquetCutter::new(Arc::new(file), 0))
}

fn read_arrow(bytes: Vec<u8>) -> Result<u64, Error> {
    let file = ArrowFile::open("bad.arrow", Arc::new(FuzzMemory(bytes.into())))?;
    read_all(&mut ArrowCutter::new(Arc::new(file), 0))
}

fn read_stream(bytes: Vec<u8>) -> Result<u64, Error> {
    let reader = Box::new(std::io::Cursor::new(bytes));
    read_all(&mut ArrowStreamCutter::open("bad.arrows", reader, 0)?)
}

type Reader = fn(Vec<u8>) -> Result<u64, Error>;

fn valid_files() -> [(Vec<u8>, Reader); 3] {
    let batch = numbered_batch(0, 100);
    let keys = Int32Array::from_iter_values((0..100).map(|n| n % 3));
    let values = Arc::new(StringArray::from(vec!["a", "b", "c"]));
    let dictionary: ArrayRef = Arc::new(arrow_array::DictionaryArray::new(keys, values));
    let mut columns: Vec<(String, ArrayRef)> = vec![("d".to_owned(), dictionary)];
    let schema = batch.schema();
    for (field, column) in schema.fields().iter().zip(batch.columns()) {
        columns.push((field.name().clone(), column.clone()));
    }
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut parquet = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
    parquet.write(&batch).unwrap();
    let mut file = FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    file.write(&batch).unwrap();
    let mut stream = arrow_ipc::writer::StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    stream.write(&batch).unwrap();
    [
        (parquet.into_inner().unwrap(), read_parquet),
        (file.into_inner().unwrap(), read_arrow),
        (stream.into_inner().unwrap(), read_stream),
    ]
}

#[test]
fn truncated_files_are_refused() {
    for (ordinal, (bytes, read)) in valid_files().into_iter().enumerate() {
        let is_stream = ordinal == 2;
        assert_eq!(read(bytes.clone()).unwrap(), 100);
        for len in 0..bytes.len() {
            match read(bytes[..len].to_vec()) {
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Format, "{len} {error:?}");
                    let place = error.place().unwrap().to_string();
                    assert!(place.starts_with("bad."), "{place}");
                    assert!(error.hint_text().is_some(), "{error:?}");
                }
                // A stream may lack its end mark, so a stream that ends after a message is valid.
                Ok(rows) => assert!(is_stream && rows % 100 == 0, "{len} bytes"),
            }
        }
    }
}

#[test]
fn damaged_files_never_panic() {
    for (bytes, read) in valid_files() {
        for at in 0..bytes.len() {
            for flip in [0xFF, 0x01] {
                let mut bad = bytes.clone();
                bad[at] ^= flip;
                let read = || read(bad);
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
                let result = outcome.unwrap_or_else(|_| {
                    panic!("the reader panicked with byte {at} changed by {flip}")
                });
                if let Err(error) = result {
                    assert_eq!(error.kind(), ErrorKind::Format, "byte {at}: {error:?}");
                }
            }
        }
    }
}

#[test]
fn the_error_says_that_a_file_has_another_format() {
    let message = |error: Error| (error.to_string(), error.hint_text().unwrap_or("").to_owned());
    let csv = b"a,b,c\n1,2,3\n4,5,6\n7,8,9\n".to_vec();
    assert_eq!(message(read_parquet(csv.clone()).unwrap_err()).0, "not a Parquet file");
    assert_eq!(message(read_arrow(csv).unwrap_err()).0, "not an Arrow file");
    let encrypted = b"PARE............PARE".to_vec();
    let (text, hint) = message(read_parquet(encrypted).unwrap_err());
    assert_eq!(text, "encrypted Parquet files are not supported");
    assert_eq!(hint, "Write the file again without encryption.");
}
