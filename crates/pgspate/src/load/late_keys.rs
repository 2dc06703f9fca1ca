//! Keys of JSON records that the sample lacks, but that name columns of the table.
//!
//! A missing key is NULL in every row. A column that COPY does not name gets its default instead.
//! So if the column of a late key has a default, rows that were committed without the key are
//! removed, and the load begins again. The ledger keeps the late keys: a resumed run then names
//! their columns from the start.

use std::sync::Arc;

use tokio_postgres::Client;

use super::{Load, LoadWatch};
use crate::job::RetryAfterConnectionLoss;
use crate::plan::RowPlan;
use crate::{Error, Result};
use pgspate_target::TargetColumn;
use pgspate_target::ledger::{self, JobLookup};

impl Load {
    /// Plans the columns of the keys that earlier runs of the job have found after the sample.
    pub(super) fn add_recorded_keys(&mut self) -> Result<()> {
        let JobLookup::Unfinished(record, ..) = &self.job.ledger_state.found else { return Ok(()) };
        let keys = record.late_keys();
        if keys.is_empty() {
            return Ok(());
        }
        self.reading = self.reading.clone().with_keys(keys);
        self.plan_again()
    }

    /// Plans the column of the late key that `error` is about. First removes the rows that have the
    /// column's default.
    ///
    /// # Errors
    /// `error`, with the reason, if rows with the default cannot be removed. An error of the plan.
    /// A retryable error if the connection was lost.
    pub(super) fn add_late_key(&mut self, error: Error, watch: &Arc<LoadWatch>) -> Result<()> {
        let Some(key) = self.reading.late_key(&error).map(str::to_owned) else {
            return Err(error);
        };
        let reading = self.reading.clone().with_keys(vec![key.clone()]);
        let (facts, request) = (reading.facts(), &self.request.rows);
        let rows = RowPlan::make(&self.table, &self.session, &facts, request);
        let place = error.place().cloned().unwrap_or_default();
        let has_default = self.adds_default(&rows.map_err(|refused| refused.at(place))?);
        // A lane that has lost its session may still be committing.
        self.job.restore_session()?;
        let has_chunks = self.job.opened.as_ref().is_some_and(|opened| opened.done.chunks() > 0);
        if has_default && has_chunks {
            if let Err(why) = self.table_care(watch).remove_rows_to_start_over()? {
                return Err(error.hint_also(&format!(
                    "The rows that are written so far have the column's default, although a \
                     missing key is NULL. They stay, because the load could not remove them: \
                     {why}. Remove them, and load with `--columns` and `--restart`."
                )));
            }
            self.job.warnings.push(format!(
                "the load began again, because key \"{key}\" names a column with a default, but \
                 the first records do not have this key; `--columns` names the keys of all records"
            ));
        }
        if let Some(job) = self.job.id() {
            self.job.with_client(async |client: &Client| {
                ledger::record_late_key(client, job, &key).await
            })?;
        }
        self.reading = reading;
        self.plan_again()
    }

    /// Returns whether the rows of a plan have a column that gets a default in the present plan.
    fn adds_default(&self, rows: &RowPlan) -> bool {
        let written = |name: &str| self.plan.rows.columns.iter().any(|it| it.name == name);
        let mut others = rows.columns.iter().filter(|column| !written(&column.name));
        others.any(|other| {
            let column = self.table.columns.iter().find(|column| column.name == other.name);
            column.is_some_and(TargetColumn::has_default)
        })
    }
}
