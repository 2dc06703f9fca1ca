//! Where the events of a stream stand, in words: files and lines, a place in a server's log, or
//! partitions and offsets.

use std::sync::{Arc, PoisonError, RwLock};

use super::replication::Lsn;
use crate::Place;

/// What a stream is read from.
#[derive(Debug, Clone)]
pub(crate) enum Inputs {
    /// Files by their names; events stand on lines, counted from 1.
    Files(Vec<String>),
    /// A replication slot, by what people call it; events stand where their transaction commits.
    Slot(String),
    /// Partitions of topics by their names, of which there may be more; events stand at offsets.
    Topics(Arc<RwLock<Vec<String>>>),
}

impl Inputs {
    /// Whether they are read from their beginning again.
    pub(crate) fn are_files(&self) -> bool {
        matches!(self, Inputs::Files(_))
    }

    /// Where an event stands.
    pub(crate) fn place(&self, input: u32, line: u64) -> Place {
        match self {
            Inputs::Files(names) => Place {
                source: names.get(input as usize).cloned(),
                line: Some(line),
                ..Place::default()
            },
            _ => Place { source: Some(self.source(input, line).0), ..Place::default() },
        }
    }

    /// The same as source and line, for the ledger.
    pub(crate) fn source(&self, input: u32, line: u64) -> (String, u64) {
        match self {
            Inputs::Files(names) => (names.get(input as usize).cloned().unwrap_or_default(), line),
            Inputs::Slot(name) => (format!("{name}, transaction at {}", Lsn(line)), 0),
            Inputs::Topics(names) => {
                let names = names.read().unwrap_or_else(PoisonError::into_inner);
                let name = names.get(input as usize).map_or("", String::as_str);
                (format!("{name}, offset {line}"), 0)
            }
        }
    }

    /// The same in words.
    pub(crate) fn words(&self, input: u32, line: u64) -> String {
        match (self, self.source(input, line)) {
            (Inputs::Files(_), (name, line)) => format!("{name}, line {line}"),
            (_, (words, _)) => words,
        }
    }
}
