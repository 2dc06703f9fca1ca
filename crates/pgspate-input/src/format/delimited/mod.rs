//! Delimited text: csv, tsv and PostgreSQL's own text format.
//!
//! Records, fields, quotes, escapes and line ends are parsed as COPY parses them. Quotes are
//! allowed in the middle of a field, and mixed line ends are an error.
//!
//! Intended differences from COPY:
//! - A byte order mark at the start of the input is skipped.
//! - Data after `\.` is an error. COPY drops it.
//! - `\.` after other data on its line is an error, as on servers since version 18.
//! - A header need not be valid text, but its record has to end.
//! - Before version 18, `\.` ends csv data even if the quote is a backslash or a dot. Here such a
//!   byte counts as a quote.
//!
//! Of two errors close together, pgspate may report another one first than COPY. A wrong line end,
//! an unterminated quote or a wrong `\.` is reported before an invalid byte of the same line. If
//! lines end with carriage returns, such an error is also reported before an invalid byte at the
//! start of the next line.

mod cut;
mod encode;
mod field_index;
mod fields;
mod lines;
mod masks;
mod parse_records;
mod record_walk;
mod row;
#[cfg(test)]
mod tests;
mod unseen;

use std::sync::Arc;

use crate::{Error, ErrorKind, Result};

pub use cut::{CutOptions, DelimitedCutter};
pub use encode::DelimitedEncoder;
pub use parse_records::{ParsedRecord, parse_records};
pub use row::DelimitedColumn;

/// Which of COPY's two text formats the input is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyFormat {
    /// `COPY ... (format csv)`: fields may be quoted.
    Csv,
    /// `COPY ... (format text)`: backslash escapes.
    Text,
}

/// The line end of an input. As in COPY, all lines must end like the first line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eol {
    /// `\n`
    Lf,
    /// `\r\n`
    CrLf,
    /// `\r`
    Cr,
}

/// The syntax of an input, in the terms of COPY's options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dialect {
    /// COPY's format: csv or text.
    pub format: CopyFormat,
    /// The byte between two fields.
    pub delimiter: u8,
    /// The quote character (csv). With `None`, fields cannot be quoted.
    pub quote: Option<u8>,
    /// The escape character within quoted fields (csv). The default is the quote character.
    pub escape: u8,
    /// The unquoted text that means NULL.
    pub null: Vec<u8>,
    /// Lines that begin with this byte are comments. COPY has no such option.
    pub comment: Option<u8>,
    /// Whether empty lines are skipped. COPY reads an empty line as a record of one empty field.
    pub skip_blank_lines: bool,
    /// Whether each record ends with an additional delimiter (TPC-H's `.tbl`).
    pub trailing_delimiter: bool,
}

impl Dialect {
    /// Returns COPY's csv format with its default options.
    pub fn csv() -> Dialect {
        Dialect {
            format: CopyFormat::Csv,
            delimiter: b',',
            quote: Some(b'"'),
            escape: b'"',
            null: Vec::new(),
            comment: None,
            skip_blank_lines: false,
            trailing_delimiter: false,
        }
    }

    /// Returns COPY's text format with its default options.
    pub fn text() -> Dialect {
        Dialect {
            format: CopyFormat::Text,
            delimiter: b'\t',
            quote: None,
            escape: b'\\',
            null: b"\\N".to_vec(),
            ..Dialect::csv()
        }
    }

    /// Checks that the special characters are allowed and differ from each other.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if COPY rejects the combination too, or if a quote, an escape or a
    /// comment character is a line end.
    pub fn check(&self) -> Result<()> {
        let refuse = |message: String| Err(Error::new(ErrorKind::Usage, message));
        let quote = self.quote.filter(|_| self.format == CopyFormat::Csv);
        let special = [
            ("delimiter", Some(self.delimiter)),
            ("quote", quote),
            ("escape", quote.map(|_| self.escape)),
            ("comment", self.comment),
        ];
        for (option, byte) in special {
            if let Some(b'\n' | b'\r' | 0) = byte {
                return refuse(format!(
                    "the {option} cannot be a newline, carriage return or zero byte"
                ));
            }
        }
        if quote == Some(self.delimiter) {
            return refuse("delimiter and quote must be different".to_owned());
        }
        if self.comment.is_some_and(|byte| byte == self.delimiter || Some(byte) == quote) {
            return refuse(
                "the comment character must differ from the delimiter and the quote".to_owned(),
            );
        }
        let is_escape_name = matches!(self.delimiter, b'\\' | b'.' | b'a'..=b'z' | b'0'..=b'9');
        if self.format == CopyFormat::Text && is_escape_name {
            let delimiter = char::from(self.delimiter);
            return refuse(format!("the delimiter of COPY text cannot be \"{delimiter}\""));
        }
        for (option, byte) in [("delimiter", Some(self.delimiter)), ("quote", quote)] {
            if byte.is_some_and(|byte| self.null.contains(&byte)) {
                return refuse(format!("the {option} must not appear in the NULL specification"));
            }
        }
        if self.null.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
            return refuse(
                "the NULL specification cannot contain a newline or carriage return".to_owned(),
            );
        }
        Ok(())
    }
}

/// The layout of one input's records. It is known once the first line has been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordLayout {
    /// The line end.
    pub eol: Eol,
    /// The number of fields of a record.
    pub fields: usize,
    /// For each column of the COPY, in COPY's order: the number of its field, counted from 0.
    pub field_of: Vec<usize>,
    /// The names of these columns. Digests cover them. May be empty if no digest is needed.
    pub columns: Arc<[String]>,
}

/// Returns the first record of an input with its line end; comments and blank lines are skipped.
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

/// A function that maps columns to fields. Its argument is the names in the header, or `None`
/// without a header. It returns the number of fields of a record, and for each column the number of
/// its field.
pub type MapFields = Arc<dyn Fn(Option<&[Vec<u8>]>) -> Result<(usize, Vec<usize>)> + Send + Sync>;

/// Returns the number of fields in `bytes`. Benchmarks call this function to measure the splitting
/// alone.
#[doc(hidden)]
pub fn count_fields(dialect: &Dialect, eol: Eol, bytes: &[u8]) -> usize {
    let rules = field_index::ScanRules::new(dialect, eol);
    let mut index = field_index::FieldIndex::default();
    let mut fields = 0;
    while index.next_start < bytes.len() && index.fault.is_none() {
        index.scan(bytes, index.next_start, &rules);
        fields += index.ends().len();
    }
    fields
}
