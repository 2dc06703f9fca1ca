//! The server that is written to, and the facts of its tables.
//!
//! - [`connect`]: connections as libpq makes them, and a guard that ends silent ones.
//! - [`session`]: how one waits for a server.
//! - [`Table`], [`Index`], [`Upkeep`], [`Recipe`]: what a table is, and how to make its parts
//!   again.
//! - [`measure`] and [`server`]: counters, sizes, settings, the kind of server.
//! - [`ledger`]: what has been done to a database, kept in the database itself.
//!
//! Every session begins with its search path pinned, and reads only relations whose owners are
//! trusted. What is unsure after a fault is asked of the ledger. Nothing here knows of inputs and
//! formats, or writes a row of the user's.

mod ask;
pub mod connect;
mod dependents;
mod index;
pub mod ledger;
pub mod likeness;
pub mod measure;
mod recipe;
mod search_path;
pub mod server;
pub mod session;
mod settings;
mod table;
mod trust;
mod upkeep;

pub use ask::{Ask, Parameter};
pub use dependents::{Bonds, Reference, distributed_by, fixed, has_heirs};
pub use index::{DEFINITION_SETTINGS, Index, IndexKind};
pub use pgspate_base::{
    IDENT_BYTES_MAX, ServerRefusal, quote_ident, quote_literal, truncate_ident,
};
pub use pgspate_input::types::{PgType, Session, TypeKind};
pub use recipe::{AUTOVACUUM, PresentNames, Recipe, present_names};
pub use search_path::{begin_pinned, under_users_path, use_users_path};
pub use settings::read_session;
pub use table::{Column, LEDGER_SCHEMA, Table, Trigger, Unlogged, check_schema};
pub(crate) use trust::is_trusted_sql;
pub use trust::untrusted_owner_sql;
pub use upkeep::{Sequence, Upkeep, users};

use tokio_postgres::error::SqlState;

pub(crate) use pgspate_base::{Error, ErrorKind, InputPlace, Result};

/// Whether the server ends the session with such an error, or the connection has failed.
pub fn ends_session(code: &SqlState) -> bool {
    code.code().starts_with("08") || code.code().starts_with("57P0")
}

/// Wraps what the server or the connection said, under a message of ours.
pub fn server_error(message: String) -> impl FnOnce(tokio_postgres::Error) -> Error {
    move |error| match error.as_db_error() {
        Some(said) => {
            let kind =
                if ends_session(said.code()) { ErrorKind::Connect } else { ErrorKind::Server };
            let wrapped = Error::new(kind, message);
            let wrapped = wrapped.hint_if(said.hint());
            wrapped.because(ServerRefusal::new(said))
        }
        None => Error::new(ErrorKind::Connect, message).because(error),
    }
}
