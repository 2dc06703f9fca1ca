//! What was applied.

use serde::Serialize;

use super::batch::Batch;
use super::slot::Copied;

/// Counts of events and rows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
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

impl Counts {
    pub(crate) fn add(&mut self, other: &Counts) {
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
    pub(crate) fn note(&mut self, batch: &Batch) {
        self.events += batch.events;
        self.left_out += batch.left_out;
        self.bytes += batch.bytes;
    }
}

/// What a run of `apply` did.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// The stream's name.
    pub stream: String,
    /// Events that had been applied before.
    pub events_before: u64,
    /// What this run did.
    #[serde(flatten)]
    pub counts: Counts,
    /// The tables, as SQL writes them.
    pub tables: Vec<String>,
    /// Up to where the stream is applied, in the source's words.
    pub position: String,
    /// Tables whose rows were copied before the stream began.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub copied: Vec<Copied>,
    /// Batches that are committed and may have done more than is counted, as the server's answers
    /// were lost with a connection.
    pub uncounted: u64,
    /// Seconds from the first byte to the last commit.
    pub seconds: f64,
    /// It was stopped by a signal, after a whole batch.
    pub is_stopped: bool,
    /// What the user should know.
    pub warnings: Vec<String>,
}
