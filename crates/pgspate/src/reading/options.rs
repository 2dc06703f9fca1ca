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
    /// Record batches of the calling program.
    Batches(Arc<dyn ProgramBatches>),
    /// A byte stream that the calling program writes.
    Stream(Input),
}

impl Default for InputOrigin {
    fn default() -> InputOrigin {
        InputOrigin::Sources(Vec::new())
    }
}

/// What is read, and how.
#[derive(Debug, Clone, Default)]
pub struct ReadingOptions {
    /// Where records come from.
    pub origin: InputOrigin,
    /// How sources are found and read.
    pub source: source::SourceOptions,
    /// The user's choice of format, delimiter, quotes, header and NULL string.
    pub read: SniffOverrides,
    /// Skip lines that begin with this byte.
    pub comment: Option<u8>,
    /// Whether to skip empty lines.
    pub skip_blank_lines: bool,
    /// How fields become rows.
    pub rows: RowRequest,
}

impl ReadingOptions {
    /// Returns options for these sources, whose format is detected.
    pub fn of_sources(sources: Vec<String>) -> ReadingOptions {
        ReadingOptions { origin: InputOrigin::Sources(sources), ..ReadingOptions::default() }
    }
}
