//! Finds the JSON objects of a body, and the columns that their keys name.

use std::collections::HashMap;

use axum::http::StatusCode;
use pgspate_input::json::{JsonSyntaxError, key_end, skip_space, unescape, value_end};

use super::FoundRecords;
use crate::fault::RequestFault;
use crate::options::BODY_BYTES_MAX;

/// The most different sets of keys in a body. The server is asked about each.
const KINDS_MAX: usize = 100;

/// A JSON object of the body.
#[derive(Debug, Clone, Copy)]
pub(super) struct JsonItem {
    pub(super) start: u32,
    pub(super) end: u32,
    /// The number of the object's keys among the body's sets of keys.
    pub(super) kind: u32,
}

/// An object, or why a record is none.
pub(super) type JsonResult = Result<JsonItem, Box<RequestFault>>;

/// The objects of a body.
#[derive(Debug, Default)]
pub(super) struct JsonRecords {
    pub(super) items: Vec<JsonResult>,
    /// The different sets of keys, each in the order of its first object.
    pub(super) kinds: Vec<Vec<String>>,
    by_keys: HashMap<Vec<String>, u32>,
    /// The keys of the last object, as the body has them, and their number.
    last: Option<(Vec<Vec<u8>>, u32)>,
}

impl JsonRecords {
    /// Finds the objects of a body: one object, an array of objects, or with `lines` an object in
    /// each line. With `each`, an invalid line is kept as such.
    ///
    /// # Errors
    /// If the body is not valid, or has too many records.
    pub(super) fn find(body: &[u8], lines: bool, each: bool) -> Result<JsonRecords, RequestFault> {
        if std::str::from_utf8(body).is_err() {
            return Err(invalid("the body is not valid UTF-8"));
        }
        if body.len() > BODY_BYTES_MAX {
            let status = StatusCode::PAYLOAD_TOO_LARGE;
            return Err(RequestFault::new(status, "body_too_large", "the body is too large"));
        }
        let mut found = JsonRecords::default();
        let start = if body.starts_with(b"\xEF\xBB\xBF") { 3 } else { 0 };
        match lines {
            true => found.find_lines(body, start, each)?,
            false => found.find_values(body, start, each)?,
        }
        Ok(found)
    }

    fn find_lines(&mut self, body: &[u8], start: usize, each: bool) -> Result<(), RequestFault> {
        let mut at = start;
        for (nth, line) in body[start..].split(|byte| *byte == b'\n').enumerate() {
            let first = skip_space(line, 0);
            if first < line.len() {
                let item = self.scan_object(line, first).and_then(|item| {
                    match skip_space(line, item.end as usize) {
                        end if end == line.len() => Ok(item),
                        at => Err(syntax(at, "expected one object in the line")),
                    }
                });
                let place = |fault: RequestFault| {
                    let details = fault.details.clone().unwrap_or_default();
                    fault.details(format!("line {}, {details}", nth + 1))
                };
                let offset = at as u32;
                let shift = |it: JsonItem| JsonItem {
                    start: it.start + offset,
                    end: it.end + offset,
                    kind: it.kind,
                };
                let item = match item.map(shift).map_err(place) {
                    // A fault is larger than a line, and the first one refuses all lines.
                    Err(fault) if !each => return Err(fault),
                    item => item.map_err(Box::new),
                };
                self.push(item, each)?;
            }
            at += line.len() + 1;
        }
        Ok(())
    }

    fn find_values(&mut self, body: &[u8], start: usize, each: bool) -> Result<(), RequestFault> {
        let mut at = skip_space(body, start);
        if body.get(at) != Some(&b'[') {
            let item = self.scan_object(body, at)?;
            at = skip_space(body, item.end as usize);
            self.push(Ok(item), each)?;
        } else {
            at = skip_space(body, at + 1);
            if body.get(at) == Some(&b']') {
                at += 1;
            } else {
                loop {
                    let item = self.scan_object(body, at)?;
                    at = skip_space(body, item.end as usize);
                    self.push(Ok(item), each)?;
                    match body.get(at) {
                        Some(b',') => at = skip_space(body, at + 1),
                        Some(b']') => break,
                        _ => return Err(syntax(at, "expected a comma or the end of the array")),
                    }
                }
                at += 1;
            }
            at = skip_space(body, at);
        }
        match at == body.len() {
            true => Ok(()),
            false => Err(syntax(at, "expected the end of the body")),
        }
    }

    fn push(&mut self, item: JsonResult, each: bool) -> Result<(), RequestFault> {
        FoundRecords::check_count(self.items.len() + 1, each)?;
        self.items.push(item);
        Ok(())
    }

    /// Reads the object at `start`, and finds the number of its keys.
    fn scan_object(&mut self, text: &[u8], start: usize) -> Result<JsonItem, RequestFault> {
        if text.get(start) != Some(&b'{') {
            return Err(syntax(start, "expected an object"));
        }
        let (keys, end) = object_keys(text, start).map_err(|it| syntax(it.at, it.what))?;
        let kind = self.kind_of(&keys)?;
        Ok(JsonItem { start: start as u32, end: end as u32, kind })
    }

    fn kind_of(&mut self, keys: &[&[u8]]) -> Result<u32, RequestFault> {
        if let Some((last, kind)) = &self.last
            && last.iter().map(Vec::as_slice).eq(keys.iter().copied())
        {
            return Ok(*kind);
        }
        let mut names: Vec<String> = Vec::with_capacity(keys.len());
        for key in keys {
            let mut name = Vec::new();
            let name = match unescape(key, &mut name) {
                Ok(()) => String::from_utf8_lossy(&name).into_owned(),
                Err(_) => return Err(invalid("a key has an escape that PostgreSQL cannot store")),
            };
            // Of equal keys the last value counts, as in jsonb.
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let mut sorted = names.clone();
        sorted.sort_unstable();
        let next = self.kinds.len() as u32;
        let kind = *self.by_keys.entry(sorted).or_insert(next);
        if kind == next {
            if self.kinds.len() >= KINDS_MAX {
                let message = format!("the records have more than {KINDS_MAX} sets of keys");
                let fault = RequestFault::bad("too_many_shapes", message);
                return Err(fault.hint("Send records with equal keys together."));
            }
            self.kinds.push(names);
        }
        self.last = Some((keys.iter().map(|key| key.to_vec()).collect(), kind));
        Ok(kind)
    }
}

/// Returns the keys of the object at `start` as the text has them, and the object's end.
fn object_keys(text: &[u8], start: usize) -> Result<(Vec<&[u8]>, usize), JsonSyntaxError> {
    let (mut keys, mut stack) = (Vec::new(), Vec::new());
    let mut at = skip_space(text, start + 1);
    if text.get(at) == Some(&b'}') {
        return Ok((keys, at + 1));
    }
    loop {
        let (end, value_start, _) = key_end(text, at)?;
        keys.push(&text[at + 1..end - 1]);
        at = skip_space(text, value_end(text, value_start, &mut stack)?.1);
        match text.get(at) {
            Some(b',') => at = skip_space(text, at + 1),
            Some(b'}') => return Ok((keys, at + 1)),
            Some(_) => {
                let what = "expected a comma or the end of the object";
                return Err(JsonSyntaxError { at, what });
            }
            None => return Err(JsonSyntaxError { at, what: "the body ends inside an object" }),
        }
    }
}

fn invalid(message: &str) -> RequestFault {
    RequestFault::new(StatusCode::BAD_REQUEST, "invalid_body", message)
}

fn syntax(at: usize, what: &str) -> RequestFault {
    invalid(what).details(format!("byte {at}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde::de::IgnoredAny;

    use super::*;

    /// Parts of bodies, valid and not.
    const TOKENS: [&str; 16] = [
        "[",
        "]",
        "{",
        "}",
        ":",
        ",",
        "\"a\"",
        "\"b\\n\"",
        "1",
        "-0.5e3",
        "01",
        "true",
        "nul",
        " ",
        "\n",
        "{\"a\":1}",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn objects_are_found_exactly_where_another_parser_finds_them(
            tokens in prop::collection::vec(prop::sample::select(&TOKENS[..]), 0..12)
        ) {
            let body = tokens.concat();
            let (one, many) = (
                serde_json::from_str::<BTreeMap<String, IgnoredAny>>(&body).map(|it| vec![it]),
                serde_json::from_str::<Vec<BTreeMap<String, IgnoredAny>>>(&body),
            );
            let expected = one.or(many).ok().map(|objects| {
                let keys = |it: BTreeMap<String, IgnoredAny>| it.into_keys().collect::<Vec<_>>();
                objects.into_iter().map(keys).collect::<Vec<_>>()
            });
            let found = JsonRecords::find(body.as_bytes(), false, false).ok().map(|found| {
                let keys = |item: &JsonResult| {
                    let mut keys = found.kinds[item.as_ref().unwrap().kind as usize].clone();
                    keys.sort_unstable();
                    keys
                };
                found.items.iter().map(keys).collect::<Vec<_>>()
            });
            prop_assert_eq!(found, expected, "{}", body);
        }
    }

    fn kinds(body: &str, lines: bool) -> Result<(usize, Vec<Vec<String>>), String> {
        match JsonRecords::find(body.as_bytes(), lines, false) {
            Ok(found) => Ok((found.items.len(), found.kinds)),
            Err(fault) => Err(fault.message),
        }
    }

    #[test]
    fn objects_with_equal_keys_are_of_one_kind() {
        let body = r#"[{"a":1,"b":{"x":[1]}}, {"b":2 , "a":3},{"a":1},{"\u0061":null}, {}]"#;
        let (count, found) = kinds(body, false).unwrap();
        assert_eq!(count, 5);
        assert_eq!(found, [vec!["a", "b"], vec!["a"], vec![]]);
        assert_eq!(kinds("[]", false).unwrap(), (0, vec![]));
        assert_eq!(kinds(" {\"a\":1} ", false).unwrap().0, 1);
    }

    #[test]
    fn invalid_lines_are_kept_and_invalid_arrays_are_refused() {
        let body = "{\"a\":1}\n\n{\"a\":\n{\"a\":2} x\n[1]\n{\"a\":3}";
        let found = JsonRecords::find(body.as_bytes(), true, true).unwrap();
        let valid: Vec<bool> = found.items.iter().map(Result::is_ok).collect();
        assert_eq!(valid, [true, false, false, false, true]);
        let details = found.items[1].as_ref().unwrap_err().details.clone().unwrap();
        assert!(details.starts_with("line 3, byte "), "{details}");
        let refused = JsonRecords::find(body.as_bytes(), true, false).map(drop).unwrap_err();
        assert_eq!(refused.details.unwrap(), details);
        for body in ["", "[", "[{}", "[{},]", "[{}] x", "{\"a\" 1}", "[1]", "1", "\"a\""] {
            assert!(kinds(body, false).is_err(), "{body}");
        }
    }
}
