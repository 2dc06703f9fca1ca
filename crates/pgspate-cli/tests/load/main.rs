//! `pgspate load` as users meet it: the real command, real files, a real PostgreSQL.

mod input;
mod server;
mod support;
