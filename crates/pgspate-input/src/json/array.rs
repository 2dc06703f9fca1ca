//! JSON arrays as PostgreSQL array literals, for columns of an array type.
//!
//! Dimensions are those that `json_populate_record` sees: the depth of the first item that is no
//! array. What lies deeper is an item itself, as JSON text; what lies higher is left for the server
//! to refuse. Items follow the rules of columns.

use super::parse::{Scalar, skip_space, value};
use super::string::{Unfit, unescape};

/// What the literal is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The element type's delimiter.
    pub delimiter: u8,
    /// Whether the elements are json or jsonb.
    pub json: bool,
}

/// Appends the literal for `array`, a valid JSON array, to `out`.
pub fn literal(array: &[u8], shape: Shape, out: &mut Vec<u8>) -> Result<(), Unfit> {
    let levels = levels(array);
    // Servers before 17 refuse `{{},{}}`, though an array of empty arrays is just an empty one.
    if levels == 2 && array.iter().all(|b| b"[], \t\r\n".contains(b)) && flat(array) {
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
                out.push(shape.delimiter);
            }
            _ => {
                // The array has been validated, so this cannot fail; ending here is safe anyway.
                let Ok((kind, end)) = value(array, at, &mut stack) else { return Ok(()) };
                append(&array[at..end], kind, shape, &mut item, out)?;
                at = end;
            }
        }
    }
    Ok(())
}

/// How many dimensions the array has: how deep the first item lies that is no array itself.
fn levels(array: &[u8]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while array.get(at) == Some(&b'[') {
        depth += 1;
        at = skip_space(array, at + 1);
    }
    depth
}

/// Whether no bracket lies deeper than two.
fn flat(array: &[u8]) -> bool {
    let mut depth = 0;
    array.iter().all(|byte| {
        depth += i32::from(*byte == b'[') - i32::from(*byte == b']');
        depth <= 2
    })
}

fn append(
    raw: &[u8],
    kind: Scalar,
    shape: Shape,
    item: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(), Unfit> {
    match kind {
        Scalar::Null => out.extend_from_slice(b"NULL"),
        Scalar::Bool | Scalar::Number => out.extend_from_slice(raw),
        Scalar::String(_) if !shape.json => {
            item.clear();
            unescape(&raw[1..raw.len() - 1], item)?;
            quote(item, out);
        }
        _ => quote(raw, out),
    }
    Ok(())
}

fn quote(text: &[u8], out: &mut Vec<u8>) {
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

    fn made(array: &str, json: bool) -> String {
        let mut out = Vec::new();
        literal(array.as_bytes(), Shape { delimiter: b',', json }, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn items_follow_the_rules_of_columns() {
        assert_eq!(made("[1, null ,true,-2.50]", false), "{1,NULL,true,-2.50}");
        assert_eq!(
            made(r#"["a,\"b\"", "NULL", "", "\\"]"#, false),
            r#"{"a,\"b\"","NULL","","\\"}"#
        );
        assert_eq!(made("[]", false), "{}");
        assert_eq!(made(r#"["a"]"#, true), r#"{"\"a\""}"#);
        assert_eq!(made(r#"[{"k":"a\nb"}]"#, true), r#"{"{\"k\":\"a\\nb\"}"}"#);
    }

    #[test]
    fn depth_of_the_first_item_gives_the_dimensions() {
        assert_eq!(made("[[1,2],\n [3,4]]", false), "{{1,2},{3,4}}");
        assert_eq!(made("[1,[2]]", true), r#"{1,"[2]"}"#);
        assert_eq!(made("[[2],1]", false), "{{2},1}");
        assert_eq!(made("[[],[]]", false), "{}");
        assert_eq!(made("[[],[[]]]", false), "{{},{\"[]\"}}");
        assert_eq!(made("[[[]]]", false), "{{{}}}");
    }

    #[test]
    fn the_null_character_is_refused() {
        let shape = Shape { delimiter: b',', json: false };
        assert_eq!(literal(br#"["\u0000"]"#, shape, &mut Vec::new()), Err(Unfit::Nul));
        let shape = Shape { delimiter: b',', json: true };
        assert_eq!(literal(br#"["\u0000"]"#, shape, &mut Vec::new()), Ok(()));
    }
}
