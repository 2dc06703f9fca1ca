//! One form for all spellings of a key, so that events of the same row meet.
//!
//! What is not surely the only form is said to be loose; then the server, which has the types' own
//! equality, is asked whether two keys of a batch are the same.

use pgspate_input::encode::field::FieldEncoder;
use pgspate_input::types::{PgType, Session, TypeKind};

/// Makes the form of one column's values.
#[derive(Debug, Clone)]
pub enum Canon {
    /// Equal values have the same binary form.
    Binary(FieldEncoder),
    /// The text itself; equal values have the same text.
    Text,
    /// `varchar(n)`: of longer values the server cuts spaces off.
    Limited(usize),
    /// `numeric`: without zeros that say nothing.
    Numeric,
    /// `char(n)`: without spaces at the end.
    Padded,
    /// Equal values may look different, and only the server knows.
    Loose,
}

/// Built-in types whose equal values have the same binary form.
const BINARY: [u32; 13] = [16, 17, 18, 20, 21, 23, 26, 829, 1082, 1083, 1114, 1184, 2950];

impl Canon {
    /// For a column. `is_lenient`: its collation takes different texts for equal.
    pub fn of(ty: &PgType, session: &Session, is_lenient: bool) -> Canon {
        let base = ty.base();
        match (&base.kind, base.oid) {
            (TypeKind::Enum, _) => Canon::Text,
            // A modifier may cut or round.
            _ if is_modified(ty) && !matches!(ty.oid, 1042 | 1043) => Canon::Loose,
            (_, 25 | 19) if !is_lenient => Canon::Text,
            // The modifier counts four more than there may be characters.
            (_, 1043) if !is_lenient => {
                usize::try_from(ty.typmod - 4).map_or(Canon::Text, Canon::Limited)
            }
            (_, 1042) if !is_lenient => Canon::Padded,
            (_, 1700) => Canon::Numeric,
            (_, oid) if BINARY.contains(&oid) => {
                FieldEncoder::new(base, session).map_or(Canon::Loose, Canon::Binary)
            }
            _ => Canon::Loose,
        }
    }

    /// Appends the form, so that no two keys of several columns run into each other. False where
    /// an equal value may have another one.
    pub fn append(&self, value: &[u8], out: &mut Vec<u8>) -> bool {
        let before = out.len();
        let text = match self {
            Canon::Binary(encoder) => {
                out.push(b'b');
                if encoder.encode(value, out) {
                    return true;
                }
                out.truncate(before);
                out.push(b't');
                with_length(value, out);
                return false;
            }
            Canon::Numeric => match numeric(value) {
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
            Canon::Padded => {
                let end = value.iter().rposition(|byte| *byte != b' ').map_or(0, |at| at + 1);
                &value[..end]
            }
            Canon::Text | Canon::Limited(_) | Canon::Loose => value,
        };
        with_length(text, out);
        match self {
            Canon::Loose => false,
            Canon::Limited(chars) => {
                let starts = value.iter().filter(|byte| **byte & 0xc0 != 0x80);
                value.len() <= *chars || starts.count() <= *chars
            }
            _ => true,
        }
    }
}

/// Whether the type, or a domain's beneath it, has a modifier.
fn is_modified(ty: &PgType) -> bool {
    let is_beneath = match &ty.kind {
        TypeKind::Domain(inner) => is_modified(inner),
        _ => false,
    };
    ty.typmod != -1 || is_beneath
}

fn with_length(value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(value);
}

/// Sign, digits before and after the point, without zeros that say nothing. `None` for spellings
/// with an exponent and for words.
fn numeric(value: &[u8]) -> Option<(bool, &[u8], &[u8])> {
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
            let is_sure = Canon::Numeric.append(value.as_bytes(), &mut out);
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
    fn columns_do_not_run_into_each_other() {
        let form = |values: [&str; 2]| {
            let mut out = Vec::new();
            values.iter().for_each(|value| assert!(Canon::Text.append(value.as_bytes(), &mut out)));
            out
        };
        assert_ne!(form(["a", "bc"]), form(["ab", "c"]));
        let mut padded = Vec::new();
        assert!(Canon::Padded.append(b"a  ", &mut padded));
        let mut bare = Vec::new();
        assert!(Canon::Padded.append(b"a", &mut bare));
        assert_eq!(padded, bare);
        let mut tab = Vec::new();
        assert!(Canon::Padded.append(b"a\t", &mut tab));
        assert_ne!(tab, bare);
    }

    #[test]
    fn what_may_be_cut_is_not_sure() {
        let is_sure = |value: &str| Canon::Limited(2).append(value.as_bytes(), &mut Vec::new());
        assert!(is_sure("ab") && is_sure("öä") && is_sure("a "));
        assert!(!is_sure("ab ") && !is_sure("öä "));
    }
}
