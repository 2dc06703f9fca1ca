//! What is between the command and the server, and what other roles have put there: poolers, and
//! functions and operators that look like the server's own.

mod fake_pooler;
mod pgbouncer;
mod poolers;
#[path = "../support/run.rs"]
mod run;
#[allow(dead_code, unused_imports, reason = "the tests of load need more of it")]
#[path = "../load/support.rs"]
mod support;
