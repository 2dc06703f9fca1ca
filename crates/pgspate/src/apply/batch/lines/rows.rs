//! Rows of Parquet files, as AWS DMS writes them, to events.
//!
//! A row is a record, whose place is its number in its file. It has no bytes of its own: what tells
//! it from others is its event as pgspate's own format writes it.

use arrow_array::RecordBatch;

use super::LineFeed;
use crate::apply::inputs::Line;
use crate::{Error, ErrorKind, Result};
use pgspate_events::decode::{Dms, EventFormat, own_format};

impl LineFeed {
    /// Takes rows, the first of which stands here.
    pub(super) fn rows(&mut self, first: InputLine, batch: &RecordBatch) -> Result<()> {
        if self.reading.given().is_some_and(|format| format != EventFormat::Dms) {
            let message = "Parquet files of changes are read as AWS DMS writes them only";
            return Err(Error::new(ErrorKind::Usage, message)
                .at(self.builder.place(first))
                .hint("Say `--format dms`, or leave `--format` out."));
        }
        let mut done = 0;
        while done < batch.num_rows() {
            let rest = batch.slice(done, batch.num_rows() - done);
            let first = InputLine { number: first.number + done as u64, ..first };
            done += self.some_rows(first, &rest)?;
        }
        Ok(())
    }

    /// Takes the first rows of a batch; how many.
    fn some_rows(&mut self, first: InputLine, batch: &RecordBatch) -> Result<usize> {
        let (mut events, builder) = (Vec::new(), &mut self.builder);
        let dms = self.dms.get_or_insert_with(|| Dms::new(builder.with.options.decode.dms.clone()));
        let decoded = dms.batch(batch, &builder.with.router, &mut events);
        if let Some(fault) = builder.with.router.take_fault() {
            return Err(fault);
        }
        let rows = decoded.map_err(|error| error.at(builder.place(first)))?;
        for (nth, event) in events.iter().enumerate() {
            let event_place = InputLine { number: first.number + nth as u64, ..first };
            let record =
                own_format::write_event(event, event.table.schema.as_deref(), &event.table.table);
            builder.position.digest.add(record.as_bytes());
            let taken = builder.take(std::slice::from_ref(event), record.len(), event_place);
            taken.map_err(|error| builder.placed(error, event_place))?;
            builder.hand_over_if_due()?;
        }
        Ok(rows)
    }
}
