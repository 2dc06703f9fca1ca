//! Single records by many callers: `pgspate::writer` with a real PostgreSQL server.
//!
//! `PGSPATE_TEST_FAULTS=N` tries N random faults instead of a few.

mod altered_types;
mod conflicts;
mod differential;
mod dropped_keys;
mod faults;
mod keys;
mod locks;
mod outcomes;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../faults/plan.rs"]
mod plan;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../faults/protocol.rs"]
mod protocol;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../faults/proxy.rs"]
mod proxy;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../support/run.rs"]
mod run;
mod scene;
mod server_settings;
mod stale_facts;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../faults/test_random.rs"]
mod test_random;
mod views;
