//! Cases: a dialect and an input, random or written by hand.

use pgspate::format::delimited::CopyFormat::{Csv, Text};
use pgspate::format::delimited::Dialect;

/// An input and its options, for both COPY and pgspate.
#[derive(Debug, Clone)]
pub(crate) struct DelimitedCase {
    pub(crate) dialect: Dialect,
    /// The number of columns. All have the type text, except the last column if `has_number` is
    /// true.
    pub(crate) columns: usize,
    pub(crate) has_number: bool,
    /// The bit n says whether column n is in `force_null`. The next field is the same for
    /// `force_not_null`.
    pub(crate) force_null: u8,
    pub(crate) force_not_null: u8,
    pub(crate) header: bool,
    pub(crate) client_encoding: &'static str,
    pub(crate) input: Vec<u8>,
    pub(crate) chunk_bytes: usize,
    pub(crate) fill_bytes: usize,
}

impl DelimitedCase {
    pub(crate) fn new(dialect: Dialect, columns: usize, input: &[u8]) -> DelimitedCase {
        DelimitedCase {
            dialect,
            columns,
            has_number: false,
            force_null: 0,
            force_not_null: 0,
            header: false,
            client_encoding: "UTF8",
            input: input.to_vec(),
            chunk_bytes: 1 << 20,
            fill_bytes: 1 << 20,
        }
    }

    /// Returns the options of COPY for the case.
    pub(crate) fn options(&self) -> String {
        let Dialect { format, delimiter, quote, escape, null, .. } = &self.dialect;
        let mut options = vec![
            format!("delimiter {}", literal(&[*delimiter])),
            format!("null {}", literal(null)),
            format!("header {}", self.header),
        ];
        match format {
            Text => options.push("format text".into()),
            Csv => {
                options.push("format csv".into());
                // COPY needs a quote, so without a quote it gets a byte that does not occur.
                let quote = quote.unwrap_or(1);
                options.push(format!("quote {}", literal(&[quote])));
                options.push(format!("escape {}", literal(&[*escape])));
                for (name, bits) in
                    [("force_null", self.force_null), ("force_not_null", self.force_not_null)]
                {
                    let forced: Vec<_> = self.column_names(bits).collect();
                    if !forced.is_empty() {
                        options.push(format!("{name} ({})", forced.join(", ")));
                    }
                }
            }
        }
        options.join(", ")
    }

    fn column_names(&self, bits: u8) -> impl Iterator<Item = String> {
        (0..self.columns).filter(move |nth| bits >> nth & 1 != 0).map(|nth| format!("c{nth}"))
    }
}

fn literal(bytes: &[u8]) -> String {
    let text: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    format!("e'{text}'")
}

/// Random numbers from a seed: a linear congruential generator with mixed high bits.
pub(crate) struct CaseRandom(pub(crate) u64);

impl CaseRandom {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let mixed = self.0 ^ (self.0 >> 31);
        mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn one_in(&mut self, end: usize) -> bool {
        self.below(end) == 0
    }

    fn of<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }
}

/// Returns a random case.
pub(crate) fn random_case(random: &mut CaseRandom) -> DelimitedCase {
    let dialect = random_dialect(random);
    let columns = random.below(4) + 1;
    let is_csv = dialect.format == Csv;
    let mut bits = || if random.one_in(3) { random.below(16) as u8 } else { 0 };
    let (force_null, force_not_null) = if is_csv { (bits(), bits()) } else { (0, 0) };
    let input = random_input(random, &dialect, columns);
    let len = input.len() + 2;
    let is_foreign = random.one_in(6);
    // SQL_ASCII is not tried, because COPY then does not check whether bytes are valid.
    let encodings = ["LATIN1", "EUC_JP", "WIN1252"];
    DelimitedCase {
        dialect,
        columns,
        // The server's error about a number may quote bytes that are invalid in the client's
        // encoding.
        has_number: !is_foreign && random.one_in(6),
        client_encoding: if is_foreign { encodings[random.below(3)] } else { "UTF8" },
        force_null,
        force_not_null,
        header: random.one_in(12),
        input,
        chunk_bytes: random.below(len) + 1,
        fill_bytes: random.below(len) + 1,
    }
}

fn random_dialect(random: &mut CaseRandom) -> Dialect {
    if random.one_in(3) {
        let dialect = Dialect {
            delimiter: *random.of(&[b"\t", b"\t", b"|", b",", b"N", b"\""]).first().unwrap(),
            null: random.of(&[&b"\\N"[..], b"\\N", b"", b"x", b"NULL", b"\\\\", b"\\."]).to_vec(),
            ..Dialect::text()
        };
        return if dialect.check().is_ok() { dialect } else { Dialect::text() };
    }
    let quote = *random.of(&[b"\"", b"\"", b"\"", b"'", b"\\", b"."]).first().unwrap();
    let escape = match random.below(4) {
        0 => *random.of(&[b"\\", b"'", b"x", b",", b"."]).first().unwrap(),
        _ => quote,
    };
    let delimiter = *random.of(&[b",", b",", b";", b"\t", b"|", b"\\", b"."]).first().unwrap();
    let null = random.of(&[&b""[..], b"", b"N", b"\\N", b"x", b"1"]).to_vec();
    let dialect = Dialect {
        delimiter,
        quote: if random.one_in(12) { None } else { Some(quote) },
        escape,
        null,
        ..Dialect::csv()
    };
    if dialect.check().is_ok() { dialect } else { Dialect::csv() }
}

fn random_input(random: &mut CaseRandom, dialect: &Dialect, columns: usize) -> Vec<u8> {
    let eol: &[u8] = random.of(&[b"\n", b"\n", b"\r\n", b"\r"]);
    let mut input = Vec::new();
    let is_hostile = random.one_in(3);
    let records_max = if random.one_in(8) { 40 } else { 6 };
    let records = random.below(records_max);
    for nth in 0..records {
        let fields = if random.one_in(12) { random.below(6) } else { columns };
        for field in 0..fields {
            if field > 0 {
                input.push(dialect.delimiter);
            }
            let tokens_max = if random.one_in(10) { 40 } else { 4 };
            let tokens = random.below(tokens_max);
            match dialect.quote {
                Some(quote) if random.one_in(3) => {
                    input.push(quote);
                    for _ in 0..tokens {
                        add_quoted_token(random, dialect, quote, &mut input);
                    }
                    input.push(quote);
                }
                _ => (0..tokens).for_each(|_| add_token(random, dialect, is_hostile, &mut input)),
            }
        }
        if nth + 1 < records || !random.one_in(3) {
            input.extend_from_slice(if random.one_in(40) { b"\n" } else { eol });
        }
        if random.one_in(30) {
            input.extend_from_slice(b"\\.");
            input.extend_from_slice(if random.one_in(4) { b"" } else { eol });
        }
    }
    if random.one_in(400) {
        // This field is longer than the first fill_bytes that the cutter reads.
        let at = random.below(input.len() + 1);
        input.splice(at..at, std::iter::repeat_n(b'a', 60_000 + random.below(10_000)));
    }
    input
}

/// Adds a token to a quoted field. Most of the tokens need quotes.
fn add_quoted_token(random: &mut CaseRandom, dialect: &Dialect, quote: u8, input: &mut Vec<u8>) {
    match random.below(6) {
        0 => input.extend_from_slice(&[dialect.escape, quote]),
        1 => input.push(dialect.delimiter),
        2 => input.extend_from_slice(random.of(&[&b"\n"[..], b"\r", b"\r\n"])),
        _ => add_token(random, dialect, false, input),
    }
}

fn add_token(random: &mut CaseRandom, dialect: &Dialect, is_hostile: bool, input: &mut Vec<u8>) {
    let choice = random.below(if is_hostile { 34 } else { 20 });
    let bytes: &[u8] = match choice {
        0 | 1 => b"a",
        2 => b"b",
        3 => b"N",
        4 => b"12",
        5 => b"7",
        6 => "é".as_bytes(),
        7 => random.of(&["€".as_bytes(), "塡".as_bytes()]),
        8 => b" ",
        9 => &dialect.null,
        10 if dialect.format == Text => b"\\N",
        11 if dialect.format == Text => b"\\\\",
        12 if dialect.format == Text => random.of(&[&b"\\n"[..], b"\\t", b"\\r", b"\\b", b"\\q"]),
        13 if dialect.format == Text => random.of(&[&b"\\\n"[..], b"\\\r", b"\\\t", b"\\|"]),
        14 if dialect.format == Text => {
            random.of(&[&b"\\101"[..], b"\\x41", b"\\303\\251", b"\\xc3\\xA9", b"\\7", b"\\x4g"])
        }
        15 => b"x",
        10..=19 => b"0",
        20 => b"\n",
        21 => b"\r",
        22 => b"\\",
        23 => b".",
        24 => b"\t",
        25 => b"\xc3",
        26 => b"\xa9",
        27 => random.of(&[&b"\xff"[..], b"\0", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80"]),
        28 => &[dialect.delimiter],
        29 | 30 => dialect.quote.as_ref().map_or(b"\"", std::slice::from_ref),
        31 => std::slice::from_ref(&dialect.escape),
        32 => random.of(&[&b"\\0"[..], b"\\377", b"\\xff", b"\\400", b"\\x", b"\\."]),
        // The byte 1 is COPY's quote if the case has no quote.
        _ if dialect.quote.is_none() => b"\x02",
        _ => b"\x01",
    };
    input.extend_from_slice(bytes);
}
