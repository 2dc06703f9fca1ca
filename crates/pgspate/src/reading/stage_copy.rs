//! The copy of an input's rows in one session, mostly to a stage. The copy keeps no ledger: another
//! statement writes the staged rows to the table later, or the caller records what was written.

use super::{MakeEncoder, SniffedInputs};
use crate::copy::{Commit, CopyJob, CopySetup, Destination, EarlySession, Lanes, SessionOpener};
use crate::format::EncodeMode;
use crate::plan::RowPlan;
use pgspate_target::connect::Dsn;
use pgspate_target::session::WaitLimits;
use pgspate_target::{SessionSettings, TableStorage, TargetTable, value_settings_sql};

/// What is copied to a stage, and for which table.
pub(crate) struct StageCopy<'a> {
    pub(crate) dsn: &'a Dsn,
    pub(crate) limits: WaitLimits,
    pub(crate) reading: &'a SniffedInputs,
    pub(crate) plan: &'a RowPlan,
    /// The settings that the rows are encoded for.
    pub(crate) session: &'a SessionSettings,
    /// The table that the rows are staged for.
    pub(crate) table: &'a TargetTable,
    /// The name in SQL of the stage, or of the table itself.
    pub(crate) stage: &'a str,
    /// The unquoted name of the stage, or of the table itself, as the server's messages show it.
    pub(crate) relation: &'a str,
}

impl StageCopy<'_> {
    /// Returns the job that copies all rows in one session.
    pub(crate) fn job(self, make_encoder: MakeEncoder, destination: Destination) -> CopyJob {
        let StageCopy { dsn, limits, reading, plan, session, table, stage, relation } = self;
        let (checked, checked_plan) = (reading.clone(), plan.clone());
        let session_name = format!("pgspate load {}", table.name);
        CopyJob {
            session_opener: SessionOpener::new(dsn, session_name),
            early_session: EarlySession::default(),
            control_connection: None,
            make_encoder,
            setup: CopySetup {
                text_sql: plan.copy_sql(EncodeMode::Text, stage),
                binary_sql: plan.copy_sql(EncodeMode::Binary, stage),
                limits,
                value_settings: value_settings_sql(session),
                lock_key: None,
                commits_across_nodes: table.commits_across_nodes,
                has_other_work: false,
            },
            mode: plan.mode,
            one_statement: false,
            lanes: Lanes::Fixed(1),
            table_name: relation.to_owned(),
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
