//! The experiments of the lab, one folder for each.
//!
//! Each experiment repeats a published experiment and adds cases that the publication left out.

mod bulk;
mod callers;
mod changes;
mod plots;
mod records;
mod rewrite;
mod sending;
mod storage;
mod temp;

use crate::experiment::Experiment;

/// All experiments, in the order of the report.
pub const ALL: [&dyn Experiment; 7] = [
    &bulk::BulkExperiment,
    &rewrite::RewriteExperiment,
    &changes::ChangesExperiment,
    &temp::TempExperiment,
    &records::RecordsExperiment,
    &callers::CallersExperiment,
    &storage::StorageExperiment,
];

/// Returns the experiment called `name`, if there is one.
pub fn find(name: &str) -> Option<&'static dyn Experiment> {
    ALL.into_iter().find(|experiment| experiment.name() == name)
}
