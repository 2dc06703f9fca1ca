//! Encodes text fields as binary COPY values. Each family of types has its own file.
//!
//! [`FieldEncoder::encode`] accepts a text only if its bytes are exactly what the server's input
//! function and then its send function would give. The encoder rejects all other texts, even valid
//! texts. A row with a rejected text goes to the server as text.
//!
//! Some checks are left to the server, because its receive functions make the same checks as its
//! input functions. These checks are for lengths and type modifiers, encodings, the syntax of JSON,
//! labels of enums, constraints of domains, and the order of range bounds.
//!
//! Settings that are not in [`SessionSettings`] are assumed to have the server's defaults.

mod array;
mod bits;
mod boolean;
mod bytes;
mod calendar_date;
mod digits;
mod float;
mod int;
mod interval;
mod long_numeric;
mod network;
mod numeric;
mod range;
mod time_of_day;
mod timestamp;
mod uuid;

use std::sync::Arc;

pub use self::calendar_date::day_number;
use super::date_format::DateFormat;
use crate::types::{PgType, SessionSettings, TypeKind};
use array::ArrayEncoder;
use range::RangeEncoder;
use timestamp::ZoneRules;

/// Encodes the fields of one column.
#[derive(Debug, Clone)]
pub struct FieldEncoder {
    family: EncoderFamily,
    name: &'static str,
}

/// A family of types that share an encoder. The most frequent families come first.
#[derive(Debug, Clone)]
enum EncoderFamily {
    /// Types whose binary value is the text itself: text, varchar, bpchar, json, enums.
    Bytes,
    Int2,
    Int4,
    Int8,
    Float8,
    /// numeric, and whether the server supports infinity (version 14 and later).
    Numeric(bool),
    Date(ZoneRules),
    Timestamp(ZoneRules),
    Timestamptz(ZoneRules),
    /// A rarer type whose value depends on no setting.
    Plain(fn(&[u8], &mut Vec<u8>) -> bool),
    Timetz(ZoneRules),
    Interval(interval::IntervalRules),
    Name {
        /// The longest name with a byte above 127 that the server certainly does not truncate.
        non_ascii_len_max: usize,
    },
    Array(Box<ArrayEncoder>),
    Range(Box<RangeEncoder>),
    /// A date or timestamp that is written in another format than ISO.
    Respelled(Arc<DateFormat>, Box<FieldEncoder>),
    /// Values that this check accepts. Other values are refused later.
    Checked(fn(&[u8]) -> bool, Box<FieldEncoder>),
}

impl FieldEncoder {
    /// Returns the encoder for a column's type under a session's settings.
    ///
    /// # Errors
    /// The reason why the type is left to the server.
    pub fn new(ty: &PgType, session: &SessionSettings) -> Result<FieldEncoder, String> {
        let base = ty.base();
        let (family, name) = match &base.kind {
            TypeKind::Enum => (EncoderFamily::Bytes, "bytes"),
            TypeKind::Base => base_family(base, session, has_typmod(ty))?,
            TypeKind::Array(element, delimiter) => {
                let array = ArrayEncoder::new(ty, element, *delimiter, session)?;
                (EncoderFamily::Array(Box::new(array)), "array")
            }
            TypeKind::Range(subtype) => {
                (EncoderFamily::Range(Box::new(RangeEncoder::new(subtype, session)?)), "range")
            }
            TypeKind::Domain(_) | TypeKind::Other => {
                return Err(format!("only the server can read type {}", base.name));
            }
        };
        Ok(FieldEncoder { family, name })
    }

    /// Appends the value's length (int32) and its binary form to `out`. Returns false if the text
    /// is left to the server; the caller then truncates `out` to its former length.
    #[inline]
    pub fn encode(&self, field: &[u8], out: &mut Vec<u8>) -> bool {
        match &self.family {
            EncoderFamily::Bytes => bytes::encode_text(field, out),
            EncoderFamily::Int2 => int::encode_int2(field, out),
            EncoderFamily::Int4 => int::encode_int4(field, out),
            EncoderFamily::Int8 => int::encode_int8(field, out),
            EncoderFamily::Float8 => float::encode_float8(field, out),
            EncoderFamily::Numeric(infinity) => numeric::encode(field, *infinity, out),
            EncoderFamily::Date(zones) => timestamp::encode_date(field, *zones, out),
            EncoderFamily::Timestamp(zones) => timestamp::encode_timestamp(field, *zones, out),
            EncoderFamily::Timestamptz(zones) => timestamp::encode_timestamptz(field, *zones, out),
            EncoderFamily::Plain(append) => append(field, out),
            _ => self.encode_rare_type(field, out),
        }
    }

    #[inline(never)]
    fn encode_rare_type(&self, field: &[u8], out: &mut Vec<u8>) -> bool {
        match &self.family {
            EncoderFamily::Timetz(zones) => timestamp::encode_timetz(field, *zones, out),
            EncoderFamily::Interval(style) => interval::encode(field, *style, out),
            EncoderFamily::Name { non_ascii_len_max } => {
                bytes::encode_name(field, *non_ascii_len_max, out)
            }
            EncoderFamily::Array(array) => array.encode(field, out),
            EncoderFamily::Range(range) => range.encode(field, out),
            EncoderFamily::Respelled(format, encoder) => match format.respell(field) {
                Some(iso) => encoder.encode(iso.as_bytes(), out),
                None => false,
            },
            EncoderFamily::Checked(check, encoder) => check(field) && encoder.encode(field, out),
            // `encode` handles these families. They are listed so that the compiler reports a new
            // family.
            EncoderFamily::Bytes
            | EncoderFamily::Int2
            | EncoderFamily::Int4
            | EncoderFamily::Int8
            | EncoderFamily::Float8 => false,
            EncoderFamily::Numeric(_) | EncoderFamily::Date(_) | EncoderFamily::Timestamp(_) => {
                false
            }
            EncoderFamily::Timestamptz(_) | EncoderFamily::Plain(_) => false,
        }
    }

    /// Returns the encoder of texts in this format of dates.
    #[must_use]
    pub fn with_date_format(self, format: Arc<DateFormat>) -> FieldEncoder {
        let name = self.name;
        FieldEncoder { family: EncoderFamily::Respelled(format, Box::new(self)), name }
    }

    /// Returns the encoder of the texts that `check` accepts.
    #[must_use]
    pub fn with_check(self, check: fn(&[u8]) -> bool) -> FieldEncoder {
        let name = self.name;
        FieldEncoder { family: EncoderFamily::Checked(check, Box::new(self)), name }
    }

    /// Returns whether the binary value is the text itself, whatever the text is.
    pub fn is_text(&self) -> bool {
        matches!(self.family, EncoderFamily::Bytes)
    }

    /// Returns a short name of the encoder for plans: `int8`, `numeric`, `bytes`.
    pub fn family_name(&self) -> &'static str {
        self.name
    }
}

/// Returns the family of a built-in type, chosen by its OID, and the family's name.
fn base_family(
    ty: &PgType,
    session: &SessionSettings,
    has_typmod: bool,
) -> Result<(EncoderFamily, &'static str), String> {
    use EncoderFamily::Plain;
    let zones = ZoneRules::of(session);
    Ok(match ty.oid {
        16 => (Plain(boolean::encode), "bool"),
        17 => (Plain(bytes::encode_bytea), "bytea"),
        18 => (Plain(bytes::encode_char), "char"),
        19 => (
            EncoderFamily::Name { non_ascii_len_max: bytes::name_non_ascii_len_max(session) },
            "bytes",
        ),
        20 => (EncoderFamily::Int8, "int8"),
        21 => (EncoderFamily::Int2, "int2"),
        23 => (EncoderFamily::Int4, "int4"),
        25 | 1042 | 1043 | 114 => (EncoderFamily::Bytes, "bytes"),
        26 => (Plain(int::encode_oid), "oid"),
        650 => (Plain(network::encode_inet::<true>), "cidr"),
        700 => (Plain(float::encode_float4), "float4"),
        701 => (EncoderFamily::Float8, "float8"),
        774 => (Plain(network::encode_macaddr::<8>), "macaddr"),
        790 => return Err("type money depends on lc_monetary".to_string()),
        829 => (Plain(network::encode_macaddr::<6>), "macaddr"),
        869 => (Plain(network::encode_inet::<false>), "inet"),
        1560 | 1562 => (Plain(bits::encode), "bit"),
        1700 => (EncoderFamily::Numeric(session.server_version >= 140_000), "numeric"),
        2950 => (Plain(uuid::encode), "uuid"),
        3802 => (Plain(bytes::encode_jsonb), "jsonb"),
        1082 => (EncoderFamily::Date(zones), "date"),
        1083 => (Plain(time_of_day::encode_time), "time"),
        1114 => (EncoderFamily::Timestamp(zones), "timestamp"),
        1184 => (EncoderFamily::Timestamptz(zones), "timestamptz"),
        1186 => {
            (EncoderFamily::Interval(interval::IntervalRules::of(session, has_typmod)), "interval")
        }
        1266 => (EncoderFamily::Timetz(zones), "timetz"),
        _ => return Err(format!("only the server can read type {}", ty.name)),
    })
}

/// Returns whether the type, or a type beneath the domain, has a type modifier.
fn has_typmod(ty: &PgType) -> bool {
    match &ty.kind {
        TypeKind::Domain(inner) => ty.typmod != -1 || has_typmod(inner),
        _ => ty.typmod != -1,
    }
}

/// Returns whether the server skips the byte as space around numbers (`isspace` in ASCII).
#[inline]
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// Returns the field without the space around it.
fn trim(field: &[u8]) -> &[u8] {
    let start = field.iter().position(|&b| !is_space(b)).unwrap_or(field.len());
    let end = field.iter().rposition(|&b| !is_space(b)).map_or(start, |at| at + 1);
    &field[start..end]
}

/// Appends the length of a value of fixed size, then the value.
#[inline(always)]
fn append_fixed<const N: usize>(value: [u8; N], out: &mut Vec<u8>) -> bool {
    out.reserve(4 + N);
    out.extend_from_slice(&(N as i32).to_be_bytes());
    out.extend_from_slice(&value);
    true
}

/// Appends the length of a four-byte value, then the value, in one store.
#[inline(always)]
fn append_i32(value: i32, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(&(4 << 32 | u64::from(value as u32)).to_be_bytes());
    true
}
