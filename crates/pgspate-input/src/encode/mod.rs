//! Encodes values into COPY bytes.
//!
//! An encoder accepts only texts that it can encode exactly as the server's input function would. A
//! row with any other value is left to the server: the row is sent as COPY text, and the server
//! decides. Nothing here does I/O.

pub mod arrow;
pub mod date_format;
pub mod field;
pub mod text;

/// Encoded rows: rows in binary COPY format, and rows in COPY text that are left to the server.
#[derive(Debug, Default)]
pub struct Encoded {
    /// Whole rows in binary COPY format, without header and trailer.
    pub binary: Vec<u8>,
    /// The number of rows in `binary`.
    pub binary_rows: u64,
    /// Whole rows in text COPY format (tab, `\N`, backslash escapes, `\n`).
    pub text: Vec<u8>,
    /// For each row in `text`, its number within the chunk, counted from 0.
    pub text_rows: Vec<u64>,
    /// The number of rows that are neither in `binary` nor in `text`, because the table already has
    /// these rows.
    pub known_rows: u64,
}

impl Encoded {
    /// Removes all rows and keeps the buffers' memory.
    pub fn clear(&mut self) {
        self.binary.clear();
        self.binary_rows = 0;
        self.text.clear();
        self.text_rows.clear();
        self.known_rows = 0;
    }

    /// Returns the bytes of all rows.
    pub(crate) fn bytes(&self) -> usize {
        self.binary.len() + self.text.len()
    }
}
