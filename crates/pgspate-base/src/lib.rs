//! The foundation that every other crate of pgspate uses. This crate uses none of them.
//!
//! - [`Error`]: kind, message, place in the input, hint and cause. [`ServerRefusal`] is an error
//!   that the server reported.
//! - [`Secret`]: a text that cannot be printed by accident.
//! - [`quote_ident`] and [`quote_literal`]: identifiers and literals, quoted for SQL.
//! - [`nearest`] and [`did_you_mean`]: the known name that a mistyped name is most similar to.
//! - [`numbers`]: counts, sizes and times, formatted for people.
//! - [`mod@file`]: files that are replaced as a whole and never written through a link.
//!
//! Nothing here connects to a server.

mod error;
pub mod file;
mod ident;
mod nearest;
pub mod numbers;
mod refusal;
mod secret;
mod shell;

pub use error::{Error, ErrorKind, InputPlace, Result};
pub use ident::{IDENT_BYTES_MAX, is_alike, quote_ident, quote_literal, truncate_ident};
pub use nearest::{did_you_mean, nearest};
pub use refusal::ServerRefusal;
pub use secret::Secret;
pub use shell::shell_word;
