//! The server and the table: connecting, and the facts that plans are made from.

pub mod connect;
mod types;

pub use types::{PgType, Session, TypeKind};
