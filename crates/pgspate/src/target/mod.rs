//! The server and the table: connecting, and the facts that plans are made from.

pub mod connect;
mod ident;
mod types;

pub use ident::{IDENT_BYTES_MAX, quote_ident, truncate_ident};
pub use types::{PgType, Session, TypeKind};
