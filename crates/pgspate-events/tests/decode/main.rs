//! Decoding of every format, with records as real tools write them.

mod canal;
mod debezium;
mod debezium_moved_rows;
mod debezium_types;
mod dms;
#[path = "../support/events.rs"]
mod events;
mod history;
mod maxwell;
mod random;
mod sniffed;
mod support;
mod wal2json;
