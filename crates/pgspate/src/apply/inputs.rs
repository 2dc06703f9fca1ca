//! Where the events of a stream stand, in words: files and lines, or a place in a server's log.

use super::replication::Lsn;
use crate::Place;

/// What a stream is read from.
#[derive(Debug, Clone)]
pub(crate) enum Inputs {
    /// Files by their names; events stand on lines, counted from 1.
    Files(Vec<String>),
    /// A replication slot, by what people call it; events stand where their transaction commits.
    Slot(String),
}

impl Inputs {
    /// Where an event stands.
    pub(crate) fn place(&self, input: u32, line: u64) -> Place {
        match self {
            Inputs::Files(names) => Place {
                source: names.get(input as usize).cloned(),
                line: Some(line),
                ..Place::default()
            },
            Inputs::Slot(_) => {
                Place { source: Some(self.source(input, line).0), ..Place::default() }
            }
        }
    }

    /// The same as source and line, for the ledger.
    pub(crate) fn source(&self, input: u32, line: u64) -> (String, u64) {
        match self {
            Inputs::Files(names) => (names.get(input as usize).cloned().unwrap_or_default(), line),
            Inputs::Slot(name) => (format!("{name}, transaction at {}", Lsn(line)), 0),
        }
    }
}
