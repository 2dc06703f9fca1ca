//! A record of Debezium's taken apart: key, value, their schemas, headers, topic.
//!
//! Consoles and dumps put these together in ways of their own: `{"key": ..., "value": ...}`, kcat's
//! `-J` with both as strings, or the value alone.

use std::borrow::Cow;
use std::sync::Arc;

use super::super::KeyedRecord;
use super::super::json::{Fields, Json, Str, is_nothing, malformed, object};
use super::schema::{Schema, Schemas};
use crate::Result;

/// Fields in order.
pub(super) type Cells<'a> = Vec<(Str<'a>, Json<'a>)>;

/// A record. Without a value it is a tombstone.
#[derive(Default)]
pub(super) struct Message<'a> {
    pub(super) key: Option<Cells<'a>>,
    key_schema: Option<&'a str>,
    pub(super) value: Option<Cells<'a>>,
    schema: Option<&'a str>,
    headers: Option<Json<'a>>,
    /// Those of a message that comes with them.
    own_headers: &'a [(Box<str>, Vec<u8>)],
    pub(super) topic: Option<Cow<'a, str>>,
    /// The record is a value alone.
    pub(super) is_bare: bool,
    /// What the record is if its `key` and `value`, both null, are columns of a row.
    pub(super) empty_pair: Option<Cells<'a>>,
    /// Messages of other keys may come earlier or later than they were written.
    pub(super) is_scattered: bool,
}

/// What holds the texts of a key and a value that are JSON within strings.
pub(super) type Inner = Option<(Option<String>, Option<String>)>;

/// The last of the fields of this name.
pub(super) fn find<'a>(fields: &[(Str<'a>, Json<'a>)], name: &str) -> Option<Json<'a>> {
    fields.iter().rev().find(|(key, _)| key.is(name)).map(|(_, value)| *value)
}

impl<'a> Message<'a> {
    /// Takes a record apart. `known` is the text of a schema that it is likely to have.
    pub(super) fn read(
        record: &'a [u8],
        known: Option<&'a str>,
        inner: &'a mut Inner,
    ) -> Result<Message<'a>> {
        let mut fields = object(record)?.knowing(known);
        let fields = match with_schema(&mut fields)? {
            Ok((schema, value)) => {
                let value = Some(value);
                return Ok(Message { schema, value, is_bare: true, ..Message::default() });
            }
            Err(mut read) => {
                read.append(&mut fields.rest()?);
                read
            }
        };
        let of_null = |name| find(&fields, name) == Some(Json::Null);
        if of_null("key") && of_null("value") {
            // The tombstone of a table without a key.
            return Ok(Message { empty_pair: Some(fields), is_bare: true, ..Message::default() });
        }
        let Some((key, value)) = pair(&fields)? else {
            let mut message = Message { is_bare: true, ..Message::default() };
            (message.schema, message.value) = payload(fields, known)?;
            return Ok(message);
        };
        let topic = match find(&fields, "topic") {
            Some(topic) => topic.string()?,
            None => None,
        };
        let headers = find(&fields, "headers").filter(|headers| *headers != Json::Null);
        let mut message = Message { headers, topic, ..Message::default() };
        // Texts within strings outlive the reading of them.
        let (key_text, value_text) = inner.insert((unfold(key)?, unfold(value)?));
        if let Some(fields) = within(key, key_text.as_deref())? {
            // A key that is no object names no column.
            let key = payload(fields.all()?, None).unwrap_or_default();
            (message.key_schema, message.key) = key;
        }
        if let Some(fields) = within(value, value_text.as_deref())? {
            (message.schema, message.value) = payload(fields.knowing(known).all()?, known)?;
        }
        Ok(message)
    }

    /// Takes a message of a topic apart, whose key is beside it. A key that is no object names no
    /// column, and cannot stand for a row that is gone.
    pub(super) fn of_keyed(
        record: &KeyedRecord<'a>,
        known: Option<&'a str>,
    ) -> Result<Message<'a>> {
        let mut message = Message {
            own_headers: record.headers,
            topic: Some(Cow::Borrowed(record.topic)),
            is_scattered: !record.is_ordered,
            ..Message::default()
        };
        if let Some(value) = record.value {
            let mut fields = object(value)?.knowing(known);
            (message.schema, message.value) = match with_schema(&mut fields)? {
                Ok((schema, value)) => (schema, Some(value)),
                Err(mut read) => {
                    read.append(&mut fields.rest()?);
                    payload(read, known)?
                }
            };
        }
        let Some(key) = record.key.filter(|key| !is_nothing(key)) else { return Ok(message) };
        let key = object(key).and_then(Fields::all).and_then(|fields| payload(fields, None));
        match key {
            Ok(key) => (message.key_schema, message.key) = key,
            Err(_) if message.value.is_some() => {}
            Err(_) => {
                return Err(malformed(
                    "a message without a value has a key that is no JSON object",
                ));
            }
        }
        Ok(message)
    }

    /// The schema of the value.
    pub(super) fn schema_of(&self, schemas: &mut Schemas) -> Result<Option<Arc<Schema>>> {
        self.schema.map(|text| schemas.of(text, true)).transpose()
    }

    /// The schema of the key.
    pub(super) fn key_schema_of(&self, schemas: &mut Schemas) -> Result<Option<Arc<Schema>>> {
        self.key_schema.map(|text| schemas.of(text, false)).transpose()
    }

    /// The text of the object in a header; `None` where the header is not one.
    pub(super) fn header(&self, name: &str) -> Result<Option<String>> {
        if let Some((_, value)) = self.own_headers.iter().find(|(key, _)| **key == *name) {
            let text = std::str::from_utf8(value).unwrap_or_default();
            return Ok(text.trim_start().starts_with('{').then(|| text.to_owned()));
        }
        self.headers.map_or(Ok(None), |headers| header(headers, name))
    }

    /// Whether there are headers, which would tell of a key that has changed.
    pub(super) fn has_headers(&self) -> bool {
        self.headers.is_some() || !self.own_headers.is_empty()
    }

    /// Whether a deleted row comes again under another key, with the next message. Between
    /// partitions that may have come already, and other events of the old key may come yet.
    pub(super) fn leaves_for_another_key(&self) -> Result<bool> {
        Ok(!self.is_scattered && self.header("__debezium.newkey")?.is_some())
    }

    /// A value by itself, with its schema or without.
    pub(super) fn of_value(text: &'a str) -> Result<Message<'a>> {
        let (schema, value) = payload(object(text.as_bytes())?.all()?, None)?;
        Ok(Message { schema, value, ..Message::default() })
    }
}

/// A schema and its payload, which is not stepped over first. Else the fields that were read.
fn with_schema<'a>(
    fields: &mut Fields<'a>,
) -> Result<Result<(Option<&'a str>, Cells<'a>), Cells<'a>>> {
    let mut read = Vec::with_capacity(16);
    let Some(first) = fields.next()? else { return Ok(Err(read)) };
    read.push(first);
    let (key, Json::Object(schema)) = first else { return Ok(Err(read)) };
    if !key.is("schema") {
        return Ok(Err(read));
    }
    let Some(key) = fields.next_key()? else { return Ok(Err(read)) };
    let Some(mut payload) = fields.open_object().filter(|_| key.is("payload")) else {
        read.push((key, fields.value()?));
        return Ok(Err(read));
    };
    let value = payload.rest()?;
    fields.close_object(payload);
    match fields.next_key()? {
        None => Ok(Ok((Some(schema), value))),
        Some(_) => Err(malformed("expected nothing after \"schema\" and \"payload\"")),
    }
}

/// Key and value of a record that is both.
fn pair<'a>(fields: &[(Str<'a>, Json<'a>)]) -> Result<Option<(Json<'a>, Json<'a>)>> {
    let is_part = |json: Json<'_>| match json {
        Json::Object(_) | Json::Null => true,
        Json::String(text) => text.looks_like_object(),
        _ => false,
    };
    let key = find(fields, "key").unwrap_or(Json::Null);
    if let Some(value) = find(fields, "value") {
        return Ok((is_part(value) && is_part(key)).then_some((key, value)));
    }
    // kcat's.
    let of_topic = find(fields, "topic").is_some() && find(fields, "partition").is_some();
    match find(fields, "payload") {
        Some(value) if of_topic && is_part(value) => Ok(Some((key, value))),
        _ => Ok(None),
    }
}

/// The text of JSON within a string.
fn unfold(json: Json<'_>) -> Result<Option<String>> {
    Ok(json.string()?.map(Cow::into_owned))
}

/// The object that a key or value is, or that the string it is holds.
fn within<'a>(json: Json<'a>, text: Option<&'a str>) -> Result<Option<Fields<'a>>> {
    match (json, text) {
        (Json::Object(_), _) => Ok(json.object()),
        (_, Some(text)) if text.trim_start().starts_with('{') => object(text.as_bytes()).map(Some),
        _ => Ok(None),
    }
}

/// Schema and payload of what has both; else what there is is the payload.
fn payload<'a>(
    fields: Cells<'a>,
    known: Option<&'a str>,
) -> Result<(Option<&'a str>, Option<Cells<'a>>)> {
    let (Some(schema), Some(payload), true) =
        (find(&fields, "schema"), find(&fields, "payload"), fields.len() == 2)
    else {
        return Ok((None, Some(fields)));
    };
    let schema = match schema {
        Json::Object(text) => Some(text),
        _ => None,
    };
    match payload {
        Json::Null => Ok((schema, None)),
        // Rows may have a column named so.
        _ => match payload.object() {
            Some(fields) => Ok((schema, Some(fields.knowing(known).all()?))),
            None => Err(malformed("expected \"payload\" to be an object")),
        },
    }
}

/// A header's value: of kcat's list of names and values in turn, a list of objects, or an object.
fn header(headers: Json<'_>, name: &str) -> Result<Option<String>> {
    if let Some(mut fields) = headers.object() {
        while let Some((key, value)) = fields.next()? {
            if key.is(name) {
                return object_text(value);
            }
        }
    }
    let Some(mut items) = headers.array() else { return Ok(None) };
    let mut is_next = false;
    while let Some(item) = items.next()? {
        match item {
            _ if is_next => return object_text(item),
            Json::String(text) => is_next = text.is(name),
            Json::Object(_) => {
                let Some(fields) = item.object() else { continue };
                let fields = fields.all()?;
                if matches!(find(&fields, "key"), Some(Json::String(key)) if key.is(name)) {
                    return find(&fields, "value").map_or(Ok(None), object_text);
                }
            }
            _ => {}
        }
    }
    Ok(None)
}

/// The text of an object, or of the string that holds one.
fn object_text(json: Json<'_>) -> Result<Option<String>> {
    Ok(match json {
        Json::Object(text) => Some(text.to_owned()),
        Json::String(text) if text.looks_like_object() => Some(text.text()?.into_owned()),
        _ => None,
    })
}

/// Where an event is from.
#[derive(Default)]
pub(super) struct Source<'a> {
    pub(super) schema: Option<Cow<'a, str>>,
    pub(super) database: Option<Cow<'a, str>>,
    pub(super) table: Option<Cow<'a, str>>,
    pub(super) transaction: Option<Box<str>>,
    /// The place in the source's log, of which each change of a row has its own.
    pub(super) written: Option<Box<str>>,
}

impl<'a> Source<'a> {
    /// From an envelope's `source` and `transaction`.
    pub(super) fn read(value: &[(Str<'a>, Json<'a>)]) -> Result<Source<'a>> {
        let mut found = Source::default();
        if let Some(mut fields) = find(value, "source").and_then(Json::object) {
            while let Some((key, value)) = fields.next()? {
                match value {
                    Json::String(name) if key.is("table") => found.table = Some(name.text()?),
                    Json::String(name) if key.is("schema") => found.schema = Some(name.text()?),
                    Json::String(name) if key.is("db") => found.database = Some(name.text()?),
                    _ if key.is("txId") => found.transaction = value.word()?.map(Into::into),
                    _ if key.is("lsn") || key.is("scn") => {
                        found.written = value.word()?.map(Into::into);
                    }
                    _ => {}
                }
            }
        }
        if let Some(mut fields) = find(value, "transaction").and_then(Json::object) {
            while let Some((key, value)) = fields.next()? {
                if key.is("id") {
                    found.transaction = value.word()?.map(Into::into);
                }
            }
        }
        Ok(found)
    }
}

/// Whether a value is about no row: the beginning or end of a transaction, a heartbeat, a change of
/// a table.
pub(in crate::decode) fn is_metadata(value: &[(Str<'_>, Json<'_>)]) -> bool {
    let has = |name| find(value, name).is_some();
    let is_transaction = has("status") && has("id") && (has("event_count") || has("ts_ms"));
    let is_heartbeat =
        value.iter().all(|(key, _)| ["ts_ms", "ts_us", "ts_ns"].iter().any(|n| key.is(n)));
    let is_change = (has("source") || has("databaseName")) && (has("ddl") || has("tableChanges"));
    is_transaction || is_heartbeat || is_change
}
