//! Counts of what batches did to the target.

use serde::Serialize;

use crate::apply::batch::EventBatch;

/// Counts of events and rows of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ApplyCounts {
    /// Events of the stream.
    pub events: u64,
    /// Events of tables that are left out.
    pub left_out: u64,
    /// Bytes of input.
    pub bytes: u64,
    /// Rows inserted.
    pub inserted: u64,
    /// Rows updated. Rows that had the new values already do not count.
    pub updated: u64,
    /// Rows deleted.
    pub deleted: u64,
    /// Tables truncated.
    pub truncated: u64,
    /// Updates and deletes that found no row.
    pub missing: u64,
    /// Changes that triggers of the target tables kept out.
    pub changes_kept_out: u64,
    /// Events set aside as dead letters.
    pub dead_letters: u64,
    /// Committed transactions on the target.
    pub batches: u64,
    /// Updated rows that were written as a delete and an insert within one round.
    #[serde(skip)]
    pub(crate) reinserted: u64,
    /// The rows that the next statement writes if no trigger keeps them out. Known only for tables
    /// with such triggers.
    #[serde(skip)]
    pub(crate) expected: u64,
    /// Pairs of an insert and a delete of equal rows in one round. pgspate writes neither the
    /// insert nor the delete. The delete counts as missing at first; the writer subtracts these
    /// pairs from `missing`.
    #[serde(skip)]
    pub(crate) cancelled_pairs: u64,
}

impl ApplyCounts {
    /// Adds other counts.
    pub(crate) fn add(&mut self, other: &ApplyCounts) {
        self.events += other.events;
        self.left_out += other.left_out;
        self.bytes += other.bytes;
        self.inserted += other.inserted;
        self.updated += other.updated;
        self.deleted += other.deleted;
        self.truncated += other.truncated;
        self.missing += other.missing;
        self.changes_kept_out += other.changes_kept_out;
        self.dead_letters += other.dead_letters;
        self.batches += other.batches;
    }

    /// Adds the `written` rows of a MERGE between two counts of [`WriterSession::count_written`].
    /// Rows that the server has not counted, because `track_counts` was just switched off, are
    /// taken for updates.
    ///
    /// [`WriterSession::count_written`]: super::session::WriterSession::count_written
    pub(crate) fn add_merged(&mut self, written: u64, before: &ApplyCounts, after: &ApplyCounts) {
        let inserted = after.inserted.saturating_sub(before.inserted);
        let deleted = after.deleted.saturating_sub(before.deleted);
        self.inserted += inserted;
        self.deleted += deleted;
        self.updated += written.saturating_sub(inserted + deleted);
    }

    /// Adds the events of a batch.
    pub(crate) fn add_batch(&mut self, batch: &EventBatch) {
        self.events += batch.events;
        self.left_out += batch.left_out;
        self.bytes += batch.bytes;
    }
}
