//! Which format a stream has, and its decoder.
//!
//! The first record decides, once for the whole stream.

use super::{Decode, plain};
use crate::{Error, Kind, Result};

/// Formats of change streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// pgspate's own: [`plain`].
    Pgspate,
}

/// The format of a stream that begins with `record`.
///
/// # Errors
/// Of [`Kind::Format`] when it is none that is known.
pub fn sniff(record: &[u8]) -> Result<Format> {
    if plain::is_event(record) {
        return Ok(Format::Pgspate);
    }
    Err(Error::new(Kind::Format, "the first record is no event of a format that is known")
        .hint("Name the format with `--format`."))
}

/// The decoder of a format.
pub fn of(format: Format) -> Box<dyn Decode> {
    match format {
        Format::Pgspate => Box::new(plain::Plain::default()),
    }
}
