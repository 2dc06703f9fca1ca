//! Formats whose records name columns by keys, such as JSON.
//!
//! A [`KeyedFormat`] has the functions that such a format provides. The other types here are the
//! input of the format's cutter and the options of the format's encoder.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::sync::Arc;

use super::constants::ConstantColumns;
use super::guessed_type::GuessedType;
use super::{ChunkEncoder, Cutter, infer};
use crate::encode::date_format::{DateFormat, DateFormats};
use crate::encode::field::FieldEncoder;
use crate::types::PgType;
use pgspate_base::truncate_ident;

/// The functions of a format whose records name columns by keys.
pub struct KeyedFormat {
    /// Returns the columns for the records of a sample, with dates in these formats. The sample may
    /// end within a record.
    pub columns: fn(&[u8], &DateFormats) -> Vec<infer::NewColumn>,
    /// Returns whether the records of a sample have their values by position, without keys.
    pub is_by_position: fn(&[u8]) -> bool,
    /// Returns a cutter that cuts an input into chunks of about the given number of bytes.
    pub cutter: fn(KeyedInput, usize) -> Box<dyn Cutter>,
    /// Returns an encoder for one lane.
    pub encoder: fn(KeyedOptions) -> Box<dyn ChunkEncoder>,
}

/// A column to write.
#[derive(Debug, Clone)]
pub struct KeyedColumn {
    /// The column's name.
    pub name: String,
    /// The column's type, which decides how arrays and objects are written.
    pub ty: PgType,
    /// The column's encoder. If any column has none, every row goes to the server as text.
    pub field: Option<FieldEncoder>,
    /// The format of the column's dates, if it is not ISO. The encoder knows it, too.
    pub date_format: Option<Arc<DateFormat>>,
    /// The column's type, if it was guessed from a sample.
    pub guessed_type: Option<GuessedType>,
}

/// How the keys and values of a record become a row.
#[derive(Debug, Clone)]
pub struct KeyedOptions {
    /// The columns, in the order of COPY's column list.
    pub columns: Vec<KeyedColumn>,
    /// The columns by key: indexes into `columns`.
    pub keys: HashMap<String, usize>,
    /// Whether keys without a column are ignored. If not, such a record is refused.
    pub ignore_unknown: bool,
    /// The names of all columns of the table, as they are and in lower case. A key that names one
    /// of these columns but is not in `keys` is always refused: its values would be lost.
    pub table_columns: Arc<HashSet<String>>,
    /// Whether columns of the table were made from a sample of the records.
    pub has_sampled_columns: bool,
    /// Whether keys name columns in snake case.
    pub snake_case: bool,
    /// The names of the inputs, by [`Chunk::input`](super::Chunk::input), for errors. May be empty.
    pub inputs: Arc<[String]>,
    /// The columns that follow `columns` in COPY's column list.
    pub constants: ConstantColumns,
}

impl KeyedOptions {
    /// Returns options where each key must equal the name of a column.
    pub fn new(columns: Vec<KeyedColumn>) -> KeyedOptions {
        let keys = columns.iter().enumerate().map(|(i, c)| (c.name.clone(), i)).collect();
        let table_columns = Arc::default();
        KeyedOptions {
            columns,
            keys,
            ignore_unknown: false,
            table_columns,
            has_sampled_columns: false,
            snake_case: false,
            inputs: Arc::new([]),
            constants: ConstantColumns::default(),
        }
    }

    /// Returns what a key names.
    pub(super) fn target_of(&self, key: &str) -> KeyTarget {
        match self.keys.get(key) {
            Some(column) => KeyTarget::Column(*column),
            None if self.is_table_column(key) => KeyTarget::NotWritten,
            None => KeyTarget::NoColumn,
        }
    }

    /// Returns whether a key names a column of the table, ignoring case and outer white space.
    pub(super) fn is_table_column(&self, key: &str) -> bool {
        let columns = &self.table_columns;
        !columns.is_empty()
            && (columns.contains(truncate_ident(key))
                || columns.contains(&truncate_ident(key.trim()).to_lowercase())
                || self.snake_case && columns.contains(&infer::snake_case(key)))
    }
}

/// What a key names.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum KeyTarget {
    /// A column to write: an index into [`KeyedOptions::columns`].
    Column(usize),
    /// A column of the table that is not written.
    NotWritten,
    /// No column of the table.
    #[default]
    NoColumn,
}

/// One input to cut.
pub struct KeyedInput {
    /// The input's name, for errors.
    pub name: String,
    /// The input's decompressed bytes.
    pub reader: Box<dyn Read + Send>,
}
