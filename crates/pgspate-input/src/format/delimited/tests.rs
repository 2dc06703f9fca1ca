//! Tests of cutting and encoding delimited input, with the setup that all these tests share.

mod after_refusal;
mod chunks;
mod faults;
mod field_index;
mod fields;
mod places;
mod records;

use std::io::Read;
use std::sync::Arc;

use super::{
    CutOptions, DelimitedColumn, DelimitedCutter, DelimitedEncoder, Dialect, Eol, parse_records,
};
use crate::encode::Encoded;
use crate::encode::field::FieldEncoder;
use crate::format::{Chunk, ChunkEncoder, Cutter, EncodeMode};
use crate::types::{PgType, SessionSettings, TypeKind};
use crate::{Error, Result};

type Row = Vec<Option<Vec<u8>>>;

/// The options with which a test loads an input.
#[derive(Clone)]
struct LoadSetup {
    dialect: Dialect,
    columns: Vec<DelimitedColumn>,
    /// For each column, the number of its field.
    field_of: Vec<usize>,
    header: bool,
    chunk_bytes: usize,
    read_bytes: usize,
    /// About how many bytes of rows each call of `fill` produces.
    fill_bytes: usize,
    mode: EncodeMode,
    server_version: u32,
}

/// The loaded rows, and the error that ended the load.
#[derive(Debug)]
struct LoadedRows {
    rows: Vec<Row>,
    error: Option<Error>,
}

/// A reader that returns at most this number of bytes per read.
struct ShortReader(std::io::Cursor<Vec<u8>>, usize);

impl Read for ShortReader {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let len = buf.len().min(self.1);
        self.0.read(&mut buf[..len])
    }
}

fn text_column(name: &str) -> DelimitedColumn {
    let ty = PgType { oid: 25, name: "text".into(), typmod: -1, kind: TypeKind::Base };
    let encoder = Some(FieldEncoder::new(&ty, &session_settings()).unwrap());
    DelimitedColumn {
        name: name.into(),
        encoder,
        date_format: None,
        guessed_type: None,
        force_null: false,
        force_not_null: false,
    }
}

fn session_settings() -> SessionSettings {
    SessionSettings::of_version(180_000)
}

impl LoadSetup {
    fn new(dialect: Dialect, columns: usize) -> LoadSetup {
        LoadSetup {
            dialect,
            columns: (0..columns).map(|index| text_column(&format!("c{index}"))).collect(),
            field_of: (0..columns).collect(),
            header: false,
            chunk_bytes: 1 << 20,
            read_bytes: usize::MAX,
            fill_bytes: 1 << 20,
            mode: EncodeMode::Text,
            server_version: 180_000,
        }
    }

    fn cutter(&self, input: &[u8]) -> Result<DelimitedCutter> {
        let fields = self.columns.len() + usize::from(self.dialect.trailing_delimiter);
        let field_of = self.field_of.clone();
        let options = CutOptions {
            dialect: self.dialect.clone(),
            header: self.header,
            chunk_bytes: self.chunk_bytes,
            columns: Arc::default(),
            map: Arc::new(move |_| Ok((fields, field_of.clone()))),
        };
        let reader = ShortReader(std::io::Cursor::new(input.to_vec()), self.read_bytes);
        DelimitedCutter::open("in.csv", Box::new(reader), options)
    }

    fn chunks(&self, input: &[u8]) -> Result<Vec<Chunk>> {
        let mut cutter = self.cutter(input)?;
        std::iter::from_fn(|| cutter.next().transpose()).collect()
    }

    fn load(&self, input: &[u8]) -> LoadedRows {
        let mut rows = Vec::new();
        let error = self.load_into(input, &mut rows).err();
        LoadedRows { rows, error }
    }

    fn load_into(&self, input: &[u8], rows: &mut Vec<Row>) -> Result<()> {
        let mut cutter = self.cutter(input)?;
        let (dialect, columns) = (self.dialect.clone(), self.columns.clone());
        let mut encoder = DelimitedEncoder::new(dialect, columns, self.server_version);
        let mut out = Encoded::default();
        while let Some(chunk) = cutter.next()? {
            encoder.begin(Arc::new(chunk), self.mode)?;
            let mut rows_in_chunk = 0;
            loop {
                let more = encoder.fill(&mut out, self.fill_bytes);
                let found = rows_of(&out, rows_in_chunk);
                rows_in_chunk += found.len() as u64;
                rows.extend(found);
                out.clear();
                if !more? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Loads an input and returns its rows. Panics on an error.
    fn rows(&self, input: &[u8]) -> Vec<Row> {
        let loaded = self.load(input);
        assert!(loaded.error.is_none(), "{:?}", loaded.error);
        loaded.rows
    }

    /// Returns the number of rows before the error, and the error.
    fn rows_before_error(&self, input: &[u8]) -> (usize, Error) {
        let loaded = self.load(input);
        (loaded.rows.len(), loaded.error.expect("the load must fail"))
    }
}

/// Decodes the encoded rows in their order. `first` is the number of the first row.
fn rows_of(out: &Encoded, first: u64) -> Vec<Row> {
    let mut text =
        parse_records(&Dialect::text(), Eol::Lf, &out.text, true, usize::MAX).into_iter();
    let mut binary = binary_rows(&out.binary).into_iter();
    assert_eq!((text.len(), binary.len()), (out.text_rows.len(), out.binary_rows as usize));
    let count = (text.len() + binary.len()) as u64;
    let row = |number| if out.text_rows.contains(&number) { text.next() } else { binary.next() };
    (first..first + count).map(row).map(|row| row.expect("a row for every number")).collect()
}

fn binary_rows(mut bytes: &[u8]) -> Vec<Row> {
    let mut rows = Vec::new();
    while let Some((count, mut rest)) = bytes.split_first_chunk::<2>() {
        let mut row = Row::new();
        for _ in 0..i16::from_be_bytes(*count) {
            let (len, value) = rest.split_first_chunk::<4>().unwrap();
            let len = i32::from_be_bytes(*len);
            let (value, after) = value.split_at(len.max(0) as usize);
            row.push((len >= 0).then(|| value.to_vec()));
            rest = after;
        }
        rows.push(row);
        bytes = rest;
    }
    rows
}

/// Returns a row of the texts. `~` is NULL.
fn row(fields: &[&str]) -> Row {
    fields.iter().map(|field| (*field != "~").then(|| field.as_bytes().to_vec())).collect()
}

/// Returns the rows of a text with `|` between fields and `/` between rows. `~` is NULL.
fn table(text: &str) -> Vec<Row> {
    text.split('/').map(|line| row(&line.split('|').collect::<Vec<_>>())).collect()
}
