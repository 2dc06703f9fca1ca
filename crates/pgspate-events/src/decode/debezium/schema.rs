//! Reads the schemas that Kafka Connect's JSON converter writes beside its values.
//!
//! Each schema is parsed once. The records of a table repeat their schema byte for byte, so later
//! copies are only compared.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::json::{Json, malformed};
use crate::Result;

/// The most schemas that are kept. When one more is added, all earlier schemas are forgotten.
const SCHEMAS_MAX: usize = 4096;
/// The deepest nesting of a schema that is read.
const DEPTH_MAX: usize = 8;

/// The schema of a value or key.
#[derive(Debug)]
pub(super) struct ConnectSchema {
    /// The schema's number in this decoder, from 1.
    pub(super) id: usize,
    /// The text of the schema.
    pub(super) text: Box<str>,
    /// The name, such as `server.schema.table.Envelope`.
    pub(super) name: Option<Box<str>>,
    /// The fields of the row. For an envelope, the fields of `before` and `after`.
    pub(super) fields: HashMap<Box<str>, SchemaField>,
}

/// A field of a schema.
#[derive(Debug, Clone, Default)]
pub(super) struct SchemaField {
    /// The type: `int32`, `string`, `bytes`, `array`, `struct`.
    pub(super) ty: Box<str>,
    /// The name of the values' meaning, such as `io.debezium.time.Date`.
    pub(super) name: Box<str>,
    pub(super) scale: Option<i32>,
    pub(super) length: Option<usize>,
    /// The placeholder for values that the source did not send.
    pub(super) placeholder: Option<Box<str>>,
    pub(super) items: Option<Box<SchemaField>>,
    fields: Vec<(Box<str>, SchemaField)>,
}

/// The schemas that a decoder has seen.
#[derive(Debug, Default)]
pub(super) struct SchemaCache {
    known: HashMap<Box<str>, Arc<ConnectSchema>>,
    last: Option<Arc<ConnectSchema>>,
    count: usize,
}

impl SchemaCache {
    /// Returns the schema that the next record is likely to have.
    pub(super) fn last(&self) -> Option<Arc<ConnectSchema>> {
        self.last.clone()
    }

    /// Returns the schema with this text. `is_value` tells that the schema is of a value, not of a
    /// key. The next record is then likely to have this schema, too.
    pub(super) fn of(&mut self, text: &str, is_value: bool) -> Result<Arc<ConnectSchema>> {
        if let Some(last) = self.last.as_ref().filter(|last| *last.text == *text) {
            return Ok(last.clone());
        }
        let found = match self.known.get(text) {
            Some(known) => known.clone(),
            None => self.add(text)?,
        };
        if is_value {
            self.last = Some(found.clone());
        }
        Ok(found)
    }

    fn add(&mut self, text: &str) -> Result<Arc<ConnectSchema>> {
        let root = field(Json::Object(text), 0)?;
        let rows = root.fields.iter().find(|(name, _)| matches!(&**name, "after" | "before"));
        let is_envelope = root.fields.iter().any(|(name, _)| &**name == "op");
        let fields = match rows {
            Some((_, row)) if is_envelope => &row.fields,
            _ => &root.fields,
        };
        self.count += 1;
        let schema = Arc::new(ConnectSchema {
            id: self.count,
            text: text.into(),
            name: Some(root.name.clone()).filter(|name| !name.is_empty()),
            fields: fields.iter().cloned().collect(),
        });
        if self.known.len() == SCHEMAS_MAX {
            self.known.clear();
        }
        self.known.insert(text.into(), schema.clone());
        Ok(schema)
    }
}

/// Reads a field of a schema, or the schema itself.
fn field(json: Json<'_>, depth: usize) -> Result<SchemaField> {
    let Some(mut parts) = json.object() else {
        return Err(malformed("expected a schema to be an object"));
    };
    if depth > DEPTH_MAX {
        return Err(malformed("a schema is nested deeper than 8 levels"));
    }
    let mut found = SchemaField::default();
    while let Some((key, value)) = parts.next()? {
        match value {
            Json::String(text) if key.is("type") => found.ty = text.text()?.into(),
            Json::String(text) if key.is("name") => found.name = text.text()?.into(),
            Json::Object(_) if key.is("parameters") => parameters(value, &mut found)?,
            Json::Object(_) if key.is("items") => {
                found.items = Some(Box::new(field(value, depth + 1)?));
            }
            Json::Array(_) if key.is("fields") => found.fields = fields(value, depth)?,
            _ => {}
        }
    }
    Ok(found)
}

fn fields(list: Json<'_>, depth: usize) -> Result<Vec<(Box<str>, SchemaField)>> {
    let mut found = Vec::new();
    let Some(mut items) = list.array() else { return Ok(found) };
    while let Some(item) = items.next()? {
        let mut name = None;
        if let Some(mut parts) = item.object() {
            while let Some((key, value)) = parts.next()? {
                if key.is("field") {
                    name = value.string()?;
                }
            }
        }
        let Some(name) = name else { return Err(malformed("a field of a schema has no name")) };
        found.push((name.into(), field(item, depth + 1)?));
    }
    Ok(found)
}

fn parameters(json: Json<'_>, found: &mut SchemaField) -> Result<()> {
    let Some(mut parts) = json.object() else { return Ok(()) };
    while let Some((key, value)) = parts.next()? {
        let Some(word) = value.word()? else { continue };
        if key.is("scale") {
            found.scale = word.parse().ok();
        } else if key.is("length") {
            found.length = word.parse().ok();
        } else if key.is("__debezium.unavailable.value.placeholder") {
            found.placeholder = Some(word.into());
        }
    }
    Ok(())
}
