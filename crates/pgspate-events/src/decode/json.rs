//! A record's JSON, taken apart where it is looked at and stepped over elsewhere.
//!
//! Values are slices of the record: a number stays the characters that it is, a string is unescaped
//! when its text is asked for. The grammar is checked on the way, all of it by an object's end.

use std::borrow::Cow;

use crate::{Error, ErrorKind, Result};
use pgspate_input::json::{Scalar, key_end, skip_space, unescape, value};

/// A value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Json<'a> {
    Null,
    Bool(bool),
    /// As it is spelled.
    Number(&'a str),
    String(Str<'a>),
    /// Whole, with its braces.
    Object(&'a str),
    /// Whole, with its brackets.
    Array(&'a str),
}

/// A string's inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Str<'a> {
    inside: &'a str,
    escaped: bool,
}

impl<'a> Str<'a> {
    /// A text that is not from JSON.
    pub(super) fn of(text: &'a str) -> Str<'a> {
        Str { inside: text, escaped: false }
    }

    /// The string's text.
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

    /// The string's text where zero characters may be in it, as they are in bytes.
    pub(super) fn text_with_zeros(self) -> Result<Cow<'a, str>> {
        let inside = self.inside;
        if !self.escaped || !inside.contains("\\u0000") {
            return self.text();
        }
        let (mut out, mut from, mut at) = (String::with_capacity(inside.len()), 0, 0);
        while let Some(found) = inside[at..].find('\\') {
            at += found;
            if inside[at..].starts_with("\\u0000") {
                out.push_str(&Str { inside: &inside[from..at], escaped: true }.text()?);
                out.push('\0');
                from = at + 6;
                at = from;
            } else {
                // The escaped character may be a backslash itself.
                at += 2;
            }
        }
        out.push_str(&Str { inside: &inside[from..], escaped: true }.text()?);
        Ok(Cow::Owned(out))
    }

    /// As it is written, without its quotes.
    pub(super) fn raw(&self) -> &'a str {
        self.inside
    }

    /// Whether the text may be a JSON object.
    pub(super) fn looks_like_object(self) -> bool {
        self.inside.trim_start().starts_with('{')
    }

    /// The string as JSON, in its quotes.
    pub(super) fn quoted(self) -> String {
        format!("\"{}\"", self.inside)
    }

    /// Whether the text is `other`.
    pub(super) fn is(self, other: &str) -> bool {
        match self.escaped {
            false => self.inside == other,
            true => self.text().is_ok_and(|text| text == other),
        }
    }
}

impl<'a> Json<'a> {
    /// The text of a string, `None` for everything else.
    pub(super) fn string(self) -> Result<Option<Cow<'a, str>>> {
        match self {
            Json::String(string) => string.text().map(Some),
            _ => Ok(None),
        }
    }

    /// The text of a string, or a number as it is spelled.
    pub(super) fn word(self) -> Result<Option<Cow<'a, str>>> {
        match self {
            Json::Number(number) => Ok(Some(Cow::Borrowed(number))),
            _ => self.string(),
        }
    }

    /// The fields of an object, `None` for everything else.
    pub(super) fn object(self) -> Option<Fields<'a>> {
        match self {
            Json::Object(text) => Some(Fields::of(text)),
            _ => None,
        }
    }

    /// The items of an array, `None` for everything else.
    pub(super) fn array(self) -> Option<Items<'a>> {
        match self {
            Json::Array(text) => Some(Items(Walk::of(text))),
            _ => None,
        }
    }
}

/// Fields of a row, at most. Tables have 1,600 columns, and those of no source have more than this.
const FIELDS_MAX: usize = 65_535;

/// Checks that a row with so many fields may have another one.
pub(super) fn check_fields(count: usize) -> Result<()> {
    match count {
        FIELDS_MAX.. => Err(malformed(format!("a row has more than {FIELDS_MAX} fields"))),
        _ => Ok(()),
    }
}

/// Reads a record that is one object.
pub(super) fn object(record: &[u8]) -> Result<Fields<'_>> {
    let record = record.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(record);
    let Ok(text) = simdutf8::basic::from_utf8(record) else {
        return Err(malformed("invalid byte sequence for encoding \"UTF8\""));
    };
    let start = skip_space(record, 0);
    match record.get(start) {
        Some(b'{') => Ok(Fields::of(&text[start..])),
        _ => Err(malformed("expected a JSON object")),
    }
}

/// Whether a record has no value: white space or `null`.
pub fn is_nothing(record: &[u8]) -> bool {
    matches!(record.trim_ascii(), b"" | b"null")
}

/// The fields of an object in order.
pub(super) struct Fields<'a> {
    walk: Walk<'a>,
    /// An object that is stepped over by comparing it instead of reading it.
    known: Option<&'a str>,
}

impl<'a> Fields<'a> {
    fn of(text: &'a str) -> Fields<'a> {
        Fields { walk: Walk::of(text), known: None }
    }

    /// Tells of an object, well-formed as a whole, that is likely to be one of the values.
    pub(super) fn knowing(mut self, known: Option<&'a str>) -> Fields<'a> {
        self.known = known;
        self
    }

    /// The next field, or `None` after the last one, when nothing may follow.
    pub(super) fn next(&mut self) -> Result<Option<(Str<'a>, Json<'a>)>> {
        match self.next_key()? {
            Some(key) => Ok(Some((key, self.value()?))),
            None => Ok(None),
        }
    }

    /// The next field's key. Its value must be asked for next, or opened.
    pub(super) fn next_key(&mut self) -> Result<Option<Str<'a>>> {
        let walk = &mut self.walk;
        if !walk.advance(b'}')? {
            return Ok(None);
        }
        let start = walk.at;
        let (end, after, escaped) = key_end(walk.text.as_bytes(), start).map_err(syntax)?;
        walk.at = after;
        Ok(Some(Str { inside: &walk.text[start + 1..end - 1], escaped }))
    }

    /// The value of the key that was given last.
    pub(super) fn value(&mut self) -> Result<Json<'a>> {
        let walk = &mut self.walk;
        if let Some(known) = self.known
            && walk.text.as_bytes()[walk.at..].starts_with(known.as_bytes())
        {
            let start = walk.at;
            walk.at += known.len();
            return Ok(Json::Object(&walk.text[start..walk.at]));
        }
        walk.value()
    }

    /// Goes into the value without having stepped over it, if it is an object. Its fields must all
    /// be read, and then closed here.
    pub(super) fn open_object(&mut self) -> Option<Fields<'a>> {
        Some(Fields { walk: self.walk.open(b'{')?, known: self.known })
    }

    /// The same for an array.
    pub(super) fn open_array(&mut self) -> Option<Items<'a>> {
        self.walk.open(b'[').map(Items)
    }

    /// Goes on behind an object that was opened here.
    pub(super) fn close_object(&mut self, inner: Fields<'a>) {
        self.walk.at = inner.walk.at;
    }

    /// Goes on behind an array that was opened here.
    pub(super) fn close_array(&mut self, inner: Items<'a>) {
        self.walk.at = inner.0.at;
    }

    /// All fields.
    pub(super) fn all(mut self) -> Result<Vec<(Str<'a>, Json<'a>)>> {
        self.rest()
    }

    /// All fields that have not been read.
    ///
    /// # Errors
    /// When there are more than a row can have; a field takes some ten times its bytes.
    pub(super) fn rest(&mut self) -> Result<Vec<(Str<'a>, Json<'a>)>> {
        let mut fields = Vec::with_capacity(16);
        while let Some(field) = self.next()? {
            check_fields(fields.len())?;
            fields.push(field);
        }
        Ok(fields)
    }
}

/// The items of an array in order.
pub(super) struct Items<'a>(Walk<'a>);

impl<'a> Items<'a> {
    /// The next item, or `None` after the last one.
    pub(super) fn next(&mut self) -> Result<Option<Json<'a>>> {
        if self.0.advance(b']')? { self.0.value().map(Some) } else { Ok(None) }
    }

    /// Goes into the next item if it is an object, or `None` after the last one. It must be read
    /// to its end and closed here.
    pub(super) fn next_object(&mut self, what: &str) -> Result<Option<Fields<'a>>> {
        if !self.0.advance(b']')? {
            return Ok(None);
        }
        match self.0.open(b'{') {
            Some(walk) => Ok(Some(Fields { walk, known: None })),
            None => Err(malformed(format!("expected {what} to be an object"))),
        }
    }

    /// Goes on behind an item that was opened here.
    pub(super) fn close_object(&mut self, inner: Fields<'a>) {
        self.0.at = inner.walk.at;
    }

    /// Whether another item is likely to follow.
    pub(super) fn has_more(&self) -> bool {
        let data = self.0.text.as_bytes();
        data.get(skip_space(data, self.0.at)) == Some(&b',')
    }
}

/// A position between the brackets of an object or array.
struct Walk<'a> {
    text: &'a str,
    at: usize,
    first: bool,
    /// Something may follow what is walked over.
    is_inner: bool,
    stack: Vec<u8>,
}

impl<'a> Walk<'a> {
    /// `text` begins with the opening bracket.
    fn of(text: &'a str) -> Walk<'a> {
        Walk { text, at: 1, first: true, is_inner: false, stack: Vec::new() }
    }

    /// A walk within the value here, if it begins with this bracket.
    fn open(&self, bracket: u8) -> Option<Walk<'a>> {
        let is_it = self.text.as_bytes().get(self.at) == Some(&bracket);
        is_it.then(|| Walk { at: self.at + 1, is_inner: true, ..Walk::of(self.text) })
    }

    /// Goes to where the next entry begins; false at the closing bracket.
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
        let (kind, end) = value(text.as_bytes(), start, &mut self.stack).map_err(syntax)?;
        self.at = end;
        let whole = &text[start..end];
        Ok(match kind {
            Scalar::Null => Json::Null,
            Scalar::Bool => Json::Bool(whole == "true"),
            Scalar::Number => Json::Number(whole),
            Scalar::String(escaped) => {
                Json::String(Str { inside: &text[start + 1..end - 1], escaped })
            }
            Scalar::Object => Json::Object(whole),
            Scalar::Array => Json::Array(whole),
        })
    }
}

fn syntax(found: pgspate_input::json::Syntax) -> Error {
    malformed(format!("{} at byte {}", found.what, found.at))
}

/// A record that is not as its format has it.
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
    fn what_is_no_object_is_refused() {
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
    fn a_known_object_is_stepped_over() {
        let text = b"{\"schema\":{\"x\":[1]},\"payload\":2}";
        let fields = object(text).unwrap().knowing(Some("{\"x\":[1]}")).all().unwrap();
        assert_eq!(fields[0].1, Json::Object("{\"x\":[1]}"));
        assert_eq!(fields[1].1, Json::Number("2"));
    }
}
