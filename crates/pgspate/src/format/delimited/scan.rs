//! Finds where fields and records end, 64 bytes at a time.
//!
//! The index speaks of bytes alone: which of them separate, and which fields hold quotes or
//! escapes and need a second look. What it calls a record is what COPY calls a line.

use wide::u8x16;

use super::{Dialect, Eol, Family};

/// Marks the end of a record's last field.
pub(super) const RECORD: u32 = 1 << 31;
/// Marks a field that holds quotes or escapes.
pub(super) const MARKED: u32 = 1 << 30;
/// The offset of a field's end from the window's start.
pub(super) const OFFSET: u32 = MARKED - 1;

/// About how many bytes are indexed ahead of the encoder: the index of a window stays in the
/// first-level cache together with the window.
const WINDOW: usize = 16 << 10;

/// What COPY refuses in the raw lines, before it looks at fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A carriage return outside quotes, where lines do not end with one.
    CarriageReturn,
    /// A newline outside quotes, where lines end with carriage returns.
    Newline,
    /// The input ends within quotes.
    Unterminated,
    /// A field or record beyond PostgreSQL's limit of 1 GiB.
    TooLong,
    /// `\.` on a line of its own: the end of the data, in text format.
    EndMarker,
    /// `\.` that is not alone on its line.
    CorruptEndMarker,
}

/// Which bytes matter, from a dialect and its line end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) delimiter: u8,
    /// A byte that cannot be the delimiter's, where there is no quote.
    quote: u8,
    quoted: bool,
    escape: u8,
    text: bool,
    pub(super) eol: Eol,
    comment: Option<u8>,
}

impl Rules {
    pub(super) fn new(dialect: &Dialect, eol: Eol) -> Rules {
        let text = dialect.family == Family::Text;
        let quote = dialect.quote.unwrap_or(dialect.delimiter);
        Rules {
            delimiter: dialect.delimiter,
            quote: if text { b'\\' } else { quote },
            quoted: !text && dialect.quote.is_some(),
            escape: match dialect.quote {
                _ if text => b'\\',
                Some(_) => dialect.escape,
                None => dialect.delimiter,
            },
            text,
            eol,
            comment: dialect.comment,
        }
    }
}

/// The field ends of a window of whole records.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Where the window starts in the chunk.
    pub(super) start: usize,
    /// Ends of fields, offsets from `start`, with `RECORD` and `MARKED`.
    pub(super) ends: Vec<u32>,
    /// Where the next window starts.
    pub(super) next: usize,
    /// What is wrong with the record after the last one indexed.
    pub(super) fault: Option<Fault>,
}

/// The scan's state within a record.
struct State {
    in_quote: bool,
    /// `MARKED` once the current field holds a quote or an escape.
    mark: u32,
    /// Bytes before this offset are escaped.
    skip_to: usize,
    /// How many entries the records that are complete take, and where the last of them ends.
    complete: usize,
    complete_to: usize,
    fault: Option<Fault>,
}

impl Index {
    /// Indexes the whole records of `bytes` from `start` on: a window's worth, or one record if
    /// that is longer. `bytes` ends at the end of a record, with or without its line end.
    pub(super) fn scan(&mut self, bytes: &[u8], start: usize, rules: &Rules) {
        self.start = start;
        self.ends.clear();
        let mut state = State {
            in_quote: false,
            mark: 0,
            skip_to: 0,
            complete: 0,
            complete_to: 0,
            fault: None,
        };
        let body = &bytes[start..];
        let mut at = 0;
        while at < body.len() && state.fault.is_none() {
            if at >= WINDOW && state.complete > 0 {
                break;
            }
            if at > OFFSET as usize - 64 {
                state.fault = Some(Fault::TooLong);
                break;
            }
            self.scan_block(body, at, rules, &mut state);
            at += 64;
        }
        let at_end = at >= body.len() && state.fault.is_none();
        if at_end && state.complete_to < body.len() {
            self.finish_last(body.len(), &mut state);
        }
        self.ends.truncate(state.complete);
        self.next = start + state.complete_to;
        self.fault = state.fault;
    }

    /// Closes a last record that has no line end.
    fn finish_last(&mut self, len: usize, state: &mut State) {
        if state.in_quote {
            state.fault = Some(Fault::Unterminated);
            return;
        }
        self.ends.push(len as u32 | state.mark | RECORD);
        state.complete = self.ends.len();
        state.complete_to = len;
    }

    #[inline]
    fn scan_block(&mut self, body: &[u8], at: usize, rules: &Rules, state: &mut State) {
        let masks = match body.get(at..at + 64) {
            Some(block) => Masks::of(block.try_into().expect("64 bytes"), rules),
            None => {
                let mut block = [0; 64];
                let tail = &body[at..];
                block[..tail.len()].copy_from_slice(tail);
                let mut masks = Masks::of(&block, rules);
                masks.keep((1_u64 << tail.len()) - 1);
                masks
            }
        };
        let starts_clean = !state.in_quote && state.skip_to <= at && rules.comment.is_none();
        if masks.other == 0 && starts_clean {
            self.push_separators(at, masks, state);
        } else if masks.other != 0 || masks.separators() != 0 || rules.comment.is_some() {
            self.walk(body, at, masks, rules, state);
        }
    }

    /// A block with nothing but delimiters and newlines.
    #[inline]
    fn push_separators(&mut self, at: usize, masks: Masks, state: &mut State) {
        let mut separators = masks.separators();
        let mut mark = state.mark;
        while separators != 0 {
            let bit = separators.trailing_zeros();
            separators &= separators - 1;
            let is_record = ((masks.newline >> bit) & 1) as u32;
            self.ends.push((at as u32 + bit) | mark | (is_record << 31));
            mark = 0;
        }
        if masks.separators() != 0 {
            state.mark = 0;
        }
        if masks.newline != 0 {
            let last = 63 - masks.newline.leading_zeros();
            let after = (masks.delimiter >> last).count_ones() as usize;
            state.complete = self.ends.len() - after;
            state.complete_to = at + last as usize + 1;
        }
    }

    /// A block with quotes, escapes or carriage returns: byte by byte over those that matter.
    fn walk(&mut self, body: &[u8], at: usize, masks: Masks, rules: &Rules, state: &mut State) {
        let mut specials = masks.separators() | masks.other;
        if let Some(comment) = rules.comment {
            let end = (at + 64).min(body.len());
            for (bit, byte) in body[at..end].iter().enumerate() {
                specials |= u64::from(*byte == comment) << bit;
            }
        }
        while specials != 0 {
            let pos = at + specials.trailing_zeros() as usize;
            specials &= specials - 1;
            if pos < state.skip_to {
                continue;
            }
            self.step(body, pos, rules, state);
            if state.fault.is_some() {
                return;
            }
        }
    }

    #[inline]
    fn step(&mut self, body: &[u8], pos: usize, rules: &Rules, state: &mut State) {
        let byte = body[pos];
        if state.in_quote {
            let next = body.get(pos + 1).copied();
            if byte == rules.escape
                && rules.escape != rules.quote
                && (next == Some(rules.quote) || next == Some(rules.escape))
            {
                state.skip_to = pos + 2;
            } else if byte == rules.quote {
                state.in_quote = false;
            }
        } else if rules.comment == Some(byte) && pos == state.complete_to {
            let end = memchr::memchr2(b'\n', b'\r', &body[pos..]).map_or(body.len(), |at| pos + at);
            state.skip_to = end;
        } else if byte == rules.delimiter {
            self.ends.push(pos as u32 | state.mark);
            state.mark = 0;
        } else if byte == b'\n' || byte == b'\r' {
            self.line_end(body, pos, rules, state);
        } else if rules.quoted && byte == rules.quote {
            state.in_quote = true;
            state.mark = MARKED;
        } else if rules.text && byte == b'\\' {
            self.backslash(body, pos, state);
        }
    }

    fn line_end(&mut self, body: &[u8], pos: usize, rules: &Rules, state: &mut State) {
        match (rules.eol, body[pos]) {
            (Eol::Lf, b'\n') | (Eol::Cr, b'\r') => self.end_record(pos, pos + 1, state),
            (Eol::CrLf, b'\r') if body.get(pos + 1) == Some(&b'\n') => {
                state.skip_to = pos + 2;
                self.end_record(pos, pos + 2, state);
            }
            (_, b'\r') => state.fault = Some(Fault::CarriageReturn),
            _ => state.fault = Some(Fault::Newline),
        }
    }

    fn backslash(&mut self, body: &[u8], pos: usize, state: &mut State) {
        state.mark = MARKED;
        state.skip_to = pos + 2;
        if body.get(pos + 1) == Some(&b'.') {
            let alone =
                pos == state.complete_to && matches!(body.get(pos + 2), None | Some(b'\n' | b'\r'));
            state.fault = Some(if alone { Fault::EndMarker } else { Fault::CorruptEndMarker });
        }
    }

    fn end_record(&mut self, end: usize, next: usize, state: &mut State) {
        self.ends.push(end as u32 | state.mark | RECORD);
        state.mark = 0;
        state.complete = self.ends.len();
        state.complete_to = next;
    }
}

/// One bit per byte of a block.
#[derive(Clone, Copy)]
struct Masks {
    delimiter: u64,
    /// Newlines that end a record whatever surrounds them, quotes aside.
    newline: u64,
    /// Quotes, escapes, and line ends that need a look at their neighbours.
    other: u64,
}

impl Masks {
    #[inline]
    fn of(block: &[u8; 64], rules: &Rules) -> Masks {
        let [delimiter, quote, escape] =
            [rules.delimiter, rules.quote, rules.escape].map(u8x16::splat);
        let [lf, cr] = [b'\n', b'\r'].map(u8x16::splat);
        let lf_ends = rules.eol == Eol::Lf;
        let mut masks = Masks { delimiter: 0, newline: 0, other: 0 };
        for lane in 0..4 {
            let bytes: [u8; 16] = block[lane * 16..lane * 16 + 16].try_into().expect("16 bytes");
            let bytes = u8x16::new(bytes);
            let other = bytes.simd_eq(quote) | bytes.simd_eq(escape) | bytes.simd_eq(cr);
            let shift = lane * 16;
            masks.delimiter |= u64::from(bytes.simd_eq(delimiter).to_bitmask()) << shift;
            masks.newline |= u64::from(bytes.simd_eq(lf).to_bitmask()) << shift;
            masks.other |= u64::from(other.to_bitmask()) << shift;
        }
        if !lf_ends {
            masks.other |= masks.newline;
            masks.newline = 0;
        }
        masks.other &= !masks.delimiter;
        masks
    }

    #[inline]
    fn separators(self) -> u64 {
        self.delimiter | self.newline
    }

    fn keep(&mut self, bits: u64) {
        self.delimiter &= bits;
        self.newline &= bits;
        self.other &= bits;
    }
}
