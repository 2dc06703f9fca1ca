//! Splits a Debezium record into key, value, their schemas, headers and topic.
//!
//! Consoles and dumps write these parts in different ways: as `{"key": ..., "value": ...}`, as
//! kcat's `-J` with key and value as strings, or as the value alone.

use std::borrow::Cow;
use std::sync::Arc;

use super::super::KeyedRecord;
use super::super::json::{Json, JsonFields, JsonStr, has_no_value, malformed, object};
use super::schema::{ConnectSchema, SchemaCache};
use crate::Result;

/// The fields of an object, in order.
pub(super) type MessageFields<'a> = Vec<(JsonStr<'a>, Json<'a>)>;

/// The parts of a record. A record without a value is a tombstone.
#[derive(Default)]
pub(super) struct DebeziumMessage<'a> {
    pub(super) key: Option<MessageFields<'a>>,
    /// The bytes of the key of a message that was read from a topic.
    pub(super) raw_key: Option<&'a [u8]>,
    key_schema: Option<&'a str>,
    pub(super) value: Option<MessageFields<'a>>,
    schema: Option<&'a str>,
    headers: Option<Json<'a>>,
    /// The headers of a message that was read from a topic.
    own_headers: &'a [(Box<str>, Vec<u8>)],
    pub(super) topic: Option<Cow<'a, str>>,
    /// Whether the record is only a value: it has no key, headers or topic.
    pub(super) is_bare: bool,
    /// The fields of a record whose `key` and `value` are null. Such a record may be a flattened
    /// row with columns of these names.
    pub(super) empty_pair: Option<MessageFields<'a>>,
    /// Whether messages of different keys may come in another order than they were written.
    pub(super) is_unordered: bool,
}

/// The texts of a key and a value that are JSON within strings.
pub(super) type NestedTexts = Option<(Option<String>, Option<String>)>;

/// Returns the last field of this name.
pub(super) fn find<'a>(fields: &[(JsonStr<'a>, Json<'a>)], name: &str) -> Option<Json<'a>> {
    fields.iter().rev().find(|(key, _)| key.is(name)).map(|(_, value)| *value)
}

impl<'a> DebeziumMessage<'a> {
    /// Splits a record into its parts. `likely_schema` is the text of a schema that the record is
    /// likely to have. `nested` is an empty place for texts that the message will borrow.
    pub(super) fn read(
        record: &'a [u8],
        likely_schema: Option<&'a str>,
        nested: &'a mut NestedTexts,
    ) -> Result<DebeziumMessage<'a>> {
        let mut fields = object(record)?.with_known_object(likely_schema);
        let fields = match with_schema(&mut fields)? {
            Ok((schema, value)) => {
                let value = Some(value);
                return Ok(DebeziumMessage {
                    schema,
                    value,
                    is_bare: true,
                    ..DebeziumMessage::default()
                });
            }
            Err(mut read) => {
                read.append(&mut fields.rest()?);
                read
            }
        };
        let of_null = |name| find(&fields, name) == Some(Json::Null);
        if of_null("key") && of_null("value") {
            // The tombstone of a table without a key.
            return Ok(DebeziumMessage {
                empty_pair: Some(fields),
                is_bare: true,
                ..DebeziumMessage::default()
            });
        }
        let Some((key, value)) = pair(&fields)? else {
            let mut message = DebeziumMessage { is_bare: true, ..DebeziumMessage::default() };
            (message.schema, message.value) = payload(fields, likely_schema)?;
            return Ok(message);
        };
        let topic = match find(&fields, "topic") {
            Some(topic) => topic.string()?,
            None => None,
        };
        let headers = find(&fields, "headers").filter(|headers| *headers != Json::Null);
        let mut message = DebeziumMessage { headers, topic, ..DebeziumMessage::default() };
        // `nested` owns the unescaped texts, because the message borrows them.
        let (key_text, value_text) = nested.insert((string_text(key)?, string_text(value)?));
        if let Some(fields) = object_fields(key, key_text.as_deref())? {
            // A key that is not an object names no columns.
            let key = payload(fields.all()?, None).unwrap_or_default();
            (message.key_schema, message.key) = key;
        }
        if let Some(fields) = object_fields(value, value_text.as_deref())? {
            (message.schema, message.value) =
                payload(fields.with_known_object(likely_schema).all()?, likely_schema)?;
        }
        Ok(message)
    }

    /// Splits a message of a topic into its parts. A key that is not an object names no columns, so
    /// a tombstone with such a key is an error.
    pub(super) fn of_keyed(
        record: &KeyedRecord<'a>,
        likely_schema: Option<&'a str>,
    ) -> Result<DebeziumMessage<'a>> {
        let mut message = DebeziumMessage {
            own_headers: record.headers,
            topic: Some(Cow::Borrowed(record.topic)),
            raw_key: record.key,
            is_unordered: !record.is_ordered,
            ..DebeziumMessage::default()
        };
        if let Some(value) = record.value {
            let mut fields = object(value)?.with_known_object(likely_schema);
            (message.schema, message.value) = match with_schema(&mut fields)? {
                Ok((schema, value)) => (schema, Some(value)),
                Err(mut read) => {
                    read.append(&mut fields.rest()?);
                    payload(read, likely_schema)?
                }
            };
        }
        let Some(key) = record.key.filter(|key| !has_no_value(key)) else { return Ok(message) };
        let key = object(key).and_then(JsonFields::all).and_then(|fields| payload(fields, None));
        match key {
            Ok(key) => (message.key_schema, message.key) = key,
            Err(_) if message.value.is_some() => {}
            Err(_) => {
                return Err(malformed(
                    "a message without a value has a key that is not a JSON object",
                ));
            }
        }
        Ok(message)
    }

    /// Returns the schema of the value.
    pub(super) fn schema_of(
        &self,
        schemas: &mut SchemaCache,
    ) -> Result<Option<Arc<ConnectSchema>>> {
        self.schema.map(|text| schemas.of(text, true)).transpose()
    }

    /// Returns the schema of the key.
    pub(super) fn key_schema_of(
        &self,
        schemas: &mut SchemaCache,
    ) -> Result<Option<Arc<ConnectSchema>>> {
        self.key_schema.map(|text| schemas.of(text, false)).transpose()
    }

    /// Returns the text of the object in a header. `None` if there is no such header or it has no
    /// object.
    pub(super) fn header(&self, name: &str) -> Result<Option<String>> {
        if let Some((_, value)) = self.own_headers.iter().find(|(key, _)| **key == *name) {
            let text = std::str::from_utf8(value).unwrap_or_default();
            return Ok(text.trim_start().starts_with('{').then(|| text.to_owned()));
        }
        self.headers.map_or(Ok(None), |headers| header(headers, name))
    }

    /// Returns whether the message has headers. Debezium's headers tell whether the row's key has
    /// changed.
    pub(super) fn has_headers(&self) -> bool {
        self.headers.is_some() || !self.own_headers.is_empty()
    }

    /// Returns whether the next message inserts the deleted row under another key. Always false for
    /// a stream without order: the insert may have come before, and other events of the old key may
    /// follow.
    pub(super) fn moves_to_another_key(&self) -> Result<bool> {
        Ok(!self.is_unordered && self.header("__debezium.newkey")?.is_some())
    }

    /// Reads a value alone, with or without its schema.
    pub(super) fn of_value(text: &'a str) -> Result<DebeziumMessage<'a>> {
        let (schema, value) = payload(object(text.as_bytes())?.all()?, None)?;
        Ok(DebeziumMessage { schema, value, ..DebeziumMessage::default() })
    }
}

/// Reads a record of `schema` and `payload`, without scanning the payload first. If the record has
/// another shape, returns `Ok(Err(...))` with the fields that were read so far.
fn with_schema<'a>(
    fields: &mut JsonFields<'a>,
) -> Result<Result<(Option<&'a str>, MessageFields<'a>), MessageFields<'a>>> {
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

/// Returns key and value of a record that has both.
fn pair<'a>(fields: &[(JsonStr<'a>, Json<'a>)]) -> Result<Option<(Json<'a>, Json<'a>)>> {
    let is_part = |json: Json<'_>| match json {
        Json::Object(_) | Json::Null => true,
        Json::String(text) => text.looks_like_object(),
        _ => false,
    };
    let key = find(fields, "key").unwrap_or(Json::Null);
    if let Some(value) = find(fields, "value") {
        return Ok((is_part(value) && is_part(key)).then_some((key, value)));
    }
    // The output of kcat.
    let of_topic = find(fields, "topic").is_some() && find(fields, "partition").is_some();
    match find(fields, "payload") {
        Some(value) if of_topic && is_part(value) => Ok(Some((key, value))),
        _ => Ok(None),
    }
}

/// Returns the unescaped text of a JSON string. Returns `None` for other JSON.
fn string_text(json: Json<'_>) -> Result<Option<String>> {
    Ok(json.string()?.map(Cow::into_owned))
}

/// Returns the fields of a key or value. A key or value is an object, or a string that has the
/// unescaped `text` of an object.
fn object_fields<'a>(json: Json<'a>, text: Option<&'a str>) -> Result<Option<JsonFields<'a>>> {
    match (json, text) {
        (Json::Object(_), _) => Ok(json.object()),
        (_, Some(text)) if text.trim_start().starts_with('{') => object(text.as_bytes()).map(Some),
        _ => Ok(None),
    }
}

/// Splits fields into schema and payload. Fields without a schema are the payload themselves.
fn payload<'a>(
    fields: MessageFields<'a>,
    likely_schema: Option<&'a str>,
) -> Result<(Option<&'a str>, Option<MessageFields<'a>>)> {
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
        // A row may have columns named `schema` and `payload`.
        _ => match payload.object() {
            Some(fields) => Ok((schema, Some(fields.with_known_object(likely_schema).all()?))),
            None => Err(malformed("expected \"payload\" to be an object")),
        },
    }
}

/// Returns the text of the object in the header `name`. Headers are an object, a list of objects,
/// or kcat's list, in which names and values alternate.
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

/// Returns the text of an object, or of an object within a string.
fn object_text(json: Json<'_>) -> Result<Option<String>> {
    Ok(match json {
        Json::Object(text) => Some(text.to_owned()),
        Json::String(text) if text.looks_like_object() => Some(text.text()?.into_owned()),
        _ => None,
    })
}

/// The source of an event: its table, transaction and place in the source's log.
#[derive(Default)]
pub(super) struct DebeziumSource<'a> {
    pub(super) schema: Option<Cow<'a, str>>,
    pub(super) database: Option<Cow<'a, str>>,
    pub(super) table: Option<Cow<'a, str>>,
    pub(super) transaction: Option<Box<str>>,
    /// The place in the source's log. Each change of a row has its own place.
    pub(super) log_place: Option<Box<str>>,
}

impl<'a> DebeziumSource<'a> {
    /// Reads an envelope's `source` and `transaction`.
    pub(super) fn read(value: &[(JsonStr<'a>, Json<'a>)]) -> Result<DebeziumSource<'a>> {
        let mut found = DebeziumSource::default();
        if let Some(mut fields) = find(value, "source").and_then(Json::object) {
            while let Some((key, value)) = fields.next()? {
                match value {
                    Json::String(name) if key.is("table") => found.table = Some(name.text()?),
                    Json::String(name) if key.is("schema") => found.schema = Some(name.text()?),
                    Json::String(name) if key.is("db") => found.database = Some(name.text()?),
                    _ if key.is("txId") => found.transaction = value.word()?.map(Into::into),
                    _ if key.is("lsn") || key.is("scn") => {
                        found.log_place = value.word()?.map(Into::into);
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

/// Returns whether a value describes no row, but the begin or end of a transaction, a heartbeat,
/// or a schema change.
pub(in crate::decode) fn is_metadata(value: &[(JsonStr<'_>, Json<'_>)]) -> bool {
    let has = |name| find(value, name).is_some();
    let is_transaction = has("status") && has("id") && (has("event_count") || has("ts_ms"));
    let is_heartbeat =
        value.iter().all(|(key, _)| ["ts_ms", "ts_us", "ts_ns"].iter().any(|n| key.is(n)));
    let is_change = (has("source") || has("databaseName")) && (has("ddl") || has("tableChanges"));
    is_transaction || is_heartbeat || is_change
}
