//! Rows of Parquet files, as AWS DMS writes them, to batches.
//!
//! A row is a record, whose place is its number in its file. It has no bytes of its own: what tells
//! it from others is its event as pgspate's own format writes it.

use arrow_array::RecordBatch;

use super::{Feed, Making};
use crate::{Error, Kind, Result};
use pgspate_events::decode::{Dms, Format, plain};

impl Feed {
    /// False when no more is wanted.
    pub(super) fn rows(
        &mut self,
        input: u32,
        first: u64,
        batch: &RecordBatch,
        making: &mut Making,
    ) -> Result<bool> {
        if self.format.is_some_and(|format| format != Format::Dms) {
            let message = "Parquet files of changes are read as AWS DMS writes them only";
            return Err(Error::new(Kind::Usage, message)
                .at(self.place((input, first)))
                .hint("Say `--format dms`, or leave `--format` out."));
        }
        let mut done = 0;
        while done < batch.num_rows() {
            let rest = batch.slice(done, batch.num_rows() - done);
            match self.some_rows(input, first + done as u64, &rest, making)? {
                Some(rows) => done += rows,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Takes the first rows of a batch; how many, or `None` when no more is wanted.
    fn some_rows(
        &mut self,
        input: u32,
        first: u64,
        batch: &RecordBatch,
        making: &mut Making,
    ) -> Result<Option<usize>> {
        let dms = self.dms.get_or_insert_with(|| Dms::new(self.decode.dms.clone()));
        let mut events = Vec::new();
        let decoded = dms.batch(batch, &self.router, &mut events);
        if let Some(fault) = self.router.take_fault() {
            return Err(fault);
        }
        let rows = decoded.map_err(|error| error.at(self.place((input, first))))?;
        for (nth, event) in events.iter().enumerate() {
            let stand = (input, first + nth as u64);
            let record =
                plain::write_event(event, event.table.schema.as_deref(), &event.table.table);
            making.digest.add(record.as_bytes());
            self.take(std::slice::from_ref(event), record.as_bytes(), stand, making).map_err(
                |error| match error.place() {
                    None => error.at(self.place(stand)),
                    Some(_) => error,
                },
            )?;
            if self.is_due(making) && self.hand_over(making).is_err() {
                return Ok(None);
            }
        }
        Ok(Some(rows))
    }
}
