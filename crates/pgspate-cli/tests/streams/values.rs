//! Random literals of many types, including extreme values.

use crate::test_random::TestRandom;

/// The values and changes that a stream can represent. The workload writes no others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkloadLimits {
    /// Whether NaN and infinite numbers occur.
    pub(crate) special_numbers: bool,
    /// Whether tables are truncated.
    pub(crate) truncates: bool,
    /// Whether one statement may move keys from row to row.
    pub(crate) chains: bool,
    /// Whether values occur that Debezium loses in Java's types: days before 1582, arrays of
    /// several dimensions, the time zone of a `timetz`, large amounts of `money`.
    pub(crate) beyond_java: bool,
    /// Whether rows of tables without a key change.
    pub(crate) keyless: bool,
    /// Whether keys of rows with large values change.
    pub(crate) large_moves: bool,
}

const WORDS: [&str; 16] = [
    "",
    "null",
    "NULL",
    "a",
    "b,c",
    "tab\there",
    "two\nlines",
    "quo\"te's",
    "back\\slash \\N \\x41",
    "{brace}",
    "käse ☂ 🐘 \u{301}",
    "\u{1}\u{7f}\u{2028}",
    "  spaces  ",
    "</b> & <i>",
    "true",
    "12.50",
];

const NUMERICS: [&str; 14] = [
    "0",
    "0.00",
    "-0.10",
    "1",
    "12345678901234567890.12345678901234567890",
    "-99999999999999999999999999999999999999",
    "1e40",
    "1e-30",
    "127",
    "-128",
    "255.5",
    "32768",
    "100",
    "7.250",
];

const JSON: [&str; 10] = [
    "{}",
    "[]",
    "null",
    "\"text \\u00e9 \\\\ \\\" \"",
    "1.500",
    "[1, null, {\"a\": [true, false]}]",
    "{\"n\": 12345678901234567890.5, \"empty\": \"\", \"\": 0}",
    "{\"a\": \"line\\nbreak\", \"b\": \"☂\"}",
    "-0.0",
    "[[[[]]]]",
];

const INTERVALS: [&str; 8] = [
    "0",
    "1 year 2 mons 3 days 04:05:06.789012",
    "-1 mons +1 day -00:00:00.000001",
    "178000000 years",
    "-178000000 years",
    "100 hours",
    "1 mon -1 day",
    "2147483647 days",
];

const STAMPS: [&str; 5] = [
    "-infinity",
    "0044-03-15 12:00:00 BC",
    "1999-12-31 23:59:59.999999",
    "2024-02-29 00:00:00",
    "infinity",
];

fn pick<'a>(random: &mut TestRandom, from: &[&'a str]) -> &'a str {
    from[random.below(from.len() as u64) as usize]
}

/// Returns the text as a quoted SQL literal.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Returns a random text.
pub(crate) fn word(random: &mut TestRandom) -> String {
    match random.below(6) {
        0 => format!("{}{}", pick(random, &WORDS), pick(random, &WORDS)),
        1 => format!("w{}", random.below(1000)),
        _ => pick(random, &WORDS).to_owned(),
    }
}

fn hex(random: &mut TestRandom, bytes: u64) -> String {
    (0..bytes).map(|_| format!("{:02x}", random.below(256))).collect()
}

fn bits(random: &mut TestRandom, count: u64) -> String {
    (0..count).map(|_| if random.below(2) == 0 { '0' } else { '1' }).collect()
}

fn day(random: &mut TestRandom, limits: WorkloadLimits) -> String {
    match random.below(if limits.beyond_java { 9 } else { 5 }) {
        0 => "infinity".to_owned(),
        1 => "-infinity".to_owned(),
        2 => "9999-12-31".to_owned(),
        3 => "1969-12-31".to_owned(),
        5 => "4713-01-01 BC".to_owned(),
        6 => "0001-12-31 BC".to_owned(),
        7 => "1582-10-10".to_owned(),
        8 => "0001-01-01".to_owned(),
        _ => {
            let (year, month) = (1900 + random.below(200), 1 + random.below(12));
            format!("{year}-{month:02}-{:02}", 1 + random.below(28))
        }
    }
}

fn clock(random: &mut TestRandom) -> String {
    match random.below(5) {
        0 => "00:00:00".to_owned(),
        1 => "23:59:59.999999".to_owned(),
        2 => "00:00:00.000001".to_owned(),
        3 => format!("12:34:56.{}", random.below(1000)),
        _ => format!("{:02}:{:02}:{:02}", random.below(24), random.below(60), random.below(60)),
    }
}

/// Returns a random timestamp with this time zone, or `infinity` or `-infinity`.
fn moment(random: &mut TestRandom, limits: WorkloadLimits, zone: &str) -> String {
    let (day, clock) = (day(random, limits), clock(random));
    match day.strip_suffix(" BC") {
        _ if day.ends_with("infinity") => day,
        Some(day) => format!("{day} {clock}{zone} BC"),
        None => format!("{day} {clock}{zone}"),
    }
}

fn float(random: &mut TestRandom, limits: WorkloadLimits, largest: &str, least: &str) -> String {
    match random.below(if limits.special_numbers { 11 } else { 8 }) {
        0 => "0".to_owned(),
        1 => "-0".to_owned(),
        2 => largest.to_owned(),
        3 => least.to_owned(),
        4 => "0.1".to_owned(),
        5 => "-123456.789".to_owned(),
        6 => "1e15".to_owned(),
        7 => format!("{}.{}e-7", random.below(10), random.below(1_000_000)),
        8 => "NaN".to_owned(),
        9 => "Infinity".to_owned(),
        _ => "-Infinity".to_owned(),
    }
}

/// Returns a range between two of the sorted `bounds`.
fn range(random: &mut TestRandom, bounds: &[&str]) -> String {
    if random.below(8) == 0 {
        return "empty".to_owned();
    }
    let (one, other) = (random.below(bounds.len() as u64), random.below(bounds.len() as u64));
    let bound = |nth: u64, random: &mut TestRandom| match random.below(5) {
        0 => String::new(),
        _ => format!("\"{}\"", bounds[nth as usize]),
    };
    let (from, to) = (bound(one.min(other), random), bound(one.max(other), random));
    let (open, close) = (pick(random, &["[", "("]), pick(random, &["]", ")"]));
    format!("{open}{from},{to}{close}")
}

fn point(random: &mut TestRandom) -> String {
    let at = |random: &mut TestRandom| pick(random, &["0", "-1.5", "1e10", "0.1", "3"]).to_owned();
    format!("({},{})", at(random), at(random))
}

fn network(random: &mut TestRandom) -> &'static str {
    pick(random, &["10.0.0.0/8", "192.168.1.0/24", "::/0", "2001:db8::/32", "127.0.0.1/32"])
}

fn whole(random: &mut TestRandom, bits: u32) -> String {
    let top = (1_i128 << (bits - 1)) - 1;
    match random.below(5) {
        0 => top.to_string(),
        1 => (-top - 1).to_string(),
        2 => "0".to_owned(),
        3 => "-1".to_owned(),
        _ => random.below(30_000).to_string(),
    }
}

/// Returns the text of a random value of the type.
fn text(ty: &str, random: &mut TestRandom, limits: WorkloadLimits) -> String {
    match ty {
        "bool" => pick(random, &["t", "f"]).to_owned(),
        "int2" => whole(random, 16),
        "int4" => whole(random, 32),
        "int8" => whole(random, 64),
        "oid" => pick(random, &["0", "4294967295", "16384"]).to_owned(),
        "float4" => float(random, limits, "3.4028235e38", "-1e-45"),
        "float8" => float(random, limits, "1.7976931348623157e308", "5e-324"),
        "numeric" if limits.special_numbers && random.below(12) == 0 => "NaN".to_owned(),
        "numeric" => pick(random, &NUMERICS).to_owned(),
        "numeric(12,3)" | "amount" => format!("{}.{}", whole(random, 24), random.below(10)),
        "numeric(40,0)" => pick(random, &NUMERICS[..6]).to_owned(),
        "money" if !limits.beyond_java => pick(random, &["0", "-1.05", "12.34"]).to_owned(),
        "money" => pick(random, &["0", "-1.05", "92233720368547758.07", "12.34"]).to_owned(),
        "positive" => (1 + random.below(1 << 31)).min(2_147_483_647).to_string(),
        "varchar(20)" | "name" => word(random).chars().take(18).collect(),
        "char(7)" => word(random).chars().take(6).collect(),
        "\"char\"" => pick(random, &["", "a", " ", "\\", "\""]).to_owned(),
        "text" | "citext" => word(random),
        "ltree" => pick(random, &["", "a", "a.b_1.c"]).to_owned(),
        "xml" => pick(random, &["<a/>", "<a b=\"c&amp;\">x\n</a>", "text"]).to_owned(),
        "uuid" => {
            let digits = hex(random, 16);
            if random.below(4) == 0 { "0".repeat(32) } else { digits }
        }
        "mood" => pick(random, &["sad", "it's ok", "a,\"b\"", ""]).to_owned(),
        "bytea" => {
            let bytes = [0, 1, 2, 3, 4, 6, 40][random.below(7) as usize];
            format!("\\x{}", hex(random, bytes))
        }
        "bit(1)" => bits(random, 1),
        "bit(5)" => bits(random, 5),
        "bit(16)" => bits(random, 16),
        "varbit(20)" => {
            let count = random.below(21);
            bits(random, count)
        }
        "json" | "jsonb" => pick(random, &JSON).to_owned(),
        "tsvector" => pick(random, &["'a':1A 'b':2,3", "", "'it''s' 'x y'"]).to_owned(),
        "tsquery" => pick(random, &["'a' & !'b'", "'x' <-> 'y'"]).to_owned(),
        "date" => day(random, limits),
        "time" | "time(3)" => match random.below(9) {
            0 if limits.beyond_java => "24:00:00".to_owned(),
            // Rounding `59.999999` would give 60 seconds.
            _ if ty == "time(3)" => clock(random).replace("59.999999", "59.999"),
            _ => clock(random),
        },
        "timetz" if !limits.beyond_java => format!("{}+00", clock(random)),
        "timetz" => format!("{}{}", clock(random), pick(random, &["+00", "-07:30", "+14"])),
        "timestamp" | "timestamp(3)" => moment(random, limits, ""),
        "timestamptz" => {
            let zone = pick(random, &["+00", "-11", "+05:45"]);
            moment(random, limits, zone)
        }
        "interval" => pick(random, &INTERVALS).to_owned(),
        "inet" => match random.below(3) {
            0 => pick(random, &["10.1.2.3/8", "fe80::1", "::ffff:1.2.3.4/100"]).to_owned(),
            _ => network(random).to_owned(),
        },
        "cidr" => network(random).to_owned(),
        "macaddr" => "08:00:2b:01:02:03".to_owned(),
        "macaddr8" => "08:00:2b:01:02:03:04:05".to_owned(),
        "pg_lsn" => pick(random, &["0/0", "FFFFFFFF/FFFFFFFF", "16/B374D848"]).to_owned(),
        "point" => point(random),
        "line" => pick(random, &["{1,-1,0}", "{0,2.5,-1e5}"]).to_owned(),
        "lseg" | "path" | "polygon" => format!("({},{})", point(random), point(random)),
        "box" => format!("{},{}", point(random), point(random)),
        "circle" => format!("<{},2.5>", point(random)),
        "int4range" => range(random, &["-2147483648", "-1", "0", "17", "2147483646"]),
        "int8range" => range(random, &["-9223372036854775808", "0", "1", "9223372036854775806"]),
        "numrange" => range(random, &["-1e20", "0.00", "0.10", "7.250"]),
        "tsrange" => range(random, &STAMPS),
        "tstzrange" => range(random, &STAMPS),
        "daterange" => range(random, &["-infinity", "0044-03-15 BC", "2024-02-29", "infinity"]),
        "hstore" => {
            let item = |random: &mut TestRandom| {
                let word = word(random).replace('\\', "\\\\").replace('"', "\\\"");
                format!("\"{word}\"")
            };
            let mut items = Vec::new();
            for _ in 0..random.below(4) {
                let value = if random.below(4) == 0 { "NULL".into() } else { item(random) };
                items.push(format!("{}=>{value}", item(random)));
            }
            items.join(",")
        }
        "duo" => format!("({},\"{}\")", random.below(9), pick(random, &["x", "y z", ""])),
        other => panic!("the test makes no values of type {other}"),
    }
}

/// Returns a random expression of the type, or NULL.
pub(crate) fn literal(ty: &str, random: &mut TestRandom, limits: WorkloadLimits) -> String {
    if random.below(8) == 0 {
        return "null".to_owned();
    }
    let Some(element) = ty.strip_suffix("[]") else {
        return format!("{}::{ty}", quoted(&text(ty, random, limits)));
    };
    // Debezium writes an array of decimals with NaN as NULL.
    let limits = WorkloadLimits {
        special_numbers: limits.special_numbers
            && (limits.beyond_java || !ty.starts_with("numeric")),
        ..limits
    };
    let item = |random: &mut TestRandom| match random.below(6) {
        0 => "null".to_owned(),
        _ => quoted(&text(element, random, limits)),
    };
    let list = |random: &mut TestRandom, count: u64| {
        (0..count).map(|_| item(random)).collect::<Vec<_>>().join(",")
    };
    match random.below(6) {
        0 => format!("'{{}}'::{ty}"),
        // An array of two dimensions.
        1 if limits.beyond_java => {
            format!("array[[{}],[{}]]::{ty}", list(random, 2), list(random, 2))
        }
        _ => {
            let count = 1 + random.below(3);
            format!("array[{}]::{ty}", list(random, count))
        }
    }
}
