//! Cuts files of record batches into chunks and encodes the chunks, for tests.

#[path = "../fuzzed/targets/memory.rs"]
mod memory;

use std::sync::Arc;

use arrow_schema::Schema;
use bytes::Bytes;
use pgspate::encode::Encoded;
use pgspate::encode::arrow::{ColumnEncoder, ValueRoute};
use pgspate::format::batches::{BatchColumn, BatchesEncoder};
use pgspate::format::parquet::{ParquetCutter, ParquetFile};
use pgspate::format::{ChunkEncoder, Cutter, EncodeMode};
use pgspate::target::{PgType, SessionSettings, TypeKind};

pub(crate) use memory::FuzzMemory;

/// Returns a cutter of a Parquet file, and the schema of its batches.
pub(crate) fn parquet_cutter(bytes: Bytes) -> (Box<dyn Cutter>, Arc<Schema>) {
    let file = Arc::new(ParquetFile::open("memory.parquet", Arc::new(FuzzMemory(bytes))).unwrap());
    let schema = file.schema().clone();
    (Box::new(ParquetCutter::new(file, 0)), schema)
}

/// Encodes all chunks of a cutter, about `fill_bytes` bytes at a time. Returns the rows, and for
/// each column whether pgspate or the server reads the values.
pub(crate) fn encode(
    cutter: &mut dyn Cutter,
    schema: &Schema,
    types: &[PgType],
    session: &SessionSettings,
    mode: EncodeMode,
    fill_bytes: usize,
) -> (Encoded, Vec<ValueRoute>) {
    let columns: Vec<BatchColumn> = schema
        .fields()
        .iter()
        .zip(types)
        .enumerate()
        .map(|(index, (field, ty))| {
            let encoder = ColumnEncoder::new(field, ty, session)
                .unwrap_or_else(|reason| panic!("{field:?} to {}: {reason}", ty.name));
            BatchColumn { name: field.name().clone(), index, encoder }
        })
        .collect();
    let routes = columns.iter().map(|column| column.encoder.route().clone()).collect();
    let mut encoder = BatchesEncoder::new(columns).unwrap();
    let mut all = Encoded::default();
    while let Some(chunk) = cutter.next().unwrap() {
        let chunk = Arc::new(chunk);
        encoder.begin(chunk.clone(), mode).unwrap();
        let mut part = Encoded::default();
        loop {
            let more = encoder.fill(&mut part, fill_bytes).unwrap();
            all.binary.append(&mut part.binary);
            all.binary_rows += part.binary_rows;
            all.text.append(&mut part.text);
            all.text_rows.extend(part.text_rows.iter().map(|row| chunk.first_row + row));
            part.clear();
            if !more {
                break;
            }
        }
    }
    (all, routes)
}

/// Adds the header and the trailer of binary COPY to the rows.
pub(crate) fn framed_binary_copy(rows: &[u8]) -> Vec<u8> {
    let mut bytes = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0".to_vec();
    bytes.extend_from_slice(rows);
    bytes.extend_from_slice(&(-1i16).to_be_bytes());
    bytes
}

pub(crate) fn session_settings(time_zone: &str) -> SessionSettings {
    SessionSettings { time_zone: time_zone.to_owned(), ..SessionSettings::of_version(150_000) }
}

const OIDS: &[(&str, u32, u32)] = &[
    ("bool", 16, 1000),
    ("bytea", 17, 1001),
    ("name", 19, 1003),
    ("int8", 20, 1016),
    ("int2", 21, 1005),
    ("int4", 23, 1007),
    ("text", 25, 1009),
    ("oid", 26, 1028),
    ("json", 114, 199),
    ("float4", 700, 1021),
    ("float8", 701, 1022),
    ("money", 790, 791),
    ("bpchar", 1042, 1014),
    ("varchar", 1043, 1015),
    ("date", 1082, 1182),
    ("time", 1083, 1183),
    ("timestamp", 1114, 1115),
    ("timestamptz", 1184, 1185),
    ("interval", 1186, 1187),
    ("timetz", 1266, 1270),
    ("numeric", 1700, 1231),
    ("uuid", 2950, 2951),
    ("jsonb", 3802, 3807),
];

/// Returns a built-in type by its name. `[]` after the name means its array type. A modifier, as in
/// `varchar(5)`, stays in the name only: the server's column applies it.
pub(crate) fn pg_type(name: &str) -> PgType {
    if let Some(element) = name.strip_suffix("[]") {
        let element = pg_type(element);
        let bare = element.name.split('(').next().unwrap();
        let oid = OIDS.iter().find(|known| known.0 == bare).unwrap().2;
        let kind = TypeKind::Array(Box::new(element), b',');
        return PgType { oid, name: name.to_owned(), typmod: -1, kind };
    }
    let bare = name.split('(').next().unwrap();
    let oid = OIDS
        .iter()
        .find(|known| known.0 == bare)
        .unwrap_or_else(|| panic!("no type is named {name}"))
        .1;
    PgType { oid, name: name.to_owned(), typmod: -1, kind: TypeKind::Base }
}
