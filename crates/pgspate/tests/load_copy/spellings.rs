//! Random spellings of values for each type: common, unusual, extreme and invalid.

use crate::random::CopyRandom;

/// Returns a random spelling of a value of type `ty`. Most spellings are valid.
pub(crate) fn spelling(ty: &str, random: &mut CopyRandom) -> String {
    let base = ty.split(['(', ' ']).next().unwrap_or(ty);
    let plain = match base.strip_suffix("[]") {
        Some(element) => array(element, random),
        None => scalar(base, random),
    };
    if random.once_in(4) { mutated(&plain, random) } else { plain }
}

fn scalar(ty: &str, random: &mut CopyRandom) -> String {
    match ty {
        "int2" | "int4" | "int8" | "oid" | "small" | "money" => integer(random),
        "numeric" | "float4" | "float8" => number(random),
        "bool" => random.pick(&BOOLEANS).to_string(),
        "date" => date(random),
        "timestamp" | "timestamptz" => moment(random),
        "time" | "timetz" => format!("{}{}", time(random), zone(random)),
        "interval" => interval(random),
        "uuid" => uuid(random),
        "json" | "jsonb" => json(random, 3),
        "bytea" => bytes(random),
        "inet" | "cidr" => address(random),
        "macaddr" => random.pick(&MACS).to_string(),
        "mood" => random.pick(&MOODS).to_string(),
        "int4range" => range("int4", random),
        "numrange" => range("numeric", random),
        "tsrange" => range("timestamp", random),
        "daterange" => range("date", random),
        "bit" | "varbit" => (0..random.below(5)).map(|_| random.pick(&['0', '1'])).collect(),
        "point" => format!("({},{})", number(random), number(random)),
        _ => text(random),
    }
}

const BOOLEANS: [&str; 16] = [
    "t", "f", "true", "false", "TRUE", "False", "yes", "no", "on", "off", "1", "0", "y", "n", "tr",
    "of",
];
const MOODS: [&str; 5] = ["sad", "ok", "very happy", "größer", "it's, \"x\""];
const MACS: [&str; 6] = [
    "08:00:2b:01:02:03",
    "08-00-2b-01-02-03",
    "08002b:010203",
    "08002b010203",
    "0800.2b01.0203",
    "08:00:2B:01:02:FF",
];
const INTEGERS: [i128; 13] = [
    0,
    1,
    -1,
    7,
    10,
    32_767,
    -32_768,
    2_147_483_647,
    -2_147_483_648,
    4_294_967_295,
    9_223_372_036_854_775_807,
    -9_223_372_036_854_775_808,
    9_223_372_036_854_775_808,
];

fn integer(random: &mut CopyRandom) -> String {
    let value = match random.below(4) {
        0 => random.pick(&INTEGERS) + i128::from(random.between(-1, 1)),
        1 => i128::from(random.next() as i64 >> random.below(64)),
        _ => i128::from(random.between(-40, 40)),
    };
    match random.below(16) {
        0 => format!("+{value}"),
        1 => format!(" {value}"),
        2 => format!("{value} \t"),
        3 => format!("000{value}"),
        4 => format!("{value}.0"),
        5 => format!("{value:#x}"),
        _ => value.to_string(),
    }
}

fn digits(random: &mut CopyRandom, max: usize) -> String {
    (0..random.below(max + 1)).map(|_| char::from(b'0' + random.below(10) as u8)).collect()
}

fn number(random: &mut CopyRandom) -> String {
    const ODD: [&str; 24] = [
        "NaN",
        "nan",
        "Infinity",
        "-infinity",
        "inf",
        "+inf",
        "-0",
        "0.000",
        "-0.0",
        ".5",
        "5.",
        ".",
        "1e308",
        "1e309",
        "-1e-320",
        "1e-400",
        "3.4028235e38",
        "3.5e38",
        "1e-45",
        "1e-46",
        "1_000",
        "0x1p3",
        "1e131071",
        "9.99999999999999999999999999",
    ];
    match random.below(8) {
        0 => random.pick(&ODD).to_string(),
        1 => integer(random),
        2 => {
            let sign = random.pick(&["", "-", "+"]);
            let places = random.between(-30, 30);
            format!("{sign}{}.{}e{places}", digits(random, 4), digits(random, 20))
        }
        3 => format!("{:e}", f64::from_bits(random.next())),
        4 => format!("{}", f32::from_bits(random.next() as u32)),
        5 => format!("{}.{}", digits(random, 40), digits(random, 40)),
        _ => {
            let sign = random.pick(&["", "-"]);
            format!("{sign}{}.{}", random.below(2000), digits(random, 4))
        }
    }
}

fn year(random: &mut CopyRandom) -> i64 {
    match random.below(8) {
        0 => random.between(0, 99),
        1 => random.between(-4713, 300_000),
        2 => random.between(1, 999),
        _ => random.between(1900, 2100),
    }
}

const MONTHS: [&str; 5] = ["Jan", "february", "MAR", "Sept", "December"];

fn date(random: &mut CopyRandom) -> String {
    const ODD: [&str; 13] = [
        "infinity",
        "-infinity",
        "epoch",
        "today",
        "1999-02-29",
        "2000-02-29",
        "0000-01-01",
        "4714-11-24 BC",
        "4714-11-23 BC",
        "5874897-12-31",
        "5874898-01-01",
        "J2451187",
        "20240229",
    ];
    let (year, month, day) = (year(random), random.between(1, 12), random.between(1, 31));
    match random.below(14) {
        0 => random.pick(&ODD).to_string(),
        1 => format!("{month}/{day}/{year}"),
        2 => format!("{day}.{month}.{year}"),
        3 => format!("{} {day}, {year}", random.pick(&MONTHS)),
        4 => format!("{day} {} {year}", random.pick(&MONTHS)),
        5 => format!("{year:04}{month:02}{day:02}"),
        6 => format!("{year}-{month}-{day}"),
        7 => format!("{year:04}-{month:02}-{day:02} BC"),
        8 => format!("{year:04}-{:03}", random.between(0, 366)),
        9 => format!("{day:02}-{month:02}-{:02}", year % 100),
        _ => format!("{year:04}-{month:02}-{:02}", random.between(1, 28)),
    }
}

fn time(random: &mut CopyRandom) -> String {
    const ODD: [&str; 10] = [
        "24:00:00",
        "23:59:60",
        "23:59:59.9999999",
        "12:00 PM",
        "12:00 AM",
        "0:0",
        "allballs",
        "040506",
        "T04:05",
        "04:05:06.5 pm",
    ];
    let (hour, minute, second) = (random.below(24), random.below(60), random.below(60));
    match random.below(8) {
        0 => random.pick(&ODD).to_string(),
        1 => format!("{hour:02}:{minute:02}"),
        2 => format!("{hour:02}:{minute:02}:{second:02}.{}", digits(random, 9)),
        3 => format!("{hour}:{minute}:{second}"),
        _ => format!("{hour:02}:{minute:02}:{second:02}"),
    }
}

fn zone(random: &mut CopyRandom) -> String {
    const ZONES: [&str; 18] = [
        "Z",
        "+00",
        "-08",
        "+05:30",
        "-00:00:01",
        " America/New_York",
        " UTC",
        " EST",
        "EDT",
        " Europe/Amsterdam",
        "+15:59:59",
        "+16",
        "-0330",
        " PST8PDT",
        " utc",
        " NoSuchZone",
        "+1",
        " zulu",
    ];
    if random.once_in(2) { String::new() } else { random.pick(&ZONES).to_string() }
}

fn moment(random: &mut CopyRandom) -> String {
    const ODD: [&str; 12] = [
        "infinity",
        "-infinity",
        "epoch",
        "294276-12-31 23:59:59.999999",
        "294277-01-01 00:00:00",
        "4714-11-24 00:00:00 BC",
        "4714-11-23 23:59:59 BC",
        "2024-03-10 02:30:00",
        "2024-11-03 01:30:00",
        "1883-11-18 12:03:58",
        "Wed Feb 29 12:00:00 2024",
        "20240229T123456",
    ];
    match random.below(10) {
        0 => random.pick(&ODD).to_string(),
        1 => format!("{} {}", date(random), time(random)),
        2 => date(random),
        3 => format!("{}T{}{}", date(random), time(random), zone(random)),
        4 => format!("{} {}{} BC", date(random), time(random), zone(random)),
        _ => {
            let (year, month, day) =
                (random.between(1850, 2150), random.between(1, 12), random.between(1, 28));
            let separator = random.pick(&[" ", "T", "t", "  "]);
            format!("{year}-{month:02}-{day:02}{separator}{}{}", time(random), zone(random))
        }
    }
}

fn interval(random: &mut CopyRandom) -> String {
    const ODD: [&str; 22] = [
        "1 day",
        "-1 day",
        "1-2",
        "1-2 3 4:05:06",
        "P1Y2M3DT4H5M6S",
        "P0001-02-03T04:05:06",
        "PT1.5H",
        "1 year 2 mons -3 days",
        "3 days ago",
        "@ 1 minute",
        "1.5 weeks",
        "infinity",
        "1:2:3",
        "-1:00",
        "100:00:00.0000004",
        "1 mon 1.5 mon",
        "2147483647 days",
        "2147483648 days",
        "1e3 s",
        "P1W",
        "178956970 years 7 mons",
        "1 millennium 0.5 day",
    ];
    const UNITS: [&str; 14] = [
        "years", "mons", "days", "hours", "mins", "secs", "weeks", "y", "d", "h", "ms", "us",
        "month", "decade",
    ];
    match random.below(3) {
        0 => random.pick(&ODD).to_string(),
        1 => format!("{} days {}", random.between(-400, 400), time(random)),
        _ => {
            let part = |random: &mut CopyRandom| {
                let point = if random.once_in(4) { "." } else { "" };
                let fraction = if point.is_empty() { String::new() } else { digits(random, 7) };
                let value = random.between(-50, 50);
                format!("{value}{point}{fraction} {}", random.pick(&UNITS))
            };
            let parts: Vec<_> = (0..=random.below(3)).map(|_| part(random)).collect();
            parts.join(" ")
        }
    }
}

fn uuid(random: &mut CopyRandom) -> String {
    let hex = format!("{:016x}{:016x}", random.next(), random.next());
    let dashed = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
    match random.below(8) {
        0 => hex,
        1 => format!("{{{dashed}}}"),
        2 => dashed.to_uppercase(),
        3 => format!("{}-{}", &hex[..16], &hex[16..]),
        _ => dashed,
    }
}

fn json(random: &mut CopyRandom, depth: usize) -> String {
    const LEAVES: [&str; 20] = [
        "null",
        "true",
        "false",
        "0",
        "-1",
        "1.50",
        "1e3",
        "1E400",
        "-0",
        "\"\"",
        "\"a\"",
        "\"\\u00e9\\n\"",
        "\"\\u0000\"",
        "\"\\ud83d\\ude00\"",
        "\"\\ud83d\"",
        "01",
        "1.",
        "'a'",
        "\"tab\\t\"",
        "NaN",
    ];
    if depth == 0 || random.once_in(3) {
        return random.pick(&LEAVES).to_string();
    }
    let space = random.pick(&["", " ", "\n"]);
    let count = random.below(3);
    let items: Vec<_> = (0..count).map(|_| json(random, depth - 1)).collect();
    if random.once_in(2) {
        return format!("[{space}{}]", items.join(&format!(",{space}")));
    }
    let keys = ["a", "b", "a", "k k"];
    let pairs: Vec<_> =
        items.iter().map(|item| format!("\"{}\":{space}{item}", random.pick(&keys))).collect();
    format!("{{{}}}{space}", pairs.join(","))
}

fn bytes(random: &mut CopyRandom) -> String {
    match random.below(4) {
        0 => {
            const ODD: [&str; 8] =
                ["", "\\x", "\\xA", "\\x0G", "abc", "\\000\\377", "\\\\", "\\x00 ff\n0a"];
            random.pick(&ODD).to_string()
        }
        1 => format!("\\x{:X}", random.next()),
        _ => format!("\\x{:016x}", random.next()),
    }
}

fn address(random: &mut CopyRandom) -> String {
    const ODD: [&str; 16] = [
        "::",
        "::1",
        "fe80::1/64",
        "2001:db8::/32",
        "10",
        "10.1",
        "10.1.2.3/33",
        "1.2.3",
        "1.2.3.4/0",
        "::ffff:1.2.3.4",
        "1:2:3:4:5:6:7:8",
        "1.2.3.256",
        "10.0.0.1/8",
        "0.0.0.0/0",
        "::10.2.3.4/96",
        "01.2.3.4",
    ];
    let byte = |random: &mut CopyRandom| random.below(256);
    match random.below(3) {
        0 => random.pick(&ODD).to_string(),
        1 => format!("{}.{}.0.0/16", byte(random), byte(random)),
        _ => format!("{}.{}.{}.{}", byte(random), byte(random), byte(random), byte(random)),
    }
}

fn range(of: &str, random: &mut CopyRandom) -> String {
    if random.once_in(6) {
        const ODD: [&str; 8] =
            ["empty", " EMPTY ", "(,)", "[,]", "[1,1)", "[1,1]", "( 1 , 2 ]", "[\"1\",\"2\"]"];
        return random.pick(&ODD).to_string();
    }
    let bound = |random: &mut CopyRandom| {
        let value = if random.once_in(6) { String::new() } else { scalar(of, random) };
        if random.once_in(4) { format!("\"{value}\"") } else { value }
    };
    let (open, close) = (random.pick(&["[", "("]), random.pick(&["]", ")"]));
    let (low, high) = (bound(random), bound(random));
    format!("{open}{low},{high}{close}")
}

fn array(element: &str, random: &mut CopyRandom) -> String {
    const ODD: [&str; 10] = [
        "{}",
        "{NULL}",
        "{\"NULL\"}",
        "[2:3]={1,2}",
        "{{1,2},{3,4}}",
        "{{1},{2,3}}",
        "{1,}",
        " { 1 , 2 } ",
        "{\"a\\\"b\"}",
        "{{}}",
    ];
    if random.once_in(5) {
        return random.pick(&ODD).to_string();
    }
    let item = |random: &mut CopyRandom| {
        if random.once_in(8) {
            return (random.pick(&["NULL", "null", "\"NULL\""])).to_owned();
        }
        let value = scalar(element, random);
        let is_plain = !value.is_empty() && !value.contains(['"', '\\', '{', '}', ',', ' ', '\t']);
        if is_plain && !random.once_in(4) {
            value
        } else {
            format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
        }
    };
    let items: Vec<_> = (0..random.below(4)).map(|_| item(random)).collect();
    format!("{{{}}}", items.join(random.pick(&[",", ", "])))
}

fn text(random: &mut CopyRandom) -> String {
    const PARTS: [&str; 22] = [
        "a", "B", " ", "é", "漢", "😀", ",", "\"", "'", "\\", "\n", "\r\n", "\t", ";", "\\N",
        "\\.", "NULL", "0", "-", "x y", "\u{a0}", "|",
    ];
    (0..random.below(6)).map(|_| random.pick(&PARTS)).collect()
}

/// Returns the text with one small change.
fn mutated(value: &str, random: &mut CopyRandom) -> String {
    let mut chars: Vec<char> = value.chars().collect();
    let at = random.below(chars.len() + 1);
    match random.below(6) {
        0 if at < chars.len() => drop(chars.remove(at)),
        1 if at < chars.len() => chars.insert(at, chars[at]),
        2 => chars.insert(at, random.pick(&[' ', '\t', '\n', '\u{b}', '\u{a0}'])),
        3 => chars.insert(at, random.pick(&['0', '9', '-', '+', '.', ':', 'e', 'x', '\u{1}', '"'])),
        4 => return value.to_uppercase(),
        _ => return format!(" {value} "),
    }
    chars.into_iter().collect()
}
