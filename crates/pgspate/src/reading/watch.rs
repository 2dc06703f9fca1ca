//! What a load shows of itself while it runs.

use std::sync::{Arc, Mutex};

use crate::{copy, source};
use pgspate_target::session::Stop;

/// Shared between a load and whoever shows its progress.
#[derive(Debug, Default)]
pub struct LoadWatch {
    /// What the lanes do.
    pub copy: copy::CopyProgress,
    read: Mutex<Vec<Arc<source::CopyProgress>>>,
    total: Mutex<Option<u64>>,
}

impl LoadWatch {
    /// Of a load that is a part of a run which has a wish to stop already.
    pub(crate) fn with(stop: Stop) -> LoadWatch {
        LoadWatch { copy: copy::CopyProgress::with(stop), ..LoadWatch::default() }
    }

    /// Stored bytes read so far, and all there are, where that is known: for the time left.
    pub fn stored_bytes(&self) -> (u64, Option<u64>) {
        let read = self.read.lock().expect("no panic while held");
        let done = read.iter().map(|progress| progress.stored()).sum();
        (done, *self.total.lock().expect("no panic while held"))
    }

    pub(super) fn follow(&self, progress: Arc<source::CopyProgress>) {
        self.read.lock().expect("no panic while held").push(progress);
    }

    /// Before the input is read from its start (again).
    pub(crate) fn start_over(&self, total: Option<u64>) {
        self.read.lock().expect("no panic while held").clear();
        *self.total.lock().expect("no panic while held") = total;
        self.copy.start_over();
    }
}
