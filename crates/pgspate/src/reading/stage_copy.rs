//! The copy of an input's rows to a stage. Another statement writes the staged rows to the table
//! later, so the copy keeps no ledger.

use std::sync::Arc;

use super::{MakeEncoder, SniffedInputs};
use crate::copy::{Commit, CopyJob, CopySetup, Destination, EarlySession, Lanes, SessionOpener};
use crate::format::EncodeMode;
use crate::job::ControlSession;
use crate::plan::RowPlan;
use pgspate_target::{TableStorage, TargetTable};

/// What is copied to a stage, and for which table.
pub(crate) struct StageCopy<'a> {
    pub(crate) control_session: &'a ControlSession,
    pub(crate) reading: &'a SniffedInputs,
    pub(crate) plan: &'a RowPlan,
    /// The table that the rows are staged for.
    pub(crate) table: &'a TargetTable,
    /// The stage's name in SQL.
    pub(crate) stage: &'a str,
}

impl StageCopy<'_> {
    /// Returns the job that copies all rows in one session.
    pub(crate) fn job(self, make_encoder: MakeEncoder, destination: Destination) -> CopyJob {
        let StageCopy { control_session, reading, plan, table, stage } = self;
        let (checked, checked_plan) = (reading.clone(), plan.clone());
        let session_name = format!("pgspate load {}", table.name);
        CopyJob {
            session_opener: SessionOpener::new(&control_session.dsn, session_name),
            early_session: EarlySession::default(),
            control_connection: Arc::clone(&control_session.connection),
            make_encoder,
            setup: CopySetup {
                text_sql: plan.copy_sql(EncodeMode::Text, stage),
                binary_sql: plan.copy_sql(EncodeMode::Binary, stage),
                limits: control_session.limits,
                lock_key: None,
                commits_across_nodes: table.commits_across_nodes,
            },
            mode: plan.mode,
            one_statement: false,
            lanes: Lanes::Fixed(1),
            table_name: table.name.clone(),
            columns: plan.column_names(),
            input_names: reading.names(),
            may_skip_rows: false,
            // Extensions do not store stages in another way.
            storage: TableStorage::Plain.facts(),
            is_stream: reading.is_stream(),
            commit: Commit::AtEnd,
            ledger: None,
            check_unchanged: Box::new(move |read| checked.check_unchanged(&checked_plan, read)),
            destination,
            shard_route: None,
        }
    }
}
