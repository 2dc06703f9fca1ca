//! Catches panics of the Parquet and Arrow decoders, which may panic on damaged input.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a decoder. Returns `None` if the decoder panicked; then its state must not be used again.
pub(super) fn catch_panic<T>(run: impl FnOnce() -> T) -> Option<T> {
    let before = CONTAINED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    CONTAINED.set(before);
    result.ok()
}

/// Stops this process from printing caught panics, which become errors. Other panics are printed as
/// before.
pub fn silence_contained_panics() {
    let show = take_hook();
    set_hook(Box::new(move |info| {
        if !CONTAINED.get() {
            show(info);
        }
    }));
}
