//! Bit masks for blocks of 64 bytes: one bit per byte says which bytes are special.
//!
//! The separators of a block are computed from the special bytes: the delimiters and line ends that
//! are not within quotes and not after a backslash. If COPY may reject the block, there is no
//! result. The byte-by-byte walk in `field_index` then finds the error, so that one place decides
//! on errors.

use wide::u8x16;

use super::Eol;
use super::field_index::ScanRules;

/// The bits at odd positions.
const ODD: u64 = 0xaaaa_aaaa_aaaa_aaaa;

/// The special bytes of a block, one bit per byte.
#[derive(Clone, Copy)]
pub(super) struct BlockMasks {
    delimiter: u64,
    newline: u64,
    carriage_return: u64,
    /// Quotes (csv) or backslashes (text).
    quote: u64,
    /// Escape characters (csv) that differ from the quote.
    escape: u64,
}

/// The separators of a block.
pub(super) struct BlockSeparators {
    /// Delimiters that end a field.
    pub(super) delimiter: u64,
    /// Line ends that end a record. For CRLF, the bit of the carriage return.
    pub(super) record: u64,
    /// Quotes (csv) or backslashes (text).
    pub(super) escapes: u64,
    /// Whether the block ends within quotes.
    pub(super) in_quote: bool,
    /// Whether the byte after the block is escaped, or is the newline of a CRLF.
    pub(super) includes_next: bool,
}

impl BlockMasks {
    /// Finds the special bytes of a block.
    #[inline]
    pub(super) fn of(bytes: &[u8; 64], rules: &ScanRules) -> BlockMasks {
        let lanes = lanes_of(bytes);
        let has_quote = rules.quote != rules.delimiter;
        let has_escape = rules.escape != rules.quote;
        BlockMasks {
            delimiter: equal(&lanes, rules.delimiter),
            newline: equal(&lanes, b'\n'),
            carriage_return: equal(&lanes, b'\r'),
            quote: if has_quote { equal(&lanes, rules.quote) } else { 0 },
            escape: if has_escape { equal(&lanes, rules.escape) } else { 0 },
        }
    }

    /// Clears the bits of all bytes that are not in `bits`.
    #[inline]
    pub(super) fn keep_only(&mut self, bits: u64) {
        self.delimiter &= bits;
        self.newline &= bits;
        self.carriage_return &= bits;
        self.quote &= bits;
        self.escape &= bits;
    }

    /// Returns all special bytes.
    pub(super) fn specials(&self) -> u64 {
        self.delimiter | self.newline | self.carriage_return | self.quote | self.escape
    }

    /// Returns the separators of the block, or `None` if COPY may reject the block. Works only for
    /// dialects whose escape is the quote and that have no comments. `next` is the byte after the
    /// block. `is_first_done` says that the block's first byte is escaped, or is the newline of a
    /// CRLF that the block before has handled.
    #[inline]
    pub(super) fn separators(
        mut self,
        bytes: &[u8; 64],
        next: Option<u8>,
        is_first_done: bool,
        in_quote: bool,
        rules: &ScanRules,
    ) -> Option<BlockSeparators> {
        self.keep_only(!u64::from(is_first_done));
        let mut found = BlockSeparators {
            delimiter: self.delimiter,
            record: 0,
            escapes: self.quote,
            in_quote: false,
            includes_next: false,
        };
        if rules.is_text && self.quote != 0 {
            let escaped = escaped_by(self.quote);
            found.includes_next = (self.quote & !escaped) >> 63 != 0;
            let dots = equal(&lanes_of(bytes), b'.');
            if dots & escaped != 0 || (found.includes_next && next == Some(b'.')) {
                return None;
            }
            self.keep_only(!escaped);
        } else if rules.has_quotes && (self.quote != 0 || in_quote) {
            let within = parity(self.quote) ^ if in_quote { u64::MAX } else { 0 };
            found.in_quote = within >> 63 != 0;
            self.keep_only(!within);
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
                found.includes_next |= carriage_return >> 63 != 0;
                carriage_return
            }
            _ => return None,
        };
        Some(found)
    }
}

/// Loads a block into four vectors of 16 bytes.
#[inline]
fn lanes_of(bytes: &[u8; 64]) -> [u8x16; 4] {
    let lane = |at| u8x16::new(bytes[at..at + 16].try_into().expect("16 of 64 bytes"));
    [0, 16, 32, 48].map(lane)
}

/// Returns the mask of the bytes that equal `byte`.
#[inline]
fn equal(lanes: &[u8x16; 4], byte: u8) -> u64 {
    let byte = u8x16::splat(byte);
    let [a, b, c, d] = lanes.map(|lane| u64::from(lane.simd_eq(byte).to_bitmask()));
    a | b << 16 | c << 32 | d << 48
}

/// Sets the bit of each byte for which the number of quotes up to this byte is odd.
#[inline]
fn parity(quotes: u64) -> u64 {
    [1, 2, 4, 8, 16, 32].iter().fold(quotes, |bits, shift| bits ^ (bits << shift))
}

/// Returns the bytes that follow an unescaped backslash. In a run of backslashes that begins at an
/// even position, the bytes at odd positions are escaped. The subtraction carries to the run's end.
#[inline]
fn escaped_by(backslashes: u64) -> u64 {
    let shifted = (backslashes << 1) | ODD;
    (shifted.wrapping_sub(backslashes) ^ ODD) ^ backslashes
}
