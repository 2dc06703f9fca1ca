//! `pgspate load` while something goes wrong: the network, the server, the command itself.
//!
//! However a load ends, it must end; and its exit status must be true. With
//! `PGSPATE_TEST_FAULTS=N` every message of a load is tried with every fault, and then N faults of
//! chance; what fails is printed as it can be run again, with `PGSPATE_TEST_FAULTS_REPLAY`.

mod chance;
#[path = "../support/disk.rs"]
mod disk;
mod indexes;
mod itself;
mod plan;
mod proxy;
mod rule;
#[path = "../support/run.rs"]
mod run;
mod scene;
mod servers;
mod stops;
mod trial;
mod wire;
mod wires;
