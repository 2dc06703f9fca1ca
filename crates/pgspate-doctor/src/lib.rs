//! Finds what slows writes on a PostgreSQL server, and sets a server up for a bulk load.
//!
//! - [`tune`]: proposes settings for a bulk load, applies them and puts the old values back.
//! - [`mod@doctor`]: runs checks for slow or unsafe writes, and draws pictures of a table's pages.
//!
//! A check only reads, in a read-only transaction. `tune` records the old value of a setting in the
//! ledger before it changes the setting. Both modules reach the server through `pgspate-target`,
//! and neither depends on the code that loads rows.

pub mod doctor;
pub mod tune;

pub(crate) use pgspate_base::{Error, ErrorKind, Result};
