//! PostgreSQL's logical replication as a source: messages by bytes, and a server that sends them.

// Other tests need more of it.
#[allow(dead_code)]
#[path = "../../../pgspate/tests/support/certificates.rs"]
mod certificates;
#[path = "../../../pgspate-events/tests/support/events.rs"]
mod events;
mod logins;
mod messages;
mod random;
mod snapshots;
mod streams;
mod support;
