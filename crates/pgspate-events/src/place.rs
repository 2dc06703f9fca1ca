//! Where events stand in their streams: each sort of source has a measure of its own.

use std::fmt;
use std::str::FromStr;

use crate::{Error, ErrorKind};

/// Where an event stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventPlace {
    /// On a line of one of the inputs, or in a row; both count from 1.
    Line {
        /// Which of the inputs.
        input: u32,
        /// Its number there.
        line: u64,
    },
    /// In the transaction that commits there.
    Commit(Lsn),
    /// In a message of a topic.
    Offset {
        /// Which of the partitions.
        part: u32,
        /// Its offset there.
        offset: i64,
    },
}

/// A place in the write-ahead log, written as `16/B374D848`. Zero is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

impl From<Lsn> for EventPlace {
    fn from(commit: Lsn) -> EventPlace {
        EventPlace::Commit(commit)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl FromStr for Lsn {
    type Err = Error;

    fn from_str(text: &str) -> Result<Lsn, Error> {
        let parse = || {
            let (high, low) = text.split_once('/')?;
            let is_hex = |part: &str| {
                (1..=8).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit())
            };
            if !is_hex(high) || !is_hex(low) {
                return None;
            }
            let part = |text| u64::from_str_radix(text, 16).ok();
            Some(Lsn(part(high)? << 32 | part(low)?))
        };
        parse().ok_or_else(|| {
            Error::new(
                ErrorKind::Usage,
                format!("invalid place in the write-ahead log: \"{text}\""),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_written() {
        for (text, value) in [("0/0", 0), ("16/B374D848", 0x16_B374_D848), ("0/A", 10)] {
            assert_eq!(text.parse::<Lsn>().unwrap(), Lsn(value));
            assert_eq!(Lsn(value).to_string(), text);
        }
        for text in ["", "/", "1", "1/", "x/1", "1/123456789", "+1/1"] {
            assert!(text.parse::<Lsn>().is_err(), "{text}");
        }
    }
}
