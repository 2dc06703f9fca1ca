//! Generated data: like the data of published measurements, and reproducible by seed.
//!
//! Every row depends only on the seed and its number. So rows can be made in any order and by any
//! number of threads, and need not be kept in memory. TPC-H's rows are made in order, and are the
//! same for all seeds. All rows are COPY text: fields between tabs, `\N` for NULL, and no other
//! backslash, so that a tab-separated reader sees the same fields.

pub mod accounts;
mod generated;
pub mod imdb;
pub mod meters;
pub mod tpch;
mod words;

use std::io::Write as _;

use bytes::Bytes;
use futures_util::SinkExt as _;
use pgspate::{Error, ErrorKind, Result};
use tokio_postgres::Client;

pub use crate::random::SeededRandom;
pub use generated::GeneratedTable;

/// The least number of bytes that are sent to the server at once.
const PIECE_BYTES: usize = 256 << 10;

/// Rows of a table as COPY text, a piece at a time.
pub trait GeneratedRows {
    /// Appends the next rows, each with its newline. Returns false if no row is left.
    fn append(&mut self, out: &mut Vec<u8>) -> bool;
}

/// Rows that a function makes from their numbers.
pub struct NumberedRows<F: FnMut(u64, &mut Vec<u8>)> {
    numbers: std::ops::Range<u64>,
    row: F,
}

impl<F: FnMut(u64, &mut Vec<u8>)> NumberedRows<F> {
    /// Creates the rows with these numbers. `row` appends one row with its newline.
    pub fn new(numbers: std::ops::Range<u64>, row: F) -> NumberedRows<F> {
        NumberedRows { numbers, row }
    }
}

impl<F: FnMut(u64, &mut Vec<u8>)> GeneratedRows for NumberedRows<F> {
    fn append(&mut self, out: &mut Vec<u8>) -> bool {
        match self.numbers.next() {
            Some(number) => (self.row)(number, out),
            None => return false,
        }
        true
    }
}

/// Fills a table by COPY in one session, and returns the number of rows. `target` is the table's
/// name for SQL, with or without a list of columns.
///
/// # Errors
/// [`ErrorKind::Server`] if the server refuses the rows, or the connection is lost.
pub async fn copy(client: &Client, target: &str, rows: &mut dyn GeneratedRows) -> Result<u64> {
    let failed = |error: tokio_postgres::Error| {
        let cause = error.as_db_error().map_or_else(|| error.to_string(), |it| it.to_string());
        let message = format!("could not fill {target}");
        Error::new(ErrorKind::Server, message).because(Error::new(ErrorKind::Server, cause))
    };
    let sink = client.copy_in(&format!("copy {target} from stdin")).await.map_err(failed)?;
    let mut sink = Box::pin(sink);
    let mut piece = Vec::with_capacity(PIECE_BYTES * 2);
    loop {
        let has_more = rows.append(&mut piece);
        if piece.len() >= PIECE_BYTES || (!has_more && !piece.is_empty()) {
            let full = std::mem::replace(&mut piece, Vec::with_capacity(PIECE_BYTES * 2));
            sink.send(Bytes::from(full)).await.map_err(failed)?;
        }
        if !has_more {
            return sink.as_mut().finish().await.map_err(failed);
        }
    }
}

/// Appends formatted text. Writing to a vector cannot fail.
pub(crate) fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}

/// Appends a field, or `\N` for `None`, and then the separator `end`.
pub(crate) fn field(out: &mut Vec<u8>, value: Option<impl std::fmt::Display>, end: char) {
    match value {
        Some(value) => put(out, format_args!("{value}{end}")),
        None => put(out, format_args!("\\N{end}")),
    }
}

/// Scales a count; returns at least 1.
pub fn scaled(whole: u64, scale: f64) -> u64 {
    ((whole as f64 * scale).round() as u64).max(1)
}
