//! Turns JSON values into text that the input function of a column's type reads.
//!
//! Only bytes, lists and maps are rewritten, because the types do not read their JSON spelling.
//! Every other value keeps its spelling, and the server checks it.

use super::byte_spellings::{base64, bytea, from_hex, latin1};
use super::json::{Json, JsonFields, JsonItems, malformed};
use super::record_budget::check_len;
use crate::{Error, EventValue, Result};

/// A family of PostgreSQL types whose values formats spell in special ways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TypeFamily {
    /// Every other type: values keep their spelling.
    Other,
    Bytea,
    /// json and jsonb.
    Json,
    Bits,
    VarBits,
    Numeric,
    Date,
    Time,
    /// timestamptz if true, timestamp if false.
    Timestamp(bool),
    Interval,
    Hstore,
    Array(Box<TypeFamily>),
}

impl TypeFamily {
    /// Returns the family of a type by its name in `pg_type`.
    pub(super) fn of(typname: &str) -> TypeFamily {
        if let Some(element) = typname.strip_prefix('_') {
            return TypeFamily::Array(Box::new(TypeFamily::of(element)));
        }
        match typname {
            "bytea" => TypeFamily::Bytea,
            "json" | "jsonb" => TypeFamily::Json,
            "bit" => TypeFamily::Bits,
            "varbit" => TypeFamily::VarBits,
            "numeric" | "money" => TypeFamily::Numeric,
            "date" => TypeFamily::Date,
            "time" => TypeFamily::Time,
            "timestamp" => TypeFamily::Timestamp(false),
            "timestamptz" => TypeFamily::Timestamp(true),
            "interval" => TypeFamily::Interval,
            "hstore" => TypeFamily::Hstore,
            _ => TypeFamily::Other,
        }
    }
}

/// How a format spells bytes in strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ByteSpelling {
    Base64,
    /// Hexadecimal digits, with `\x`, `0x` or nothing before them.
    Hex,
    /// One character for each byte.
    Latin1,
}

/// How a format spells values that JSON has no type for.
#[derive(Debug, Clone, Copy)]
pub(super) struct JsonSpelling {
    pub(super) bytes: ByteSpelling,
    /// Whether a string for a json column is a JSON string. If false, it holds the text of a JSON
    /// value.
    pub(super) json_strings: bool,
    /// Whether a string for a `bit varying` column is a decimal number.
    pub(super) decimal_bits: bool,
}

impl JsonSpelling {
    /// Returns the usual spelling, with bytes in this form.
    pub(super) const fn of_bytes(bytes: ByteSpelling) -> JsonSpelling {
        JsonSpelling { bytes, json_strings: false, decimal_bits: false }
    }

    /// Returns a JSON value as text for a type of this family.
    pub(super) fn cast(self, json: Json<'_>, family: &TypeFamily) -> Result<EventValue> {
        Ok(match (json, family) {
            (Json::Null, _) => EventValue::Null,
            (Json::Bool(is), TypeFamily::Bits | TypeFamily::VarBits) => {
                text(if is { "1" } else { "0" })
            }
            (Json::Bool(is), _) => text(if is { "true" } else { "false" }),
            (Json::Number(_), TypeFamily::VarBits) => return Err(decimal_bits_error()),
            (Json::Number(number), _) => text(number),
            (Json::String(_), TypeFamily::VarBits) if self.decimal_bits => {
                return Err(decimal_bits_error());
            }
            (Json::String(string), TypeFamily::Bytea) => {
                text(bytea(&self.bytes(&string.text_with_zeros()?)?))
            }
            (Json::String(string), TypeFamily::Json) if self.json_strings => text(string.quoted()),
            (Json::String(string), _) => text(string.text()?),
            (Json::Array(_), TypeFamily::Array(element)) => {
                let mut out = String::new();
                if let Some(items) = json.array() {
                    let nests = **element != TypeFamily::Json;
                    array(items, nests, &mut |item| self.cast(item, element), &mut out, 1)?;
                }
                text(out)
            }
            (Json::Object(_), TypeFamily::Hstore) => match json.object() {
                Some(fields) => text(hstore(fields)?),
                None => EventValue::Null,
            },
            (Json::Array(whole) | Json::Object(whole), _) => text(whole),
        })
    }

    fn bytes(self, text: &str) -> Result<Vec<u8>> {
        let (bytes, what) = match self.bytes {
            ByteSpelling::Base64 => (base64(text), "base64"),
            ByteSpelling::Hex => {
                let digits = text.strip_prefix("\\x").or(text.strip_prefix("0x"));
                (from_hex(digits.unwrap_or(text)), "hexadecimal digits")
            }
            ByteSpelling::Latin1 => (latin1(text), "a character for each byte"),
        };
        bytes.ok_or_else(|| malformed(format!("expected bytes as {what}")))
    }
}

/// Returns the error for a bit string as a decimal number: `1` may be one bit or eight.
fn decimal_bits_error() -> Error {
    malformed("bits are written as a decimal number, without the number of bits")
        .hint("Let the column of the target be of type numeric, or boolean for a single bit.")
}

/// Wraps text as a value.
pub(super) fn text(text: impl Into<Box<str>>) -> EventValue {
    EventValue::Text(text.into())
}

/// The most dimensions that PostgreSQL's arrays have.
const DIMENSIONS_MAX: usize = 6;

/// Appends a JSON array as an array literal. `nests`: items that are arrays are further dimensions.
pub(super) fn array(
    mut items: JsonItems<'_>,
    nests: bool,
    element: &mut dyn FnMut(Json<'_>) -> Result<EventValue>,
    out: &mut String,
    depth: usize,
) -> Result<()> {
    out.push('{');
    let mut first = true;
    while let Some(item) = items.next()? {
        if !std::mem::take(&mut first) {
            out.push(',');
        }
        if let (Some(inner), true) = (item.array(), nests) {
            if depth == DIMENSIONS_MAX {
                return Err(malformed("a list is nested deeper than the 6 levels of an array"));
            }
            array(inner, nests, element, out, depth + 1)?;
            continue;
        }
        match element(item)? {
            EventValue::Text(text) => quote_element(&text, out),
            EventValue::Null | EventValue::Absent => out.push_str("NULL"),
        }
        check_len(out.len())?;
    }
    out.push('}');
    Ok(())
}

/// Appends an element, quoted unless it has only characters that need no quotes.
fn quote_element(text: &str, out: &mut String) {
    let is_plain = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'-' | b'+' | b'.' | b':');
    if !text.is_empty() && text.bytes().all(is_plain) {
        return out.push_str(text);
    }
    quote_always(text, out);
}

/// Writes a map as hstore spells it.
fn hstore(mut fields: JsonFields<'_>) -> Result<String> {
    let mut out = String::new();
    while let Some((key, value)) = fields.next()? {
        if !out.is_empty() {
            out.push_str(", ");
        }
        quote_always(&key.text()?, &mut out);
        out.push_str("=>");
        match value {
            Json::Null => out.push_str("NULL"),
            Json::Bool(is) => out.push_str(if is { "\"true\"" } else { "\"false\"" }),
            Json::Number(word) | Json::Array(word) | Json::Object(word) => {
                quote_always(word, &mut out);
            }
            Json::String(string) => quote_always(&string.text()?, &mut out),
        }
    }
    Ok(out)
}

fn quote_always(text: &str, out: &mut String) {
    out.push('"');
    for char in text.chars() {
        if matches!(char, '"' | '\\') {
            out.push('\\');
        }
        out.push(char);
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::super::json::object;
    use super::*;

    fn cast(json: &str, ty: &str, spelling: JsonSpelling) -> String {
        let record = format!("{{\"v\":{json}}}");
        let fields = object(record.as_bytes()).unwrap().all().unwrap();
        match spelling.cast(fields[0].1, &TypeFamily::of(ty)) {
            Ok(EventValue::Text(text)) => text.into(),
            Ok(other) => format!("{other:?}"),
            Err(error) => format!("error: {error}"),
        }
    }

    const PLAIN: JsonSpelling = JsonSpelling::of_bytes(ByteSpelling::Base64);

    #[test]
    fn values_that_types_can_read_keep_their_spelling() {
        for (json, ty, expected) in [
            ("1.50", "numeric", "1.50"),
            ("123456789012345678901234567890", "int8", "123456789012345678901234567890"),
            ("true", "bool", "true"),
            ("true", "bit", "1"),
            ("\"101\"", "varbit", "101"),
            ("\"a\\\"b\"", "text", "a\"b"),
            ("null", "text", "Null"),
            ("{\"a\": 1.0}", "jsonb", "{\"a\": 1.0}"),
            ("\"{\\\"a\\\": 1.0}\"", "json", "{\"a\": 1.0}"),
            ("[1,2]", "vector", "[1,2]"),
            ("\"aGk=\"", "bytea", "\\x6869"),
            ("\"a\"", "bytea", "error: expected bytes as base64"),
            (
                "1",
                "varbit",
                "error: bits are written as a decimal number, without the number of bits",
            ),
        ] {
            assert_eq!(cast(json, ty, PLAIN), expected, "{json}");
        }
        let raw = JsonSpelling { json_strings: true, ..JsonSpelling::of_bytes(ByteSpelling::Hex) };
        assert_eq!(cast("\"a\\nb\"", "jsonb", raw), "\"a\\nb\"");
        assert_eq!(cast("\"\\\\x00ff\"", "bytea", raw), "\\x00ff");
        assert_eq!(cast("\"00ff\"", "bytea", raw), "\\x00ff");
    }

    #[test]
    fn lists_and_maps_are_spelled_as_literals() {
        for (json, ty, expected) in [
            ("[]", "_text", "{}"),
            ("[1,null,-2.5]", "_numeric", "{1,NULL,-2.5}"),
            (
                r#"["","null","a,b","q\"","b\\","{x}"]"#,
                "_text",
                r#"{"","null","a,b","q\"","b\\","{x}"}"#,
            ),
            ("[[1,2],[3,4]]", "_int4", "{{1,2},{3,4}}"),
            (r#"[[1],{"a":"b"}]"#, "_jsonb", r#"{"[1]","{\"a\":\"b\"}"}"#),
            ("[\"aGk=\"]", "_bytea", r#"{"\\x6869"}"#),
            ("\"{1,2}\"", "_int4", "{1,2}"),
            (r#"{"a":null,"b\"":"c","d":1}"#, "hstore", r#""a"=>NULL, "b\""=>"c", "d"=>"1""#),
        ] {
            assert_eq!(cast(json, ty, PLAIN), expected, "{json}");
        }
        assert!(cast("[[[[[[[1]]]]]]]", "_int4", PLAIN).contains("nested"));
    }
}
