//! Arrays of jobs: loads and syncs that are members of a fleet, with a real PostgreSQL server.
//!
//! `PGSPATE_TEST_FAULTS=N` kills and disturbs N attempts of members instead of a few.

mod altered_tables;
mod committed_parts;
mod connections;
mod driven;
mod driven_modes;
mod driven_rejects;
mod driver_kills;
mod epochs;
mod example;
mod faults;
mod fences;
mod job_ends;
mod loads;
mod lock_waits;
mod lost_completions;
mod members;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../faults/plan.rs"]
mod plan;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../faults/protocol.rs"]
mod protocol;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../faults/proxy.rs"]
mod proxy;
#[path = "../support/run.rs"]
mod run;
mod scene;
mod sequences;
#[allow(dead_code, unused_imports, reason = "other tests use the rest of this module")]
#[path = "../load/support.rs"]
mod support;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../faults/test_random.rs"]
mod test_random;
