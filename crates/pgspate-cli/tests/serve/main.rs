//! Records over HTTP: `pgspate serve` with a real PostgreSQL server and clients of all sorts.

mod access;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../../../pgspate/tests/support/certificates.rs"]
mod authorities;
mod certificates;
mod dropped_keys;
mod each_record;
mod ends_under_load;
mod examples;
mod formats;
mod http2;
mod keys;
mod life_cycle;
mod limits;
mod pages;
mod preferences;
mod refusals;
mod rude_clients;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../support/run.rs"]
mod run;
mod scene;
