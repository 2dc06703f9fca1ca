//! Time limits of a run, and the server's timeouts that must not interrupt the run.

use std::time::Duration;

use crate::connect::STALL_TIMEOUT;
use crate::search_path::USERS_PATH_SETTING;

/// How long a run waits for a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitLimits {
    /// How long to retry after a lost connection. Default: one minute.
    pub retry_for: Duration,
    /// How long a connection may be silent. Default: one minute.
    pub stall_timeout: Duration,
    /// How long to wait for a lock of another session. Default: five minutes; zero waits without
    /// limit.
    pub lock_timeout: Duration,
}

impl WaitLimits {
    /// Returns the statements that set the session's lock timeout, and switch off the session's
    /// other timeouts.
    pub fn session_sql(&self) -> String {
        TimeoutScope::Session.disable_with_lock_timeout_sql(self.lock_timeout_millis())
    }

    /// Returns the statement that sets the lock timeout of the session, unless a pooler may give
    /// the session to other programs.
    pub fn lock_timeout_sql(&self) -> String {
        format!(
            "select pg_catalog.set_config('lock_timeout', '{}', false) \
             from pg_catalog.current_setting('{USERS_PATH_SETTING}', true) kept \
             where kept is not null",
            self.lock_timeout_millis()
        )
    }

    /// Returns the lock timeout in milliseconds, as the server's setting takes it.
    pub fn lock_timeout_millis(&self) -> i32 {
        i32::try_from(self.lock_timeout.as_millis()).unwrap_or(i32::MAX)
    }
}

impl Default for WaitLimits {
    fn default() -> WaitLimits {
        WaitLimits {
            retry_for: Duration::from_secs(60),
            stall_timeout: STALL_TIMEOUT,
            lock_timeout: Duration::from_secs(300),
        }
    }
}

/// How long the server's own timeouts stay switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeoutScope {
    /// Until the session ends.
    Session,
    /// Until the transaction ends.
    Transaction,
}

impl TimeoutScope {
    /// Returns the statement that switches the timeouts off. After that, only a cancel request or
    /// `lock_timeout` can interrupt a statement. Settings that a server version lacks are skipped.
    pub fn disable_sql(self) -> String {
        format!(
            "select pg_catalog.set_config(name, '0', {}) from pg_catalog.unnest(array[
                 'statement_timeout', 'transaction_timeout', 'idle_session_timeout',
                 'idle_in_transaction_session_timeout', 'exit_on_error']) as name
             where pg_catalog.current_setting(name, true) is not null",
            self == TimeoutScope::Transaction
        )
    }

    /// Returns the statements that set the lock timeout, and switch the other timeouts off. 0
    /// milliseconds wait for locks without limit.
    pub fn disable_with_lock_timeout_sql(self, lock_timeout_millis: i32) -> String {
        let local = if self == TimeoutScope::Transaction { "local " } else { "" };
        format!("set {local}lock_timeout = {lock_timeout_millis}; {}", self.disable_sql())
    }
}
