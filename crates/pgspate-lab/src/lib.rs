//! Experiments that measure ways of writing into PostgreSQL, on a server of the reader's own.
//!
//! An [`Experiment`] is factors with their levels, a starting state and what is measured from it.
//! [`run`] carries out each combination of levels as often as is asked, in an order that nobody
//! chose, each time from the same starting state, and writes a line for each to `results.jsonl`;
//! what has its line is not run again. [`report`] makes one page of the lines. What is measured is
//! measured alike for all contenders, and what is unfavourable to pgspate stays. The engine is one
//! contender among others: it knows nothing of being measured.

pub mod data;
mod dataset;
mod experiment;
pub mod experiments;
mod facts;
mod foreign;
mod given;
mod ground;
mod own;
mod probe;
mod random;
pub mod report;
mod results;
mod runner;
mod spread;
mod stop;
mod throttle;

pub use dataset::{Data, DataFacts, TableFacts};
pub use experiment::{
    Experiment, Factor, Number, Outcome, Phase, Picture, Published, Series, Setup, Trial, Unit,
};
pub use facts::{Facts, Machine};
pub use ground::{Ground, SCHEMA};
pub use random::Random;
pub use results::{Line, PICTURES, RESULTS, Results, read};
pub use runner::{Event, Options, Summary, run, run_time};
pub use spread::Spread;
pub use stop::Stop;
pub use throttle::{Throttle, Throttled};
