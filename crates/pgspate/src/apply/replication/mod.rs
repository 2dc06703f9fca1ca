//! PostgreSQL's own changes as a source: a slot's stream of a publication, and what was before it.
//!
//! [`Snapshot::create`] makes a slot and reads the tables as they are where the slot begins;
//! [`Replication::start`] reads what is committed from there on. The server is told of nothing but
//! what the caller says is committed on the target, and sends everything after that again.

mod address;
mod lsn;
mod pgoutput;
mod read;
mod snapshot;
mod stream;

pub use address::Address;
pub use lsn::Lsn;
pub use pgoutput::Pgoutput;
pub use snapshot::{PublishedTable, Snapshot, drop_slot};
pub(crate) use snapshot::{drop_slot_unless, make_slot_unless, published, stopped};
pub(crate) use stream::{Confirmer, check_publication};
pub use stream::{Received, Replication};
