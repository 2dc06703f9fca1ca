//! Runs JSON through the cutter and the encoder, for tests.

use std::io::{Cursor, Read};
use std::sync::Arc;

use pgspate_base::{Error, Result};
use pgspate_input::encode::Encoded;
use pgspate_input::format::json::{JsonCutLimits, JsonCutter, JsonEncoder};
use pgspate_input::format::keyed::{KeyedColumn, KeyedInput, KeyedOptions};
use pgspate_input::format::{Chunk, ChunkData, ChunkEncoder, Cutter, EncodeMode};
use pgspate_input::types::{PgType, TypeKind};

/// Returns a built-in type.
pub(crate) fn base(oid: u32, name: &str) -> PgType {
    PgType { oid, name: name.into(), typmod: -1, kind: TypeKind::Base }
}

/// Returns the array type of a built-in type.
pub(crate) fn array(oid: u32, element: PgType) -> PgType {
    let name = format!("{}[]", element.name);
    PgType { oid, name, typmod: -1, kind: TypeKind::Array(Box::new(element), b',') }
}

/// Returns options for columns without binary encoders.
pub(crate) fn options(columns: Vec<(&str, PgType)>) -> KeyedOptions {
    let columns = columns
        .into_iter()
        .map(|(name, ty)| KeyedColumn {
            name: name.into(),
            ty,
            field: None,
            date_format: None,
            guessed_type: None,
        })
        .collect();
    KeyedOptions { inputs: Arc::new(["in.json".to_string()]), ..KeyedOptions::new(columns) }
}

/// A reader that returns its bytes in small pieces of different sizes.
pub(crate) struct UnevenReader(Cursor<Vec<u8>>, usize);

impl Read for UnevenReader {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.1 = self.1 * 31 % 61 + 1;
        let len = buf.len().min(self.1);
        self.0.read(&mut buf[..len])
    }
}

/// Cuts one input into chunks.
pub(crate) fn cut(input: &[u8], chunk_bytes: usize) -> Result<Vec<Chunk>> {
    let reader = Box::new(UnevenReader(Cursor::new(input.to_vec()), 7));
    let limits = JsonCutLimits { chunk_bytes, ..JsonCutLimits::default() };
    let mut cutter = JsonCutter::new(vec![KeyedInput { name: "in.json".into(), reader }], limits);
    let mut chunks = Vec::new();
    while let Some(chunk) = cutter.next()? {
        chunks.push(chunk);
    }
    Ok(chunks)
}

/// Returns a chunk's bytes.
pub(crate) fn bytes(chunk: &Chunk) -> &[u8] {
    match &chunk.data {
        ChunkData::Bytes(bytes) => bytes,
        _ => panic!("a JSON chunk must have bytes"),
    }
}

/// Returns all rows of an input as COPY text, cut into chunks of `chunk_bytes`.
pub(crate) fn rows(input: &[u8], chunk_bytes: usize, options: &KeyedOptions) -> Result<String> {
    let mut encoder = JsonEncoder::new(options.clone());
    let mut text = Vec::new();
    for chunk in cut(input, chunk_bytes)? {
        let mut out = Encoded::default();
        encoder.begin(Arc::new(chunk), EncodeMode::Text)?;
        while encoder.fill(&mut out, 1 << 16)? {
            text.append(&mut out.text);
        }
        text.append(&mut out.text);
    }
    Ok(String::from_utf8(text).expect("COPY text is UTF-8"))
}

/// Returns the error that an input must cause.
pub(crate) fn refusal(input: &[u8], options: &KeyedOptions) -> Error {
    match rows(input, 1 << 20, options) {
        Ok(rows) => panic!("expected an error, got {rows:?}"),
        Err(error) => error,
    }
}
