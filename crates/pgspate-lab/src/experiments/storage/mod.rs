//! `storage`: one load on volumes with different limits of I/O operations per second.
//!
//! If the machine can limit a server's I/O, the time is measured under the limit. The lab also
//! computes the time, from the I/O of the load without a limit. The figures mark such times as
//! computed. The time includes a checkpoint: the load is done when its pages are on the disk.

mod figures;
mod measured_io;

use pgspate::{Error, ErrorKind, Result};
use pgspate_doctor::doctor::storage::{Volume, VolumeLimits};

use super::bulk;
use super::bulk::strategies::{self, EACH, ONE, PGSPATE};
use crate::comparison::Comparison;
use crate::context::TrialContext;
use crate::dataset::DataKind;
use crate::experiment::{
    Experiment, Factor, LabRunSetup, LabTrial, PublishedResults, TrialOutcome, Unit,
};
use crate::report::figure::Figure;
use crate::results::Results;
use crate::throttle::Throttle;

/// The experiment that loads the same files on volumes with different limits.
pub(super) struct StorageExperiment;

/// The level of the factor "volume" that sets no limit.
const UNLIMITED: &str = "no limit";
/// The name of each volume in the report, and its specification for [`Volume::parse`].
///
/// The published experiment used volumes of 250 GB and 1,500 GB. The limits of gp2 leave out burst
/// credits, because a long load uses the credits up.
const VOLUMES: [(&str, &str); 3] = [
    ("gp2 250 GB, 750 IOPS", "gp2:250GiB"),
    ("gp2 1,500 GB, 4,500 IOPS", "gp2:1500GiB"),
    ("io1, 10,000 IOPS", "io1:400GiB,10000iops"),
];
/// The greatest number of bytes that a volume counts as one I/O.
const IO_BYTES: f64 = (256 << 10) as f64;
const MIB: f64 = (1 << 20) as f64;
const TUNED: &str = "pgspate, tuned settings";

/// The phase after the phases of the tables. The name has a space, so that no table's phase has the
/// same name.
const CHECKPOINT: &str = "final checkpoint";

/// The note of a trial whose role may not run CHECKPOINT.
const NO_CHECKPOINT: &str = "The role may not run CHECKPOINT on this server. The times leave out \
    the final checkpoint, and with it the pages that the server writes later.";

/// Returns the limits of a volume.
fn limits(level: &str) -> Option<VolumeLimits> {
    let (_, order) = VOLUMES.iter().find(|(name, _)| *name == level)?;
    Volume::parse(order).ok().map(|volume| volume.limits())
}

/// Converts a volume's limits to a throttle.
fn throttle(limits: &VolumeLimits) -> Throttle {
    let bytes = (limits.throughput * MIB).min(limits.iops * IO_BYTES);
    Throttle { iops: limits.iops, bytes_per_second: bytes }
}

/// Returns the computed seconds of a load on a volume.
///
/// The result is the greatest of three times: the seconds without a limit, the time for the I/O
/// operations, and the time for the bytes.
fn compute_load_seconds(limits: &VolumeLimits, seconds: f64, operations: f64, bytes: f64) -> f64 {
    let operations = operations.max(bytes / IO_BYTES);
    seconds.max(operations / limits.iops).max(bytes / (limits.throughput * MIB))
}

impl Experiment for StorageExperiment {
    fn name(&self) -> &'static str {
        "storage"
    }

    fn title(&self) -> &'static str {
        "The same load on smaller volumes"
    }

    fn question(&self) -> &'static str {
        "What does a load gain from more lanes and from tuned settings on a volume that limits \
         the I/Os per second?"
    }

    fn published(&self) -> Option<PublishedResults> {
        Some(PublishedResults {
            source: bulk::PUBLISHED,
            setting: "IMDb's seven files on Amazon RDS with volumes of 750, 4,500 and 10,000 \
                      IOPS, and the result of all changes together.",
            figures: vec![("the largest file", "from 5 min 45 s to 44 s")],
        })
    }

    fn takes_data(&self) -> bool {
        true
    }

    fn title_with(&self, data: DataKind) -> &'static str {
        match data {
            DataKind::Imdb => self.title(),
            DataKind::Tpch => "Loading TPC-H's eight tables on smaller volumes",
            DataKind::Files => "Loading your own files on smaller volumes",
        }
    }

    fn factors(&self, _setup: &LabRunSetup) -> Vec<Factor> {
        let volumes = VOLUMES.map(|(name, _)| name);
        let levels = [&[UNLIMITED], volumes.as_slice()].concat();
        vec![Factor::new("volume", &levels), Factor::new("strategy", &[ONE, EACH, PGSPATE, TUNED])]
    }

    fn scale_default(&self) -> f64 {
        0.01
    }

    fn trial_seconds(&self, scale: f64) -> f64 {
        5.0 + 250.0 * scale
    }

    fn columns(&self) -> Vec<&'static str> {
        vec!["seconds", "phase: final checkpoint", "disk writes", "disk bytes", "disk queue", "WAL"]
    }

    fn settings(&self, trial: &LabTrial, context: &TrialContext) -> Vec<(String, String)> {
        if trial.is("strategy", TUNED) { context.tuned() } else { Vec::new() }
    }

    fn refusal(&self, trial: &LabTrial, context: &TrialContext) -> Option<String> {
        let limits = limits(trial.level("volume"));
        let refused = limits.and_then(|limits| context.throttle(&throttle(&limits)).err());
        refused.or_else(|| strategies::refusal(trial.level("strategy"), context))
    }

    fn prepare(&self, context: &TrialContext) -> Result<()> {
        bulk::prepare(context)
    }

    fn run(&self, trial: &LabTrial, context: &TrialContext) -> Result<TrialOutcome> {
        let active_throttle = match limits(trial.level("volume")) {
            Some(limits) => Some(context.throttle(&throttle(&limits)).map_err(|reason| {
                Error::new(ErrorKind::Plan, format!("could not limit the server's I/O: {reason}"))
            })?),
            None => None,
        };
        let strategy = match trial.level("strategy") {
            TUNED => PGSPATE,
            other => other,
        };
        let mut outcome = TrialOutcome::default();
        let (rows, _) = strategies::load(strategy, context, &mut outcome)?;
        let has_checkpoint = outcome.phase(CHECKPOINT, || context.checkpoint())?;
        drop(active_throttle);
        if !has_checkpoint {
            outcome.notes.push(NO_CHECKPOINT.to_owned());
        }
        outcome.number("rows", rows as f64, Unit::Count);
        Ok(outcome)
    }

    fn verify(
        &self,
        _trial: &LabTrial,
        context: &TrialContext,
        _outcome: &mut TrialOutcome,
    ) -> Result<()> {
        bulk::verify(context)
    }

    fn figures(&self, results: &Results) -> Vec<Figure> {
        figures::all(results)
    }

    fn comparisons(&self, results: &Results) -> Vec<Comparison> {
        figures::comparisons(results)
    }

    fn answer(&self, results: &Results) -> String {
        figures::answer(results)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_have_the_published_limits() {
        let iops = VOLUMES.map(|(name, _)| limits(name).unwrap().iops);
        assert_eq!(iops, [750.0, 4500.0, 10_000.0]);
        assert_eq!(limits(UNLIMITED), None);
    }

    #[test]
    fn computed_time_is_the_greatest_of_three_times() {
        let limits = VolumeLimits { iops: 100.0, burst_iops: None, credits: 0.0, throughput: 10.0 };
        assert_eq!(compute_load_seconds(&limits, 9.0, 10.0, 1.0), 9.0);
        assert_eq!(compute_load_seconds(&limits, 9.0, 2000.0, 1.0), 20.0);
        assert_eq!(compute_load_seconds(&limits, 9.0, 10.0, 300.0 * MIB), 30.0);
        // The volume counts a large operation as several operations of 256 KiB.
        let high_throughput = VolumeLimits { throughput: 1000.0, ..limits };
        assert_eq!(compute_load_seconds(&high_throughput, 0.0, 1.0, 100.0 * MIB), 4.0);
    }
}
