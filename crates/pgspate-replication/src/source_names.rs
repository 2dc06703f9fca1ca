//! Names of a stream's files, slot or partitions, to describe places of events in messages.

use std::sync::{Arc, PoisonError, RwLock};

use crate::InputPlace;
use pgspate_events::EventPlace;

/// The names of a stream's files, slot or partitions. Partitions may be added while the stream
/// runs.
#[derive(Debug, Clone, Default)]
pub struct SourceNames(Arc<RwLock<Vec<String>>>);

impl SourceNames {
    /// Stores the names in the order of the indexes in [`EventPlace`].
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

    /// Returns the place of an event, for an error.
    pub fn place(&self, event_place: EventPlace) -> InputPlace {
        let (source, line) = match event_place {
            EventPlace::Line { input, line } => (self.get(input), Some(line)),
            _ => (Some(self.describe(event_place)), None),
        };
        InputPlace { source, line, ..InputPlace::default() }
    }

    /// Describes the place of an event in words.
    pub fn describe(&self, event_place: EventPlace) -> String {
        let name = |nth| self.get(nth).unwrap_or_default();
        match event_place {
            EventPlace::Line { input, line } => format!("{}, line {line}", name(input)),
            EventPlace::Commit(lsn) => format!("{}, transaction at {lsn}", name(0)),
            EventPlace::Offset { part, offset } => format!("{}, offset {offset}", name(part)),
        }
    }
}
