//! Decodes rows of Parquet files, which AWS DMS writes, into events.
//!
//! A row is a record, and its place is its number in the file. A row has no bytes of its own, so
//! the digest covers the row's event, written in pgspate's own format.

use arrow_array::RecordBatch;

use super::LineFeed;
use crate::apply::line_source::InputLine;
use crate::{Error, ErrorKind, Result};
use pgspate_events::decode::{Dms, EventFormat, own_format};

impl LineFeed {
    /// Takes rows. `first` is the place of the first row.
    pub(super) fn take_rows(&mut self, first: InputLine, batch: &RecordBatch) -> Result<()> {
        if self.format.given_format().is_some_and(|format| format != EventFormat::Dms) {
            let message = "Parquet files of changes must be in the format of AWS DMS";
            return Err(Error::new(ErrorKind::Usage, message)
                .at(self.builder.place(first))
                .hint("Give `--format dms`, or leave `--format` out."));
        }
        let mut done = 0;
        while done < batch.num_rows() {
            let rest = batch.slice(done, batch.num_rows() - done);
            let first = InputLine { number: first.number + done as u64, ..first };
            done += self.take_first_rows(first, &rest)?;
        }
        Ok(())
    }

    /// Takes the first rows of a batch. Returns how many.
    fn take_first_rows(&mut self, first: InputLine, batch: &RecordBatch) -> Result<usize> {
        let (mut events, builder) = (Vec::new(), &mut self.builder);
        let dms =
            self.dms.get_or_insert_with(|| Dms::new(builder.context.options.decode.dms.clone()));
        let decoded = dms.batch(batch, &builder.context.router, &mut events);
        if let Some(error) = builder.context.router.take_lookup_error() {
            return Err(error);
        }
        let rows = decoded.map_err(|error| error.at(builder.place(first)))?;
        for (nth, event) in events.iter().enumerate() {
            let event_place = InputLine { number: first.number + nth as u64, ..first };
            let record =
                own_format::write_event(event, event.table.schema.as_deref(), &event.table.table);
            builder.position.digest.add(record.as_bytes());
            let taken = builder.take_events(std::slice::from_ref(event), record.len(), event_place);
            taken.map_err(|error| builder.with_place(error, event_place))?;
            builder.send_batch_if_due()?;
        }
        Ok(rows)
    }
}
