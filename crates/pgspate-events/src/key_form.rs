//! Canonical forms of key values: all spellings of a value become the same bytes, so that events of
//! the same row are found by their key.
//!
//! For some types and spellings, equal values may have different forms. The server, which knows
//! the types' equality, is then asked whether two keys of a batch are equal.

use pgspate_input::encode::field::FieldEncoder;
use pgspate_input::types::{PgType, SessionSettings, TypeKind};

/// How the values of one key column become canonical bytes.
#[derive(Debug, Clone)]
pub enum KeyForm {
    /// The binary form of the type: equal values have equal bytes.
    Binary(FieldEncoder),
    /// The text itself: equal values have equal text.
    Text,
    /// The text of a `varchar(n)`. The server cuts trailing spaces off longer values.
    Limited(usize),
    /// `numeric` without leading and trailing zeros.
    Numeric,
    /// `char(n)` without trailing spaces.
    Padded,
    /// The text. Only the server knows whether two different texts are equal values.
    Loose,
}

/// Built-in types whose equal values have the same binary form.
const BINARY: [u32; 13] = [16, 17, 18, 20, 21, 23, 26, 829, 1082, 1083, 1114, 1184, 2950];

impl KeyForm {
    /// Returns the form for a column's type. `is_lenient` tells that the column's collation takes
    /// different texts as equal.
    pub fn of(ty: &PgType, session: &SessionSettings, is_lenient: bool) -> KeyForm {
        let base = ty.base();
        match (&base.kind, base.oid) {
            (TypeKind::Enum, _) => KeyForm::Text,
            // A type modifier may cut or round the value.
            _ if is_modified(ty) && !matches!(ty.oid, 1042 | 1043) => KeyForm::Loose,
            (_, 25 | 19) if !is_lenient => KeyForm::Text,
            // The modifier of varchar(n) is n + 4.
            (_, 1043) if !is_lenient => {
                usize::try_from(ty.typmod - 4).map_or(KeyForm::Text, KeyForm::Limited)
            }
            (_, 1042) if !is_lenient => KeyForm::Padded,
            (_, 1700) => KeyForm::Numeric,
            (_, oid) if BINARY.contains(&oid) => {
                FieldEncoder::new(base, session).map_or(KeyForm::Loose, KeyForm::Binary)
            }
            _ => KeyForm::Loose,
        }
    }

    /// Appends a value's form with its length, so that the columns of a key stay apart. Returns
    /// false if an equal value may have another form.
    pub fn append(&self, value: &[u8], out: &mut Vec<u8>) -> bool {
        let before = out.len();
        let text = match self {
            KeyForm::Binary(encoder) => {
                out.push(b'b');
                if encoder.encode(value, out) {
                    return true;
                }
                out.truncate(before);
                out.push(b't');
                with_length(value, out);
                return false;
            }
            KeyForm::Numeric => match split_number(value) {
                Some((is_negative, whole, fraction)) => {
                    out.push(if is_negative { b'-' } else { b'+' });
                    with_length(whole, out);
                    fraction
                }
                None => {
                    out.push(b't');
                    with_length(value, out);
                    return false;
                }
            },
            KeyForm::Padded => {
                let end = value.iter().rposition(|byte| *byte != b' ').map_or(0, |at| at + 1);
                &value[..end]
            }
            KeyForm::Text | KeyForm::Limited(_) | KeyForm::Loose => value,
        };
        with_length(text, out);
        match self {
            KeyForm::Loose => false,
            KeyForm::Limited(chars) => {
                let starts = value.iter().filter(|byte| **byte & 0xc0 != 0x80);
                value.len() <= *chars || starts.count() <= *chars
            }
            _ => true,
        }
    }
}

/// Returns whether the type, or the base type of a domain, has a type modifier.
fn is_modified(ty: &PgType) -> bool {
    let is_beneath = match &ty.kind {
        TypeKind::Domain(inner) => is_modified(inner),
        _ => false,
    };
    ty.typmod != -1 || is_beneath
}

/// Appends a value's length and the value.
fn with_length(value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(value);
}

/// Splits a number into sign (true for negative) and the digits before and after the point, without
/// leading and trailing zeros. Returns `None` for an exponent and for words such as `NaN`.
fn split_number(value: &[u8]) -> Option<(bool, &[u8], &[u8])> {
    let (sign, rest) = match value {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let point = rest.iter().position(|b| *b == b'.').unwrap_or(rest.len());
    let (mut whole, mut fraction) = (&rest[..point], rest.get(point + 1..).unwrap_or_default());
    if rest.is_empty() || !whole.iter().chain(fraction).all(u8::is_ascii_digit) {
        return None;
    }
    while let [b'0', rest @ ..] = whole {
        whole = rest;
    }
    while let [rest @ .., b'0'] = fraction {
        fraction = rest;
    }
    Some((sign && !(whole.is_empty() && fraction.is_empty()), whole, fraction))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_have_one_form() {
        let form = |value: &str| {
            let mut out = Vec::new();
            let is_sure = KeyForm::Numeric.append(value.as_bytes(), &mut out);
            (is_sure, out)
        };
        for (left, right) in [("1", "1.00"), ("0.50", ".5"), ("-0", "0.0"), ("+007", "7.")] {
            assert_eq!(form(left), form(right), "{left} {right}");
            assert!(form(left).0);
        }
        assert_ne!(form("1.5"), form("15"));
        assert_ne!(form("-1"), form("1"));
        assert!(!form("1e3").0 && !form("NaN").0 && !form("").0);
    }

    #[test]
    fn columns_of_a_key_stay_apart() {
        let form = |values: [&str; 2]| {
            let mut out = Vec::new();
            values
                .iter()
                .for_each(|value| assert!(KeyForm::Text.append(value.as_bytes(), &mut out)));
            out
        };
        assert_ne!(form(["a", "bc"]), form(["ab", "c"]));
        let mut padded = Vec::new();
        assert!(KeyForm::Padded.append(b"a  ", &mut padded));
        let mut bare = Vec::new();
        assert!(KeyForm::Padded.append(b"a", &mut bare));
        assert_eq!(padded, bare);
        let mut tab = Vec::new();
        assert!(KeyForm::Padded.append(b"a\t", &mut tab));
        assert_ne!(tab, bare);
    }

    #[test]
    fn a_value_that_the_server_may_cut_may_have_another_form() {
        let is_sure = |value: &str| KeyForm::Limited(2).append(value.as_bytes(), &mut Vec::new());
        assert!(is_sure("ab") && is_sure("öä") && is_sure("a "));
        assert!(!is_sure("ab ") && !is_sure("öä "));
    }
}
