//! The engine of pgspate: it moves rows into PostgreSQL fast and exactly.
//!
//! [`load`], [`sync`] and [`apply`] are thin. Each of the three turns its input into chunks, staged
//! rows or events, and passes these to the other modules:
//!
//! - [`reading`] opens an input and samples it.
//! - [`plan`] decides how records become rows, and gives a reason for each choice.
//! - [`copy`] sends every row to the server over lanes.
//! - [`fleet`] lets many processes load or sync one table together.
//! - [`driven`] lets the tasks of another engine, such as Spark, write one table under the
//!   control of a driver.
//! - [`writer`] takes single records from many callers, and writes what arrives together.
//! - [`care`] changes a table to make a load faster (drops indexes, for example) and restores the
//!   table afterwards.
//!
//! The engine builds on `pgspate-input`, `pgspate-events`, `pgspate-target` and
//! `pgspate-replication`. It re-exports some of their modules: [`source`], [`mod@format`],
//! [`encode`], [`target`], [`ledger`].
//!
//! Every row is written exactly once, or is rejected with its place in the input. This also holds
//! if the client or the server crashes, or if the network fails. The engine prints nothing and
//! reads no command-line arguments.

pub mod apply;
pub mod care;
pub mod copy;
pub mod driven;
pub mod fleet;
mod job;
pub mod load;
pub mod plan;
pub mod reading;
pub(crate) mod stage;
pub mod sync;
pub mod writer;

pub use pgspate_base::{Error, ErrorKind, InputPlace, Result, did_you_mean, file, numbers};
pub use pgspate_input::{encode, format, json, source};
pub use pgspate_target::{self as target, ledger, measure, session};
