//! `pgspate load` as users meet it: the real command, real files, a real PostgreSQL.

mod care;
mod changing;
mod choices;
#[path = "../support/disk.rs"]
mod disk;
mod embedded;
mod ended;
mod exchange;
mod formats;
mod hostile;
mod indexes;
mod input;
mod kept;
mod keys;
mod ledger;
mod limits;
#[path = "../../../pgspate/tests/support/moto.rs"]
mod moto;
mod others;
mod output;
mod refused;
mod rejects;
mod replace;
#[path = "../support/run.rs"]
mod run;
mod server;
mod store;
mod support;
mod tables;
mod terminal;
mod unlogged;
mod web;
