//! Runs JSON through the cutter and the encoder, for tests.

use std::io::{Cursor, Read};
use std::sync::Arc;

use pgspate_base::{Error, Result};
use pgspate_input::encode::Encoded;
use pgspate_input::format::json::{
    CutLimits, JsonColumn, JsonCutter, JsonEncoder, JsonInput, JsonOptions,
};
use pgspate_input::format::{Chunk, ChunkData, ChunkEncoder, Cutter, Mode};
use pgspate_input::types::{PgType, TypeKind};

/// A built-in type.
pub(crate) fn base(oid: u32, name: &str) -> PgType {
    PgType { oid, name: name.into(), typmod: -1, kind: TypeKind::Base }
}

/// An array of a built-in type.
pub(crate) fn array(oid: u32, element: PgType) -> PgType {
    let name = format!("{}[]", element.name);
    PgType { oid, name, typmod: -1, kind: TypeKind::Array(Box::new(element), b',') }
}

/// Options for columns that have no binary encoder.
pub(crate) fn options(columns: Vec<(&str, PgType)>) -> JsonOptions {
    let columns = columns
        .into_iter()
        .map(|(name, ty)| JsonColumn { name: name.into(), ty, field: None })
        .collect();
    JsonOptions { inputs: Arc::new(["in.json".to_string()]), ..JsonOptions::new(columns) }
}

/// Gives out its bytes in small uneven pieces.
pub(crate) struct Dribble(Cursor<Vec<u8>>, usize);

impl Read for Dribble {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.1 = self.1 * 31 % 61 + 1;
        let len = buf.len().min(self.1);
        self.0.read(&mut buf[..len])
    }
}

/// The chunks of one input.
pub(crate) fn cut(input: &[u8], chunk_bytes: usize) -> Result<Vec<Chunk>> {
    let reader = Box::new(Dribble(Cursor::new(input.to_vec()), 7));
    let limits = CutLimits { chunk_bytes, ..CutLimits::default() };
    let mut cutter = JsonCutter::new(vec![JsonInput { name: "in.json".into(), reader }], limits);
    let mut chunks = Vec::new();
    while let Some(chunk) = cutter.next()? {
        chunks.push(chunk);
    }
    Ok(chunks)
}

/// A chunk's bytes.
pub(crate) fn bytes(chunk: &Chunk) -> &[u8] {
    match &chunk.data {
        ChunkData::Bytes(bytes) => bytes,
        _ => panic!("a chunk of JSON is bytes"),
    }
}

/// All rows of an input as COPY text, by way of chunks of `chunk_bytes`.
pub(crate) fn rows(input: &[u8], chunk_bytes: usize, options: &JsonOptions) -> Result<String> {
    let mut encoder = JsonEncoder::new(options.clone());
    let mut text = Vec::new();
    for chunk in cut(input, chunk_bytes)? {
        let mut out = Encoded::default();
        encoder.begin(Arc::new(chunk), Mode::Text)?;
        while encoder.fill(&mut out, 1 << 16)? {
            text.append(&mut out.text);
        }
        text.append(&mut out.text);
    }
    Ok(String::from_utf8(text).expect("COPY text is UTF-8"))
}

/// The error that an input must give.
pub(crate) fn refusal(input: &[u8], options: &JsonOptions) -> Error {
    match rows(input, 1 << 20, options) {
        Ok(rows) => panic!("expected an error, got {rows:?}"),
        Err(error) => error,
    }
}
