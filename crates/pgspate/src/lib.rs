//! The engine of pgspate: moving rows into PostgreSQL fast and exactly.
//!
//! [`load`], [`sync`] and [`apply`] are thin: each turns its input into chunks or staged rows and
//! hands them on.
//!
//! - [`reading`] is an input.
//! - [`plan`] decides how its records become rows, and gives its reasons.
//! - [`copy`] takes every row to the server over lanes.
//! - [`care`] does to a table what makes that fast, and puts it back.
//!
//! Beneath are `pgspate-input`, `pgspate-events`, `pgspate-target` and `pgspate-replication`. Parts
//! of them are named here too: [`source`], [`mod@format`], [`encode`], [`target`], [`ledger`].
//!
//! Every row is written once, whatever dies when, or is set aside with its place. Nothing here
//! prints, reads arguments, or knows which program it is a part of.

pub mod apply;
pub mod care;
pub mod copy;
mod job;
pub mod load;
pub mod plan;
pub mod reading;
pub(crate) mod stage;
pub mod sync;

pub use pgspate_base::{Error, ErrorKind, InputPlace, Result, file, numbers};
pub use pgspate_input::{encode, format, source};
pub use pgspate_target::{self as target, ledger, measure, session};
