//! The fillfactor to advise for a table of which few updates are HOT.

/// SQL for how many rows of the relation `oid` are updated between two vacuums, on average.
pub const UPDATES_PER_VACUUM: &str = "\
pg_stat_get_tuples_updated(oid)
    / (1 + pg_stat_get_vacuum_count(oid) + pg_stat_get_autovacuum_count(oid))";

/// Returns the fillfactor for a table of `rows` rows. `updated` is how many rows get new versions
/// before a vacuum frees the space of the old versions.
///
/// Measured: ten syncs that each updated 43 % of the rows left 1.31 M dead rows at fillfactor 100,
/// and 0.68 M at fillfactor 60. If fewer rows change, a table that is larger by two thirds does not
/// pay.
pub fn advised_fillfactor(updated: u64, rows: u64) -> i32 {
    if updated.saturating_mul(5) >= rows { 60 } else { 90 }
}
