//! Unusual settings, and the refusals that they may cause.

/// A setting and its unusual values.
#[derive(Clone, Copy)]
pub(crate) struct OddSetting {
    pub(crate) name: &'static str,
    pub(crate) values: &'static [&'static str],
}

const fn odd(name: &'static str, values: &'static [&'static str]) -> OddSetting {
    OddSetting { name, values }
}

pub(crate) const ODD_SETTINGS: &[OddSetting] = &[
    odd("default_transaction_isolation", &["repeatable read", "serializable", "read uncommitted"]),
    odd("default_transaction_read_only", &["on"]),
    odd("default_transaction_deferrable", &["on"]),
    odd("statement_timeout", &["3s"]),
    odd("lock_timeout", &["1s"]),
    odd("idle_in_transaction_session_timeout", &["500ms"]),
    odd("idle_session_timeout", &["2s"]),
    odd("transaction_timeout", &["5s"]),
    odd("search_path", &["''", "nowhere", "odd, public", "public, pg_catalog", "\"$user\""]),
    odd("DateStyle", &["German, DMY", "SQL, MDY", "Postgres, YMD", "ISO, DMY", "SQL, DMY"]),
    odd("IntervalStyle", &["sql_standard", "postgres_verbose", "iso_8601"]),
    odd("TimeZone", &["America/New_York", "Asia/Kolkata", "<+03>-3", "Europe/Berlin"]),
    odd("timezone_abbreviations", &["Australia", "India"]),
    odd("bytea_output", &["escape"]),
    odd("extra_float_digits", &["-15", "0", "3"]),
    odd("standard_conforming_strings", &["off"]),
    odd("backslash_quote", &["off", "on"]),
    odd("escape_string_warning", &["on"]),
    odd("quote_all_identifiers", &["on"]),
    odd("client_encoding", &["LATIN1", "SQL_ASCII", "EUC_JP"]),
    odd("lc_messages", &["C", ""]),
    odd("lc_monetary", &["C"]),
    odd("row_security", &["off"]),
    odd("work_mem", &["64kB"]),
    odd("maintenance_work_mem", &["1MB"]),
    odd("temp_buffers", &["800kB"]),
    odd("temp_file_limit", &["0", "64kB"]),
    odd("session_replication_role", &["replica", "local"]),
    odd("jit", &["on"]),
    odd("jit_above_cost", &["0"]),
    odd("enable_seqscan", &["off"]),
    odd("enable_indexscan", &["off"]),
    odd("enable_bitmapscan", &["off"]),
    odd("enable_tidscan", &["off"]),
    odd("enable_hashjoin", &["off"]),
    odd("enable_mergejoin", &["off"]),
    odd("enable_nestloop", &["off"]),
    odd("enable_sort", &["off"]),
    odd("enable_hashagg", &["off"]),
    odd("enable_material", &["off"]),
    odd("geqo_threshold", &["2"]),
    odd("join_collapse_limit", &["1"]),
    odd("from_collapse_limit", &["1"]),
    odd("plan_cache_mode", &["force_generic_plan", "force_custom_plan"]),
    odd("force_parallel_mode", &["on", "regress"]),
    odd("debug_parallel_query", &["on", "regress"]),
    odd("parallel_setup_cost", &["0"]),
    odd("min_parallel_table_scan_size", &["0"]),
    odd("max_parallel_maintenance_workers", &["0", "8"]),
    odd("synchronous_commit", &["off", "local"]),
    odd("commit_delay", &["1000"]),
    odd("array_nulls", &["off"]),
    odd("xmloption", &["document"]),
    odd("xmlbinary", &["hex"]),
    odd("transform_null_equals", &["on"]),
    odd("check_function_bodies", &["off"]),
    odd("exit_on_error", &["on"]),
    odd("client_min_messages", &["debug2", "error"]),
    odd("log_statement", &["all"]),
    odd("default_statistics_target", &["1"]),
    odd("default_toast_compression", &["pglz"]),
    odd("default_table_access_method", &["heap"]),
    odd("vacuum_cost_delay", &["1"]),
    odd("constraint_exclusion", &["on"]),
    odd("track_activities", &["off"]),
    odd("track_counts", &["off"]),
    odd("restrict_nonsystem_relation_kind", &["view"]),
    odd("lo_compat_privileges", &["on"]),
    odd("gin_fuzzy_search_limit", &["1"]),
    odd("event trigger", &["notice", "refuse"]),
];

/// Options that undo the settings that would disturb the test's own sessions.
pub(crate) const DEFAULT_OPTIONS: &str = "\
-c default_transaction_read_only=off -c statement_timeout=0 -c idle_session_timeout=0 \
-c search_path=pg_catalog -c client_min_messages=warning \
-c extra_float_digits=3 -c DateStyle=ISO -c session_replication_role=origin";

/// Settings under which a command may refuse to run, with a part of its message.
pub(crate) const ALLOWED_REFUSALS: &[(&str, &str)] = &[
    ("statement_timeout", "SQLSTATE 57014"),
    ("lock_timeout", "SQLSTATE 55P03"),
    ("idle_in_transaction_session_timeout", "SQLSTATE 25P03"),
    ("idle_session_timeout", "SQLSTATE 57P05"),
    ("transaction_timeout", "SQLSTATE 25P04"),
    ("temp_file_limit", "SQLSTATE 53400"),
    ("event trigger", "nothing may be made here"),
];

/// Returns SQL for an event trigger that raises notices, or forbids creating objects.
pub(crate) fn event_trigger(what: &str) -> String {
    let does = match what {
        "refuse" => "raise exception 'nothing may be made here'",
        _ => "raise notice 'something is made'",
    };
    format!(
        "create function odd.tell() returns event_trigger language plpgsql as \
             $$ begin {does}; end $$; \
         create event trigger tell on ddl_command_start execute function odd.tell()"
    )
}
