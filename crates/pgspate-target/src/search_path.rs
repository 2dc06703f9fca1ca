//! Search paths of sessions: a pinned path for pgspate's own queries, the user's path for rows.
//!
//! A role that may create objects in a schema of the user's search path can add a function or
//! operator there. PostgreSQL could then choose that object instead of the one in `pg_catalog`. So
//! every session starts with the search path `pg_catalog`, and keeps the user's path in a setting.
//! Sessions that write rows restore the user's path, since triggers, defaults and conditions of the
//! user depend on it.

/// The search path for pgspate's own queries.
const PINNED_PATH: &str = "pg_catalog, pg_temp";

/// The session setting that keeps the user's search path. Only pgspate's own sessions have it.
pub(crate) const USERS_PATH_SETTING: &str = "pgspate.search_path";

/// The session setting that keeps the oid of the table that was looked up last, or 0.
const FOUND_TABLE_SETTING: &str = "pgspate.table";

/// The oid in [`FOUND_TABLE_SETTING`], as SQL.
pub(super) const FOUND_TABLE: &str = "current_setting('pgspate.table')::oid";

/// Settings by which the server notices within a minute that the client's host was lost. By default
/// it notices after two hours, and the session keeps its locks until then.
const KEEPALIVES: [(&str, u32); 3] =
    [("tcp_keepalives_idle", 30), ("tcp_keepalives_interval", 10), ("tcp_keepalives_count", 3)];

/// Keepalives are set if the server would wait for more seconds than this before the first one.
const KEEPALIVES_IDLE_MAX: u32 = 60;

/// Returns result columns for a query. The columns keep the user's path, pin pgspate's path and set
/// keepalives, if the backend process is `pid`. Behind a pooler the process differs, and the
/// settings might reach sessions of other programs.
pub(crate) fn pin_columns_sql(pid: i32) -> String {
    let is_own = format!("pg_catalog.pg_backend_pid() operator(pg_catalog.=) {pid}");
    let set = |name, value: &str| {
        format!("case when {is_own} then pg_catalog.set_config('{name}', {value}, false) end")
    };
    // The server reports what the socket has, and 0 for a Unix socket.
    let is_long = format!(
        "pg_catalog.current_setting('tcp_keepalives_idle', true)::pg_catalog.int4 \
         operator(pg_catalog.>) {KEEPALIVES_IDLE_MAX}"
    );
    let keepalives = KEEPALIVES
        .map(|(name, value)| format!("pg_catalog.set_config('{name}', '{value}', false)"));
    format!(
        "{}, {}, case when {is_own} and {is_long} then pg_catalog.concat({}) end",
        set(USERS_PATH_SETTING, "pg_catalog.current_setting('search_path')"),
        set("search_path", &format!("'{PINNED_PATH}'")),
        keepalives.join(", ")
    )
}

/// Returns the statement that pins the path of a replication session, which does not keep the
/// user's path.
pub(crate) fn pin_sql() -> String {
    format!("set search_path = {PINNED_PATH}")
}

/// Returns statements that begin a transaction with pgspate's path, whatever path the session has.
pub fn begin_pinned_sql() -> String {
    format!("begin isolation level read committed; {}", pin_transaction_sql())
}

/// Returns the statement that pins the path for the rest of the transaction.
pub fn pin_transaction_sql() -> String {
    format!("set local search_path = {PINNED_PATH}")
}

/// Returns the statement that restores the user's path for the session, or for the transaction if
/// `is_local`. `pg_catalog` comes first, even if the user lists it later. In this
/// order, an expression uses PostgreSQL's own operator if one exists for exactly its types.
pub fn users_path_sql(is_local: bool) -> String {
    format!(
        "select pg_catalog.set_config('search_path', \
         case when kept operator(pg_catalog.~) '\\mpg_catalog\\M' \
              then 'pg_catalog, ' operator(pg_catalog.||) kept else kept end, {is_local}) \
         from pg_catalog.current_setting('{USERS_PATH_SETTING}') kept"
    )
}

/// Returns `statements`, to be sent in one message, wrapped so that they run with the user's exact
/// path. So the statements create objects in the user's schema.
pub fn under_users_path_sql(statements: &str) -> String {
    format!(
        "select pg_catalog.set_config('search_path', \
         pg_catalog.current_setting('{USERS_PATH_SETTING}'), true); {statements}; {}",
        pin_transaction_sql()
    )
}

/// Returns the common table expression `target` for a `with` clause. Its column `oid` is the oid of
/// the table that $1 names under the user's path, or NULL. The server parses the query before the
/// query changes the path. Later queries of the session get the oid by [`FOUND_TABLE`].
pub(super) fn table_lookup_cte() -> String {
    let lookup = with_users_path_sql("to_regclass($1)::oid", "oid");
    format!(
        "found as materialized ({lookup}), \
         target as materialized (select oid, set_config('{FOUND_TABLE_SETTING}', \
                                     coalesce(oid, 0)::text, false) from found)"
    )
}

/// Returns a query whose column `name` is an expression that is evaluated under the user's path.
/// The server parses the expression before the query changes the path.
pub(super) fn with_users_path_sql(expression: &str, name: &str) -> String {
    format!(
        "select set_config('search_path', current_setting('{USERS_PATH_SETTING}'), true), \
                {expression} as {name}, set_config('search_path', '{PINNED_PATH}', true)"
    )
}
