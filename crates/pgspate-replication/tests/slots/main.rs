//! PostgreSQL's logical replication as a source: messages that tests build, and real
//! servers' streams.

// Other tests use the rest of the module.
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
