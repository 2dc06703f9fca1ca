//! Arrow columns to binary COPY values, one file per family of types.
//!
//! What a column becomes is decided once, by its Arrow type and the type of the table's column,
//! and it is always the latter's bytes that are sent. A value that has no exact place there (out
//! of range, a fraction for an integer, a ragged list) is left to the server as text, and so is
//! every value of a column whose type has no exact encoder.
//!
//! Choices where there is no one obvious answer:
//! - A timestamp with a zone goes into a column without one as its UTC wall clock.
//! - float4 goes into float8 by value; floats go into numeric by their shortest digits.
//! - Structs and maps become JSON, in json, jsonb and text columns. Lists become arrays, and JSON
//!   in json, jsonb and text columns and in pgvector's types.
//! - Bytes are text in any column but bytea. Sixteen bytes are a UUID in a uuid column.

pub(crate) mod array;
pub(crate) mod bytes;
pub mod calendar;
mod column;
pub(crate) mod json;
pub(crate) mod moment;
pub(crate) mod number;
pub(crate) mod numeric;
mod schema;
mod tagged;
pub mod text;

use std::cell::RefCell;

use arrow_array::cast::AsArray;
use arrow_array::types::ArrowDictionaryKeyType;
use arrow_array::{Array, downcast_integer};
use arrow_schema::{DataType, Field};

use self::array::{Spelling, unfold};
use self::bytes::{Bytes, write_parquet_interval};
use self::column::Cells;
use self::moment::Moment;
use self::number::Number;
use self::tagged::Tagged;
use self::text::{write_uuid, writer};
use super::field::FieldEncoder;
use crate::json::{skip_space, value};
use crate::types::{PgType, Session, TypeKind};

pub use self::column::Column;
pub use self::schema::schema_types;
pub use self::tagged::{TaggedBuilder, tagged_field, write_tagged};
pub use self::text::Write;
pub use self::text::write_float8;

/// Encodes one column of record batches for one column of a table.
#[derive(Debug, Clone)]
pub struct ColumnEncoder {
    data_type: DataType,
    plan: Plan,
    route: Route,
    /// Whether the table's column is json or jsonb.
    is_json: bool,
}

/// Which way the values of a column go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// From the Arrow value to the binary value.
    Direct,
    /// Through their text, which is then encoded.
    Text,
    /// As text, for the server to read; with the reason.
    Server(String),
}

#[derive(Debug, Clone)]
enum Plan {
    Null,
    Number(Number),
    Bool,
    Moment(Moment),
    Bytes(Bytes),
    Tagged(Box<Tagged>),
    Keyed(Box<ColumnEncoder>),
    List {
        item: Box<ColumnEncoder>,
        oid: u32,
        delimiter: u8,
    },
    Json {
        jsonb: bool,
    },
    /// The value's text (JSON for nested values) through the encoder of text fields.
    Text {
        encoder: Option<FieldEncoder>,
        json: bool,
    },
}

const BOOL: u32 = 16;
const BYTEA: u32 = 17;
const JSON: u32 = 114;
const INTERVAL: u32 = 1186;
const UUID: u32 = 2950;
const JSONB: u32 = 3802;
/// text, bpchar, varchar: types whose input function takes any text as it is.
const TEXTS: [u32; 3] = [25, 1042, 1043];

/// The key under which a field says which extension type it is.
pub(crate) const EXTENSION: &str = "ARROW:extension:name";
/// The extension name given to Parquet's twelve-byte intervals.
pub(crate) const PARQUET_INTERVAL: &str = "pgspate.parquet_interval";

impl ColumnEncoder {
    /// The encoder of a batch's column for a column of type `ty`, or the reason why the one cannot
    /// become the other.
    pub fn new(field: &Field, ty: &PgType, session: &Session) -> Result<ColumnEncoder, String> {
        let data_type = field.data_type();
        let (plan, route) = match data_type {
            DataType::Null => (Plan::Null, Route::Direct),
            DataType::Dictionary(_, values) => {
                let values = Field::clone(field).with_data_type(values.as_ref().clone());
                keyed(ColumnEncoder::new(&values, ty, session)?)
            }
            DataType::RunEndEncoded(_, values) => keyed(ColumnEncoder::new(values, ty, session)?),
            DataType::Union(..) => {
                return Err("unions have no counterpart in PostgreSQL".to_owned());
            }
            _ => plan(field, ty, session)?,
        };
        let is_json = matches!(ty.base().oid, JSON | JSONB);
        Ok(ColumnEncoder { data_type: data_type.clone(), plan, route, is_json })
    }

    /// Which way the column's values go.
    pub fn route(&self) -> &Route {
        &self.route
    }

    /// The Arrow type that it was made for.
    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// Whether each value says itself what it is.
    pub fn is_tagged(&self) -> bool {
        matches!(self.plan, Plan::Tagged(_))
    }

    /// Appends a text of the column's as JSON that is loaded as the same value again, or refused
    /// again: a string that is no JSON would be taken by a json column.
    pub(crate) fn append_json(&self, text: &[u8], out: &mut Vec<u8>) {
        let is_plain = self.data_type.is_numeric() || self.data_type == DataType::Boolean;
        if (self.is_json || is_plain) && is_json(text) {
            out.extend_from_slice(text);
            return;
        }
        if self.is_json {
            out.extend_from_slice(b"not_json ");
        }
        json::write_string(text, out);
    }

    /// Binds the encoder to a batch's column. `None` when the column is not of the type that the
    /// encoder was made for.
    pub fn bind<'a>(&'a self, array: &'a dyn Array) -> Option<Column<'a>> {
        if *array.data_type() != self.data_type {
            return None;
        }
        let cells = match &self.plan {
            Plan::Null => Cells::Null,
            Plan::Number(to) => number::bind(array, *to)?,
            Plan::Moment(to) => moment::bind(array, *to)?,
            Plan::Bytes(to) => bytes::bind(array, to)?,
            Plan::Tagged(to) => tagged::bind(array, to)?,
            Plan::Bool => {
                let values = array.as_boolean();
                Cells::Other(Box::new(move |row, out| bytes::put_bool(values.value(row), out)))
            }
            Plan::Keyed(inner) => {
                let (keys, values) = keys(array)?;
                Cells::Keyed(keys, Box::new(inner.bind(values)?))
            }
            Plan::List { item, oid, .. } => {
                let lists = unfold(array);
                let items = item.bind(lists.leaf)?;
                let oid = *oid;
                Cells::Other(Box::new(move |row, out| lists.put(row, &items, oid, out)))
            }
            Plan::Json { jsonb } => {
                let write = json::json(array, false)?;
                let text = RefCell::new(Vec::new());
                let jsonb = *jsonb;
                Cells::Other(Box::new(move |row, out| {
                    let mut text = text.borrow_mut();
                    text.clear();
                    write(row, &mut text);
                    if jsonb { bytes::put_jsonb(&text, out) } else { bytes::put_short(&text, out) }
                }))
            }
            Plan::Text { encoder: None, .. } => Cells::Server(self.text(array)?),
            Plan::Text { encoder: Some(encoder), .. } => {
                let write = self.text(array)?;
                let text = RefCell::new(Vec::new());
                Cells::Other(Box::new(move |row, out| {
                    let mut text = text.borrow_mut();
                    text.clear();
                    write(row, &mut text);
                    encoder.encode(&text, out)
                }))
            }
        };
        let keyed = matches!(cells, Cells::Keyed(..) | Cells::Null | Cells::Server(_));
        let nulls = array.nulls().filter(|nulls| !keyed && nulls.null_count() > 0);
        Some(Column { nulls, cells })
    }

    /// The text of a batch's column in the spelling that the table's column takes, unescaped.
    pub(crate) fn text<'a>(&'a self, array: &'a dyn Array) -> Option<Write<'a>> {
        if *array.data_type() != self.data_type {
            return None;
        }
        match &self.plan {
            Plan::Bytes(to) => {
                let copied = matches!(to, Bytes::Copy);
                let is_bytes = !matches!(
                    self.data_type,
                    DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
                );
                bytes::text(array, to, copied && is_bytes)
            }
            Plan::Keyed(inner) => {
                let (keys, values) = keys(array)?;
                let write = inner.text(values)?;
                Some(Box::new(move |row, out| match keys[row] {
                    -1 => false,
                    key => write(key as usize, out),
                }))
            }
            Plan::List { item, delimiter, .. } => {
                let lists = unfold(array);
                let spelling = Spelling { write: item.text(lists.leaf)?, delimiter: *delimiter };
                Some(writer(array, move |row, out| lists.spell(0, row, &spelling, out)))
            }
            Plan::Json { .. } | Plan::Text { json: true, .. } => json::json(array, false),
            Plan::Number(to) => number::text(array, *to),
            Plan::Tagged(_) => tagged::text(array),
            _ => text::scalar(array),
        }
    }
}

/// Whether a text is one JSON value.
fn is_json(text: &[u8]) -> bool {
    let parsed = value(text, skip_space(text, 0), &mut Vec::new());
    let is_whole = |(_, end)| skip_space(text, end) == text.len();
    std::str::from_utf8(text).is_ok() && parsed.is_ok_and(is_whole)
}

fn keyed(inner: ColumnEncoder) -> (Plan, Route) {
    let route = inner.route.clone();
    (Plan::Keyed(Box::new(inner)), route)
}

/// Chooses the plan for a type that is neither null nor encoded.
fn plan(field: &Field, ty: &PgType, session: &Session) -> Result<(Plan, Route), String> {
    use DataType as D;
    let data_type = field.data_type();
    let base = ty.base();
    let oid = if base.kind == TypeKind::Base { base.oid } else { 0 };
    let number = Number::of(oid, session.server_version);
    let impossible = || Err(format!("{data_type} cannot become {}", ty.name));
    match data_type {
        D::Utf8 | D::LargeUtf8 | D::Utf8View => {
            strings(ty, oid, session).map(|(to, route)| (Plan::Bytes(to), route))
        }
        D::LargeBinary if tagged::is_tagged(field) => {
            let (text, route) = strings(ty, oid, session)?;
            Ok((Plan::Tagged(Box::new(Tagged::of(ty, session, text))), route))
        }
        D::Binary | D::LargeBinary | D::BinaryView | D::FixedSizeBinary(_) => {
            binary(field, ty, oid, session)
        }
        D::Struct(_) | D::Map(..) => match oid {
            JSON | JSONB => nested_json(data_type, oid, session),
            _ if TEXTS.contains(&oid) => nested_text(data_type, ty, session),
            _ => impossible(),
        },
        _ if array::child(data_type).is_some() => list(field, ty, oid, session),
        D::Boolean if number.is_some() => impossible(),
        D::Boolean if oid == BOOL => Ok((Plan::Bool, Route::Direct)),
        _ if matches!(base.kind, TypeKind::Array(..)) || oid == BYTEA => impossible(),
        _ if data_type.is_numeric() => match number {
            Some(to) => Ok((Plan::Number(to), Route::Direct)),
            None => Ok(via_text(ty, session, false)),
        },
        _ if number.is_some() => impossible(),
        _ => Ok(match Moment::of(data_type, oid, session) {
            Some(Ok(to)) => (Plan::Moment(to), Route::Direct),
            Some(Err(reason)) => (Plan::Text { encoder: None, json: false }, Route::Server(reason)),
            None => via_text(ty, session, false),
        }),
    }
}

/// Through the value's text, by the field encoder or by the server.
fn via_text(ty: &PgType, session: &Session, json: bool) -> (Plan, Route) {
    match FieldEncoder::new(ty, session) {
        Ok(encoder) => (Plan::Text { encoder: Some(encoder), json }, Route::Text),
        Err(reason) => (Plan::Text { encoder: None, json }, Route::Server(reason)),
    }
}

fn strings(ty: &PgType, oid: u32, session: &Session) -> Result<(Bytes, Route), String> {
    utf8(session)?;
    Ok(match oid {
        JSON => (Bytes::Copy, Route::Direct),
        JSONB => (Bytes::Jsonb, Route::Direct),
        _ if TEXTS.contains(&oid) => (Bytes::Copy, Route::Direct),
        _ => match FieldEncoder::new(ty, session) {
            Ok(encoder) => (Bytes::Field(encoder), Route::Text),
            Err(reason) => (Bytes::Server, Route::Server(reason)),
        },
    })
}

fn binary(
    field: &Field,
    ty: &PgType,
    oid: u32,
    session: &Session,
) -> Result<(Plan, Route), String> {
    let encoder = || FieldEncoder::new(ty, session);
    let is_interval = field.metadata().get(EXTENSION).is_some_and(|name| name == PARQUET_INTERVAL);
    Ok(match oid {
        BYTEA => (Plan::Bytes(Bytes::Copy), Route::Direct),
        UUID => (Plan::Bytes(Bytes::Uuid(encoder().ok())), Route::Direct),
        INTERVAL if is_interval => (Plan::Bytes(Bytes::Interval), Route::Direct),
        // A text column shows what the bytes stand for.
        _ if is_uuid(field) && TEXTS.contains(&oid) => {
            (Plan::Bytes(Bytes::Spelled(encoder()?, write_uuid)), Route::Text)
        }
        _ if is_interval && TEXTS.contains(&oid) => {
            (Plan::Bytes(Bytes::Spelled(encoder()?, write_parquet_interval)), Route::Text)
        }
        _ => {
            utf8(session)?;
            match encoder() {
                Ok(encoder) => (Plan::Bytes(Bytes::Field(encoder)), Route::Text),
                Err(reason) => (Plan::Bytes(Bytes::Server), Route::Server(reason)),
            }
        }
    })
}

fn list(field: &Field, ty: &PgType, oid: u32, session: &Session) -> Result<(Plan, Route), String> {
    let data_type = field.data_type();
    if let TypeKind::Array(element, delimiter) = &ty.base().kind {
        let mut leaf = field;
        while let Some(child) = array::child(leaf.data_type()) {
            leaf = child;
        }
        let item = ColumnEncoder::new(leaf, element, session)?;
        let route = item.route.clone();
        let (oid, delimiter) = (element.oid, *delimiter);
        return Ok((Plan::List { item: Box::new(item), oid, delimiter }, route));
    }
    let is_vector = ["vector", "halfvec"].iter().any(|name| ty.base().name.starts_with(name));
    match oid {
        JSON | JSONB => nested_json(data_type, oid, session),
        _ if TEXTS.contains(&oid) || is_vector => nested_text(data_type, ty, session),
        _ => Err(format!("{data_type} cannot become {}", ty.name)),
    }
}

fn nested_json(data_type: &DataType, oid: u32, session: &Session) -> Result<(Plan, Route), String> {
    utf8(session)?;
    if !json::has_json(data_type) {
        return Err(format!("{data_type} has no JSON"));
    }
    Ok((Plan::Json { jsonb: oid == JSONB }, Route::Direct))
}

fn nested_text(
    data_type: &DataType,
    ty: &PgType,
    session: &Session,
) -> Result<(Plan, Route), String> {
    utf8(session)?;
    if !json::has_json(data_type) {
        return Err(format!("{data_type} has no JSON"));
    }
    Ok(via_text(ty, session, true))
}

/// Arrow strings are UTF-8 and are sent as they are.
fn utf8(session: &Session) -> Result<(), String> {
    let is_utf8 = |name: &str| {
        ["utf8", "utf-8", "unicode"].iter().any(|known| name.eq_ignore_ascii_case(known))
    };
    let client = session.client_encoding.as_str();
    let raw = client.eq_ignore_ascii_case("SQL_ASCII") && is_utf8(&session.server_encoding);
    if is_utf8(client) || raw {
        return Ok(());
    }
    Err(format!("Arrow strings are UTF-8, but client_encoding is {client}"))
}

/// Whether a field's sixteen bytes are marked as a UUID.
pub(crate) fn is_uuid(field: &Field) -> bool {
    *field.data_type() == DataType::FixedSizeBinary(16)
        && field.metadata().get(EXTENSION).is_some_and(|name| name == "arrow.uuid")
}

/// The row of an encoded column's values that each of its rows stands for, -1 for NULL.
pub(crate) fn keys(array: &dyn Array) -> Option<(Vec<i64>, &dyn Array)> {
    fn dictionary<K: ArrowDictionaryKeyType<Native: Into<i128>>>(
        array: &dyn Array,
    ) -> (Vec<i64>, &dyn Array) {
        let dictionary = array.as_dictionary::<K>();
        let keys = dictionary.keys();
        let keys = keys.iter().map(|key| key.map_or(-1, |key| key.into() as i64)).collect();
        (keys, dictionary.values().as_ref())
    }
    macro_rules! by_key {
        ($t:ty, $array:expr) => {
            Some(dictionary::<$t>($array))
        };
    }
    match array.data_type() {
        DataType::Dictionary(key, _) => downcast_integer! {
            key.as_ref() => (by_key, array),
            _ => None
        },
        DataType::RunEndEncoded(ends, _) => match ends.data_type() {
            DataType::Int16 => Some(runs::<arrow_array::types::Int16Type>(array)),
            DataType::Int32 => Some(runs::<arrow_array::types::Int32Type>(array)),
            DataType::Int64 => Some(runs::<arrow_array::types::Int64Type>(array)),
            _ => None,
        },
        _ => None,
    }
}

fn runs<R: arrow_array::types::RunEndIndexType>(array: &dyn Array) -> (Vec<i64>, &dyn Array) {
    let runs = array.as_run::<R>();
    let keys = (0..array.len()).map(|row| runs.get_physical_index(row) as i64).collect();
    (keys, runs.values().as_ref())
}
