//! Unusual sessions: connection poolers, sessions that outlive their client, hostile servers, and
//! other roles' objects with the names of PostgreSQL's own.

mod fake_pooler;
mod foreign_operators;
mod hostile_search_path;
mod hostile_server;
mod orphaned_sessions;
mod pgbouncer;
mod poolers;
#[path = "../support/run.rs"]
mod run;
#[allow(dead_code, unused_imports, reason = "other tests use the rest of this module")]
#[path = "../load/support.rs"]
mod support;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../faults/test_random.rs"]
mod test_random;
