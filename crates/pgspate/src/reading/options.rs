//! Options for reading inputs.

use std::sync::Arc;

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
    /// Returns options that read these sources and detect their format.
    pub fn of_sources(sources: Vec<String>) -> ReadingOptions {
        ReadingOptions { origin: InputOrigin::Sources(sources), ..ReadingOptions::default() }
    }
}
