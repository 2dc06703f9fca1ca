//! The foundation that every other crate of pgspate uses. This crate uses none of them.
//!
//! - [`Error`]: kind, message, place in the input, hint and cause. [`ServerRefusal`] is an error
//!   that the server reported.
//! - [`Secret`]: a text that cannot be printed by accident.
//! - [`quote_ident`] and [`quote_literal`]: identifiers and literals, quoted for SQL.
//! - [`numbers`]: counts, sizes and times, formatted for people.
//! - [`mod@file`]: files that are replaced as a whole and never written through a link.
//!
//! Nothing here connects to a server.

mod error;
pub mod file;
mod ident;
pub mod numbers;
mod refusal;
mod secret;

pub use error::{Error, ErrorKind, InputPlace, Result};
pub use ident::{IDENT_BYTES_MAX, quote_ident, quote_literal, truncate_ident};
pub use refusal::ServerRefusal;
pub use secret::Secret;
