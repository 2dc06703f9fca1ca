//! Columns whose values do not come from records: constants, and the name of the input.
//!
//! These columns are the last columns of the COPY. So their bytes are the same for all rows of an
//! input, and an encoder appends them to each row.

use std::sync::Arc;

use crate::encode::field::FieldEncoder;
use crate::encode::text;

/// The value of a column that does not come from records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConstantValue {
    /// NULL.
    Null,
    /// A text that the column's type parses.
    Text(String),
    /// The name of the input.
    InputName,
}

/// A column whose value does not come from records.
#[derive(Debug, Clone)]
pub struct ConstantColumn {
    value: ConstantValue,
    /// The encoder of the value. If `None`, the server parses the value.
    encoder: Option<FieldEncoder>,
}

/// The columns that follow the columns of an input's fields.
#[derive(Debug, Clone, Default)]
pub struct ConstantColumns {
    /// The columns, in COPY's order.
    pub columns: Arc<[ConstantColumn]>,
    /// The names of the inputs, by [`Chunk::input`](super::Chunk::input).
    pub inputs: Arc<[String]>,
}

/// The bytes with which the rows of one input end.
#[derive(Debug, Clone, Default)]
pub(super) struct RowTail {
    constants: ConstantColumns,
    /// The input whose name is in the bytes.
    input: Option<usize>,
    /// The values in binary COPY format.
    pub(super) binary: Vec<u8>,
    /// The values in COPY text, each after a tab, and the line's end.
    text: Vec<u8>,
    /// Whether a value is left to the server, so that rows are text.
    needs_text: bool,
}

impl ConstantColumn {
    /// Returns the column with this value. `encoder` is the encoder of the column's type, if there
    /// is one.
    pub fn new(value: ConstantValue, encoder: Option<FieldEncoder>) -> ConstantColumn {
        let is_exact = |encoder: &FieldEncoder| match &value {
            ConstantValue::Null => true,
            ConstantValue::Text(text) => encoder.encode(text.as_bytes(), &mut Vec::new()),
            // Every name is a value of these types.
            ConstantValue::InputName => encoder.is_text(),
        };
        let encoder = encoder.filter(is_exact);
        ConstantColumn { value, encoder }
    }

    /// Returns the value.
    pub fn value(&self) -> &ConstantValue {
        &self.value
    }

    /// Returns whether the value can be sent in binary.
    pub fn is_binary(&self) -> bool {
        self.encoder.is_some() || self.value == ConstantValue::Null
    }

    /// Returns the value's text in the rows of an input; `None` for NULL.
    fn text<'a>(&'a self, input: &'a str) -> Option<&'a str> {
        match &self.value {
            ConstantValue::Null => None,
            ConstantValue::Text(text) => Some(text),
            ConstantValue::InputName => Some(input),
        }
    }

    /// Appends the value in binary. Returns false if the value is left to the server.
    fn append_binary(&self, input: &str, out: &mut Vec<u8>) -> bool {
        match (self.text(input), &self.encoder) {
            (None, _) => {
                out.extend_from_slice(&(-1_i32).to_be_bytes());
                true
            }
            (Some(text), Some(encoder)) => encoder.encode(text.as_bytes(), out),
            (Some(_), None) => false,
        }
    }
}

impl RowTail {
    pub(super) fn new(constants: ConstantColumns) -> RowTail {
        RowTail { constants, ..RowTail::default() }
    }

    /// Returns the number of columns in a row with this number of fields, as binary COPY has it.
    pub(super) fn column_count(&self, fields: usize) -> [u8; 2] {
        ((fields + self.constants.columns.len()) as i16).to_be_bytes()
    }

    /// Makes the bytes for rows of this input. Returns whether rows can be binary.
    pub(super) fn set_input(&mut self, input: usize) -> bool {
        if self.constants.columns.is_empty() || self.input == Some(input) {
            return !self.needs_text;
        }
        self.input = Some(input);
        self.binary.clear();
        self.text.clear();
        self.needs_text = false;
        let name = self.constants.inputs.get(input).map_or("", String::as_str);
        for column in self.constants.columns.iter() {
            self.needs_text |= !column.append_binary(name, &mut self.binary);
            self.text.push(b'\t');
            text::append(column.text(name).map(str::as_bytes), &mut self.text);
        }
        self.text.push(b'\n');
        !self.needs_text
    }

    /// Completes a row of COPY text, which ends with a newline.
    #[inline]
    pub(super) fn complete_text(&self, out: &mut Vec<u8>) {
        if !self.text.is_empty() {
            out.pop();
            out.extend_from_slice(&self.text);
        }
    }
}
