//! Catches panics of the Parquet and Arrow decoders, which may panic on damaged input.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

thread_local! {
    /// Whether this thread runs a decoder whose panics are caught.
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a decoder. Returns `None` if the decoder panicked; then its state must not be used again.
pub(super) fn catch_panic<T>(run: impl FnOnce() -> T) -> Option<T> {
    let was_contained = CONTAINED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    CONTAINED.set(was_contained);
    result.ok()
}

/// Stops this process from printing caught panics, which become errors. Other panics are printed as
/// before.
pub fn silence_contained_panics() {
    let print_panic = take_hook();
    set_hook(Box::new(move |info| {
        if !CONTAINED.get() {
            print_panic(info);
        }
    }));
}
