//! Refuses quotes, `\N` and backslashes whose meaning the sample does not show.
//!
//! In tsv a quote may enclose fields or be part of them, and `\N` may stand for NULL or be text. A
//! backslash before a quote may be an escape. Lines without a header may be COPY text, in which
//! each backslash begins an escape. Files differ, and a wrong guess would join rows or store other
//! values. So such a record is refused.

use super::Dialect;
use super::row::IndexedRecord;
use crate::format::sniff::UnseenMarks;

impl UnseenMarks {
    /// Returns whether bytes may have one of the marks.
    pub(super) fn may_be_in(self, bytes: &[u8], quote: Option<u8>) -> bool {
        let has_quote = || quote.is_some_and(|quote| memchr::memchr(quote, bytes).is_some());
        (self.quote || self.misplaced_quote || self.unescaped_quote) && has_quote()
            || self.null && memchr::memmem::find(bytes, b"\\N").is_some()
            || self.backslash && has_escape(bytes)
    }
}

/// A mark that a record has.
pub(super) enum FoundMark {
    Quote,
    MisplacedQuote,
    UnescapedQuote,
    Null,
    Backslash,
}

impl FoundMark {
    /// Returns the message and the hint for a record with the mark.
    pub(super) fn message_and_hint(&self, dialect: &Dialect) -> (String, String) {
        let quote = char::from(dialect.quote.unwrap_or(b'"'));
        let escape = char::from(dialect.escape);
        let quote_hint = format!(
            "Load with `--quote none` if quotes are part of the fields, or with `--quote \
             '{quote}'` if they enclose fields."
        );
        match self {
            FoundMark::Quote => (
                format!("a field has a quote ({quote}), which no field of the first records has"),
                quote_hint,
            ),
            FoundMark::MisplacedQuote => (
                format!(
                    "a quote ({quote}) is within a field, but quotes enclose fields of the first \
                     records"
                ),
                quote_hint,
            ),
            FoundMark::UnescapedQuote => (
                format!(
                    "a quote ({quote}) is within a field without the escape ({escape}) of the \
                     first records"
                ),
                format!(
                    "Load with `--escape '{quote}'` if quotes within fields are doubled, or with \
                     `--escape '{escape}'` if all of them follow {escape}. A file with both must \
                     be corrected first."
                ),
            ),
            FoundMark::Null => (
                "a field is \\N, which no field of the first records is".to_owned(),
                "Load with `--null '\\N'` if it stands for NULL, or with `--null ''` if it is \
                 text and an empty field stands for NULL."
                    .to_owned(),
            ),
            FoundMark::Backslash => (
                "a field has a backslash, which may begin an escape of COPY text".to_owned(),
                "Load with `--format text` if COPY or psql's \\copy wrote the file, or with \
                 `--format tsv` if backslashes are part of the fields."
                    .to_owned(),
            ),
        }
    }
}

impl IndexedRecord<'_> {
    /// Returns the first field with an unseen mark, and the mark.
    pub(super) fn find_unseen(
        &self,
        unseen: UnseenMarks,
        dialect: &Dialect,
    ) -> Option<(usize, FoundMark)> {
        (0..self.ends.len()).find_map(|index| match self.field(index) {
            (_, true) if unseen.quote => Some((index, FoundMark::Quote)),
            (raw, true) if unseen.unescaped_quote && !is_enclosed(raw, dialect) => {
                Some((index, FoundMark::UnescapedQuote))
            }
            (raw, true) if unseen.misplaced_quote && !is_enclosed(raw, dialect) => {
                Some((index, FoundMark::MisplacedQuote))
            }
            (b"\\N", false) if unseen.null => Some((index, FoundMark::Null)),
            (raw, _) if unseen.backslash && has_escape(raw) => Some((index, FoundMark::Backslash)),
            _ => None,
        })
    }
}

/// Returns whether a backslash is in `bytes`, other than in `\N`.
fn has_escape(bytes: &[u8]) -> bool {
    memchr::memchr_iter(b'\\', bytes).any(|at| bytes.get(at + 1) != Some(&b'N'))
}

/// Returns whether a field begins with a quote, and ends with the quote that closes this one.
fn is_enclosed(raw: &[u8], dialect: &Dialect) -> bool {
    let (Some(quote), escape) = (dialect.quote, dialect.escape) else { return false };
    let Some(mut rest) = raw.strip_prefix(&[quote]) else { return false };
    while let Some(at) = memchr::memchr2(quote, escape, rest) {
        let next = rest.get(at + 1);
        let is_escape =
            rest[at] == escape && next.is_some_and(|next| [quote, escape].contains(next));
        if rest[at] == quote && !is_escape {
            return at + 1 == rest.len();
        }
        rest = &rest[at + 1 + usize::from(is_escape)..];
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_enclose_a_field_if_they_are_its_ends() {
        for (escape, field, expected) in [
            (b'"', &br#""""#[..], true),
            (b'"', br#""a""#, true),
            (b'"', br#""a ""b"" c""#, true),
            (b'"', br#""a""""#, true),
            (b'"', br#"5" pipe"#, false),
            (b'"', br#""a" b"#, false),
            (b'"', br#""a" b""#, false),
            (b'"', br#"""a""#, false),
            (b'"', br#"""#, false),
            (b'\\', br#""a \" b""#, true),
            (b'\\', br#""a \\""#, true),
            (b'\\', br#""a \x""#, true),
            (b'\\', br#""a "" b""#, false),
        ] {
            let dialect = Dialect { escape, ..Dialect::csv() };
            assert_eq!(is_enclosed(field, &dialect), expected, "{}", field.escape_ascii());
        }
    }
}
