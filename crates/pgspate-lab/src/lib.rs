//! Experiments that measure methods of writing into PostgreSQL on the user's machine or server.
//!
//! An [`Experiment`] has factors with levels, a starting state, and a measured part. A trial is one
//! combination of levels. [`run`] runs each trial the requested number of times, in random order,
//! always from the same starting state. It writes one line per trial to `results.jsonl`, and does
//! not run a trial again that has its line. [`report`] makes one page from the lines. All
//! contenders are measured in the same way, and results that are unfavourable to pgspate stay. The
//! engine does not know that it is measured.

mod comparison;
mod context;
pub mod data;
mod dataset;
mod experiment;
pub mod experiments;
mod facts;
mod given;
mod lab_server;
mod probe;
mod random;
pub mod report;
mod results;
mod run_lock;
mod runner;
mod spread;
mod stop;
mod throttle;
mod user_server;

pub use comparison::{ComparedContender, Comparison};
pub use context::{SCHEMA, TrialContext};
pub use dataset::{DataFacts, DataKind, TableFacts};
pub use experiment::{
    Experiment, Factor, LabRunSetup, LabTrial, NamedNumber, Publication, PublishedResults,
    TrialOutcome, TrialPhase, TrialPicture, TrialSeries, Unit,
};
pub use facts::{Machine, TrialFacts};
pub use random::SeededRandom;
pub use results::{PICTURES, RESULTS, ResultLine, Results, read};
pub use runner::{LabEvent, LabOptions, LabSummary, run, run_time};
pub use spread::Spread;
pub use stop::RunStop;
pub use throttle::{ActiveThrottle, Throttle};
