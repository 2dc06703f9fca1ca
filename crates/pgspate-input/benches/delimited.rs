//! Measures delimited input in bytes per second: splitting, cutting, and encoding for COPY.
//!
//! The input is small enough to stay in the CPU's cache, so memory bandwidth is not measured.

use std::fmt::Write;
use std::hint::black_box;
use std::io::Cursor;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pgspate_input::encode::Encoded;
use pgspate_input::encode::field::FieldEncoder;
use pgspate_input::format::delimited::{
    CutOptions, DelimitedColumn, DelimitedCutter, DelimitedEncoder, Dialect, Eol, count_fields,
};
use pgspate_input::format::{Chunk, ChunkEncoder, Cutter, EncodeMode};
use pgspate_input::types::{PgType, SessionSettings, TypeKind};

const ROWS: usize = 20_000;
/// The types text, bigint, text, double precision, date, text.
const TYPES: [u32; 6] = [25, 20, 25, 701, 1082, 25];

struct DelimitedBenchInput {
    name: &'static str,
    dialect: Dialect,
    eol: Eol,
    bytes: Vec<u8>,
}

fn inputs() -> Vec<DelimitedBenchInput> {
    let tabs = Dialect { delimiter: b'\t', ..Dialect::text() };
    let crlf = "\r\n";
    vec![
        DelimitedBenchInput::new("csv", Dialect::csv(), Eol::Lf, |field, _| field.to_owned(), "\n"),
        DelimitedBenchInput::new(
            "csv_crlf",
            Dialect::csv(),
            Eol::CrLf,
            |field, _| field.to_owned(),
            crlf,
        ),
        DelimitedBenchInput::new(
            "csv_quoted",
            Dialect::csv(),
            Eol::Lf,
            |field, _| format!("\"{field}\""),
            "\n",
        ),
        DelimitedBenchInput::new("csv_json", Dialect::csv(), Eol::Lf, last_field_json, "\n"),
        DelimitedBenchInput::new("tsv_nulls", tabs, Eol::Lf, third_fields_null, "\n"),
    ]
}

/// Returns NULL for every third field.
fn third_fields_null(field: &str, nth: usize) -> String {
    if nth.is_multiple_of(3) { "\\N".to_owned() } else { field.to_owned() }
}

/// Returns the last field of each row as JSON with quotes.
fn last_field_json(field: &str, nth: usize) -> String {
    if nth % 6 == 5 { format!("\"{{\"\"name\"\":\"\"{field}\"\"}}\"") } else { field.to_owned() }
}

impl DelimitedBenchInput {
    fn new(
        name: &'static str,
        dialect: Dialect,
        eol: Eol,
        spell: impl Fn(&str, usize) -> String,
        line_end: &str,
    ) -> DelimitedBenchInput {
        let mut text = String::new();
        let delimiter = char::from(dialect.delimiter);
        for row in 0..ROWS {
            let number = row * 7919;
            let fields = [
                format!("customer {}", number % 1000),
                number.to_string(),
                "AIR REG".to_owned(),
                format!("{}.{:02}", number % 10_000, row % 100),
                format!("1998-{:02}-{:02}", row % 12 + 1, row % 28 + 1),
                "carefully final packages along the ironic deposits".to_owned(),
            ];
            for (nth, field) in fields.iter().enumerate() {
                let end = if nth + 1 == fields.len() { line_end } else { "" };
                let spelled = spell(field, row * 6 + nth);
                write!(text, "{spelled}").expect("strings take all");
                if end.is_empty() {
                    text.push(delimiter);
                }
                text.push_str(end);
            }
        }
        DelimitedBenchInput { name, dialect, eol, bytes: text.into_bytes() }
    }

    fn chunk(&self) -> Arc<Chunk> {
        let options = self.options(1 << 24);
        let reader = Box::new(Cursor::new(self.bytes.clone()));
        let mut cutter = DelimitedCutter::open(self.name, reader, options).expect("it opens");
        Arc::new(cutter.next().expect("it cuts").expect("a chunk"))
    }

    fn options(&self, chunk_bytes: usize) -> CutOptions {
        let map = Arc::new(|_: Option<&[Vec<u8>]>| Ok((TYPES.len(), (0..TYPES.len()).collect())));
        let (dialect, columns) = (self.dialect.clone(), Arc::default());
        CutOptions { dialect, header: false, chunk_bytes, map, columns }
    }

    fn encoder(&self, types: [u32; 6]) -> DelimitedEncoder {
        let columns = types.iter().map(|oid| column(*oid)).collect();
        DelimitedEncoder::new(self.dialect.clone(), columns, 180_000)
    }
}

fn column(oid: u32) -> DelimitedColumn {
    let session = SessionSettings::of_version(180_000);
    let ty = PgType { oid, name: oid.to_string(), typmod: -1, kind: TypeKind::Base };
    let encoder = FieldEncoder::new(&ty, &session).ok();
    DelimitedColumn {
        name: "c".into(),
        encoder,
        date_format: None,
        guessed_type: None,
        force_null: false,
        force_not_null: false,
    }
}

fn encode(encoder: &mut DelimitedEncoder, chunk: &Arc<Chunk>, mode: EncodeMode, out: &mut Encoded) {
    encoder.begin(Arc::clone(chunk), mode).expect("it begins");
    while encoder.fill(out, 256 << 10).expect("rows in order") {
        black_box(&out.binary);
        out.clear();
    }
    out.clear();
}

fn delimited(criterion: &mut Criterion) {
    for input in inputs() {
        let mut group = criterion.benchmark_group(input.name);
        group.throughput(Throughput::Bytes(input.bytes.len() as u64));
        group.bench_function("split", |bencher| {
            bencher.iter(|| count_fields(&input.dialect, input.eol, black_box(&input.bytes)));
        });
        group.bench_function("cut", |bencher| {
            bencher.iter(|| {
                let reader = Box::new(Cursor::new(input.bytes.clone()));
                let mut cutter =
                    DelimitedCutter::open("in", reader, input.options(1 << 20)).expect("it opens");
                while cutter.next().expect("it cuts").is_some() {}
            });
        });
        let chunk = input.chunk();
        let mut out = Encoded::default();
        for (name, types, mode) in [
            ("binary_text_columns", [25; 6], EncodeMode::Binary),
            ("binary_typed_columns", TYPES, EncodeMode::Binary),
            ("text", [25; 6], EncodeMode::Text),
        ] {
            let mut encoder = input.encoder(types);
            group.bench_function(name, |bencher| {
                bencher.iter(|| encode(&mut encoder, &chunk, mode, &mut out));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, delimited);
criterion_main!(benches);
