//! What work on a table that may take hours is done with.

use crate::copy::Progress;
use pgspate_target::connect::Dsn;
use pgspate_target::session::Stop;

/// Where sessions are opened, who is shown what is done, and what ends it.
#[derive(Clone)]
pub(super) struct Patient<'a> {
    pub(super) dsn: &'a Dsn,
    pub(super) progress: &'a Progress,
    /// The user's wish to stop, or another that nobody has, where it is not to count.
    pub(super) stop: Stop,
}
