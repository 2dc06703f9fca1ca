//! Detects the format of a stream of lines by its first records.
//!
//! A stream may begin with records that do not tell the format. These records are kept, and
//! decoded when a later record tells the format. None of them is skipped.

use std::time::{Duration, Instant};

use super::LineFeed;
use crate::apply::batch::BuilderContext;
use crate::apply::line_source::{InputLine, RecordLine};
use crate::{Error, Result};
use pgspate_events::decode::{self, Decode, EventFormat};

/// The most records that may wait until the format is known.
const SNIFF_RECORDS_MAX: usize = 100;
/// The most bytes of these records.
const SNIFF_BYTES_MAX: usize = 1 << 20;
/// How long to wait, after the last record, for a record that tells the format. Applies to a stream
/// that stays open.
const SNIFF_WAIT_MAX: Duration = Duration::from_secs(2);

/// The format of the records.
pub(super) enum RecordFormat {
    /// The format is not known yet.
    Unknown(UndecodedRecords),
    /// A known format. `why` says how it was detected; `None` if the user gave it.
    Known { format: EventFormat, why: Option<&'static str>, decoder: Box<dyn Decode> },
}

/// Records that wait until their format is known.
#[derive(Default)]
pub(super) struct UndecodedRecords {
    records: Vec<(Vec<u8>, InputLine)>,
    bytes: usize,
    /// The error of the first record.
    first: Option<Error>,
    /// When the last record came.
    last: Option<Instant>,
}

impl RecordFormat {
    pub(super) fn new(context: &BuilderContext) -> RecordFormat {
        match context.options.format {
            None => RecordFormat::Unknown(UndecodedRecords::default()),
            Some(format) => {
                RecordFormat::Known { format, why: None, decoder: context.decoder(format) }
            }
        }
    }

    pub(super) fn decoder(&mut self) -> Option<&mut dyn Decode> {
        match self {
            RecordFormat::Unknown(_) => None,
            RecordFormat::Known { decoder, .. } => Some(&mut **decoder),
        }
    }

    /// Returns the format that the user gave.
    pub(super) fn given_format(&self) -> Option<EventFormat> {
        match self {
            RecordFormat::Known { format, why: None, .. } => Some(*format),
            RecordFormat::Known { why: Some(_), .. } | RecordFormat::Unknown(_) => None,
        }
    }

    /// Returns whether a part of the record could not be decoded. A part of a row of csv could.
    pub(super) fn marks_end_of(&self, record: &[u8]) -> bool {
        let is_dms = matches!(self, RecordFormat::Known { format: EventFormat::Dms, .. });
        !is_dms || record.starts_with(b"{")
    }

    /// Adds to an error of a record the format in which it was read.
    pub(super) fn explain(&self, error: Error) -> Error {
        let RecordFormat::Known { format, why, .. } = self else { return error };
        let mut message = format!("could not read a record as {}", format.name());
        if let Some(why) = why {
            message = format!("{message}; the format was detected from a record: {why}");
        }
        Error::new(error.kind(), message).because(error)
    }

    /// Checks that no record waits for its format at the end of the input.
    ///
    /// # Errors
    /// When a record waits.
    pub(super) fn check_no_undecoded(&mut self) -> Result<()> {
        match self {
            RecordFormat::Unknown(unknown) => unknown.first.take().map_or(Ok(()), Err),
            RecordFormat::Known { .. } => Ok(()),
        }
    }

    /// Checks that no record waits for its format while the stream is silent.
    ///
    /// # Errors
    /// When a record waits, and no further record came for [`SNIFF_WAIT_MAX`].
    pub(super) fn check_sniff_timeout(&mut self) -> Result<()> {
        match self {
            RecordFormat::Unknown(UndecodedRecords { last: Some(last), .. })
                if last.elapsed() >= SNIFF_WAIT_MAX =>
            {
                self.check_no_undecoded()
            }
            _ => Ok(()),
        }
    }
}

impl LineFeed {
    /// Checks whether the format is known, so that the line can be decoded. Decodes the waiting
    /// lines when the format becomes known.
    pub(super) fn knows_format(&mut self, line: RecordLine<'_>) -> Result<bool> {
        let RecordLine { bytes, place, .. } = line;
        let RecordFormat::Unknown(unknown) = &mut self.format else { return Ok(true) };
        if bytes.trim_ascii() == b"null" && unknown.records.is_empty() {
            // A tombstone does not tell the format.
            self.builder.position.digest.add(bytes);
            return Ok(false);
        }
        match decode::sniff(bytes) {
            Ok((format, why)) => {
                let records = std::mem::take(&mut unknown.records);
                let decoder = self.builder.context.decoder(format);
                self.format = RecordFormat::Known { format, why: Some(why), decoder };
                for (bytes, place) in records {
                    let bytes = &bytes[..];
                    self.decode_line(RecordLine { bytes, place, is_unterminated: false })?;
                }
                Ok(true)
            }
            Err(error) => {
                unknown.records.push((bytes.to_vec(), place));
                unknown.bytes += bytes.len();
                unknown.first.get_or_insert(error.at(self.builder.place(place)));
                unknown.last = Some(Instant::now());
                if unknown.records.len() >= SNIFF_RECORDS_MAX || unknown.bytes >= SNIFF_BYTES_MAX {
                    self.format.check_no_undecoded()?;
                }
                Ok(false)
            }
        }
    }
}
