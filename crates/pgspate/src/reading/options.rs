//! Options for reading inputs.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::format::memory::ProgramBatches;
use crate::format::sniff::SniffOverrides;
use crate::plan::RowRequest;
use crate::source::{self, Input};

/// Where records come from.
#[derive(Debug, Clone)]
pub enum InputOrigin {
    /// Paths, globs, folders, `-`, or URLs.
    Sources(Vec<String>),
    /// Record batches of the program that calls pgspate.
    Batches(Arc<dyn ProgramBatches>),
    /// A byte stream that the program writes.
    Stream(Input),
}

impl Default for InputOrigin {
    fn default() -> InputOrigin {
        InputOrigin::Sources(Vec::new())
    }
}

/// What pgspate reads, and how.
#[derive(Debug, Clone, Default)]
pub struct ReadingOptions {
    /// Where records come from.
    pub origin: InputOrigin,
    /// How sources are found and read.
    pub source: source::SourceOptions,
    /// The user's choice of format, delimiter, quotes, header and NULL string.
    pub read: SniffOverrides,
    /// The byte with which comment lines begin; such lines are skipped. `None`: no line is a
    /// comment.
    pub comment: Option<u8>,
    /// Whether to skip empty lines.
    pub skip_blank_lines: bool,
    /// How fields become rows.
    pub rows: RowRequest,
}

impl ReadingOptions {
    /// Returns the options of a job's identity that pgspate guesses from the first input, because
    /// the user has not given them. Chunks are cut as pgspate likes.
    pub(crate) fn guessed_options(&self) -> Vec<&'static str> {
        let SniffOverrides { format, delimiter, quote, escape, header, null, likely_escape: _ } =
            &self.read;
        let RowRequest { columns, force_null, force_not_null, .. } = &self.rows;
        let has_columns = columns.is_some() || !force_null.is_empty() || !force_not_null.is_empty();
        let given = [
            ("format", format.is_some()),
            ("delimiter", delimiter.is_some()),
            ("quote", quote.is_some()),
            ("escape", escape.is_some()),
            ("header", header.is_some()),
            ("null", null.is_some()),
            ("columns", has_columns),
            ("chunk bytes", false),
        ];
        given.into_iter().filter(|(_, is_given)| !is_given).map(|(name, _)| name).collect()
    }

    /// Returns the options that decide about values, by name, for a job's identity.
    pub(crate) fn constants_identity(&self) -> Map<String, Value> {
        let RowRequest { constants, file_name_column, date_formats, .. } = &self.rows;
        let mut options = Map::new();
        if !constants.is_empty() {
            let values = constants.iter().map(|(name, value)| json!([name, value]));
            options.insert("set".to_owned(), values.collect());
        }
        if !date_formats.0.is_empty() {
            let formats = date_formats.0.iter().map(|(name, it)| json!([name, it.pattern()]));
            options.insert("date-format".to_owned(), formats.collect());
        }
        if let Some(name) = file_name_column {
            options.insert("file-name-column".to_owned(), name.as_str().into());
        }
        options
    }

    /// Returns options that read these sources and detect their format.
    pub fn of_sources(sources: Vec<String>) -> ReadingOptions {
        ReadingOptions { origin: InputOrigin::Sources(sources), ..ReadingOptions::default() }
    }
}
