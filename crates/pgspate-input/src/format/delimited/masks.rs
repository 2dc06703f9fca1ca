//! One bit per byte of a block of 64: which bytes are special, and which of them separate.
//!
//! What is within quotes, or behind a backslash, separates nothing. A block that holds anything
//! COPY would refuse is not resolved here, so that the refusal is decided in one place.

use wide::u8x16;

use super::Eol;
use super::scan::Rules;

/// The bits at odd positions.
const ODD: u64 = 0xaaaa_aaaa_aaaa_aaaa;

/// Where a block's special bytes are.
#[derive(Clone, Copy)]
pub(super) struct Block {
    delimiter: u64,
    newline: u64,
    carriage_return: u64,
    /// Quotes of csv, backslashes of text.
    quote: u64,
    /// Escapes of csv, where they are not quotes.
    escape: u64,
}

/// The separators of a block.
pub(super) struct Separators {
    /// Delimiters that end a field.
    pub(super) delimiter: u64,
    /// Line ends that end a record; of two bytes, the first.
    pub(super) record: u64,
    /// Quotes and backslashes.
    pub(super) marks: u64,
    /// Whether the block ends within quotes.
    pub(super) in_quote: bool,
    /// Whether the byte after the block is escaped, or the second of a line end.
    pub(super) takes_next: bool,
}

impl Block {
    #[inline]
    pub(super) fn of(bytes: &[u8; 64], rules: &Rules) -> Block {
        let lanes = lanes_of(bytes);
        let has_quote = rules.quote != rules.delimiter;
        let has_escape = rules.escape != rules.quote;
        Block {
            delimiter: equal(&lanes, rules.delimiter),
            newline: equal(&lanes, b'\n'),
            carriage_return: equal(&lanes, b'\r'),
            quote: if has_quote { equal(&lanes, rules.quote) } else { 0 },
            escape: if has_escape { equal(&lanes, rules.escape) } else { 0 },
        }
    }

    /// Leaves only the bytes in `bits`.
    #[inline]
    pub(super) fn keep(&mut self, bits: u64) {
        self.delimiter &= bits;
        self.newline &= bits;
        self.carriage_return &= bits;
        self.quote &= bits;
        self.escape &= bits;
    }

    /// All bytes that may matter.
    pub(super) fn specials(&self) -> u64 {
        self.delimiter | self.newline | self.carriage_return | self.quote | self.escape
    }

    /// The separators, where quotes are escaped by quotes and there are no comments; `None` where
    /// something may be wrong. `next` is the byte after the block, and `is_first_done` tells that
    /// the first one is escaped, or the second of a line end.
    #[inline]
    pub(super) fn separators(
        mut self,
        bytes: &[u8; 64],
        next: Option<u8>,
        is_first_done: bool,
        in_quote: bool,
        rules: &Rules,
    ) -> Option<Separators> {
        self.keep(!u64::from(is_first_done));
        let mut found = Separators {
            delimiter: self.delimiter,
            record: 0,
            marks: self.quote,
            in_quote: false,
            takes_next: false,
        };
        if rules.text && self.quote != 0 {
            let escaped = escaped_by(self.quote);
            found.takes_next = (self.quote & !escaped) >> 63 != 0;
            let dots = equal(&lanes_of(bytes), b'.');
            if dots & escaped != 0 || (found.takes_next && next == Some(b'.')) {
                return None;
            }
            self.keep(!escaped);
        } else if rules.quoted && (self.quote != 0 || in_quote) {
            let within = parity(self.quote) ^ if in_quote { u64::MAX } else { 0 };
            found.in_quote = within >> 63 != 0;
            self.keep(!within);
        }
        found.delimiter = self.delimiter;
        let (newline, carriage_return) = (self.newline, self.carriage_return);
        found.record = match rules.eol {
            Eol::Lf if carriage_return == 0 => newline,
            Eol::Cr if newline == 0 => carriage_return,
            Eol::CrLf if newline | carriage_return == 0 => 0,
            Eol::CrLf => {
                let is_next = u64::from(next == Some(b'\n')) << 63;
                let followed = (newline >> 1) | is_next;
                let preceded = carriage_return << 1;
                if carriage_return & !followed != 0 || newline & !preceded != 0 {
                    return None;
                }
                found.takes_next |= carriage_return >> 63 != 0;
                carriage_return
            }
            _ => return None,
        };
        Some(found)
    }
}

#[inline]
fn lanes_of(bytes: &[u8; 64]) -> [u8x16; 4] {
    let lane = |at| u8x16::new(bytes[at..at + 16].try_into().expect("16 of 64 bytes"));
    [0, 16, 32, 48].map(lane)
}

#[inline]
fn equal(lanes: &[u8x16; 4], byte: u8) -> u64 {
    let byte = u8x16::splat(byte);
    let [a, b, c, d] = lanes.map(|lane| u64::from(lane.simd_eq(byte).to_bitmask()));
    a | b << 16 | c << 32 | d << 48
}

/// For each byte, whether the number of quotes up to it is odd.
#[inline]
fn parity(quotes: u64) -> u64 {
    [1, 2, 4, 8, 16, 32].iter().fold(quotes, |bits, shift| bits ^ (bits << shift))
}

/// The bytes behind a backslash that is not itself escaped. A run of backslashes that begins at an
/// even position escapes at odd ones; taking its bits from those after it carries to its end.
#[inline]
fn escaped_by(backslashes: u64) -> u64 {
    let shifted = (backslashes << 1) | ODD;
    (shifted.wrapping_sub(backslashes) ^ ODD) ^ backslashes
}
