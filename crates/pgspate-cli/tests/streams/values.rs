//! Random literals of many types, including extreme values.

use crate::chance::TestRandom;

/// The values and changes that a stream can represent. The workload writes no others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkloadLimits {
    /// Whether NaN and infinite numbers occur.
    pub(crate) special_numbers: bool,
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

fn pick<'a>(chance: &mut TestRandom, from: &[&'a str]) -> &'a str {
    from[chance.below(from.len() as u64) as usize]
}

/// Returns the text as a quoted SQL literal.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

pub(crate) fn word(chance: &mut TestRandom) -> String {
    match chance.below(6) {
        0 => format!("{}{}", pick(chance, &WORDS), pick(chance, &WORDS)),
        1 => format!("w{}", chance.below(1000)),
        _ => pick(chance, &WORDS).to_owned(),
    }
}

fn hex(chance: &mut TestRandom, bytes: u64) -> String {
    (0..bytes).map(|_| format!("{:02x}", chance.below(256))).collect()
}

fn bits(chance: &mut TestRandom, count: u64) -> String {
    (0..count).map(|_| if chance.below(2) == 0 { '0' } else { '1' }).collect()
}

fn day(chance: &mut TestRandom, limits: WorkloadLimits) -> String {
    match chance.below(if limits.beyond_java { 9 } else { 5 }) {
        0 => "infinity".to_owned(),
        1 => "-infinity".to_owned(),
        2 => "9999-12-31".to_owned(),
        3 => "1969-12-31".to_owned(),
        5 => "4713-01-01 BC".to_owned(),
        6 => "0001-12-31 BC".to_owned(),
        7 => "1582-10-10".to_owned(),
        8 => "0001-01-01".to_owned(),
        _ => {
            let (year, month) = (1900 + chance.below(200), 1 + chance.below(12));
            format!("{year}-{month:02}-{:02}", 1 + chance.below(28))
        }
    }
}

fn clock(chance: &mut TestRandom) -> String {
    match chance.below(5) {
        0 => "00:00:00".to_owned(),
        1 => "23:59:59.999999".to_owned(),
        2 => "00:00:00.000001".to_owned(),
        3 => format!("12:34:56.{}", chance.below(1000)),
        _ => format!("{:02}:{:02}:{:02}", chance.below(24), chance.below(60), chance.below(60)),
    }
}

/// Returns a random timestamp. Near the type's limits it stays finite.
fn moment(chance: &mut TestRandom, limits: WorkloadLimits, zone: &str) -> String {
    let (day, clock) = (day(chance, limits), clock(chance));
    match day.strip_suffix(" BC") {
        _ if day.ends_with("infinity") => day,
        Some(day) => format!("{day} {clock}{zone} BC"),
        None => format!("{day} {clock}{zone}"),
    }
}

fn float(chance: &mut TestRandom, limits: WorkloadLimits, largest: &str, least: &str) -> String {
    match chance.below(if limits.special_numbers { 11 } else { 8 }) {
        0 => "0".to_owned(),
        1 => "-0".to_owned(),
        2 => largest.to_owned(),
        3 => least.to_owned(),
        4 => "0.1".to_owned(),
        5 => "-123456.789".to_owned(),
        6 => "1e15".to_owned(),
        7 => format!("{}.{}e-7", chance.below(10), chance.below(1_000_000)),
        8 => "NaN".to_owned(),
        9 => "Infinity".to_owned(),
        _ => "-Infinity".to_owned(),
    }
}

/// Returns a range between two of the sorted `bounds`.
fn range(chance: &mut TestRandom, bounds: &[&str]) -> String {
    if chance.below(8) == 0 {
        return "empty".to_owned();
    }
    let (one, other) = (chance.below(bounds.len() as u64), chance.below(bounds.len() as u64));
    let bound = |nth: u64, chance: &mut TestRandom| match chance.below(5) {
        0 => String::new(),
        _ => format!("\"{}\"", bounds[nth as usize]),
    };
    let (from, to) = (bound(one.min(other), chance), bound(one.max(other), chance));
    let (open, close) = (pick(chance, &["[", "("]), pick(chance, &["]", ")"]));
    format!("{open}{from},{to}{close}")
}

fn point(chance: &mut TestRandom) -> String {
    let at = |chance: &mut TestRandom| pick(chance, &["0", "-1.5", "1e10", "0.1", "3"]).to_owned();
    format!("({},{})", at(chance), at(chance))
}

fn network(chance: &mut TestRandom) -> &'static str {
    pick(chance, &["10.0.0.0/8", "192.168.1.0/24", "::/0", "2001:db8::/32", "127.0.0.1/32"])
}

fn whole(chance: &mut TestRandom, bits: u32) -> String {
    let top = (1_i128 << (bits - 1)) - 1;
    match chance.below(5) {
        0 => top.to_string(),
        1 => (-top - 1).to_string(),
        2 => "0".to_owned(),
        3 => "-1".to_owned(),
        _ => chance.below(30_000).to_string(),
    }
}

/// Returns the text of a random value of the type.
fn text(ty: &str, chance: &mut TestRandom, limits: WorkloadLimits) -> String {
    match ty {
        "bool" => pick(chance, &["t", "f"]).to_owned(),
        "int2" => whole(chance, 16),
        "int4" => whole(chance, 32),
        "int8" => whole(chance, 64),
        "oid" => pick(chance, &["0", "4294967295", "16384"]).to_owned(),
        "float4" => float(chance, limits, "3.4028235e38", "-1e-45"),
        "float8" => float(chance, limits, "1.7976931348623157e308", "5e-324"),
        "numeric" if limits.special_numbers && chance.below(12) == 0 => "NaN".to_owned(),
        "numeric" => pick(chance, &NUMERICS).to_owned(),
        "numeric(12,3)" | "amount" => format!("{}.{}", whole(chance, 24), chance.below(10)),
        "numeric(40,0)" => pick(chance, &NUMERICS[..6]).to_owned(),
        "money" if !limits.beyond_java => pick(chance, &["0", "-1.05", "12.34"]).to_owned(),
        "money" => pick(chance, &["0", "-1.05", "92233720368547758.07", "12.34"]).to_owned(),
        "positive" => (1 + chance.below(1 << 31)).min(2_147_483_647).to_string(),
        "varchar(20)" | "name" => word(chance).chars().take(18).collect(),
        "char(7)" => word(chance).chars().take(6).collect(),
        "\"char\"" => pick(chance, &["", "a", " ", "\\", "\""]).to_owned(),
        "text" | "citext" => word(chance),
        "ltree" => pick(chance, &["", "a", "a.b_1.c"]).to_owned(),
        "xml" => pick(chance, &["<a/>", "<a b=\"c&amp;\">x\n</a>", "text"]).to_owned(),
        "uuid" => {
            let digits = hex(chance, 16);
            if chance.below(4) == 0 { "0".repeat(32) } else { digits }
        }
        "mood" => pick(chance, &["sad", "it's ok", "a,\"b\"", ""]).to_owned(),
        "bytea" => {
            let bytes = [0, 1, 2, 3, 4, 6, 40][chance.below(7) as usize];
            format!("\\x{}", hex(chance, bytes))
        }
        "bit(1)" => bits(chance, 1),
        "bit(5)" => bits(chance, 5),
        "bit(16)" => bits(chance, 16),
        "varbit(20)" => {
            let count = chance.below(21);
            bits(chance, count)
        }
        "json" | "jsonb" => pick(chance, &JSON).to_owned(),
        "tsvector" => pick(chance, &["'a':1A 'b':2,3", "", "'it''s' 'x y'"]).to_owned(),
        "tsquery" => pick(chance, &["'a' & !'b'", "'x' <-> 'y'"]).to_owned(),
        "date" => day(chance, limits),
        "time" | "time(3)" => match chance.below(9) {
            0 if limits.beyond_java => "24:00:00".to_owned(),
            // Rounding `59.999999` would give 60 seconds.
            _ if ty == "time(3)" => clock(chance).replace("59.999999", "59.999"),
            _ => clock(chance),
        },
        "timetz" if !limits.beyond_java => format!("{}+00", clock(chance)),
        "timetz" => format!("{}{}", clock(chance), pick(chance, &["+00", "-07:30", "+14"])),
        "timestamp" | "timestamp(3)" => moment(chance, limits, ""),
        "timestamptz" => {
            let zone = pick(chance, &["+00", "-11", "+05:45"]);
            moment(chance, limits, zone)
        }
        "interval" => pick(chance, &INTERVALS).to_owned(),
        "inet" => match chance.below(3) {
            0 => pick(chance, &["10.1.2.3/8", "fe80::1", "::ffff:1.2.3.4/100"]).to_owned(),
            _ => network(chance).to_owned(),
        },
        "cidr" => network(chance).to_owned(),
        "macaddr" => "08:00:2b:01:02:03".to_owned(),
        "macaddr8" => "08:00:2b:01:02:03:04:05".to_owned(),
        "pg_lsn" => pick(chance, &["0/0", "FFFFFFFF/FFFFFFFF", "16/B374D848"]).to_owned(),
        "point" => point(chance),
        "line" => pick(chance, &["{1,-1,0}", "{0,2.5,-1e5}"]).to_owned(),
        "lseg" | "path" | "polygon" => format!("({},{})", point(chance), point(chance)),
        "box" => format!("{},{}", point(chance), point(chance)),
        "circle" => format!("<{},2.5>", point(chance)),
        "int4range" => range(chance, &["-2147483648", "-1", "0", "17", "2147483646"]),
        "int8range" => range(chance, &["-9223372036854775808", "0", "1", "9223372036854775806"]),
        "numrange" => range(chance, &["-1e20", "0.00", "0.10", "7.250"]),
        "tsrange" => range(chance, &STAMPS),
        "tstzrange" => range(chance, &STAMPS),
        "daterange" => range(chance, &["-infinity", "0044-03-15 BC", "2024-02-29", "infinity"]),
        "hstore" => {
            let item = |chance: &mut TestRandom| {
                let word = word(chance).replace('\\', "\\\\").replace('"', "\\\"");
                format!("\"{word}\"")
            };
            let mut items = Vec::new();
            for _ in 0..chance.below(4) {
                let value = if chance.below(4) == 0 { "NULL".into() } else { item(chance) };
                items.push(format!("{}=>{value}", item(chance)));
            }
            items.join(",")
        }
        "duo" => format!("({},\"{}\")", chance.below(9), pick(chance, &["x", "y z", ""])),
        other => panic!("no values of type {other}"),
    }
}

/// Returns a random expression of the type, or NULL.
pub(crate) fn literal(ty: &str, chance: &mut TestRandom, limits: WorkloadLimits) -> String {
    if chance.below(8) == 0 {
        return "null".to_owned();
    }
    let Some(element) = ty.strip_suffix("[]") else {
        return format!("{}::{ty}", quoted(&text(ty, chance, limits)));
    };
    // Debezium writes an array of decimals with NaN as NULL.
    let limits = WorkloadLimits {
        special_numbers: limits.special_numbers
            && (limits.beyond_java || !ty.starts_with("numeric")),
        ..limits
    };
    let item = |chance: &mut TestRandom| match chance.below(6) {
        0 => "null".to_owned(),
        _ => quoted(&text(element, chance, limits)),
    };
    let list = |chance: &mut TestRandom, count: u64| {
        (0..count).map(|_| item(chance)).collect::<Vec<_>>().join(",")
    };
    match chance.below(6) {
        0 => format!("'{{}}'::{ty}"),
        // An array of two dimensions.
        1 if limits.beyond_java => {
            format!("array[[{}],[{}]]::{ty}", list(chance, 2), list(chance, 2))
        }
        _ => {
            let count = 1 + chance.below(3);
            format!("array[{}]::{ty}", list(chance, count))
        }
    }
}
