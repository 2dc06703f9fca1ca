//! What driver and tasks hand to each other: the ticket, receipts, the report.

use serde::{Deserialize, Serialize};

use crate::sync::fleet_job::altered_error;
use crate::{Error, ErrorKind};
use pgspate_target::ledger::BegunFleetJob;
use pgspate_target::{ConcurrentChange, has_types_sql, quote_literal};

/// What a job does with the rows of its parts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FleetMode {
    /// Adds them to the table.
    #[default]
    Append,
    /// Puts them in the place of the table's rows.
    Replace,
    /// Writes those that differ from the table's rows, as [`sync`](crate::sync) does.
    Sync,
}

/// When the rows of a job become visible.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FleetCommit {
    /// All at once, when the driver completes the job.
    #[default]
    Job,
    /// The rows of a part when its first attempt succeeds.
    Task,
}

/// How a job writes. Every run of its driver has the same options, but for `connections`, `buffer`
/// and `allow_empty`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FleetJobOptions {
    /// What is done with the rows.
    pub mode: FleetMode,
    /// When they become visible.
    pub commit: FleetCommit,
    /// Whether each run of the driver gives a part the same rows. Then a rerun of a job of
    /// [`FleetCommit::Task`] keeps the parts that are written.
    pub stable_parts: bool,
    /// The number of connections that all tasks may have at the same time; `None` for no limit.
    pub connections: Option<u32>,
    /// MiB of record batches that a task reads of a stream before it connects.
    pub buffer: u32,
    /// Whether a job of [`FleetMode::Replace`] may replace the table's rows by no rows.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_empty: bool,
    /// The number of rows that may be rejected; `None` if the first bad row fails its attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_rejects: Option<u64>,
    /// The caller's options of a sync, which [`complete`](super::complete) gets parsed.
    pub sync: Vec<String>,
    /// The epoch of a stream that the job writes; `None` if it writes no stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<StreamEpoch>,
}

/// An epoch of a stream. The engine may repeat it, with the same rows in other parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamEpoch {
    /// The stream's name.
    pub stream: String,
    /// The epoch's number. Numbers grow.
    pub number: i64,
    /// The id of the query that counts the epochs, if it is known. Another query counts from 0
    /// again.
    pub query: Option<String>,
    /// Whether the query completes every epoch, also one without rows. Then a missing epoch is
    /// refused, and otherwise it is a warning. Not stored: the ledger compares the options of an
    /// epoch that is begun again with those of another version.
    #[serde(default, skip_serializing)]
    pub is_gapless: bool,
}

/// What tasks need to write parts of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetTicket {
    /// The job's number in the ledger.
    pub job: i64,
    /// The number of the driver's run. Attempts of earlier runs are refused.
    pub fence: i64,
    /// The job's name, if it has one.
    pub name: Option<String>,
    /// The table's name in SQL.
    pub table: String,
    /// The table's oid.
    pub table_oid: u32,
    /// The name in SQL of the table that attempts write to: the stage, the shadow, or the table.
    pub destination: String,
    /// Whether attempts write to a shadow, which takes the table's place.
    pub has_shadow: bool,
    /// How the job writes.
    pub options: FleetJobOptions,
    /// Whether an earlier run of the driver has completed the job.
    pub is_complete: bool,
    /// What the user should know: other jobs of the table that are not complete.
    pub warnings: Vec<String>,
}

/// What an attempt has written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetReceipt {
    /// The job's number.
    pub job: i64,
    /// The part.
    pub part: i64,
    /// The number of the attempt's transaction.
    pub xid: i64,
    /// Rows written.
    pub rows: i64,
    /// Rows that triggers kept out.
    #[serde(default)]
    pub rows_kept_out: i64,
}

/// What a completed job has written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FleetJobReport {
    /// The job's number.
    pub job: i64,
    /// The table's name in SQL.
    pub table: String,
    /// Rows of all parts, with those that were rejected.
    pub rows_in: i64,
    /// Rows written to the table: inserted or updated.
    pub rows_written: i64,
    /// Rows that triggers of the table kept out. Of a part whose receipt was lost and asked for
    /// again, they are not known.
    pub rows_kept_out: i64,
    /// Rows inserted.
    pub inserted: i64,
    /// Rows updated.
    pub updated: i64,
    /// Rows deleted by a sync. Rows that a job replaces are not counted.
    pub deleted: i64,
    /// Rows rejected by the attempts that count. `pgspate.reject` has them.
    pub rejected: i64,
    /// The number of parts.
    pub parts: usize,
    /// Sealed attempts whose rows were left out.
    pub losers: usize,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// The result of [`abort`](super::abort).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AbortOutcome {
    /// The job has ended. Parts that are visible already stay in the table, and a named job with
    /// such parts stays in the ledger.
    Aborted,
    /// The job is complete, so nothing was done.
    IsComplete,
    /// The driver has begun the job again, or it was forgotten. Nothing was done.
    IsAnother,
}

impl FleetTicket {
    pub(super) fn begun(&self) -> BegunFleetJob {
        BegunFleetJob { job: self.job, fence: self.fence, is_complete: self.is_complete }
    }

    /// Returns whether each part is visible as soon as it is written.
    pub(super) fn commits_parts(&self) -> bool {
        self.options.commit == FleetCommit::Task
    }

    /// Returns the name in SQL of the stage or the shadow, if the job has one.
    pub(super) fn stage(&self) -> Option<&str> {
        (!self.commits_parts()).then_some(self.destination.as_str())
    }

    /// Returns the name, unquoted, of the table that attempts write to. `table` is the target's.
    pub(super) fn destination_name<'a>(&'a self, table: &'a str) -> &'a str {
        let is_stage = !self.commits_parts() && !self.has_shadow;
        let stage = self.destination.split_once('.').filter(|_| is_stage);
        stage.map_or(table, |(_, stage)| stage)
    }

    /// Returns a condition: the columns of the table that attempts write to have these types.
    pub(super) fn has_types_sql(&self, columns: &[(String, u32)]) -> String {
        let relation = format!("pg_catalog.to_regclass({})", quote_literal(&self.destination));
        has_types_sql(&format!("{relation}::pg_catalog.oid"), columns)
    }

    /// Returns the job in words.
    pub(super) fn title(&self) -> String {
        match &self.name {
            Some(name) => format!("job {} \"{name}\"", self.job),
            None => format!("job {}", self.job),
        }
    }

    /// Returns the error of a ticket that is no longer valid.
    pub(super) fn fenced_error(&self) -> Error {
        let message = format!("{} was begun again, completed or aborted", self.title());
        Error::new(ErrorKind::Ledger, message)
            .hint("Nothing of this attempt is written. Only the driver's latest run counts.")
    }

    /// Returns the error of a table of which a column has got another type.
    pub(super) fn altered_error(&self) -> Error {
        altered_error(&self.title(), &self.table)
    }

    /// Returns the error of a table that another session has emptied, so that parts were removed.
    pub(super) fn emptied_error(&self) -> Error {
        let message = format!("{} was emptied after {} began", self.table, self.title());
        Error::new(ErrorKind::Ledger, message)
            .because(ConcurrentChange::Emptied.to_error())
            .hint("Begin the job again, and write all parts.")
    }

    /// Returns the error of a table whose bad rows cannot be rejected by a task that commits.
    pub(super) fn not_rejecting_error(&self) -> Error {
        let message = format!(
            "no row of {} can be rejected: a task writes all of its rows by one statement, because \
             of the table's triggers",
            self.table
        );
        Error::new(ErrorKind::Plan, message).hint("Let the driver commit all rows at once.")
    }

    /// Returns the error of a table that was dropped or renamed after the job began.
    pub(super) fn dropped_error(&self) -> Error {
        let (table, title) = (&self.table, self.title());
        let message = format!("{table} was dropped or renamed after {title} began");
        Error::new(ErrorKind::Ledger, message).hint(
            "If the table was renamed, give it its name again. If it was dropped, abort the job, \
             create the table and begin again.",
        )
    }
}
