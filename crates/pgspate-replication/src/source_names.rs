//! Names of a stream's files, slot or partitions, to describe places of events in messages.

use std::sync::{Arc, PoisonError, RwLock};

use crate::InputPlace;
use pgspate_events::EventPlace;

/// The names of a stream's files, slot or partitions. Partitions may be added while the stream
/// runs.
#[derive(Debug, Clone, Default)]
pub struct SourceNames {
    /// The names for messages.
    shown: Arc<RwLock<Vec<String>>>,
    /// The names of files for the ledger, which are the same however a file is spelled.
    full: Arc<[String]>,
}

impl SourceNames {
    /// Stores the names in the order of the indexes in [`EventPlace`].
    pub fn new(names: Vec<String>) -> SourceNames {
        SourceNames { shown: Arc::new(RwLock::new(names)), full: Arc::default() }
    }

    /// Stores the names of files for messages and those for the ledger.
    pub fn of_files(shown: Vec<String>, full: Vec<String>) -> SourceNames {
        SourceNames { full: full.into(), ..SourceNames::new(shown) }
    }

    /// Adds the next partition's name.
    pub fn add(&self, name: String) {
        self.shown.write().unwrap_or_else(PoisonError::into_inner).push(name);
    }

    /// Returns whether no name follows this one.
    pub fn is_last(&self, nth: u32) -> bool {
        self.shown.read().unwrap_or_else(PoisonError::into_inner).len() == nth as usize + 1
    }

    fn get(&self, nth: u32) -> Option<String> {
        self.shown.read().unwrap_or_else(PoisonError::into_inner).get(nth as usize).cloned()
    }

    /// Returns the place of an event, for an error.
    pub fn place(&self, event_place: EventPlace) -> InputPlace {
        let (source, line) = match event_place {
            EventPlace::Line { input, line } => (self.get(input), Some(line)),
            _ => (Some(self.describe(event_place)), None),
        };
        InputPlace { source, line, ..InputPlace::default() }
    }

    /// Describes the place of an event in words, for the ledger.
    pub fn describe(&self, event_place: EventPlace) -> String {
        let name = |nth| self.get(nth).unwrap_or_default();
        match event_place {
            EventPlace::Line { input, line } => {
                let full = self.full.get(input as usize).cloned();
                format!("{}, line {line}", full.unwrap_or_else(|| name(input)))
            }
            EventPlace::Commit(lsn) => format!("{}, transaction at {lsn}", name(0)),
            EventPlace::Offset { part, offset } => format!("{}, offset {offset}", name(part)),
        }
    }
}
