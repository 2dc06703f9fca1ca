//! Rows of inputs in a session's stage rather than in the table.

use std::sync::Arc;

use super::{Load, Watch};
use crate::copy::{LaneSession, Outcome};
use crate::format::Mode;
use crate::plan::PlannedColumn;
use crate::target::Table;
use crate::target::connect::Connection;
use crate::{Error, Kind, Result};

impl Load {
    /// Has sessions share the rows that are staged: each keeps those for which its condition is
    /// true, and one of them has to be true for every row.
    pub(crate) fn share_stage(&mut self, conditions: Vec<String>) {
        if let Some(stage) = &mut self.stage {
            stage.shares = conditions;
        }
    }

    /// Stages all rows; the sessions that have them, and what it took.
    pub(crate) fn stage(&mut self, watch: &Arc<Watch>) -> Result<(Vec<LaneSession>, Outcome)> {
        let (outcome, sessions) = match self.attempts(watch, &mut Vec::new()) {
            Ok(done) => done,
            Err(error) => return Err(self.failed(error, watch)),
        };
        for LaneSession { connection, .. } in &sessions {
            // A lane without any chunk has begun a transaction and has nothing to commit.
            let ended = self.runtime.block_on(connection.client.batch_execute("commit"));
            ended.map_err(|error| connection.explain("could not stage rows", error))?;
        }
        match sessions.is_empty() {
            true => Err(Error::new(Kind::Bug, "the session with the stage is gone")),
            false => Ok((sessions, outcome)),
        }
    }

    /// Has rows staged in the order of the source: as text, as those that the encoder leaves to the
    /// server come after the others of their chunk.
    pub(crate) fn stage_in_order(&mut self) {
        self.plan.mode = Mode::Text;
    }

    /// Whether sessions share the rows.
    pub(crate) fn is_shared(&self) -> bool {
        self.stage.as_ref().is_some_and(|stage| !stage.shares.is_empty())
    }

    /// Whether the server reads all values.
    pub(crate) fn is_text(&self) -> bool {
        self.plan.mode == Mode::Text
    }

    /// Whether the source can be read but once.
    pub(crate) fn is_stream(&self) -> bool {
        self.reading.is_stream()
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
