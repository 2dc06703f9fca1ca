//! Where records may be cut: bracket depth outside strings, 64 bytes at a time.
//!
//! Cutting is done by one thread at a time, so it only counts brackets and quotes; the encoder
//! checks the grammar later. For valid JSON every edge found here is one between two records. In
//! invalid JSON a chunk that ends at a false edge is itself invalid, so the encoder sees it.

use wide::u8x16;

/// Where an edge lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Values one after another: before the opening bracket of a value. What else stands between
    /// values is an error, and the edge is after its first byte.
    Values,
    /// Items of one array: before a comma between them.
    Items,
}

/// Position within nested brackets and strings. Feed it the bytes of a chunk in order.
#[derive(Debug)]
pub(crate) struct Scanner {
    rule: Rule,
    depth: i64,
    string: bool,
    escaped: bool,
}

impl Scanner {
    /// Starts at the first byte of a chunk: `depth` is 1 for the later chunks of an array.
    pub(crate) fn new(rule: Rule, depth: i64) -> Scanner {
        Scanner { rule, depth, string: false, escaped: false }
    }

    /// Whether everything opened has been closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.depth <= 0 && !self.string
    }

    /// Passes over `data`, where no edge is wanted yet. A line that ends inside a string is broken;
    /// the index after it is given, so that the encoder can say so before more is read.
    pub(crate) fn pass(&mut self, data: &[u8]) -> Option<usize> {
        let (blocks, tail) = data.as_chunks::<64>();
        for (i, block) in blocks.iter().enumerate() {
            if self.block(block) {
                return Some(self.broken_line(block).map_or(data.len(), |at| i * 64 + at));
            }
        }
        for (i, &byte) in tail.iter().enumerate() {
            if self.string && byte == b'\n' {
                return Some(blocks.len() * 64 + i + 1);
            }
            self.step(byte);
        }
        None
    }

    /// Looks for the first edge in `data`: the index at which the next chunk begins.
    pub(crate) fn edge(&mut self, data: &[u8]) -> Option<usize> {
        for (i, &byte) in data.iter().enumerate() {
            match (self.rule, byte) {
                (_, b'\n') if self.string => return Some(i + 1),
                _ if self.string => {}
                (Rule::Items, b',') if self.depth == 1 => return Some(i),
                (Rule::Values, b' ' | b'\t' | b'\r' | b'\n') => {}
                (Rule::Values, b'{' | b'[') if self.depth <= 0 => return Some(i),
                (Rule::Values, _) if self.depth <= 0 => return Some(i + 1),
                _ => {}
            }
            self.step(byte);
        }
        None
    }

    #[inline]
    fn step(&mut self, byte: u8) {
        if self.string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.string = false,
                _ => {}
            }
            return;
        }
        match byte {
            b'"' => self.string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth -= 1,
            _ => {}
        }
    }

    /// Takes 64 bytes, unless a line ends inside a string among them: then takes none and is true.
    #[inline]
    fn block(&mut self, block: &[u8; 64]) -> bool {
        let masks = Masks::of(block);
        let (escaped, escaped_next) = escaped(masks.slash, self.escaped);
        let quotes = masks.quote & !escaped;
        let inside = fill_between(quotes) ^ if self.string { !0 } else { 0 };
        if inside & masks.newline != 0 {
            return true;
        }
        self.depth += i64::from((masks.open & !inside).count_ones());
        self.depth -= i64::from((masks.close & !inside).count_ones());
        self.string = inside >> 63 == 1;
        self.escaped = escaped_next && self.string;
        false
    }

    fn broken_line(&mut self, block: &[u8; 64]) -> Option<usize> {
        for (i, &byte) in block.iter().enumerate() {
            if self.string && byte == b'\n' {
                return Some(i + 1);
            }
            self.step(byte);
        }
        None
    }
}

/// One bit for each byte of a block.
struct Masks {
    quote: u64,
    slash: u64,
    newline: u64,
    open: u64,
    close: u64,
}

impl Masks {
    #[inline]
    fn of(block: &[u8; 64]) -> Masks {
        let mut masks = Masks { quote: 0, slash: 0, newline: 0, open: 0, close: 0 };
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

/// The bytes that a backslash escapes, and whether the byte after the block is one.
#[inline]
fn escaped(slash: u64, first: bool) -> (u64, bool) {
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

/// Sets the bits from each odd quote up to the next one, that one not included.
#[inline]
fn fill_between(mut quotes: u64) -> u64 {
    for shift in [1, 2, 4, 8, 16, 32] {
        quotes ^= quotes << shift;
    }
    quotes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_bytes_see_the_same() {
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
                let mut blocks = Scanner::new(Rule::Values, 0);
                let mut bytes = Scanner::new(Rule::Values, 0);
                assert_eq!(blocks.pass(&text), None);
                for &byte in &text {
                    bytes.step(byte);
                }
                assert_eq!((blocks.depth, blocks.string), (bytes.depth, bytes.string));
            }
        }
    }

    #[test]
    fn edges_lie_between_records() {
        let text = br#"{"a":"}"} {"b":[{}]}"#;
        let mut scanner = Scanner::new(Rule::Values, 0);
        assert_eq!(scanner.pass(&text[..1]), None);
        assert_eq!(scanner.edge(&text[1..]), Some(9));
        assert_eq!(Scanner::new(Rule::Values, 0).edge(b" ,{}"), Some(2));
        let text = br#"[{"a":[1,2]} , {}]"#;
        assert_eq!(Scanner::new(Rule::Items, 0).edge(text), Some(13));
        assert_eq!(Scanner::new(Rule::Items, 1).edge(b" {}, {}"), Some(3));
    }

    #[test]
    fn a_line_that_ends_in_a_string_stops_it() {
        for before in 0..130 {
            let text = [b"{\"", &vec![b'x'; before][..], b"\n}}}"].concat();
            assert_eq!(Scanner::new(Rule::Values, 0).pass(&text), Some(before + 3));
            assert_eq!(Scanner::new(Rule::Items, 0).edge(&text), Some(before + 3));
        }
    }
}
