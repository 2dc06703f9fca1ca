//! What a server is like for writes, and how to change that for a while.
//!
//! - [`tune`]: settings for a bulk load, proposed, applied and put back.
//! - [`mod@doctor`]: what slows writes, one check after the other; pictures of a table's pages.
//!
//! A check only reads, in a transaction that the server knows to be read-only. What `tune` changes
//! is in the ledger before it is changed. Both talk to the server through `pgspate-target`. They
//! know nothing of loads: what a load leaves on a server, a check sees as anybody's.

pub mod doctor;
pub mod tune;

pub(crate) use pgspate_base::{Error, Kind, Result};
