//! What a string's escapes mean.
//!
//! The characters are appended as UTF-8. Two things that JSON can write and a text value cannot
//! hold are refused: half of a surrogate pair, and the null character.

/// Why a string is no text value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// A surrogate without its other half.
    Surrogate,
    /// `\u0000`.
    Nul,
}

/// Appends the text of a string's inside, whose escapes are known to be well-formed.
pub fn unescape(inside: &[u8], out: &mut Vec<u8>) -> Result<(), Unfit> {
    let mut rest = inside;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..at]);
        let plain = match rest[at + 1] {
            b'u' => {
                rest = unicode(&rest[at..], out)?;
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

/// Takes the `\u` with four digits, or the pair of them, that `text` begins with, and gives what
/// follows.
fn unicode<'a>(text: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], Unfit> {
    let unit = hex(&text[2..6]);
    let (code, len) = match unit {
        0 => return Err(Unfit::Nul),
        0xD800..0xDC00 => {
            let low = match text.get(6..12) {
                Some([b'\\', b'u', digits @ ..]) => hex(digits),
                _ => return Err(Unfit::Surrogate),
            };
            if !(0xDC00..0xE000).contains(&low) {
                return Err(Unfit::Surrogate);
            }
            (0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00), 12)
        }
        _ => (unit, 6),
    };
    let char = char::from_u32(code).ok_or(Unfit::Surrogate)?;
    out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
    Ok(&text[len..])
}

fn hex(digits: &[u8]) -> u32 {
    digits.iter().fold(0, |code, b| code << 4 | (*b as char).to_digit(16).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(inside: &str) -> Result<String, Unfit> {
        let mut out = Vec::new();
        unescape(inside.as_bytes(), &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn escapes_become_characters() {
        assert_eq!(text(r#"a\"\\\/\b\f\n\r\tz"#).unwrap(), "a\"\\/\u{8}\u{c}\n\r\tz");
        assert_eq!(text(r"\u00E9\u20ac\uD83D\ude00!").unwrap(), "é€😀!");
        assert_eq!(text("plain").unwrap(), "plain");
    }

    #[test]
    fn what_text_cannot_hold_is_refused() {
        for half in [r"\ud800", r"\ud800x", r"\ud800\u0041", r"\udc00", r"\ud83d\ud83d"] {
            assert_eq!(text(half), Err(Unfit::Surrogate), "{half}");
        }
        assert_eq!(text(r"a\u0000"), Err(Unfit::Nul));
    }
}
