//! PostgreSQL's logical replication: a slot's stream of a publication, and the rows before it.
//!
//! [`SlotSnapshot::create`] creates a slot and reads the tables as they are where the slot begins.
//! [`SlotStream::start`] reads the transactions that commit after that. Only events that the caller
//! has committed on the target are confirmed to the server. The server sends all later events
//! again.

mod address;
mod message_bytes;
mod pgoutput;
mod snapshot;
mod stream;

pub(crate) use address::SlotAddress;
pub use pgoutput::Pgoutput;
pub(crate) use snapshot::list_published_tables;
pub use snapshot::{PublishedTable, SlotSnapshot, create_slot, drop_slot};
pub(crate) use stream::{Confirmer, check_publication};
pub use stream::{ReceivedEvents, SlotStream};

/// Seconds from 1970 to 2000, where PostgreSQL's clock begins.
const EPOCH_SECS: u64 = 946_684_800;
