//! A lazy JSON reader: only the values that a decoder asks for are parsed.
//!
//! Values are slices of the record. A number keeps its characters, and a string is unescaped when
//! its text is asked for. The grammar of an object has been checked when its end is reached.

use std::borrow::Cow;

use crate::{Error, ErrorKind, Result};
use pgspate_input::json::{JsonKind, key_end, skip_space, unescape, value_end};

/// A JSON value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Json<'a> {
    Null,
    Bool(bool),
    /// The number as it is spelled.
    Number(&'a str),
    String(JsonStr<'a>),
    /// The text of the object, with its braces.
    Object(&'a str),
    /// The text of the array, with its brackets.
    Array(&'a str),
}

/// The inside of a JSON string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JsonStr<'a> {
    inside: &'a str,
    escaped: bool,
}

impl<'a> JsonStr<'a> {
    /// Wraps a text that has no escapes.
    pub(super) fn of(text: &'a str) -> JsonStr<'a> {
        JsonStr { inside: text, escaped: false }
    }

    /// Returns the string's text, without escapes.
    ///
    /// # Errors
    /// For a zero character or half of a surrogate pair.
    pub(super) fn text(self) -> Result<Cow<'a, str>> {
        if !self.escaped {
            return Ok(Cow::Borrowed(self.inside));
        }
        let mut out = Vec::with_capacity(self.inside.len());
        if unescape(self.inside.as_bytes(), &mut out).is_err() {
            return Err(malformed("a string holds a zero character or half of a surrogate pair"));
        }
        match String::from_utf8(out) {
            Ok(text) => Ok(Cow::Owned(text)),
            Err(_) => Err(malformed("a string is not UTF-8")),
        }
    }

    /// Returns the string's text, which may have zero characters because it stands for bytes.
    pub(super) fn text_with_zeros(self) -> Result<Cow<'a, str>> {
        let inside = self.inside;
        if !self.escaped || !inside.contains("\\u0000") {
            return self.text();
        }
        let (mut out, mut from, mut at) = (String::with_capacity(inside.len()), 0, 0);
        while let Some(found) = inside[at..].find('\\') {
            at += found;
            if inside[at..].starts_with("\\u0000") {
                out.push_str(&JsonStr { inside: &inside[from..at], escaped: true }.text()?);
                out.push('\0');
                from = at + 6;
                at = from;
            } else {
                // The escaped character may be a backslash itself.
                at += 2;
            }
        }
        out.push_str(&JsonStr { inside: &inside[from..], escaped: true }.text()?);
        Ok(Cow::Owned(out))
    }

    /// Returns the string as it is spelled, without its quotes.
    pub(super) fn raw(&self) -> &'a str {
        self.inside
    }

    /// Returns whether the text may be a JSON object.
    pub(super) fn looks_like_object(self) -> bool {
        self.inside.trim_start().starts_with('{')
    }

    /// Returns the string as JSON, with its quotes.
    pub(super) fn quoted(self) -> String {
        format!("\"{}\"", self.inside)
    }

    /// Returns whether the text is `other`.
    pub(super) fn is(self, other: &str) -> bool {
        match self.escaped {
            false => self.inside == other,
            true => self.text().is_ok_and(|text| text == other),
        }
    }
}

impl<'a> Json<'a> {
    /// Returns the text of a string, `None` for other values.
    pub(super) fn string(self) -> Result<Option<Cow<'a, str>>> {
        match self {
            Json::String(string) => string.text().map(Some),
            _ => Ok(None),
        }
    }

    /// Returns the text of a string, or a number as it is spelled; `None` for other values.
    pub(super) fn word(self) -> Result<Option<Cow<'a, str>>> {
        match self {
            Json::Number(number) => Ok(Some(Cow::Borrowed(number))),
            _ => self.string(),
        }
    }

    /// Returns the fields of an object, `None` for other values.
    pub(super) fn object(self) -> Option<JsonFields<'a>> {
        match self {
            Json::Object(text) => Some(JsonFields::of(text)),
            _ => None,
        }
    }

    /// Returns the items of an array, `None` for other values.
    pub(super) fn array(self) -> Option<JsonItems<'a>> {
        match self {
            Json::Array(text) => Some(JsonItems(JsonCursor::of(text))),
            _ => None,
        }
    }
}

/// The most fields of a row. PostgreSQL's tables have up to 1,600 columns, and no source has tables
/// with more columns than this.
const FIELDS_MAX: usize = 65_535;

/// Checks that a row with `count` fields may have one more.
pub(super) fn check_fields(count: usize) -> Result<()> {
    match count {
        FIELDS_MAX.. => Err(malformed(format!("a row has more than {FIELDS_MAX} fields"))),
        _ => Ok(()),
    }
}

/// Opens a record that is one JSON object.
pub(super) fn object(record: &[u8]) -> Result<JsonFields<'_>> {
    let record = record.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(record);
    let Ok(text) = simdutf8::basic::from_utf8(record) else {
        return Err(malformed("invalid byte sequence for encoding \"UTF8\""));
    };
    let start = skip_space(record, 0);
    match record.get(start) {
        Some(b'{') => Ok(JsonFields::of(&text[start..])),
        _ => Err(malformed("expected a JSON object")),
    }
}

/// Returns whether a record has no value: it is white space or `null`.
pub fn has_no_value(record: &[u8]) -> bool {
    matches!(record.trim_ascii(), b"" | b"null")
}

/// The fields of an object, in order.
pub(super) struct JsonFields<'a> {
    cursor: JsonCursor<'a>,
    /// The text of an object that the record is likely to contain. An equal object in the record
    /// is compared with this text and not parsed.
    known: Option<&'a str>,
}

impl<'a> JsonFields<'a> {
    fn of(text: &'a str) -> JsonFields<'a> {
        JsonFields { cursor: JsonCursor::of(text), known: None }
    }

    /// Sets the text of a well-formed object that is likely to be one of the values.
    pub(super) fn with_known_object(mut self, known: Option<&'a str>) -> JsonFields<'a> {
        self.known = known;
        self
    }

    /// Returns the next field, or `None` at the end of the object.
    ///
    /// # Errors
    /// For invalid JSON, and for anything after the end of the object.
    pub(super) fn next(&mut self) -> Result<Option<(JsonStr<'a>, Json<'a>)>> {
        match self.next_key()? {
            Some(key) => Ok(Some((key, self.value()?))),
            None => Ok(None),
        }
    }

    /// Returns the next field's key. The caller must read or open the value next.
    pub(super) fn next_key(&mut self) -> Result<Option<JsonStr<'a>>> {
        let cursor = &mut self.cursor;
        if !cursor.advance(b'}')? {
            return Ok(None);
        }
        let start = cursor.at;
        let (end, after, escaped) = key_end(cursor.text.as_bytes(), start).map_err(syntax_error)?;
        cursor.at = after;
        Ok(Some(JsonStr { inside: &cursor.text[start + 1..end - 1], escaped }))
    }

    /// Returns the value of the last key.
    pub(super) fn value(&mut self) -> Result<Json<'a>> {
        let cursor = &mut self.cursor;
        if let Some(known) = self.known
            && cursor.text.as_bytes()[cursor.at..].starts_with(known.as_bytes())
        {
            let start = cursor.at;
            cursor.at += known.len();
            return Ok(Json::Object(&cursor.text[start..cursor.at]));
        }
        cursor.value()
    }

    /// Opens the next value if it is an object. The caller must read all its fields and then call
    /// [`JsonFields::close_object`].
    pub(super) fn open_object(&mut self) -> Option<JsonFields<'a>> {
        Some(JsonFields { cursor: self.cursor.open(b'{')?, known: self.known })
    }

    /// Opens the next value if it is an array. The caller must read all its items and then call
    /// [`JsonFields::close_array`].
    pub(super) fn open_array(&mut self) -> Option<JsonItems<'a>> {
        self.cursor.open(b'[').map(JsonItems)
    }

    /// Continues after an object that was opened here.
    pub(super) fn close_object(&mut self, inner: JsonFields<'a>) {
        self.cursor.at = inner.cursor.at;
    }

    /// Continues after an array that was opened here.
    pub(super) fn close_array(&mut self, inner: JsonItems<'a>) {
        self.cursor.at = inner.0.at;
    }

    /// Reads all fields.
    pub(super) fn all(mut self) -> Result<Vec<(JsonStr<'a>, Json<'a>)>> {
        self.rest()
    }

    /// Reads all remaining fields.
    ///
    /// # Errors
    /// For more fields than a row can have. A field takes about ten times its bytes of memory.
    pub(super) fn rest(&mut self) -> Result<Vec<(JsonStr<'a>, Json<'a>)>> {
        let mut fields = Vec::with_capacity(16);
        while let Some(field) = self.next()? {
            check_fields(fields.len())?;
            fields.push(field);
        }
        Ok(fields)
    }
}

/// The items of an array, in order.
pub(super) struct JsonItems<'a>(JsonCursor<'a>);

impl<'a> JsonItems<'a> {
    /// Returns the next item, or `None` at the end of the array.
    pub(super) fn next(&mut self) -> Result<Option<Json<'a>>> {
        if self.0.advance(b']')? { self.0.value().map(Some) } else { Ok(None) }
    }

    /// Opens the next item, which must be an object; `None` at the end of the array. The caller
    /// must read all its fields and then call [`JsonItems::close_object`]. `what` names the item in
    /// the error.
    pub(super) fn next_object(&mut self, what: &str) -> Result<Option<JsonFields<'a>>> {
        if !self.0.advance(b']')? {
            return Ok(None);
        }
        match self.0.open(b'{') {
            Some(cursor) => Ok(Some(JsonFields { cursor, known: None })),
            None => Err(malformed(format!("expected {what} to be an object"))),
        }
    }

    /// Continues after an item that was opened here.
    pub(super) fn close_object(&mut self, inner: JsonFields<'a>) {
        self.0.at = inner.cursor.at;
    }

    /// Returns whether a comma, and so another item, follows.
    pub(super) fn has_more(&self) -> bool {
        let data = self.0.text.as_bytes();
        data.get(skip_space(data, self.0.at)) == Some(&b',')
    }
}

/// A reading position within an object or array.
struct JsonCursor<'a> {
    text: &'a str,
    at: usize,
    first: bool,
    /// Whether the object or array is part of a larger value, which may continue after it.
    is_inner: bool,
    stack: Vec<u8>,
}

impl<'a> JsonCursor<'a> {
    /// Returns a cursor after the opening bracket with which `text` begins.
    fn of(text: &'a str) -> JsonCursor<'a> {
        JsonCursor { text, at: 1, first: true, is_inner: false, stack: Vec::new() }
    }

    /// Returns a cursor within the value here, if the value begins with this bracket.
    fn open(&self, bracket: u8) -> Option<JsonCursor<'a>> {
        let is_it = self.text.as_bytes().get(self.at) == Some(&bracket);
        is_it.then(|| JsonCursor { at: self.at + 1, is_inner: true, ..JsonCursor::of(self.text) })
    }

    /// Moves to the next entry. Returns false at the closing bracket.
    fn advance(&mut self, close: u8) -> Result<bool> {
        let data = self.text.as_bytes();
        self.at = skip_space(data, self.at);
        let first = std::mem::take(&mut self.first);
        match data.get(self.at) {
            Some(&byte) if byte == close && self.is_inner => {
                self.at += 1;
                Ok(false)
            }
            Some(&byte) if byte == close => {
                if skip_space(data, self.at + 1) != data.len() {
                    return Err(malformed("expected nothing after the end of the object"));
                }
                Ok(false)
            }
            Some(_) if first => Ok(true),
            Some(b',') => {
                self.at = skip_space(data, self.at + 1);
                Ok(true)
            }
            Some(_) => Err(malformed("expected a comma or a closing bracket")),
            None => Err(malformed("the record ends inside an object")),
        }
    }

    fn value(&mut self) -> Result<Json<'a>> {
        let (text, start) = (self.text, self.at);
        let (kind, end) =
            value_end(text.as_bytes(), start, &mut self.stack).map_err(syntax_error)?;
        self.at = end;
        let whole = &text[start..end];
        Ok(match kind {
            JsonKind::Null => Json::Null,
            JsonKind::Bool => Json::Bool(whole == "true"),
            JsonKind::Number => Json::Number(whole),
            JsonKind::String(escaped) => {
                Json::String(JsonStr { inside: &text[start + 1..end - 1], escaped })
            }
            JsonKind::Object => Json::Object(whole),
            JsonKind::Array => Json::Array(whole),
        })
    }
}

fn syntax_error(found: pgspate_input::json::JsonSyntaxError) -> Error {
    malformed(format!("{} at byte {}", found.what, found.at))
}

/// Returns the error for a record that does not follow its format.
pub(super) fn malformed(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Format, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<String>> {
        let fields = object(text.as_bytes())?.all()?;
        Ok(fields.iter().map(|(key, value)| format!("{} {value:?}", key.inside)).collect())
    }

    #[test]
    fn fields_are_slices() {
        let fields = object(b" {\"a\" : 1.50e400, \"b\\u0063\":\"x\\ny\" ,\"d\":[1,{}],\"e\":{}} ");
        let fields = fields.unwrap().all().unwrap();
        assert_eq!(fields[0].1, Json::Number("1.50e400"));
        assert!(fields[1].0.is("bc") && !fields[1].0.is("b"));
        assert_eq!(fields[1].1.string().unwrap().unwrap(), "x\ny");
        let mut items = fields[2].1.array().unwrap();
        assert_eq!(items.next().unwrap(), Some(Json::Number("1")));
        assert_eq!(items.next().unwrap(), Some(Json::Object("{}")));
        assert_eq!(items.next().unwrap(), None);
        assert!(fields[3].1.object().unwrap().next().unwrap().is_none());
    }

    #[test]
    fn values_that_are_not_objects_are_refused() {
        for text in [
            "",
            "1",
            "[]",
            "{",
            "{}x",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{,}",
            "{\"a\":1 \"b\":2}",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
        assert!(object(b"{\"a\":\"\xff\"}").is_err());
        let nul = object(b"{\"a\":\"\\u0000x\\\\u0000\\u00ff\\u0000\"}").unwrap().all().unwrap();
        assert!(nul[0].1.string().is_err());
        let Json::String(nul) = nul[0].1 else { panic!() };
        assert_eq!(nul.text_with_zeros().unwrap(), "\0x\\u0000\u{ff}\0");
    }

    #[test]
    fn fields_of_a_row_have_a_limit() {
        let of = |count: usize| format!("{{{}}}", vec!["\"\":1"; count].join(","));
        assert!(read(&of(FIELDS_MAX)).is_ok());
        let error = read(&of(FIELDS_MAX + 1)).unwrap_err().to_string();
        assert_eq!(error, "a row has more than 65535 fields");
    }

    #[test]
    fn a_known_object_is_compared_and_not_parsed() {
        let text = b"{\"schema\":{\"x\":[1]},\"payload\":2}";
        let fields = object(text).unwrap().with_known_object(Some("{\"x\":[1]}")).all().unwrap();
        assert_eq!(fields[0].1, Json::Object("{\"x\":[1]}"));
        assert_eq!(fields[1].1, Json::Number("2"));
    }
}
