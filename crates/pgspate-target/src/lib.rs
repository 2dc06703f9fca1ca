//! The PostgreSQL server that pgspate writes to, and the facts of its tables.
//!
//! - [`connect`]: opens connections as libpq does, and closes connections that stopped responding.
//! - [`session`]: timeouts, cancelling, and retries.
//! - [`TargetTable`], [`TableIndex`], [`MaintenanceFacts`], [`RestoreRecipe`]: what a table is, and
//!   how to restore its indexes and options.
//! - [`measure`] and [`server`]: counters, sizes, settings, the kind of PostgreSQL.
//! - [`ledger`]: the record of jobs, kept in the database itself.
//!
//! Every session pins its search path first. A session reads only relations whose owners are
//! trusted.
//! After a fault, pgspate asks the ledger what was written. This crate parses no format and never
//! writes a user's row. Of an input, the ledger reads only samples, to recognize the input again.

mod cascades;
pub mod connect;
mod dependencies;
mod fillfactor;
mod index;
pub mod ledger;
mod maintenance;
pub mod measure;
mod recipe;
mod search_path;
pub mod server;
pub mod session;
mod session_settings;
pub mod shards;
mod signalled_sessions;
mod similar_table;
mod storage;
mod table;
mod table_lookup;
mod table_parts;
pub mod table_properties;
mod trust;
mod typed_query;
mod written_table;

pub use cascades::{cascading_keys_sql, read_cascading_keys};
pub use dependencies::{
    IncomingForeignKey, TableDependencies, has_inheriting_tables, read_references,
    replace_obstacles,
};
pub use fillfactor::{UPDATES_PER_VACUUM, advised_fillfactor};
pub use index::{DEFINITION_SETTINGS, IndexKind, TableIndex};
pub use maintenance::{MaintenanceFacts, Sequence, TableLocks, locking_sessions};
pub use pgspate_base::{
    IDENT_BYTES_MAX, ServerRefusal, quote_ident, quote_literal, truncate_ident,
};
pub use pgspate_input::types::{PgType, SessionSettings, TypeKind};
pub use recipe::{
    AUTOVACUUM_CHANGE, CurrentNames, RestoreRecipe, StepStatements, read_current_names,
};
pub use search_path::{
    begin_pinned_sql, pin_transaction_sql, under_users_path_sql, users_path_sql,
};
pub use session_settings::{COMMITS_WAIT, read_session, value_settings_sql};
pub use similar_table::suggest_table;
pub use storage::{StorageFacts, TableStorage};
pub use table::{
    ALTERED_TABLES, KnownDefinitions, LEDGER_SCHEMA, NO_HYPERTABLE_GUARD, REFUSE_ALTERED_TABLES,
    TargetColumn, TargetTable, Trigger, UniqueKey, check_is_user_schema, find_definition_mark_sql,
    is_unaltered_sql,
};
pub use table_lookup::FoundTable;
pub use table_parts::UnloggedExtent;
pub(crate) use trust::is_trusted_sql;
pub use trust::untrusted_owner_sql;
pub use typed_query::{TypedParameter, TypedQuery, send_in_order};
pub use written_table::{ConcurrentChange, WrittenTable, has_types_sql};

use tokio_postgres::error::SqlState;

pub(crate) use pgspate_base::{Error, ErrorKind, InputPlace, Result};

/// Returns whether the error ends the session, or reports a failed connection.
pub fn ends_session(code: &SqlState) -> bool {
    code.code().starts_with("08") || code.code().starts_with("57P0")
}

/// Returns a function that wraps an error of the server or the connection under `message`.
pub fn server_error(message: String) -> impl FnOnce(tokio_postgres::Error) -> Error {
    move |error| match error.as_db_error() {
        Some(refusal) => {
            let kind =
                if ends_session(refusal.code()) { ErrorKind::Connect } else { ErrorKind::Server };
            let wrapped = Error::new(kind, message);
            let wrapped = wrapped.hint_if(refusal.hint());
            wrapped.because(ServerRefusal::new(refusal))
        }
        None => Error::new(ErrorKind::Connect, message).because(error),
    }
}
