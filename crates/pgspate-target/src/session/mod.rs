//! How pgspate waits for a server: until it answers, until it is back, or until the user stops the
//! run.
//!
//! Each reason to end a wait has one place:
//! - Silence: a guard watches every connection (`connect/guard.rs`), so callers need no timeout of
//!   their own.
//! - The user: [`StopFlag`] cancels running statements, and makes the error "stopped by the user".
//! - A lost server: [`ReconnectBackoff`] says when to try again and when to give up.
//!
//! [`WaitLimits`] has the time limits. [`TimeoutScope`] switches off timeouts of the server. This
//! module knows statements and sessions, but not what they write.

mod limits;
mod retry;
mod stop;

pub use limits::{TimeoutScope, WaitLimits};
pub use retry::ReconnectBackoff;
pub use stop::{POLL_INTERVAL, StopFlag, cancel_when, stopped_error};
