//! Any bytes as JSON: no panic, no hang, and the same rows however the input is cut.

use std::io::Cursor;
use std::sync::Arc;

use pgspate::encode::Encoded;
use pgspate::format::json::{JsonCutLimits, JsonCutter, JsonEncoder};
use pgspate::format::keyed::{KeyedColumn, KeyedInput, KeyedOptions};
use pgspate::format::{ChunkEncoder, Cutter, EncodeMode};
use pgspate::target::{PgType, TypeKind};

fn options() -> KeyedOptions {
    let base =
        |oid, name: &str| PgType { oid, name: name.into(), typmod: -1, kind: TypeKind::Base };
    let texts = PgType {
        oid: 1009,
        name: "text[]".into(),
        typmod: -1,
        kind: TypeKind::Array(Box::new(base(25, "text")), b','),
    };
    let types = [
        ("id", base(23, "int4")),
        ("n", base(1700, "numeric")),
        ("t", base(25, "text")),
        ("a", texts),
        ("j", base(3802, "jsonb")),
    ];
    let columns = types.map(|(name, ty)| KeyedColumn {
        name: name.into(),
        ty,
        field: None,
        date_format: None,
        guessed_type: None,
    });
    let inputs = Arc::new(["in".to_owned()]);
    KeyedOptions { inputs, ignore_unknown: true, ..KeyedOptions::new(columns.to_vec()) }
}

/// Returns the rows as COPY text, and the error.
fn rows(data: &[u8], chunk_bytes: usize) -> (Vec<u8>, Option<String>) {
    let mut out = Encoded::default();
    let refusal = fill(data, chunk_bytes, &mut out).err().map(|error| error.to_string());
    (out.text, refusal)
}

fn fill(data: &[u8], chunk_bytes: usize, out: &mut Encoded) -> pgspate::Result<()> {
    let reader = Box::new(Cursor::new(data.to_vec()));
    let input = KeyedInput { name: "in".into(), reader };
    let limits = JsonCutLimits { chunk_bytes, ..JsonCutLimits::default() };
    let mut cutter = JsonCutter::new(vec![input], limits);
    let mut encoder = JsonEncoder::new(options());
    while let Some(chunk) = cutter.next()? {
        encoder.begin(Arc::new(chunk), EncodeMode::Text)?;
        while encoder.fill(out, out.text.len() + 100)? {}
    }
    Ok(())
}

pub(crate) fn run(data: &[u8]) {
    let (whole, refusal) = rows(data, 1 << 20);
    let (in_chunks, other) = rows(data, 16);
    assert_eq!(refusal.is_some(), other.is_some(), "{refusal:?} {other:?}");
    if refusal.is_none() {
        assert_eq!(whole, in_chunks);
    }
}
