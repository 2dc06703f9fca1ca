//! Search paths of sessions: pgspate's own for its questions, the user's for rows.
//!
//! Whoever may create objects in a schema of the user's search path can offer a function or an
//! operator that fits a question of ours better than the one in `pg_catalog`. So every session
//! begins with a path that has `pg_catalog` alone. The user's path is kept in the session. Sessions
//! that write rows put it back: triggers, defaults and conditions of the user are read under it.

/// The path that pgspate's own questions are read under.
const OURS: &str = "pg_catalog, pg_temp";

/// The setting of a session that keeps the user's path.
const KEPT: &str = "pgspate.search_path";

/// Columns of a query that keep the user's path and set pgspate's own, if the session is served by
/// the process `pid`. Through a pooler it is served by another one, and the setting might reach
/// sessions of other programs.
pub(crate) fn pin_columns(pid: i32) -> String {
    let set = |name, value: &str| {
        format!(
            "case when pg_catalog.pg_backend_pid() operator(pg_catalog.=) {pid} \
             then pg_catalog.set_config('{name}', {value}, false) end"
        )
    };
    format!(
        "{}, {}",
        set(KEPT, "pg_catalog.current_setting('search_path')"),
        set("search_path", &format!("'{OURS}'"))
    )
}

/// Sets pgspate's own path in a session for replication, which does not keep the user's.
pub(crate) fn pin() -> String {
    format!("set search_path = {OURS}")
}

/// Begins a transaction under pgspate's own path, whatever the session's is.
pub fn begin_pinned() -> String {
    format!("begin isolation level read committed; set local search_path = {OURS}")
}

/// A statement that gives the user's path to the session, or to the transaction if `is_local`.
/// `pg_catalog` comes first, also where the user has it later. So an expression means what
/// PostgreSQL has for exactly its types.
pub fn use_users_path(is_local: bool) -> String {
    format!(
        "select pg_catalog.set_config('search_path', \
         case when kept operator(pg_catalog.~) '\\mpg_catalog\\M' \
              then 'pg_catalog, ' operator(pg_catalog.||) kept else kept end, {is_local}) \
         from pg_catalog.current_setting('{KEPT}') kept"
    )
}

/// The statements, to be sent in one message, under the user's path just as it is: what they make
/// is made in the user's schema.
pub fn under_users_path(statements: &str) -> String {
    format!(
        "select pg_catalog.set_config('search_path', \
         pg_catalog.current_setting('{KEPT}'), true); {statements}; \
         set local search_path = {OURS}"
    )
}

/// A part of a query's `with`: a table `it` of one row, whose `oid` is that of the table that $1
/// names under the user's path, or NULL. The query is parsed before it sets the path.
pub(super) fn find_table() -> String {
    format!(
        "it as materialized ( \
           select set_config('search_path', current_setting('{KEPT}'), true), \
                  to_regclass($1)::oid as oid, set_config('search_path', '{OURS}', true))"
    )
}
