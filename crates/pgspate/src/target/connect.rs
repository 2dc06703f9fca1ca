//! Connecting as libpq does: conninfo, environment, password and service files, TLS, several hosts.
