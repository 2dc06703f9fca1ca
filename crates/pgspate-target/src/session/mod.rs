//! How pgspate waits for a server: until the server answers, until a lost server is back, or until
//! the user stops the run.
//!
//! Each reason to end a wait has one place:
//! - A silent server: a guard watches every connection (`connect/guard.rs`), so callers need no
//!   timeout of their own.
//! - The user: [`StopFlag`] cancels running statements, and returns the error "stopped by the
//!   user".
//! - A lost server: [`ReconnectBackoff`] decides when to retry, and when to stop retrying.
//!
//! [`WaitLimits`] has the time limits. [`TimeoutScope`] switches off timeouts of the server.

mod limits;
mod retry;
mod stop;

pub use limits::{TimeoutScope, WaitLimits};
pub use retry::ReconnectBackoff;
pub use stop::{POLL_INTERVAL, StopFlag, cancel_when, stopped_error};
