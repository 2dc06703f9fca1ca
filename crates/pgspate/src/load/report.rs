//! The plan and the result of a load, as `--json` writes them.

use serde::Serialize;

use super::{AddedColumn, FileCounts, Load, LoadWatch, WidenedColumn};
use crate::care::MovedSequence;
use crate::copy::{CopyOutcome, Lanes, StageSeconds};
use crate::fleet::MemberReport;
use crate::plan::{AtomicPlan, IndexChoice, OmittedColumn, describe_route};

/// The plan of a load.
#[derive(Debug, Clone, Serialize)]
pub struct PlanReport {
    /// The table's name in SQL.
    pub table: String,
    /// Where an extension stores the table's rows, and what that means for the load, in words.
    pub storage: Option<&'static str>,
    /// How rows reach the shards of a table of Citus, in words; `None` for another table.
    pub routing: Option<String>,
    /// The statement that creates the table; `None` if the table exists.
    pub create: Option<String>,
    /// The statement that adds columns to the table, with `--add-columns`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_columns: Option<String>,
    /// How all rows become visible at the same time, with `--replace` or `--atomic`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_once: Option<AtomicPlan>,
    /// How many files are new, skipped and changed.
    pub files: FileCounts,
    /// Facts that were found about the input.
    pub input: Vec<String>,
    /// `binary` or `text`.
    pub path: &'static str,
    /// Reason for the path.
    pub path_reason: String,
    /// Number of lanes at the start.
    pub lanes: usize,
    /// Maximum number of lanes.
    pub lanes_max: usize,
    /// Reason for the number of lanes.
    pub lanes_reason: String,
    /// What other sessions can do with the table during the load.
    pub others: String,
    /// The columns that are written, in COPY's order.
    pub columns: Vec<PlanColumn>,
    /// Columns that the input does not have.
    pub omitted: Vec<OmittedColumn>,
    /// Indexes and foreign keys, and whether they are dropped.
    pub indexes: Vec<PlanIndex>,
    /// Reason for dropping or keeping the indexes and foreign keys.
    pub indexes_reason: String,
    /// Reason for switching autovacuum off for the table during the load; `None` if it stays on.
    pub autovacuum_pause: Option<String>,
    /// Sequences that are advanced past the values of their columns.
    pub sequences: Vec<String>,
    /// Warnings, such as what will slow the load down.
    pub warnings: Vec<String>,
}

/// An index or a foreign key.
#[derive(Debug, Clone, Serialize)]
pub struct PlanIndex {
    /// The name, unquoted.
    pub name: String,
    /// `index`, `primary key`, `foreign key` and so on.
    pub kind: &'static str,
    /// Whether the load drops the index or foreign key, and creates it again afterwards.
    pub dropped: bool,
    /// Reason for keeping the index or foreign key; `None` if it is dropped.
    pub stays: Option<String>,
}

/// A column that will be written.
#[derive(Debug, Clone, Serialize)]
pub struct PlanColumn {
    /// The column's name, unquoted.
    pub name: String,
    /// The column's type.
    #[serde(rename = "type")]
    pub ty: String,
    /// How the column's values are sent, in words.
    pub way: String,
}

impl PlanReport {
    pub(super) fn new(load: &Load) -> PlanReport {
        let plan = &load.plan;
        let (lanes, lanes_max) = match plan.lanes {
            Lanes::Fixed(lanes) => (lanes, lanes),
            Lanes::Auto(first, most) => (first, most),
        };
        let columns = plan.rows.columns.iter().map(|column| PlanColumn {
            name: column.name.clone(),
            ty: column.ty.name.clone(),
            way: describe_route(plan, column),
        });
        PlanReport {
            table: plan.table.clone(),
            storage: plan.storage,
            routing: plan.routing.as_ref().map(ToString::to_string),
            create: load.new_table().map(|new| new.sql.clone()),
            add_columns: load.add_columns_sql(),
            at_once: plan.atomic_plan.clone(),
            files: load.files,
            input: load.reading.sniffed.evidence.clone(),
            path: plan.rows.mode.name(),
            path_reason: plan.rows.mode_reason.clone(),
            lanes,
            lanes_max,
            lanes_reason: plan.lanes_reason.clone(),
            others: plan.other_sessions(),
            columns: columns.collect(),
            omitted: plan.omitted.clone(),
            indexes: plan.maintenance.indexes.iter().map(PlanIndex::of).collect(),
            indexes_reason: plan.maintenance.indexes_reason.clone(),
            autovacuum_pause: plan.maintenance.autovacuum_pause.clone(),
            sequences: plan.maintenance.sequences.iter().map(|(_, name)| name.clone()).collect(),
            warnings: plan
                .warnings
                .iter()
                .cloned()
                .chain(load.reading.names_warning.clone())
                .chain(load.reading.folders_warning.clone())
                .collect(),
        }
    }
}

impl PlanIndex {
    fn of(choice: &IndexChoice) -> PlanIndex {
        PlanIndex {
            name: choice.name.clone(),
            kind: choice.kind.name(),
            dropped: choice.kept_because.is_none(),
            stays: choice.kept_because.clone(),
        }
    }
}

/// The result of a load.
#[derive(Debug, Clone, Serialize)]
pub struct LoadReport {
    /// The table's name in SQL.
    pub table: String,
    /// Whether the load created the table.
    pub created: bool,
    /// How all rows became visible at the same time, with `--replace` or `--atomic`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_once: Option<AtomicPlan>,
    /// Number of inputs, also of those that were left out.
    pub inputs: usize,
    /// How many files were new, skipped and changed.
    pub files: FileCounts,
    /// Rows read.
    pub rows_in: u64,
    /// Rows written.
    pub rows_written: u64,
    /// Rows read but not written, because triggers skipped them.
    pub rows_kept_out: u64,
    /// Rows written as text, because the encoder could not encode them.
    pub rows_as_text: u64,
    /// Stored (perhaps compressed) bytes of the inputs, if known.
    pub stored_bytes: Option<u64>,
    /// Decompressed bytes of the inputs.
    pub bytes: u64,
    /// The part of `bytes` that earlier runs of the job have written.
    pub bytes_before: u64,
    /// COPY bytes sent.
    pub bytes_sent: u64,
    /// `binary` or `text`.
    pub path: &'static str,
    /// Lanes that wrote at least one chunk.
    pub lanes: usize,
    /// Chunks of the whole input.
    pub chunks: u64,
    /// Rows of the job that were rejected, including those of earlier runs.
    pub rows_rejected: u64,
    /// The part of `rows_rejected` that earlier runs of the job have rejected.
    pub rows_rejected_before: u64,
    /// The file with the rejected rows.
    pub rejects: Option<String>,
    /// The flags for loading the file of rejected rows, once the rows are corrected.
    pub rejects_read_as: Option<String>,
    /// The job in the ledger, if the load keeps a ledger.
    pub job: Option<i64>,
    /// Rows that earlier runs of the job have written. If the input was already loaded, these are
    /// all rows.
    pub rows_before: u64,
    /// Seconds from the begin of reading to the last commit.
    pub seconds: f64,
    /// Seconds per stage of the work, added up over all lanes.
    pub stages: StageSeconds,
    /// WAL bytes that the server wrote during the load, for all sessions.
    pub wal_bytes: Option<u64>,
    /// Indexes, foreign keys and options that were restored after the load, by kind and name.
    pub rebuilt: Vec<String>,
    /// Seconds for restoring indexes, foreign keys and options.
    pub rebuild_seconds: f64,
    /// `analyze` or `vacuum (freeze, analyze)`; `None` if neither was run.
    pub counted: Option<&'static str>,
    /// Reason for running VACUUM or ANALYZE, or for running neither.
    pub counted_reason: &'static str,
    /// Seconds for VACUUM or ANALYZE.
    pub counted_seconds: f64,
    /// Sequences that were advanced.
    pub sequences: Vec<MovedSequence>,
    /// Columns whose type was widened.
    pub widened: Vec<WidenedColumn>,
    /// Columns that this load added to the table.
    pub added_columns: Vec<AddedColumn>,
    /// Warnings, such as what slowed the load down.
    pub warnings: Vec<String>,
    /// Facts that were found about the input, such as its format and whether it has a header.
    pub input: Vec<String>,
    /// The warning about names in the input: the first line may be a row, or the names have
    /// another order than those of `--columns`.
    #[serde(skip)]
    pub names_warning: Option<String>,
    /// Which member of a fleet the load was, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fleet: Option<MemberReport>,
    /// Which job had already loaded everything, and when, in words.
    #[serde(skip)]
    pub loaded_already: Option<String>,
    /// The jobs that have rejected rows, if the input was already loaded.
    #[serde(skip)]
    pub rejecting_jobs: Vec<i64>,
    /// Whether this run has written rows into the file of rejected rows, if the input was already
    /// loaded.
    #[serde(skip)]
    pub writes_rejects: bool,
}

impl LoadReport {
    pub(super) fn new(
        load: &Load,
        outcome: CopyOutcome,
        watch: &LoadWatch,
        widened: Vec<WidenedColumn>,
        seconds: f64,
        wal_bytes: Option<u64>,
    ) -> LoadReport {
        let (job, rows_before) = load.job.earlier_rows();
        let snapshot = watch.copy.snapshot();
        let done = &load.table_changes.summary;
        let (plan, after) = (&load.plan.warnings, &done.after);
        LoadReport {
            table: load.plan.table.clone(),
            created: load.new_table.is_some(),
            at_once: load.plan.atomic_plan.clone(),
            inputs: load.files.total(),
            files: load.files,
            rows_in: outcome.rows_in,
            rows_written: outcome.rows_written,
            rows_kept_out: outcome
                .rows_in
                .saturating_sub(outcome.rows_written + outcome.rows_rejected),
            rows_as_text: outcome.rows_as_text,
            stored_bytes: load.reading.stored_bytes(),
            bytes: snapshot.bytes,
            bytes_before: snapshot.bytes_before,
            bytes_sent: outcome.bytes_sent,
            path: load.plan.rows.mode.name(),
            lanes: outcome.lanes,
            chunks: outcome.chunks,
            rows_rejected: load.job.earlier_rejects() + snapshot.rejected,
            rows_rejected_before: load.rejected_before(),
            rejects: load.options.rejects.as_ref().map(|path| path.display().to_string()),
            rejects_read_as: load.options.rejects.as_ref().map(|_| load.rejects_read_as()),
            job,
            rows_before,
            seconds,
            stages: outcome.stages,
            wal_bytes,
            rebuilt: done.rebuilt.clone(),
            rebuild_seconds: done.rebuild_seconds,
            counted: after.analyze_command,
            counted_reason: after.analyze_reason,
            counted_seconds: after.seconds,
            sequences: after.sequences.clone(),
            widened,
            added_columns: load.added_columns.clone(),
            warnings: [plan, &load.job.warnings, &after.warnings]
                .into_iter()
                .flatten()
                .cloned()
                .chain(load.reading.warnings())
                .chain(watch.other_types_warning())
                .collect(),
            input: load.reading.sniffed.evidence.clone(),
            names_warning: load.reading.names_warning.clone(),
            fleet: None,
            loaded_already: load.earlier_runs().filter(|_| load.is_loaded()),
            rejecting_jobs: load.job.earlier_rejecting_jobs(),
            writes_rejects: false,
        }
    }

    /// Returns whether all rows were written. If the input was already loaded, the job that did so
    /// last counts, and the file of rejects, if it was written again. So a load that is run again
    /// after a lost connection gives the same answer.
    pub fn has_written_all_rows(&self) -> bool {
        let rejected = match &self.loaded_already {
            Some(_) => {
                self.writes_rejects
                    || self.job.is_some_and(|last| self.rejecting_jobs.contains(&last))
            }
            None => self.rows_rejected > 0,
        };
        !rejected && self.rows_kept_out == 0
    }

    /// Adds which member of a fleet the load was, if any.
    pub(super) fn of_member(self, fleet: Option<MemberReport>) -> LoadReport {
        LoadReport { fleet, ..self }
    }
}
