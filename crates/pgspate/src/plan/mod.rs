//! Makes the plan of a load from facts and options. Performs no I/O.
//!
//! The plan gives a reason for every choice. Its reasons and warnings name everything that makes a
//! load slow or surprising.

mod atomic;
mod columns;
mod commit;
mod constants;
mod date_formats;
mod encoding;
mod explain;
mod lanes;
pub(crate) mod maintenance;
mod other_sessions;
mod routing;
mod rows;

use arrow_schema::Field;

pub(crate) use atomic::check_replaceable;
pub use atomic::{AtomicMethod, AtomicPlan, ReplaceMode};
pub use columns::{ColumnRoute, OmittedColumn, PlannedColumn, match_fields};
pub(crate) use columns::{are_fields, batch_encoder};
pub use constants::ConstantTexts;
pub(crate) use constants::{check_encoding, constant_names};
pub(crate) use date_formats::hint_date_format;
pub(crate) use encoding::encoding_name_hint;
pub(crate) use explain::describe_route;
pub(crate) use lanes::one_statement_reason;
pub(crate) use maintenance::written_sequences;
pub use maintenance::{AutoChoice, IndexChoice, MaintenancePlan};
pub use routing::Routing;
pub use rows::{RowPlan, RowRequest};

use crate::Result;
use crate::copy::{Commit, Lanes};
use crate::format::EncodeMode;
use pgspate_target::shards::ShardedTable;
use pgspate_target::{IndexKind, SessionSettings, TableDependencies, TargetTable};

/// The most lanes that pgspate chooses by itself.
pub const LANES_MAX: usize = 8;

/// Facts about the input that are known before it is loaded.
#[derive(Debug, Clone, Default)]
pub struct InputFacts {
    /// The fields' names in order, from a header, JSON keys or a file's schema. `None` if fields
    /// have positions only.
    pub names: Option<Vec<String>>,
    /// The Arrow types of the fields, if the input has a schema.
    pub types: Option<Vec<Field>>,
    /// Whether the input can be read only once, even within this run: a pipe, or rows that are
    /// generated while they are read.
    pub is_stream: bool,
    /// Whether each input has the name of a file or an object.
    pub has_file_names: bool,
    /// Whether no later run can read the input, because it is a pipe or in the caller's memory. A
    /// ledger does not help then, because no later run can continue the load.
    pub is_for_this_run_only: bool,
    /// Whether the input is delimited text. Only such text may have another encoding than UTF-8.
    pub is_delimited: bool,
    /// Whether the input is delimited and quoted as in COPY's csv format.
    pub is_csv: bool,
    /// Bytes of the stored input, if known.
    pub stored_bytes: Option<u64>,
}

/// The user's options for loading a table.
#[derive(Debug, Clone, Default)]
pub struct PlanOptions {
    /// The number of lanes. By default, pgspate chooses it by measuring.
    pub lanes: Option<usize>,
    /// When to commit. By default, the input's size decides.
    pub commit: Option<Commit>,
    /// Whether to load without a ledger. The load then cannot be resumed, and a second run loads
    /// all rows again.
    pub no_ledger: bool,
    /// Whether rows may go straight into the shards of a distributed table of Citus.
    pub into_shards: bool,
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
    /// How input fields become rows.
    pub rows: RowRequest,
    /// This machine's number of processors, if the server runs on this machine too.
    pub local_server_cores: Option<usize>,
    /// Whether rejected rows are set aside.
    pub rejects: bool,
    /// The objects that depend on the table, if all rows are to become visible at once. `None` for
    /// a table that the load creates.
    pub dependencies: Option<TableDependencies>,
    /// The shards of a table of Citus, or why rows cannot go straight into them. `None` for another
    /// table.
    pub shards: Option<Result<ShardedTable, String>>,
}

/// What a load will do, and why.
#[derive(Debug, Clone)]
pub struct LoadPlan {
    /// The table's name, quoted for SQL.
    pub table: String,
    /// Where an extension stores the table's rows, and what that means for the load, in words.
    pub storage: Option<&'static str>,
    /// How rows reach the shards of a table of Citus; `None` for another table.
    pub routing: Option<Routing>,
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
    /// How all rows become visible at once. `None` if `--replace` and `--atomic` are not given.
    pub atomic_plan: Option<AtomicPlan>,
    /// Whether the ledger records each written chunk.
    pub ledger: bool,
    /// What pgspate does with the table before and after the load.
    pub maintenance: MaintenancePlan,
    /// Warnings: what slows the server down, and other surprises.
    pub warnings: Vec<String>,
    /// Whether a trigger may skip rows. The server then may write fewer rows than it receives.
    pub may_skip_rows: bool,
}

impl LoadPlan {
    /// Makes the plan.
    ///
    /// # Errors
    /// [`ErrorKind::Plan`](crate::ErrorKind::Plan) or [`ErrorKind::Usage`](crate::ErrorKind::Usage)
    /// when the input and the table do not fit together.
    /// [`ErrorKind::Type`](crate::ErrorKind::Type) if a column of the input cannot be converted.
    pub fn make(
        table: &TargetTable,
        session: &SessionSettings,
        input: &InputFacts,
        request: &PlanRequest,
    ) -> Result<LoadPlan> {
        let mut rows = RowPlan::make(table, session, input, &request.rows)?;
        // Rows that are set aside are kept in the ledger.
        let ledger = !request.options.no_ledger && (!input.is_for_this_run_only || request.rejects);
        let atomic_plan = atomic::choose_atomic_plan(table, request, input, ledger)?;
        let copied_table = atomic::table_for_copy(table, atomic_plan.as_ref(), request.rejects);
        let (lanes, lanes_reason, one_statement) =
            lanes::choose_lanes(&copied_table, input, request);
        if one_statement {
            rows.mode = EncodeMode::Text;
        }
        if request.rejects {
            commit::check_rejects(request, one_statement.then_some(lanes_reason.as_str()))?;
        }
        let commit = commit::choose_commit(input, request, ledger, one_statement)?;
        let mut plan = LoadPlan {
            table: table.sql_name.clone(),
            storage: table.storage.facts().description,
            routing: None,
            warnings: warnings(&copied_table, &rows.columns, request),
            omitted: columns::omitted_columns(table, &rows.columns),
            rows,
            lanes,
            lanes_reason,
            one_statement,
            commit,
            atomic_plan: None,
            ledger,
            maintenance: MaintenancePlan::default(),
            may_skip_rows: may_skip_rows(table),
        };
        if let Some(atomic_plan) = atomic_plan {
            plan.apply_atomic_plan(request, atomic_plan)?;
        }
        plan.routing = routing::choose_routing(table, &plan, input, request);
        Ok(plan)
    }

    /// Sets the table's maintenance, and removes the warnings about foreign keys that are dropped.
    pub(crate) fn set_maintenance(&mut self, maintenance: MaintenancePlan) {
        let dropped = maintenance.indexes.iter().filter(|it| it.kept_because.is_none());
        let needless: Vec<String> = dropped.map(|it| foreign_key_warning(&it.name)).collect();
        self.warnings.retain(|warning| !needless.contains(warning));
        self.maintenance = maintenance;
    }

    /// Removes all changes of the table from the plan, and adds the warnings about foreign keys
    /// again.
    pub(crate) fn cancel_table_changes(&mut self, why: &str) {
        let dropped = self.maintenance.indexes.iter().filter(|it| it.kept_because.is_none());
        let keys = dropped.filter(|it| it.kind == IndexKind::ForeignKey);
        self.warnings.extend(keys.map(|it| foreign_key_warning(&it.name)));
        self.maintenance.cancel_table_changes(why);
    }

    /// Returns the COPY statement of a trial without rows. The trial's transaction does not allow
    /// FREEZE.
    pub fn trial_copy_sql(&self) -> String {
        self.rows.copy_sql(EncodeMode::Text, &self.table)
    }

    /// Returns [`RowPlan::copy_sql`], with FREEZE if the load's transaction allows it.
    pub fn copy_sql(&self, mode: EncodeMode, into: &str) -> String {
        let sql = self.rows.copy_sql(mode, into);
        match &self.atomic_plan {
            Some(AtomicPlan { freeze: true, .. }) => {
                format!("{}, freeze)", sql.strip_suffix(')').unwrap_or(&sql))
            }
            _ => sql,
        }
    }
}

/// Returns whether a trigger of the table may skip rows.
pub(crate) fn may_skip_rows(table: &TargetTable) -> bool {
    table.triggers.iter().any(|it| it.for_each_row && it.is_before)
}

/// Returns the warning about a foreign key that is kept.
fn foreign_key_warning(key: &str) -> String {
    format!("foreign key \"{key}\" is checked for each row after each COPY")
}

/// The most partitions for which COPY keeps a buffer of rows. With more partitions, COPY writes
/// buffers before they are full.
const BUFFERED_PARTITIONS_MAX: i64 = 32;

/// Returns the warnings about triggers, defaults, foreign keys, partitions and foreign tables.
fn warnings(table: &TargetTable, columns: &[PlannedColumn], request: &PlanRequest) -> Vec<String> {
    let mut warnings = Vec::new();
    let has_formats = !request.rows.date_formats.0.is_empty();
    if has_formats && columns.iter().all(|column| column.date_format.is_none()) {
        warnings.push(
            "`--date-format` applies to no column: none is of type date, timestamp or timestamptz"
                .to_owned(),
        );
    }
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
    if table.partitions > BUFFERED_PARTITIONS_MAX {
        let count = table.partitions;
        warnings.push(format!(
            "the table has {count} partitions: rows that are not sorted by the partition key load \
             slower"
        ));
    }
    if table.has_foreign_parts {
        warnings.push(
            "a foreign server commits rows before the ledger does: if the connection is lost \
             during a commit, rows may be written twice"
                .to_owned(),
        );
    }
    if table.row_security {
        warnings.push(
            "row-level security applies to this role, and COPY FROM does not support it: load as \
             a role with BYPASSRLS"
                .to_owned(),
        );
    }
    warnings
}
