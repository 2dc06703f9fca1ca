//! The progress of a running load.

use std::sync::{Arc, Mutex};

use crate::{copy, source};
use pgspate_target::session::StopFlag;

/// Progress shared by a load and whoever shows it.
#[derive(Debug, Default)]
pub struct LoadWatch {
    /// The progress of the lanes.
    pub copy: copy::CopyProgress,
    read: Mutex<Vec<Arc<source::ReadProgress>>>,
    total: Mutex<Option<u64>>,
}

impl LoadWatch {
    /// Returns the watch of a load within a run that can be stopped already.
    pub(crate) fn with_stop(stop: StopFlag) -> LoadWatch {
        LoadWatch { copy: copy::CopyProgress::with_stop(stop), ..LoadWatch::default() }
    }

    /// Returns the stored bytes read so far, and the total if known. They give the time left.
    pub fn stored_bytes(&self) -> (u64, Option<u64>) {
        let read = self.read.lock().expect("no panic while held");
        let done = read.iter().map(|progress| progress.stored()).sum();
        (done, *self.total.lock().expect("no panic while held"))
    }

    /// Adds the progress of one input's reader.
    pub(super) fn follow_input(&self, progress: Arc<source::ReadProgress>) {
        self.read.lock().expect("no panic while held").push(progress);
    }

    /// Resets the progress before the input is read from its start.
    pub(crate) fn start_over(&self, total: Option<u64>) {
        self.read.lock().expect("no panic while held").clear();
        *self.total.lock().expect("no panic while held") = total;
        self.copy.start_over();
    }
}
