//! PostgreSQL's own changes as a source: a slot's stream of a publication, and what was before it.
//!
//! [`Snapshot::create`] makes a slot and reads the tables as they are where the slot begins;
//! [`Replication::start`] reads what is committed from there on. The server is told of nothing but
//! what the caller says is committed on the target, and sends everything after that again.

mod address;
mod pgoutput;
mod read;
mod snapshot;
mod stream;

pub(crate) use address::SlotAddress;
pub use pgoutput::Pgoutput;
pub(crate) use snapshot::published;
pub use snapshot::{PublishedTable, Snapshot, drop_slot, make_slot};
pub(crate) use stream::{Confirmer, check_publication};
pub use stream::{Received, Replication};

/// Seconds from 1970 to 2000, where PostgreSQL's clock begins.
const EPOCH_SECS: u64 = 946_684_800;
