//! A PostgreSQL server of pgspate's own: found on the machine or fetched, started and stopped.
//!
//! Three servers come from here. [`Server`] belongs to the user: its data outlives every run and
//! nothing about its durability is relaxed. [`Throwaway`] belongs to one value in one process:
//! when the value is dropped or the process dies, server and folder go. [`testing`] shares one
//! throwaway among the tests of a process and gives each test its own database.
//!
//! All functions block and none needs an async runtime; they may be called from within one.
//! PostgreSQL refuses to run as root, so under root every server runs as the user `postgres` or
//! `nobody`, and its folder belongs to that user.

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
pub use progress::{Progress, Step, silent};
pub use server::{Server, State, Status};
pub use throwaway::{Builder, Throwaway};
