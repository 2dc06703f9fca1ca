//! Rows of inputs in a session's stage rather than in the table.

use std::sync::Arc;

use tokio_postgres::Client;

use super::{Load, Watch};
use crate::copy::{Afterwards, Around, LaneSession, Outcome, PIECE_BYTES};
use crate::encode::Encoded;
use crate::format::{ChunkEncoder, Mode};
use crate::plan::PlannedColumn;
use crate::stage::known::Winnower;
use crate::stage::{Ahead, Stage};
use crate::{Error, Kind, Result};
use pgspate_target::Table;
use pgspate_target::connect::Connection;

/// Makes an encoder for a lane.
type MakeEncoder = Box<dyn Fn() -> Box<dyn ChunkEncoder> + Send + Sync>;

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
        let is_open = self.after_staging() == Afterwards::KeepOpen;
        for LaneSession { connection, .. } in sessions.iter().filter(|_| !is_open) {
            // A lane without any chunk has begun a transaction and has nothing to commit.
            let ended = self.runtime.block_on(connection.client.batch_execute("commit"));
            ended.map_err(|error| connection.explain("could not stage rows", error))?;
        }
        match sessions.is_empty() {
            true => Err(Error::new(Kind::Bug, "the session with the stage is gone")),
            false => Ok((sessions, outcome)),
        }
    }

    /// Has rows staged for which the table was read ahead, or all of them. In the first case the
    /// session's transaction is left open.
    pub(crate) fn stage_behind(&mut self, ahead: Option<Ahead>) {
        if let Some(stage) = &mut self.stage {
            stage.ahead = ahead;
        }
    }

    /// What the table was read ahead by, if it was.
    pub(crate) fn ahead(&self) -> Option<&Ahead> {
        self.stage.as_ref()?.ahead.as_ref()
    }

    /// Makes encoders for the plan.
    pub(super) fn encoder(&self) -> Result<MakeEncoder> {
        let version = self.session.server_version;
        self.reading.encoder(&self.plan, &self.table, version, self.options.ignore_unknown)
    }

    /// The encoder, without the rows that are known.
    pub(super) fn winnowed(&self, encoder: MakeEncoder) -> MakeEncoder {
        let Some(Ahead { known, .. }) = self.ahead() else { return encoder };
        let known = Arc::clone(known);
        Box::new(move || Box::new(Winnower::new(encoder(), Arc::clone(&known))))
    }

    /// Has the staging session see the table as it was read.
    pub(super) fn around_staging(&self) -> Option<Around> {
        let snapshot = &self.ahead()?.snapshot;
        let before = format!(
            "set transaction isolation level repeatable read; \
             set transaction snapshot '{snapshot}'; \
             lock table {} in access share mode nowait",
            self.table.sql_name
        );
        Some(Around { before, after: String::new() })
    }

    pub(super) fn after_staging(&self) -> Afterwards {
        match &self.stage {
            None => Afterwards::Close,
            Some(Stage { ahead: None, .. }) => Afterwards::Keep,
            Some(Stage { ahead: Some(_), .. }) => Afterwards::KeepOpen,
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

    /// The first rows of the source, as they would be sent.
    pub(crate) fn first_rows(&self, watch: &Arc<Watch>) -> Result<Encoded> {
        let (mut encoder, mut out) = (self.encoder()?(), Encoded::default());
        if let Some(chunk) = self.reading.cutter(&self.plan, watch).next()? {
            encoder.begin(Arc::new(chunk), Mode::Binary)?;
            encoder.fill(&mut out, PIECE_BYTES)?;
        }
        Ok(out)
    }

    /// Makes the stage in a session besides the one that rows are staged in.
    pub(crate) async fn make_stage(&self, client: &Client) -> Result<()> {
        match &self.stage {
            Some(stage) => stage.make(client).await,
            None => Ok(()),
        }
    }

    /// One more connection.
    pub(crate) async fn open_session(&self, application_name: &str) -> Result<Connection> {
        self.dsn.connect(application_name).await
    }

    /// A connection that is not the session with the stage.
    pub(crate) fn control(&self) -> &Connection {
        &self.connection
    }
}
