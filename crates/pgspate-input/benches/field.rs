//! How fast text fields become binary values, one family at a time, in bytes of text a second.

use std::fmt::Display;
use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pgspate_input::encode::field::FieldEncoder;
use pgspate_input::types::{PgType, Session, TypeKind};

/// Fields in one iteration: more than a branch predictor remembers.
const FIELDS: u64 = 20_000;

/// Fields one after another, as they lie in a file.
struct Column {
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Column {
    fn of<T: Display>(value: impl Fn(u64) -> T) -> Column {
        let mut column = Column { text: Vec::new(), ends: Vec::new() };
        for i in 0..FIELDS {
            // Scrambled, so that lengths follow no pattern.
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

fn money(n: u64) -> String {
    let sign = if n.is_multiple_of(10) { "-" } else { "" };
    format!("{sign}{}.{:02}", n / 100 % 100_000, n % 100)
}

fn date(n: u64) -> String {
    format!("{:04}-{:02}-{:02}", 1992 + n % 33, n / 33 % 12 + 1, n / 396 % 28 + 1)
}

fn stamp(n: u64) -> String {
    format!("{} {:02}:{:02}:{:02}", date(n), n / 7 % 24, n / 168 % 60, n / 10_080 % 60)
}

fn columns() -> Vec<(&'static str, u32, Column)> {
    vec![
        ("int2", 21, Column::of(|n| n % 30_000)),
        ("int4", 23, Column::of(|n| n % 6_000_000)),
        ("int8", 20, Column::of(|n| n)),
        ("numeric money", 1700, Column::of(money)),
        ("numeric discount", 1700, Column::of(|n| format!("0.{:02}", n % 11))),
        ("numeric quantity", 1700, Column::of(|n| n % 50 + 1)),
        ("numeric long", 1700, Column::of(|n| format!("{n}{n}.{n}"))),
        ("float8 short", 701, Column::of(money)),
        ("float8 long", 701, Column::of(|n| n as f64 / 7.0)),
        ("float4", 700, Column::of(|n| n as f32 / 7.0)),
        ("date", 1082, Column::of(date)),
        ("timestamp", 1114, Column::of(stamp)),
        ("timestamp micros", 1114, Column::of(|n| format!("{}.{:06}", stamp(n), n % 1_000_000))),
        ("timestamptz", 1184, Column::of(|n| format!("{}+00", stamp(n)))),
        ("timestamptz zone", 1184, Column::of(|n| format!("{}.5-07:00", stamp(n)))),
        (
            "text",
            25,
            Column::of(|n| {
                "lorem ipsum dolor sit amet consectetur"[..(n % 38) as usize].to_string()
            }),
        ),
        ("bool", 16, Column::of(|n| if n.is_multiple_of(3) { "t" } else { "f" })),
        ("uuid", 2950, Column::of(|n| format!("{:08x}-58cc-4372-a567-0e02b2c3d479", n as u32))),
        ("time", 1083, Column::of(|n| stamp(n).split_off(11))),
        ("interval", 1186, Column::of(|n| format!("{} days 01:02:03", n % 100))),
        (
            "inet",
            869,
            Column::of(|n| format!("10.{}.{}.{}", n % 256, n / 256 % 256, n / 65_536 % 256)),
        ),
    ]
}

fn bench(c: &mut Criterion) {
    let session = Session::of_version(180_000);
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
