//! Parses byte slices by RFC 8259: finds the end and the kind of a value.
//!
//! The functions do not recurse, and allocate only the caller's stack of open brackets. They check
//! escapes but do not convert them. The caller guarantees that slices are UTF-8.

/// A syntax error in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JsonSyntaxError {
    /// The index of the first invalid byte.
    pub at: usize,
    /// The message: what was found or expected at this byte.
    pub what: &'static str,
}

/// The kind of a JSON value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonKind {
    /// `null`
    Null,
    /// `true` or `false`
    Bool,
    /// A number.
    Number,
    /// A string, and whether it has escapes.
    String(bool),
    /// An object.
    Object,
    /// An array.
    Array,
}

fn syntax_error<T>(at: usize, what: &'static str) -> Result<T, JsonSyntaxError> {
    Err(JsonSyntaxError { at, what })
}

/// Returns the index of the first byte from `at` on that is not white space.
#[inline]
pub fn skip_space(data: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = data.get(at) {
        at += 1;
    }
    at
}

/// Returns the kind and the end of the value at `at`, which must not be white space. `stack` is
/// scratch memory.
///
/// # Errors
/// A [`JsonSyntaxError`] if the bytes are not a JSON value.
#[inline]
pub fn value_end(
    data: &[u8],
    at: usize,
    stack: &mut Vec<u8>,
) -> Result<(JsonKind, usize), JsonSyntaxError> {
    match data.get(at) {
        Some(b'"') => string_end(data, at).map(|(end, escaped)| (JsonKind::String(escaped), end)),
        Some(b'-' | b'0'..=b'9') => number_end(data, at).map(|end| (JsonKind::Number, end)),
        Some(b'{') => nested_end(data, at, stack).map(|end| (JsonKind::Object, end)),
        Some(b'[') => nested_end(data, at, stack).map(|end| (JsonKind::Array, end)),
        Some(b't') => word_end(data, at, b"true").map(|end| (JsonKind::Bool, end)),
        Some(b'f') => word_end(data, at, b"false").map(|end| (JsonKind::Bool, end)),
        Some(b'n') => word_end(data, at, b"null").map(|end| (JsonKind::Null, end)),
        Some(_) => syntax_error(at, "expected a value"),
        None => syntax_error(data.len(), "expected a value, found the end of the input"),
    }
}

/// The lowest bit of each byte.
const ONES: u64 = 0x0101_0101_0101_0101;
/// The highest bit of each byte.
const HIGHS: u64 = ONES << 7;

/// Sets the high bit of each byte of `word` that needs a check within a string: `"`, `\` and
/// control bytes. Only the lowest set bit is certain. Higher bits may be set wrongly.
#[inline]
fn string_stop_bits(word: u64) -> u64 {
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    let quote = word ^ (ONES * b'"' as u64);
    let slash = word ^ (ONES * b'\\' as u64);
    let quote = quote.wrapping_sub(ONES) & !quote;
    let slash = slash.wrapping_sub(ONES) & !slash;
    (control | quote | slash) & HIGHS
}

/// Returns the index after the closing quote of the string that opens at `at`, and whether the
/// string has escapes.
#[inline]
pub fn string_end(data: &[u8], at: usize) -> Result<(usize, bool), JsonSyntaxError> {
    let mut at = at + 1;
    let mut escaped = false;
    loop {
        while let Some(word) = data.get(at..at + 8) {
            let stop = string_stop_bits(u64::from_le_bytes(word.try_into().expect("eight bytes")));
            if stop == 0 {
                at += 8;
            } else {
                at += (stop.trailing_zeros() / 8) as usize;
                break;
            }
        }
        match data.get(at) {
            Some(b'"') => return Ok((at + 1, escaped)),
            Some(b'\\') => {
                escaped = true;
                at = escape_end(data, at)?;
            }
            Some(0..0x20) => return syntax_error(at, "control character in a string"),
            Some(_) => at += 1,
            None => return syntax_error(data.len(), "the input ends inside a string"),
        }
    }
}

/// Returns the index after the escape that begins at `at`.
fn escape_end(data: &[u8], at: usize) -> Result<usize, JsonSyntaxError> {
    match data.get(at + 1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 2),
        Some(b'u') => {
            for i in at + 2..at + 6 {
                match data.get(i) {
                    Some(b) if b.is_ascii_hexdigit() => {}
                    Some(_) => {
                        return syntax_error(i, "expected four hexadecimal digits after \\u");
                    }
                    None => return syntax_error(data.len(), "the input ends inside a string"),
                }
            }
            Ok(at + 6)
        }
        Some(_) => syntax_error(at + 1, "unknown escape in a string"),
        None => syntax_error(data.len(), "the input ends inside a string"),
    }
}

/// Returns the index after the digits that begin at `at`.
fn digits_end(data: &[u8], mut at: usize) -> Result<usize, JsonSyntaxError> {
    let start = at;
    while data.get(at).is_some_and(u8::is_ascii_digit) {
        at += 1;
    }
    if at == start { syntax_error(at, "expected a digit") } else { Ok(at) }
}

#[inline]
fn number_end(data: &[u8], mut at: usize) -> Result<usize, JsonSyntaxError> {
    if data[at] == b'-' {
        at += 1;
    }
    if data.get(at) == Some(&b'0') {
        at += 1;
        if data.get(at).is_some_and(u8::is_ascii_digit) {
            return syntax_error(at, "a number begins with a zero");
        }
    } else {
        at = digits_end(data, at)?;
    }
    if data.get(at) == Some(&b'.') {
        at = digits_end(data, at + 1)?;
    }
    if let Some(b'e' | b'E') = data.get(at) {
        at += 1;
        if let Some(b'+' | b'-') = data.get(at) {
            at += 1;
        }
        at = digits_end(data, at)?;
    }
    Ok(at)
}

fn word_end(data: &[u8], at: usize, word: &[u8]) -> Result<usize, JsonSyntaxError> {
    if data[at..].starts_with(word) {
        Ok(at + word.len())
    } else {
        syntax_error(at, "expected a value")
    }
}

/// What may follow at the current position inside brackets.
#[derive(Clone, Copy, PartialEq)]
enum NextInBracket {
    /// An item, or the end of an empty bracket.
    First,
    /// An item, after a comma.
    Item,
    /// A comma or the end, after an item.
    After,
}

/// Returns the index after the object or array that opens at `at`.
fn nested_end(data: &[u8], at: usize, stack: &mut Vec<u8>) -> Result<usize, JsonSyntaxError> {
    stack.clear();
    stack.push(data[at]);
    let mut at = at + 1;
    let mut next = NextInBracket::First;
    while let Some(&open) = stack.last() {
        at = skip_space(data, at);
        let Some(&byte) = data.get(at) else {
            let what = match open {
                b'{' => "the input ends inside an object",
                _ => "the input ends inside an array",
            };
            return syntax_error(data.len(), what);
        };
        // `{` + 2 is `}`, `[` + 2 is `]`.
        if byte == open + 2 && next != NextInBracket::Item {
            stack.pop();
            at += 1;
            next = NextInBracket::After;
        } else if next == NextInBracket::After {
            if byte != b',' {
                let what = match open {
                    b'{' => "expected a comma or the end of the object",
                    _ => "expected a comma or the end of the array",
                };
                return syntax_error(at, what);
            }
            at += 1;
            next = NextInBracket::Item;
        } else {
            if open == b'{' {
                at = key_end(data, at)?.1;
            }
            if let Some(&inner @ (b'{' | b'[')) = data.get(at) {
                stack.push(inner);
                at += 1;
                next = NextInBracket::First;
            } else {
                // A string, number, boolean or null does not use the stack.
                at = value_end(data, at, &mut Vec::new())?.1;
                next = NextInBracket::After;
            }
        }
    }
    Ok(at)
}

/// Parses a key and its colon. Returns the end of the key's string, the start of the value, and
/// whether the key has escapes.
#[inline]
pub fn key_end(data: &[u8], at: usize) -> Result<(usize, usize, bool), JsonSyntaxError> {
    match data.get(at) {
        Some(b'"') => {}
        Some(_) => return syntax_error(at, "expected a key in double quotes"),
        None => return syntax_error(data.len(), "the input ends inside an object"),
    }
    let (end, escaped) = string_end(data, at)?;
    let colon = skip_space(data, end);
    match data.get(colon) {
        Some(b':') => Ok((end, skip_space(data, colon + 1), escaped)),
        Some(_) => syntax_error(colon, "expected a colon after the key"),
        None => syntax_error(data.len(), "the input ends inside an object"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(text: &[u8]) -> bool {
        let start = skip_space(text, 0);
        match value_end(text, start, &mut Vec::new()) {
            Ok((_, end)) => skip_space(text, end) == text.len(),
            Err(_) => false,
        }
    }

    #[test]
    fn valid_json_is_accepted() {
        for text in [
            "{}",
            "[]",
            " [ ] ",
            "0",
            "-0",
            "1.5e+10",
            "1E-2",
            "\"\"",
            "\"a\\u00e9\\n\"",
            "null",
            "{\"a\":[1,{\"b\":[]}],\"c\":\"d\"}",
            "[[[[]]]]",
            "\"0123456789\\\\\"",
            "[\"\u{7f}\"]",
        ] {
            assert!(accepts(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn invalid_json_is_refused() {
        for text in [
            "",
            "{",
            "}",
            "[1,]",
            "{\"a\":1,}",
            "{,}",
            "[,]",
            "[1 2]",
            "{\"a\"}",
            "{a:1}",
            "01",
            "-",
            "1.",
            ".5",
            "+1",
            "1e",
            "NaN",
            "nul",
            "tru",
            "\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"\n\"",
            "[}",
            "{]",
            "\"1234567\u{1}\"",
            "{\"a\":1 \"b\":2}",
            "'a'",
            "[1]]",
            "// c\n1",
            "\"\\",
            "\"\\u00",
        ] {
            assert!(!accepts(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn deep_nesting_does_not_overflow_the_stack() {
        let deep = [vec![b'['; 200_000], vec![b']'; 200_000]].concat();
        assert!(accepts(&deep));
        assert!(!accepts(&deep[..399_999]));
    }

    #[test]
    fn an_error_has_the_position_and_the_message() {
        let error = value_end(b"{\"a\":1;", 0, &mut Vec::new()).unwrap_err();
        let what = "expected a comma or the end of the object";
        assert_eq!(error, JsonSyntaxError { at: 6, what });
    }
}
