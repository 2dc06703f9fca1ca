//! The kind of a column's values: from the schema in the message, or else from the target's type.
//!
//! Without a schema, some spellings have two meanings. Values with such a spelling are refused,
//! with a hint at the connector's setting, until other values of the stream show which meaning
//! applies.

use super::super::json_values::TypeFamily;
use super::super::moments::TimeUnit;
use super::schema::SchemaField;

/// How a value is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ValueKind {
    /// A spelling that the column's type in the target reads.
    Plain(TypeFamily),
    /// Base64 of an integer. The decimal point is this many digits before the integer's end.
    Decimal(i32),
    /// An object with the base64 of an integer, and with the scale of the decimal.
    VariableDecimal,
    /// Base64.
    Bytes,
    /// Base64 of the text of a type that Debezium does not know.
    TextAsBytes,
    /// Base64 of this many bits, the least significant byte first.
    Bits(usize),
    /// Days since 1970.
    Days,
    /// A count since midnight.
    Time(TimeUnit),
    /// A count since 1970 in UTC; true for timestamptz, which needs the time zone.
    Timestamp(TimeUnit, bool),
    Duration(TimeUnit),
    /// ISO 8601 as Java writes it.
    Iso,
    Array(Box<ValueKind>),
    /// An object of `x` and `y`.
    Point,
    Geometry,
    /// An object of dimensions and a map.
    SparseVector,
    /// A value without a schema, read by the family of the column's type.
    Guess(TypeFamily),
}

impl ValueKind {
    /// Returns the kind of a column without a schema, by the column's type in the target.
    pub(super) fn guess(ty: Option<&str>) -> ValueKind {
        if ty == Some("point") {
            return ValueKind::Point;
        }
        ValueKind::of_form(ty.map_or(TypeFamily::Other, TypeFamily::of))
    }

    fn of_form(family: TypeFamily) -> ValueKind {
        match family {
            TypeFamily::Array(element) => ValueKind::Array(Box::new(ValueKind::of_form(*element))),
            TypeFamily::Other | TypeFamily::Json | TypeFamily::Hstore => ValueKind::Plain(family),
            family => ValueKind::Guess(family),
        }
    }

    /// Returns the kind of a column by its schema. `ty` is the column's type in the target.
    pub(super) fn of(field: &SchemaField, ty: Option<&str>) -> ValueKind {
        let family = ty.map_or(TypeFamily::Other, TypeFamily::of);
        // Debezium writes the text of a type that it does not know as bytes without a name. For a
        // text column such bytes are base64 of bytes.
        let is_text = |ty| matches!(ty, "text" | "varchar" | "bpchar" | "name" | "citext");
        if (&*field.ty, &*field.name, &family) == ("bytes", "", &TypeFamily::Other)
            && ty.is_some_and(|ty| !is_text(ty))
        {
            return ValueKind::TextAsBytes;
        }
        ValueKind::of_field(field, family)
    }

    fn of_field(field: &SchemaField, family: TypeFamily) -> ValueKind {
        let semantic = field.name.strip_prefix("io.debezium.").unwrap_or(&field.name);
        let zoned = family == TypeFamily::Timestamp(true);
        match semantic.strip_prefix("org.apache.kafka.connect.").unwrap_or(semantic) {
            "data.Decimal" => match field.scale {
                Some(scale) => ValueKind::Decimal(scale),
                None => ValueKind::Guess(TypeFamily::Numeric),
            },
            "data.VariableScaleDecimal" => ValueKind::VariableDecimal,
            "time.Date" | "data.Date" => ValueKind::Days,
            // MySQL's time is a duration, and may be more than a day.
            "time.Time" | "data.Time" if family == TypeFamily::Interval => {
                ValueKind::Duration(TimeUnit::Milli)
            }
            "time.MicroTime" if family == TypeFamily::Interval => {
                ValueKind::Duration(TimeUnit::Micro)
            }
            "time.NanoTime" if family == TypeFamily::Interval => {
                ValueKind::Duration(TimeUnit::Nano)
            }
            "time.Time" | "data.Time" => ValueKind::Time(TimeUnit::Milli),
            "time.MicroTime" => ValueKind::Time(TimeUnit::Micro),
            "time.NanoTime" => ValueKind::Time(TimeUnit::Nano),
            "time.Timestamp" | "data.Timestamp" => ValueKind::Timestamp(TimeUnit::Milli, zoned),
            "time.MicroTimestamp" => ValueKind::Timestamp(TimeUnit::Micro, zoned),
            "time.NanoTimestamp" => ValueKind::Timestamp(TimeUnit::Nano, zoned),
            "time.ZonedTimestamp" | "time.IsoTimestamp" | "time.IsoDate" => ValueKind::Iso,
            "time.IsoTime" | "time.ZonedTime" if family == TypeFamily::Interval => {
                ValueKind::Guess(family)
            }
            "time.MicroDuration" => ValueKind::Duration(TimeUnit::Micro),
            "time.NanoDuration" => ValueKind::Duration(TimeUnit::Nano),
            // For bit varying the schema has only the largest number of bits.
            "data.Bits" => match field.length.filter(|_| family != TypeFamily::VarBits) {
                Some(length) => ValueKind::Bits(length),
                None => ValueKind::Guess(family),
            },
            "data.geometry.Point" if family == TypeFamily::Other => ValueKind::Point,
            name if name.starts_with("data.geometry.") => ValueKind::Geometry,
            "data.SparseVector" => ValueKind::SparseVector,
            "data.DoubleVector" | "data.FloatVector" => ValueKind::Plain(TypeFamily::Other),
            _ => ValueKind::of_type(field, family),
        }
    }

    fn of_type(field: &SchemaField, family: TypeFamily) -> ValueKind {
        match (&*field.ty, family) {
            ("bytes", _) => ValueKind::Bytes,
            ("array", TypeFamily::Array(element)) => match &field.items {
                Some(items) => ValueKind::Array(Box::new(ValueKind::of_field(items, *element))),
                None => ValueKind::Array(Box::new(ValueKind::of_form(*element))),
            },
            // A string: the connector's `binary.handling.mode` is not `bytes`.
            ("string", TypeFamily::Bytea) => ValueKind::Guess(TypeFamily::Bytea),
            ("array", family) => ValueKind::Plain(family),
            (
                _,
                family @ (TypeFamily::Json
                | TypeFamily::Hstore
                | TypeFamily::Bits
                | TypeFamily::VarBits),
            ) => ValueKind::Plain(family),
            _ => ValueKind::Plain(TypeFamily::Other),
        }
    }
}
