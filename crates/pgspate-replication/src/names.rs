//! Where the events of a stream stand, in words: files and lines, a place in a server's log, or
//! partitions and offsets.

use std::sync::{Arc, PoisonError, RwLock};

use crate::InputPlace;
use pgspate_events::EventPlace;

/// What people call the files, the slot or the partitions of a stream. Partitions may be added.
#[derive(Debug, Clone, Default)]
pub struct SourceNames(Arc<RwLock<Vec<String>>>);

impl SourceNames {
    /// Takes the names in the order by which a [`EventPlace`] counts them.
    pub fn new(names: Vec<String>) -> SourceNames {
        SourceNames(Arc::new(RwLock::new(names)))
    }

    /// Adds the next partition's name.
    pub fn add(&self, name: String) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(name);
    }

    fn get(&self, nth: u32) -> Option<String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(nth as usize).cloned()
    }

    /// Returns where an event stands.
    pub fn place(&self, event_place: EventPlace) -> InputPlace {
        let (source, line) = match event_place {
            EventPlace::Line { input, line } => (self.get(input), Some(line)),
            _ => (Some(self.words(event_place)), None),
        };
        InputPlace { source, line, ..InputPlace::default() }
    }

    /// Returns where an event stands in words.
    pub fn words(&self, event_place: EventPlace) -> String {
        let name = |nth| self.get(nth).unwrap_or_default();
        match event_place {
            EventPlace::Line { input, line } => format!("{}, line {line}", name(input)),
            EventPlace::Commit(lsn) => format!("{}, transaction at {lsn}", name(0)),
            EventPlace::Offset { part, offset } => format!("{}, offset {offset}", name(part)),
        }
    }
}
