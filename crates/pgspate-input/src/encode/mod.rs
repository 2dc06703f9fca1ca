//! Rows to COPY bytes.
//!
//! An encoder takes only spellings that it can encode exactly as the server's input function
//! would. A row with any other field is left to the server: it is written as COPY text, and the
//! server decides. Nothing here does I/O.

pub mod arrow;
pub mod field;
pub mod text;

/// What encoding produced: rows in binary COPY format, and rows left to the server.
#[derive(Debug, Default)]
pub struct Encoded {
    /// Whole rows in binary COPY format, without header and trailer.
    pub binary: Vec<u8>,
    /// How many rows `binary` holds.
    pub binary_rows: u64,
    /// Whole rows in text COPY format (tab, `\N`, backslash escapes, `\n`).
    pub text: Vec<u8>,
    /// For each row in `text`, its ordinal within the chunk, counted from 0.
    pub text_rows: Vec<u64>,
    /// Rows that are neither, as the table is known to have them.
    pub known_rows: u64,
}

impl Encoded {
    /// Forgets the rows but keeps the buffers.
    pub fn clear(&mut self) {
        self.binary.clear();
        self.binary_rows = 0;
        self.text.clear();
        self.text_rows.clear();
        self.known_rows = 0;
    }
}
