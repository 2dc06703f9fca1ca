//! Change events of every format, from records as they are met in the wild.

mod canal;
mod debezium;
mod debezium_types;
mod maxwell;
mod support;
mod wal2json;
