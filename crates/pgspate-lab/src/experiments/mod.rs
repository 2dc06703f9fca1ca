//! The experiments that the lab has, one folder for each.
//!
//! Each repeats a published one and adds what that left out.

mod bulk;
mod storage;

use crate::experiment::Experiment;

/// All of them, in the order of the report.
pub const ALL: [&dyn Experiment; 2] = [&bulk::Bulk, &storage::Storage];

/// The experiment of that name.
pub fn find(name: &str) -> Option<&'static dyn Experiment> {
    ALL.into_iter().find(|experiment| experiment.name() == name)
}
