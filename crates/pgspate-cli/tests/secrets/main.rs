//! Secrets reach the server that they are for, and nothing else: no output, no file, no table, no
//! log and no other server.
//!
//! Every secret holds the same mark, and everything that a command leaves behind is looked through
//! for that mark.

mod headers;
mod passwords;
#[allow(dead_code, reason = "other tests need more of it")]
#[path = "../support/run.rs"]
mod run;
mod scene;
mod sources;
mod stores;
mod web;
