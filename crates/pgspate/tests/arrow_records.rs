//! Rejected rows of record batches are written as JSON. Loading this JSON must give the same rows.

#[allow(dead_code)]
#[path = "support/arrow_load.rs"]
mod load;

use std::sync::Arc;

use arrow_array::builder::*;
use arrow_array::types::*;
use arrow_array::*;
use arrow_buffer::i256;
use arrow_schema::{DataType, Field, Schema};
use load::{pg_type, session_settings};
use pgspate::encode::Encoded;
use pgspate::encode::arrow::ColumnEncoder;
use pgspate::format::batches::{BatchColumn, BatchesEncoder};
use pgspate::format::json::JsonEncoder;
use pgspate::format::keyed::{KeyedColumn, KeyedOptions};
use pgspate::format::{BatchSource, Chunk, ChunkData, ChunkEncoder, EncodeMode};
use pgspate::{Error, ErrorKind, Result};

/// Batches in memory. If the flag is true, the batches end with an error.
#[derive(Debug)]
struct BatchesInMemory(Vec<RecordBatch>, bool);

impl BatchSource for BatchesInMemory {
    fn open(&self) -> Result<Box<dyn Iterator<Item = Result<RecordBatch>> + Send>> {
        let damage = self.1.then(|| Err(Error::new(ErrorKind::Format, "damaged")));
        Ok(Box::new(self.0.clone().into_iter().map(Ok).chain(damage)))
    }

    fn rows(&self) -> u64 {
        self.0.iter().map(|batch| batch.num_rows() as u64).sum()
    }

    fn stored_bytes(&self) -> u64 {
        0
    }
}

fn chunk(data: ChunkData) -> Arc<Chunk> {
    Arc::new(Chunk { seq: 0, input: 0, byte: 0, line: 1, first_row: 10, digest: None, data })
}

/// Returns all rows of a chunk as COPY text.
fn encode_as_text(encoder: &mut dyn ChunkEncoder, chunk: &Arc<Chunk>) -> String {
    let mut out = Encoded::default();
    encoder.begin(Arc::clone(chunk), EncodeMode::Text).unwrap();
    while encoder.fill(&mut out, 100).unwrap() {}
    String::from_utf8_lossy(&out.text).into_owned()
}

fn encoder(batch: &RecordBatch, types: &[&str]) -> BatchesEncoder {
    let columns =
        batch.schema_ref().fields().iter().zip(types).enumerate().map(|(index, (field, ty))| {
            let encoder =
                ColumnEncoder::new(field, &pg_type(ty), &session_settings("UTC")).unwrap();
            BatchColumn { name: format!("c{index}"), index, encoder }
        });
    BatchesEncoder::new(columns.collect()).unwrap()
}

/// Checks that a column's rows, written as JSON, give the same COPY text as the column's batches.
/// Only white space around a JSON value may be lost.
fn assert_same_after_json(array: impl Array + 'static, types: &[&str]) {
    let array: ArrayRef = Arc::new(array);
    for ty in types {
        let field = Field::new("in \"file\"", array.data_type().clone(), true);
        assert_field_same_after_json(field, &array, ty);
    }
}

fn assert_field_same_after_json(field: Field, array: &ArrayRef, ty: &str) {
    let schema = Arc::new(Schema::new(vec![field]));
    let batch = RecordBatch::try_new(schema, vec![Arc::clone(array)]).unwrap();
    let mut batches = encoder(&batch, &[ty]);
    let rows = batch.num_rows() as u64;
    let halves = vec![batch.slice(0, 1), batch.slice(1, batch.num_rows() - 1)];
    let chunk_of_rows = chunk(ChunkData::Rows(Arc::new(BatchesInMemory(halves, false))));
    let expected = encode_as_text(&mut batches, &chunk_of_rows);
    let wanted: Vec<u64> = (0..rows).collect();
    let records = batches.records(&chunk_of_rows, &wanted).unwrap();
    let places: Vec<_> = records.iter().map(|record| record.place.row).collect();
    assert_eq!(places, wanted.iter().map(|row| Some(row + 11)).collect::<Vec<_>>());
    let json: Vec<u8> = records.into_iter().flat_map(|record| record.bytes).collect();
    let column = KeyedColumn {
        name: "c0".to_owned(),
        ty: pg_type(ty),
        field: None,
        date_format: None,
        guessed_type: None,
    };
    let mut again = JsonEncoder::new(KeyedOptions::new(vec![column]));
    let found = encode_as_text(&mut again, &chunk(ChunkData::Bytes(json.clone())));
    assert_eq!(found, expected, "{ty} from {}", String::from_utf8_lossy(&json));
}

#[test]
fn scalars_are_the_same_after_json() {
    let numbers = ["int8", "numeric", "float8", "text"];
    assert_same_after_json(Int64Array::from(vec![Some(i64::MAX), None, Some(-1)]), &numbers);
    assert_same_after_json(UInt64Array::from(vec![u64::MAX, 0]), &numbers);
    let floats = vec![1.5, -0.0, 1e300, f64::NAN, f64::INFINITY, 0.1];
    assert_same_after_json(
        Float64Array::from(floats),
        &["float8", "float4", "numeric", "int4", "text"],
    );
    assert_same_after_json(
        BooleanArray::from(vec![Some(true), None, Some(false)]),
        &["bool", "text"],
    );
    let decimals = Decimal256Array::from(vec![i256::from_i128(i128::MAX), i256::from_i128(-5)]);
    assert_same_after_json(
        decimals.with_precision_and_scale(76, 3).unwrap(),
        &["numeric", "int4", "text"],
    );
    assert_same_after_json(
        Date32Array::from(vec![0, -800_000, 3_000_000]),
        &["date", "timestamp", "text"],
    );
    let stamps = vec![1, -1, 1_700_000_000_123_456_789];
    assert_same_after_json(
        TimestampNanosecondArray::from(stamps),
        &["timestamp", "timestamptz", "date", "text"],
    );
    assert_same_after_json(
        IntervalMonthDayNanoArray::from(vec![
            IntervalMonthDayNano::new(-14, 3, 1_000),
            IntervalMonthDayNano::new(0, 0, 0),
        ]),
        &["interval", "text"],
    );
    let uuids =
        FixedSizeBinaryArray::try_from_iter([[7u8; 16], *b"abcdefghijklmnop"].iter()).unwrap();
    assert_same_after_json(uuids, &["uuid", "bytea"]);
}

#[test]
fn strings_and_bytes_are_the_same_after_json() {
    let hostile =
        ["", "a\"b\\c\n\t\r\u{1}\u{7f}", "null", "\\N", "{\"a\": 1}", "é😀", " 1 ", "[1,"];
    assert_same_after_json(
        StringArray::from(hostile.to_vec()),
        &["text", "varchar", "int4", "bytea", "uuid", "text[]"],
    );
    let json = ["{\"a\" : [1, null]}", "\"s\"", "1.50", "[\n1]", "true"];
    assert_same_after_json(StringArray::from(json.to_vec()), &["json", "jsonb", "text"]);
    assert_same_after_json(BinaryArray::from(vec![&b"\x00\xff"[..], b"", b"abc"]), &["bytea"]);
    assert_same_after_json(BinaryArray::from(vec![&b"abc"[..], b"{}"]), &["text", "uuid"]);
    let mut keyed = StringDictionaryBuilder::<Int8Type>::new();
    keyed.extend([Some("a"), None, Some("a"), Some("\"")]);
    assert_same_after_json(keyed.finish(), &["text", "varchar"]);
}

#[test]
fn nested_values_are_the_same_after_json() {
    let lists = || {
        ListArray::from_iter_primitive::<Int32Type, _, _>(vec![
            Some(vec![Some(1), None, Some(-3)]),
            None,
            Some(vec![]),
        ])
    };
    assert_same_after_json(lists(), &["int4[]", "text[]", "json", "jsonb", "text"]);
    let fields = StructArray::from(vec![
        (
            Arc::new(Field::new("a\"", DataType::Int32, true)),
            Arc::new(Int32Array::from(vec![Some(1), None])) as ArrayRef,
        ),
        (
            Arc::new(Field::new("b", DataType::Utf8, true)),
            Arc::new(StringArray::from(vec![None, Some("\u{0}é")])),
        ),
    ]);
    assert_same_after_json(fields, &["json", "text"]);
}

#[test]
fn values_that_json_cannot_represent_are_refused_again() {
    let refused = |array: ArrayRef, ty: &str| {
        let batch = RecordBatch::try_from_iter([("a", array)]).unwrap();
        let batches = encoder(&batch, &[ty]);
        let rows = chunk(ChunkData::Rows(Arc::new(BatchesInMemory(vec![batch], false))));
        let record = batches.records(&rows, &[0]).unwrap().remove(0).bytes;
        let column = KeyedColumn {
            name: "c0".to_owned(),
            ty: pg_type(ty),
            field: None,
            date_format: None,
            guessed_type: None,
        };
        let mut again = JsonEncoder::new(KeyedOptions::new(vec![column]));
        let twice = record.repeat(2);
        again.begin(chunk(ChunkData::Bytes(twice)), EncodeMode::Text).unwrap();
        let mut refuse = || again.fill(&mut Encoded::default(), 100).unwrap_err();
        let errors = [refuse(), refuse()];
        let [first, second] = errors.map(|error| error.sqlstate().unwrap().code().to_owned());
        assert_eq!(first, second);
        assert!(!again.fill(&mut Encoded::default(), 100).unwrap());
        first
    };
    assert_eq!(refused(Arc::new(StringArray::from(vec!["\u{0}"])), "text"), "22P05");
    for text in ["abc", "", "1}\n{\"c0\":2", "[1,", "{}{}"] {
        assert_eq!(refused(Arc::new(StringArray::from(vec![text])), "json"), "22P02");
    }
    // Bytes that are not UTF-8 make their whole line invalid.
    let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![&b"\xff"[..]]));
    assert_eq!(refused(bytes, "text"), "22021");
}

#[test]
fn the_json_has_columns_that_are_not_loaded() {
    let batch = RecordBatch::try_from_iter([
        ("skipped", Arc::new(StringArray::from(vec!["x", "y"])) as ArrayRef),
        ("b", Arc::new(Int32Array::from(vec![1, 2]))),
    ])
    .unwrap();
    let int4 =
        ColumnEncoder::new(batch.schema().field(1), &pg_type("int4"), &session_settings("UTC"));
    let column = BatchColumn { name: "B".to_owned(), index: 1, encoder: int4.unwrap() };
    let encoder = BatchesEncoder::new(vec![column]).unwrap();
    let rows = chunk(ChunkData::Rows(Arc::new(BatchesInMemory(vec![batch], false))));
    let records = encoder.records(&rows, &[1]).unwrap();
    assert_eq!(records[0].bytes, b"{\"skipped\":\"y\",\"B\":2}\n");
    assert!(encoder.records(&rows, &[2]).is_err());
}

#[test]
fn a_damaged_batch_ends_its_chunk() {
    let batch =
        RecordBatch::try_from_iter([("a", Arc::new(Int32Array::from(vec![1])) as ArrayRef)]);
    let batch = batch.unwrap();
    let mut encoder = encoder(&batch, &["int4"]);
    let damaged = chunk(ChunkData::Rows(Arc::new(BatchesInMemory(vec![batch.clone()], true))));
    encoder.begin(damaged.clone(), EncodeMode::Text).unwrap();
    let mut out = Encoded::default();
    let error = encoder.fill(&mut out, 100).unwrap_err();
    assert!(!pgspate::format::is_row_error(&error));
    assert_eq!(out.text, b"1\n");
    assert!(encoder.fill(&mut out, 100).is_err());
    assert_eq!(encoder.records(&damaged, &[0]).unwrap().len(), 1);
    assert!(encoder.records(&damaged, &[1]).is_err());
    let whole = chunk(ChunkData::Rows(Arc::new(BatchesInMemory(vec![batch], false))));
    assert_eq!(encode_as_text(&mut encoder, &whole), "1\n");
}
