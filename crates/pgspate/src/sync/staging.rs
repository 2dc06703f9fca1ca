//! The rows of an input in the stage of a session, or of several sessions that share them.
//!
//! No row is written to the table here, so there is no job; what fails is done again as a whole.

use std::sync::Arc;
use std::time::Instant;

use tokio::runtime::Handle;

use super::Options;
use super::ahead::TableReadAhead;
use crate::copy::{
    self, Commit, SessionOpener, CopySetup, Destination, EarlySession, CopyEnd, CopyJob, LaneSession, Lanes, CopyOutcome,
    PIECE_BYTES,
};
use crate::encode::Encoded;
use crate::format::Mode;
use crate::job::{OwnSession, RetryWhileAway};
use crate::plan::{RowPlan, RowRequest};
use crate::reading::{MakeEncoder, SniffedInputs, Survey, LoadWatch, hint_encoding, missing, parse_name};
use crate::stage::known::KnownRowFilter;
use crate::stage::{self, StageTable};
use crate::{Error, ErrorKind, Result};
use pgspate_target::connect::{Connection, Dsn};
use pgspate_target::session::Patience;
use pgspate_target::{Session, Table};

/// Which rows of the input are staged, and in how many sessions.
pub(super) enum StagedRows {
    /// All of them, in one session.
    All,
    /// All of them, in a session for each condition: it keeps the rows for which that is true. One
    /// of them has to be true for every row.
    Shared(Vec<String>),
    /// Those that the table was not found to have, in a session that sees the table as it was read,
    /// and whose transaction is left open.
    Missing(TableReadAhead),
}

/// An input that can be staged for a table.
pub(super) struct Staging {
    pub(super) own: OwnSession,
    pub(super) reading: SniffedInputs,
    session: Session,
    pub(super) table: Table,
    request: RowRequest,
    pub(super) plan: RowPlan,
    pub(super) stage: StageTable,
    pub(super) rows: StagedRows,
}

impl Staging {
    /// Looks at the input and the table, which has to be there. Blocks.
    pub(super) fn prepare(options: &SyncOptions, dsn: Dsn, runtime: &Handle) -> Result<Staging> {
        let table = options.table.as_deref();
        let survey = Survey::take(&options.reading, table, options.limits, dsn, runtime)?;
        let Survey { own, reading, session, name, table, rows: request, .. } = survey;
        let Some(table) = table else {
            let name = runtime.block_on(parse_name(&own.connection, &name))?;
            return Err(missing(&name).hint(
                "Make the table first; `pgspate load --create` does, with the types that the \
                 source needs.",
            ));
        };
        let mut plan = RowPlan::make(&table, &session, &reading.facts(), &request)?;
        if options.keeps_last {
            // Rows that the encoder leaves to the server come after the others of their chunk.
            plan.mode = Mode::Text;
        }
        let stage = StageTable::of(&table, plan.columns.iter().map(|column| column.name.as_str()));
        let rows = StagedRows::All;
        Ok(Staging { own, reading, session, table, request, plan, stage, rows })
    }

    /// Stages the rows; the sessions that have them, and what it took.
    pub(super) fn stage(&mut self, watch: &Arc<LoadWatch>) -> Result<(Vec<LaneSession>, CopyOutcome)> {
        let (outcome, sessions) = self.attempts(watch).map_err(|error| self.failed(error))?;
        let is_open = self.ahead().is_some();
        for LaneSession { connection, .. } in sessions.iter().filter(|_| !is_open) {
            // A lane without any chunk has begun a transaction and has nothing to commit.
            let ended = self.own.runtime.block_on(connection.client.batch_execute("commit"));
            ended.map_err(|error| connection.explain("could not stage rows", error))?;
        }
        match sessions.is_empty() {
            true => Err(Error::new(ErrorKind::Bug, "the session with the stage is gone")),
            false => Ok((sessions, outcome)),
        }
    }

    /// Starts over while that promises to help.
    fn attempts(&mut self, watch: &Arc<LoadWatch>) -> Result<(CopyOutcome, Vec<LaneSession>)> {
        let mut patience = Patience::new(self.own.limits.retry_for);
        loop {
            watch.start_over(self.reading.stored_bytes());
            let began = Instant::now();
            let job = self.job()?;
            let cutter = self.reading.cutter(&self.plan, watch);
            let attempt = copy::run(&job, cutter, &watch.copy, &self.own.runtime);
            if began.elapsed() > self.own.limits.retry_for {
                // The server was there for long enough to be waited for anew.
                patience.renew();
            }
            match attempt {
                Ok(CopyEnd::Done(outcome, sessions)) => return Ok((outcome, sessions)),
                Ok(CopyEnd::LanesConflict) => {
                    return Err(Error::new(
                        ErrorKind::Server,
                        "the sessions of the stage wait for each other",
                    ));
                }
                // Where the table was read ahead, what was known of it is known no more.
                Ok(CopyEnd::Interrupted(error)) if self.ahead().is_none() => {
                    self.own.wait(error, &mut patience, &watch.copy)?;
                }
                Ok(CopyEnd::Interrupted(error)) | Err(error) => return Err(error),
            }
        }
    }

    fn job(&self) -> Result<CopyJob> {
        let name = format!("pgspate load {}", self.table.name);
        let (reading, plan) = (self.reading.clone(), self.plan.clone());
        Ok(CopyJob {
            connect: SessionOpener::new(&self.own.dsn, name).with_stage(&self.stage),
            early: EarlySession::default(),
            control: Arc::clone(&self.own.connection),
            encoder: match &self.rows {
                StagedRows::All | StagedRows::Shared(_) => self.encoder()?,
                StagedRows::Missing(TableReadAhead { known, .. }) => {
                    let (encoder, known) = (self.encoder()?, Arc::clone(known));
                    Box::new(move || Box::new(KnownRowFilter::new(encoder(), Arc::clone(&known))))
                }
            },
            copying: CopySetup {
                text_sql: self.plan.copy_sql(Mode::Text, stage::NAME),
                binary_sql: self.plan.copy_sql(Mode::Binary, stage::NAME),
                limits: self.own.limits,
                lock_key: None,
            },
            mode: self.plan.mode,
            one_statement: false,
            lanes: Lanes::Fixed(1),
            table_name: self.table.name.clone(),
            columns: self.plan.names(),
            input_names: self.reading.names(),
            may_drop_rows: false,
            is_stream: self.reading.is_stream(),
            commit: Commit::AtEnd,
            ledger: None,
            unchanged: Box::new(move |read| reading.check_unchanged(&plan, read)),
            destination: match &self.rows {
                StagedRows::All => Destination::Stage { shares: Vec::new() },
                StagedRows::Shared(conditions) => Destination::Stage { shares: conditions.clone() },
                StagedRows::Missing(TableReadAhead { snapshot, .. }) => Destination::OpenStage {
                    before: format!(
                        "set transaction isolation level repeatable read; \
                         set transaction snapshot '{snapshot}'; \
                         lock table {} in access share mode nowait",
                        self.table.sql_name
                    ),
                },
            },
        })
    }

    fn failed(&self, error: Error) -> Error {
        let message =
            format!("could not sync {} with {}", self.table.sql_name, self.reading.title());
        let kind = error.kind();
        Error::new(kind, message).because(hint_encoding(error, &self.plan))
    }

    fn encoder(&self) -> Result<MakeEncoder> {
        let version = self.session.server_version;
        self.reading.encoder(&self.plan, &self.table, version, self.request.ignore_unknown)
    }

    /// The first rows of the source, as they would be sent.
    pub(super) fn first_rows(&self, watch: &Arc<LoadWatch>) -> Result<Encoded> {
        let (mut encoder, mut out) = (self.encoder()?(), Encoded::default());
        if let Some(chunk) = self.reading.cutter(&self.plan, watch).next()? {
            encoder.begin(Arc::new(chunk), Mode::Binary)?;
            encoder.fill(&mut out, PIECE_BYTES)?;
        }
        Ok(out)
    }

    /// What the table was read ahead by, if it was.
    pub(super) fn ahead(&self) -> Option<&TableReadAhead> {
        match &self.rows {
            StagedRows::Missing(ahead) => Some(ahead),
            StagedRows::All | StagedRows::Shared(_) => None,
        }
    }

    /// Whether sessions share the rows.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.rows, StagedRows::Shared(_))
    }

    /// Whether the server reads all values.
    pub(super) fn is_text(&self) -> bool {
        self.plan.mode == Mode::Text
    }

    /// Bytes of the inputs as they are stored, as far as that is known.
    pub(super) fn stored_bytes(&self) -> u64 {
        self.reading.stored_bytes().unwrap_or_default()
    }

    /// A connection that is not the session with the stage.
    pub(super) fn control(&self) -> &Connection {
        &self.own.connection
    }
}
