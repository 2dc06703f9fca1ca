//! `pgspate load` while something goes wrong: the network, the server, the command itself.
//!
//! However a load ends, it must end; its exit status must be true; and the same command, run
//! again, must do what is left and nothing else. With `PGSPATE_TEST_FAULTS=N` every message of a
//! load is tried with a fault, and N random faults of each kind. A failing trial is printed in the
//! form that `PGSPATE_TEST_FAULTS_REPLAY` takes.

mod chance;
#[path = "../support/disk.rs"]
mod disk;
mod doubt;
mod failover;
mod indexes;
mod input;
mod itself;
mod plan;
#[allow(dead_code, reason = "the faults of apply need more of it")]
mod proxy;
mod rule;
#[path = "../support/run.rs"]
mod run;
mod scene;
mod servers;
mod stops;
mod tally;
mod then;
mod trial;
mod wire;
mod wires;
