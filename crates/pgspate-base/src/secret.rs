//! A secret text that cannot be printed by accident.

use std::fmt;

/// A secret text. `Debug` prints `***`, and there is no `Display`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(String);

impl Secret {
    /// Wraps the text.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// Returns the text itself. Only the code that sends the secret may call this.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns whether the text is `***`, which programs show in place of a password.
    pub fn is_mask(&self) -> bool {
        self.0 == "***"
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
