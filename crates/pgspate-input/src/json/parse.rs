//! The grammar of RFC 8259 over byte slices: where a value ends and of what kind it is.
//!
//! Nothing here allocates but the caller's stack of open brackets, recurses, or looks at what
//! escapes mean. Slices are UTF-8 already; the caller has seen to it.

/// A place where the bytes stop being JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Syntax {
    /// Index of the first byte that cannot be.
    pub at: usize,
    /// What was found or expected there.
    pub what: &'static str,
}

/// What kind of value a slice is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    /// `null`
    Null,
    /// `true` or `false`
    Bool,
    /// A number.
    Number,
    /// A string; true when it has escapes.
    String(bool),
    /// An object.
    Object,
    /// An array.
    Array,
}

fn fault<T>(at: usize, what: &'static str) -> Result<T, Syntax> {
    Err(Syntax { at, what })
}

/// The index of the first byte from `at` that is not white space.
#[inline]
pub fn skip_space(data: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = data.get(at) {
        at += 1;
    }
    at
}

/// The end of the value at `at` (which is not white space) and its kind. `stack` is scratch.
#[inline]
pub fn value(data: &[u8], at: usize, stack: &mut Vec<u8>) -> Result<(Scalar, usize), Syntax> {
    match data.get(at) {
        Some(b'"') => string_end(data, at).map(|(end, escaped)| (Scalar::String(escaped), end)),
        Some(b'-' | b'0'..=b'9') => number_end(data, at).map(|end| (Scalar::Number, end)),
        Some(b'{') => nested_end(data, at, stack).map(|end| (Scalar::Object, end)),
        Some(b'[') => nested_end(data, at, stack).map(|end| (Scalar::Array, end)),
        Some(b't') => word_end(data, at, b"true").map(|end| (Scalar::Bool, end)),
        Some(b'f') => word_end(data, at, b"false").map(|end| (Scalar::Bool, end)),
        Some(b'n') => word_end(data, at, b"null").map(|end| (Scalar::Null, end)),
        Some(_) => fault(at, "expected a value"),
        None => fault(data.len(), "expected a value, found the end of the input"),
    }
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = ONES << 7;

/// The high bit of each byte of `word` that a string cannot pass over: `"`, `\`, control bytes.
/// Bits above the lowest one set may be false alarms.
#[inline]
fn stops(word: u64) -> u64 {
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    let quote = word ^ (ONES * b'"' as u64);
    let slash = word ^ (ONES * b'\\' as u64);
    let quote = quote.wrapping_sub(ONES) & !quote;
    let slash = slash.wrapping_sub(ONES) & !slash;
    (control | quote | slash) & HIGHS
}

/// The index after the closing quote of the string that opens at `at`, and whether it has escapes.
#[inline]
pub fn string_end(data: &[u8], at: usize) -> Result<(usize, bool), Syntax> {
    let mut at = at + 1;
    let mut escaped = false;
    loop {
        while let Some(word) = data.get(at..at + 8) {
            let stop = stops(u64::from_le_bytes(word.try_into().expect("eight bytes")));
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
            Some(0..0x20) => return fault(at, "control character in a string"),
            Some(_) => at += 1,
            None => return fault(data.len(), "the input ends inside a string"),
        }
    }
}

fn escape_end(data: &[u8], at: usize) -> Result<usize, Syntax> {
    match data.get(at + 1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 2),
        Some(b'u') => {
            for i in at + 2..at + 6 {
                match data.get(i) {
                    Some(b) if b.is_ascii_hexdigit() => {}
                    Some(_) => return fault(i, "expected four hexadecimal digits after \\u"),
                    None => return fault(data.len(), "the input ends inside a string"),
                }
            }
            Ok(at + 6)
        }
        Some(_) => fault(at + 1, "unknown escape in a string"),
        None => fault(data.len(), "the input ends inside a string"),
    }
}

fn digits_end(data: &[u8], mut at: usize) -> Result<usize, Syntax> {
    let start = at;
    while data.get(at).is_some_and(u8::is_ascii_digit) {
        at += 1;
    }
    if at == start { fault(at, "expected a digit") } else { Ok(at) }
}

#[inline]
fn number_end(data: &[u8], mut at: usize) -> Result<usize, Syntax> {
    if data[at] == b'-' {
        at += 1;
    }
    if data.get(at) == Some(&b'0') {
        at += 1;
        if data.get(at).is_some_and(u8::is_ascii_digit) {
            return fault(at, "a number begins with a zero");
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

fn word_end(data: &[u8], at: usize, word: &[u8]) -> Result<usize, Syntax> {
    if data[at..].starts_with(word) { Ok(at + word.len()) } else { fault(at, "expected a value") }
}

/// What may stand next inside a bracket.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    /// An item, or the end of an empty bracket.
    First,
    /// An item, after a comma.
    Item,
    /// A comma or the end, after an item.
    After,
}

fn nested_end(data: &[u8], at: usize, stack: &mut Vec<u8>) -> Result<usize, Syntax> {
    stack.clear();
    stack.push(data[at]);
    let mut at = at + 1;
    let mut next = Next::First;
    while let Some(&open) = stack.last() {
        at = skip_space(data, at);
        let Some(&byte) = data.get(at) else {
            let what = match open {
                b'{' => "the input ends inside an object",
                _ => "the input ends inside an array",
            };
            return fault(data.len(), what);
        };
        // `{` + 2 is `}`, `[` + 2 is `]`.
        if byte == open + 2 && next != Next::Item {
            stack.pop();
            at += 1;
            next = Next::After;
        } else if next == Next::After {
            if byte != b',' {
                let what = match open {
                    b'{' => "expected a comma or the end of the object",
                    _ => "expected a comma or the end of the array",
                };
                return fault(at, what);
            }
            at += 1;
            next = Next::Item;
        } else {
            if open == b'{' {
                at = key_end(data, at)?.1;
            }
            if let Some(&inner @ (b'{' | b'[')) = data.get(at) {
                stack.push(inner);
                at += 1;
                next = Next::First;
            } else {
                // A scalar: it does not touch the stack.
                at = value(data, at, &mut Vec::new())?.1;
                next = Next::After;
            }
        }
    }
    Ok(at)
}

/// A key and its colon: where its string ends, where the value begins, whether it has escapes.
#[inline]
pub fn key_end(data: &[u8], at: usize) -> Result<(usize, usize, bool), Syntax> {
    match data.get(at) {
        Some(b'"') => {}
        Some(_) => return fault(at, "expected a key in double quotes"),
        None => return fault(data.len(), "the input ends inside an object"),
    }
    let (end, escaped) = string_end(data, at)?;
    let colon = skip_space(data, end);
    match data.get(colon) {
        Some(b':') => Ok((end, skip_space(data, colon + 1), escaped)),
        Some(_) => fault(colon, "expected a colon after the key"),
        None => fault(data.len(), "the input ends inside an object"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(text: &[u8]) -> bool {
        let start = skip_space(text, 0);
        match value(text, start, &mut Vec::new()) {
            Ok((_, end)) => skip_space(text, end) == text.len(),
            Err(_) => false,
        }
    }

    #[test]
    fn takes_what_the_grammar_allows() {
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
    fn refuses_everything_else() {
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
    fn depth_costs_heap_not_stack() {
        let deep = [vec![b'['; 200_000], vec![b']'; 200_000]].concat();
        assert!(accepts(&deep));
        assert!(!accepts(&deep[..399_999]));
    }

    #[test]
    fn says_where_and_what() {
        let error = value(b"{\"a\":1;", 0, &mut Vec::new()).unwrap_err();
        let what = "expected a comma or the end of the object";
        assert_eq!(error, Syntax { at: 6, what });
    }
}
