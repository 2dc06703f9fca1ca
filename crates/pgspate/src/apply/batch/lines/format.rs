//! Finds the format of a stream of lines by one of its first records.
//!
//! A stream may begin with records that are in no format's rows: those are kept, and decoded when a
//! later one tells the format. Nothing is decoded before, and none of them is passed over.

use std::time::{Duration, Instant};

use super::LineFeed;
use crate::apply::batch::Wiring;
use crate::apply::inputs::Line;
use crate::{Error, Result};
use pgspate_events::decode::{self, Decode, EventFormat};

/// So many records are looked at, of so many bytes together.
const RECORDS_MAX: usize = 100;
const BYTES_MAX: usize = 1 << 20;
/// In a stream that stays open, a record that tells the format is waited for so long.
const WAIT: Duration = Duration::from_secs(2);

/// How records are read.
pub(super) enum RecordFormat {
    /// Nothing tells yet.
    UnknownFormat(UnknownFormat),
    /// In this format, which was given, or found by what is said here.
    As { format: EventFormat, why: Option<&'static str>, decoder: Box<dyn Decode> },
}

/// Records whose format is not known.
#[derive(Default)]
pub(super) struct UnknownFormat {
    records: Vec<(Vec<u8>, InputLine)>,
    bytes: usize,
    /// What is said of the first of them, and when the last one came.
    first: Option<Error>,
    last: Option<Instant>,
}

impl RecordFormat {
    pub(super) fn new(with: &BuilderContext) -> RecordFormat {
        match with.options.format {
            None => RecordFormat::UnknownFormat(UnknownFormat::default()),
            Some(format) => RecordFormat::As { format, why: None, decoder: with.decoder(format) },
        }
    }

    pub(super) fn decoder(&mut self) -> Option<&mut dyn Decode> {
        match self {
            RecordFormat::UnknownFormat(_) => None,
            RecordFormat::As { decoder, .. } => Some(&mut **decoder),
        }
    }

    /// The format that was given.
    pub(super) fn given(&self) -> Option<EventFormat> {
        match self {
            RecordFormat::As { format, why: None, .. } => Some(*format),
            RecordFormat::As { why: Some(_), .. } | RecordFormat::UnknownFormat(_) => None,
        }
    }

    /// The error of a record, with the format that it was read in.
    pub(super) fn explain(&self, error: Error) -> Error {
        let RecordFormat::As { format, why, .. } = self else { return error };
        let mut words = format!("could not read a record as {}", format.name());
        if let Some(why) = why {
            words = format!("{words}, which one was found to be: {why}");
        }
        Error::new(error.kind(), words).because(error)
    }

    /// # Errors
    /// When records are there, as no more of them come.
    pub(super) fn check_none(&mut self) -> Result<()> {
        match self {
            RecordFormat::UnknownFormat(unknown) => unknown.first.take().map_or(Ok(()), Err),
            RecordFormat::As { .. } => Ok(()),
        }
    }

    /// # Errors
    /// When records are there, and none has come for long.
    pub(super) fn check_wait(&mut self) -> Result<()> {
        match self {
            RecordFormat::UnknownFormat(UnknownFormat { last: Some(last), .. }) if last.elapsed() >= WAIT => {
                self.check_none()
            }
            _ => Ok(()),
        }
    }
}

impl LineFeed {
    /// Whether the format is known now, so that the line can be decoded. Those before it are.
    pub(super) fn knows_format(&mut self, line: &[u8], event_place: InputLine) -> Result<bool> {
        let RecordFormat::UnknownFormat(unknown) = &mut self.reading else { return Ok(true) };
        if line.trim_ascii() == b"null" && unknown.records.is_empty() {
            // A tombstone tells nothing.
            self.builder.position.digest.add(line);
            return Ok(false);
        }
        match decode::sniff(line) {
            Ok((format, why)) => {
                let records = std::mem::take(&mut unknown.records);
                let decoder = self.builder.with.decoder(format);
                self.reading = RecordFormat::As { format, why: Some(why), decoder };
                for (line, event_place) in records {
                    self.decode_line(&line, event_place)?;
                }
                Ok(true)
            }
            Err(error) => {
                unknown.records.push((line.to_vec(), event_place));
                unknown.bytes += line.len();
                unknown.first.get_or_insert(error.at(self.builder.place(event_place)));
                unknown.last = Some(Instant::now());
                if unknown.records.len() >= RECORDS_MAX || unknown.bytes >= BYTES_MAX {
                    self.reading.check_none()?;
                }
                Ok(false)
            }
        }
    }
}
