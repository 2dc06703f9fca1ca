//! The experiments that the lab has, one folder for each.
//!
//! Each repeats a published one and adds what that left out.

mod bulk;
mod changes;
mod plots;
mod records;
mod rewrite;
mod storage;
mod temp;
mod ways;

use crate::experiment::Experiment;

/// All of them, in the order of the report.
pub const ALL: [&dyn Experiment; 6] = [
    &bulk::BulkExperiment,
    &rewrite::RewriteExperiment,
    &changes::ChangesExperiment,
    &temp::TempExperiment,
    &records::RecordsExperiment,
    &storage::StorageExperiment,
];

/// The experiment of that name.
pub fn find(name: &str) -> Option<&'static dyn Experiment> {
    ALL.into_iter().find(|experiment| experiment.name() == name)
}
