//! How long to wait, and what must not end a session's work before.

use std::time::Duration;

use crate::connect::STALL_TIMEOUT;

/// How long a run waits for what may never come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How long to go on trying when a connection is lost: a minute unless told.
    pub retry_for: Duration,
    /// How long to wait for a connection over which nothing comes any more: a minute.
    pub stall_timeout: Duration,
    /// How long to wait for a lock that another session holds: five minutes; zero is for ever.
    pub lock_timeout: Duration,
}

impl Limits {
    /// The statement that has a session wait for locks so long, and for nothing else.
    pub fn session_sql(&self) -> String {
        Timeouts::OfSession.off_with_lock_timeout(self.lock_timeout_millis())
    }

    /// As the server's setting takes it.
    pub fn lock_timeout_millis(&self) -> i32 {
        i32::try_from(self.lock_timeout.as_millis()).unwrap_or(i32::MAX)
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            retry_for: Duration::from_secs(60),
            stall_timeout: STALL_TIMEOUT,
            lock_timeout: Duration::from_secs(300),
        }
    }
}

/// For how long the server's own timeouts are switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timeouts {
    /// Until the session ends.
    OfSession,
    /// Until the transaction ends.
    OfTransaction,
}

impl Timeouts {
    /// The statement that switches them off: nothing ends the work but its end, a cancel request
    /// and `lock_timeout`, which is left as it is. Servers that lack a setting pass over it.
    pub fn off(self) -> String {
        format!(
            "select pg_catalog.set_config(name, '0', {}) from pg_catalog.pg_settings
             where name operator(pg_catalog.=) any (array[
                 'statement_timeout', 'transaction_timeout', 'idle_session_timeout',
                 'idle_in_transaction_session_timeout', 'exit_on_error'])",
            self == Timeouts::OfTransaction
        )
    }

    /// The same, and how long to wait for a lock, in milliseconds; 0 is for ever.
    pub fn off_with_lock_timeout(self, lock_timeout_millis: i32) -> String {
        let local = if self == Timeouts::OfTransaction { "local " } else { "" };
        format!("set {local}lock_timeout = {lock_timeout_millis}; {}", self.off())
    }
}
