//! Delimited text: csv, tsv and PostgreSQL's own text format.
//!
//! Records, fields, quotes, escapes and line ends are what COPY takes them for, down to a quote in
//! the middle of a field and the refusal of mixed line ends.

mod cut;
mod encode;
mod fields;
mod scan;

use std::sync::Arc;

pub use cut::{CutOptions, DelimitedCutter};
pub use encode::{Column, DelimitedEncoder};
pub use fields::{ParsedRecord, parse_records};

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

/// Decides from an input's header (`None`: it has none) how many fields its records have, and
/// which of them feeds each column.
pub type MapFields =
    Arc<dyn Fn(Option<&[Vec<u8>]>) -> crate::Result<(usize, Vec<usize>)> + Send + Sync>;
