//! Runs a case through the cutter and the encoder.

use std::io::{Cursor, Read};
use std::sync::Arc;

use pgspate::Error;
use pgspate::encode::Encoded;
use pgspate::encode::field::FieldEncoder;
use pgspate::format::delimited::{
    CutOptions, DelimitedColumn, DelimitedCutter, DelimitedEncoder, Eol,
};
use pgspate::format::{ChunkData, ChunkEncoder, Cutter, EncodeMode};
use pgspate::target::{PgType, SessionSettings, TypeKind};

use crate::case::DelimitedCase;

/// The encoder's output for a case: rows as binary COPY and as COPY text, and the error.
#[derive(Default)]
pub(crate) struct EncodedCase {
    pub(crate) binary: Vec<u8>,
    pub(crate) binary_rows: usize,
    pub(crate) text: Vec<u8>,
    /// Ordinals of the rows in `text`.
    pub(crate) text_rows: Vec<usize>,
    /// The error that ended the input early.
    pub(crate) error: Option<Error>,
    /// The input's line end, if the input has a record.
    pub(crate) eol: Option<Eol>,
}

/// A reader that returns its bytes in small pieces of different sizes.
struct SmallReads(Cursor<Vec<u8>>, usize);

impl Read for SmallReads {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.1 = self.1 * 31 % 61 + 1;
        let len = buf.len().min(self.1);
        self.0.read(&mut buf[..len])
    }
}

/// Encodes a case in this mode.
pub(crate) fn encode_case(
    case: &DelimitedCase,
    mode: EncodeMode,
    session: &SessionSettings,
) -> EncodedCase {
    let mut stream = EncodedCase::default();
    stream.error = fill(case, mode, session, &mut stream).err();
    stream
}

fn fill(
    case: &DelimitedCase,
    mode: EncodeMode,
    session: &SessionSettings,
    stream: &mut EncodedCase,
) -> Result<(), Error> {
    let fields = case.columns + usize::from(case.dialect.trailing_delimiter);
    let columns = case.columns;
    let options = CutOptions {
        dialect: case.dialect.clone(),
        header: case.header,
        chunk_bytes: case.chunk_bytes,
        columns: Arc::default(),
        map: Arc::new(move |_| Ok((fields, (0..columns).collect()))),
    };
    let reader = Box::new(SmallReads(Cursor::new(case.input.clone()), case.chunk_bytes));
    let mut cutter = DelimitedCutter::open("in.csv", reader, options)?;
    let mut encoder = DelimitedEncoder::new(
        case.dialect.clone(),
        columns_of(case, session),
        session.server_version,
    );
    let mut out = Encoded::default();
    let mut rows = 0;
    while let Some(chunk) = cutter.next()? {
        if let ChunkData::Delimited(_, layout) = &chunk.data {
            stream.eol = Some(layout.eol);
        }
        encoder.begin(Arc::new(chunk), mode)?;
        let mut in_chunk = 0;
        loop {
            let more = encoder.fill(&mut out, case.fill_bytes);
            in_chunk += out.binary_rows as usize + out.text_rows.len();
            stream.binary_rows += out.binary_rows as usize;
            stream.binary.append(&mut out.binary);
            stream.text.append(&mut out.text);
            stream.text_rows.extend(out.text_rows.iter().map(|row| rows + *row as usize));
            out.clear();
            if !more? {
                break;
            }
        }
        rows += in_chunk;
    }
    Ok(())
}

fn columns_of(case: &DelimitedCase, session: &SessionSettings) -> Vec<DelimitedColumn> {
    let column = |nth: usize| {
        let (oid, name) = if case.is_number(nth) { (23, "integer") } else { (25, "text") };
        let ty = PgType { oid, name: name.into(), typmod: -1, kind: TypeKind::Base };
        DelimitedColumn {
            name: format!("c{nth}"),
            encoder: Some(FieldEncoder::new(&ty, session).unwrap()),
            date_format: None,
            guessed_type: None,
            force_null: case.force_null >> nth & 1 != 0,
            force_not_null: case.force_not_null >> nth & 1 != 0,
        }
    };
    (0..case.columns).map(column).collect()
}
