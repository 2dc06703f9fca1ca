//! Converts JSON objects to the text of hstore.
//!
//! If a key occurs twice, the last value counts, as in jsonb. hstore itself keeps any of them.

use super::array::append_quoted;
use super::parse::{JsonKind, key_end, skip_space, value_end};
use super::string::{UnsupportedEscape, unescape};

/// Appends `object`, a valid JSON object, as hstore: `"a"=>"1", "b"=>NULL`. Numbers, booleans,
/// objects and arrays become their JSON text.
///
/// # Errors
/// The [`UnsupportedEscape`] of a string that PostgreSQL's text cannot hold.
pub fn append_hstore(object: &[u8], out: &mut Vec<u8>) -> Result<(), UnsupportedEscape> {
    let mut pairs: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
    let mut stack = Vec::new();
    let mut at = skip_space(object, 1);
    // The object is valid, so nothing here fails but escapes.
    while let Ok((key_end, start, _)) = key_end(object, at) {
        let Ok((kind, end)) = value_end(object, start, &mut stack) else { break };
        let mut key = Vec::new();
        unescape(&object[at + 1..key_end - 1], &mut key)?;
        let raw = &object[start..end];
        let value = match kind {
            JsonKind::Null => None,
            JsonKind::String(_) => {
                let mut text = Vec::new();
                unescape(&raw[1..raw.len() - 1], &mut text)?;
                Some(text)
            }
            _ => Some(raw.to_vec()),
        };
        pairs.push((key, value));
        at = skip_space(object, end);
        if object.get(at) != Some(&b',') {
            break;
        }
        at = skip_space(object, at + 1);
    }
    // A stable sort, so the last of equal keys is the last one of the object.
    pairs.sort_by(|left, right| left.0.cmp(&right.0));
    for (nth, (key, value)) in pairs.iter().enumerate() {
        if pairs.get(nth + 1).is_some_and(|(next, _)| next == key) {
            continue;
        }
        append_quoted(key, out);
        out.extend_from_slice(b"=>");
        match value {
            Some(value) => append_quoted(value, out),
            None => out.extend_from_slice(b"NULL"),
        }
        if nth + 1 < pairs.len() {
            out.extend_from_slice(b", ");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_become_pairs() {
        for (object, expected) in [
            ("{ }", ""),
            (r#"{"a":"1","b":null}"#, r#""a"=>"1", "b"=>NULL"#),
            (
                r#"{ "b\"" : "c\\" , "a":-1.50, "d":true }"#,
                r#""a"=>"-1.50", "b\""=>"c\\", "d"=>"true""#,
            ),
            (r#"{"a":{"x": 1},"b":[1, "y"]}"#, r#""a"=>"{\"x\": 1}", "b"=>"[1, \"y\"]""#),
            (r#"{"a":1,"b":2,"a":"\u00e9"}"#, r#""a"=>"é", "b"=>"2""#),
        ] {
            let mut out = Vec::new();
            append_hstore(object.as_bytes(), &mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{object}");
        }
        assert!(append_hstore(br#"{"a":"\u0000"}"#, &mut Vec::new()).is_err());
    }
}
