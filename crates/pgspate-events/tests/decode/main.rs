//! Change events of every format, from records as they are met in the wild.

mod canal;
mod debezium;
mod debezium_pairs;
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
