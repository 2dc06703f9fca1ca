//! Files to table.
