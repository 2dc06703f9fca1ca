//! The progress of a running load.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::{copy, source};
use pgspate_target::session::StopFlag;

/// The progress that a running load updates and that other threads may show.
#[derive(Debug, Default)]
pub struct LoadWatch {
    /// The progress of the lanes.
    pub copy: copy::CopyProgress,
    /// The progress of each input's reader.
    readers: Mutex<Vec<Arc<source::ReadProgress>>>,
    /// The stored bytes of all inputs, if known.
    stored_bytes_total: Mutex<Option<u64>>,
    /// Inputs with other types than the first one, each with one of these types in words.
    other_types: Mutex<BTreeMap<String, String>>,
}

impl LoadWatch {
    /// Returns the watch of a load that an existing stop flag stops.
    pub(crate) fn with_stop(stop: StopFlag) -> LoadWatch {
        LoadWatch { copy: copy::CopyProgress::with_stop(stop), ..LoadWatch::default() }
    }

    /// Returns the stored bytes that were read so far, and the stored bytes of all inputs if known.
    pub fn stored_bytes(&self) -> (u64, Option<u64>) {
        let readers = self.readers.lock().expect("no panic while held");
        let done = readers.iter().map(|progress| progress.stored()).sum();
        (done, *self.stored_bytes_total.lock().expect("no panic while held"))
    }

    /// Adds the progress of one input's reader.
    pub(super) fn follow_input(&self, progress: Arc<source::ReadProgress>) {
        self.readers.lock().expect("no panic while held").push(progress);
    }

    /// Notes that a column of an input has another type than in the first input.
    pub(super) fn note_other_type(&self, input: &str, detail: String) {
        self.other_types.lock().expect("no panic while held").insert(input.to_owned(), detail);
    }

    /// Returns the warning about inputs with other types than the first one.
    pub(crate) fn other_types_warning(&self) -> Option<String> {
        let others = self.other_types.lock().expect("no panic while held");
        let (input, detail) = others.first_key_value()?;
        let files = match others.len() {
            1 => "1 file has".to_owned(),
            count => format!("{count} files have"),
        };
        Some(format!("{files} other types than the first: in \"{input}\", {detail}"))
    }

    /// Resets the progress before the input is read from its start.
    pub(crate) fn start_over(&self, total: Option<u64>) {
        self.readers.lock().expect("no panic while held").clear();
        *self.stored_bytes_total.lock().expect("no panic while held") = total;
        self.copy.start_over();
    }
}
