//! Reads Debezium's values by their kind.
//!
//! A value with two meanings is refused, with a hint at the connector's setting, unless the caller
//! or earlier values of the stream have shown which meaning applies.

use super::super::byte_spellings::{base64, bytea, decimal, is_hex};
use super::super::json::{Json, JsonFields, JsonStr, malformed, object};
use super::super::json_values::{ByteSpelling, JsonSpelling, TypeFamily, array, text};
use super::super::moments::{self, TimeUnit};
use super::placeholder::Placeholder;
use super::value_kind::ValueKind;
use crate::{Error, EventValue, Result};

const SPELLING: JsonSpelling = JsonSpelling::of_bytes(ByteSpelling::Base64);

/// A connector's settings, as far as the caller named them or earlier values have shown them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ConnectorModes {
    /// Whether decimals are text (`decimal.handling.mode=string`) or bytes.
    pub(super) text_decimals: Option<bool>,
    /// Whether bytes are hexadecimal digits (`binary.handling.mode=hex`) or base64.
    pub(super) hex_bytes: Option<bool>,
    /// The unit of times and timestamps without a schema.
    pub(super) unit: Option<TimeUnit>,
}

/// Reads a value. The placeholder becomes an absent value.
pub(super) fn read(
    json: Json<'_>,
    kind: &ValueKind,
    placeholder: &Placeholder,
    modes: &mut ConnectorModes,
) -> Result<EventValue> {
    let is_binary = matches!(
        kind,
        ValueKind::Bytes
            | ValueKind::TextAsBytes
            | ValueKind::Bits(_)
            | ValueKind::Decimal(_)
            | ValueKind::Guess(TypeFamily::Bytea | TypeFamily::Numeric)
    );
    match placeholder.is(json, is_binary)? {
        true => Ok(EventValue::Absent),
        false => value(json, kind, modes),
    }
}

/// Reads a value that is not the placeholder.
fn value(json: Json<'_>, kind: &ValueKind, modes: &mut ConnectorModes) -> Result<EventValue> {
    Ok(match (kind, json) {
        (_, Json::Null) => EventValue::Null,
        // The connector has `hstore.handling.mode=json`.
        (ValueKind::Plain(TypeFamily::Hstore), Json::String(map)) => read_map_in_string(map)?,
        (ValueKind::Plain(TypeFamily::Array(_)) | ValueKind::Array(_), Json::Array(_))
            if has_lost_lists(json)? =>
        {
            return Err(malformed(
                "a list has several dimensions, whose values Debezium does not write",
            )
            .hint("Leave the column out of the connector's `column.include.list`."));
        }
        (ValueKind::Plain(family), _) => SPELLING.cast(json, family)?,
        (ValueKind::Guess(family), _) => read_without_schema(json, family, modes)?,
        (ValueKind::Decimal(scale), Json::String(digits)) => {
            let Some(bytes) = base64(&digits.text()?) else { return Err(not_base64_error()) };
            number(&bytes, *scale)?
        }
        // The converter has `decimal.format=numeric`.
        (ValueKind::Decimal(_) | ValueKind::VariableDecimal, Json::Number(number)) => text(number),
        (ValueKind::VariableDecimal, Json::Object(_)) => read_variable_decimal(json)?,
        (ValueKind::Bytes, Json::String(digits)) => match base64(&digits.text()?) {
            Some(bytes) => text(bytea(&bytes)),
            None => return Err(not_base64_error()),
        },
        (ValueKind::TextAsBytes, Json::String(digits)) => {
            let bytes = base64(&digits.text()?).ok_or_else(not_base64_error)?;
            text(String::from_utf8(bytes).map_err(|_| malformed("expected bytes of a text"))?)
        }
        (ValueKind::Bits(length), Json::String(digits)) => match base64(&digits.text()?) {
            Some(bytes) => text(bits(&bytes, *length)?),
            None => return Err(not_base64_error()),
        },
        (ValueKind::Days, Json::Number(days)) => text(moments::date(parse_i64(days)?)),
        (ValueKind::Time(unit), Json::Number(count)) => time(parse_i64(count)?, *unit)?,
        (ValueKind::Timestamp(unit, zoned), Json::Number(count)) => {
            text(moments::timestamp(parse_i64(count)?, *unit, if *zoned { "+00" } else { "" }))
        }
        (ValueKind::Duration(unit), Json::Number(count)) => {
            text(moments::duration(parse_i64(count)?, *unit))
        }
        (ValueKind::Iso, Json::String(written)) => text(moments::iso(&written.text()?)),
        (ValueKind::Array(element), Json::Array(_)) => {
            let mut out = String::new();
            if let Some(items) = json.array() {
                let nests = !matches!(**element, ValueKind::Plain(TypeFamily::Json));
                array(items, nests, &mut |item| value(item, element, modes), &mut out, 1)?;
            }
            text(out)
        }
        (ValueKind::Array(_), Json::String(literal)) => text(literal.text()?),
        (ValueKind::Point, Json::Object(_)) => point(json)?,
        (ValueKind::Point, Json::String(written)) => text(written.text()?),
        (ValueKind::SparseVector, Json::Object(_)) => sparse_vector(json)?,
        (ValueKind::Geometry, _) => {
            return Err(malformed("geometry values are not supported").hint(
                "Leave the column out of the connector's `column.include.list`, or let the source \
                 give it as text.",
            ));
        }
        _ => return Err(malformed("the value does not match its schema")),
    })
}

/// Reads a value without a schema.
fn read_without_schema(
    json: Json<'_>,
    family: &TypeFamily,
    modes: &mut ConnectorModes,
) -> Result<EventValue> {
    Ok(match (family, json) {
        (TypeFamily::Numeric, Json::String(digits)) => {
            read_decimal_without_schema(&digits.text()?, modes)?
        }
        (TypeFamily::Bytea, Json::String(digits)) => {
            read_bytes_without_schema(&digits.text()?, modes)?
        }
        (TypeFamily::Date, Json::Number(days)) => text(moments::date(parse_i64(days)?)),
        (TypeFamily::Time, Json::Number(count)) => {
            let count = parse_i64(count)?;
            // More microseconds than a day has could be nanoseconds.
            if modes.unit.is_none() && count > 86_400_000_000 {
                return Err(unknown_unit_error());
            }
            time(count, unit_of_time(count, modes)?)?
        }
        (TypeFamily::Timestamp(zoned), Json::Number(count)) => {
            let zone = if *zoned { "+00" } else { "" };
            text(read_timestamp_without_schema(parse_i64(count)?, modes.unit, zone)?)
        }
        (TypeFamily::Date | TypeFamily::Timestamp(_), Json::String(written)) => {
            text(moments::iso(&written.text()?))
        }
        // A time of the day for an interval column. Its zone `Z` means nothing here.
        (TypeFamily::Interval, Json::String(written)) => {
            let written = written.text()?;
            text(written.strip_suffix('Z').unwrap_or(&written))
        }
        (TypeFamily::Interval, Json::Number(count)) => {
            let count = parse_i64(count)?;
            // Intervals are microseconds, whatever the connector's mode for times is. A number of
            // milliseconds is a TIME of MySQL, which has at most those of a day.
            let is_sure = count == 0 || count.unsigned_abs() > 86_400_000;
            if !is_sure && modes.unit != Some(TimeUnit::Micro) {
                return Err(unknown_interval_unit_error());
            }
            text(moments::duration(count, TimeUnit::Micro))
        }
        (TypeFamily::Bits | TypeFamily::VarBits, Json::String(digits)) => {
            let digits = digits.text()?;
            if !digits.bytes().all(|digit| matches!(digit, b'0' | b'1')) {
                return Err(malformed(
                    "bits are written as bytes, and their number is unknown without a schema",
                )
                .hint(SCHEMAS));
            }
            text(digits)
        }
        (TypeFamily::Numeric, Json::Object(_)) => read_variable_decimal(json)?,
        _ => SPELLING.cast(json, family)?,
    })
}

/// Returns the unit of a time of the day without a schema.
///
/// # Errors
/// If the unit is unknown and the count could be milliseconds of a day. As microseconds, such a
/// count is less than 87 seconds.
fn unit_of_time(count: i64, modes: &ConnectorModes) -> Result<TimeUnit> {
    let is_sure = count == 0 || count.unsigned_abs() > 86_400_000;
    modes.unit.or(is_sure.then_some(TimeUnit::Micro)).ok_or_else(unknown_unit_error)
}

/// Reads a timestamp without a schema, counted in `unit`, or else in microseconds.
///
/// # Errors
/// If `unit` is unknown and the count could have another unit. If `unit` is known and the time is
/// after the year 9999: then `unit` is likely to be wrong.
fn read_timestamp_without_schema(count: i64, unit: Option<TimeUnit>, zone: &str) -> Result<String> {
    // As microseconds, this range is from 1978 to the year 5138. Milliseconds are below the range
    // until the year 9999, and nanoseconds above it from 1973 on.
    let usual = 253_402_300_800_000..100_000_000_000_000_000;
    let written = moments::timestamp(count, unit.unwrap_or(TimeUnit::Micro), zone);
    let is_sure = count == 0 || usual.contains(&count.unsigned_abs());
    match unit {
        _ if written.ends_with("infinity") => Ok(written),
        None if !is_sure => Err(unknown_unit_error()),
        Some(unit) if moments::is_after_year_9999(count, unit) => {
            let message = "a time is after the year 9999 in the unit of `--debezium-time`";
            Err(malformed(message).hint(SCHEMAS))
        }
        _ => Ok(written),
    }
}

/// Reads a map that is JSON within a string.
fn read_map_in_string(map: JsonStr<'_>) -> Result<EventValue> {
    let spelled = map.text()?;
    // A text that is not JSON may be an hstore literal.
    match object(spelled.as_bytes()).and_then(check_fields).is_ok() {
        true => SPELLING.cast(Json::Object(spelled.trim()), &TypeFamily::Hstore),
        false => Ok(text(spelled)),
    }
}

/// Checks that an object is valid JSON to its end.
fn check_fields(mut fields: JsonFields<'_>) -> Result<()> {
    while fields.next()?.is_some() {}
    Ok(())
}

const SCHEMAS: &str = "Let the connector write schemas beside its values \
                       (`value.converter.schemas.enable=true`).";

/// Reads the text of a decimal without a schema, which is a number or base64.
fn read_decimal_without_schema(digits: &str, modes: &mut ConnectorModes) -> Result<EventValue> {
    let spelled = digits.strip_prefix(['+', '-']).unwrap_or(digits);
    let is_number = matches!(spelled, "NaN" | "Infinity")
        || (spelled.starts_with(|char: char| char.is_ascii_digit() || char == '.')
            && spelled.bytes().all(|byte| {
                byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-')
            }));
    if !digits.len().is_multiple_of(4) || digits.bytes().any(|b| matches!(b, b'.' | b'-')) {
        if is_number {
            modes.text_decimals = Some(true);
        }
    } else if !is_number {
        modes.text_decimals = Some(false);
    }
    match (is_number, modes.text_decimals) {
        (true, Some(true)) => Ok(text(digits)),
        (true, None) => Err(malformed("a decimal could be a number or base64")),
        _ => Err(malformed(
            "a decimal is written as bytes, and its scale is unknown without a schema",
        )),
    }
    .map_err(|error: Error| {
        error.hint(format!(
            "{SCHEMAS} Or set `decimal.handling.mode=string` there, and add \
             `--debezium-decimals text`."
        ))
    })
}

/// Reads bytes without a schema, which are base64 or hexadecimal digits.
fn read_bytes_without_schema(digits: &str, modes: &mut ConnectorModes) -> Result<EventValue> {
    let as_base64 = base64(digits);
    match (&as_base64, is_hex(digits)) {
        _ if digits.is_empty() => return Ok(text("\\x")),
        (Some(_), false) => modes.hex_bytes = Some(false),
        (None, true) => modes.hex_bytes = Some(true),
        _ => {}
    }
    match (modes.hex_bytes, as_base64) {
        (Some(true), _) if is_hex(digits) => Ok(text(format!("\\x{digits}"))),
        (Some(false), Some(bytes)) => Ok(text(bytea(&bytes))),
        (None, Some(_)) => Err(malformed("bytes could be base64 or hexadecimal digits").hint(
            format!("{SCHEMAS} Or add `--debezium-bytes base64` or `--debezium-bytes hex`."),
        )),
        _ => Err(malformed("expected bytes as base64 or hexadecimal digits")),
    }
}

fn unknown_unit_error() -> Error {
    malformed("a time could be counted in milli-, micro- or nanoseconds")
        .hint(format!("{SCHEMAS} Or name the unit: `--debezium-time ms`, `us` or `ns`."))
}

fn unknown_interval_unit_error() -> Error {
    malformed("an interval could be counted in milli- or microseconds").hint(format!(
        "{SCHEMAS} Or use `interval.handling.mode=string`. A TIME of MySQL fits a column of type \
         time."
    ))
}

fn not_base64_error() -> Error {
    malformed("expected bytes as base64")
}

/// Parses a whole number of 64 bits.
fn parse_i64(number: &str) -> Result<i64> {
    number.parse().map_err(|_| malformed("expected a whole number of 64 bits"))
}

fn time(count: i64, unit: TimeUnit) -> Result<EventValue> {
    match moments::time(count, unit) {
        Some(time) => Ok(text(time)),
        None => Err(malformed("a time is not within a day")),
    }
}

fn number(bytes: &[u8], scale: i32) -> Result<EventValue> {
    match decimal(bytes, scale) {
        Some(number) => Ok(text(number)),
        None => Err(malformed("a decimal has more digits than numeric allows")),
    }
}

/// Reads a decimal of variable scale: `{"scale": 2, "value": "MTIz"}`.
fn read_variable_decimal(json: Json<'_>) -> Result<EventValue> {
    let (mut scale, mut bytes) = (None, None);
    if let Some(mut fields) = json.object() {
        while let Some((key, value)) = fields.next()? {
            match value {
                Json::Number(number) if key.is("scale") => scale = number.parse().ok(),
                Json::String(digits) if key.is("value") => bytes = base64(&digits.text()?),
                _ => {}
            }
        }
    }
    match (scale, bytes) {
        (Some(scale), Some(bytes)) => number(&bytes, scale),
        _ => Err(malformed("expected a decimal's \"scale\" and \"value\"")),
    }
}

/// Returns whether Java has written the names of inner lists instead of their items.
fn has_lost_lists(list: Json<'_>) -> Result<bool> {
    let Some(mut items) = list.array() else { return Ok(false) };
    while let Some(item) = items.next()? {
        let Json::String(item) = item else { continue };
        let item = item.text()?;
        let Some((class, hash)) = item.split_once('@') else { continue };
        let is_class = class.starts_with("[L") && class.ends_with(';');
        if is_class && !hash.is_empty() && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The most bits that PostgreSQL's bit types hold.
const BITS_MAX: usize = 83_886_080;

/// The longest bit type whose bytes may be fewer than its length. MySQL's type has at most this
/// many bits.
const PADDED_BITS_MAX: usize = 64;

/// Writes bits, the most significant bit first. `bytes` begin with the least significant byte.
fn bits(bytes: &[u8], length: usize) -> Result<String> {
    if length > BITS_MAX {
        return Err(malformed("the value has more bits than bit varying allows"));
    }
    if length.div_ceil(8) > bytes.len() && length > PADDED_BITS_MAX {
        return Err(malformed("the value has fewer bits than its schema says"));
    }
    let bit = |at: usize| bytes.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1);
    if (length..bytes.len() * 8).any(bit) {
        return Err(malformed("the value has more bits than its schema says"));
    }
    Ok((0..length).rev().map(|at| if bit(at) { '1' } else { '0' }).collect())
}

fn point(json: Json<'_>) -> Result<EventValue> {
    let (mut x, mut y) = (None, None);
    if let Some(mut fields) = json.object() {
        while let Some((key, value)) = fields.next()? {
            if key.is("x") {
                x = value.word()?;
            } else if key.is("y") {
                y = value.word()?;
            }
        }
    }
    match (x, y) {
        (Some(x), Some(y)) => Ok(text(format!("({x},{y})"))),
        _ => Err(malformed("expected a point's \"x\" and \"y\"")),
    }
}

/// Converts `{"dimensions": 5, "vector": {"1": 0.5}}` to pgvector's `{1:0.5}/5`.
fn sparse_vector(json: Json<'_>) -> Result<EventValue> {
    let (mut dimensions, mut out) = (None, String::from("{"));
    if let Some(mut fields) = json.object() {
        while let Some((key, value)) = fields.next()? {
            if key.is("dimensions") {
                dimensions = value.word()?;
            } else if let (true, Some(mut entries)) = (key.is("vector"), value.object()) {
                while let Some((index, entry)) = entries.next()? {
                    let Some(entry) = entry.word()? else { continue };
                    if out.len() > 1 {
                        out.push(',');
                    }
                    out.push_str(&format!("{}:{entry}", index.text()?));
                }
            }
        }
    }
    match dimensions {
        Some(dimensions) => Ok(text(format!("{out}}}/{dimensions}"))),
        None => Err(malformed("expected a vector's \"dimensions\" and \"vector\"")),
    }
}
