//! What batches did to the target.

use serde::Serialize;

use crate::apply::batch::EventBatch;

/// Counts of events and rows.
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
    /// Rows updated: those that were not as they should be.
    pub updated: u64,
    /// Rows deleted.
    pub deleted: u64,
    /// Tables emptied.
    pub truncated: u64,
    /// Updates and deletes for which there was no row to change.
    pub missing: u64,
    /// Events that were set aside.
    pub dead_letters: u64,
    /// Transactions on the target.
    pub batches: u64,
    /// Of the rows updated, those that were deleted and inserted for it, within a round.
    #[serde(skip)]
    pub(crate) freed: u64,
    /// Pairs of rows that came and went within a round and were not written: they are no longer
    /// looked for, and so taken off `missing`.
    #[serde(skip)]
    pub(crate) cancelled: u64,
}

impl ApplyCounts {
    pub(crate) fn add(&mut self, other: &ApplyCounts) {
        self.events += other.events;
        self.left_out += other.left_out;
        self.bytes += other.bytes;
        self.inserted += other.inserted;
        self.updated += other.updated;
        self.deleted += other.deleted;
        self.truncated += other.truncated;
        self.missing += other.missing;
        self.dead_letters += other.dead_letters;
        self.batches += other.batches;
    }

    /// Counts the events of a batch.
    pub(crate) fn note(&mut self, batch: &EventBatch) {
        self.events += batch.events;
        self.left_out += batch.left_out;
        self.bytes += batch.bytes;
    }
}
