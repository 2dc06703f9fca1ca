//! Where the events of a stream stand, in words: files and lines, a place in a server's log, or
//! partitions and offsets.

use std::sync::{Arc, PoisonError, RwLock};

use crate::Place;
use pgspate_events::Stand;

/// What people call the files, the slot or the partitions of a stream. Partitions may be added.
#[derive(Debug, Clone, Default)]
pub(crate) struct SourceNames(Arc<RwLock<Vec<String>>>);

impl SourceNames {
    pub(crate) fn new(names: Vec<String>) -> SourceNames {
        SourceNames(Arc::new(RwLock::new(names)))
    }

    pub(crate) fn add(&self, name: String) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(name);
    }

    fn get(&self, nth: u32) -> Option<String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(nth as usize).cloned()
    }

    /// Where an event stands.
    pub(crate) fn place(&self, stand: Stand) -> Place {
        let (source, line) = match stand {
            Stand::Line { input, line } => (self.get(input), Some(line)),
            _ => (Some(self.words(stand)), None),
        };
        Place { source, line, ..Place::default() }
    }

    /// The same as source and line, for the ledger.
    pub(crate) fn source(&self, stand: Stand) -> (String, u64) {
        match stand {
            Stand::Line { input, line } => (self.get(input).unwrap_or_default(), line),
            _ => (self.words(stand), 0),
        }
    }

    /// The same in words.
    pub(crate) fn words(&self, stand: Stand) -> String {
        let name = |nth| self.get(nth).unwrap_or_default();
        match stand {
            Stand::Line { input, line } => format!("{}, line {line}", name(input)),
            Stand::Commit(lsn) => format!("{}, transaction at {lsn}", name(0)),
            Stand::Offset { part, offset } => format!("{}, offset {offset}", name(part)),
        }
    }
}
