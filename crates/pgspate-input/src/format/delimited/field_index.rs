//! The field index: where the fields and records of a chunk end.
//!
//! The index also marks fields with quotes or escapes, whose values have to be decoded. COPY calls
//! a record a line. The scan works on blocks of 64 bytes. For usual dialects, bit masks give the
//! separators of a block. For all other dialects, and for a block with an error, the scan walks
//! byte by byte. Bit masks and the walk give the same index.

use super::lines::comment_end;
use super::masks::{BlockMasks, BlockSeparators};
use super::{CopyFormat, Dialect, Eol};

/// Flag: this field is the last one of its record.
pub(super) const RECORD_END: u32 = 1 << 31;
/// Flag: the field contains quotes or escapes.
pub(super) const HAS_ESCAPES: u32 = 1 << 30;
/// Mask: the offset of the field's end from the start of the window.
pub(super) const OFFSET_MASK: u32 = HAS_ESCAPES - 1;

/// About how many bytes are indexed ahead of the encoder. A window and its index fit into the
/// first-level cache. Small in tests, so that the tests have many windows.
const WINDOW_BYTES: usize = if cfg!(test) { 128 } else { 16 << 10 };
/// The longest record. One block is subtracted, because the scan checks only after each block.
const RECORD_BYTES_MAX: usize = if cfg!(test) { 1 << 17 } else { OFFSET_MASK as usize - 64 };
/// The most fields of a record. The scan stops at a record with more fields. Tables have at most
/// 1,600 columns.
const FIELDS_MAX: usize = 16 << 10;

/// An error that COPY finds in the raw lines, before it splits them into fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineFault {
    /// A carriage return outside quotes, although lines do not end with a carriage return.
    CarriageReturn,
    /// A newline outside quotes, although lines end with carriage returns.
    Newline,
    /// The input ends within quotes.
    Unterminated,
    /// A record longer than PostgreSQL's limit of 1 GiB.
    TooLong,
    /// More than [`FIELDS_MAX`] fields in a record.
    TooManyFields,
    /// `\.` on a line of its own (text format): the end of the data.
    EndMarker,
    /// `\.` that is not alone on its line.
    CorruptEndMarker,
    /// `\.` on a line of its own whose line end differs from the first line's.
    EndMarkerLineEnd,
}

/// The special bytes of a dialect, prepared for the scan.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScanRules {
    pub(super) delimiter: u8,
    /// The quote (csv) or the backslash (text). For csv without quotes, the delimiter.
    pub(super) quote: u8,
    /// Whether fields may be quoted.
    pub(super) has_quotes: bool,
    pub(super) escape: u8,
    /// Whether the format is text, with backslash escapes.
    pub(super) is_text: bool,
    pub(super) eol: Eol,
    comment: Option<u8>,
    /// Whether bit masks can find the separators. Otherwise every block is walked byte by byte.
    uses_masks: bool,
}

impl ScanRules {
    /// Prepares the rules of a dialect.
    pub(super) fn new(dialect: &Dialect, eol: Eol) -> ScanRules {
        let is_text = dialect.format == CopyFormat::Text;
        let has_quotes = !is_text && dialect.quote.is_some();
        let quote = if is_text { b'\\' } else { dialect.quote.unwrap_or(dialect.delimiter) };
        let escape = if has_quotes { dialect.escape } else { quote };
        let comment = dialect.comment;
        let uses_masks = comment.is_none() && quote == escape;
        ScanRules {
            delimiter: dialect.delimiter,
            quote,
            has_quotes,
            escape,
            is_text,
            eol,
            comment,
            uses_masks,
        }
    }

    /// Returns the same rules without the use of masks.
    #[cfg(test)]
    pub(super) fn without_masks(self) -> ScanRules {
        ScanRules { uses_masks: false, ..self }
    }
}

/// The field ends of one window: a part of the chunk that holds whole records.
#[derive(Debug, Default)]
pub(super) struct FieldIndex {
    /// The start of the window in the chunk.
    pub(super) start: usize,
    /// The start of the next window.
    pub(super) next_start: usize,
    /// The error in the record that follows the last indexed record.
    pub(super) fault: Option<LineFault>,
    /// Ends of fields: offsets from `start`, with the flags `RECORD_END` and `HAS_ESCAPES`. The
    /// first `used` entries are in use. There is always room for the field ends of one block.
    slots: Vec<u32>,
    used: usize,
}

/// The state of a scan.
#[derive(Default)]
struct ScanState {
    in_quote: bool,
    /// `HAS_ESCAPES` if the current field contains a quote or an escape, else 0.
    escapes_flag: u32,
    /// Bytes before this offset are done: they are escaped, or belong to a line end.
    skip_to: usize,
    /// How many entries of the index belong to complete records.
    complete_entries: usize,
    /// Where the last complete record ends.
    complete_end: usize,
    fault: Option<LineFault>,
}

impl FieldIndex {
    /// Returns the field ends of the window.
    #[inline]
    pub(super) fn ends(&self) -> &[u32] {
        &self.slots[..self.used]
    }

    /// Clears the index and keeps its memory.
    pub(super) fn reset(&mut self) {
        *self = FieldIndex { slots: std::mem::take(&mut self.slots), ..FieldIndex::default() };
    }

    /// Indexes the window of `bytes` that begins at `start`: about [`WINDOW_BYTES`], or one record
    /// if a record is longer. `bytes` must end with a record, with or without its line end.
    pub(super) fn scan(&mut self, bytes: &[u8], start: usize, rules: &ScanRules) {
        self.start = start;
        self.used = 0;
        let mut state = ScanState::default();
        let body = &bytes[start..];
        let mut at = 0;
        while at < body.len() && state.fault.is_none() {
            if at >= WINDOW_BYTES && state.complete_entries > 0 {
                break;
            }
            if at > RECORD_BYTES_MAX {
                state.fault = Some(LineFault::TooLong);
                break;
            }
            self.scan_block(body, at, rules, &mut state);
            at += 64;
            if self.used - state.complete_entries > FIELDS_MAX && state.fault.is_none() {
                state.fault = Some(LineFault::TooManyFields);
            }
        }
        let at_end = at >= body.len() && state.fault.is_none();
        if at_end && state.complete_end < body.len() {
            self.end_last_record(body.len(), &mut state);
        }
        self.used = state.complete_entries;
        self.next_start = start + state.complete_end;
        self.fault = state.fault;
    }

    /// Ends a last record that has no line end.
    fn end_last_record(&mut self, len: usize, state: &mut ScanState) {
        if state.in_quote {
            state.fault = Some(LineFault::Unterminated);
            return;
        }
        self.make_room();
        self.push_field_end(len as u32 | state.escapes_flag | RECORD_END);
        state.complete_entries = self.used;
        state.complete_end = len;
    }

    /// Makes room for the field ends of one block and for one more field end.
    #[inline]
    fn make_room(&mut self) {
        if self.slots.len() < self.used + 65 {
            self.slots.resize(self.slots.len() * 2 + 4096, 0);
        }
    }

    #[inline]
    fn push_field_end(&mut self, end: u32) {
        self.slots[self.used] = end;
        self.used += 1;
    }

    /// Indexes a block of 64 bytes, or the rest of the chunk.
    #[inline]
    fn scan_block(&mut self, body: &[u8], at: usize, rules: &ScanRules, state: &mut ScanState) {
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
        let mut block = BlockMasks::of(bytes, rules);
        if len < 64 {
            block.keep_only((1_u64 << len) - 1);
        }
        if rules.uses_masks {
            let is_first_done = state.skip_to > at;
            let next = body.get(at + 64).copied();
            if let Some(found) = block.separators(bytes, next, is_first_done, state.in_quote, rules)
            {
                self.push_separators(at, found, rules.eol, state);
                return;
            }
        }
        self.walk_block(body, at, len, block.specials(), rules, state);
    }

    /// Adds the separators of a block that the masks have found.
    #[inline]
    fn push_separators(
        &mut self,
        at: usize,
        found: BlockSeparators,
        eol: Eol,
        state: &mut ScanState,
    ) {
        let BlockSeparators { delimiter, record, mut escapes, .. } = found;
        let mut separators = delimiter | record;
        let slots: &mut [u32; 64] =
            (&mut self.slots[self.used..self.used + 64]).try_into().expect("room for a block");
        let mut count = 0;
        let mut flag = state.escapes_flag;
        if escapes == 0 {
            while separators != 0 {
                let bit = separators.trailing_zeros();
                separators &= separators - 1;
                let is_record = ((record >> bit) & 1) as u32;
                slots[count & 63] = (at as u32 + bit) | flag | (is_record << 31);
                count += 1;
                flag = 0;
            }
        } else {
            while separators != 0 {
                let bit = separators.trailing_zeros();
                let up_to = separators ^ (separators - 1);
                separators &= separators - 1;
                let is_record = ((record >> bit) & 1) as u32;
                let has_escapes = u32::from(escapes & up_to != 0);
                slots[count & 63] =
                    (at as u32 + bit) | flag | (has_escapes << 30) | (is_record << 31);
                count += 1;
                escapes &= !up_to;
                flag = 0;
            }
        }
        state.escapes_flag = if escapes != 0 { HAS_ESCAPES } else { flag };
        self.used += count;
        state.in_quote = found.in_quote;
        if found.includes_next {
            state.skip_to = at + 65;
        }
        if record != 0 {
            let last = 63 - record.leading_zeros();
            let delimiters_after = (delimiter >> last).count_ones() as usize;
            let width = if eol == Eol::CrLf { 2 } else { 1 };
            state.complete_entries = self.used - delimiters_after;
            state.complete_end = at + last as usize + width;
        }
    }

    /// Walks over the special bytes of a block, one by one. `specials` has a bit for each special
    /// byte.
    fn walk_block(
        &mut self,
        body: &[u8],
        at: usize,
        len: usize,
        mut specials: u64,
        rules: &ScanRules,
        state: &mut ScanState,
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
            self.handle_special_byte(body, pos, rules, state);
            if state.fault.is_some() {
                return;
            }
        }
    }

    /// Handles one special byte in the byte-by-byte walk.
    fn handle_special_byte(
        &mut self,
        body: &[u8],
        pos: usize,
        rules: &ScanRules,
        state: &mut ScanState,
    ) {
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
        } else if rules.comment == Some(byte) && pos == state.complete_end {
            state.skip_to = comment_end(body, pos, rules.eol).unwrap_or(body.len());
        } else if byte == rules.delimiter {
            self.push_field_end(pos as u32 | state.escapes_flag);
            state.escapes_flag = 0;
        } else if byte == b'\n' || byte == b'\r' {
            self.handle_line_end(body, pos, rules, state);
        } else if rules.has_quotes && byte == rules.quote {
            state.in_quote = true;
            state.escapes_flag = HAS_ESCAPES;
        } else if rules.is_text && byte == b'\\' {
            handle_backslash(body, pos, rules.eol, state);
        }
    }

    /// Handles a carriage return or newline outside quotes.
    fn handle_line_end(
        &mut self,
        body: &[u8],
        pos: usize,
        rules: &ScanRules,
        state: &mut ScanState,
    ) {
        match (rules.eol, body[pos]) {
            (Eol::Lf, b'\n') | (Eol::Cr, b'\r') => self.end_record(pos, pos + 1, state),
            (Eol::CrLf, b'\r') if body.get(pos + 1) == Some(&b'\n') => {
                state.skip_to = pos + 2;
                self.end_record(pos, pos + 2, state);
            }
            (_, b'\r') => state.fault = Some(LineFault::CarriageReturn),
            _ => state.fault = Some(LineFault::Newline),
        }
    }

    /// Ends a record at `end`; the next record begins at `next`.
    fn end_record(&mut self, end: usize, next: usize, state: &mut ScanState) {
        self.push_field_end(end as u32 | state.escapes_flag | RECORD_END);
        state.escapes_flag = 0;
        state.complete_entries = self.used;
        state.complete_end = next;
    }
}

/// Handles a backslash of COPY text: an escape, or an end marker.
fn handle_backslash(body: &[u8], pos: usize, eol: Eol, state: &mut ScanState) {
    state.escapes_flag = HAS_ESCAPES;
    state.skip_to = pos + 2;
    let Some(after) = body[pos + 1..].strip_prefix(b".") else { return };
    state.fault = Some(if pos != state.complete_end {
        LineFault::CorruptEndMarker
    } else if after.starts_with(eol.bytes()) {
        LineFault::EndMarker
    } else {
        match (eol, after.first()) {
            (Eol::Lf, Some(b'\r')) | (Eol::Cr | Eol::CrLf, Some(b'\n')) => {
                LineFault::EndMarkerLineEnd
            }
            _ => LineFault::CorruptEndMarker,
        }
    });
}

impl LineFault {
    /// Returns the server's message for this error.
    pub(super) fn message(self, format: CopyFormat) -> &'static str {
        match (self, format) {
            (LineFault::CarriageReturn, CopyFormat::Csv) => {
                "unquoted carriage return found in data"
            }
            (LineFault::CarriageReturn, CopyFormat::Text) => {
                "literal carriage return found in data"
            }
            (LineFault::Newline, CopyFormat::Csv) => "unquoted newline found in data",
            (LineFault::Newline, CopyFormat::Text) => "literal newline found in data",
            (LineFault::Unterminated, _) => "unterminated CSV quoted field",
            (LineFault::TooLong, _) => "record is longer than 1 GiB, the limit of PostgreSQL",
            (LineFault::TooManyFields, _) => "extra data after last expected column",
            (LineFault::EndMarker, _) => "data follows the end-of-copy marker",
            (LineFault::CorruptEndMarker, _) => "end-of-copy marker is not alone on its line",
            (LineFault::EndMarkerLineEnd, _) => {
                "end-of-copy marker does not match previous newline style"
            }
        }
    }
}
