//! Embedded PostgreSQL servers: finds or fetches the programs, starts and stops the servers.
//!
//! There are three kinds of servers:
//! - [`EmbeddedServer`] is the user's server. Its data stays, and it is as durable as any server.
//! - [`ThrowawayServer`] belongs to one value in one process. When the value is dropped or the
//!   process dies, the server is stopped and its folder is removed.
//! - [`testing`] shares one throwaway server among the tests of a process. Each test gets a
//!   database of its own.
//!
//! All functions block. They need no async runtime, but may be called from within one. PostgreSQL
//! refuses to run as root. If pgspate runs as root, the server runs as the user `postgres` or
//! `nobody`, and that user owns the data folder.

mod account;
mod clone;
mod dsn;
mod error;
mod fetch;
mod find;
mod folder;
mod home;
mod initdb;
mod launch;
mod pidfile;
mod process;
mod progress;
mod server;
#[allow(unsafe_code)]
mod sys;
mod template;
pub mod testing;
mod throwaway;

pub use clone::clone_data_folder;
pub use error::{Error, Result};
pub use fetch::fetch;
pub use find::{Installation, MAJOR_FETCHED, MAJOR_MIN, locate, locate_major};
pub use progress::{Progress, ServerStep, silent};
pub use server::{EmbeddedServer, ServerState, ServerStatus};
pub use throwaway::{ThrowawayBuilder, ThrowawayServer};
