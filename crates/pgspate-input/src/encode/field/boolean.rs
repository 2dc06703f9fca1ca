//! Encodes booleans: the server's words, their unambiguous abbreviations, 0 and 1.

use super::{append_fixed, trim};

/// Encodes a boolean.
pub(super) fn encode(field: &[u8], out: &mut Vec<u8>) -> bool {
    match parse(trim(field)) {
        Some(value) => append_fixed([u8::from(value)], out),
        None => false,
    }
}

/// Parses a boolean as the server does.
fn parse(text: &[u8]) -> Option<bool> {
    let begins =
        |word: &[u8]| word.len() >= text.len() && equals_ignoring_case(text, &word[..text.len()]);
    match text.first()?.to_ascii_lowercase() {
        b't' if begins(b"true") => Some(true),
        b'f' if begins(b"false") => Some(false),
        b'y' if begins(b"yes") => Some(true),
        b'n' if begins(b"no") => Some(false),
        b'o' if equals_ignoring_case(text, b"on") => Some(true),
        b'o' if text.len() > 1 && begins(b"off") => Some(false),
        b'1' if text.len() == 1 => Some(true),
        b'0' if text.len() == 1 => Some(false),
        _ => None,
    }
}

fn equals_ignoring_case(text: &[u8], word: &[u8]) -> bool {
    text.eq_ignore_ascii_case(word)
}
