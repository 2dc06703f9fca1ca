//! Delimited text: csv, tsv and PostgreSQL's own text format.
//!
//! Records, fields, quotes, escapes and line ends are what COPY takes them for, down to a quote in
//! the middle of a field and the refusal of mixed line ends. On purpose different: a byte order
//! mark at the front is not data; data after `\.` is refused instead of dropped, and so is `\.`
//! behind other data on its line, as by servers since 18; a header need not be valid text, but has
//! to end. Of two faults next to each other the one that COPY meets second may be reported: a
//! misplaced line end, an open quote or a wrong `\.` before a byte that is not valid in the
//! encoding; or a line's fault before such a byte at the start of the next line, where lines end
//! with carriage returns. Before version 18, `\.` ends csv data even where the backslash or the
//! dot is the quote; here it is a quote then.

mod cut;
mod encode;
mod fields;
mod lines;
mod masks;
mod records;
mod row;
mod scan;
#[cfg(test)]
mod tests;
mod walk;

use std::sync::Arc;

use crate::{Error, ErrorKind, Result};

pub use cut::{CutOptions, DelimitedCutter};
pub use encode::DelimitedEncoder;
pub use records::{ParsedRecord, parse_records};
pub use row::Column;

/// Which of COPY's two text formats the input is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `COPY ... (format csv)`: fields may be quoted.
    Csv,
    /// `COPY ... (format text)`: backslash escapes.
    Text,
}

/// How a line ends. COPY takes the first line's end as the rule for the whole input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eol {
    /// `\n`
    Lf,
    /// `\r\n`
    CrLf,
    /// `\r`
    Cr,
}

/// How fields and records are written, in COPY's terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dialect {
    /// csv or text.
    pub family: Family,
    /// Between two fields.
    pub delimiter: u8,
    /// Around a field (csv); `None` where a quote is a character like any other.
    pub quote: Option<u8>,
    /// Before a quote that is data (csv). The same as `quote` by default.
    pub escape: u8,
    /// The unquoted field that means NULL.
    pub null: Vec<u8>,
    /// Lines that begin with this byte are not records. COPY has no such thing.
    pub comment: Option<u8>,
    /// Empty lines are not records. To COPY they are records of one empty field.
    pub skip_blank_lines: bool,
    /// Each record ends with one delimiter too many (TPC-H's `.tbl`).
    pub trailing_delimiter: bool,
}

impl Dialect {
    /// COPY's csv with its defaults.
    pub fn csv() -> Dialect {
        Dialect {
            family: Family::Csv,
            delimiter: b',',
            quote: Some(b'"'),
            escape: b'"',
            null: Vec::new(),
            comment: None,
            skip_blank_lines: false,
            trailing_delimiter: false,
        }
    }

    /// COPY's text with its defaults.
    pub fn text() -> Dialect {
        Dialect {
            family: Family::Text,
            delimiter: b'\t',
            quote: None,
            escape: b'\\',
            null: b"\\N".to_vec(),
            ..Dialect::csv()
        }
    }

    /// Whether records can be told apart at all.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for what COPY refuses as well, and for a quote, an escape or a comment
    /// that is a line end.
    pub fn check(&self) -> Result<()> {
        let refuse = |message: String| Err(Error::new(ErrorKind::Usage, message));
        let quote = self.quote.filter(|_| self.family == Family::Csv);
        let special = [
            ("delimiter", Some(self.delimiter)),
            ("quote", quote),
            ("escape", quote.map(|_| self.escape)),
            ("comment", self.comment),
        ];
        for (what, byte) in special {
            if let Some(b'\n' | b'\r' | 0) = byte {
                return refuse(format!("the {what} cannot be a newline, carriage return or zero"));
            }
        }
        if quote == Some(self.delimiter) {
            return refuse("delimiter and quote must be different".to_owned());
        }
        if self.comment.is_some_and(|it| it == self.delimiter || Some(it) == quote) {
            return refuse("the comment must be neither the delimiter nor the quote".to_owned());
        }
        let is_escape_name = matches!(self.delimiter, b'\\' | b'.' | b'a'..=b'z' | b'0'..=b'9');
        if self.family == Family::Text && is_escape_name {
            let delimiter = char::from(self.delimiter);
            return refuse(format!("the delimiter of COPY text cannot be \"{delimiter}\""));
        }
        for (what, byte) in [("delimiter", Some(self.delimiter)), ("quote", quote)] {
            if byte.is_some_and(|byte| self.null.contains(&byte)) {
                return refuse(format!("the {what} must not appear in the spelling of NULL"));
            }
        }
        if self.null.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
            return refuse("the spelling of NULL cannot hold a line end".to_owned());
        }
        Ok(())
    }
}

/// What the records of one input look like, once its first line is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// How its lines end.
    pub eol: Eol,
    /// How many fields a record has.
    pub fields: usize,
    /// For each column of the COPY, in its order, the field that holds it.
    pub field_of: Vec<usize>,
}

/// The first line that is a record, as it stands at the start of an input, with its line end.
pub fn first_line<'a>(dialect: &Dialect, eol: Eol, bytes: &'a [u8]) -> &'a [u8] {
    let mut rest = bytes;
    loop {
        let edge = match (dialect.comment, rest.first()) {
            (Some(comment), Some(first)) if comment == *first => {
                lines::comment_end(rest, 0, eol).map(|end| lines::skip_line_end(rest, end, eol))
            }
            _ => lines::find_edge(dialect, eol, rest, 0, false),
        };
        let (line, after) = rest.split_at(edge.unwrap_or(rest.len()));
        let record = line.strip_suffix(eol.bytes()).unwrap_or(line);
        if line.is_empty() || !lines::is_skipped(dialect, record) {
            return line;
        }
        rest = after;
    }
}

/// Decides from an input's header (`None`: it has none) how many fields its records have, and
/// which of them feeds each column.
pub type MapFields = Arc<dyn Fn(Option<&[Vec<u8>]>) -> Result<(usize, Vec<usize>)> + Send + Sync>;

/// How many fields the records of `bytes` have; for measuring the splitting alone.
#[doc(hidden)]
pub fn count_fields(dialect: &Dialect, eol: Eol, bytes: &[u8]) -> usize {
    let rules = scan::Rules::new(dialect, eol);
    let mut index = scan::Index::default();
    let mut fields = 0;
    while index.next < bytes.len() && index.fault.is_none() {
        index.scan(bytes, index.next, &rules);
        fields += index.ends().len();
    }
    fields
}
