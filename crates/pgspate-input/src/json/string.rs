//! Converts a JSON string with escapes to text.
//!
//! The characters are appended as UTF-8. Two escapes that text values of PostgreSQL cannot hold are
//! refused: half of a surrogate pair, and the null character.

/// A valid JSON escape that PostgreSQL's text cannot hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnsupportedEscape {
    /// A surrogate without its other half.
    Surrogate,
    /// `\u0000`.
    Nul,
}

/// Appends the text of a string to `out`. `inside` is the string without its quotes; its escapes
/// must have been checked.
///
/// # Errors
/// The first [`UnsupportedEscape`] in the string.
pub fn unescape(inside: &[u8], out: &mut Vec<u8>) -> Result<(), UnsupportedEscape> {
    let mut rest = inside;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..at]);
        let plain = match rest[at + 1] {
            b'u' => {
                rest = unescape_unicode(&rest[at..], out)?;
                continue;
            }
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'b' => 0x08,
            b'f' => 0x0c,
            other => other,
        };
        out.push(plain);
        rest = &rest[at + 2..];
    }
    out.extend_from_slice(rest);
    Ok(())
}

/// Converts the `\u` escape, or the surrogate pair, at the start of `text`. Returns the rest of
/// `text`.
fn unescape_unicode<'a>(text: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], UnsupportedEscape> {
    let unit = hex(&text[2..6]);
    let (code, len) = match unit {
        0 => return Err(UnsupportedEscape::Nul),
        0xD800..0xDC00 => {
            let low = match text.get(6..12) {
                Some([b'\\', b'u', digits @ ..]) => hex(digits),
                _ => return Err(UnsupportedEscape::Surrogate),
            };
            if !(0xDC00..0xE000).contains(&low) {
                return Err(UnsupportedEscape::Surrogate);
            }
            (0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00), 12)
        }
        _ => (unit, 6),
    };
    let char = char::from_u32(code).ok_or(UnsupportedEscape::Surrogate)?;
    out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
    Ok(&text[len..])
}

/// Returns the number that hexadecimal digits denote.
fn hex(digits: &[u8]) -> u32 {
    digits.iter().fold(0, |code, b| code << 4 | (*b as char).to_digit(16).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unescape_to_string(inside: &str) -> Result<String, UnsupportedEscape> {
        let mut out = Vec::new();
        unescape(inside.as_bytes(), &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn escapes_are_converted_to_characters() {
        assert_eq!(unescape_to_string(r#"a\"\\\/\b\f\n\r\tz"#).unwrap(), "a\"\\/\u{8}\u{c}\n\r\tz");
        assert_eq!(unescape_to_string(r"\u00E9\u20ac\uD83D\ude00!").unwrap(), "é€😀!");
        assert_eq!(unescape_to_string("plain").unwrap(), "plain");
    }

    #[test]
    fn escapes_that_text_cannot_hold_are_refused() {
        for half in [r"\ud800", r"\ud800x", r"\ud800\u0041", r"\udc00", r"\ud83d\ud83d"] {
            assert_eq!(unescape_to_string(half), Err(UnsupportedEscape::Surrogate), "{half}");
        }
        assert_eq!(unescape_to_string(r"a\u0000"), Err(UnsupportedEscape::Nul));
    }
}
