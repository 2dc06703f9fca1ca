//! Converts JSON arrays to PostgreSQL array literals, for columns of an array type.
//!
//! As in `json_populate_record`, the number of dimensions is the depth of the first item that is no
//! array. A deeper array is one item, as JSON text. If another item is less deep, the literal is
//! invalid, and the server refuses the literal. Items are converted like the values of columns.

use super::parse::{JsonKind, skip_space, value_end};
use super::string::{UnsupportedEscape, unescape};

/// How the items of an array literal are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArrayLiteralStyle {
    /// The delimiter of the element type.
    pub delimiter: u8,
    /// Whether the elements are json or jsonb.
    pub json: bool,
}

/// Appends the literal of `array`, a valid JSON array, to `out`.
///
/// # Errors
/// The [`UnsupportedEscape`] of a string that PostgreSQL's text cannot hold.
pub fn append_array_literal(
    array: &[u8],
    style: ArrayLiteralStyle,
    out: &mut Vec<u8>,
) -> Result<(), UnsupportedEscape> {
    let levels = dimension_count(array);
    // Servers before 17 refuse `{{},{}}`. An array of empty arrays is an empty array.
    if levels == 2 && array.iter().all(|b| b"[], \t\r\n".contains(b)) && is_at_most_two_deep(array)
    {
        out.extend_from_slice(b"{}");
        return Ok(());
    }
    let mut depth = 0;
    let mut at = 0;
    let mut stack = Vec::new();
    let mut item = Vec::new();
    while let Some(&byte) = array.get(at) {
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' => at += 1,
            b'[' if depth < levels => {
                depth += 1;
                at += 1;
                out.push(b'{');
            }
            b']' => {
                depth -= 1;
                at += 1;
                out.push(b'}');
            }
            b',' => {
                at += 1;
                out.push(style.delimiter);
            }
            _ => {
                // The array is valid, so this cannot fail.
                let Ok((kind, end)) = value_end(array, at, &mut stack) else { return Ok(()) };
                append_item(&array[at..end], kind, style, &mut item, out)?;
                at = end;
            }
        }
    }
    Ok(())
}

/// Returns the number of dimensions: the depth of the first item that is no array.
fn dimension_count(array: &[u8]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while array.get(at) == Some(&b'[') {
        depth += 1;
        at = skip_space(array, at + 1);
    }
    depth
}

/// Returns whether brackets are nested at most two deep.
fn is_at_most_two_deep(array: &[u8]) -> bool {
    let mut depth = 0;
    array.iter().all(|byte| {
        depth += i32::from(*byte == b'[') - i32::from(*byte == b']');
        depth <= 2
    })
}

/// Appends one item of an array.
fn append_item(
    raw: &[u8],
    kind: JsonKind,
    style: ArrayLiteralStyle,
    item: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(), UnsupportedEscape> {
    match kind {
        JsonKind::Null => out.extend_from_slice(b"NULL"),
        JsonKind::Bool | JsonKind::Number => out.extend_from_slice(raw),
        JsonKind::String(_) if !style.json => {
            item.clear();
            unescape(&raw[1..raw.len() - 1], item)?;
            append_quoted(item, out);
        }
        _ => append_quoted(raw, out),
    }
    Ok(())
}

/// Appends an item in double quotes.
pub(super) fn append_quoted(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for &byte in text {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn literal_of(array: &str, json: bool) -> String {
        let mut out = Vec::new();
        append_array_literal(
            array.as_bytes(),
            ArrayLiteralStyle { delimiter: b',', json },
            &mut out,
        )
        .unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn items_follow_the_rules_of_columns() {
        assert_eq!(literal_of("[1, null ,true,-2.50]", false), "{1,NULL,true,-2.50}");
        assert_eq!(
            literal_of(r#"["a,\"b\"", "NULL", "", "\\"]"#, false),
            r#"{"a,\"b\"","NULL","","\\"}"#
        );
        assert_eq!(literal_of("[]", false), "{}");
        assert_eq!(literal_of(r#"["a"]"#, true), r#"{"\"a\""}"#);
        assert_eq!(literal_of(r#"[{"k":"a\nb"}]"#, true), r#"{"{\"k\":\"a\\nb\"}"}"#);
    }

    #[test]
    fn the_depth_of_the_first_item_is_the_number_of_dimensions() {
        assert_eq!(literal_of("[[1,2],\n [3,4]]", false), "{{1,2},{3,4}}");
        assert_eq!(literal_of("[1,[2]]", true), r#"{1,"[2]"}"#);
        assert_eq!(literal_of("[[2],1]", false), "{{2},1}");
        assert_eq!(literal_of("[[],[]]", false), "{}");
        assert_eq!(literal_of("[[],[[]]]", false), "{{},{\"[]\"}}");
        assert_eq!(literal_of("[[[]]]", false), "{{{}}}");
    }

    #[test]
    fn the_null_character_is_refused() {
        let style = ArrayLiteralStyle { delimiter: b',', json: false };
        assert_eq!(
            append_array_literal(br#"["\u0000"]"#, style, &mut Vec::new()),
            Err(UnsupportedEscape::Nul)
        );
        let style = ArrayLiteralStyle { delimiter: b',', json: true };
        assert_eq!(append_array_literal(br#"["\u0000"]"#, style, &mut Vec::new()), Ok(()));
    }
}
