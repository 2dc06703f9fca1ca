//! What every other crate of pgspate uses, and what uses none of them.
//!
//! - [`Error`]: what kind it is, where in the input, why, and what to do about it.
//!   [`ServerRefusal`] is what the server said.
//! - [`Secret`]: text that nothing prints.
//! - [`quote_ident`] and [`quote_literal`]: names and values as SQL writes them.
//! - [`numbers`]: counts, sizes and times as people read them.
//! - [`mod@file`]: files that are written whole, and through no link.
//!
//! It never talks to a server, and knows of no table.

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
