//! Encodes Arrow columns as binary COPY values. Each family of types has its own file.
//!
//! The Arrow type and the type of the table's column decide the conversion, once per column. A
//! value that the table's type cannot hold exactly (out of range, a fraction for an integer, a list
//! that is not rectangular) is left to the server as text. All values of a column whose type has no
//! exact encoder are also left to the server.
//!
//! Conversions with more than one possible answer:
//! - A timestamp with a zone in a timestamp column becomes its local time in UTC.
//! - float4 becomes float8 by value; floats become numeric with their shortest digits.
//! - Structs and maps become JSON, in json, jsonb and text columns. Lists become arrays, and JSON
//!   in json, jsonb and text columns and in pgvector's types.
//! - Bytes are text in all columns except bytea. Sixteen bytes are a UUID in a uuid column.

pub(crate) mod array;
pub(crate) mod bytes;
pub mod calendar;
mod column;
pub(crate) mod date_time;
pub(crate) mod json;
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

use self::array::{ElementWriter, split_levels};
use self::bytes::{BytesTarget, write_parquet_interval};
use self::column::BoundCells;
use self::date_time::DateTimeType;
use self::number::NumberType;
use self::tagged::TaggedTarget;
use self::text::{with_nulls, write_uuid};
use super::field::FieldEncoder;
use crate::json::{skip_space, value_end};
use crate::types::{PgType, SessionSettings, TypeKind};

pub use self::column::BoundColumn;
pub use self::schema::schema_types;
pub use self::tagged::{TaggedBuilder, tagged_field, write_tagged};
pub use self::text::AppendText;
pub use self::text::write_float8;

/// Encodes one column of record batches for one column of a table.
#[derive(Debug, Clone)]
pub struct ColumnEncoder {
    data_type: DataType,
    conversion: ColumnConversion,
    route: ValueRoute,
    /// Whether the table's column is json or jsonb.
    is_json: bool,
}

/// How an Arrow value becomes the value in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueRoute {
    /// The Arrow value is encoded as the binary value.
    Direct,
    /// The value becomes text, and the text is encoded as the binary value.
    Text,
    /// The value is sent as text, and the server reads the text. The string is the reason.
    Server(String),
}

/// How the values of a column are converted.
#[derive(Debug, Clone)]
enum ColumnConversion {
    Null,
    Number(NumberType),
    Bool,
    Moment(DateTimeType),
    Bytes(BytesTarget),
    Tagged(Box<TaggedTarget>),
    /// Dictionary or run-end encoded values, with the encoder of the values.
    Dictionary(Box<ColumnEncoder>),
    List {
        item: Box<ColumnEncoder>,
        oid: u32,
        delimiter: u8,
    },
    Json {
        jsonb: bool,
    },
    /// The value's text (JSON for nested values), encoded by the encoder of text fields. Without an
    /// encoder, the text is left to the server.
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
/// text, bpchar, varchar: types whose input function accepts any text unchanged.
const TEXTS: [u32; 3] = [25, 1042, 1043];

/// The metadata key of a field's extension type.
pub(crate) const EXTENSION: &str = "ARROW:extension:name";
/// The extension name given to Parquet's twelve-byte intervals.
pub(crate) const PARQUET_INTERVAL: &str = "pgspate.parquet_interval";

impl ColumnEncoder {
    /// Returns the encoder of a batch's column for a table's column of type `ty`.
    ///
    /// # Errors
    /// The reason why the conversion is impossible.
    pub fn new(
        field: &Field,
        ty: &PgType,
        session: &SessionSettings,
    ) -> Result<ColumnEncoder, String> {
        let data_type = field.data_type();
        let (conversion, route) = match data_type {
            DataType::Null => (ColumnConversion::Null, ValueRoute::Direct),
            DataType::Dictionary(_, values) => {
                let values = Field::clone(field).with_data_type(values.as_ref().clone());
                dictionary(ColumnEncoder::new(&values, ty, session)?)
            }
            DataType::RunEndEncoded(_, values) => {
                dictionary(ColumnEncoder::new(values, ty, session)?)
            }
            DataType::Union(..) => {
                return Err("PostgreSQL has no type for unions".to_owned());
            }
            _ => plan_conversion(field, ty, session)?,
        };
        let is_json = matches!(ty.base().oid, JSON | JSONB);
        Ok(ColumnEncoder { data_type: data_type.clone(), conversion, route, is_json })
    }

    /// Returns how the column's values get to the table: encoded, encoded from text, or as text.
    pub fn route(&self) -> &ValueRoute {
        &self.route
    }

    /// Returns the Arrow type of the encoder's columns.
    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// Returns whether this is the encoder of a tagged column.
    pub fn is_tagged(&self) -> bool {
        matches!(self.conversion, ColumnConversion::Tagged(_))
    }

    /// Appends a value's text as JSON. Loading this JSON gives the same value, or the same
    /// rejection. In a json column, a text that is not JSON gets a prefix, so that the server
    /// rejects the value: the server would accept the text as a JSON string.
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

    /// Binds the encoder to a batch's column. Returns `None` if the column has another type than
    /// [`ColumnEncoder::data_type`].
    pub fn bind<'a>(&'a self, array: &'a dyn Array) -> Option<BoundColumn<'a>> {
        if *array.data_type() != self.data_type {
            return None;
        }
        let cells = match &self.conversion {
            ColumnConversion::Null => BoundCells::Null,
            ColumnConversion::Number(to) => number::bind(array, *to)?,
            ColumnConversion::Moment(to) => date_time::bind(array, *to)?,
            ColumnConversion::Bytes(to) => bytes::bind(array, to)?,
            ColumnConversion::Tagged(to) => tagged::bind(array, to)?,
            ColumnConversion::Bool => {
                let values = array.as_boolean();
                BoundCells::Other(Box::new(move |row, out| {
                    bytes::append_bool(values.value(row), out)
                }))
            }
            ColumnConversion::Dictionary(inner) => {
                let (keys, values) = value_rows(array)?;
                BoundCells::Dictionary(keys, Box::new(inner.bind(values)?))
            }
            ColumnConversion::List { item, oid, .. } => {
                let lists = split_levels(array);
                let items = item.bind(lists.leaf)?;
                let oid = *oid;
                BoundCells::Other(Box::new(move |row, out| lists.append(row, &items, oid, out)))
            }
            ColumnConversion::Json { jsonb } => {
                let write = json::nested_writer(array)?;
                let text = RefCell::new(Vec::new());
                let jsonb = *jsonb;
                BoundCells::Other(Box::new(move |row, out| {
                    let mut text = text.borrow_mut();
                    text.clear();
                    write(row, &mut text);
                    if jsonb {
                        bytes::append_jsonb(&text, out)
                    } else {
                        bytes::append_checked_bytes(&text, out)
                    }
                }))
            }
            ColumnConversion::Text { encoder: None, .. } => {
                BoundCells::Server(self.text_writer(array)?)
            }
            ColumnConversion::Text { encoder: Some(encoder), .. } => {
                let write = self.text_writer(array)?;
                let text = RefCell::new(Vec::new());
                BoundCells::Other(Box::new(move |row, out| {
                    let mut text = text.borrow_mut();
                    text.clear();
                    write(row, &mut text);
                    encoder.encode(&text, out)
                }))
            }
        };
        let handles_nulls =
            matches!(cells, BoundCells::Dictionary(..) | BoundCells::Null | BoundCells::Server(_));
        let nulls = array.nulls().filter(|nulls| !handles_nulls && nulls.null_count() > 0);
        Some(BoundColumn { nulls, cells })
    }

    /// Returns the text writer of a batch's column, for the input function of the table's column.
    pub(crate) fn text_writer<'a>(&'a self, array: &'a dyn Array) -> Option<AppendText<'a>> {
        if *array.data_type() != self.data_type {
            return None;
        }
        match &self.conversion {
            ColumnConversion::Bytes(to) => {
                let copied = matches!(to, BytesTarget::Copy);
                let is_bytes = !matches!(
                    self.data_type,
                    DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
                );
                bytes::text_writer(array, to, copied && is_bytes)
            }
            ColumnConversion::Dictionary(inner) => {
                let (keys, values) = value_rows(array)?;
                let write = inner.text_writer(values)?;
                Some(Box::new(move |row, out| match keys[row] {
                    -1 => false,
                    key => write(key as usize, out),
                }))
            }
            ColumnConversion::List { item, delimiter, .. } => {
                let lists = split_levels(array);
                let elements =
                    ElementWriter { write: item.text_writer(lists.leaf)?, delimiter: *delimiter };
                Some(with_nulls(array, move |row, out| lists.write_literal(0, row, &elements, out)))
            }
            ColumnConversion::Json { .. } | ColumnConversion::Text { json: true, .. } => {
                json::nested_writer(array)
            }
            ColumnConversion::Number(to) => number::text_writer(array, *to),
            ColumnConversion::Tagged(_) => tagged::text_writer(array),
            _ => text::scalar_writer(array),
        }
    }
}

/// Returns whether a text is exactly one JSON value.
fn is_json(text: &[u8]) -> bool {
    let parsed = value_end(text, skip_space(text, 0), &mut Vec::new());
    let is_whole = |(_, end)| skip_space(text, end) == text.len();
    std::str::from_utf8(text).is_ok() && parsed.is_ok_and(is_whole)
}

/// Returns the conversion of a dictionary or run-end encoded column from the encoder of its values.
fn dictionary(inner: ColumnEncoder) -> (ColumnConversion, ValueRoute) {
    let route = inner.route.clone();
    (ColumnConversion::Dictionary(Box::new(inner)), route)
}

/// Chooses the conversion for a type that is neither null nor dictionary or run-end encoded.
fn plan_conversion(
    field: &Field,
    ty: &PgType,
    session: &SessionSettings,
) -> Result<(ColumnConversion, ValueRoute), String> {
    use DataType as D;
    let data_type = field.data_type();
    let base = ty.base();
    let oid = if base.kind == TypeKind::Base { base.oid } else { 0 };
    let number = NumberType::of(oid, session.server_version);
    let impossible = || Err(format!("{data_type} cannot be converted to {}", ty.name));
    match data_type {
        D::Utf8 | D::LargeUtf8 | D::Utf8View => {
            plan_strings(ty, oid, session).map(|(to, route)| (ColumnConversion::Bytes(to), route))
        }
        D::LargeBinary if tagged::is_tagged(field) => {
            let (text, route) = plan_strings(ty, oid, session)?;
            Ok((ColumnConversion::Tagged(Box::new(TaggedTarget::of(ty, session, text))), route))
        }
        D::Binary | D::LargeBinary | D::BinaryView | D::FixedSizeBinary(_) => {
            plan_binary(field, ty, oid, session)
        }
        D::Struct(_) | D::Map(..) => match oid {
            JSON | JSONB => plan_nested_json(data_type, oid, session),
            _ if TEXTS.contains(&oid) => plan_nested_text(data_type, ty, session),
            _ => impossible(),
        },
        _ if array::child(data_type).is_some() => plan_list(field, ty, oid, session),
        D::Boolean if number.is_some() => impossible(),
        D::Boolean if oid == BOOL => Ok((ColumnConversion::Bool, ValueRoute::Direct)),
        _ if matches!(base.kind, TypeKind::Array(..)) || oid == BYTEA => impossible(),
        _ if data_type.is_numeric() => match number {
            Some(to) => Ok((ColumnConversion::Number(to), ValueRoute::Direct)),
            None => Ok(plan_via_text(ty, session, false)),
        },
        _ if number.is_some() => impossible(),
        _ => Ok(match DateTimeType::of(data_type, oid, session) {
            Some(Ok(to)) => (ColumnConversion::Moment(to), ValueRoute::Direct),
            Some(Err(reason)) => {
                (ColumnConversion::Text { encoder: None, json: false }, ValueRoute::Server(reason))
            }
            None => plan_via_text(ty, session, false),
        }),
    }
}

/// Chooses the conversion to text, which the field encoder or the server reads.
fn plan_via_text(
    ty: &PgType,
    session: &SessionSettings,
    json: bool,
) -> (ColumnConversion, ValueRoute) {
    match FieldEncoder::new(ty, session) {
        Ok(encoder) => (ColumnConversion::Text { encoder: Some(encoder), json }, ValueRoute::Text),
        Err(reason) => (ColumnConversion::Text { encoder: None, json }, ValueRoute::Server(reason)),
    }
}

/// Chooses the conversion of strings.
fn plan_strings(
    ty: &PgType,
    oid: u32,
    session: &SessionSettings,
) -> Result<(BytesTarget, ValueRoute), String> {
    check_utf8(session)?;
    Ok(match oid {
        JSON => (BytesTarget::Copy, ValueRoute::Direct),
        JSONB => (BytesTarget::Jsonb, ValueRoute::Direct),
        _ if TEXTS.contains(&oid) => (BytesTarget::Copy, ValueRoute::Direct),
        _ => match FieldEncoder::new(ty, session) {
            Ok(encoder) => (BytesTarget::Field(encoder), ValueRoute::Text),
            Err(reason) => (BytesTarget::Server, ValueRoute::Server(reason)),
        },
    })
}

/// Chooses the conversion of bytes.
fn plan_binary(
    field: &Field,
    ty: &PgType,
    oid: u32,
    session: &SessionSettings,
) -> Result<(ColumnConversion, ValueRoute), String> {
    let encoder = || FieldEncoder::new(ty, session);
    let is_interval = is_parquet_interval(field);
    Ok(match oid {
        BYTEA => (ColumnConversion::Bytes(BytesTarget::Copy), ValueRoute::Direct),
        UUID => (ColumnConversion::Bytes(BytesTarget::Uuid(encoder().ok())), ValueRoute::Direct),
        INTERVAL if is_interval => {
            (ColumnConversion::Bytes(BytesTarget::Interval), ValueRoute::Direct)
        }
        // A text column gets the text of the UUID or interval.
        _ if is_uuid(field) && TEXTS.contains(&oid) => (
            ColumnConversion::Bytes(BytesTarget::Converted(encoder()?, write_uuid)),
            ValueRoute::Text,
        ),
        _ if is_interval && TEXTS.contains(&oid) => (
            ColumnConversion::Bytes(BytesTarget::Converted(encoder()?, write_parquet_interval)),
            ValueRoute::Text,
        ),
        _ => {
            check_utf8(session)?;
            match encoder() {
                Ok(encoder) => {
                    (ColumnConversion::Bytes(BytesTarget::Field(encoder)), ValueRoute::Text)
                }
                Err(reason) => {
                    (ColumnConversion::Bytes(BytesTarget::Server), ValueRoute::Server(reason))
                }
            }
        }
    })
}

/// Chooses the conversion of lists.
fn plan_list(
    field: &Field,
    ty: &PgType,
    oid: u32,
    session: &SessionSettings,
) -> Result<(ColumnConversion, ValueRoute), String> {
    let data_type = field.data_type();
    if let TypeKind::Array(element, delimiter) = &ty.base().kind {
        let mut leaf = field;
        while let Some(child) = array::child(leaf.data_type()) {
            leaf = child;
        }
        let item = ColumnEncoder::new(leaf, element, session)?;
        let route = item.route.clone();
        let (oid, delimiter) = (element.oid, *delimiter);
        return Ok((ColumnConversion::List { item: Box::new(item), oid, delimiter }, route));
    }
    let is_vector = ["vector", "halfvec"].iter().any(|name| ty.base().name.starts_with(name));
    match oid {
        JSON | JSONB => plan_nested_json(data_type, oid, session),
        _ if TEXTS.contains(&oid) || is_vector => plan_nested_text(data_type, ty, session),
        _ => Err(format!("{data_type} cannot be converted to {}", ty.name)),
    }
}

/// Chooses the conversion of nested values to json or jsonb.
fn plan_nested_json(
    data_type: &DataType,
    oid: u32,
    session: &SessionSettings,
) -> Result<(ColumnConversion, ValueRoute), String> {
    check_utf8(session)?;
    if !json::supports_json(data_type) {
        return Err(format!("{data_type} cannot be converted to JSON"));
    }
    Ok((ColumnConversion::Json { jsonb: oid == JSONB }, ValueRoute::Direct))
}

/// Chooses the conversion of nested values to the text of their JSON.
fn plan_nested_text(
    data_type: &DataType,
    ty: &PgType,
    session: &SessionSettings,
) -> Result<(ColumnConversion, ValueRoute), String> {
    check_utf8(session)?;
    if !json::supports_json(data_type) {
        return Err(format!("{data_type} cannot be converted to JSON"));
    }
    Ok(plan_via_text(ty, session, true))
}

/// Checks that the server expects UTF-8, because Arrow strings are sent unchanged.
fn check_utf8(session: &SessionSettings) -> Result<(), String> {
    let is_utf8 = |name: &str| {
        ["utf8", "utf-8", "unicode"].iter().any(|known| name.eq_ignore_ascii_case(known))
    };
    let client = session.client_encoding.as_str();
    let is_unconverted =
        client.eq_ignore_ascii_case("SQL_ASCII") && is_utf8(&session.server_encoding);
    if is_utf8(client) || is_unconverted {
        return Ok(());
    }
    Err(format!("Arrow strings are UTF-8, but client_encoding is {client}"))
}

/// Returns whether a field is marked as a UUID of sixteen bytes.
pub(crate) fn is_uuid(field: &Field) -> bool {
    *field.data_type() == DataType::FixedSizeBinary(16)
        && field.metadata().get(EXTENSION).is_some_and(|name| name == "arrow.uuid")
}

/// Returns whether a field is marked as an interval of Parquet, of twelve bytes.
pub(crate) fn is_parquet_interval(field: &Field) -> bool {
    *field.data_type() == DataType::FixedSizeBinary(12)
        && field.metadata().get(EXTENSION).is_some_and(|name| name == PARQUET_INTERVAL)
}

/// Returns the column of the values of a dictionary or run-end encoded column. For each row, also
/// returns the index of its value in the column of the values, or -1 for NULL.
pub(crate) fn value_rows(array: &dyn Array) -> Option<(Vec<i64>, &dyn Array)> {
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
            DataType::Int16 => Some(run_end_value_rows::<arrow_array::types::Int16Type>(array)),
            DataType::Int32 => Some(run_end_value_rows::<arrow_array::types::Int32Type>(array)),
            DataType::Int64 => Some(run_end_value_rows::<arrow_array::types::Int64Type>(array)),
            _ => None,
        },
        _ => None,
    }
}

fn run_end_value_rows<R: arrow_array::types::RunEndIndexType>(
    array: &dyn Array,
) -> (Vec<i64>, &dyn Array) {
    let runs = array.as_run::<R>();
    let keys = (0..array.len()).map(|row| runs.get_physical_index(row) as i64).collect();
    (keys, runs.values().as_ref())
}
