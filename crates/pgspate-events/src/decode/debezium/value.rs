//! Values of Debezium's, read as their kind says.
//!
//! What could mean two things is refused with what to set in the connector, unless the caller or
//! earlier values of the stream have settled it.

use super::super::binary::{base64, bytea, decimal, is_hex};
use super::super::cast::{ByteSpelling, TypeFamily, JsonSpelling, array, text};
use super::super::json::{Fields, Json, Str, malformed, object};
use super::super::moments::{self, TimeUnit};
use super::kind::Kind;
use super::placeholder::Placeholder;
use crate::{Error, Result, EventValue};

const SPELLING: JsonSpelling = JsonSpelling { bytes: ByteSpelling::Base64, json_strings: false };

/// What a connector's settings are, as far as it is known: told by the caller or seen in values.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Modes {
    /// Decimals are text (`decimal.handling.mode=string`), or bytes.
    pub(super) text_decimals: Option<bool>,
    /// Bytes are hexadecimal digits (`binary.handling.mode=hex`), or base64.
    pub(super) hex_bytes: Option<bool>,
    /// What times and timestamps without a schema are counted in.
    pub(super) unit: Option<TimeUnit>,
}

/// Reads a value. What stands for one that is not told is absent.
pub(super) fn read(
    json: Json<'_>,
    kind: &Kind,
    placeholder: &Placeholder,
    modes: &mut Modes,
) -> Result<EventValue> {
    let is_binary = matches!(
        kind,
        Kind::Bytes
            | Kind::TextAsBytes
            | Kind::Bits(_)
            | Kind::Decimal(_)
            | Kind::Guess(TypeFamily::Bytea | TypeFamily::Numeric)
    );
    match placeholder.is(json, is_binary)? {
        true => Ok(EventValue::Absent),
        false => value(json, kind, modes),
    }
}

fn value(json: Json<'_>, kind: &Kind, modes: &mut Modes) -> Result<EventValue> {
    Ok(match (kind, json) {
        (_, Json::Null) => EventValue::Null,
        // With hstore.handling.mode=json.
        (Kind::Plain(TypeFamily::Hstore), Json::String(map)) => map_within(map)?,
        (Kind::Plain(TypeFamily::Array(_)) | Kind::Array(_), Json::Array(_)) if has_lost_lists(json)? => {
            return Err(malformed("a list of several dimensions, which Debezium does not write")
                .hint("Leave the column out of the connector's `column.include.list`."));
        }
        (Kind::Plain(form), _) => SPELLING.cast(json, form)?,
        (Kind::Guess(form), _) => guess(json, form, modes)?,
        (Kind::Decimal(scale), Json::String(digits)) => {
            let Some(bytes) = base64(&digits.text()?) else { return Err(no_base64()) };
            number(&bytes, *scale)?
        }
        // With another setting of json.decimal.format than base64.
        (Kind::Decimal(_) | Kind::VariableDecimal, Json::Number(number)) => text(number),
        (Kind::VariableDecimal, Json::Object(_)) => variable(json)?,
        (Kind::Bytes, Json::String(digits)) => match base64(&digits.text()?) {
            Some(bytes) => text(bytea(&bytes)),
            None => return Err(no_base64()),
        },
        (Kind::TextAsBytes, Json::String(digits)) => {
            let bytes = base64(&digits.text()?).ok_or_else(no_base64)?;
            text(String::from_utf8(bytes).map_err(|_| malformed("expected bytes of a text"))?)
        }
        (Kind::Bits(length), Json::String(digits)) => match base64(&digits.text()?) {
            Some(bytes) => text(bits(&bytes, *length)?),
            None => return Err(no_base64()),
        },
        (Kind::Days, Json::Number(days)) => text(moments::date(whole(days)?)),
        (Kind::Time(unit), Json::Number(count)) => time(whole(count)?, *unit)?,
        (Kind::Stamp(unit, zoned), Json::Number(count)) => {
            text(moments::stamp(whole(count)?, *unit, if *zoned { "+00" } else { "" }))
        }
        (Kind::Duration(unit), Json::Number(count)) => {
            text(moments::duration(whole(count)?, *unit))
        }
        (Kind::Iso, Json::String(written)) => text(moments::iso(&written.text()?)),
        (Kind::Array(element), Json::Array(_)) => {
            let mut out = String::new();
            if let Some(items) = json.array() {
                let nests = !matches!(**element, Kind::Plain(TypeFamily::Json));
                array(items, nests, &mut |item| value(item, element, modes), &mut out, 1)?;
            }
            text(out)
        }
        (Kind::Array(_), Json::String(literal)) => text(literal.text()?),
        (Kind::Point, Json::Object(_)) => point(json)?,
        (Kind::Point, Json::String(written)) => text(written.text()?),
        (Kind::SparseVector, Json::Object(_)) => sparse_vector(json)?,
        (Kind::Geometry, _) => {
            return Err(malformed("geometries are not read").hint(
                "Leave the column out of the connector's `column.include.list`, or let the source \
                 give it as text.",
            ));
        }
        _ => return Err(malformed("the value is not what its schema says")),
    })
}

/// A value without a schema.
fn guess(json: Json<'_>, form: &TypeFamily, modes: &mut Modes) -> Result<EventValue> {
    Ok(match (form, json) {
        (TypeFamily::Numeric, Json::String(digits)) => text_decimal(&digits.text()?, modes)?,
        (TypeFamily::Bytea, Json::String(digits)) => some_bytes(&digits.text()?, modes)?,
        (TypeFamily::Date, Json::Number(days)) => text(moments::date(whole(days)?)),
        (TypeFamily::Time, Json::Number(count)) => {
            let count = whole(count)?;
            // Milliseconds of a whole day; as microseconds, less than 87 seconds past midnight.
            let unit = modes.unit.or_else(|| {
                (count == 0 || (86_400_001..=86_400_000_000).contains(&count))
                    .then_some(TimeUnit::Micro)
            });
            time(count, unit.ok_or_else(unknown_unit)?)?
        }
        (TypeFamily::Stamp(zoned), Json::Number(count)) => {
            let count = whole(count)?;
            // From the end of April 1970 to the year 5138 as microseconds; milliseconds are below
            // that until 2286, nanoseconds beyond from 1973 on.
            let usual = 10_000_000_000_000..100_000_000_000_000_000;
            let is_sure = count == 0
                || usual.contains(&count.unsigned_abs())
                || moments::stamp(count, TimeUnit::Micro, "").ends_with("infinity");
            let unit = modes.unit.or(is_sure.then_some(TimeUnit::Micro));
            let zone = if *zoned { "+00" } else { "" };
            text(moments::stamp(count, unit.ok_or_else(unknown_unit)?, zone))
        }
        (TypeFamily::Date | TypeFamily::Stamp(_), Json::String(written)) => {
            text(moments::iso(&written.text()?))
        }
        // A time of the day, with the zone that none of them has.
        (TypeFamily::Interval, Json::String(written)) => {
            let written = written.text()?;
            text(written.strip_suffix('Z').unwrap_or(&written))
        }
        (TypeFamily::Interval, Json::Number(count)) => {
            text(moments::duration(whole(count)?, modes.unit.unwrap_or(TimeUnit::Micro)))
        }
        (TypeFamily::Bits | TypeFamily::VarBits, Json::String(digits)) => {
            let digits = digits.text()?;
            if !digits.bytes().all(|digit| matches!(digit, b'0' | b'1')) {
                return Err(malformed("bits as bytes, without how many they are").hint(SCHEMAS));
            }
            text(digits)
        }
        (TypeFamily::Numeric, Json::Object(_)) => variable(json)?,
        _ => SPELLING.cast(json, form)?,
    })
}

/// A map that is JSON within a string.
fn map_within(map: Str<'_>) -> Result<EventValue> {
    let spelled = map.text()?;
    // What is no JSON may be a literal yet.
    match object(spelled.as_bytes()).and_then(walk).is_ok() {
        true => SPELLING.cast(Json::Object(spelled.trim()), &TypeFamily::Hstore),
        false => Ok(text(spelled)),
    }
}

fn walk(mut fields: Fields<'_>) -> Result<()> {
    while fields.next()?.is_some() {}
    Ok(())
}

const SCHEMAS: &str = "Let the connector write schemas beside its values \
                       (`value.converter.schemas.enable=true`).";

fn text_decimal(digits: &str, modes: &mut Modes) -> Result<EventValue> {
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
        (true, None) => Err(malformed("a decimal that may be a number or base64")),
        _ => Err(malformed("a decimal as bytes, without its scale")),
    }
    .map_err(|error: Error| {
        error.hint(format!(
            "{SCHEMAS} Or set `decimal.handling.mode=string` there; if it is, say \
             `--debezium-decimals text`."
        ))
    })
}

fn some_bytes(digits: &str, modes: &mut Modes) -> Result<EventValue> {
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
        (None, Some(_)) => {
            Err(malformed("bytes that may be base64 or hexadecimal digits").hint(format!(
                "{SCHEMAS} Or say which with `--debezium-bytes base64` or `--debezium-bytes hex`."
            )))
        }
        _ => Err(malformed("expected bytes as base64 or hexadecimal digits")),
    }
}

fn unknown_unit() -> Error {
    malformed("a time that may be counted in milli-, micro- or nanoseconds")
        .hint(format!("{SCHEMAS} Or say which with `--debezium-time ms|us|ns`."))
}

fn no_base64() -> Error {
    malformed("expected bytes as base64")
}

fn whole(number: &str) -> Result<i64> {
    number.parse().map_err(|_| malformed("expected a whole number of 64 bits"))
}

fn time(count: i64, unit: TimeUnit) -> Result<EventValue> {
    match moments::time(count, unit) {
        Some(time) => Ok(text(time)),
        None => Err(malformed("a time that is not within a day")),
    }
}

fn number(bytes: &[u8], scale: i32) -> Result<EventValue> {
    match decimal(bytes, scale) {
        Some(number) => Ok(text(number)),
        None => Err(malformed("a decimal of more digits than numeric has")),
    }
}

/// `{"scale": 2, "value": "MTIz"}`
fn variable(json: Json<'_>) -> Result<EventValue> {
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

/// Whether Java has written the names of inner lists, and not what is in them.
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

/// What PostgreSQL's types of bits hold at most.
const BITS_MAX: usize = 83_886_080;

/// Bits that need not be there as bytes. MySQL's type has at most as many.
const PADDED_BITS_MAX: usize = 64;

/// Bits as their type writes them, the most significant first, from bytes in the other order.
fn bits(bytes: &[u8], length: usize) -> Result<String> {
    if length > BITS_MAX {
        return Err(malformed("more bits than a type can have"));
    }
    if length.div_ceil(8) > bytes.len() && length > PADDED_BITS_MAX {
        return Err(malformed("fewer bits than the schema says"));
    }
    let bit = |at: usize| bytes.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1);
    if (length..bytes.len() * 8).any(bit) {
        return Err(malformed("more bits than the schema says"));
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

/// `{"dimensions": 5, "vector": {"1": 0.5}}` as pgvector's `{1:0.5}/5`.
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
