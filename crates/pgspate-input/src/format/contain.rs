//! Keeps the panics of decoders that meet damaged input from spreading, or being shown.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a decoder; `None` when it panicked. What it worked on must not be used again then.
pub(super) fn contain<T>(run: impl FnOnce() -> T) -> Option<T> {
    let before = CONTAINED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    CONTAINED.set(before);
    result.ok()
}

/// Makes contained panics silent in this process: they come back as errors. All others are shown
/// as before.
pub fn silence_contained_panics() {
    let show = take_hook();
    set_hook(Box::new(move |info| {
        if !CONTAINED.get() {
            show(info);
        }
    }));
}
