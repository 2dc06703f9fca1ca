//! PostgreSQL's logical replication as a source: messages by bytes, and a server that sends them.

mod messages;
mod snapshots;
mod streams;
mod support;
