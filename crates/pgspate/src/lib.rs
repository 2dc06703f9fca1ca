//! The engine of pgspate: moving rows into PostgreSQL fast and exactly.
//!
//! Bytes come from a [`source`], are cut into chunks by a [`mod@format`], become COPY bytes in
//! [`encode`] and reach the server through [`copy`]. [`target`] knows the table, [`plan`] decides
//! and gives its reasons, and [`load`] ties them together. Only [`copy`] and [`target`] talk to a
//! server.

pub mod apply;
pub mod care;
pub mod copy;
mod job;
pub mod load;
pub mod plan;
pub mod reading;
pub(crate) mod stage;
pub mod sync;

pub use pgspate_base::{Error, Kind, Place, Result, file, numbers};
pub use pgspate_input::{encode, format, source};
pub use pgspate_target::{self as target, ledger, measure, session};
