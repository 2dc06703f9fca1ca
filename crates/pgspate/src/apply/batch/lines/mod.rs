//! Decodes records of files, which are lines or rows of Parquet files, into events.

mod parquet_rows;
mod pending_delete;
mod record_format;

use super::{BatchBuilder, SourceFeed};
use crate::apply::line_source::{InputPiece, LinePosition, LineSource, LineSplitter, RecordLine};
use crate::{Error, ErrorKind, Result};
use pending_delete::PendingDelete;
use pgspate_events::ChangeEvent;
use pgspate_events::decode::Dms;
use record_format::RecordFormat;

/// Decodes records of files.
pub(crate) struct LineFeed {
    builder: BatchBuilder<LinePosition>,
    lines: LineSplitter,
    format: RecordFormat,
    /// The decoder of Parquet rows.
    dms: Option<Dms>,
    /// The last event, if it is a delete that the next record may replace by a key change.
    pending_delete: Option<PendingDelete>,
    /// Kept to reuse its memory.
    events: Vec<ChangeEvent>,
}

impl LineFeed {
    pub(crate) fn new(builder: BatchBuilder<LinePosition>) -> LineFeed {
        LineFeed {
            format: RecordFormat::new(&builder.context),
            builder,
            lines: LineSplitter::default(),
            dms: None,
            pending_delete: None,
            events: Vec::new(),
        }
    }

    /// Decodes a line and takes its events. A line that cannot be decoded is set aside. If the last
    /// file ends within the line, the line may be complete in a later run, and is refused.
    fn decode_line(&mut self, line: RecordLine<'_>) -> Result<()> {
        let RecordLine { bytes, place, is_unterminated } = line;
        self.builder.position.digest.add(bytes);
        let Some(decoder) = self.format.decoder() else { return Ok(()) };
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let decoded = decoder.decode(bytes, &self.builder.context.router, &mut events);
        let grouping = decoder.grouping();
        if let Some(error) = self.builder.context.router.take_lookup_error() {
            return Err(error);
        }
        let may_be_cut = is_unterminated && self.builder.context.names.is_last(place.input);
        let outcome = match decoded {
            Ok(()) if may_be_cut && !self.format.marks_end_of(bytes) => {
                self.keep_pending_delete();
                Err(cut_line_error())
            }
            Ok(()) => self.take_record(&events, grouping, bytes.len(), place),
            Err(error) => {
                self.keep_pending_delete();
                let error = self.format.explain(error);
                match may_be_cut {
                    true => Err(cut_line_error().because(error)),
                    false => self.builder.take_undecoded(error, bytes, place),
                }
            }
        };
        self.events = events;
        outcome.map_err(|error| self.builder.with_place(error, place))
    }
}

/// Returns the error for a last line that may be written in part.
fn cut_line_error() -> Error {
    Error::new(ErrorKind::Format, "the input ends within a line").hint(
        "Run the same command again when the line is complete and has a line break at its end, or \
         remove the line.",
    )
}

impl SourceFeed<LineSource> for LineFeed {
    fn builder(&mut self) -> &mut BatchBuilder<LinePosition> {
        &mut self.builder
    }

    fn take_piece(&mut self, piece: InputPiece) -> Result<()> {
        let block = match piece {
            InputPiece::Rows { first, batch } => return self.take_rows(first, &batch),
            // An incomplete line may be the last applied event.
            InputPiece::ReachedEnd if self.lines.is_between_lines() => {
                return self.builder.check_replay_finished();
            }
            InputPiece::ReachedEnd => return Ok(()),
            InputPiece::Block(block) => block,
        };
        let mut lines = std::mem::take(&mut self.lines);
        lines.add(block)?;
        while let Some(line) = lines.next() {
            if !line.bytes.trim_ascii().is_empty() && self.knows_format(line)? {
                self.decode_line(line)?;
            }
            self.builder.send_batch_if_due()?;
        }
        self.lines = lines;
        Ok(())
    }

    fn idle(&mut self) -> Result<()> {
        self.format.check_sniff_timeout()?;
        if self.pending_delete.is_some_and(PendingDelete::is_expired) {
            self.keep_pending_delete();
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.format.check_no_undecoded()?;
        self.keep_pending_delete();
        self.builder.end_input()?;
        self.builder.send_batch()
    }
}
