//! What surrounds sessions: poolers between the command and the server, sessions that outlive their
//! client, and other people's operators that look like the server's own.

#[allow(dead_code, reason = "the tests of faults need more of it")]
#[path = "../faults/chance.rs"]
mod chance;
mod fake_pooler;
mod hostile;
mod hostile_server;
mod killed;
mod names;
mod pgbouncer;
mod poolers;
#[path = "../support/run.rs"]
mod run;
#[allow(dead_code, unused_imports, reason = "the tests of load need more of it")]
#[path = "../load/support.rs"]
mod support;
