//! Text fields to binary COPY values, one file per family of types.
//!
//! [`FieldEncoder::encode`] takes exactly the spellings for which its bytes are those that the
//! server's input function followed by its binary output would give. It says no to all others,
//! valid or not, and the row goes to the server as text. What the server's receive functions check
//! as its input functions do (lengths and type modifiers, encodings, the syntax of JSON, labels of
//! enums, constraints of domains, the order of range bounds) is left to them. Settings that
//! [`Session`] does not hold are taken to be the server's defaults; one of them matters:
//! `array_nulls`.

mod array;
mod bits;
mod boolean;
mod bytes;
mod civil;
mod clock;
mod digits;
mod float;
mod int;
mod interval;
mod network;
mod numeric;
mod numeric_long;
mod range;
mod stamp;
mod uuid;

use crate::types::{PgType, Session, TypeKind};
use array::ArrayEncoder;
use range::RangeEncoder;
use stamp::Zones;

/// Encodes the fields of one column.
#[derive(Debug, Clone)]
pub struct FieldEncoder {
    family: Family,
    name: &'static str,
}

/// The families of types, those that big tables are made of first.
#[derive(Debug, Clone)]
enum Family {
    /// The value's bytes are the field's bytes: text, varchar, bpchar, json, enums.
    Bytes,
    Int2,
    Int4,
    Int8,
    Float8,
    /// Whether the server knows infinity (14 and later).
    Numeric(bool),
    Date(Zones),
    Timestamp(Zones),
    Timestamptz(Zones),
    /// A rarer type whose values depend on their fields alone.
    Plain(fn(&[u8], &mut Vec<u8>) -> bool),
    Timetz(Zones),
    Interval(interval::Style),
    Name {
        /// The longest name with a byte above 127 that surely needs no truncation.
        high_len_max: usize,
    },
    Array(Box<ArrayEncoder>),
    Range(Box<RangeEncoder>),
}

impl FieldEncoder {
    /// The encoder for a column's type under a session's settings, or the reason why the type is
    /// left to the server.
    pub fn new(ty: &PgType, session: &Session) -> Result<FieldEncoder, String> {
        let base = ty.base();
        let (family, name) = match &base.kind {
            TypeKind::Enum => (Family::Bytes, "bytes"),
            TypeKind::Base => base_family(base, session, has_typmod(ty))?,
            TypeKind::Array(element, delimiter) => {
                let array = ArrayEncoder::new(ty, element, *delimiter, session)?;
                (Family::Array(Box::new(array)), "array")
            }
            TypeKind::Range(subtype) => {
                (Family::Range(Box::new(RangeEncoder::new(subtype, session)?)), "range")
            }
            TypeKind::Domain(_) | TypeKind::Other => {
                return Err(format!("only the server can read type {}", base.name));
            }
        };
        Ok(FieldEncoder { family, name })
    }

    /// Appends the value's length (int32) and its binary form to `out`. When it returns false the
    /// spelling is left to the server, and what it appended is void: the caller truncates.
    #[inline]
    pub fn encode(&self, field: &[u8], out: &mut Vec<u8>) -> bool {
        match &self.family {
            Family::Bytes => bytes::append(field, out),
            Family::Int2 => int::int2(field, out),
            Family::Int4 => int::int4(field, out),
            Family::Int8 => int::int8(field, out),
            Family::Float8 => float::float8(field, out),
            Family::Numeric(infinity) => numeric::append(field, *infinity, out),
            Family::Date(zones) => stamp::date(field, *zones, out),
            Family::Timestamp(zones) => stamp::timestamp(field, *zones, out),
            Family::Timestamptz(zones) => stamp::timestamptz(field, *zones, out),
            Family::Plain(append) => append(field, out),
            _ => self.encode_rarer(field, out),
        }
    }

    #[inline(never)]
    fn encode_rarer(&self, field: &[u8], out: &mut Vec<u8>) -> bool {
        match &self.family {
            Family::Timetz(zones) => stamp::timetz(field, *zones, out),
            Family::Interval(style) => interval::append(field, *style, out),
            Family::Name { high_len_max } => bytes::name(field, *high_len_max, out),
            Family::Array(array) => array.append(field, out),
            Family::Range(range) => range.append(field, out),
            // Those of `encode`, named so that the compiler asks for a new one here.
            Family::Bytes | Family::Int2 | Family::Int4 | Family::Int8 | Family::Float8 => false,
            Family::Numeric(_) | Family::Date(_) | Family::Timestamp(_) => false,
            Family::Timestamptz(_) | Family::Plain(_) => false,
        }
    }

    /// A short name of what the encoder makes, for plans: `int8`, `numeric`, `bytes`.
    pub fn family_name(&self) -> &'static str {
        self.name
    }
}

/// The family of a built-in type, by its OID, and its name.
fn base_family(
    ty: &PgType,
    session: &Session,
    has_typmod: bool,
) -> Result<(Family, &'static str), String> {
    use Family::Plain;
    let zones = Zones::of(session);
    Ok(match ty.oid {
        16 => (Plain(boolean::append), "bool"),
        17 => (Plain(bytes::bytea), "bytea"),
        18 => (Plain(bytes::char), "char"),
        19 => (Family::Name { high_len_max: bytes::name_high_len_max(session) }, "bytes"),
        20 => (Family::Int8, "int8"),
        21 => (Family::Int2, "int2"),
        23 => (Family::Int4, "int4"),
        25 | 1042 | 1043 | 114 => (Family::Bytes, "bytes"),
        26 => (Plain(int::oid), "oid"),
        650 => (Plain(network::inet::<true>), "cidr"),
        700 => (Plain(float::float4), "float4"),
        701 => (Family::Float8, "float8"),
        774 => (Plain(network::macaddr::<8>), "macaddr"),
        790 => return Err("type money depends on lc_monetary".to_string()),
        829 => (Plain(network::macaddr::<6>), "macaddr"),
        869 => (Plain(network::inet::<false>), "inet"),
        1560 | 1562 => (Plain(bits::append), "bit"),
        1700 => (Family::Numeric(session.server_version >= 140_000), "numeric"),
        2950 => (Plain(uuid::append), "uuid"),
        3802 => (Plain(bytes::jsonb), "jsonb"),
        1082 => (Family::Date(zones), "date"),
        1083 => (Plain(clock::time), "time"),
        1114 => (Family::Timestamp(zones), "timestamp"),
        1184 => (Family::Timestamptz(zones), "timestamptz"),
        1186 => (Family::Interval(interval::Style::of(session, has_typmod)), "interval"),
        1266 => (Family::Timetz(zones), "timetz"),
        _ => return Err(format!("only the server can read type {}", ty.name)),
    })
}

/// Whether a modifier applies to values of the type, its own or one of a domain beneath.
fn has_typmod(ty: &PgType) -> bool {
    match &ty.kind {
        TypeKind::Domain(inner) => ty.typmod != -1 || has_typmod(inner),
        _ => ty.typmod != -1,
    }
}

/// Whether the server takes the byte for space before and after numbers (`isspace` in ASCII).
#[inline]
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// The field without the space around it.
fn trim(field: &[u8]) -> &[u8] {
    let start = field.iter().position(|&b| !is_space(b)).unwrap_or(field.len());
    let end = field.iter().rposition(|&b| !is_space(b)).map_or(start, |at| at + 1);
    &field[start..end]
}

/// A value of fixed size with its length before it.
#[inline(always)]
fn append_fixed<const N: usize>(value: [u8; N], out: &mut Vec<u8>) -> bool {
    out.reserve(4 + N);
    out.extend_from_slice(&(N as i32).to_be_bytes());
    out.extend_from_slice(&value);
    true
}

/// A value of four bytes with its length before it, in one store.
#[inline(always)]
fn append4(value: i32, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(&(4 << 32 | u64::from(value as u32)).to_be_bytes());
    true
}
