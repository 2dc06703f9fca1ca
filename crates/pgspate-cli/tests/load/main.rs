//! `pgspate load` as users meet it: the real command, real files, a real PostgreSQL.

mod formats;
mod input;
mod refused;
mod server;
mod support;
mod tables;
