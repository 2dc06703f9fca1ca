//! What a load will do and what it did, to be written as JSON.

use serde::Serialize;

use super::{Load, LoadWatch, WidenedColumn};
use crate::care::MovedSequence;
use crate::copy::{Lanes, CopyOutcome, StageSeconds};
use crate::plan::{AtomicPlan, IndexChoice, OmittedColumn, way};

/// What a load will do.
#[derive(Debug, Clone, Serialize)]
pub struct PlanReport {
    /// The table, as SQL writes it.
    pub table: String,
    /// The statement that makes the table first, if there is none yet.
    pub create: Option<String>,
    /// How rows become visible at once, where they are to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_once: Option<AtomicPlan>,
    /// What was found out about the input.
    pub input: Vec<String>,
    /// `binary` or `text`.
    pub path: &'static str,
    /// Why.
    pub path_reason: String,
    /// Lanes at first.
    pub lanes: usize,
    /// Lanes at most.
    pub lanes_max: usize,
    /// Why.
    pub lanes_reason: String,
    /// What other sessions can do with the table meanwhile.
    pub others: String,
    /// The columns that are written, in COPY's order.
    pub columns: Vec<PlanColumn>,
    /// Columns that the input does not have.
    pub omitted: Vec<OmittedColumn>,
    /// Indexes and foreign keys, and what becomes of them.
    pub indexes: Vec<PlanIndex>,
    /// Why they are dropped, or stay.
    pub indexes_reason: String,
    /// Why autovacuum is switched off for the table meanwhile, if it is.
    pub autovacuum_pause: Option<String>,
    /// Sequences that move past the values of their columns.
    pub sequences: Vec<String>,
    /// What will make it slow, and other things to know.
    pub warnings: Vec<String>,
}

/// An index or a foreign key.
#[derive(Debug, Clone, Serialize)]
pub struct PlanIndex {
    /// Its name, unquoted.
    pub name: String,
    /// `index`, `primary key`, `foreign key` and so on.
    pub kind: &'static str,
    /// Whether it is dropped, and made again after the load.
    pub dropped: bool,
    /// Why it stays.
    pub stays: Option<String>,
}

/// A column that will be written.
#[derive(Debug, Clone, Serialize)]
pub struct PlanColumn {
    /// Its name, unquoted.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub ty: String,
    /// How its values travel, in words.
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
            way: way(plan, column),
        });
        PlanReport {
            table: plan.table.clone(),
            create: load.new_table().map(|new| new.sql.clone()),
            at_once: plan.at_once.clone(),
            input: load.reading.sniffed.evidence.clone(),
            path: plan.rows.mode.name(),
            path_reason: plan.rows.mode_reason.clone(),
            lanes,
            lanes_max,
            lanes_reason: plan.lanes_reason.clone(),
            others: plan.others(),
            columns: columns.collect(),
            omitted: plan.omitted.clone(),
            indexes: plan.care.indexes.iter().map(PlanIndex::of).collect(),
            indexes_reason: plan.care.indexes_reason.clone(),
            autovacuum_pause: plan.care.autovacuum_pause.clone(),
            sequences: plan.care.sequences.iter().map(|(_, name)| name.clone()).collect(),
            warnings: plan.warnings.clone(),
        }
    }
}

impl PlanIndex {
    fn of(choice: &IndexChoice) -> PlanIndex {
        PlanIndex {
            name: choice.name.clone(),
            kind: choice.kind.name(),
            dropped: choice.stays.is_none(),
            stays: choice.stays.clone(),
        }
    }
}

/// What a load did.
#[derive(Debug, Clone, Serialize)]
pub struct LoadReport {
    /// The table, as SQL writes it.
    pub table: String,
    /// Whether the table was made for it.
    pub created: bool,
    /// How rows became visible at once, where they did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_once: Option<AtomicPlan>,
    /// Inputs.
    pub inputs: usize,
    /// Rows read.
    pub rows_in: u64,
    /// Rows written.
    pub rows_written: u64,
    /// Rows read but not written, as triggers kept them out.
    pub rows_kept_out: u64,
    /// Rows written that the encoder left to the server as text.
    pub rows_as_text: u64,
    /// Stored bytes of the inputs, where known.
    pub stored_bytes: Option<u64>,
    /// Decompressed bytes of the inputs.
    pub bytes: u64,
    /// COPY bytes sent.
    pub bytes_sent: u64,
    /// `binary` or `text`.
    pub path: &'static str,
    /// Lanes that carried rows.
    pub lanes: usize,
    /// Chunks of the whole input.
    pub chunks: u64,
    /// Rows of the job that were set aside, by earlier runs too.
    pub rows_rejected: u64,
    /// The file that has them.
    pub rejects: Option<String>,
    /// How that file is to be loaded again, once it is mended.
    pub rejects_read_as: Option<String>,
    /// Its job in the ledger, if it has one.
    pub job: Option<i64>,
    /// Rows that earlier runs of the job have written: all of them, if nothing was left to do.
    pub rows_before: u64,
    /// From the first byte to the last commit.
    pub seconds: f64,
    /// Seconds of the lanes together, by stage.
    pub stages: StageSeconds,
    /// WAL that the server wrote meanwhile, for whomever.
    pub wal_bytes: Option<u64>,
    /// Indexes, foreign keys and options that were put back after the load, by kind and name.
    pub rebuilt: Vec<String>,
    /// Seconds that it took.
    pub rebuild_seconds: f64,
    /// `analyze` or `vacuum (freeze, analyze)`, if the table was.
    pub counted: Option<&'static str>,
    /// Why it was, or was not.
    pub counted_reason: &'static str,
    /// Seconds that it took.
    pub counted_seconds: f64,
    /// Sequences that were moved.
    pub sequences: Vec<MovedSequence>,
    /// Columns that had to become wider.
    pub widened: Vec<WidenedColumn>,
    /// What slowed it down.
    pub warnings: Vec<String>,
    /// Which job had loaded all of it, and when, in words.
    #[serde(skip)]
    pub loaded_already: Option<String>,
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
        let (job, rows_before) = load.job.before();
        let done = &load.care.done;
        let (plan, after) = (&load.plan.warnings, &done.after);
        LoadReport {
            table: load.plan.table.clone(),
            created: load.new_table.is_some(),
            at_once: load.plan.at_once.clone(),
            inputs: load.reading.inputs.len(),
            rows_in: outcome.rows_in,
            rows_written: outcome.rows_written,
            rows_kept_out: outcome
                .rows_in
                .saturating_sub(outcome.rows_written + outcome.rows_rejected),
            rows_as_text: outcome.rows_as_text,
            stored_bytes: load.reading.stored_bytes(),
            bytes: watch.copy.snapshot().bytes,
            bytes_sent: outcome.bytes_sent,
            path: load.plan.rows.mode.name(),
            lanes: outcome.lanes,
            chunks: outcome.chunks,
            rows_rejected: load.job.rejected_before() + watch.copy.snapshot().rejected,
            rejects: load.options.rejects.as_ref().map(|path| path.display().to_string()),
            rejects_read_as: load.options.rejects.as_ref().map(|_| load.rejects_read_as()),
            job,
            rows_before,
            seconds,
            stages: outcome.stages,
            wal_bytes,
            rebuilt: done.rebuilt.clone(),
            rebuild_seconds: done.rebuild_seconds,
            counted: after.counted,
            counted_reason: after.counted_reason,
            counted_seconds: after.seconds,
            sequences: after.sequences.clone(),
            widened,
            warnings: [plan, &load.job.warnings, &after.warnings]
                .into_iter()
                .flatten()
                .cloned()
                .collect(),
            loaded_already: load.standing().filter(|_| load.is_loaded()),
        }
    }
}
