//! The placeholder for a value that the source did not send, in all its forms.
//!
//! PostgreSQL omits TOASTed values that an update did not change, and Debezium writes a
//! placeholder. Such a column is absent: the placeholder must never be written to the target.

use super::super::byte_spellings::{bytea, from_hex, to_base64};
use super::super::json::{Json, JsonFields, JsonStr, object};
use crate::Result;

/// Debezium's default for `unavailable.value.placeholder`.
pub(super) const DEFAULT_PLACEHOLDER: &str = "__debezium_unavailable_value";
/// The form of the default placeholder in an array of uuid: the version 3 UUID of its bytes.
const DEFAULT_PLACEHOLDER_UUID: &str = "b68a35a7-17ad-35b3-af2a-ae46edb4545a";

/// The forms of one placeholder.
#[derive(Debug)]
pub(super) struct Placeholder {
    setting: Box<str>,
    bytes: Vec<u8>,
    text: Option<String>,
    base64: String,
    hex: String,
    uuid: Option<&'static str>,
}

impl Placeholder {
    /// Returns the forms of a placeholder, as the connector's `unavailable.value.placeholder` sets
    /// it.
    pub(super) fn new(setting: &str) -> Placeholder {
        let bytes = setting.strip_prefix("hex:").and_then(from_hex);
        let bytes = bytes.unwrap_or_else(|| setting.as_bytes().to_vec());
        Placeholder {
            setting: setting.into(),
            text: String::from_utf8(bytes.clone()).ok(),
            base64: to_base64(&bytes),
            hex: bytea(&bytes)[2..].to_owned(),
            uuid: (bytes == DEFAULT_PLACEHOLDER.as_bytes()).then_some(DEFAULT_PLACEHOLDER_UUID),
            bytes,
        }
    }

    /// Returns whether a value is the placeholder. `is_binary` tells that the column's values are
    /// bytes.
    pub(super) fn is(&self, json: Json<'_>, is_binary: bool) -> Result<bool> {
        match json {
            Json::String(text) => {
                let is_text = self.text.as_deref().is_some_and(|own| text.is(own));
                Ok(is_text
                    || text.is(&self.setting)
                    || (is_binary && (self.is_base64(text) || text.is(&self.hex)))
                    || self.is_map_within(text)?)
            }
            Json::Array(_) => self.is_list(json),
            Json::Object(_) => self.is_map(json),
            _ => Ok(false),
        }
    }

    /// Returns whether a text is the placeholder's base64, with or without padding.
    fn is_base64(&self, text: JsonStr<'_>) -> bool {
        text.is(&self.base64) || text.is(self.base64.trim_end_matches('='))
    }

    /// Returns whether an object is a map with the placeholder as its only key, or a struct with
    /// the placeholder's bytes. Such structs are decimals of variable scale and WKB.
    fn is_map(&self, map: Json<'_>) -> Result<bool> {
        let Some(mut fields) = map.object() else { return Ok(false) };
        let own = self.text.as_deref();
        let (mut count, mut is_key, mut is_part) = (0, false, false);
        while let Some((key, value)) = fields.next()? {
            count += 1;
            is_key |= own.is_some_and(|own| key.is(own));
            if let (true, Json::String(bytes)) = (key.is("value") || key.is("wkb"), value) {
                is_part |= self.is_base64(bytes);
            }
        }
        Ok(is_part || (is_key && count == 1))
    }

    /// Returns whether a text is the JSON of a map with the placeholder as its only key, as
    /// `hstore.handling.mode=json` writes it.
    fn is_map_within(&self, text: JsonStr<'_>) -> Result<bool> {
        if !text.looks_like_object() {
            return Ok(false);
        }
        let text = text.text()?;
        if !self.text.as_deref().is_some_and(|own| text.contains(own)) {
            return Ok(false);
        }
        let has_only_placeholder = |fields: JsonFields<'_>| -> Result<bool> {
            let fields = fields.all()?;
            let own = self.text.as_deref().unwrap_or_default();
            Ok(matches!(&fields[..], [(key, _)] if key.is(own)))
        };
        // A text that is not JSON is an ordinary value.
        Ok(object(text.as_bytes()).and_then(has_only_placeholder).unwrap_or(false))
    }

    /// Returns whether a list has the placeholder as its only item, or the placeholder's bytes as
    /// numbers.
    fn is_list(&self, list: Json<'_>) -> Result<bool> {
        let Some(mut items) = list.array() else { return Ok(false) };
        let mut count = 0;
        while let Some(item) = items.next()? {
            let fits = match item {
                Json::String(text) if count == 0 && !items.has_more() => {
                    return Ok(self.is(item, true)? || self.uuid.is_some_and(|uuid| text.is(uuid)));
                }
                Json::Number(number) => {
                    let number = number.strip_suffix(".0").unwrap_or(number);
                    self.bytes.get(count).is_some_and(|byte| number == byte.to_string())
                }
                // A list of decimals, as text or as bytes.
                Json::String(text) => self.bytes.get(count).is_some_and(|byte| {
                    text.is(&byte.to_string()) || text.is(&to_base64(&[*byte]))
                }),
                _ => false,
            };
            if !fits {
                return Ok(false);
            }
            count += 1;
        }
        Ok(count == self.bytes.len() && count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::json::object;
    use super::*;

    fn is(placeholder: &Placeholder, json: &str, is_binary: bool) -> bool {
        let record = format!("{{\"v\":{json}}}");
        let fields = object(record.as_bytes()).unwrap().all().unwrap();
        placeholder.is(fields[0].1, is_binary).unwrap()
    }

    #[test]
    fn every_form_is_known() {
        let usual = Placeholder::new(DEFAULT_PLACEHOLDER);
        let bytes: Vec<String> = DEFAULT_PLACEHOLDER.bytes().map(|byte| byte.to_string()).collect();
        for (json, is_binary) in [
            ("\"__debezium_unavailable_value\"".to_owned(), false),
            ("\"\\u005f_debezium_unavailable_value\"".to_owned(), false),
            ("\"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==\"".to_owned(), true),
            ("[\"__debezium_unavailable_value\"]".to_owned(), false),
            ("[\"b68a35a7-17ad-35b3-af2a-ae46edb4545a\"]".to_owned(), false),
            (format!("[{}]", bytes.join(",")), false),
            (format!("[{}]", bytes.join(".0, ")).replace("101]", "101.0]"), false),
            (
                "{\"__debezium_unavailable_value\":\"__debezium_unavailable_value\"}".to_owned(),
                false,
            ),
            (
                r#""{\"__debezium_unavailable_value\":\"__debezium_unavailable_value\"}""#.into(),
                false,
            ),
            (r#"{"scale":0,"value":"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="}"#.into(), false),
            (r#"{"wkb":"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==","srid":null}"#.into(), false),
            ("\"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ\"".to_owned(), true),
            (format!("[\"{}\"]", bytes.join("\",\"")), false),
        ] {
            assert!(is(&usual, &json, is_binary), "{json}");
        }
        for json in [
            r#""{\"a\":\"__debezium_unavailable_value\"}""#,
            r#""{__debezium_unavailable_value""#,
            r#"{"scale":0,"value":"AQ=="}"#,
            "\"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==\"",
            "[]",
            "[95,95]",
            "[\"__debezium_unavailable_value\",\"x\"]",
            "{}",
            "{\"a\":1}",
            "null",
            "1",
        ] {
            assert!(!is(&usual, json, false), "{json}");
        }
        let own = Placeholder::new("hex:ff00");
        assert!(is(&own, "\"/wA=\"", true) && is(&own, "[255,0]", false));
        assert!(is(&own, "\"hex:ff00\"", false) && !is(&own, "\"x\"", true));
        assert!(is(&Placeholder::new("gone"), "\"gone\"", false));
        assert!(!is(&Placeholder::new("gone"), "\"Z29uZQ==\"", false));
    }
}
