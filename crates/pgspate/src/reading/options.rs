//! What is read, and how.

use std::sync::Arc;

use crate::format::memory::Batches;
use crate::format::sniff::Overrides;
use crate::plan::RowRequest;
use crate::source::{self, Input};

/// Where records come from.
#[derive(Debug, Clone)]
pub enum InputOrigin {
    /// Paths, globs, folders, `-`, or URLs.
    Sources(Vec<String>),
    /// Rows of the program itself.
    Batches(Arc<dyn Batches>),
    /// A stream that the program writes.
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
    pub source: source::Options,
    /// What is said about format, delimiter, quotes, header and NULL.
    pub read: Overrides,
    /// Lines that begin with this byte are passed over.
    pub comment: Option<u8>,
    /// Empty lines are passed over.
    pub skip_blank_lines: bool,
    /// How fields go to columns.
    pub rows: RowRequest,
}

impl ReadingOptions {
    /// These sources, read as they seem to be.
    pub fn of_sources(sources: Vec<String>) -> ReadingOptions {
        ReadingOptions { origin: InputOrigin::Sources(sources), ..ReadingOptions::default() }
    }
}
