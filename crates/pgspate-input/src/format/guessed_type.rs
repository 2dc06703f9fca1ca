//! Checks values against a type that was guessed from a sample.
//!
//! A guessed type keeps a value if the type would have been the same with the value in the sample.
//! So no content depends on where in the input a value stands: a later `01234` does not lose its
//! zero in a column that was created as `bigint`.

use tokio_postgres::error::SqlState;

use super::date_class::has_time_zone;
use super::first_chars;
use super::infer::{self, ColumnType};
use crate::json::JsonKind;
use crate::{Error, ErrorKind};

/// The type of a column, guessed from a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuessedType {
    kind: GuessedKind,
    is_array: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GuessedKind {
    /// A type whose texts are checked.
    Checked(ColumnType),
    /// A type of [`OWN_TYPES`].
    Own(&'static str),
}

/// Types that are guessed from the classes of a program's values, and keep only these classes: the
/// name, and the server's name.
const OWN_TYPES: [(&str, &str); 4] = [
    ("interval", "interval"),
    ("timetz", "time with time zone"),
    ("bytea", "bytea"),
    ("inet", "inet"),
];

/// The most digits of a number that `bigint` certainly holds.
const BIGINT_DIGITS: usize = 18;
/// The most significant digits of a number that `double precision` certainly holds.
const DOUBLE_DIGITS: usize = 15;

impl GuessedType {
    /// Returns the guessed type of a column with a type of this name. Returns `None` for types that
    /// are not guessed, and for `text`, which keeps every value.
    pub fn of(type_name: &str) -> Option<GuessedType> {
        let (name, is_array) = match type_name.strip_suffix("[]") {
            Some(element) => (element, true),
            None => (type_name, false),
        };
        let own = OWN_TYPES.iter().find(|(short, long)| name == *short || name == *long);
        let kind = match own {
            Some((own, _)) => GuessedKind::Own(own),
            None => GuessedKind::Checked(
                ColumnType::of_name(name).filter(|ty| *ty != ColumnType::Text)?,
            ),
        };
        Some(GuessedType { kind, is_array })
    }

    /// Returns the type, if its texts are checked.
    pub fn column_type(self) -> Option<ColumnType> {
        match self.kind {
            GuessedKind::Checked(ty) if !self.is_array => Some(ty),
            _ => None,
        }
    }

    /// Returns the type's name, if it keeps only values of its own classes.
    pub fn own_type(self) -> Option<&'static str> {
        match self.kind {
            GuessedKind::Own(name) if !self.is_array => Some(name),
            _ => None,
        }
    }

    /// Returns the type of an array's elements.
    pub fn element(self) -> Option<GuessedType> {
        self.is_array.then_some(GuessedType { is_array: false, ..self })
    }

    /// Returns a function that tells whether the type keeps a text.
    pub fn check(self) -> fn(&[u8]) -> bool {
        let Some(ty) = self.column_type() else { return |_| false };
        match ty {
            ColumnType::Boolean => |value| is_kept(ColumnType::Boolean, value),
            ColumnType::Bigint => |value| {
                value != b"-0" && is_plain_number(value, BIGINT_DIGITS, false)
                    || is_kept(ColumnType::Bigint, value)
            },
            ColumnType::Numeric => |value| {
                is_plain_number(value, usize::MAX, true) || is_kept(ColumnType::Numeric, value)
            },
            ColumnType::Double => |value| {
                is_plain_number(value, DOUBLE_DIGITS, true) || is_kept(ColumnType::Double, value)
            },
            ColumnType::Date => |value| is_kept(ColumnType::Date, value),
            ColumnType::Time => |value| is_kept(ColumnType::Time, value),
            ColumnType::Timestamp => |value| is_kept(ColumnType::Timestamp, value),
            ColumnType::Timestamptz => |value| is_kept(ColumnType::Timestamptz, value),
            ColumnType::Uuid => |value| is_kept(ColumnType::Uuid, value),
            // The server parses the rest, and refuses what is not JSON.
            ColumnType::Jsonb => |value| matches!(value.trim_ascii().first(), Some(b'{' | b'[')),
            ColumnType::Text => |_| true,
        }
    }

    /// Returns whether the type keeps a text.
    pub fn keeps(self, value: &[u8]) -> bool {
        self.check()(value)
    }

    /// Returns whether the type keeps a value of JSON, whose text is `value`. A number in quotes is
    /// deliberately a string.
    pub(super) fn keeps_json(self, kind: JsonKind, value: &[u8]) -> bool {
        use ColumnType::*;
        match kind {
            JsonKind::Null => true,
            _ if self.column_type() == Some(Jsonb) => true,
            JsonKind::Object | JsonKind::Array => false,
            JsonKind::String(_) => {
                let ty = self.column_type();
                matches!(ty, Some(Date | Time | Timestamp | Timestamptz | Uuid))
                    && self.keeps(value)
            }
            JsonKind::Bool => self.column_type() == Some(Boolean),
            JsonKind::Number => {
                matches!(self.column_type(), Some(Bigint | Numeric | Double)) && self.keeps(value)
            }
        }
    }

    /// Returns the error for a value that the type does not keep.
    pub fn error(self, value: &[u8]) -> Error {
        let shown = first_chars(&String::from_utf8_lossy(value));
        let name = match self.kind {
            GuessedKind::Checked(ty) => ty.sql(),
            GuessedKind::Own(name) => name,
        };
        let ty = format!("{name}{}", if self.is_array { "[]" } else { "" });
        let text = value.trim_ascii();
        let message = match self.loss(text) {
            Some(loss) => format!("{VALUE}{shown}{LOSES}{loss} in type {ty}{GUESSED}"),
            None => format!("{VALUE}{shown}{MISFITS}{ty}{GUESSED}"),
        };
        Error::new(ErrorKind::Type, message).with_sqlstate(SqlState::INVALID_TEXT_REPRESENTATION)
    }

    /// Returns what the value would lose, in words, if that is clear.
    fn loss(self, text: &[u8]) -> Option<&'static str> {
        use ColumnType::*;
        let ty = self.column_type()?;
        let is_number = matches!(ty, Bigint | Numeric | Double);
        let wider = infer::widen(ty, text);
        match (ty, wider) {
            (Double, Numeric) => Some("digits"),
            (Date, Timestamp) => Some("its time"),
            _ if is_number && text.first() == Some(&b'+') => Some("its sign"),
            _ if is_number && has_leading_zero(text) => Some("its leading zero"),
            (Date | Time | Timestamp, Text) if has_time_zone(text) => Some("its time zone"),
            _ => None,
        }
    }
}

const VALUE: &str = "value \"";
const LOSES: &str = "\" would lose ";
const MISFITS: &str = "\" does not fit type ";
const GUESSED: &str = ", which was guessed from the first rows";

/// Returns the value in the message of [`GuessedType::error`]: its first characters.
pub fn value_of_error(error: &Error) -> Option<String> {
    let message = error.to_string();
    let rest = message.strip_prefix(VALUE)?.strip_suffix(GUESSED)?;
    let end = rest.rfind(LOSES).max(rest.rfind(MISFITS))?;
    Some(rest[..end].to_owned())
}

/// Returns whether the type would have been the same with this value in the sample.
fn is_kept(ty: ColumnType, value: &[u8]) -> bool {
    infer::widen(ty, value) == ty
}

/// Returns whether the text is a number without an exponent, with at most `digits_max` digits and
/// no needless zero in front. The check decides most values, so it is fast.
#[inline]
fn is_plain_number(text: &[u8], digits_max: usize, may_have_point: bool) -> bool {
    let number = text.strip_prefix(b"-").unwrap_or(text);
    if matches!(number, [b'0', b'0'..=b'9', ..]) || number.len() > digits_max {
        return false;
    }
    let (mut digits, mut points) = (0, 0);
    for byte in number {
        digits += usize::from(byte.is_ascii_digit());
        points += usize::from(*byte == b'.');
    }
    digits > 0 && points <= usize::from(may_have_point) && digits + points == number.len()
}

fn has_leading_zero(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"-").unwrap_or(text);
    matches!(text, [b'0', b'0'..=b'9', rest @ ..]
        if rest.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of all kinds, and values that only differ a little from them.
    const VALUES: [&str; 54] = [
        "",
        "0",
        "-0",
        "-0.0",
        "-0.00",
        "1",
        "-12",
        "01234",
        "-01",
        "+5",
        "1_000",
        "0x1F",
        " 12",
        "12 ",
        "123456789012345678",
        "1234567890123456789",
        "9223372036854775808",
        "1.5",
        "1.10",
        ".5",
        "5.",
        "00.5",
        "0.5",
        ".",
        "-",
        "1.2.3",
        "1-2",
        "123456789012345.6",
        "0.123456789012345678",
        "0.1234567890123456",
        "100.00000000000000",
        "1e5",
        "1e400",
        "NaN",
        "Infinity",
        "true",
        "T",
        "yes",
        "2024-02-29",
        "2024-2-9",
        "20240229",
        "01/02/2024",
        "2024-02-29 10:00",
        "2024-02-29T10:00:00.123456",
        "2024-02-29 10:00:00.1234567",
        "2024-02-29 10:00:00.1234560",
        "2024-02-29 10:00+02:00",
        "10:00",
        "10:00:00.1234567",
        "10:00+02",
        "9b2d5f0e-1c3a-4e5f-8a9b-0c1d2e3f4a5b",
        "{\"a\":1}",
        "[1]",
        "abc",
    ];

    #[test]
    fn the_check_of_a_later_value_is_the_rule_of_the_sample() {
        for ty in ColumnType::ALL {
            let Some(guessed) = GuessedType::of(ty.sql()) else { continue };
            for value in VALUES {
                let expected = infer::widen(ty, value.as_bytes()) == ty;
                assert_eq!(guessed.keeps(value.as_bytes()), expected, "{ty:?}: {value:?}");
            }
        }
        assert_eq!(GuessedType::of("text"), None);
        assert_eq!(GuessedType::of("text[]"), None);
        assert_eq!(GuessedType::of("bigint[]").unwrap().element(), GuessedType::of("bigint"));
        assert_eq!(GuessedType::of("integer"), None);
    }

    #[test]
    fn the_error_says_what_would_be_lost() {
        for (ty, value, loss) in [
            ("bigint", "01234", "would lose its leading zero in type bigint"),
            ("bigint", "+491", "would lose its sign in type bigint"),
            ("date", "2024-01-01 10:00", "would lose its time in type date"),
            ("date", "2024-01-01 10:00+02", "would lose its time zone in type date"),
            ("timestamp", "2024-01-01 10:00Z", "would lose its time zone in type timestamp"),
            ("time", "10:00+02:00", "would lose its time zone in type time"),
            ("double precision", "0.123456789012345678", "would lose digits in type double"),
            ("bigint", "a\" does not fit type b", "does not fit type bigint"),
        ] {
            let error = GuessedType::of(ty).unwrap().error(value.as_bytes());
            assert!(error.to_string().contains(loss), "{error}");
            assert_eq!(value_of_error(&error).as_deref(), Some(value));
        }
    }

    #[test]
    fn values_of_json_keep_their_kind() {
        let bigint = GuessedType::of("bigint").unwrap();
        assert!(bigint.keeps_json(JsonKind::Number, b"5"));
        assert!(!bigint.keeps_json(JsonKind::String(false), b"5"));
        assert!(!bigint.keeps_json(JsonKind::Bool, b"true"));
        let date = GuessedType::of("date").unwrap();
        assert!(date.keeps_json(JsonKind::String(false), b"2024-02-29"));
        assert!(!date.keeps_json(JsonKind::Number, b"20240229"));
        let jsonb = GuessedType::of("jsonb").unwrap();
        assert!(jsonb.keeps_json(JsonKind::Number, b"5"));
    }
}
