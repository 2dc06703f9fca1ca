//! Measures how fast text fields are encoded as binary values, for each family of types, in bytes
//! of text per second.

use std::fmt::Display;
use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pgspate_input::encode::field::FieldEncoder;
use pgspate_input::types::{PgType, SessionSettings, TypeKind};

/// The number of fields in one iteration: more than a branch predictor can learn.
const FIELDS: u64 = 20_000;

/// The text of many fields, without delimiters.
struct BenchFields {
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl BenchFields {
    fn of<T: Display>(value: impl Fn(u64) -> T) -> BenchFields {
        let mut column = BenchFields { text: Vec::new(), ends: Vec::new() };
        for i in 0..FIELDS {
            // Scrambled, so that lengths have no pattern.
            let scrambled = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            column.text.extend_from_slice(value(scrambled >> 20).to_string().as_bytes());
            column.ends.push(column.text.len());
        }
        column
    }

    fn encode(&self, encoder: &FieldEncoder, out: &mut Vec<u8>) -> bool {
        let mut start = 0;
        self.ends.iter().all(|end| {
            let field = &self.text[start..*end];
            start = *end;
            encoder.encode(field, out)
        })
    }
}

fn money_text(n: u64) -> String {
    let sign = if n.is_multiple_of(10) { "-" } else { "" };
    format!("{sign}{}.{:02}", n / 100 % 100_000, n % 100)
}

fn date_text(n: u64) -> String {
    format!("{:04}-{:02}-{:02}", 1992 + n % 33, n / 33 % 12 + 1, n / 396 % 28 + 1)
}

fn timestamp_text(n: u64) -> String {
    format!("{} {:02}:{:02}:{:02}", date_text(n), n / 7 % 24, n / 168 % 60, n / 10_080 % 60)
}

fn columns() -> Vec<(&'static str, u32, BenchFields)> {
    vec![
        ("int2", 21, BenchFields::of(|n| n % 30_000)),
        ("int4", 23, BenchFields::of(|n| n % 6_000_000)),
        ("int8", 20, BenchFields::of(|n| n)),
        ("numeric money", 1700, BenchFields::of(money_text)),
        ("numeric discount", 1700, BenchFields::of(|n| format!("0.{:02}", n % 11))),
        ("numeric quantity", 1700, BenchFields::of(|n| n % 50 + 1)),
        ("numeric long", 1700, BenchFields::of(|n| format!("{n}{n}.{n}"))),
        ("float8 short", 701, BenchFields::of(money_text)),
        ("float8 long", 701, BenchFields::of(|n| n as f64 / 7.0)),
        ("float4", 700, BenchFields::of(|n| n as f32 / 7.0)),
        ("date", 1082, BenchFields::of(date_text)),
        ("timestamp", 1114, BenchFields::of(timestamp_text)),
        (
            "timestamp micros",
            1114,
            BenchFields::of(|n| format!("{}.{:06}", timestamp_text(n), n % 1_000_000)),
        ),
        ("timestamptz", 1184, BenchFields::of(|n| format!("{}+00", timestamp_text(n)))),
        ("timestamptz zone", 1184, BenchFields::of(|n| format!("{}.5-07:00", timestamp_text(n)))),
        (
            "text",
            25,
            BenchFields::of(|n| {
                "lorem ipsum dolor sit amet consectetur"[..(n % 38) as usize].to_string()
            }),
        ),
        ("bool", 16, BenchFields::of(|n| if n.is_multiple_of(3) { "t" } else { "f" })),
        (
            "uuid",
            2950,
            BenchFields::of(|n| format!("{:08x}-58cc-4372-a567-0e02b2c3d479", n as u32)),
        ),
        ("time", 1083, BenchFields::of(|n| timestamp_text(n).split_off(11))),
        ("interval", 1186, BenchFields::of(|n| format!("{} days 01:02:03", n % 100))),
        (
            "inet",
            869,
            BenchFields::of(|n| format!("10.{}.{}.{}", n % 256, n / 256 % 256, n / 65_536 % 256)),
        ),
    ]
}

fn bench(c: &mut Criterion) {
    let session = SessionSettings::of_version(180_000);
    let mut group = c.benchmark_group("field");
    let mut out = Vec::with_capacity(FIELDS as usize * 64);
    for (name, oid, column) in columns() {
        let ty = PgType { oid, name: name.into(), typmod: -1, kind: TypeKind::Base };
        let encoder = FieldEncoder::new(&ty, &session).expect("a type with an encoder");
        assert!(column.encode(&encoder, &mut out), "{name} is left to the server");
        group.throughput(Throughput::ElementsAndBytes {
            elements: FIELDS,
            bytes: column.text.len() as u64,
        });
        group.bench_function(name, |b| {
            b.iter(|| {
                out.clear();
                black_box(column.encode(black_box(&encoder), &mut out))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
