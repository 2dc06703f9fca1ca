//! Facts and options to a plan, with a reason for every choice. Pure: no I/O.
//!
//! Whatever makes a load slower or different from what the user may expect is in the plan's
//! reasons or its warnings; nothing is chosen silently.

pub(crate) mod care;
mod columns;
mod commit;
mod encoding;
mod explain;
mod lanes;
mod others;
mod replace;
mod rows;

use arrow_schema::Field;

pub use care::{MaintenancePlan, IndexChoice, AutoChoice};
pub use columns::{OmittedColumn, PlannedColumn, ColumnRoute, match_fields};
pub(crate) use explain::way;
pub use replace::{AtomicPlan, AtomicMethod, ReplaceMode};
pub use rows::{RowPlan, RowRequest};

use crate::Result;
use crate::copy::{Commit, Lanes};
use crate::format::Mode;
use pgspate_target::{Bonds, IndexKind, Session, Table};

/// The most lanes that are used unasked.
pub const LANES_MAX: usize = 8;

/// What is known of the input when the plan is made.
#[derive(Debug, Clone, Default)]
pub struct InputFacts {
    /// The fields' names in order: a header's, the keys of JSON, the columns of a file with a
    /// schema. `None`: fields have positions only.
    pub names: Option<Vec<String>>,
    /// The Arrow type of each field, for files with a schema.
    pub types: Option<Vec<Field>>,
    /// It can be read only once.
    pub is_stream: bool,
    /// No later run can recognise it, so that a ledger does not help.
    pub is_fleeting: bool,
    /// It is text, whose encoding is not given by its format.
    pub is_delimited: bool,
    /// It is delimited and quoted as COPY's csv.
    pub is_csv: bool,
    /// Bytes that are stored, as far as that is known.
    pub stored_bytes: Option<u64>,
}

/// What the user may say of how a table is loaded.
#[derive(Debug, Clone, Default)]
pub struct PlanOptions {
    /// So many lanes; chosen by measuring otherwise.
    pub lanes: Option<usize>,
    /// When to commit; by the size of the input otherwise.
    pub commit: Option<Commit>,
    /// Keep no ledger: in one piece, not resumable, and as often as it is asked for.
    pub no_ledger: bool,
    /// The input's rows instead of those that the table has.
    pub replace: Option<ReplaceMode>,
    /// All rows become visible at once.
    pub atomic: bool,
    /// Whether to drop indexes and make them again.
    pub rebuild_indexes: AutoChoice,
    /// Whether to switch autovacuum off for the table meanwhile.
    pub pause_autovacuum: AutoChoice,
    /// Whether to run ANALYZE afterwards.
    pub analyze: AutoChoice,
    /// Run VACUUM (FREEZE, ANALYZE) afterwards.
    pub vacuum: bool,
}

/// All that was asked for, as far as plans depend on it.
#[derive(Debug, Clone, Default)]
pub struct PlanRequest {
    /// How the table is loaded.
    pub options: PlanOptions,
    /// How fields go to columns.
    pub rows: RowRequest,
    /// The processors that the server shares with us, if it is on this machine.
    pub shared_cores: Option<usize>,
    /// Whether rows that are refused are to be set aside.
    pub rejects: bool,
    /// What is bound to the table, if rows are to become visible at once; `None` for a table that
    /// is made for the load.
    pub bonds: Option<Bonds>,
}

/// What a load will do, and why.
#[derive(Debug, Clone)]
pub struct LoadPlan {
    /// The table, as SQL writes it.
    pub table: String,
    /// How records become rows.
    pub rows: RowPlan,
    /// Columns that the input does not have.
    pub omitted: Vec<OmittedColumn>,
    /// How many lanes, and why.
    pub lanes: Lanes,
    /// The reason for it.
    pub lanes_reason: String,
    /// Whether everything must go through one COPY statement.
    pub one_statement: bool,
    /// When rows become part of the table.
    pub commit: Commit,
    /// How rows become visible at once, where they are to.
    pub at_once: Option<AtomicPlan>,
    /// Whether chunks get a row in the ledger.
    pub ledger: bool,
    /// What is done with the table before and after.
    pub care: MaintenancePlan,
    /// What will make the server slow, and other things to know.
    pub warnings: Vec<String>,
    /// Whether a trigger may keep rows out, so that fewer are written than were read.
    pub may_drop_rows: bool,
}

impl LoadPlan {
    /// Decides.
    ///
    /// # Errors
    /// Of [`ErrorKind::Plan`] or [`ErrorKind::Usage`] where the input and the table do not fit
    /// together.
    pub fn make(
        table: &Table,
        session: &Session,
        input: &InputFacts,
        request: &PlanRequest,
    ) -> Result<LoadPlan> {
        let mut rows = RowPlan::make(table, session, input, &request.rows)?;
        // Rows that are set aside are kept there.
        let ledger = !request.options.no_ledger && (!input.is_fleeting || request.rejects);
        let at_once = replace::choose(table, request, input, ledger)?;
        let written = replace::written(table, at_once.as_ref());
        let (lanes, lanes_reason, one_statement) = lanes::choose(&written, input, request);
        if one_statement {
            rows.mode = Mode::Text;
        }
        if request.rejects {
            commit::check_rejects(request, one_statement.then_some(lanes_reason.as_str()))?;
        }
        let commit = commit::choose(input, request, ledger, one_statement)?;
        let mut plan = LoadPlan {
            table: table.sql_name.clone(),
            warnings: warnings(&written, &rows.columns),
            omitted: columns::omitted(table, &rows.columns),
            rows,
            lanes,
            lanes_reason,
            one_statement,
            commit,
            at_once: None,
            ledger,
            care: MaintenancePlan::default(),
            may_drop_rows: table.triggers.iter().any(|it| it.for_each_row && it.is_before),
        };
        if let Some(at_once) = at_once {
            plan.keep_at_once(request, at_once)?;
        }
        Ok(plan)
    }

    /// Says what is done with the table; a foreign key that is dropped costs nothing.
    pub(crate) fn take_care(&mut self, care: MaintenancePlan) {
        let dropped = care.indexes.iter().filter(|it| it.stays.is_none());
        let free: Vec<String> = dropped.map(|it| checked(&it.name)).collect();
        self.warnings.retain(|warning| !free.contains(warning));
        self.care = care;
    }

    /// Leaves the table as it is after all.
    pub(crate) fn alter_nothing(&mut self, why: &str) {
        let dropped = self.care.indexes.iter().filter(|it| it.stays.is_none());
        let keys = dropped.filter(|it| it.kind == IndexKind::ForeignKey);
        self.warnings.extend(keys.map(|it| checked(&it.name)));
        self.care.alter_nothing(why);
    }

    /// A COPY as the load will begin, but for what only its transaction allows.
    pub fn trial_sql(&self) -> String {
        self.rows.copy_sql(Mode::Text, &self.table)
    }

    /// [`RowPlan::copy_sql`], frozen where the transaction allows it.
    pub fn copy_sql(&self, mode: Mode, into: &str) -> String {
        let sql = self.rows.copy_sql(mode, into);
        match &self.at_once {
            Some(AtomicPlan { freeze: true, .. }) => {
                format!("{}, freeze)", sql.strip_suffix(')').unwrap_or(&sql))
            }
            _ => sql,
        }
    }
}

/// The warning about a foreign key that stays.
fn checked(key: &str) -> String {
    format!("foreign key \"{key}\" is checked for each row after its chunk")
}

/// Many leaves make COPY flush its buffers half empty.
const PARTITIONS_MANY: i64 = 32;

fn warnings(table: &Table, columns: &[PlannedColumn]) -> Vec<String> {
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
    warnings.extend(table.foreign_keys.iter().map(|key| checked(key)));
    if table.partitions > PARTITIONS_MANY {
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
