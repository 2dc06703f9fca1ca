//! `pgspate load` as users meet it: the real command, real files, a real PostgreSQL.

mod ended;
mod formats;
mod input;
mod limits;
mod output;
mod refused;
mod server;
mod support;
mod tables;
