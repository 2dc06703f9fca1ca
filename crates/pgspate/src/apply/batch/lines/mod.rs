//! Records of inputs, lines and rows of Parquet files, to events.

mod format;
mod pairs;
mod rows;

use super::{BatchBuilder, SourceFeed};
use crate::Result;
use crate::apply::inputs::{InputPiece, InputLine, LinePosition, LineSource, LineSplitter};
use format::Reading;
use pairs::Pairing;
use pgspate_events::ChangeEvent;
use pgspate_events::decode::Dms;

/// Decodes records.
pub(crate) struct LineFeed {
    builder: BatchBuilder<LinePosition>,
    lines: LineSplitter,
    reading: RecordFormat,
    /// Of rows of Parquet files.
    dms: Option<Dms>,
    /// The last event is a delete that the next record may take back.
    pairing: Option<PendingDelete>,
    /// Kept for its room.
    events: Vec<ChangeEvent>,
}

impl LineFeed {
    pub(crate) fn new(builder: BatchBuilder<LinePosition>) -> LineFeed {
        LineFeed {
            reading: RecordFormat::new(&builder.with),
            builder,
            lines: LineSplitter::default(),
            dms: None,
            pairing: None,
            events: Vec::new(),
        }
    }

    /// Decodes a record and takes what it says.
    fn decode_line(&mut self, line: &[u8], event_place: InputLine) -> Result<()> {
        self.builder.position.digest.add(line);
        let Some(decoder) = self.reading.decoder() else { return Ok(()) };
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        let decoded = decoder.decode(line, &self.builder.with.router, &mut events);
        let grouping = decoder.grouping();
        if let Some(fault) = self.builder.with.router.take_fault() {
            return Err(fault);
        }
        let outcome = match decoded {
            Ok(()) => self.take_grouped(&events, grouping, line.len(), event_place),
            Err(error) => {
                self.end_pairing();
                self.builder.take_unread(self.reading.explain(error), line, event_place)
            }
        };
        self.events = events;
        outcome.map_err(|error| self.builder.placed(error, event_place))
    }
}

impl SourceFeed<LineSource> for LineFeed {
    fn builder(&mut self) -> &mut BatchBuilder<LinePosition> {
        &mut self.builder
    }

    fn take(&mut self, piece: InputPiece) -> Result<()> {
        let block = match piece {
            InputPiece::Rows { first, batch } => return self.rows(first, &batch),
            InputPiece::Block(block) => block,
        };
        let mut lines = std::mem::take(&mut self.lines);
        lines.add(block)?;
        while let Some((line, event_place)) = lines.next() {
            if !line.trim_ascii().is_empty() && self.knows_format(line, event_place)? {
                self.decode_line(line, event_place)?;
            }
            self.builder.hand_over_if_due()?;
        }
        self.lines = lines;
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        self.reading.check_wait()?;
        if self.pairing.is_some_and(PendingDelete::has_waited) {
            self.end_pairing();
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.reading.check_none()?;
        self.end_pairing();
        self.builder.end()?;
        self.builder.hand_over()
    }
}
