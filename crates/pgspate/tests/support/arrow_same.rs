//! Loads values as Arrow arrays and as text literals. Both must give the same table.

use std::io::Cursor;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, Int32Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use pgspate::format::arrow::{ArrowCutter, ArrowFile, ArrowStreamCutter};
use pgspate::format::{Cutter, EncodeMode};
use pgspate::target::SessionSettings;

use crate::load::{
    FuzzMemory, encode, framed_binary_copy, parquet_cutter, pg_type, session_settings,
};
use crate::server::Database;

/// The file formats that batches can go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArrowFileKind {
    Parquet,
    File,
    Stream,
}

/// Writes batches to a file of this kind. Returns a cutter of the file, and the batches' schema.
pub(crate) fn cutter(
    batches: &[RecordBatch],
    via: ArrowFileKind,
) -> (Box<dyn Cutter>, Arc<Schema>) {
    let schema = batches[0].schema();
    match via {
        ArrowFileKind::Parquet => {
            let mut writer = ArrowWriter::try_new(Vec::new(), schema, None).unwrap();
            batches.iter().for_each(|batch| writer.write(batch).unwrap());
            parquet_cutter(writer.into_inner().unwrap().into())
        }
        ArrowFileKind::File => {
            let mut writer = arrow_ipc::writer::FileWriter::try_new(Vec::new(), &schema).unwrap();
            batches.iter().for_each(|batch| writer.write(batch).unwrap());
            let bytes = FuzzMemory(writer.into_inner().unwrap().into());
            let file = Arc::new(ArrowFile::open("memory.arrow", Arc::new(bytes)).unwrap());
            let schema = file.schema().clone();
            (Box::new(ArrowCutter::new(file, 0)), schema)
        }
        ArrowFileKind::Stream => {
            let mut writer = arrow_ipc::writer::StreamWriter::try_new(Vec::new(), &schema).unwrap();
            batches.iter().for_each(|batch| writer.write(batch).unwrap());
            let bytes = Cursor::new(writer.into_inner().unwrap());
            let cutter = ArrowStreamCutter::open("memory", Box::new(bytes), 0).unwrap();
            let schema = cutter.schema();
            (Box::new(cutter), schema)
        }
    }
}

/// Loads `array` into a column of type `sql`, in every file format and as binary and text. Each
/// time, the table must equal the table with the values of `literals`.
pub(crate) fn assert_same(
    db: &Database,
    array: impl Array + 'static,
    sql: &str,
    literals: &[Option<&str>],
) {
    assert_same_in(
        db,
        &session_settings("UTC"),
        Arc::new(array),
        sql,
        literals,
        &[ArrowFileKind::Parquet, ArrowFileKind::File, ArrowFileKind::Stream],
    );
}

/// Does the same with the Arrow formats only, for types that Parquet cannot store.
pub(crate) fn assert_same_in_arrow(
    db: &Database,
    array: impl Array + 'static,
    sql: &str,
    literals: &[Option<&str>],
) {
    assert_same_in(
        db,
        &session_settings("UTC"),
        Arc::new(array),
        sql,
        literals,
        &[ArrowFileKind::File, ArrowFileKind::Stream],
    );
}

pub(crate) fn assert_same_in(
    db: &Database,
    session: &SessionSettings,
    array: ArrayRef,
    sql: &str,
    literals: &[Option<&str>],
    ways: &[ArrowFileKind],
) {
    let batch = batch(array.clone());
    assert_eq!(array.len(), literals.len());
    db.run(&format!("drop table if exists t, want; create table want (id int, v {sql})"));
    for (id, literal) in literals.iter().enumerate() {
        let literal = literal.map_or("null".to_owned(), |text| format!("E'{}'", escape(text)));
        db.run(&format!("insert into want values ({id}, {literal})"));
    }
    db.run(&format!("create table t (id int, v {sql})"));
    let types = [pg_type("int4"), pg_type(sql)];
    for (via, mode) in
        ways.iter().flat_map(|via| [(*via, EncodeMode::Binary), (*via, EncodeMode::Text)])
    {
        let context = format!("{:?} to {sql} via {via:?}, {mode:?}", array.data_type());
        let (mut chunks, schema) = cutter(std::slice::from_ref(&batch), via);
        let (out, _) = encode(chunks.as_mut(), &schema, &types, session, mode, 64);
        assert_eq!(out.binary_rows as usize + out.text_rows.len(), literals.len(), "{context}");
        assert!(mode == EncodeMode::Binary || out.binary_rows == 0, "{context}");
        let done = db.copy("copy t from stdin (format binary)", framed_binary_copy(&out.binary));
        assert_eq!(done, Ok(out.binary_rows), "{context}");
        let text = String::from_utf8_lossy(&out.text).into_owned();
        let done = db.copy("copy t from stdin", out.text);
        assert_eq!(done, Ok(out.text_rows.len() as u64), "{context}: {text}");
        let rows =
            |table: &str| db.rows(&format!("select id::text, v::text from {table} order by id"));
        assert_eq!(rows("t"), rows("want"), "{context}");
        db.run("truncate t");
    }
}

/// Checks that the encoder leaves each row to the server, and that the server refuses the row with
/// this SQLSTATE.
pub(crate) fn assert_refused(db: &Database, array: impl Array + 'static, sql: &str, state: &str) {
    let array: ArrayRef = Arc::new(array);
    db.run(&format!("drop table if exists t; create table t (id int, v {sql})"));
    let types = [pg_type("int4"), pg_type(sql)];
    for row in 0..array.len() {
        let context = format!("row {row} of {:?} to {sql}", array.data_type());
        let one = batch(array.slice(row, 1));
        let (mut chunks, schema) = cutter(&[one], ArrowFileKind::Stream);
        let (out, _) = encode(
            chunks.as_mut(),
            &schema,
            &types,
            &session_settings("UTC"),
            EncodeMode::Binary,
            1 << 20,
        );
        assert_eq!((out.binary_rows, out.text_rows.len()), (0, 1), "{context}");
        let text = String::from_utf8_lossy(&out.text).into_owned();
        let done = db.copy("copy t from stdin", out.text);
        assert_eq!(done, Err(state.to_owned()), "{context}: {text}");
    }
}

pub(crate) fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\'', "''")
}

/// Returns a batch with the columns `id` and `v`.
pub(crate) fn batch(array: ArrayRef) -> RecordBatch {
    let id = Int32Array::from_iter_values(0..array.len() as i32);
    let fields = vec![
        Field::new("id", DataType::Int32, false),
        Field::new("v", array.data_type().clone(), true),
    ];
    RecordBatch::try_new(Arc::new(Schema::new(fields)), vec![Arc::new(id), array]).unwrap()
}
