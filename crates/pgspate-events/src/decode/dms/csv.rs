//! Splits a csv line into fields. Quoted fields have their quotes doubled.

use std::borrow::Cow;

use super::super::json::{check_fields, malformed};
use super::super::source_tables::SourceText;
use crate::Result;

/// A field of a csv line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CsvField<'a> {
    pub(super) text: Cow<'a, str>,
    pub(super) is_quoted: bool,
}

/// Splits a line into its fields, at least one.
pub(super) fn fields(line: &str, delimiter: u8) -> Result<Vec<CsvField<'_>>> {
    let delimiter = char::from(delimiter);
    let mut fields = Vec::with_capacity(16);
    let mut rest = line;
    loop {
        let (field, after) = match rest.strip_prefix('"') {
            Some(inside) => read_quoted_field(inside)?,
            None => {
                let end = rest.find(delimiter).unwrap_or(rest.len());
                let text = Cow::Borrowed(&rest[..end]);
                (CsvField { text, is_quoted: false }, &rest[end..])
            }
        };
        check_fields(fields.len())?;
        fields.push(field);
        match after.strip_prefix(delimiter) {
            Some(next) => rest = next,
            None if after.is_empty() => return Ok(fields),
            None => return Err(malformed("expected a delimiter after a quoted field")),
        }
    }
}

/// Reads a quoted field, after its opening quote. Returns the field and the rest of the line.
fn read_quoted_field(inside: &str) -> Result<(CsvField<'_>, &str)> {
    let mut text = Cow::Borrowed("");
    let mut from = 0;
    loop {
        let Some(at) = inside[from..].find('"') else {
            return Err(malformed("the line ends inside quotes"));
        };
        let part = &inside[from..from + at];
        let after = &inside[from + at + 1..];
        match (after.starts_with('"'), text.is_empty()) {
            (true, _) => {
                let text = text.to_mut();
                text.push_str(part);
                text.push('"');
                from += at + 2;
            }
            (false, true) => {
                return Ok((CsvField { text: Cow::Borrowed(part), is_quoted: true }, after));
            }
            (false, false) => {
                text.to_mut().push_str(part);
                return Ok((CsvField { text, is_quoted: true }, after));
            }
        }
    }
}

impl SourceText for &CsvField<'_> {
    fn spelled(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_split_into_its_fields() {
        let found = |line| {
            fields(line, b',').map(|fields| {
                let show = |field: &CsvField<'_>| match field.is_quoted {
                    true => format!("<{}>", field.text),
                    false => field.text.to_string(),
                };
                fields.iter().map(show).collect::<Vec<_>>().join("|")
            })
        };
        for (line, expected) in [
            ("", ""),
            (",", "|"),
            ("I,1,a b", "I|1|a b"),
            ("\"a,b\",\"\"", "<a,b>|<>"),
            ("\"a\"\"b\"\"\",é", "<a\"b\">|é"),
            ("\"\"\"\"", "<\">"),
            ("a\"b", "a\"b"),
        ] {
            assert_eq!(found(line).unwrap(), expected, "{line}");
        }
        assert!(found("\"a").is_err() && found("\"a\"b").is_err());
        assert!(fields(&",".repeat(65_534), b',').is_ok());
        assert!(fields(&",".repeat(65_535), b',').is_err());
    }
}
