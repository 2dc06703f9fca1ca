//! What a column's values are: by the schema that comes with them, else by the target's type.
//!
//! Without a schema some spellings could mean two things; those are refused with what to set in the
//! connector, until other values of the stream have shown which of the two it writes.

use super::super::cast::TypeFamily;
use super::super::moments::TimeUnit;
use super::schema::Field;

/// How a value is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// As it stands.
    Plain(TypeFamily),
    /// Base64 of a number without its point, which is so many digits from its end.
    Decimal(i32),
    /// An object of such a number and its scale.
    VariableDecimal,
    /// Base64.
    ByteSpelling,
    /// Base64 of the text of a type that Debezium does not know.
    TextAsBytes,
    /// Base64 of so many bits, the last ones first.
    Bits(usize),
    /// Days since 1970.
    Days,
    /// Since midnight.
    Time(TimeUnit),
    /// Since 1970, in UTC; true when the column wants to know that it is.
    Stamp(TimeUnit, bool),
    Duration(TimeUnit),
    /// ISO 8601 of Java's.
    Iso,
    Array(Box<Kind>),
    /// An object of `x` and `y`.
    Point,
    Geometry,
    /// An object of dimensions and a map.
    SparseVector,
    /// No schema says what it is: by the family of the column's type.
    Guess(TypeFamily),
}

impl Kind {
    /// By the target's type alone.
    pub(super) fn guess(ty: Option<&str>) -> Kind {
        if ty == Some("point") {
            return Kind::Point;
        }
        Kind::of_form(ty.map_or(TypeFamily::Other, TypeFamily::of))
    }

    fn of_form(form: TypeFamily) -> Kind {
        match form {
            TypeFamily::Array(element) => Kind::Array(Box::new(Kind::of_form(*element))),
            TypeFamily::Other | TypeFamily::Json | TypeFamily::Hstore => Kind::Plain(form),
            form => Kind::Guess(form),
        }
    }

    /// By the schema, for a column of type `ty` of the target.
    pub(super) fn of(field: &Field, ty: Option<&str>) -> Kind {
        let form = ty.map_or(TypeFamily::Other, TypeFamily::of);
        // Any text is a text; of other types' values it is what the source has written.
        let is_text = |ty| matches!(ty, "text" | "varchar" | "bpchar" | "name" | "citext");
        if (&*field.ty, &*field.name, &form) == ("bytes", "", &TypeFamily::Other)
            && ty.is_some_and(|ty| !is_text(ty))
        {
            return Kind::TextAsBytes;
        }
        Kind::of_field(field, form)
    }

    fn of_field(field: &Field, form: TypeFamily) -> Kind {
        let semantic = field.name.strip_prefix("io.debezium.").unwrap_or(&field.name);
        let zoned = form == TypeFamily::Stamp(true);
        match semantic.strip_prefix("org.apache.kafka.connect.").unwrap_or(semantic) {
            "data.Decimal" => match field.scale {
                Some(scale) => Kind::Decimal(scale),
                None => Kind::Guess(TypeFamily::Numeric),
            },
            "data.VariableScaleDecimal" => Kind::VariableDecimal,
            "time.Date" | "data.Date" => Kind::Days,
            // MySQL's time is a span, and may be more than a day.
            "time.Time" | "data.Time" if form == TypeFamily::Interval => Kind::Duration(TimeUnit::Milli),
            "time.MicroTime" if form == TypeFamily::Interval => Kind::Duration(TimeUnit::Micro),
            "time.NanoTime" if form == TypeFamily::Interval => Kind::Duration(TimeUnit::Nano),
            "time.Time" | "data.Time" => Kind::Time(TimeUnit::Milli),
            "time.MicroTime" => Kind::Time(TimeUnit::Micro),
            "time.NanoTime" => Kind::Time(TimeUnit::Nano),
            "time.Timestamp" | "data.Timestamp" => Kind::Stamp(TimeUnit::Milli, zoned),
            "time.MicroTimestamp" => Kind::Stamp(TimeUnit::Micro, zoned),
            "time.NanoTimestamp" => Kind::Stamp(TimeUnit::Nano, zoned),
            "time.ZonedTimestamp" | "time.IsoTimestamp" | "time.IsoDate" => Kind::Iso,
            "time.IsoTime" | "time.ZonedTime" if form == TypeFamily::Interval => Kind::Guess(form),
            "time.MicroDuration" => Kind::Duration(TimeUnit::Micro),
            "time.NanoDuration" => Kind::Duration(TimeUnit::Nano),
            // Of bits that vary in number the schema has only how many they may be.
            "data.Bits" => match field.length.filter(|_| form != TypeFamily::VarBits) {
                Some(length) => Kind::Bits(length),
                None => Kind::Guess(form),
            },
            "data.geometry.Point" if form == TypeFamily::Other => Kind::Point,
            name if name.starts_with("data.geometry.") => Kind::Geometry,
            "data.SparseVector" => Kind::SparseVector,
            "data.DoubleVector" | "data.FloatVector" => Kind::Plain(TypeFamily::Other),
            _ => Kind::of_type(field, form),
        }
    }

    fn of_type(field: &Field, form: TypeFamily) -> Kind {
        match (&*field.ty, form) {
            ("bytes", _) => Kind::Bytes,
            ("array", TypeFamily::Array(element)) => match &field.items {
                Some(items) => Kind::Array(Box::new(Kind::of_field(items, *element))),
                None => Kind::Array(Box::new(Kind::of_form(*element))),
            },
            // Written with binary.handling.mode of another value than bytes.
            ("string", TypeFamily::Bytea) => Kind::Guess(TypeFamily::Bytea),
            ("array", form) => Kind::Plain(form),
            (_, form @ (TypeFamily::Json | TypeFamily::Hstore | TypeFamily::Bits | TypeFamily::VarBits)) => {
                Kind::Plain(form)
            }
            _ => Kind::Plain(TypeFamily::Other),
        }
    }
}
