//! How one waits for a server: until it answers, until it is back, or until the user stops the run.
//!
//! Three things end a wait, and each has one place. Silence: every connection has a guard beneath
//! it (`target/connect/guard.rs`), so that no caller needs a time limit of its own. The user's
//! wish: [`Stop`] cancels the statements that are waited for, and says "stopped" in one wording. A
//! server that is away: [`Patience`] says when to try again and when to give up. How long all of
//! this may take is in [`Limits`], and what the server must not end by itself in [`Timeouts`].
//!
//! This room knows statements and sessions. It must never know what is written by them.

mod limits;
mod retry;
mod stop;

pub use limits::{Limits, Timeouts};
pub use retry::Patience;
pub use stop::{LOOK, Stop, heeding, stopped};
