//! Refuses quotes and `\N` in an input whose sample shows neither.
//!
//! In tsv a quote may enclose fields or be part of them, and `\N` may stand for NULL or be text.
//! Files differ, and a wrong guess would join rows or store other values. So such a record is
//! refused.

use super::row::IndexedRecord;
use crate::format::sniff::UnseenMarks;

impl UnseenMarks {
    /// Returns whether bytes may have one of the marks.
    pub(super) fn may_be_in(self, bytes: &[u8], quote: Option<u8>) -> bool {
        self.quote && quote.is_some_and(|quote| memchr::memchr(quote, bytes).is_some())
            || self.null && memchr::memmem::find(bytes, b"\\N").is_some()
    }
}

/// A mark that a record has.
pub(super) enum FoundMark {
    Quote,
    Null,
}

impl FoundMark {
    /// Returns the message and the hint for a record with the mark.
    pub(super) fn message_and_hint(&self, quote: u8) -> (String, String) {
        let quote = char::from(quote);
        match self {
            FoundMark::Quote => (
                format!("a field has a quote ({quote}), which no field of the first records has"),
                format!(
                    "Load with `--quote none` if quotes are part of the fields, or with \
                     `--quote '{quote}'` if they enclose fields."
                ),
            ),
            FoundMark::Null => (
                "a field is \\N, which no field of the first records is".to_owned(),
                "Load with `--null '\\N'` if it stands for NULL, or with `--null ''` if it is \
                 text and an empty field stands for NULL."
                    .to_owned(),
            ),
        }
    }
}

impl IndexedRecord<'_> {
    /// Returns the first field with an unseen mark, and the mark.
    pub(super) fn find_unseen(&self, unseen: UnseenMarks) -> Option<(usize, FoundMark)> {
        (0..self.ends.len()).find_map(|index| match self.field(index) {
            (_, true) if unseen.quote => Some((index, FoundMark::Quote)),
            (b"\\N", false) if unseen.null => Some((index, FoundMark::Null)),
            _ => None,
        })
    }
}
