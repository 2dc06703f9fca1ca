//! `pgspate load` as users meet it: the real command, real files, a real PostgreSQL.

mod input;
mod refused;
mod server;
mod support;
