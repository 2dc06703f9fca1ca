//! A password in memory: it cannot be printed by accident.

use std::fmt;

/// Text that neither `Debug` nor `Display` shows.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(String);

impl Secret {
    pub(super) fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text itself, for the server and nobody else.
    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
