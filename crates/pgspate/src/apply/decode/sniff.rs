//! Which format a stream is in, by its first record, and the decoder for it.
//!
//! The first record decides, once for the whole stream.

use super::{Decode, plain};
use crate::{Error, Kind, Result};

/// A format of change events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// pgspate's own.
    Pgspate,
}

impl Format {
    /// All of them, in the order in which they are named to users.
    pub const ALL: [Format; 1] = [Format::Pgspate];

    /// Its name, as `--format` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Format::Pgspate => "pgspate",
        }
    }

    /// The format of this name.
    ///
    /// # Errors
    /// [`Kind::Usage`] when there is none.
    pub fn by_name(name: &str) -> Result<Format> {
        let found = Format::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| {
            let names = Format::ALL.map(Format::name).join(", ");
            Error::new(Kind::Usage, format!("no format of events is called \"{name}\""))
                .hint(format!("The formats are {names}."))
        })
    }
}

/// The decoder of a format with its defaults. `None` for pgspate's own, which has a module of its
/// own.
pub fn of(format: Format) -> Option<Box<dyn Decode>> {
    match format {
        Format::Pgspate => None,
    }
}

/// The format that a record is in, and by what it is known.
///
/// # Errors
/// [`Kind::Format`] when it is in none.
pub fn sniff(record: &[u8]) -> Result<(Format, &'static str)> {
    if plain::is_event(record) {
        return Ok((Format::Pgspate, "it has an \"op\" and a \"table\""));
    }
    let names = Format::ALL.map(Format::name).join(", ");
    let message = "the format of the events is not known by their first record";
    Err(Error::new(Kind::Format, message).hint(format!("Name it with `--format`: {names}.")))
}
