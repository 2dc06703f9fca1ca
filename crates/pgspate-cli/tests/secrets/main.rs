//! Secrets reach only the server that they are for. They appear in no output, file, table or log,
//! and on no other server.
//!
//! Every secret contains the same mark. The tests search for this mark in everything that a command
//! leaves.

mod headers;
mod object_stores;
mod passwords;
mod recording_server;
#[allow(dead_code, reason = "other tests use the rest of this module")]
#[path = "../support/run.rs"]
mod run;
mod scene;
mod source_urls;
