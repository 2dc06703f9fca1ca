//! The server and the table: connecting, and the facts that plans are made from.

mod ask;
pub mod connect;
mod dependents;
mod index;
pub(crate) mod likeness;
mod recipe;
mod search_path;
mod session;
mod table;
mod trust;
mod upkeep;

pub(crate) use ask::{Ask, Parameter};
pub use dependents::{Bonds, Reference};
pub(crate) use dependents::{distributed_by, fixed, has_heirs};
pub(crate) use index::DEFINITION_SETTINGS;
pub use index::{Index, IndexKind};
pub(crate) use pgspate_base::quote_literal;
pub use pgspate_base::{IDENT_BYTES_MAX, Refusal, quote_ident, truncate_ident};
pub use pgspate_input::types::{PgType, Session, TypeKind};
pub use recipe::Recipe;
pub(crate) use recipe::{AUTOVACUUM, PresentNames, present_names};
pub(crate) use search_path::{begin_pinned, under_users_path, use_users_path};
pub use session::read_session;
pub use table::{Column, Table, Trigger, Unlogged};
pub(crate) use table::{LEDGER_SCHEMA, check_schema};
pub(crate) use trust::{is_trusted_sql, untrusted_owner_sql};
pub(crate) use upkeep::users;
pub use upkeep::{Sequence, Upkeep};

use tokio_postgres::error::SqlState;

use crate::{Error, Kind};

/// Whether the server ends the session with such an error, or the connection has failed.
pub(crate) fn ends_session(code: &SqlState) -> bool {
    code.code().starts_with("08") || code.code().starts_with("57P0")
}

/// Wraps what the server or the connection said, under a message of ours.
pub(crate) fn server_error(message: String) -> impl FnOnce(tokio_postgres::Error) -> Error {
    move |error| match error.as_db_error() {
        Some(said) => {
            let kind = if ends_session(said.code()) { Kind::Connect } else { Kind::Server };
            let wrapped = Error::new(kind, message);
            let wrapped = match said.hint() {
                Some(hint) => wrapped.hint(hint),
                None => wrapped,
            };
            wrapped.because(Refusal::new(said))
        }
        None => Error::new(Kind::Connect, message).because(error),
    }
}
