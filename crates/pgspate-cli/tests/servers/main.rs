//! Tests of tables whose rows an extension stores: distributed and reference tables of Citus, and
//! hypertables of TimescaleDB.
//!
//! Neither extension can be installed from the package registries. So a proxy imitates Citus: the
//! proxy makes the server refuse the statements that Citus refuses. With `PGSPATE_TEST_CITUS_DSN`
//! or `PGSPATE_TEST_TIMESCALE_DSN`, the same commands run on a real server, too.

mod citus_rules;
mod fake_cluster;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../faults/plan.rs"]
mod plan;
mod prepared_on_nodes;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../faults/protocol.rs"]
mod protocol;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../faults/proxy.rs"]
mod proxy;
#[path = "../support/run.rs"]
mod run;
mod stored_elsewhere;
mod straight_into_shards;
#[allow(dead_code, unused_imports, reason = "other tests use the rest of this module")]
#[path = "../load/support.rs"]
mod support;
