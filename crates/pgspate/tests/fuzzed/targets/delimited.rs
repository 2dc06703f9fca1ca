//! Any bytes in any dialect: no panic, no hang, and the same rows however the input is cut.

use std::io::Cursor;
use std::sync::Arc;

use pgspate::encode::Encoded;
use pgspate::encode::field::FieldEncoder;
use pgspate::format::delimited::{
    CopyFormat, CutOptions, DelimitedColumn, DelimitedCutter, DelimitedEncoder, Dialect, Eol,
    parse_records,
};
use pgspate::format::{ChunkEncoder, Cutter, EncodeMode};
use pgspate::target::{PgType, SessionSettings, TypeKind};

/// The options for reading an input. The first eight bytes of the fuzzer's input set the options.
#[derive(Clone)]
struct DelimitedSetup {
    dialect: Dialect,
    columns: usize,
    header: bool,
    force: u8,
    old_server: bool,
    chunk_bytes: usize,
    mode: EncodeMode,
}

impl DelimitedSetup {
    fn of(bytes: &[u8; 8]) -> DelimitedSetup {
        let [flags, more, delimiter, quote, escape, null, force, size] = *bytes;
        let is_set = |bit: u8| flags >> bit & 1 != 0;
        let base = if is_set(0) { Dialect::text() } else { Dialect::csv() };
        let is_csv = base.format == CopyFormat::Csv;
        let or = |byte: u8, usual: u8| if byte < 128 { usual } else { byte & 127 };
        let quote = or(quote, b'"');
        let dialect = Dialect {
            delimiter: or(delimiter, base.delimiter),
            quote: (is_csv && !is_set(1)).then_some(quote),
            escape: if is_csv { or(escape, quote) } else { base.escape },
            null: if null < 128 { base.null.clone() } else { vec![null & 127] },
            comment: is_set(2).then_some(b'#'),
            skip_blank_lines: is_set(3),
            trailing_delimiter: is_set(4),
            ..base
        };
        DelimitedSetup {
            dialect,
            columns: usize::from(more % 5),
            header: is_set(5),
            force,
            old_server: is_set(6),
            chunk_bytes: usize::from(size) + 1,
            mode: if is_set(7) { EncodeMode::Text } else { EncodeMode::Binary },
        }
    }

    fn column(&self, nth: usize) -> DelimitedColumn {
        let session = SessionSettings::of_version(180_000);
        let ty = PgType { oid: 25, name: "text".into(), typmod: -1, kind: TypeKind::Base };
        DelimitedColumn {
            name: format!("c{nth}"),
            encoder: FieldEncoder::new(&ty, &session).ok(),
            date_format: None,
            guessed_type: None,
            force_null: self.force >> nth & 1 != 0,
            force_not_null: self.force >> (nth + 4) & 1 != 0,
        }
    }

    /// Returns the encoded rows, binary and text, and the error with its place.
    fn run(&self, input: &[u8]) -> (Vec<u8>, Vec<u8>, Option<String>) {
        let mut out = Encoded::default();
        let refusal = self.fill(input, &mut out).err();
        let refusal = refusal.map(|error| {
            let place = error.place().cloned().unwrap_or_default();
            format!("{error} at {place}")
        });
        (out.binary, out.text, refusal)
    }

    fn fill(&self, input: &[u8], out: &mut Encoded) -> pgspate::Result<()> {
        let columns = self.columns;
        let fields = columns + usize::from(self.dialect.trailing_delimiter);
        let options = CutOptions {
            dialect: self.dialect.clone(),
            header: self.header,
            chunk_bytes: self.chunk_bytes,
            columns: Arc::default(),
            map: Arc::new(move |_| Ok((fields, (0..columns).collect()))),
        };
        let reader = Box::new(Cursor::new(input.to_vec()));
        let mut cutter = DelimitedCutter::open("in", reader, options)?;
        let columns = (0..columns).map(|nth| self.column(nth)).collect();
        let version = if self.old_server { 150_000 } else { 180_000 };
        let mut encoder = DelimitedEncoder::new(self.dialect.clone(), columns, version);
        while let Some(chunk) = cutter.next()? {
            encoder.begin(Arc::new(chunk), self.mode)?;
            while encoder.fill(out, out.binary.len() + out.text.len() + 100)? {}
        }
        Ok(())
    }
}

pub(crate) fn run(data: &[u8]) {
    let Some((first, input)) = data.split_first_chunk() else { return };
    let setup = DelimitedSetup::of(first);
    if setup.dialect.check().is_err() {
        return;
    }
    let in_chunks = setup.run(input);
    let whole = DelimitedSetup { chunk_bytes: 1 << 20, ..setup.clone() }.run(input);
    assert_eq!(in_chunks, whole);
    for eol in [Eol::Lf, Eol::CrLf, Eol::Cr] {
        let all = parse_records(&setup.dialect, eol, input, true, usize::MAX);
        let some = parse_records(&setup.dialect, eol, &input[..input.len() / 2], false, usize::MAX);
        assert!(some.len() <= all.len(), "{:?} {eol:?}\n{some:?}\n{all:?}", setup.dialect);
        assert_eq!(some, all[..some.len()]);
    }
}
