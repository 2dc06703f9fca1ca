//! `pgspate load` while the network or the server fails, or the command itself is killed.
//!
//! Every load must end, and its exit status must be true. The same command, run again, must do the
//! remaining work and nothing else. `PGSPATE_TEST_FAULTS=N` tries a fault at every message of a
//! load, and N random faults of each kind. A failed trial is printed in the form that
//! `PGSPATE_TEST_FAULTS_REPLAY` takes.

#[path = "../support/disk.rs"]
mod disk;
mod failover;
mod index_faults;
mod input;
mod load_checks;
mod lost_commits;
mod network_faults;
mod plan;
mod protocol;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod proxy;
mod proxy_tests;
#[path = "../support/run.rs"]
mod run;
mod scene;
mod server_faults;
mod signals;
mod stall_action;
mod tally;
mod test_random;
mod trial;
