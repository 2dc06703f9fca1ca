//! Which sessions this session's role may signal.
//!
//! `pg_terminate_backend` raises an error for a session that the role may not signal. The error
//! would end the statement before other sessions are signalled, and fail the open transaction.

/// A condition: the role may signal row `a` of `pg_stat_activity`. That is a session of the role,
/// of a role whose privileges it has, or, with `pg_signal_backend`, any but those of superusers.
pub(crate) const MAY_SIGNAL: &str = "\
exists (select from pg_catalog.pg_roles me where me.rolname = current_user
          and (me.rolsuper or exists (
               select from pg_catalog.pg_roles they
               where they.oid = a.usesysid and not they.rolsuper
                 and (pg_catalog.pg_has_role(they.oid, 'usage') or exists (
                      select from pg_catalog.pg_roles signals
                      where signals.rolname = 'pg_signal_backend'
                        and pg_catalog.pg_has_role(signals.oid, 'usage'))))))";
