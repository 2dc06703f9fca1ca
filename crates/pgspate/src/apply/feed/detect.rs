//! Finds the format of a stream of lines by one of its first records.
//!
//! A stream may begin with records that are in no format's rows: those are kept, and decoded when a
//! later one tells the format. Nothing is decoded before, and none of them is passed over.

use std::time::{Duration, Instant};

use super::{Feed, Making};
use crate::{Error, Result};
use pgspate_events::decode::plain::Plain;
use pgspate_events::decode::{self, Format};

/// So many records are looked at, of so many bytes together.
const RECORDS_MAX: usize = 100;
const BYTES_MAX: usize = 1 << 20;
/// In a stream that stays open, a record that tells the format is waited for so long.
const WAIT: Duration = Duration::from_secs(2);

/// Records whose format is not known.
#[derive(Default)]
pub(super) struct Unknown {
    records: Vec<(Vec<u8>, (u32, u64))>,
    bytes: usize,
    /// What is said of the first of them, and when the last one came.
    first: Option<Error>,
    last: Option<Instant>,
}

impl Unknown {
    fn add(&mut self, line: &[u8], stand: (u32, u64), error: Error) -> Result<()> {
        self.records.push((line.to_vec(), stand));
        self.bytes += line.len();
        self.first.get_or_insert(error);
        self.last = Some(Instant::now());
        match self.records.len() >= RECORDS_MAX || self.bytes >= BYTES_MAX {
            true => self.check_none(),
            false => Ok(()),
        }
    }

    /// # Errors
    /// When records are there, as no more of them come.
    pub(super) fn check_none(&mut self) -> Result<()> {
        self.first.take().map_or(Ok(()), Err)
    }

    /// # Errors
    /// When records are there, and none has come for long.
    pub(super) fn check_wait(&mut self) -> Result<()> {
        match self.last.is_some_and(|last| last.elapsed() >= WAIT) {
            true => self.check_none(),
            false => Ok(()),
        }
    }
}

impl Feed {
    /// Whether the format is known now, and a decoder there.
    pub(super) fn detect(
        &mut self,
        line: &[u8],
        stand: (u32, u64),
        making: &mut Making,
    ) -> Result<bool> {
        if let Some(format) = self.format {
            self.begin_decoding(format);
            return Ok(true);
        }
        if line.trim_ascii() == b"null" && making.unknown.records.is_empty() {
            // A tombstone tells nothing.
            making.digest.add(line);
            return Ok(false);
        }
        match decode::sniff(line) {
            Ok((format, why)) => {
                self.found = Some((format, why));
                self.begin_decoding(format);
                for (line, stand) in std::mem::take(&mut making.unknown).records {
                    self.decode_line(&line, stand, making)?;
                }
                Ok(true)
            }
            Err(error) => {
                making.unknown.add(line, stand, error.at(self.place(stand)))?;
                Ok(false)
            }
        }
    }

    fn begin_decoding(&mut self, format: Format) {
        let decoder = decode::of(format, &self.decode);
        let decoder = decoder.unwrap_or_else(|| Box::new(Plain::default()));
        if decoder.leaves_out() {
            self.router.expect_left_out();
        }
        self.decoder = Some(decoder);
    }

    /// The error of a record, with the format that it was read in.
    pub(super) fn unreadable(&self, error: Error) -> Error {
        let words = match (self.format, self.found) {
            (Some(format), _) => format!("could not read a record as {}", format.name()),
            (None, Some((format, why))) => {
                format!(
                    "could not read a record as {}, which one was found to be: {why}",
                    format.name()
                )
            }
            (None, None) => return error,
        };
        Error::new(error.kind(), words).because(error)
    }
}
