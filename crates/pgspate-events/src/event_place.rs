//! Places of events in a stream: each kind of source has its own measure.

use std::fmt;
use std::str::FromStr;

use crate::{Error, ErrorKind};

/// The place of an event in its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventPlace {
    /// A line or a row of an input file.
    Line {
        /// The index of the input.
        input: u32,
        /// The number of the line or row, from 1.
        line: u64,
    },
    /// The transaction whose commit record is at this LSN.
    Commit(Lsn),
    /// A message of a Kafka topic.
    Offset {
        /// The index of the partition among the partitions that the run reads.
        part: u32,
        /// The message's offset in the partition.
        offset: i64,
    },
}

/// A log sequence number: a place in the write-ahead log, written as `16/B374D848`. Zero means no
/// place.
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
                format!(
                    "invalid LSN: \"{text}\"; expected two hexadecimal numbers such as 16/B374D848"
                ),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_lsn_is_parsed_as_it_is_printed() {
        for (text, value) in [("0/0", 0), ("16/B374D848", 0x16_B374_D848), ("0/A", 10)] {
            assert_eq!(text.parse::<Lsn>().unwrap(), Lsn(value));
            assert_eq!(Lsn(value).to_string(), text);
        }
        for text in ["", "/", "1", "1/", "x/1", "1/123456789", "+1/1"] {
            assert!(text.parse::<Lsn>().is_err(), "{text}");
        }
    }
}
