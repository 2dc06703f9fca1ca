//! Finds where fields and records end, 64 bytes at a time.
//!
//! The index speaks of bytes alone: which of them separate, and which fields hold quotes or
//! escapes and need a second look. What it calls a record is what COPY calls a line. Blocks of the
//! usual dialects are resolved by arithmetic on masks; all others, and every block in which
//! something is wrong, are walked byte by byte. Both ways give the same index.

use super::lines::comment_end;
use super::masks::{Block, Separators};
use super::{Dialect, Eol, Family};

/// Marks the end of a record's last field.
pub(super) const RECORD: u32 = 1 << 31;
/// Marks a field that holds quotes or escapes.
pub(super) const MARKED: u32 = 1 << 30;
/// The offset of a field's end from the window's start.
pub(super) const OFFSET: u32 = MARKED - 1;

/// About how many bytes are indexed ahead of the encoder: the index of a window stays in the
/// first-level cache together with the window. Small in tests, which then have many windows.
const WINDOW: usize = if cfg!(test) { 128 } else { 16 << 10 };
/// The longest record, less the block that goes over it.
const RECORD_BYTES_MAX: usize = if cfg!(test) { 1 << 17 } else { OFFSET as usize - 64 };
/// A record with more fields is not indexed to its end. Tables have at most 1,600 columns.
const FIELDS_MAX: usize = 16 << 10;

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
    /// Far more fields than a table has columns.
    TooManyFields,
    /// `\.` on a line of its own: the end of the data, in text format.
    EndMarker,
    /// `\.` that is not alone on its line.
    CorruptEndMarker,
    /// `\.` on a line of its own that ends unlike the others.
    EndMarkerLineEnd,
}

/// Which bytes matter, from a dialect and its line end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) delimiter: u8,
    /// The quote of csv or the backslash of text; the delimiter where there is neither.
    pub(super) quote: u8,
    pub(super) quoted: bool,
    pub(super) escape: u8,
    pub(super) text: bool,
    pub(super) eol: Eol,
    comment: Option<u8>,
    /// Whether blocks can be resolved by their masks.
    by_masks: bool,
}

impl Rules {
    pub(super) fn new(dialect: &Dialect, eol: Eol) -> Rules {
        let text = dialect.family == Family::Text;
        let quoted = !text && dialect.quote.is_some();
        let quote = if text { b'\\' } else { dialect.quote.unwrap_or(dialect.delimiter) };
        let escape = if quoted { dialect.escape } else { quote };
        let comment = dialect.comment;
        let by_masks = comment.is_none() && quote == escape;
        Rules { delimiter: dialect.delimiter, quote, quoted, escape, text, eol, comment, by_masks }
    }

    /// The same rules, with every block walked byte by byte.
    #[cfg(test)]
    pub(super) fn walking(self) -> Rules {
        Rules { by_masks: false, ..self }
    }
}

/// The field ends of a window of whole records.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Where the window starts in the chunk.
    pub(super) start: usize,
    /// Where the next window starts.
    pub(super) next: usize,
    /// What is wrong with the record after the last one indexed.
    pub(super) fault: Option<Fault>,
    /// Ends of fields, offsets from `start`, with `RECORD` and `MARKED`. Only the first are in
    /// use, as many as `used` says; there is always room for a block's.
    slots: Vec<u32>,
    used: usize,
}

/// The scan's state within a record.
#[derive(Default)]
struct State {
    in_quote: bool,
    /// `MARKED` once the current field holds a quote or an escape.
    mark: u32,
    /// Bytes before this offset are escaped, or belong to a line end.
    skip_to: usize,
    /// How many entries the records that are complete take, and where the last of them ends.
    complete: usize,
    complete_to: usize,
    fault: Option<Fault>,
}

impl Index {
    /// The field ends of the window, all of whole records.
    #[inline]
    pub(super) fn ends(&self) -> &[u32] {
        &self.slots[..self.used]
    }

    /// Forgets all but its memory.
    pub(super) fn reset(&mut self) {
        *self = Index { slots: std::mem::take(&mut self.slots), ..Index::default() };
    }

    /// Indexes the whole records of `bytes` from `start` on: a window's worth, or one record if
    /// that is longer. `bytes` ends at the end of a record, with or without its line end.
    pub(super) fn scan(&mut self, bytes: &[u8], start: usize, rules: &Rules) {
        self.start = start;
        self.used = 0;
        let mut state = State::default();
        let body = &bytes[start..];
        let mut at = 0;
        while at < body.len() && state.fault.is_none() {
            if at >= WINDOW && state.complete > 0 {
                break;
            }
            if at > RECORD_BYTES_MAX {
                state.fault = Some(Fault::TooLong);
                break;
            }
            self.scan_block(body, at, rules, &mut state);
            at += 64;
            if self.used - state.complete > FIELDS_MAX && state.fault.is_none() {
                state.fault = Some(Fault::TooManyFields);
            }
        }
        let at_end = at >= body.len() && state.fault.is_none();
        if at_end && state.complete_to < body.len() {
            self.finish_last(body.len(), &mut state);
        }
        self.used = state.complete;
        self.next = start + state.complete_to;
        self.fault = state.fault;
    }

    /// Closes a last record that has no line end.
    fn finish_last(&mut self, len: usize, state: &mut State) {
        if state.in_quote {
            state.fault = Some(Fault::Unterminated);
            return;
        }
        self.make_room();
        self.push(len as u32 | state.mark | RECORD);
        state.complete = self.used;
        state.complete_to = len;
    }

    /// Room for the ends of a block and one more.
    #[inline]
    fn make_room(&mut self) {
        if self.slots.len() < self.used + 65 {
            self.slots.resize(self.slots.len() * 2 + 4096, 0);
        }
    }

    #[inline]
    fn push(&mut self, end: u32) {
        self.slots[self.used] = end;
        self.used += 1;
    }

    #[inline]
    fn scan_block(&mut self, body: &[u8], at: usize, rules: &Rules, state: &mut State) {
        self.make_room();
        let mut padded = [0; 64];
        let (bytes, len) = match body.get(at..at + 64) {
            Some(bytes) => (bytes.try_into().expect("64 bytes"), 64),
            None => {
                let tail = &body[at..];
                padded[..tail.len()].copy_from_slice(tail);
                (&padded, tail.len())
            }
        };
        let mut block = Block::of(bytes, rules);
        if len < 64 {
            block.keep((1_u64 << len) - 1);
        }
        if rules.by_masks {
            let is_first_done = state.skip_to > at;
            let next = body.get(at + 64).copied();
            if let Some(found) = block.separators(bytes, next, is_first_done, state.in_quote, rules)
            {
                self.push_separators(at, found, rules.eol, state);
                return;
            }
        }
        self.walk(body, at, len, block.specials(), rules, state);
    }

    /// A block of which the masks tell everything.
    #[inline]
    fn push_separators(&mut self, at: usize, found: Separators, eol: Eol, state: &mut State) {
        let Separators { delimiter, record, mut marks, .. } = found;
        let mut separators = delimiter | record;
        let slots: &mut [u32; 64] =
            (&mut self.slots[self.used..self.used + 64]).try_into().expect("room for a block");
        let mut count = 0;
        let mut mark = state.mark;
        if marks == 0 {
            while separators != 0 {
                let bit = separators.trailing_zeros();
                separators &= separators - 1;
                let is_record = ((record >> bit) & 1) as u32;
                slots[count & 63] = (at as u32 + bit) | mark | (is_record << 31);
                count += 1;
                mark = 0;
            }
        } else {
            while separators != 0 {
                let bit = separators.trailing_zeros();
                let up_to = separators ^ (separators - 1);
                separators &= separators - 1;
                let is_record = ((record >> bit) & 1) as u32;
                let is_marked = u32::from(marks & up_to != 0);
                slots[count & 63] =
                    (at as u32 + bit) | mark | (is_marked << 30) | (is_record << 31);
                count += 1;
                marks &= !up_to;
                mark = 0;
            }
        }
        state.mark = if marks != 0 { MARKED } else { mark };
        self.used += count;
        state.in_quote = found.in_quote;
        if found.takes_next {
            state.skip_to = at + 65;
        }
        if record != 0 {
            let last = 63 - record.leading_zeros();
            let after = (delimiter >> last).count_ones() as usize;
            let width = if eol == Eol::CrLf { 2 } else { 1 };
            state.complete = self.used - after;
            state.complete_to = at + last as usize + width;
        }
    }

    /// Byte by byte over those that may matter, which `specials` tells.
    fn walk(
        &mut self,
        body: &[u8],
        at: usize,
        len: usize,
        mut specials: u64,
        rules: &Rules,
        state: &mut State,
    ) {
        if let Some(comment) = rules.comment {
            for (bit, byte) in body[at..at + len].iter().enumerate() {
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
            state.skip_to = comment_end(body, pos, rules.eol).unwrap_or(body.len());
        } else if byte == rules.delimiter {
            self.push(pos as u32 | state.mark);
            state.mark = 0;
        } else if byte == b'\n' || byte == b'\r' {
            self.line_end(body, pos, rules, state);
        } else if rules.quoted && byte == rules.quote {
            state.in_quote = true;
            state.mark = MARKED;
        } else if rules.text && byte == b'\\' {
            backslash(body, pos, rules.eol, state);
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

    fn end_record(&mut self, end: usize, next: usize, state: &mut State) {
        self.push(end as u32 | state.mark | RECORD);
        state.mark = 0;
        state.complete = self.used;
        state.complete_to = next;
    }
}

fn backslash(body: &[u8], pos: usize, eol: Eol, state: &mut State) {
    state.mark = MARKED;
    state.skip_to = pos + 2;
    let Some(after) = body[pos + 1..].strip_prefix(b".") else { return };
    state.fault = Some(if pos != state.complete_to {
        Fault::CorruptEndMarker
    } else if after.starts_with(eol.bytes()) {
        Fault::EndMarker
    } else {
        match (eol, after.first()) {
            (Eol::Lf, Some(b'\r')) | (Eol::Cr | Eol::CrLf, Some(b'\n')) => Fault::EndMarkerLineEnd,
            _ => Fault::CorruptEndMarker,
        }
    });
}

impl Fault {
    /// As the server words it.
    pub(super) fn message(self, family: Family) -> &'static str {
        match (self, family) {
            (Fault::CarriageReturn, Family::Csv) => "unquoted carriage return found in data",
            (Fault::CarriageReturn, Family::Text) => "literal carriage return found in data",
            (Fault::Newline, Family::Csv) => "unquoted newline found in data",
            (Fault::Newline, Family::Text) => "literal newline found in data",
            (Fault::Unterminated, _) => "unterminated CSV quoted field",
            (Fault::TooLong, _) => "record is longer than 1 GiB, the most that PostgreSQL takes",
            (Fault::TooManyFields, _) => "extra data after last expected column",
            (Fault::EndMarker, _) => "data follows the end-of-copy marker",
            (Fault::CorruptEndMarker, _) => "end-of-copy marker is not alone on its line",
            (Fault::EndMarkerLineEnd, _) => {
                "end-of-copy marker does not match previous newline style"
            }
        }
    }
}
