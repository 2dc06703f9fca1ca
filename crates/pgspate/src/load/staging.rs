//! Rows of inputs in a session's stage rather than in the table.

use std::sync::Arc;

use super::{Load, Watch};
use crate::copy::Outcome;
use crate::plan::PlannedColumn;
use crate::target::Table;
use crate::target::connect::Connection;
use crate::{Error, Kind, Result};

impl Load {
    /// Stages all rows; the session that has them, and what it took.
    pub(crate) fn stage(&mut self, watch: &Arc<Watch>) -> Result<(Connection, Outcome)> {
        match self.attempts(watch, &mut Vec::new()) {
            Ok((outcome, Some(session))) => {
                // A lane without any chunk has begun a transaction and has nothing to commit.
                let ended = self.runtime.block_on(session.client.batch_execute("commit"));
                ended.map_err(|error| session.explain("could not stage rows", error))?;
                Ok((*session, outcome))
            }
            Ok((_, None)) => Err(Error::new(Kind::Bug, "the session with the stage is gone")),
            Err(error) => Err(self.failed(error, watch)),
        }
    }

    /// The table.
    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// Bytes of the inputs as they are stored, as far as that is known.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.reading.stored_bytes().unwrap_or_default()
    }

    /// The columns that the input has, in its order.
    pub(crate) fn columns(&self) -> &[PlannedColumn] {
        &self.plan.columns
    }

    /// A connection that is not the session with the stage.
    pub(crate) fn control(&self) -> &Connection {
        &self.connection
    }
}
