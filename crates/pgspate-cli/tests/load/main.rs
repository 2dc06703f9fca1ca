//! `pgspate load` as users meet it: the real command, real files, a real PostgreSQL.

mod embedded;
mod ended;
mod exchange;
mod formats;
mod input;
mod kept;
mod ledger;
mod limits;
#[path = "../../../pgspate/tests/support/moto.rs"]
mod moto;
mod output;
mod refused;
mod replace;
mod server;
mod store;
mod support;
mod tables;
