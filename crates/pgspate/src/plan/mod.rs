//! Makes the plan of a load from facts and options, with a reason for every choice. Performs no
//! I/O.
//!
//! The plan's reasons and warnings name everything that makes a load slower or unexpected. Nothing
//! is chosen silently.

mod atomic;
mod columns;
mod commit;
mod encoding;
mod explain;
mod lanes;
pub(crate) mod maintenance;
mod other_sessions;
mod rows;

use arrow_schema::Field;

pub use atomic::{AtomicMethod, AtomicPlan, ReplaceMode};
pub use columns::{ColumnRoute, OmittedColumn, PlannedColumn, match_fields};
pub(crate) use explain::describe_route;
pub use maintenance::{AutoChoice, IndexChoice, MaintenancePlan};
pub use rows::{RowPlan, RowRequest};

use crate::Result;
use crate::copy::{Commit, Lanes};
use crate::format::EncodeMode;
use pgspate_target::{IndexKind, SessionSettings, TableDependencies, TargetTable};

/// The most lanes that pgspate chooses by itself.
pub const LANES_MAX: usize = 8;

/// Facts about the input when the plan is made.
#[derive(Debug, Clone, Default)]
pub struct InputFacts {
    /// The fields' names in order: from a header, the keys of JSON, or a file's schema. `None`:
    /// fields have positions only.
    pub names: Option<Vec<String>>,
    /// The Arrow types of the fields, for files with a schema.
    pub types: Option<Vec<Field>>,
    /// Whether the input can be read only once.
    pub is_stream: bool,
    /// Whether no later run can recognise the input, so that a ledger does not help.
    pub is_one_time: bool,
    /// Whether the input is text, whose encoding the format does not tell.
    pub is_delimited: bool,
    /// Whether the input is delimited and quoted like COPY's csv.
    pub is_csv: bool,
    /// Bytes of the stored input, if known.
    pub stored_bytes: Option<u64>,
}

/// The user's options for loading a table.
#[derive(Debug, Clone, Default)]
pub struct PlanOptions {
    /// The number of lanes; measured and chosen by default.
    pub lanes: Option<usize>,
    /// When to commit; chosen by the input's size by default.
    pub commit: Option<Commit>,
    /// Whether to keep no ledger. The load is then not resumable, and a second run loads the rows
    /// again.
    pub no_ledger: bool,
    /// How to replace the table's old rows; `None` keeps them.
    pub replace: Option<ReplaceMode>,
    /// Whether all rows become visible at once.
    pub atomic: bool,
    /// Whether to drop indexes and create them again.
    pub rebuild_indexes: AutoChoice,
    /// Whether to switch autovacuum off for the table during the load.
    pub pause_autovacuum: AutoChoice,
    /// Whether to run ANALYZE afterwards.
    pub analyze: AutoChoice,
    /// Whether to run VACUUM (FREEZE, ANALYZE) afterwards.
    pub vacuum: bool,
}

/// All user input on which a plan depends.
#[derive(Debug, Clone, Default)]
pub struct PlanRequest {
    /// The options for loading the table.
    pub options: PlanOptions,
    /// How fields become rows.
    pub rows: RowRequest,
    /// The number of processors if the server runs on this machine.
    pub shared_cores: Option<usize>,
    /// Whether refused rows are set aside.
    pub rejects: bool,
    /// What depends on the table, if all rows are to become visible at once. `None` for a table
    /// that the load creates.
    pub bonds: Option<TableDependencies>,
}

/// What a load will do, and why.
#[derive(Debug, Clone)]
pub struct LoadPlan {
    /// The table, quoted for SQL.
    pub table: String,
    /// How records become rows.
    pub rows: RowPlan,
    /// Table columns that the input lacks.
    pub omitted: Vec<OmittedColumn>,
    /// The number of lanes.
    pub lanes: Lanes,
    /// The reason for the number of lanes.
    pub lanes_reason: String,
    /// Whether all rows must go through a single COPY statement.
    pub one_statement: bool,
    /// When rows are committed.
    pub commit: Commit,
    /// How rows become visible at once, if they are to.
    pub at_once: Option<AtomicPlan>,
    /// Whether the ledger has a row for each chunk.
    pub ledger: bool,
    /// What is done with the table before and after the load.
    pub maintenance: MaintenancePlan,
    /// Warnings: what slows the server down, and other surprises.
    pub warnings: Vec<String>,
    /// Whether a trigger may skip rows, so that fewer rows are written than read.
    pub may_drop_rows: bool,
}

impl LoadPlan {
    /// Makes the plan.
    ///
    /// # Errors
    /// [`ErrorKind::Plan`] or [`ErrorKind::Usage`] when the input and the table do not fit
    /// together.
    pub fn make(
        table: &TargetTable,
        session: &SessionSettings,
        input: &InputFacts,
        request: &PlanRequest,
    ) -> Result<LoadPlan> {
        let mut rows = RowPlan::make(table, session, input, &request.rows)?;
        // The ledger keeps the rows that are set aside.
        let ledger = !request.options.no_ledger && (!input.is_one_time || request.rejects);
        let at_once = atomic::choose_atomic_plan(table, request, input, ledger)?;
        let written = atomic::table_for_copy(table, at_once.as_ref());
        let (lanes, lanes_reason, one_statement) = lanes::choose_lanes(&written, input, request);
        if one_statement {
            rows.mode = EncodeMode::Text;
        }
        if request.rejects {
            commit::check_rejects(request, one_statement.then_some(lanes_reason.as_str()))?;
        }
        let commit = commit::choose_commit(input, request, ledger, one_statement)?;
        let mut plan = LoadPlan {
            table: table.sql_name.clone(),
            warnings: warnings(&written, &rows.columns),
            omitted: columns::omitted_columns(table, &rows.columns),
            rows,
            lanes,
            lanes_reason,
            one_statement,
            commit,
            at_once: None,
            ledger,
            maintenance: MaintenancePlan::default(),
            may_drop_rows: table.triggers.iter().any(|it| it.for_each_row && it.is_before),
        };
        if let Some(at_once) = at_once {
            plan.apply_atomic_plan(request, at_once)?;
        }
        Ok(plan)
    }

    /// Sets the table's maintenance. A dropped foreign key needs no warning about its checks.
    pub(crate) fn set_maintenance(&mut self, maintenance: MaintenancePlan) {
        let dropped = maintenance.indexes.iter().filter(|it| it.kept_because.is_none());
        let free: Vec<String> = dropped.map(|it| foreign_key_warning(&it.name)).collect();
        self.warnings.retain(|warning| !free.contains(warning));
        self.maintenance = maintenance;
    }

    /// Cancels all changes of the table, and restores the warnings about foreign keys.
    pub(crate) fn alter_nothing(&mut self, why: &str) {
        let dropped = self.maintenance.indexes.iter().filter(|it| it.kept_because.is_none());
        let keys = dropped.filter(|it| it.kind == IndexKind::ForeignKey);
        self.warnings.extend(keys.map(|it| foreign_key_warning(&it.name)));
        self.maintenance.alter_nothing(why);
    }

    /// Returns a COPY statement like the load's first. It leaves out what only the load's
    /// transaction allows.
    pub fn trial_sql(&self) -> String {
        self.rows.copy_sql(EncodeMode::Text, &self.table)
    }

    /// Returns [`RowPlan::copy_sql`] with FREEZE if the transaction allows it.
    pub fn copy_sql(&self, mode: EncodeMode, into: &str) -> String {
        let sql = self.rows.copy_sql(mode, into);
        match &self.at_once {
            Some(AtomicPlan { freeze: true, .. }) => {
                format!("{}, freeze)", sql.strip_suffix(')').unwrap_or(&sql))
            }
            _ => sql,
        }
    }
}

/// Returns the warning about a foreign key that is kept.
fn foreign_key_warning(key: &str) -> String {
    format!("foreign key \"{key}\" is checked for each row after its chunk")
}

/// From this many partitions on, COPY flushes its buffers half empty.
const PARTITIONS_WARNED: i64 = 32;

/// Returns the warnings about triggers, defaults, foreign keys and partitions.
fn warnings(table: &TargetTable, columns: &[PlannedColumn]) -> Vec<String> {
    let mut warnings = Vec::new();
    for trigger in table.triggers.iter().filter(|trigger| trigger.for_each_row) {
        let effect = if trigger.is_before { "and makes COPY insert row by row" } else { "" };
        let name = &trigger.name;
        warnings
            .push(format!("trigger \"{name}\" runs for each row {effect}").trim_end().to_owned());
    }
    let is_written = |name: &str| columns.iter().any(|column| column.name == name);
    for column in table.columns.iter().filter(|it| it.default_is_volatile && !is_written(&it.name))
    {
        let default = column.default.as_deref().unwrap_or_default();
        let name = &column.name;
        warnings.push(format!(
            "column \"{name}\" is not in the input, and its volatile default {default} makes COPY \
             insert row by row"
        ));
    }
    warnings.extend(table.foreign_keys.iter().map(|key| foreign_key_warning(key)));
    if table.partitions > PARTITIONS_WARNED {
        let count = table.partitions;
        warnings
            .push(format!("{count} partitions: rows that are not sorted by the key load slower"));
    }
    if table.row_security {
        warnings.push(
            "row security applies to this role, with which COPY FROM is not supported".to_owned(),
        );
    }
    warnings
}
