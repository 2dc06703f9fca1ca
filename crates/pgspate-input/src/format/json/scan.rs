//! Finds where records may be cut, by bracket depth outside strings, 64 bytes at a time.
//!
//! Only one thread cuts at a time, so the cutter only counts brackets and quotes. The encoder
//! checks the grammar later. In valid JSON every edge found here separates two records. In invalid
//! JSON an edge may be wrong; then the chunk before it is invalid too, and the encoder reports it.

use wide::u8x16;

/// Where the edges of records are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CutRule {
    /// Values one after another. An edge is before the opening bracket of a value. Any other byte
    /// between values is an error, and an edge is after this byte.
    Values,
    /// Items of one array. An edge is before the comma between two items.
    Items,
}

/// Tracks the depth of brackets and strings over the bytes of a chunk, in order.
#[derive(Debug)]
pub(crate) struct BracketScanner {
    rule: CutRule,
    depth: i64,
    in_string: bool,
    escaped: bool,
}

impl BracketScanner {
    /// Returns a scanner at the first byte of a chunk. `depth` is 1 for later chunks of an array.
    pub(crate) fn new(rule: CutRule, depth: i64) -> BracketScanner {
        BracketScanner { rule, depth, in_string: false, escaped: false }
    }

    /// Returns whether all brackets and strings are closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.depth <= 0 && !self.in_string
    }

    /// Skips `data`, which is too short for a chunk. Returns the index after the first line that
    /// ends inside a string. Such a line is invalid. If the chunk ends there, the encoder reports
    /// the line early.
    pub(crate) fn skip(&mut self, data: &[u8]) -> Option<usize> {
        let (blocks, tail) = data.as_chunks::<64>();
        for (i, block) in blocks.iter().enumerate() {
            if self.take_block(block) {
                return Some(self.line_end_in_string(block).map_or(data.len(), |at| i * 64 + at));
            }
        }
        for (i, &byte) in tail.iter().enumerate() {
            if self.in_string && byte == b'\n' {
                return Some(blocks.len() * 64 + i + 1);
            }
            self.take_byte(byte);
        }
        None
    }

    /// Returns the first edge in `data`: the index at which the next chunk begins.
    pub(crate) fn find_edge(&mut self, data: &[u8]) -> Option<usize> {
        for (i, &byte) in data.iter().enumerate() {
            match (self.rule, byte) {
                (_, b'\n') if self.in_string => return Some(i + 1),
                _ if self.in_string => {}
                (CutRule::Items, b',') if self.depth == 1 => return Some(i),
                (CutRule::Values, b' ' | b'\t' | b'\r' | b'\n') => {}
                (CutRule::Values, b'{' | b'[') if self.depth <= 0 => return Some(i),
                (CutRule::Values, _) if self.depth <= 0 => return Some(i + 1),
                _ => {}
            }
            self.take_byte(byte);
        }
        None
    }

    /// Processes one byte.
    #[inline]
    fn take_byte(&mut self, byte: u8) {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth -= 1,
            _ => {}
        }
    }

    /// Processes 64 bytes. If a line ends inside a string within these bytes, processes no byte and
    /// returns true.
    #[inline]
    fn take_block(&mut self, block: &[u8; 64]) -> bool {
        let masks = BracketMasks::of(block);
        let (escaped, escaped_next) = escaped_bytes(masks.slash, self.escaped);
        let quotes = masks.quote & !escaped;
        let inside = string_bits(quotes) ^ if self.in_string { !0 } else { 0 };
        if inside & masks.newline != 0 {
            return true;
        }
        self.depth += i64::from((masks.open & !inside).count_ones());
        self.depth -= i64::from((masks.close & !inside).count_ones());
        self.in_string = inside >> 63 == 1;
        self.escaped = escaped_next && self.in_string;
        false
    }

    /// Returns the index after the first line of `block` that ends inside a string.
    fn line_end_in_string(&mut self, block: &[u8; 64]) -> Option<usize> {
        for (i, &byte) in block.iter().enumerate() {
            if self.in_string && byte == b'\n' {
                return Some(i + 1);
            }
            self.take_byte(byte);
        }
        None
    }
}

/// Bit masks with one bit for each byte of a block.
struct BracketMasks {
    quote: u64,
    slash: u64,
    newline: u64,
    open: u64,
    close: u64,
}

impl BracketMasks {
    #[inline]
    fn of(block: &[u8; 64]) -> BracketMasks {
        let mut masks = BracketMasks { quote: 0, slash: 0, newline: 0, open: 0, close: 0 };
        let (parts, _) = block.as_chunks::<16>();
        for (i, part) in parts.iter().enumerate() {
            let bytes = u8x16::new(*part);
            let bits = |mask: u8x16| u64::from(mask.to_bitmask()) << (16 * i);
            let is = |wanted: u8| bits(bytes.simd_eq(u8x16::splat(wanted)));
            // `[` and `{` differ in one bit, and so do `]` and `}`.
            let folded = bytes | u8x16::splat(0x20);
            masks.quote |= is(b'"');
            masks.slash |= is(b'\\');
            masks.newline |= is(b'\n');
            masks.open |= bits(folded.simd_eq(u8x16::splat(b'{')));
            masks.close |= bits(folded.simd_eq(u8x16::splat(b'}')));
        }
        masks
    }
}

/// Returns the bytes that a backslash escapes, and whether the first byte of the next block is
/// escaped.
#[inline]
fn escaped_bytes(slash: u64, first: bool) -> (u64, bool) {
    let mut escaped = u64::from(first);
    let mut slash = slash & !escaped;
    while slash != 0 {
        let at = slash.trailing_zeros();
        if at == 63 {
            return (escaped, true);
        }
        escaped |= 2 << at;
        slash &= !(3 << at);
    }
    (escaped, false)
}

/// Sets the bits of each string: from its opening quote up to the byte before its closing quote.
#[inline]
fn string_bits(mut quotes: u64) -> u64 {
    for shift in [1, 2, 4, 8, 16, 32] {
        quotes ^= quotes << shift;
    }
    quotes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_single_bytes_give_equal_results() {
        let texts: [&[u8]; 5] = [
            br#"{"a":"}]\\\"{[","b":[1,2,{"c":"\\"}]}"#,
            br#"{"\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\\":{}}"#,
            b"[[[[[[",
            br#""}}}}}}}}}}}}}}}}}}}}}}}}"#,
            b"{\"a\":1}\n",
        ];
        for text in texts {
            for repeat in 1..20 {
                let text = text.repeat(repeat);
                let mut blocks = BracketScanner::new(CutRule::Values, 0);
                let mut bytes = BracketScanner::new(CutRule::Values, 0);
                assert_eq!(blocks.skip(&text), None);
                for &byte in &text {
                    bytes.take_byte(byte);
                }
                assert_eq!((blocks.depth, blocks.in_string), (bytes.depth, bytes.in_string));
            }
        }
    }

    #[test]
    fn edges_lie_between_records() {
        let text = br#"{"a":"}"} {"b":[{}]}"#;
        let mut scanner = BracketScanner::new(CutRule::Values, 0);
        assert_eq!(scanner.skip(&text[..1]), None);
        assert_eq!(scanner.find_edge(&text[1..]), Some(9));
        assert_eq!(BracketScanner::new(CutRule::Values, 0).find_edge(b" ,{}"), Some(2));
        let text = br#"[{"a":[1,2]} , {}]"#;
        assert_eq!(BracketScanner::new(CutRule::Items, 0).find_edge(text), Some(13));
        assert_eq!(BracketScanner::new(CutRule::Items, 1).find_edge(b" {}, {}"), Some(3));
    }

    #[test]
    fn a_line_that_ends_inside_a_string_is_an_edge() {
        for before in 0..130 {
            let text = [b"{\"", &vec![b'x'; before][..], b"\n}}}"].concat();
            assert_eq!(BracketScanner::new(CutRule::Values, 0).skip(&text), Some(before + 3));
            assert_eq!(BracketScanner::new(CutRule::Items, 0).find_edge(&text), Some(before + 3));
        }
    }
}
